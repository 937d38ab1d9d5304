//! What slots do with a packet: receipts (WIRE H5 to H7), two banks (S1 to S7), the second phase (F5).

use xagg_proto::aggregator::Status;
use xagg_wire::fixed::{Exponent, dequantise};
use xagg_wire::repr::Rejection;
use xagg_wire::{Counter, HEADER_LEN, Packet, Reason, Receipts, Repr};

use super::fixture::{Fixture, Gradient, Outcome};

/// The value of the first lane of a result.
fn value(fixture: &Fixture, payload: &[u8]) -> f32 {
    let packet = Packet::new_unchecked(payload);
    let exponent = Exponent::from_wire(packet.exponent()).expect("legal");
    let mut value = [0.0];
    let contributors = u32::from(packet.contributors());
    dequantise(fixture.job.format, exponent, contributors, 1, packet.body(), &mut value);
    value[0]
}

/// Brings a fragment to its result.
fn finish(fixture: &mut Fixture, sequence: u64) {
    let mut last = Outcome::Drop(None);
    for rank in 0..fixture.job.worker_count() {
        last = fixture.gradient(rank, Gradient::of(sequence, sequence as u32 + 1, 1.0));
    }
    assert!(matches!(last, Outcome::Broadcast(_)), "the last one completes it");
}

fn exponent(exponent: i16) -> Exponent {
    Exponent::finite(exponent).expect("legal")
}

#[test]
fn the_last_contribution_becomes_everybodys_result() {
    let mut fixture = Fixture::joined(3, 4);
    assert_eq!(fixture.gradient(0, Gradient::of(0, 1, 1.5)), Outcome::Drop(None), "nothing if not asked for");
    let acked = fixture.gradient(2, Gradient::of(0, 9, 2.25).asking());
    assert_eq!(
        fixture.reply(&acked),
        Repr::Ack { receipts: Receipts { largest: 9, bitmap: 1, echo: 1009, marks: 0 } }
    );
    let outcome = fixture.gradient(1, Gradient::of(0, 1, -8.0).asking());
    for (rank, repr) in fixture.broadcast(&outcome).into_iter().enumerate() {
        let Repr::Result { sequence, packet_number, nonfinite, contributors, weight, receipts, .. } = repr
        else {
            panic!("{repr:?}")
        };
        assert_eq!((sequence, packet_number, nonfinite, contributors, weight), (0, 1, false, 3, 1 + 2 + 3));
        let number = if rank == 2 { 9 } else { 1 };
        assert_eq!(
            receipts,
            Receipts { largest: number, bitmap: 1, echo: 1000 + number, marks: 0 },
            "a receipt too"
        );
    }
    let Outcome::Broadcast(copies) = outcome else { panic!("a broadcast") };
    assert!(copies.iter().all(|payload| value(&fixture, payload) == -4.25));
    let counts =
        [Counter::Added, Counter::Broadcast, Counter::Ack, Counter::Copies].map(|c| fixture.count(c));
    assert_eq!(counts, [3, 1, 1, 3], "the RESULT is the only answer to what completes a bank");
}

#[test]
fn a_duplicate_is_receipted_but_not_added() {
    let mut fixture = Fixture::joined(2, 4);
    fixture.gradient(0, Gradient::of(0, 1, 1.0));
    let again = fixture.gradient(0, Gradient::of(0, 2, 100.0));
    let receipts = Receipts { largest: 2, bitmap: 0b11, echo: 1002, marks: 0 };
    assert_eq!(fixture.reply(&again), Repr::Ack { receipts }, "unasked");
    let Outcome::Broadcast(copies) = fixture.gradient(1, Gradient::of(0, 1, 2.0)) else { panic!("a result") };
    assert_eq!(value(&fixture, &copies[0]), 3.0);
    let late = fixture.gradient(0, Gradient::of(0, 3, 100.0));
    let Repr::Result { packet_number, receipts, weight, .. } = fixture.reply(&late) else {
        panic!("{late:?}")
    };
    assert_eq!((packet_number, receipts.largest, weight), (2, 3, 3), "under the next number: WIRE H7");
    let Outcome::Reply(payload) = late else { panic!("a reply") };
    assert_eq!(value(&fixture, &payload), 3.0, "results never change: WIRE S7");
    let counts = [Counter::Added, Counter::Duplicate, Counter::ResultAgain].map(|c| fixture.count(c));
    assert_eq!(counts, [2, 2, 1]);
}

