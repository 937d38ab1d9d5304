//! Who gets in, and how flows are opened: WIRE P2, P3, P5, H1 to H3.

use std::net::SocketAddr;

use proptest::prelude::*;
use xagg_proto::{Aggregator, Time};
use xagg_wire::{Counter, HEADER_LEN, Kind, Packet, Reason, Repr, full_len};

use super::fixture::{Fixture, Gradient, INCARNATION, LANES, Outcome, RING};

/// Where the fields of the header are.
const KIND: usize = 3;
const RANK: usize = 6;
const JOB: usize = 8;
const VIEW: usize = 12;
const COOKIE: usize = 16;
const SLOT: usize = 36;
const EXPONENT: usize = 40;
const CONTRIBUTORS: usize = 42;
const WEIGHT: usize = 44;
const INCARNATION_AT: usize = 56;
const TIMESTAMP: usize = 52;

/// The payload with other bytes at an offset and a checksum that is right again.
fn changed(payload: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut payload = payload.to_vec();
    payload[at..at + bytes.len()].copy_from_slice(bytes);
    Packet::new_unchecked(&mut payload).fill_checksum();
    payload
}

#[test]
fn a_packet_is_refused_for_the_first_thing_that_is_wrong() {
    let mut fixture = Fixture::joined(2, 4);
    let good = fixture.gradient_payload(0, Gradient::of(0, 1, 1.0).asking());
    let (source, stranger) = (fixture.address(0), SocketAddr::new([10, 8, 9, 9].into(), 1));
    // Everything is wrong at first; each step sets one thing right, in the order of WIRE H3.
    let mut payload = vec![0xff; good.len() + 1];
    let mut expect = |payload: &[u8], source, reason, of_job| {
        let before = fixture.refused(reason);
        assert_eq!(fixture.run(source, payload), Outcome::Drop(Some(reason)));
        let after = fixture.refused(reason);
        let counted = (after.0 - before.0, after.1 - before.1);
        assert_eq!(counted, if of_job { (1, 0) } else { (0, 1) }, "{reason:?} is counted where it belongs");
    };
    expect(&payload, stranger, Reason::Length, false);
    payload.pop();
    expect(&payload, stranger, Reason::Magic, false);
    payload[..2].copy_from_slice(&good[..2]);
    expect(&payload, stranger, Reason::Magic, false);
    payload[2] = good[2];
    expect(&payload, stranger, Reason::Kind, false);
    payload[KIND] = good[KIND];
    expect(&payload, stranger, Reason::Job, false);
    payload[JOB..JOB + 4].copy_from_slice(&good[JOB..JOB + 4]);
    expect(&payload, stranger, Reason::Job, false);
    payload[VIEW..VIEW + 2].copy_from_slice(&good[VIEW..VIEW + 2]);
    expect(&payload, stranger, Reason::Worker, true);
    payload[RANK..RANK + 2].copy_from_slice(&good[RANK..RANK + 2]);
    expect(&payload, stranger, Reason::Worker, true);
    expect(&payload, source, Reason::Cookie, true);
    payload[COOKIE..COOKIE + 8].copy_from_slice(&good[COOKIE..COOKIE + 8]);
    expect(&payload, source, Reason::Checksum, true);
    assert_eq!(fixture.count(Counter::Packets), 2, "nothing but the HELLOs was admitted");

    Packet::new_unchecked(&mut payload).fill_checksum();
    let outcome = from_rank_0(&mut fixture, &payload);
    assert_eq!(fixture.rejection(&outcome), Reason::Incarnation);
    let payload = changed(&payload, INCARNATION_AT, &INCARNATION.to_le_bytes());
    assert_eq!(from_rank_0(&mut fixture, &payload), Outcome::Drop(Some(Reason::Field)));
    assert!(matches!(from_rank_0(&mut fixture, &good), Outcome::Reply(_)), "all is right");
    assert_eq!(fixture.count(Counter::Packets), 5, "refused after H3's first sentence is admitted before");
}

