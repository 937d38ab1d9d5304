//! Who is answered, with how much and how often: WIRE P2, H3, H9. That answers are no longer than what asked for them is
//! checked with every answer, by the harness.

use std::net::SocketAddr;
use std::time::Duration;

use xagg_proto::Time;
use xagg_wire::repr::Rejection;
use xagg_wire::{Counter, Packet, REJECT_BURST, REJECT_INTERVAL, Reason, Repr};

use super::harness::{Harness, Outcome};
use super::table::{Gradient, fresh, joined};

const KIND: usize = 3;
const JOB: usize = 8;
const VIEW: usize = 12;
const COOKIE: usize = 16;

fn is_answered(outcome: &Outcome) -> bool {
    *outcome != Outcome::Drop
}

fn restarted(harness: &Harness, rank: u16) -> Outcome {
    harness.run(harness.job.workers[usize::from(rank)], &harness.hello_payload(rank, 7))
}

#[test]
fn whoever_lacks_address_port_cookie_job_or_view_gets_no_answer_to_anything() {
    let test = "whoever_lacks_address_port_cookie_job_or_view_gets_no_answer_to_anything";
    let Some(harness) = joined(test, 2, 4) else { return };
    harness.gradient(1, Gradient::of(1, 1, 1.0));
    let pull = Repr::Pull { sequence: 1, slot: 1, redo: false, timestamp: 0 };
    let payloads = [
        harness.hello_payload(0, 100),
        harness.hello_payload(0, 7),
        harness.payload(0, &pull, |_| ()),
        harness.gradient_payload(0, Gradient { ack: true, ..Gradient::of(0, 1, 1.0) }),
        harness.gradient_payload(0, Gradient { signature: 8, ..Gradient::of(1, 2, 1.0) }),
        harness.gradient_payload(0, Gradient::of(8, 3, 1.0)),
    ];
    let [own, other] = [harness.job.workers[0], harness.job.workers[1]];
    let other_address = SocketAddr::new([10, 8, 9, 9].into(), own.port());
    let other_port = SocketAddr::new(own.ip(), own.port() + 7);
    for good in &payloads {
        for kind in 0..=u8::MAX {
            let mut payload = good.clone();
            payload[KIND] = kind;
            Packet::new_unchecked(&mut payload).fill_checksum();
            for source in [other, other_address, other_port] {
                assert_eq!(harness.run(source, &payload), Outcome::Drop, "kind {kind} from {source}");
            }
            for at in (COOKIE..COOKIE + 8).chain([JOB, VIEW]) {
                let mut payload = payload.clone();
                payload[at] ^= 0x10;
                Packet::new_unchecked(&mut payload).fill_checksum();
                assert_eq!(harness.run(own, &payload), Outcome::Drop, "kind {kind}, byte {at} is wrong");
            }
        }
    }
    let answered = payloads.iter().filter(|payload| is_answered(&harness.run(own, payload))).count();
    assert_eq!(answered, payloads.len(), "nothing but the sender was wrong with them");
}

#[test]
fn a_worker_gets_a_burst_of_rejects_and_then_one_an_interval() {
    let Some(harness) = joined("a_worker_gets_a_burst_of_rejects_and_then_one_an_interval", 2, 4) else {
        return;
    };
    let start = Time::ZERO + Duration::from_secs(1000);
    harness.set_now(start);
    let rejects = |rank| (0..100).filter(|_| is_answered(&restarted(&harness, rank))).count() as u32;
    assert_eq!(rejects(0), REJECT_BURST);
    assert_eq!(rejects(1), REJECT_BURST, "each worker has its own");
    harness.set_now(start + 3 * REJECT_INTERVAL);
    assert_eq!(rejects(0), 3);
    assert_eq!((harness.count(Counter::Reject), harness.refused(Reason::Nonce)), (35, 300));
    assert_eq!(harness.count(Counter::RejectLimited), 300 - 35);
}

#[test]
fn beyond_the_limit_a_mismatch_is_told_to_those_who_ask_only() {
    let Some(harness) = joined("beyond_the_limit_a_mismatch_is_told_to_those_who_ask_only", 3, 4) else {
        return;
    };
    harness.gradient(1, Gradient::of(0, 1, 1.0));
    (0..REJECT_BURST).for_each(|_| assert!(is_answered(&restarted(&harness, 0))));
    let other = Gradient { signature: 8, ..Gradient::of(0, 1, 1.0) };
    assert_eq!(harness.gradient(0, other), Outcome::Drop);
    let told = harness.reply(&harness.pull(1, 0, false));
    assert!(matches!(told, Repr::Reject(Rejection { reason: Reason::Mismatch, .. })));
    assert_eq!(harness.pull(0, 0, false), Outcome::Drop, "who has caused it has had too many");
}

#[test]
fn a_mismatch_is_not_told_to_a_rank_that_has_not_joined() {
    let Some(harness) = fresh("a_mismatch_is_not_told_to_a_rank_that_has_not_joined", 4, 4) else { return };
    for rank in [0, 2] {
        harness.run(harness.job.workers[usize::from(rank)], &harness.hello_payload(rank, 5));
    }
    harness.gradient(2, Gradient::of(0, 1, 1.0));
    let outcome = harness.gradient(0, Gradient { signature: 8, ..Gradient::of(0, 1, 1.0) });
    let Outcome::Broadcast(copies) = outcome else { panic!("{outcome:?}") };
    let told: Vec<_> = copies.iter().map(|(address, _)| *address).collect();
    assert_eq!(told, [harness.job.workers[0], harness.job.workers[2]]);
    assert_eq!(harness.count(Counter::Copies), 2);
}