#[test]
fn results_are_numbered_for_each_worker() {
    let mut fixture = Fixture::joined(2, 4);
    finish(&mut fixture, 0);
    for number in 2..5 {
        let pulled = fixture.pull(0, 0, false);
        assert!(
            matches!(fixture.reply(&pulled), Repr::Result { packet_number, .. } if packet_number == number)
        );
    }
    fixture.gradient(0, Gradient::of(1, 2, 1.0));
    let outcome = fixture.gradient(1, Gradient::of(1, 2, 1.0));
    let numbers: Vec<u32> = fixture
        .broadcast(&outcome)
        .into_iter()
        .map(|repr| if let Repr::Result { packet_number, .. } = repr { packet_number } else { 0 })
        .collect();
    assert_eq!(numbers, [5, 2]);
}

#[test]
fn what_is_refused_is_not_receipted() {
    let mut fixture = Fixture::joined(2, 4);
    let refused = fixture.gradient(0, Gradient::of(4, 7, 1.0));
    let Repr::Reject(rejection) = fixture.reply(&refused) else { panic!("{refused:?}") };
    assert_eq!((rejection.reason, rejection.sequence), (Reason::Window, 4));
    let redo = Gradient { redo: Some(exponent(1)), ..Gradient::of(0, 8, 1.0) };
    assert_eq!(fixture.gradient(0, redo), Outcome::Drop(Some(Reason::Field)));
    let acked = fixture.gradient(0, Gradient::of(0, 9, 1.0).asking());
    assert_eq!(
        fixture.reply(&acked),
        Repr::Ack { receipts: Receipts { largest: 9, bitmap: 1, echo: 1009, marks: 0 } }
    );
}

#[test]
fn receipts_follow_serial_number_arithmetic() {
    let mut fixture = Fixture::joined(2, 64);
    // Number, and what `largest`, the bitmap and the number of the echoed timestamp must be after it.
    let steps = [
        (1, 1, 0b1, 1),
        (3, 3, 0b101, 3),
        (2, 3, 0b111, 3),
        (34, 34, 1 << 31 | 1, 34),
        (66, 66, 1, 66),
        (34, 66, 1, 66),
        (35, 66, 1 << 31 | 1, 66),
        (0x8000_0041, 0x8000_0041, 1, 0x8000_0041),
        (u32::MAX, u32::MAX, 1, u32::MAX),
        (1, 1, 0b101, 1),
    ];
    for (sequence, (number, largest, bitmap, echoed)) in (0..).zip(steps) {
        let mut payload = fixture.gradient_payload(0, Gradient::of(sequence, 0, 1.0).asking());
        let mut packet = Packet::new_unchecked(&mut payload);
        packet.set_packet_number(number);
        packet.set_timestamp(number.wrapping_mul(3));
        packet.fill_checksum();
        let outcome = fixture.run(fixture.address(0), &payload);
        let receipts = Receipts { largest, bitmap, echo: echoed.wrapping_mul(3), marks: 0 };
        assert_eq!(fixture.reply(&outcome), Repr::Ack { receipts }, "after {number}");
    }
}

