//! The edges of the rules of docs/WIRE.md: what is just within, what is just beyond, what comes in the wrong phase or too late.

use xagg_wire::fixed::Exponent;
use xagg_wire::repr::Rejection;
use xagg_wire::{Packet, Reason, Receipts, Repr};

use super::frames::frame;
use super::harness::{Harness, Outcome, XDP_DROP};
use super::table::{Gradient, LANES, joined};

const MAC: std::ops::Range<usize> = 6..12;

fn exponent(value: i16) -> Exponent {
    Exponent::finite(value).expect("legal")
}

#[test]
fn the_spread_may_be_all_of_the_guard_bits_and_no_more() {
    let Some(harness) = joined("the_spread_may_be_all_of_the_guard_bits_and_no_more", 2, 4) else { return };
    let within = 2.0_f32.powi(harness.job.format.guard_bits() as i32);
    harness.gradient(0, Gradient::of(0, 1, 1.0));
    let Outcome::Broadcast(copies) = harness.gradient(1, Gradient::of(0, 1, within)) else {
        panic!("a broadcast")
    };
    assert_eq!(harness.value(&copies[0].1), within + 1.0);

    harness.gradient(0, Gradient::of(1, 2, 1.0));
    let beyond = harness.gradient(1, Gradient::of(1, 2, 2.0 * within));
    assert!(harness.broadcast(&beyond).iter().all(|repr| matches!(repr, Repr::Redo { .. })));
}

#[test]
fn a_second_phase_has_no_packets_before_it_begins() {
    let Some(harness) = joined("a_second_phase_has_no_packets_before_it_begins", 2, 4) else { return };
    harness.gradient(0, Gradient::of(0, 1, 1.0));
    for redo in [exponent(harness.bank(0, 0).exponent), exponent(20)] {
        let refused = harness.refused(Reason::Field);
        let early = Gradient { redo: Some(redo), ..Gradient::of(0, 1, 1.0) };
        assert_eq!(harness.gradient(1, early), Outcome::Drop);
        assert_eq!(harness.refused(Reason::Field), refused + 1);
    }
    assert_eq!(harness.bank(0, 0).contributors, 1);
}

#[test]
fn different_operations_in_a_second_phase_are_told_to_everybody_too() {
    let test = "different_operations_in_a_second_phase_are_told_to_everybody_too";
    let Some(harness) = joined(test, 2, 4) else { return };
    harness.gradient(0, Gradient::of(0, 1, 1.0));
    harness.broadcast(&harness.gradient(1, Gradient::of(0, 1, 1_048_576.0)));
    let other = Gradient { redo: Some(exponent(21)), signature: 8, ..Gradient::of(0, 2, 1.0) };
    let told = harness.broadcast(&harness.gradient(0, other));
    assert!(
        told.iter().all(|repr| matches!(
            repr,
            Repr::Reject(Rejection { reason: Reason::Mismatch, other_rank: 0, .. })
        ))
    );
}

/// Sends the first contribution of rank 0 and of rank 1 with these exponents and lanes; the sums.
fn sums(harness: &Harness, sequence: u64, exponents: [Exponent; 2], lanes: [[u32; LANES]; 2]) -> Vec<u32> {
    for (rank, (exponent, lanes)) in (0..).zip(exponents.into_iter().zip(lanes)) {
        let mut payload = harness.gradient_payload(rank, Gradient::of(sequence, sequence as u32 + 1, 1.0));
        let mut packet = Packet::new_unchecked(&mut payload);
        packet.set_exponent(exponent.to_wire());
        for (bytes, lane) in packet.body_mut().as_chunks_mut::<4>().0.iter_mut().zip(lanes) {
            *bytes = lane.to_le_bytes();
        }
        packet.fill_checksum();
        harness.run(harness.job.workers[usize::from(rank)], &payload);
    }
    harness.sums(harness.job.slot(sequence), 0)
}

