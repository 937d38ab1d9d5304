//! Who is answered, with how much and how often: WIRE P2, H3, H9 and section 6.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use xagg_wire::{Counter, HEADER_LEN, Packet, REJECT_BURST, REJECT_INTERVAL, Reason, Repr};

use super::fixture::{Fixture, Gradient, Outcome};

const KIND: usize = 3;
const JOB: usize = 8;
const VIEW: usize = 12;
const COOKIE: usize = 16;

const STRANGER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 8, 9, 9)), 9701);

fn is_answered(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Drop(_))
}

/// What every kind of packet, sent by rank 0 of a job of two, may lead to: an answer of each kind that there is.
fn answered_payloads(fixture: &mut Fixture) -> Vec<Vec<u8>> {
    fixture.gradient(1, Gradient::of(1, 1, 1.0));
    fixture.gradient(1, Gradient::of(2, 2, 1.0e30));
    fixture.gradient(0, Gradient::of(2, 1, 1.0));
    let hello = |nonce, slots| Repr::Hello { nonce, slots, workers: 2, checksum: true };
    let pull = |sequence, slot| Repr::Pull { sequence, slot, redo: false, timestamp: 0 };
    let short = [hello(100, 4), hello(101, 4), hello(100, 5), pull(1, 1), pull(2, 2)];
    let mut payloads: Vec<_> = short.iter().map(|repr| fixture.payload(0, repr, |_| ())).collect();
    for gradient in [
        Gradient::of(0, 2, 1.0).asking(),
        Gradient::of(1, 3, 1.0),
        Gradient { signature: 8, ..Gradient::of(2, 4, 1.0) },
        Gradient::of(2, 5, 1.0),
        Gradient::of(8, 6, 1.0),
    ] {
        payloads.push(fixture.gradient_payload(0, gradient));
    }
    payloads
}

#[test]
fn whoever_lacks_address_port_cookie_job_or_view_gets_no_answer_to_anything() {
    let mut fixture = Fixture::joined(2, 4);
    let payloads = answered_payloads(&mut fixture);
    let own = fixture.address(0);
    let sources =
        [STRANGER, SocketAddr::new(own.ip(), own.port() + 7), SocketAddr::new(STRANGER.ip(), own.port())];
    for good in &payloads {
        for kind in 0..=u8::MAX {
            let mut payload = good.clone();
            payload[KIND] = kind;
            Packet::new_unchecked(&mut payload).fill_checksum();
            for source in sources.into_iter().chain([fixture.address(1)]) {
                assert!(!is_answered(&fixture.run(source, &payload)), "kind {kind} from {source}");
            }
            for at in (COOKIE..COOKIE + 8).chain(JOB..JOB + 4).chain(VIEW..VIEW + 2) {
                let mut payload = payload.clone();
                payload[at] ^= 0x10;
                Packet::new_unchecked(&mut payload).fill_checksum();
                assert!(!is_answered(&fixture.run(own, &payload)), "kind {kind}, byte {at} is wrong");
            }
        }
    }
    assert_eq!(fixture.count(Counter::Reject), 0);
    let answered = payloads.iter().filter(|payload| is_answered(&fixture.run(own, payload))).count();
    assert_eq!(answered, payloads.len(), "nothing but the sender was wrong with them");
}

/// The last column of WIRE section 6, for the reasons that a datagram can have.
#[test]
fn only_the_reasons_of_registered_workers_are_answered() {
    let rejected = [Reason::Incarnation, Reason::Nonce, Reason::Shape, Reason::Window, Reason::Mismatch];
    for reason in Reason::ALL.iter().filter(|reason| ![Reason::Fragment, Reason::Cursor].contains(reason)) {
        let mut fixture = Fixture::joined(2, 4);
        fixture.gradient(1, Gradient::of(0, 1, 1.0));
        let outcome = provoke(&mut fixture, *reason);
        assert_eq!(is_answered(&outcome), rejected.contains(reason), "{reason:?}");
        let (of_job, unassigned) = fixture.refused(*reason);
        assert_eq!(of_job + unassigned, 1, "{reason:?} is what was provoked");
    }
}

