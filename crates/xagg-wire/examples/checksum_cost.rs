//! What the checksum costs a worker: `cargo run --release -p xagg-wire --example checksum_cost`

use std::hint::black_box;
use std::time::Instant;

use xagg_wire::fixed::{Exponent, Format, Magnitude, dequantise, magnitude, quantise};
use xagg_wire::{HEADER_LEN, Kind, Packet, full_len};

const ROUNDS: usize = 21;
const PACKETS: u32 = 20_000;

/// Nanoseconds for one call: the median of the rounds.
fn nanoseconds(mut work: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            (0..PACKETS).for_each(|_| work());
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(PACKETS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn fill(format: Format, values: &[f32], packet: &mut Packet<Vec<u8>>) -> Exponent {
    let Magnitude::Finite(exponent) = magnitude(values) else { panic!("not zero, not infinite") };
    quantise(format, exponent, values, packet.body_mut());
    exponent
}

fn main() {
    for lanes in [352, 832] {
        let format = Format::for_workers(4).expect("few");
        let mut values: Vec<f32> = (0..lanes).map(|lane| (lane as f32).sin()).collect();
        let mut packet = Packet::new_unchecked(vec![0; full_len(lanes)]);
        packet.reset_header(Kind::Gradient);
        let write = [false, true].map(|checksum| {
            nanoseconds(|| {
                fill(format, black_box(&values), &mut packet);
                packet.seal(checksum);
                black_box(&packet);
            })
        });
        let exponent = fill(format, &values, &mut packet);
        packet.seal(true);
        let alone = nanoseconds(|| assert!(black_box(&packet).is_intact(true)));
        let read = [false, true].map(|checksum| {
            nanoseconds(|| {
                assert!(black_box(&packet).is_intact(checksum));
                dequantise(format, exponent, 1, 1, &packet.bytes()[HEADER_LEN..], &mut values);
                black_box(&values);
            })
        });
        let rate = full_len(lanes) as f64 / alone;
        println!("{lanes} lanes: the checksum alone {alone:.0} ns a packet, {rate:.1} GB/s");
        for (what, [without, with]) in [("quantise", write), ("dequantise", read)] {
            let ratio = with / without;
            println!("  {what}: {without:.0} ns without, {with:.0} ns with checksum, ratio {ratio:.2}");
        }
    }
}
