//! Several jobs on one aggregator, and what it says of them.

use std::time::Duration;

use xagg_proto::aggregator::{AdmitError, Bank, MAX_JOBS, Progress, Status, grant, memory_needed};
use xagg_proto::{Aggregator, Time};
use xagg_wire::{Counter, Repr};

use super::fixture::{Fixture, Gradient, INCARNATION, LANES, Outcome, RING, job};

#[test]
fn a_job_is_admitted_once_and_all_have_the_same_lanes() {
    let mut aggregator = Aggregator::new(INCARNATION, RING);
    aggregator.admit_job(&job(1, 1, 2, 352, 4)).expect("the first");
    let twice = aggregator.admit_job(&job(1, 1, 3, 352, 9));
    assert_eq!(twice, Err(AdmitError::Duplicate { job: 1, view: 1 }));
    let other = aggregator.admit_job(&job(2, 1, 2, 848, 4));
    assert_eq!(other, Err(AdmitError::Lanes { job: 2, lanes: 848, others: 352 }));
    aggregator.admit_job(&job(1, 2, 2, 352, 4)).expect("another view is another job");
    for id in 2..MAX_JOBS as u32 {
        aggregator.admit_job(&job(id, 1, 1, 352, 1)).expect("room");
    }
    assert_eq!(aggregator.admit_job(&job(100, 1, 1, 352, 1)), Err(AdmitError::Full));
}

#[test]
fn jobs_do_not_touch_each_other() {
    let mut fixture = Fixture::joined(2, 4);
    let mut other = Fixture::of(job(9, 3, 2, LANES, 4), Aggregator::new(INCARNATION, RING));
    fixture.aggregator.admit_job(&other.job).expect("another view");
    other.aggregator = std::mem::replace(&mut fixture.aggregator, Aggregator::new(1, RING));
    for rank in 0..2 {
        other.hello(rank, 1);
    }
    assert_eq!(other.gradient(0, Gradient::of(0, 1, 1.0)), Outcome::Drop(None));
    fixture.aggregator = other.aggregator;
    assert_eq!(fixture.gradient(1, Gradient::of(0, 1, 1.0)), Outcome::Drop(None), "only rank 1 of this view");
    assert_eq!((fixture.count(Counter::Added), fixture.bank(0).seen), (1, [0b10, 0, 0, 0]));
    assert_eq!(fixture.aggregator.counters(9, 3).expect("admitted")[Counter::Added.index()], 1);
    assert_eq!(fixture.aggregator.counters(9, 4), None);
}

#[test]
fn memory_is_two_banks_a_slot() {
    let needed = |slots| memory_needed(&job(1, 1, 2, 352, slots));
    assert_eq!(needed(1), 2 * (1408 + size_of::<Bank>() as u64));
    assert_eq!(needed(1 << 26), needed(1) << 26, "beyond 32 bits");
}

#[test]
fn banks_can_be_looked_at_in_range_only() {
    let fixture = Fixture::joined(1, 4);
    let (bank, lanes) = fixture.aggregator.bank(9, 2, 3, 1).expect("the last one");
    assert_eq!((bank.status, lanes), (Status::Empty, &[0; LANES][..]));
    for (view, slot, bank) in [(2, 4, 0), (2, u32::MAX, 0), (2, 0, 2), (1, 0, 0)] {
        assert!(fixture.aggregator.bank(9, view, slot, bank).is_none());
    }
}

#[test]
fn progress_tells_how_far_each_worker_is() {
    let mut fixture = Fixture::fresh(2, 4);
    let now = Time::from_origin(Duration::from_secs(3));
    let progress = |fixture: &Fixture| -> Vec<Progress> { fixture.aggregator.progress(9, 2).collect() };
    assert_eq!(progress(&fixture), [Progress::default(); 2]);
    fixture.hello(1, 1);
    fixture.gradient(1, Gradient::of(2, 1, 1.0));
    let mut payload = fixture.gradient_payload(1, Gradient::of(0, 2, 1.0));
    fixture.aggregator.handle(now, fixture.address(1), false, &mut payload);
    let expected = Progress { joined: true, packets: 3, sequences: 3, last_heard: Some(now) };
    assert_eq!(progress(&fixture), [Progress::default(), expected], "the furthest sequence, not the latest");
    let mut payload = fixture.gradient_payload(1, Gradient::of(0, 3, 1.0));
    payload[30] ^= 1;
    fixture.aggregator.handle(
        Time::from_origin(Duration::from_secs(9)),
        fixture.address(1),
        false,
        &mut payload,
    );
    assert_eq!(progress(&fixture)[1], expected, "what is not admitted is nobody's");
}

#[test]
fn all_workers_together_are_granted_what_the_ring_holds() {
    assert_eq!(grant(256, 4), 64);
    assert_eq!(grant(256, 256), 2, "one packet alone could not show that it is lost");
    assert_eq!(grant(1000, 0), 1000);
    let mut aggregator = Aggregator::new(INCARNATION, RING);
    for id in [1, 2] {
        aggregator.admit_job(&job(id, 0, 10, LANES, 4)).expect("fits");
    }
    let mut fixture = Fixture::of(job(1, 0, 10, LANES, 4), aggregator);
    let outcome = fixture.hello(0, 7);
    assert!(matches!(fixture.reply(&outcome), Repr::Welcome { grant: 5, .. }), "of all jobs: {outcome:?}");
}