fn from_rank_0(fixture: &mut Fixture, payload: &[u8]) -> Outcome {
    fixture.run(fixture.address(0), payload)
}

#[test]
fn address_and_port_and_rank_belong_together() {
    let mut fixture = Fixture::joined(2, 4);
    let good = fixture.gradient_payload(0, Gradient::of(0, 1, 1.0));
    let own = fixture.address(0);
    let others = [
        fixture.address(1),
        SocketAddr::new(own.ip(), own.port() + 7),
        SocketAddr::new([10, 8, 9, 9].into(), own.port()),
    ];
    for source in others {
        assert_eq!(fixture.run(source, &good), Outcome::Drop(Some(Reason::Worker)), "{source}");
    }
    for rank in [1_u16, 2, 256, u16::MAX] {
        let payload = changed(&good, RANK, &rank.to_le_bytes());
        assert_eq!(fixture.run(own, &payload), Outcome::Drop(Some(Reason::Worker)), "rank {rank}");
    }
    assert_eq!(fixture.count(Counter::Added), 0);
}

#[test]
fn only_the_exact_length_is_accepted() {
    let mut fixture = Fixture::joined(1, 4);
    let good = fixture.gradient_payload(0, Gradient::of(0, 1, 1.0));
    for len in (0..2 * good.len()).filter(|len| *len != good.len()) {
        let mut payload = good.clone();
        payload.resize(len, 0);
        assert_eq!(from_rank_0(&mut fixture, &payload), Outcome::Drop(Some(Reason::Length)), "{len} bytes");
    }
}

#[test]
fn only_what_workers_send_is_taken() {
    let mut fixture = Fixture::joined(1, 4);
    let good = fixture.gradient_payload(0, Gradient::of(0, 1, 1.0));
    for kind in (0..=u8::MAX).filter(|kind| ![1, 3, 7].contains(kind)) {
        let payload = changed(&good, KIND, &[kind]);
        assert_eq!(from_rank_0(&mut fixture, &payload), Outcome::Drop(Some(Reason::Kind)), "kind {kind}");
    }
}

#[test]
fn any_damaged_bit_is_noticed() {
    let mut fixture = Fixture::joined(1, 4);
    let good = fixture.gradient_payload(0, Gradient::of(0, 1, 1.5));
    for bit in 0..8 * good.len() {
        let mut payload = good.clone();
        payload[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(from_rank_0(&mut fixture, &payload), Outcome::Drop(Some(_))), "bit {bit}");
    }
    assert_eq!(fixture.count(Counter::Added), 0);
}

