//! Any sequence of packets from registered workers leaves the aggregator's twin standing: its own assertions hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xagg_proto::aggregator::Action;
use xagg_proto::{Aggregator, Job, Time};
use xagg_wire::{Packet, full_len};

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

fuzz_target!(|input: &[u8]| {
    let job = Job::parse(JOB).expect("a valid job");
    let mut aggregator = Aggregator::new(1, 256);
    aggregator.admit_job(&job).expect("the first job");
    for chunk in input.chunks_exact(full_len(LANES)) {
        let mut bytes = chunk.to_vec();
        let mut packet = Packet::new_unchecked(&mut bytes);
        // What a fuzzer does not guess is filled in: who it is, and the checksum.
        let rank = packet.rank() % 2;
        packet.set_rank(rank);
        packet.set_cookie(job.cookie(rank).to_wire());
        packet.set_slot(job.slot(packet.sequence()));
        packet.fill_checksum();
        let action = aggregator.handle(Time::ZERO, job.workers[usize::from(rank)], chunk[0] & 1 == 1, &mut bytes);
        if let Action::Broadcast { len } = action {
            while aggregator.next_copy(&mut bytes[..len]).is_some() {}
        }
    }
});
