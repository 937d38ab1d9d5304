//! The rules of docs/WIRE.md, one by one, on the kernel program. Each test names the rules that it is about.

use std::net::SocketAddr;

use xagg_proto::Job;
use xagg_testbed::skip_unless_root;
use xagg_wire::fixed::{Exponent, Magnitude, dequantise, magnitude, quantise};
use xagg_wire::repr::{Contribution, Rejection};
use xagg_wire::{Counter, Flow, HEADER_LEN, Kind, Packet, Reason, Receipts, Repr, full_len};

use super::frames::{frame, payload_of};
use super::harness::{Harness, INCARNATION, Outcome, RING, XDP_DROP, job};

pub(super) const LANES: usize = 16;

/// A harness whose workers have all joined, unless without root.
pub(super) fn joined(test: &str, workers: usize, slots: u32) -> Option<Harness> {
    Some(join(fresh(test, workers, slots)?))
}

/// The place of a field that changes nothing in a GRADIENT that asks for no answer.
const TIMESTAMP: usize = 52;

/// Lets all workers join.
pub(super) fn join(harness: Harness) -> Harness {
    for rank in 0..harness.job.worker_count() {
        let answer = harness.send(rank, &hello(&harness, 100 + u64::from(rank)), |_| ());
        assert!(matches!(harness.reply(&answer), Repr::Welcome { .. }));
    }
    harness
}

pub(super) fn fresh(test: &str, workers: usize, slots: u32) -> Option<Harness> {
    if skip_unless_root(test) { None } else { Some(Harness::new(job(workers, LANES, slots))) }
}

fn hello(harness: &Harness, nonce: u64) -> Repr {
    let Job { slots, checksum, .. } = harness.job;
    Repr::Hello { nonce, slots, workers: harness.job.worker_count(), checksum }
}

/// A contribution of the same value in all lanes.
#[derive(Clone, Copy)]
pub(super) struct Gradient {
    pub(super) sequence: u64,
    pub(super) number: u32,
    pub(super) value: f32,
    pub(super) redo: Option<Exponent>,
    pub(super) nonfinite: bool,
    pub(super) ack: bool,
    pub(super) signature: u32,
}

impl Gradient {
    pub(super) fn of(sequence: u64, number: u32, value: f32) -> Self {
        Self { sequence, number, value, redo: None, nonfinite: false, ack: false, signature: 7 }
    }
}

impl Harness {
    pub(super) fn payload(&self, rank: u16, repr: &Repr, write_body: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut payload = vec![0; full_len(self.job.lanes)];
        let mut packet = Packet::new_unchecked(&mut payload);
        write_body(packet.body_mut());
        let incarnation = if matches!(repr, Repr::Hello { .. }) { 0 } else { INCARNATION };
        let cookie = self.job.cookie(rank);
        repr.emit(
            &Flow { job: self.job.id, view: self.job.view, rank, cookie, incarnation },
            &mut packet,
            self.job.checksum,
        );
        payload
    }

    pub(super) fn send(&self, rank: u16, repr: &Repr, write_body: impl FnOnce(&mut [u8])) -> Outcome {
        self.run(self.job.workers[usize::from(rank)], &self.payload(rank, repr, write_body))
    }

    pub(super) fn hello_payload(&self, rank: u16, nonce: u64) -> Vec<u8> {
        self.payload(rank, &hello(self, nonce), |_| ())
    }

    pub(super) fn gradient_payload(&self, rank: u16, gradient: Gradient) -> Vec<u8> {
        let values = [gradient.value; LANES];
        let exponent = gradient.redo.unwrap_or(match magnitude(&values) {
            Magnitude::Finite(exponent) => exponent,
            _ => Exponent::ZERO,
        });
        let contribution = Contribution {
            sequence: gradient.sequence,
            slot: self.job.slot(gradient.sequence),
            packet_number: gradient.number,
            redo: gradient.redo.is_some(),
            nonfinite: gradient.nonfinite,
            ack_request: gradient.ack,
            exponent,
            contributors: 1,
            weight: u32::from(rank) + 1,
            signature: gradient.signature,
            timestamp: 1000 + gradient.number,
        };
        let write_body = |body: &mut [u8]| quantise(self.job.format, exponent, &values, body);
        self.payload(rank, &Repr::Gradient(contribution), write_body)
    }