#[test]
fn a_newer_sequence_waits_until_its_banks_are_free() {
    let mut fixture = Fixture::joined(2, 4);
    let is_refused = |fixture: &mut Fixture, sequence| {
        let before = fixture.bank(sequence);
        let outcome = fixture.gradient(0, Gradient::of(sequence, 90, 1.0));
        let refused = matches!(outcome, Outcome::Reply(_)) && fixture.rejection(&outcome) == Reason::Window;
        assert!(!refused || fixture.bank(sequence) == before, "a refusal changes nothing");
        refused
    };
    assert!(is_refused(&mut fixture, 4), "0 is not there");
    assert!(is_refused(&mut fixture, 8), "an empty bank is for the first two generations");
    assert!(is_refused(&mut fixture, u64::MAX), "the last sequence that a header can name");
    fixture.gradient(0, Gradient::of(0, 1, 1.0));
    assert!(is_refused(&mut fixture, 4), "0 is not done");
    fixture.gradient(1, Gradient::of(0, 1, 1.0));
    assert!(is_refused(&mut fixture, 8), "4 is not there");
    finish(&mut fixture, 4);
    assert!(is_refused(&mut fixture, 12), "8 is not done, although 4 is");
    assert!(is_refused(&mut fixture, 16), "its bank holds 0, not 8");
    finish(&mut fixture, 8);
    assert_eq!(fixture.bank(8).sequence, 8, "in the bank that held 0");
    assert!(!is_refused(&mut fixture, 12));
    assert!(is_refused(&mut fixture, 16), "12 is not done");
    assert!(!is_refused(&mut fixture, 1), "other slots are not concerned");
}

#[test]
fn an_older_sequence_gets_a_receipt_only() {
    let mut fixture = Fixture::joined(2, 4);
    for sequence in [0, 4, 8] {
        finish(&mut fixture, sequence);
    }
    let bank = fixture.bank(8);
    let stale = fixture.gradient(0, Gradient { signature: 99, ..Gradient::of(0, 20, 1.0) });
    let Repr::Ack { receipts } = fixture.reply(&stale) else { panic!("{stale:?}") };
    assert_eq!(receipts.largest, 20);
    let pulled = fixture.pull(0, 0, false);
    assert!(matches!(fixture.reply(&pulled), Repr::Ack { .. }));
    assert_eq!(fixture.bank(8), bank);
    let counts = [Counter::Stale, Counter::Ack, Counter::Duplicate].map(|c| fixture.count(c));
    assert_eq!(counts, [2, 2, 0]);
    let pulled = fixture.pull(0, 4, false);
    assert!(
        matches!(fixture.reply(&pulled), Repr::Result { sequence: 4, .. }),
        "the other bank still has it"
    );
}

#[test]
fn a_pull_is_answered_and_changes_nothing() {
    let mut fixture = Fixture::joined(3, 4);
    let receipts = Receipts { largest: 1, bitmap: 1, echo: 1001, marks: 0 };
    let pending = |ranks: u64| Repr::Pending { sequence: 1, seen: [ranks, 0, 0, 0], receipts };
    fixture.gradient(0, Gradient::of(1, 1, 1.0));
    let pulled = fixture.pull(0, 1, false);
    assert_eq!(fixture.reply(&pulled), pending(0b1));
    fixture.gradient(2, Gradient::of(1, 1, 1.0));
    let pulled = fixture.pull(0, 1, true);
    assert_eq!(fixture.reply(&pulled), pending(0b101), "of the second phase, which there is none of yet");
    for sequence in [5, 9, 2, u64::MAX] {
        let pulled = fixture.pull(0, sequence, false);
        let nobody = Repr::Pending { sequence, seen: [0; 4], receipts };
        assert_eq!(fixture.reply(&pulled), nobody, "newer than the bank's");
    }
    assert_eq!(fixture.bank(5).status, Status::Empty, "a PULL never resets a bank");
    fixture.gradient(1, Gradient::of(1, 1, 1.0));
    for redo in [false, true] {
        let pulled = fixture.pull(0, 1, redo);
        assert!(matches!(fixture.reply(&pulled), Repr::Result { sequence: 1, .. }));
    }
    let wrong_slot = Repr::Pull { sequence: 1, slot: 2, redo: false, timestamp: 0 };
    assert_eq!(fixture.send(0, &wrong_slot), Outcome::Drop(Some(Reason::Field)));
    let counts = [Counter::Pull, Counter::Pending, Counter::ResultAgain, Counter::Duplicate];
    assert_eq!(counts.map(|c| fixture.count(c)), [8, 6, 2, 0]);
}