/// WIRE P7.
#[test]
fn without_checksums_only_packets_with_lanes_go_unchecked() {
    let mut fixture = Fixture::joined_without_checksum(2, 4);
    let good = fixture.gradient_payload(0, Gradient::of(0, 1, 1.0).asking());
    assert_eq!(Packet::new_unchecked(&good).checksum(), 0);
    let mut damaged = good.clone();
    damaged[TIMESTAMP] ^= 1;
    let outcome = from_rank_0(&mut fixture, &damaged);
    assert!(matches!(fixture.reply(&outcome), Repr::Ack { .. }), "nobody notices");
    let Outcome::Reply(ack) = outcome else { panic!("a reply") };
    assert_ne!(Packet::new_unchecked(&ack).checksum(), 0);

    let hello = Repr::Hello { nonce: 100, slots: 4, workers: 2, checksum: false };
    let pull = Repr::Pull { sequence: 0, slot: 0, redo: false, timestamp: 0 };
    for control in [hello, pull].map(|repr| fixture.payload(0, &repr, |_| ())) {
        let mut damaged = control.clone();
        damaged[HEADER_LEN] ^= 1;
        assert_eq!(from_rank_0(&mut fixture, &damaged), Outcome::Drop(Some(Reason::Checksum)));
        let mut with_lanes = control.clone();
        with_lanes[3] = Kind::Gradient as u8;
        assert_eq!(from_rank_0(&mut fixture, &with_lanes), Outcome::Drop(Some(Reason::Checksum)));
        assert!(matches!(from_rank_0(&mut fixture, &control), Outcome::Reply(_)));
    }

    let outcome = fixture.gradient(1, Gradient::of(0, 1, 1.0));
    assert!(matches!(fixture.broadcast(&outcome)[0], Repr::Result { .. }));
    let Outcome::Broadcast(copies) = outcome else { panic!("a broadcast") };
    assert!(copies.iter().all(|copy| Packet::new_unchecked(copy).checksum() == 0));
    let again = fixture.pull(0, 0, false);
    let Outcome::Reply(again) = again else { panic!("a reply") };
    assert_eq!(Packet::new_unchecked(&again).checksum(), 0);

    fixture.gradient(0, Gradient::of(1, 2, 1.0));
    let Outcome::Broadcast(copies) = fixture.gradient(1, Gradient::of(1, 2, 1e9)) else {
        panic!("a broadcast")
    };
    assert!(
        copies.iter().all(|copy| copy.len() == HEADER_LEN && Packet::new_unchecked(copy).checksum() != 0)
    );
    let other = fixture.send(0, &Repr::Hello { nonce: 100, slots: 4, workers: 2, checksum: true });
    assert_eq!(fixture.rejection(&other), Reason::Shape);
}

#[test]
fn fields_of_a_gradient_are_held_to_their_limits() {
    let gradient = Gradient::of(5, 1, 1.0);
    let field = |at: usize, bytes: &[u8]| {
        let mut fixture = Fixture::joined(1, 8);
        let payload = changed(&fixture.gradient_payload(0, gradient), at, bytes);
        match from_rank_0(&mut fixture, &payload) {
            Outcome::Drop(Some(Reason::Field)) => {
                assert_eq!((fixture.refused(Reason::Field), fixture.count(Counter::Added)), ((1, 0), 0));
                false
            }
            Outcome::Broadcast(_) => true,
            other => panic!("{other:?}"),
        }
    };
    for (weight, legal) in [(0_u32, false), (1, true), (65_535, true), (65_536, false), (u32::MAX, false)] {
        assert_eq!(field(WEIGHT, &weight.to_le_bytes()), legal, "weight {weight}");
    }
    for (contributors, legal) in [(0_u16, false), (1, true), (2, false)] {
        assert_eq!(field(CONTRIBUTORS, &contributors.to_le_bytes()), legal, "{contributors} contributors");
    }
    let exponents = [
        (i16::MIN, true),
        (i16::MIN + 1, false),
        (-150, false),
        (-149, true),
        (128, true),
        (129, false),
        (i16::MAX, false),
    ];
    for (exponent, legal) in exponents {
        assert_eq!(field(EXPONENT, &exponent.to_le_bytes()), legal, "exponent {exponent}");
    }
    for (slot, legal) in [(4_u32, false), (5, true), (6, false), (13, false), (u32::MAX, false)] {
        assert_eq!(field(SLOT, &slot.to_le_bytes()), legal, "slot {slot}");
    }
}

#[test]
fn a_flow_is_opened_once() {
    let mut fixture = Fixture::fresh(2, 4);
    assert_eq!(fixture.hello(0, 0), Outcome::Drop(Some(Reason::Field)), "a nonce is not 0");
    for _ in 0..2 {
        let outcome = fixture.hello(0, 5);
        assert_eq!(
            fixture.reply(&outcome),
            Repr::Welcome { nonce: 5, no_gso: false, grant: RING as u32 / 2 }
        );
        let Outcome::Reply(payload) = outcome else { panic!("a reply") };
        assert_eq!(payload.len(), full_len(LANES), "WELCOME proves the MTU");
    }
    let outcome = fixture.hello(0, 6);
    assert_eq!(fixture.rejection(&outcome), Reason::Nonce, "a restarted worker");
    let outcome = fixture.hello(0, 5);
    assert_eq!(
        fixture.reply(&outcome),
        Repr::Welcome { nonce: 5, no_gso: false, grant: RING as u32 / 2 },
        "the first is kept"
    );
    assert_eq!((fixture.count(Counter::Welcome), fixture.count(Counter::Reject)), (3, 1));
}