    pub(super) fn gradient(&self, rank: u16, gradient: Gradient) -> Outcome {
        self.run(self.job.workers[usize::from(rank)], &self.gradient_payload(rank, gradient))
    }

    pub(super) fn pull(&self, rank: u16, sequence: u64, redo: bool) -> Outcome {
        let pull = Repr::Pull { sequence, slot: self.job.slot(sequence), redo, timestamp: 0 };
        self.send(rank, &pull, |_| ())
    }

    /// What the one answer says.
    pub(super) fn reply(&self, outcome: &Outcome) -> Repr {
        let Outcome::Reply(payload) = outcome else { panic!("not a reply: {outcome:?}") };
        let (flow, repr) =
            Repr::parse(&Packet::new_unchecked(payload), self.job.lanes, self.job.checksum).expect("valid");
        assert_eq!(flow.incarnation, INCARNATION);
        assert_eq!(flow.cookie, self.job.cookie(flow.rank));
        repr
    }

    /// What everybody was told: one copy for each rank, to its address, numbered alike.
    pub(super) fn broadcast(&self, outcome: &Outcome) -> Vec<Repr> {
        let Outcome::Broadcast(copies) = outcome else { panic!("not a broadcast: {outcome:?}") };
        let addresses: Vec<SocketAddr> = copies.iter().map(|(address, _)| *address).collect();
        assert_eq!(addresses, self.job.workers);
        let read = |(rank, (_, payload)): (u16, &(SocketAddr, Vec<u8>))| {
            let (flow, repr) =
                Repr::parse(&Packet::new_unchecked(payload), self.job.lanes, self.job.checksum)
                    .expect("valid");
            assert_eq!((flow.rank, flow.cookie), (rank, self.job.cookie(rank)));
            repr
        };
        (0..).zip(copies).map(read).collect()
    }

    /// The value of the first lane of a result.
    pub(super) fn value(&self, payload: &[u8]) -> f32 {
        let packet = Packet::new_unchecked(payload);
        let exponent = Exponent::from_wire(packet.exponent()).expect("legal");
        let mut value = [0.0];
        dequantise(self.job.format, exponent, u32::from(packet.contributors()), 1, packet.body(), &mut value);
        value[0]
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.counters()[counter.index()]
    }

    pub(super) fn refused(&self, reason: Reason) -> u64 {
        self.counters()[usize::from(reason)] + self.unassigned()[usize::from(reason)]
    }
}

#[test]
fn what_is_not_xagg_passes_untouched() {
    let Some(harness) = joined("what_is_not_xagg_passes_untouched", 1, 4) else { return };
    let good = frame(harness.job.workers[0], harness.job.aggregator, &[0; 128]);
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let cases = [
        ("an ARP request", changed(12, &[8, 6])),
        ("IPv6", changed(12, &[0x86, 0xdd])),
        ("TCP", changed(23, &[6])),
        ("another address", changed(33, &[77])),
        ("another port", changed(36, &[0, 53])),
        ("a later fragment", changed(20, &[0, 5])),
        ("a short frame", good[..30].to_vec()),
        ("no IP version 4", changed(14, &[0x55])),
    ];
    for (name, frame) in cases {
        assert_eq!(harness.run_frame(&frame), Outcome::Pass, "{name}");
    }
    assert_eq!(harness.counters()[Counter::Packets.index()], 1, "the HELLO");
}