/// A worker that does not keep F1 (guard bits, all-zero fragments) spoils its own lanes, and none of their neighbours.
#[test]
fn lanes_are_shifted_each_on_its_own_whatever_they_hold() {
    let Some(harness) = joined("lanes_are_shifted_each_on_its_own_whatever_they_hold", 2, 4) else { return };
    let bias = harness.job.format.bias();
    let first: [u32; LANES] = std::array::from_fn(|lane| if lane % 2 == 0 { bias } else { 2 * bias - 1 });
    let second: [u32; LANES] = std::array::from_fn(|lane| bias / 2 + 12_345 * lane as u32 + 3);
    let [lower, higher] = [exponent(1), exponent(3)];
    let down = |lane: u32| (lane >> 2) + bias - (bias >> 2);
    let as_it_is = |lane| lane;
    type Shift<'a> = &'a dyn Fn(u32) -> u32;
    let cases: [([Exponent; 2], Shift<'_>, Shift<'_>); 4] = [
        ([higher, lower], &as_it_is, &down),
        ([lower, higher], &down, &as_it_is),
        ([higher, Exponent::ZERO], &as_it_is, &as_it_is),
        ([Exponent::ZERO, higher], &as_it_is, &as_it_is),
    ];
    for (sequence, (exponents, of_first, of_second)) in (0..).zip(cases) {
        for lanes in [[first, second], [second, first]] {
            let expected: Vec<u32> =
                lanes[0].iter().zip(lanes[1]).map(|(a, b)| of_first(*a) + of_second(b)).collect();
            let fresh = joined("again", 2, 4).expect("root");
            assert_eq!(sums(&fresh, sequence, exponents, lanes), expected, "{exponents:?}");
        }
    }
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    let Some(harness) = joined("a_udp_checksum_of_zero_is_sent_as_all_ones", 2, 4) else { return };
    let acked = Gradient { ack: true, ..Gradient::of(0, 1, 1.0) };
    let Outcome::Reply(template) = harness.gradient(0, acked) else { panic!("a reply") };
    let answer = |echo: u32| {
        let mut answer = template.clone();
        let mut packet = Packet::new_unchecked(&mut answer);
        Receipts { largest: 2, bitmap: 3, echo, marks: 0 }.emit(&mut packet);
        packet.fill_checksum();
        answer
    };
    // All ones stands for a sum of zero only: no other sum has this complement.
    let echo = (0..1 << 20).find(|echo| harness.udp_checksum(0, &answer(*echo)) == [0xff; 2]);
    let echo = echo.expect("one of 65536");
    let mut again = harness.gradient_payload(0, Gradient { number: 2, ..acked });
    let mut packet = Packet::new_unchecked(&mut again);
    packet.set_timestamp(echo);
    packet.fill_checksum();
    assert_eq!(harness.run(harness.job.workers[0], &again), Outcome::Reply(answer(echo)));
}

#[test]
fn a_refused_hello_does_not_say_where_the_worker_is() {
    let Some(harness) = joined("a_refused_hello_does_not_say_where_the_worker_is", 1, 4) else { return };
    let known = harness.flow(0).mac;
    let hello = |nonce| {
        let mut frame =
            frame(harness.job.workers[0], harness.job.aggregator, &harness.hello_payload(0, nonce));
        frame[MAC].copy_from_slice(&[2, 0, 0, 0, 0, 99]);
        frame
    };
    assert!(harness.answers(&hello(7)), "REJECT");
    assert_eq!((harness.refused(Reason::Nonce), harness.flow(0).mac), (1, known));
    assert!(harness.answers(&hello(100)), "WELCOME: the same nonce from another place");
    assert_eq!(harness.flow(0).mac, [2, 0, 0, 0, 0, 99]);
}

#[test]
fn a_late_copy_takes_nothing_from_the_fragment_that_has_the_bank_now() {
    let Some(harness) = joined("a_late_copy_takes_nothing_from_the_fragment_that_has_the_bank_now", 2, 4)
    else {
        return;
    };
    let finish = |sequence| {
        harness.gradient(0, Gradient::of(sequence, 1, 1.0));
        match harness.gradient(1, Gradient::of(sequence, 1, 1.0)) {
            Outcome::Broadcast(copies) => copies,
            other => panic!("not a broadcast: {other:?}"),
        }
    };
    let late = finish(0);
    finish(4);
    harness.gradient(0, Gradient::of(8, 2, 1.0));
    let results = harness.flow(0).results;
    assert_eq!(harness.one_copy_more(&late[0].1), XDP_DROP);
    assert_eq!((harness.bank(0, 0).cursor, harness.flow(0).results), (0, results));
    assert_eq!(harness.refused(Reason::Cursor), 1);
}
