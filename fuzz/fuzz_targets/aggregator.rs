//! Any sequence of packets from registered workers leaves the aggregator's twin standing: its own assertions hold, no answer is
//! longer than what asked for it, and a result never changes.
#![no_main]

use std::collections::HashMap;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use xagg_proto::aggregator::Action;
use xagg_proto::{Aggregator, Job, Time};
use xagg_wire::{Flags, Kind, Packet, full_len};

const LANES: usize = 16;
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

/// What a fuzzer does not guess is filled in: who it is, what opens a flow, a slot that fits, the checksum. Few sequences,
/// exponents and signatures, so that contributions meet.
fn complete(job: &Job, packet: &mut Packet<&mut [u8]>) -> u16 {
    let rank = packet.rank() % 2;
    let (kind, sequence) = (packet.kind(), packet.sequence() % 32);
    let (flags, weight) = (packet.flags(), packet.weight());
    let (number, exponent) = (packet.packet_number(), packet.exponent() % 32);
    let signature = u32::from(packet.signature() == 1);
    packet.reset_header(kind.unwrap_or(Kind::Gradient));
    packet.set_flags(flags);
    packet.set_view(job.view);
    packet.set_rank(rank);
    packet.set_cookie(job.cookie(rank).to_wire());
    packet.set_sequence(sequence);
    packet.set_packet_number(number);
    packet.set_incarnation(1);
    packet.set_exponent(exponent);
    packet.set_weight(weight);
    packet.set_signature(signature);
    if kind == Some(Kind::Hello) {
        packet.set_slot(job.slots);
        packet.set_contributors(job.worker_count());
    } else {
        packet.set_slot(job.slot(sequence));
        packet.set_contributors(1);
    }
    rank
}

/// A result never changes (WIRE S7).
fn check_answer(results: &mut HashMap<u64, Vec<u8>>, answer: &[u8]) {
    let packet = Packet::new_unchecked(answer);
    if packet.kind() == Some(Kind::Result) && !packet.flags().contains(Flags::REDO) {
        let result = results.entry(packet.sequence()).or_insert_with(|| packet.body().to_vec());
        assert!(result == packet.body(), "the result of {} has changed", packet.sequence());
    }
}

fuzz_target!(|input: &[u8]| {
    let job = Job::parse(JOB).expect("a valid job");
    let mut aggregator = Aggregator::new(1, 256);
    aggregator.admit_job(&job).expect("the first job");
    let mut now = Time::ZERO;
    let mut results = HashMap::new();
    // Two bytes before each packet: how much later it comes, and whether it is taken as it is.
    for chunk in input.chunks_exact(2 + full_len(LANES)) {
        now = now + Duration::from_millis(chunk[0].into());
        let mut bytes = chunk[2..].to_vec();
        let mut packet = Packet::new_unchecked(&mut bytes[..]);
        let rank = if chunk[1] == 0 { packet.rank() % 2 } else { complete(&job, &mut packet) };
        packet.fill_checksum();
        match aggregator.handle(now, job.workers[usize::from(rank)], chunk[1] & 1 == 1, &mut bytes) {
            Action::Drop(_) => {}
            Action::Reply { len } => check_answer(&mut results, &bytes[..len]),
            Action::Broadcast { len } => {
                while aggregator.next_copy(&mut bytes[..len]).is_some() {
                    check_answer(&mut results, &bytes[..len]);
                }
            }
        }
    }
});