#[test]
fn fragments_options_and_wrong_lengths_are_dropped() {
    let Some(harness) = joined("fragments_options_and_wrong_lengths_are_dropped", 1, 4) else { return };
    let payload = harness.gradient_payload(0, Gradient::of(0, 1, 1.0));
    let good = frame(harness.job.workers[0], harness.job.aggregator, &payload);
    let mut fragment = good.clone();
    fragment[20] = 0x20;
    let mut options = good.clone();
    options[14] = 0x46;
    options.splice(34..34, [1, 1, 1, 1]);
    for frame in [&fragment, &options] {
        assert_eq!(harness.run_frame(frame), Outcome::Drop);
    }
    assert_eq!(harness.refused(Reason::Fragment), 2);
    let longer = [good.as_slice(), &[0; 4]].concat();
    let shorter = good[..good.len() - 4].to_vec();
    let mut ip_says_less = good.clone();
    ip_says_less[17] -= 4;
    let mut udp_says_less = good.clone();
    udp_says_less[39] -= 4;
    let header_only = good[..payload_of(&good) + 10].to_vec();
    for frame in [&longer, &shorter, &ip_says_less, &udp_says_less, &header_only] {
        assert_eq!(harness.run_frame(frame), Outcome::Drop);
    }
    assert_eq!(harness.refused(Reason::Length), 5);
    assert_eq!(harness.count(Counter::Added), 0);
}

#[test]
fn only_registered_workers_get_in() {
    let Some(harness) = joined("only_registered_workers_get_in", 2, 4) else { return };
    let source = harness.job.workers[0];
    let good = harness.gradient_payload(0, Gradient::of(0, 1, 1.0));
    let changed = |at: usize, value: u8| {
        let mut payload = good.clone();
        payload[at] ^= value;
        Packet::new_unchecked(&mut payload).fill_checksum();
        payload
    };
    let mut damaged = good.clone();
    damaged[HEADER_LEN + 5] ^= 4;
    let other_address = SocketAddr::new(harness.job.workers[1].ip(), source.port());
    let other_port = SocketAddr::new(source.ip(), source.port() + 7);
    let cases = [
        (Reason::Magic, source, changed(0, 1)),
        (Reason::Magic, source, changed(2, 2)),
        (Reason::Kind, source, changed(3, 3 ^ 5)),
        (Reason::Kind, source, changed(3, 3 ^ 77)),
        (Reason::Job, source, changed(8, 1)),
        (Reason::Job, source, changed(12, 1)),
        (Reason::Worker, source, changed(6, 1)),
        (Reason::Worker, source, changed(7, 1)),
        (Reason::Worker, other_port, good.clone()),
        (Reason::Worker, other_address, good.clone()),
        (Reason::Worker, harness.job.workers[1], good.clone()),
        (Reason::Cookie, source, changed(20, 1)),
        (Reason::Checksum, source, damaged),
        (Reason::Field, source, changed(36, 1)),
        (Reason::Field, source, changed(42, 2)),
        (Reason::Field, source, changed(44, 1)),
        (Reason::Field, source, changed(46, 1)),
        (Reason::Field, source, changed(41, 0x40)),
    ];
    for (reason, source, payload) in cases {
        let before = harness.refused(reason);
        assert_eq!(harness.run(source, &payload), Outcome::Drop, "{reason:?}");
        assert_eq!(harness.refused(reason), before + 1, "{reason:?}");
    }
    assert_eq!(harness.count(Counter::Added), 0);
    assert_eq!(harness.run(source, &good), Outcome::Drop, "taken in");
    assert_eq!(harness.count(Counter::Added), 1);
}