#[test]
fn exponents_beyond_the_guard_bits_begin_a_second_phase() {
    let mut fixture = Fixture::joined(2, 4);
    let most = 1 + fixture.job.format.guard_bits() as i16;
    fixture.gradient(0, Gradient::of(0, 1, 1.0));
    let outcome = fixture.gradient(1, Gradient::of(0, 1, 2.0_f32.powi(i32::from(most) - 1)));
    assert!(matches!(outcome, Outcome::Broadcast(_)));
    assert_eq!(fixture.count(Counter::Redo), 0, "a spread of G is exact");

    let largest = exponent(most + 1);
    fixture.gradient(0, Gradient::of(1, 2, 1.0));
    let outcome = fixture.gradient(1, Gradient::of(1, 2, 2.0_f32.powi(i32::from(most))));
    for repr in fixture.broadcast(&outcome) {
        let Repr::Redo { sequence, packet_number, exponent, .. } = repr else { panic!("{repr:?}") };
        assert_eq!((sequence, packet_number, exponent), (1, 2, largest));
    }
    let Outcome::Broadcast(copies) = outcome else { panic!("a broadcast") };
    assert!(copies.iter().all(|payload| payload.len() == HEADER_LEN));
    let bank = fixture.bank(1);
    assert_eq!((bank.status, bank.redo, bank.seen, bank.weight), (Status::Gathering, true, [0; 4], 0));
    let counts = [Counter::Redo, Counter::Broadcast].map(|c| fixture.count(c));
    assert_eq!(counts, [1, 1]);
}

#[test]
fn the_second_phase_takes_its_own_packets_only() {
    let mut fixture = Fixture::joined(2, 4);
    let largest = exponent(21);
    fixture.gradient(0, Gradient::of(0, 1, 1.0));
    let second = |number, value| Gradient { redo: Some(largest), ..Gradient::of(0, number, value) };
    for early in [largest, exponent(1)] {
        let refused = fixture.gradient(1, Gradient { redo: Some(early), ..second(1, 1.0) });
        assert_eq!(refused, Outcome::Drop(Some(Reason::Field)), "while the bank is in its first");
    }
    fixture.gradient(1, Gradient::of(0, 1, 1_048_576.0));

    let late = fixture.gradient(0, Gradient::of(0, 2, 1.0));
    let Repr::Redo { packet_number: 2, receipts, .. } = fixture.reply(&late) else { panic!("{late:?}") };
    assert_eq!(receipts.largest, 2, "of the first phase: known to have been there");
    let pulled = fixture.pull(0, 0, false);
    assert!(matches!(fixture.reply(&pulled), Repr::Redo { packet_number: 3, .. }));
    let pulled = fixture.pull(0, 0, true);
    assert!(matches!(fixture.reply(&pulled), Repr::Pending { seen: [0, 0, 0, 0], .. }));
    for wrong in [exponent(20), exponent(22), Exponent::ZERO] {
        let refused = fixture.gradient(0, Gradient { redo: Some(wrong), ..second(3, 0.0) });
        assert_eq!(refused, Outcome::Drop(Some(Reason::Field)), "another exponent than the bank's");
    }
    assert_eq!(fixture.gradient(0, second(4, 1.0)), Outcome::Drop(None));
    let again = fixture.gradient(0, second(5, 1.0));
    assert!(matches!(fixture.reply(&again), Repr::Ack { .. }), "a duplicate of the second phase");
    let Outcome::Broadcast(copies) = fixture.gradient(1, second(2, 1_048_576.0)) else { panic!("a result") };
    assert_eq!(value(&fixture, &copies[0]), 1_048_577.0);
    let done = fixture.bank(0);
    assert_eq!((done.status, done.weight, done.contributors), (Status::Done, 3, 2), "counted once");
    let again = fixture.gradient(0, second(6, 1.0));
    assert!(matches!(fixture.reply(&again), Repr::Result { .. }));
    assert_eq!(fixture.count(Counter::Duplicate), 3);
}