#[test]
fn another_shape_is_rejected_and_its_nonce_is_not_kept() {
    let mut fixture = Fixture::fresh(2, 4);
    for shape in [(5, 2, true), (3, 2, true), (4, 1, true), (4, 3, true), (4, 2, false)] {
        let (slots, workers, checksum) = shape;
        let outcome = fixture.send(0, &Repr::Hello { nonce: 5, slots, workers, checksum });
        assert_eq!(fixture.rejection(&outcome), Reason::Shape, "{shape:?}");
    }
    assert!(!fixture.aggregator.progress(9, 2).next().expect("rank 0").joined);
    let outcome = fixture.hello(0, 6);
    assert!(matches!(fixture.reply(&outcome), Repr::Welcome { nonce: 6, .. }));
}

#[test]
fn what_is_meant_for_another_life_is_rejected() {
    let mut fixture = Fixture::fresh(2, 4);
    fixture.hello(1, 5);
    let early = [fixture.gradient(0, Gradient::of(0, 1, 1.0)), fixture.pull(0, 0, false)];
    for outcome in early {
        assert_eq!(fixture.rejection(&outcome), Reason::Incarnation, "rank 0 has not said HELLO");
    }
    let pull = Repr::Pull { sequence: 0, slot: 0, redo: false, timestamp: 0 };
    for good in [fixture.gradient_payload(1, Gradient::of(0, 1, 1.0)), fixture.payload(1, &pull, |_| ())] {
        let payload = changed(&good, INCARNATION_AT, &(INCARNATION + 1).to_le_bytes());
        let outcome = fixture.run(fixture.address(1), &payload);
        assert_eq!(fixture.rejection(&outcome), Reason::Incarnation);
    }
    assert_eq!((fixture.refused(Reason::Incarnation).0, fixture.count(Counter::Added)), (4, 0));
    assert_eq!(fixture.count(Counter::Pull), 0, "a PULL counts once it is past H3");
}

#[test]
fn without_a_job_nothing_gets_in() {
    let fixture = Fixture::joined(1, 4);
    let mut payload = fixture.gradient_payload(0, Gradient::of(0, 1, 1.0));
    let mut empty = Aggregator::new(INCARNATION, RING);
    let action = empty.handle(Time::ZERO, fixture.address(0), false, &mut payload);
    assert_eq!(action, xagg_proto::aggregator::Action::Drop(Some(Reason::Length)));
    assert_eq!(empty.unassigned()[usize::from(Reason::Length)], 1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// WIRE P5: whatever a registered worker sends ends in an answer or in a refusal, and the checks of all answers hold.
    #[test]
    fn no_bytes_make_it_panic(
        len in prop_oneof![Just(full_len(LANES)), 0..200_usize],
        header in prop::collection::vec((0..HEADER_LEN, any::<u8>()), 0..12),
        bytes in prop::collection::vec(any::<u8>(), 200),
        is_garbage in any::<bool>(),
        sealed in prop::bool::weighted(0.9),
    ) {
        let mut fixture = Fixture::joined(2, 3);
        let mut payload = fixture.gradient_payload(1, Gradient::of(1, 1, 1.0));
        payload.resize(len, 0);
        if is_garbage {
            payload.copy_from_slice(&bytes[..len]);
        }
        for (at, value) in header.into_iter().filter(|(at, _)| *at < len) {
            payload[at] = value;
        }
        if sealed && len >= HEADER_LEN {
            Packet::new_unchecked(&mut payload).fill_checksum();
        }
        fixture.run(fixture.address(1), &payload);
        let added = fixture.count(Counter::Added);
        prop_assert!(added <= 1);
    }
}