/// WIRE P7.
#[test]
fn without_checksums_only_packets_with_lanes_go_unchecked() {
    if skip_unless_root("without_checksums_only_packets_with_lanes_go_unchecked") {
        return;
    }
    let mut job = job(2, LANES, 4);
    job.checksum = false;
    let harness = join(Harness::new(job));
    let source = harness.job.workers[0];
    let checksum = |payload: &[u8]| Packet::new_unchecked(payload).checksum();
    let bare = harness.gradient_payload(0, Gradient::of(0, 1, 1.0));
    assert_eq!(checksum(&bare), 0);
    let mut damaged = bare.clone();
    damaged[TIMESTAMP] ^= 1;
    assert_eq!(harness.run(source, &damaged), Outcome::Drop);
    assert_eq!(harness.count(Counter::Added), 1, "nobody notices");
    let mut one_kind_for_another = harness.hello_payload(0, 100);
    one_kind_for_another[3] = Kind::Gradient as u8;
    assert_eq!(harness.run(source, &one_kind_for_another), Outcome::Drop);

    let pull = Repr::Pull { sequence: 0, slot: 0, redo: false, timestamp: 0 };
    for control in [harness.hello_payload(0, 100), harness.payload(0, &pull, |_| ())] {
        let mut damaged = control.clone();
        damaged[HEADER_LEN] ^= 1;
        assert_eq!(harness.run(source, &damaged), Outcome::Drop);
        harness.reply(&harness.run(source, &control));
    }
    assert_eq!(harness.refused(Reason::Checksum), 3);

    let Outcome::Broadcast(copies) = harness.gradient(1, Gradient::of(0, 1, 1.0)) else { panic!("not all") };
    assert!(copies.iter().all(|(_, copy)| checksum(copy) == 0 && harness.value(copy) == 2.0));
    let Outcome::Reply(again) = harness.pull(0, 0, false) else { panic!("not the sender") };
    assert_eq!((checksum(&again), harness.value(&again)), (0, 2.0));
    harness.gradient(0, Gradient::of(1, 2, 1.0));
    let redo = harness.gradient(1, Gradient::of(1, 2, 1e9));
    assert!(matches!(harness.broadcast(&redo)[0], Repr::Redo { .. }), "sealed, or it would not be read");
    let hello = Repr::Hello { nonce: 100, slots: 4, workers: 2, checksum: true };
    let outcome = harness.send(0, &hello, |_| ());
    let Repr::Reject(Rejection { reason, .. }) = harness.reply(&outcome) else { panic!("{outcome:?}") };
    assert_eq!(reason, Reason::Shape);
}