fn provoke(fixture: &mut Fixture, reason: Reason) -> Outcome {
    let mut payload = fixture.gradient_payload(0, Gradient::of(0, 1, 1.0));
    let mut source = fixture.address(0);
    let hello = |nonce, slots| Repr::Hello { nonce, slots, workers: 2, checksum: true };
    match reason {
        Reason::Length => drop(payload.pop()),
        Reason::Magic => payload[0] ^= 1,
        Reason::Kind => payload[KIND] = 6,
        Reason::Job => payload[JOB] ^= 1,
        Reason::Worker => source = STRANGER,
        Reason::Cookie => payload[COOKIE] ^= 1,
        Reason::Checksum => payload[HEADER_LEN] ^= 1,
        Reason::Nonce => payload = fixture.payload(0, &hello(7, 4), |_| ()),
        Reason::Shape => payload = fixture.payload(0, &hello(100, 5), |_| ()),
        Reason::Window => payload = fixture.gradient_payload(0, Gradient::of(8, 1, 1.0)),
        Reason::Mismatch => {
            payload = fixture.gradient_payload(0, Gradient { signature: 8, ..Gradient::of(0, 1, 1.0) });
        }
        _ => {
            let mut packet = Packet::new_unchecked(&mut payload);
            if reason == Reason::Field {
                packet.set_weight(0)
            } else {
                packet.set_incarnation(1)
            }
            packet.fill_checksum();
        }
    }
    fixture.run(source, &payload)
}

#[test]
fn a_worker_gets_a_burst_of_rejects_and_then_one_an_interval() {
    let mut fixture = Fixture::joined(2, 4);
    fixture.now = fixture.now + Duration::from_secs(1000);
    let rejects = |fixture: &mut Fixture, rank| {
        (0..100).filter(|_| is_answered(&fixture.hello(rank, 7))).count() as u32
    };
    assert_eq!(rejects(&mut fixture, 0), REJECT_BURST);
    assert_eq!(rejects(&mut fixture, 1), REJECT_BURST, "each worker has its own");
    fixture.now = fixture.now + 3 * REJECT_INTERVAL;
    assert_eq!(rejects(&mut fixture, 0), 3);
    assert_eq!((fixture.count(Counter::Reject), fixture.refused(Reason::Nonce)), (35, (300, 0)));
    assert_eq!(fixture.count(Counter::RejectLimited), 300 - 35);
    assert!(is_answered(&fixture.hello(0, 100)), "what is no REJECT is not limited");
}

#[test]
fn beyond_the_limit_a_mismatch_is_told_to_those_who_ask_only() {
    let mut fixture = Fixture::joined(3, 4);
    fixture.gradient(1, Gradient::of(0, 1, 1.0));
    (0..REJECT_BURST).for_each(|_| assert!(is_answered(&fixture.hello(0, 7))));
    let limited = fixture.gradient(0, Gradient { signature: 8, ..Gradient::of(0, 1, 1.0) });
    assert_eq!(limited, Outcome::Drop(Some(Reason::Mismatch)));
    let pulled = fixture.pull(1, 0, false);
    assert_eq!(fixture.rejection(&pulled), Reason::Mismatch);
    assert!(!is_answered(&fixture.pull(0, 0, false)), "who has caused it has had too many");
}

#[test]
fn a_mismatch_is_not_told_to_a_rank_that_has_not_joined() {
    let mut fixture = Fixture::fresh(4, 4);
    for rank in [0, 2] {
        fixture.hello(rank, 5);
    }
    fixture.gradient(2, Gradient::of(0, 1, 1.0));
    let outcome = fixture.gradient(0, Gradient { signature: 8, ..Gradient::of(0, 1, 1.0) });
    assert_eq!(fixture.broadcast(&outcome).len(), 2, "ranks 0 and 2");
    assert_eq!(fixture.count(Counter::Copies), 2);
    fixture.hello(1, 5);
    let late = fixture.gradient(1, Gradient::of(0, 1, 1.0));
    assert_eq!(fixture.rejection(&late), Reason::Mismatch, "it is told when it comes");
}

/// Which packet, which bytes of its header are changed, and where it comes from.
type Spoiled = (Index, Vec<(usize, u8)>, Index);

fn packets() -> impl Strategy<Value = Vec<Spoiled>> {
    let changes = prop::collection::vec((0..HEADER_LEN, any::<u8>()), 0..3);
    prop::collection::vec((any::<Index>(), changes, any::<Index>()), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// That answers are no longer than what asked for them is checked with every answer, by the fixture.
    #[test]
    fn whoever_is_answered_has_address_port_and_cookie_of_a_worker(packets in packets()) {
        let mut fixture = Fixture::joined(2, 4);
        let payloads = answered_payloads(&mut fixture);
        for (payload, changes, source) in packets {
            let mut payload = payload.get(&payloads).clone();
            for (at, value) in changes {
                payload[at] = value;
            }
            Packet::new_unchecked(&mut payload).fill_checksum();
            let source = *source.get(&[fixture.address(0), fixture.address(0), fixture.address(1), STRANGER]);
            if is_answered(&fixture.run(source, &payload)) {
                let packet = Packet::new_unchecked(&payload);
                let rank = packet.rank();
                prop_assert!(rank < 2 && source == fixture.address(rank));
                prop_assert_eq!(packet.cookie(), fixture.job.cookie(rank).to_wire());
                prop_assert_eq!((packet.job(), packet.view()), (fixture.job.id, fixture.job.view));
            }
        }
    }
}
