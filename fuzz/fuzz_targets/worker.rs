//! Whatever comes with the aggregator's address and the worker's cookie, in any order and at any time, leaves the worker standing,
//! and every operation that it has taken ends at most once.
#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use xagg_proto::worker::Event;
use xagg_proto::{Job, Time, Worker};
use xagg_wire::packet::packet_len;
use xagg_wire::{Kind, Packet, Reduction, full_len};

const LANES: usize = 16;
const NONCE: u64 = 7;
const JOB: &str = r#"
    job = 0
    view = 0
    secret = "a secret for fuzzing"
    lanes = 16
    slots = 2
    aggregator = "10.0.0.9:9700"
    [[worker]]
    rank = 0
    address = "10.0.0.1:9701"
    [[worker]]
    rank = 1
    address = "10.0.0.2:9701"
"#;

/// What a fuzzer does not guess is filled in: that it is a packet for this worker, its length, the nonce, the checksum.
fn completed(job: &Job, chunk: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = chunk.to_vec();
    bytes[..3].copy_from_slice(b"XG\x01");
    let mut packet = Packet::new_unchecked(&mut bytes);
    let kind = packet.kind()?;
    packet.set_job(0);
    packet.set_view(0);
    packet.set_rank(0);
    packet.set_cookie(job.cookie(0).to_wire());
    packet.set_incarnation(1);
    // Few sequences, so that most are in flight.
    let sequence = packet.sequence() % 8;
    packet.set_sequence(if kind == Kind::Welcome { NONCE } else { sequence });
    let len = packet_len(kind, packet.flags(), LANES);
    bytes.truncate(len);
    Packet::new_unchecked(&mut bytes).fill_checksum();
    Some(bytes)
}

fuzz_target!(|input: &[u8]| {
    let job = Job::parse(JOB).expect("a valid job");
    let mut worker = Worker::new(&job, 0, NONCE).expect("rank 0");
    let mut now = Time::ZERO;
    let mut running = BTreeSet::new();
    let mut buffer = vec![0; full_len(LANES)];
    for length in [1, LANES, 5 * LANES + 3] {
        let values = Box::new(vec![1.0_f32; length]);
        let submitted = worker.submit(now, values, Reduction::Mean, 1);
        running.insert(submitted.unwrap_or_else(|failure| panic!("{}", failure.0)));
    }
    // A byte before each packet: how much later it comes, and whether the network claims that nobody listens.
    for chunk in input.chunks_exact(1 + full_len(LANES)) {
        now = now + Duration::from_millis((chunk[0] & 0x7f).into());
        if chunk[0] & 0x80 != 0 {
            worker.handle_unreachable(now);
        }
        if worker.poll_timeout().is_some_and(|due| due <= now) {
            worker.handle_timeout(now);
        }
        while worker.poll_transmit(now, &mut buffer).is_some() {}
        if let Some(bytes) = completed(&job, &chunk[1..]) {
            worker.handle_datagram(now, chunk[1] & 1 == 1, &bytes);
        }
        while let Some(event) = worker.poll_event() {
            match event {
                Event::Joined { .. } => {}
                Event::Complete { operation, .. } | Event::Failed { operation, .. } => {
                    assert!(running.remove(&operation), "operation {operation} ended twice");
                }
            }
        }
    }
    assert!(worker.error().is_none() || running.is_empty(), "a failed job keeps operations");
});