#[test]
fn a_flow_is_opened_once() {
    let Some(harness) = fresh("a_flow_is_opened_once", 2, 4) else { return };
    let early = harness.gradient(0, Gradient::of(0, 1, 1.0));
    let rejection = |outcome: &Outcome| match harness.reply(outcome) {
        Repr::Reject(Rejection { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(rejection(&early), Reason::Incarnation, "before HELLO");
    let welcome = Repr::Welcome { nonce: 5, no_gso: false, grant: RING as u32 / 2 };
    for _ in 0..2 {
        let outcome = harness.send(0, &hello(&harness, 5), |_| ());
        assert_eq!(harness.reply(&outcome), welcome);
        let Outcome::Reply(payload) = outcome else { panic!("a reply") };
        assert_eq!(payload.len(), full_len(LANES), "WELCOME proves the MTU");
    }
    assert_eq!(rejection(&harness.send(0, &hello(&harness, 6), |_| ())), Reason::Nonce);
    for (slots, workers, checksum) in [(5, 2, true), (4, 3, true), (4, 2, false)] {
        let shape = Repr::Hello { nonce: 5, slots, workers, checksum };
        assert_eq!(rejection(&harness.send(0, &shape, |_| ())), Reason::Shape);
    }
    assert_eq!(harness.send(1, &hello(&harness, 0), |_| ()), Outcome::Drop);
    assert_eq!(harness.refused(Reason::Field), 1);
    let mut other_life = harness.gradient_payload(0, Gradient::of(0, 1, 1.0));
    let mut packet = Packet::new_unchecked(&mut other_life);
    packet.set_incarnation(INCARNATION + 1);
    packet.fill_checksum();
    assert_eq!(rejection(&harness.run(harness.job.workers[0], &other_life)), Reason::Incarnation);
}

#[test]
fn the_last_contribution_becomes_everybodys_result() {
    let Some(harness) = joined("the_last_contribution_becomes_everybodys_result", 3, 4) else { return };
    assert_eq!(harness.gradient(0, Gradient::of(0, 1, 1.5)), Outcome::Drop);
    let acked = harness.gradient(2, Gradient { ack: true, ..Gradient::of(0, 9, 2.25) });
    let receipts = Receipts { largest: 9, bitmap: 1, echo: 1009, marks: 0 };
    assert_eq!(harness.reply(&acked), Repr::Ack { receipts });
    let outcome = harness.gradient(1, Gradient::of(0, 1, -8.0));
    for (rank, repr) in harness.broadcast(&outcome).into_iter().enumerate() {
        let Repr::Result { sequence, packet_number, nonfinite, contributors, weight, receipts, .. } = repr
        else {
            panic!("{repr:?}")
        };
        assert_eq!((sequence, packet_number, nonfinite, contributors, weight), (0, 1, false, 3, 6));
        assert_eq!(receipts.largest, if rank == 2 { 9 } else { 1 });
    }
    let Outcome::Broadcast(copies) = outcome else { panic!("a broadcast") };
    assert!(copies.iter().all(|(_, payload)| harness.value(payload) == -4.25));
    let counts =
        [Counter::Added, Counter::Broadcast, Counter::Ack, Counter::Copies].map(|c| harness.count(c));
    assert_eq!(counts, [3, 1, 1, 3]);
}

#[test]
fn a_duplicate_is_receipted_but_not_added() {
    let Some(harness) = joined("a_duplicate_is_receipted_but_not_added", 2, 4) else { return };
    harness.gradient(0, Gradient::of(0, 1, 1.0));
    let again = harness.gradient(0, Gradient::of(0, 2, 1.0));
    assert_eq!(
        harness.reply(&again),
        Repr::Ack { receipts: Receipts { largest: 2, bitmap: 3, echo: 1002, marks: 0 } }
    );
    let Outcome::Broadcast(copies) = harness.gradient(1, Gradient::of(0, 1, 2.0)) else {
        panic!("a broadcast")
    };
    assert_eq!(harness.value(&copies[0].1), 3.0);
    let late = harness.gradient(0, Gradient::of(0, 3, 1.0));
    let Repr::Result { packet_number, receipts, .. } = harness.reply(&late) else { panic!("{late:?}") };
    assert_eq!((packet_number, receipts.largest), (2, 3), "the stored result, under the next number");
    let Outcome::Reply(payload) = late else { panic!("a reply") };
    assert_eq!(harness.value(&payload), 3.0);
    assert_eq!(harness.count(Counter::Duplicate), 2);
}

#[test]
fn packet_numbers_fill_the_bitmap_and_wrap() {
    let Some(harness) = joined("packet_numbers_fill_the_bitmap_and_wrap", 2, 64) else { return };
    let numbers = [1, 2, 5, 4, 40, u32::MAX - 1, u32::MAX, 0, 3];
    let mut expected = Receipts::default();
    for (sequence, number) in (0..).zip(numbers) {
        expected.note(number, number.wrapping_add(1000));
        let gradient = Gradient { ack: true, ..Gradient::of(sequence, 0, 1.0) };
        let mut payload = harness.gradient_payload(0, gradient);
        let mut packet = Packet::new_unchecked(&mut payload);
        packet.set_packet_number(number);
        packet.set_timestamp(number.wrapping_add(1000));
        packet.fill_checksum();
        let outcome = harness.run(harness.job.workers[0], &payload);
        assert_eq!(harness.reply(&outcome), Repr::Ack { receipts: expected }, "after {number}");
    }
}

#[test]
fn marks_of_congestion_are_counted_and_told_with_every_answer() {
    let name = "marks_of_congestion_are_counted_and_told_with_every_answer";
    let Some(harness) = joined(name, 2, 64) else { return };
    let source = harness.job.workers[0];
    for (number, expected) in (1..=6).zip([0, 1, 1, 2, 2, 3]) {
        let gradient = Gradient { ack: true, ..Gradient::of(u64::from(number), number, 1.0) };
        let outcome = harness.run_marked(source, number % 2 == 0, &harness.gradient_payload(0, gradient));
        let Repr::Ack { receipts } = harness.reply(&outcome) else { panic!("{outcome:?}") };
        assert_eq!((receipts.largest, receipts.marks), (number, expected));
    }
    let Outcome::Broadcast(copies) = harness.gradient(1, Gradient::of(1, 1, 1.0)) else {
        panic!("a broadcast")
    };
    let marks = copies.iter().map(|(_, copy)| Packet::new_unchecked(copy).marks());
    assert_eq!(marks.collect::<Vec<_>>(), [3, 0], "each worker is told of its own");
}

#[test]
fn two_banks_serve_two_generations() {
    let Some(harness) = joined("two_banks_serve_two_generations", 2, 4) else { return };
    let rejected = |outcome: &Outcome| matches!(harness.reply(outcome), Repr::Reject(rejection) if rejection.reason == Reason::Window);
    assert!(rejected(&harness.gradient(0, Gradient::of(4, 1, 1.0))), "0 is not done");
    assert!(rejected(&harness.gradient(0, Gradient::of(8, 1, 1.0))), "neither 0 nor 4 is done");
    for sequence in [0, 4, 8] {
        harness.gradient(0, Gradient::of(sequence, 1, 1.0));
        harness.broadcast(&harness.gradient(1, Gradient::of(sequence, 1, 1.0)));
    }
    assert!(rejected(&harness.gradient(0, Gradient::of(16, 1, 1.0))), "12 is not done");
    let stale = harness.gradient(0, Gradient::of(0, 20, 1.0));
    assert!(
        matches!(harness.reply(&stale), Repr::Ack { receipts } if receipts.largest == 20),
        "older: ACK only"
    );
    assert!(matches!(harness.reply(&harness.pull(0, 0, false)), Repr::Ack { .. }));
    assert!(matches!(harness.reply(&harness.pull(0, 4, false)), Repr::Result { sequence: 4, .. }));
    assert_eq!(harness.count(Counter::Stale), 2);
}

#[test]
fn a_pull_is_answered_and_changes_nothing() {
    let Some(harness) = joined("a_pull_is_answered_and_changes_nothing", 3, 4) else { return };
    let pending = |seen: u64| Repr::Pending {
        sequence: 1,
        seen: [seen, 0, 0, 0],
        receipts: Receipts { largest: 1, bitmap: 1, echo: 1001, marks: 0 },
    };
    harness.gradient(0, Gradient::of(1, 1, 1.0));
    assert_eq!(harness.reply(&harness.pull(0, 1, false)), pending(1));
    harness.gradient(2, Gradient::of(1, 1, 1.0));
    assert_eq!(harness.reply(&harness.pull(0, 1, false)), pending(0b101));
    let nothing = harness.reply(&harness.pull(0, 5, false));
    assert!(matches!(nothing, Repr::Pending { sequence: 5, seen: [0, 0, 0, 0], .. }));
    harness.broadcast(&harness.gradient(1, Gradient::of(1, 1, 1.0)));
    assert!(matches!(harness.reply(&harness.pull(0, 1, false)), Repr::Result { packet_number: 2, .. }));
    assert_eq!((harness.count(Counter::Pull), harness.count(Counter::Pending)), (4, 3));
}

#[test]
fn exponents_within_the_guard_bits_add_exactly_in_any_order() {
    let Some(harness) = joined("exponents_within_the_guard_bits_add_exactly_in_any_order", 4, 16) else {
        return;
    };
    let values = [1.0, 1.0 + f32::EPSILON * 2.0, 63.0, 0.0];
    for sequence in 0..4 {
        let mut last = Outcome::Drop;
        for turn in 0..4 {
            let rank = ((turn + sequence as usize) % 4) as u16;
            last = harness
                .gradient(rank, Gradient::of(sequence, sequence as u32 + 1, values[usize::from(rank)]));
        }
        let Outcome::Broadcast(copies) = last else { panic!("a broadcast") };
        assert_eq!(harness.value(&copies[0].1), (65.0 + f64::from(f32::EPSILON) * 2.0) as f32);
    }
    assert_eq!(harness.count(Counter::Redo), 0);
}

#[test]
fn exponents_too_far_apart_begin_a_second_phase() {
    let Some(harness) = joined("exponents_too_far_apart_begin_a_second_phase", 2, 4) else { return };
    harness.gradient(0, Gradient::of(0, 1, 1.0));
    let exponent = Exponent::finite(21).expect("legal");
    for repr in harness.broadcast(&harness.gradient(1, Gradient::of(0, 1, 1_048_576.0))) {
        assert!(
            matches!(repr, Repr::Redo { sequence: 0, packet_number: 1, exponent: e, .. } if e == exponent)
        );
    }
    let again = |number| Gradient { redo: Some(exponent), ..Gradient::of(0, number, 1.0) };
    let late = harness.gradient(0, Gradient::of(0, 2, 1.0));
    assert!(matches!(harness.reply(&late), Repr::Redo { packet_number: 2, .. }), "of the first phase");
    assert!(matches!(harness.reply(&harness.pull(0, 0, false)), Repr::Redo { packet_number: 3, .. }));
    assert!(matches!(harness.reply(&harness.pull(0, 0, true)), Repr::Pending { seen: [0, 0, 0, 0], .. }));
    let other = Exponent::finite(20);
    assert_eq!(harness.gradient(0, Gradient { redo: other, ..again(3) }), Outcome::Drop);
    assert_eq!(harness.refused(Reason::Field), 1, "another exponent than the bank's");
    assert_eq!(harness.gradient(0, again(4)), Outcome::Drop);
    let outcome = harness.gradient(1, Gradient { value: 1_048_576.0, ..again(2) });
    let Outcome::Broadcast(copies) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(harness.value(&copies[0].1), 1_048_577.0);
    let first_phase = harness.gradient(0, Gradient { redo: Some(exponent), ..Gradient::of(1, 5, 1.0) });
    assert_eq!(first_phase, Outcome::Drop, "nothing begins with a second phase");
}

#[test]
fn not_finite_is_told_and_needs_no_second_phase() {
    let Some(harness) = joined("not_finite_is_told_and_needs_no_second_phase", 3, 4) else { return };
    harness.gradient(0, Gradient::of(0, 1, 1.0));
    harness.gradient(1, Gradient { nonfinite: true, ..Gradient::of(0, 1, 0.0) });
    let outcome = harness.gradient(2, Gradient::of(0, 1, 1.0e30));
    assert!(
        harness.broadcast(&outcome).iter().all(|repr| matches!(repr, Repr::Result { nonfinite: true, .. }))
    );
}

#[test]
fn different_operations_are_told_to_everybody_and_stay_refused() {
    let Some(harness) = joined("different_operations_are_told_to_everybody_and_stay_refused", 3, 4) else {
        return;
    };
    harness.gradient(2, Gradient::of(0, 1, 1.0));
    let expected = Rejection {
        sequence: 0,
        reason: Reason::Mismatch,
        first_rank: 2,
        other_rank: 1,
        first_signature: 7,
        other_signature: 8,
    };
    let outcome = harness.gradient(1, Gradient { signature: 8, ..Gradient::of(0, 1, 1.0) });
    assert!(harness.broadcast(&outcome).into_iter().all(|repr| repr == Repr::Reject(expected)));
    assert_eq!(harness.reply(&harness.gradient(0, Gradient::of(0, 1, 1.0))), Repr::Reject(expected));
    assert_eq!(harness.reply(&harness.pull(2, 0, false)), Repr::Reject(expected));
    assert_eq!(harness.refused(Reason::Mismatch), 3);
}

#[test]
fn all_of_256_workers_are_counted() {
    let Some(harness) = joined("all_of_256_workers_are_counted", 256, 1) else { return };
    let mut last = Outcome::Drop;
    for rank in (0..256_u16).rev() {
        last = harness.gradient(rank, Gradient::of(0, 1, 128.0 + f32::from(rank) / 2.0));
    }
    assert_eq!(harness.broadcast(&last).len(), 256);
    let Outcome::Broadcast(copies) = last else { panic!("a broadcast") };
    assert_eq!(harness.value(&copies[255].1), 128.0 * 256.0 + 255.0 * 256.0 / 4.0);
    assert_eq!(harness.bank(0, 0).seen, [u64::MAX; 4]);
}

#[test]
fn a_copy_beyond_the_last_worker_is_dropped() {
    let Some(harness) = joined("a_copy_beyond_the_last_worker_is_dropped", 1, 4) else { return };
    let Outcome::Broadcast(copies) = harness.gradient(0, Gradient::of(0, 1, 1.0)) else {
        panic!("a broadcast")
    };
    assert_eq!(harness.one_copy_more(&copies[0].1), XDP_DROP);
    assert_eq!(harness.refused(Reason::Cursor), 1);
}