#[test]
fn a_bank_forgets_the_second_phase_of_the_fragment_before() {
    let mut fixture = Fixture::joined(2, 1);
    fixture.gradient(0, Gradient { nonfinite: true, ..Gradient::of(0, 1, 0.0) });
    fixture.gradient(1, Gradient::of(0, 1, 1.0e30));
    assert!(fixture.bank(0).nonfinite);
    fixture.gradient(0, Gradient::of(1, 2, 1.0));
    fixture.gradient(1, Gradient::of(1, 2, 1.0e9));
    for rank in 0..2 {
        fixture.gradient(rank, Gradient { redo: Some(exponent(30)), ..Gradient::of(1, 3, 1.0) });
    }
    assert!(fixture.bank(1).redo && fixture.bank(1).status == Status::Done);
    for sequence in [2, 3] {
        fixture.gradient(0, Gradient::of(sequence, 4, 1.0));
        let Outcome::Broadcast(copies) = fixture.gradient(1, Gradient::of(sequence, 4, 1.0)) else {
            panic!("a result")
        };
        assert_eq!(value(&fixture, &copies[1]), 2.0);
        let bank = fixture.bank(sequence);
        assert_eq!((bank.redo, bank.nonfinite, bank.exponent, bank.weight), (false, false, exponent(1), 3));
    }
}

#[test]
fn not_finite_is_told_and_needs_no_second_phase() {
    for last in 0..3 {
        let mut fixture = Fixture::joined(3, 4);
        let mut outcome = Outcome::Drop(None);
        for rank in [last + 1, last + 2, last].map(|rank| rank % 3) {
            let value = [1.0, 0.0, 1.0e30][usize::from(rank)];
            outcome = fixture.gradient(rank, Gradient { nonfinite: rank == 1, ..Gradient::of(0, 1, value) });
        }
        let told = fixture.broadcast(&outcome);
        assert!(told.iter().all(|repr| matches!(repr, Repr::Result { nonfinite: true, .. })), "{told:?}");
        let pulled = fixture.pull(0, 0, false);
        assert!(matches!(fixture.reply(&pulled), Repr::Result { nonfinite: true, .. }));
    }
}

#[test]
fn different_operations_are_told_to_everybody_and_stay_refused() {
    let mut fixture = Fixture::joined(3, 4);
    fixture.gradient(2, Gradient::of(0, 1, 1.0));
    let expected = Repr::Reject(Rejection {
        sequence: 0,
        reason: Reason::Mismatch,
        first_rank: 2,
        other_rank: 1,
        first_signature: 7,
        other_signature: 8,
    });
    let outcome = fixture.gradient(1, Gradient { signature: 8, ..Gradient::of(0, 1, 1.0) });
    assert!(fixture.broadcast(&outcome).into_iter().all(|repr| repr == expected));
    for signature in [7, 8, 9] {
        let again = fixture.gradient(0, Gradient { signature, ..Gradient::of(0, 1, 1.0) });
        assert_eq!(fixture.reply(&again), expected, "what is told does not change");
    }
    let pulled = fixture.pull(2, 0, false);
    assert_eq!(fixture.reply(&pulled), expected);
    let newer = fixture.gradient(0, Gradient::of(4, 2, 1.0));
    assert_eq!(fixture.rejection(&newer), Reason::Window, "a mismatched bank is never done");
    let counts = [Counter::Added, Counter::Reject, Counter::Copies].map(|c| fixture.count(c));
    assert_eq!((counts, fixture.refused(Reason::Mismatch)), ([1, 6, 3], (5, 0)));
}

