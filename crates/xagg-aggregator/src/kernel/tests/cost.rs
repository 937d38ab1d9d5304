//! What the checksum costs the kernel program. As a test it runs few packets; to measure, give it many:
//! `XAGG_COST_PACKETS=20000 cargo test --release -p xagg-aggregator --lib cost_of_the_checksum -- --nocapture`

use xagg_testbed::skip_unless_root;
use xagg_wire::fixed::{Exponent, quantise};
use xagg_wire::repr::Contribution;
use xagg_wire::{Counter, Reason, Repr};

use super::differential::from_environment;
use super::harness::{Harness, job};
use super::table::join;

const ROUNDS: usize = 21;
const FEW: u64 = 100;

fn joined(lanes: usize, checksum: bool, packets: u32) -> Harness {
    // The first of two contributions: it is added, and nothing is answered.
    let mut job = job(2, lanes, packets);
    job.checksum = checksum;
    join(Harness::new(job))
}

fn gradient(harness: &Harness, sequence: u64, weight: u32) -> Vec<u8> {
    let exponent = Exponent::finite(1).expect("legal");
    let contribution = Contribution {
        sequence,
        slot: harness.job.slot(sequence),
        packet_number: sequence as u32 + 1,
        redo: false,
        nonfinite: false,
        ack_request: false,
        exponent,
        contributors: 1,
        weight,
        signature: 7,
        timestamp: 0,
    };
    let values: Vec<f32> = (0..harness.job.lanes).map(|lane| (lane as f32).sin()).collect();
    let write_body = |body: &mut [u8]| quantise(harness.job.format, exponent, &values, body);
    harness.payload(0, &Repr::Gradient(contribution), write_body)
}

fn median(mut samples: Vec<u32>) -> u32 {
    samples.sort_unstable();
    samples[samples.len() / 2]
}

/// A packet that is checked in full and then refused, since its weight is 0: it stays as it is, so it can be run again and again.
fn nanoseconds_refused(harness: &Harness, packets: u32) -> u32 {
    let payload = gradient(harness, 0, 0);
    let samples = (0..ROUNDS).map(|_| harness.nanoseconds(0, &payload, packets)).collect();
    assert_eq!(harness.refused(Reason::Field), u64::from(packets) * ROUNDS as u64);
    median(samples)
}

/// Packets that are added; each is run once, so caches are cold and the clock's own time is in it.
fn nanoseconds_added(harness: &Harness, packets: u32) -> u32 {
    let add = |sequence| harness.nanoseconds(0, &gradient(harness, sequence, 1), 1);
    let samples = (0..u64::from(packets)).map(add).collect();
    assert_eq!(harness.count(Counter::Added), u64::from(packets));
    median(samples)
}

#[test]
fn the_cost_of_the_checksum_to_the_kernel_program() {
    if skip_unless_root("the_cost_of_the_checksum_to_the_kernel_program") {
        return;
    }
    let packets = from_environment("XAGG_COST_PACKETS").unwrap_or(FEW) as u32;
    for lanes in [352, 832] {
        let [without, with] = [false, true].map(|checksum| {
            let harness = joined(lanes, checksum, packets);
            [nanoseconds_refused(&harness, packets), nanoseconds_added(&harness, packets)]
        });
        println!(
            "{lanes} lanes, ns a packet: checked and refused, many times {} without, {} with checksum;",
            without[0], with[0]
        );
        println!("  added, each once {} without, {} with", without[1], with[1]);
    }
}
