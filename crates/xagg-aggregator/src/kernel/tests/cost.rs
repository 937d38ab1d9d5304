//! What the checksum costs the kernel program. Measures, so it is ignored unless asked for:
//! `cargo test --release -p xagg-aggregator --lib cost_of_the_checksum -- --ignored --nocapture`

use xagg_testbed::skip_unless_root;
use xagg_wire::fixed::{Exponent, quantise};
use xagg_wire::repr::Contribution;
use xagg_wire::{Counter, Reason, Repr};

use super::harness::{Harness, job};
use super::table::join;

const ROUNDS: usize = 21;
/// Runs of the same packet in a row.
const RUNS: u32 = 200_000;
/// Packets that are added, each once.
const ADDED: u32 = 20_000;

fn joined(lanes: usize, checksum: bool) -> Harness {
    // The first of two contributions: it is added, and nothing is answered.
    let mut job = job(2, lanes, ADDED);
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
fn nanoseconds_refused(harness: &Harness) -> u32 {
    let payload = gradient(harness, 0, 0);
    let before = harness.refused(Reason::Field);
    let samples = (0..ROUNDS).map(|_| harness.nanoseconds(0, &payload, RUNS)).collect();
    assert_eq!(harness.refused(Reason::Field) - before, u64::from(RUNS) * ROUNDS as u64);
    median(samples)
}

/// Packets that are added; each is run once, so caches are cold and the clock's own time is in it.
fn nanoseconds_added(harness: &Harness) -> u32 {
    let add = |sequence| harness.nanoseconds(0, &gradient(harness, sequence, 1), 1);
    let samples = (0..u64::from(ADDED)).map(add).collect();
    assert_eq!(harness.count(Counter::Added), u64::from(ADDED));
    median(samples)
}

#[test]
#[ignore = "measures"]
fn the_cost_of_the_checksum_to_the_kernel_program() {
    if skip_unless_root("the_cost_of_the_checksum_to_the_kernel_program") {
        return;
    }
    for lanes in [352, 832] {
        let [without, with] = [false, true].map(|checksum| {
            let harness = joined(lanes, checksum);
            [nanoseconds_refused(&harness), nanoseconds_added(&harness)]
        });
        println!(
            "{lanes} lanes, ns a packet: checked and refused, many times {} without, {} with checksum;",
            without[0], with[0]
        );
        println!("  added, each once {} without, {} with", without[1], with[1]);
    }
}