#[test]
fn different_operations_in_a_second_phase_are_told_to_everybody_too() {
    let mut fixture = Fixture::joined(3, 4);
    for (rank, value) in (0..).zip([1.0, 1.0e9, 1.0]) {
        fixture.gradient(rank, Gradient::of(0, 1, value));
    }
    assert!(fixture.bank(0).redo);
    let other = Gradient { signature: 8, redo: Some(exponent(30)), ..Gradient::of(0, 2, 1.0) };
    let outcome = fixture.gradient(1, other);
    let told = fixture.broadcast(&outcome);
    assert!(
        told.iter().all(|repr| matches!(repr, Repr::Reject(Rejection { other_rank: 1, .. }))),
        "{told:?}"
    );
}

#[test]
fn beyond_the_guard_bits_lanes_are_not_touched() {
    let mut fixture = Fixture::joined(3, 4);
    let beyond = 2.0_f32.powi(fixture.job.format.guard_bits() as i32 + 1);
    fixture.gradient(0, Gradient::of(0, 1, 1.0));
    let lanes = |fixture: &Fixture| fixture.aggregator.bank(9, 2, 0, 0).expect("in range").1.to_vec();
    let before = lanes(&fixture);
    for (rank, value) in [(1, beyond), (2, 1.0)] {
        fixture.gradient(rank, Gradient::of(0, 1, value));
        assert_eq!(lanes(&fixture), before, "a sum that would round depends on the order: WIRE F5");
    }
}

#[test]
fn a_rank_that_disagrees_with_itself_is_a_mismatch_too() {
    let mut fixture = Fixture::joined(2, 4);
    fixture.gradient(0, Gradient::of(0, 1, 1.0));
    let outcome = fixture.gradient(0, Gradient { signature: 8, ..Gradient::of(0, 2, 1.0) });
    let told = fixture.broadcast(&outcome);
    assert!(
        matches!(told[1], Repr::Reject(Rejection { first_rank: 0, other_rank: 0, .. })),
        "before its seen bit"
    );
}

#[test]
fn one_worker_is_a_job_too() {
    let mut fixture = Fixture::joined(1, 1);
    for sequence in 0..5 {
        let Outcome::Broadcast(copies) =
            fixture.gradient(0, Gradient::of(sequence, sequence as u32 + 1, -3.5))
        else {
            panic!("a result")
        };
        assert_eq!(value(&fixture, &copies[0]), -3.5);
    }
}

#[test]
fn all_of_256_workers_are_counted() {
    let mut fixture = Fixture::joined(256, 1);
    let mut last = Outcome::Drop(None);
    for rank in (0..256_u16).rev() {
        let pulled = fixture.pull(0, 0, false);
        let Repr::Pending { seen, .. } = fixture.reply(&pulled) else { panic!("{pulled:?}") };
        assert_eq!(seen.map(u64::count_ones).iter().sum::<u32>(), 255 - u32::from(rank));
        last = fixture.gradient(rank, Gradient::of(0, 1, 128.0 + f32::from(rank) / 2.0));
    }
    let Outcome::Broadcast(copies) = last else { panic!("a broadcast") };
    assert_eq!(value(&fixture, &copies[255]), 128.0 * 256.0 + 255.0 * 256.0 / 4.0);
    assert_eq!(fixture.bank(0).weight, 256 * 257 / 2);
}

#[test]
fn marks_of_congestion_are_counted_and_told_with_every_answer() {
    let mut fixture = Fixture::joined(2, 8);
    let source = fixture.address(0);
    for (number, expected) in (1..=6).zip([0, 1, 1, 2, 2, 3]) {
        let gradient = Gradient { ack: true, ..Gradient::of(u64::from(number), number, 1.0) };
        let payload = fixture.gradient_payload(0, gradient);
        let outcome = fixture.run_marked(source, number % 2 == 0, &payload);
        let Repr::Ack { receipts } = fixture.reply(&outcome) else { panic!("{outcome:?}") };
        assert_eq!((receipts.largest, receipts.marks), (number, expected));
    }
}
