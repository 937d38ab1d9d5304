//! Decoding any bytes ends in a packet or in an error (WIRE P5), and what is written is read back.

use std::collections::BTreeSet;

use proptest::prelude::*;
use xagg_wire::fixed::Exponent;
use xagg_wire::repr::{Contribution, Rejection};
use xagg_wire::{Cookie, Flow, Packet, Reason, Receipts, Repr};

const LANES: usize = 16;
/// Where the header has it.
const CHECKSUM: std::ops::Range<usize> = 60..64;

fn exponent() -> impl Strategy<Value = Exponent> {
    prop_oneof![
        Just(Exponent::ZERO),
        (-149..=128_i16).prop_map(|value| Exponent::finite(value).expect("in range"))
    ]
}

fn receipts() -> impl Strategy<Value = Receipts> {
    any::<(u32, u32, u32, u16)>().prop_map(|(largest, bitmap, echo, marks)| Receipts {
        largest,
        bitmap,
        echo,
        marks,
    })
}

fn contribution(most_contributors: u16) -> impl Strategy<Value = Contribution> {
    let numbers = any::<(u64, u32, u32, u32, u32)>();
    let flags = any::<(bool, bool, bool)>();
    let weights = (1..=most_contributors).prop_flat_map(|count| (Just(count), 1..=65_535 * u32::from(count)));
    (numbers, flags, exponent(), weights).prop_map(
        |((sequence, slot, packet_number, signature, timestamp), flags, exponent, (contributors, weight))| {
            let (redo, nonfinite, ack_request) = flags;
            Contribution {
                sequence,
                slot,
                packet_number,
                redo,
                nonfinite,
                ack_request,
                exponent,
                contributors,
                weight,
                signature,
                timestamp,
            }
        },
    )
}

fn rejection() -> impl Strategy<Value = Rejection> {
    let reason = (0..Reason::ALL.len()).prop_map(|index| Reason::ALL[index]);
    (any::<u64>(), reason, any::<(u16, u16, u32, u32)>()).prop_map(|(sequence, reason, numbers)| {
        let (first_rank, other_rank, first_signature, other_signature) = numbers;
        Rejection { sequence, reason, first_rank, other_rank, first_signature, other_signature }
    })
}

fn repr() -> impl Strategy<Value = Repr> {
    let hello = (1..=u64::MAX, any::<u32>(), any::<u16>(), any::<bool>());
    let result = (any::<(u64, u32, bool, u16, u32)>(), exponent(), receipts());
    prop_oneof![
        hello.prop_map(|(nonce, slots, workers, checksum)| Repr::Hello { nonce, slots, workers, checksum }),
        any::<(u64, bool, u32)>().prop_map(|(nonce, no_gso, grant)| Repr::Welcome { nonce, no_gso, grant }),
        contribution(1).prop_map(Repr::Gradient),
        contribution(256).prop_map(Repr::Aggregate),
        result.prop_map(
            |((sequence, packet_number, nonfinite, contributors, weight), exponent, receipts)| {
                Repr::Result { sequence, packet_number, nonfinite, exponent, contributors, weight, receipts }
            }
        ),
        (any::<(u64, u32)>(), exponent(), receipts()).prop_map(
            |((sequence, packet_number), exponent, receipts)| {
                Repr::Redo { sequence, packet_number, exponent, receipts }
            }
        ),
        receipts().prop_map(|receipts| Repr::Ack { receipts }),
        any::<(u64, u32, bool, u32)>().prop_map(|(sequence, slot, redo, timestamp)| Repr::Pull {
            sequence,
            slot,
            redo,
            timestamp
        }),
        (any::<(u64, [u64; 4])>(), receipts()).prop_map(|((sequence, seen), receipts)| Repr::Pending {
            sequence,
            seen,
            receipts
        }),
        rejection().prop_map(Repr::Reject),
    ]
}

fn flow() -> impl Strategy<Value = Flow> {
    any::<(u32, u16, u16, u64, u32)>().prop_map(|(job, view, rank, cookie, incarnation)| Flow {
        job,
        view,
        rank,
        cookie: Cookie::from_wire(cookie),
        incarnation,
    })
}

fn written(flow: &Flow, repr: &Repr) -> Vec<u8> {
    written_with(flow, repr, true)
}

/// Of a job whose packets with lanes have a checksum, or not.
fn written_with(flow: &Flow, repr: &Repr, checksum: bool) -> Vec<u8> {
    let mut bytes = vec![0; repr.len(LANES)];
    repr.emit(flow, &mut Packet::new_unchecked(&mut bytes), checksum);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn what_is_written_is_read_back(flow in flow(), repr in repr()) {
        let bytes = written(&flow, &repr);
        prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes), LANES, true), Ok((flow, repr)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _packet_or_reason = Repr::parse(&Packet::new_unchecked(&bytes), LANES, true);
    }

    #[test]
    fn a_valid_packet_with_other_bytes_never_panics(
        flow in flow(),
        repr in repr(),
        changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..6),
    ) {
        let mut bytes = written(&flow, &repr);
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        Packet::new_unchecked(&mut bytes).fill_checksum();
        if let Ok((flow, repr)) = Repr::parse(&Packet::new_unchecked(&bytes), LANES, true) {
            prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&written(&flow, &repr)), LANES, true), Ok((flow, repr)));
        }
    }

    #[test]
    fn one_or_two_flipped_bits_are_always_noticed(flow in flow(), repr in repr(), bits in any::<[prop::sample::Index; 2]>(), column in any::<bool>()) {
        let mut bytes = written(&flow, &repr);
        let count = 8 * bytes.len();
        let first = bits[0].index(count);
        // Every other time the same bit of another word: what a plain sum does not see if one goes up and the other down.
        let second = if column { (first + 32 * bits[1].index(count / 32)) % count } else { bits[1].index(count) };
        bytes[first / 8] ^= 1 << (first % 8);
        if second != first {
            bytes[second / 8] ^= 1 << (second % 8);
        }
        prop_assert!(Repr::parse(&Packet::new_unchecked(&bytes), LANES, true).is_err());
    }

    /// WIRE P7.
    #[test]
    fn without_the_option_exactly_the_packets_with_lanes_go_unchecked(flow in flow(), repr in repr(), bit in any::<prop::sample::Index>(), value in any::<u32>()) {
        let has_lanes = matches!(repr, Repr::Gradient(_) | Repr::Aggregate(_) | Repr::Result { .. });
        let mut bytes = written_with(&flow, &repr, false);
        let parse = |bytes: &[u8]| Repr::parse(&Packet::new_unchecked(bytes), LANES, false);
        prop_assert_eq!(parse(&bytes), Ok((flow, repr)));
        prop_assert_eq!(Packet::new_unchecked(&bytes).checksum() == 0, has_lanes);
        // A bit of the body or, if there is none, of the checksum.
        let place = CHECKSUM.start * 8 + bit.index((bytes.len() - CHECKSUM.start) * 8);
        bytes[place / 8] ^= 1 << (place % 8);
        let unnoticed = has_lanes && place >= 8 * CHECKSUM.end;
        prop_assert_eq!(parse(&bytes), if unnoticed { Ok((flow, repr)) } else { Err(Reason::Checksum) });
        bytes[CHECKSUM].copy_from_slice(&value.to_le_bytes());
        let expected = if has_lanes { 0 } else { Packet::new_unchecked(&bytes).computed_checksum() };
        prop_assert_eq!(parse(&bytes).is_ok(), value == expected);
    }

    /// WIRE P7: also not into one with lanes, which has no checksum.
    #[test]
    fn without_the_option_no_packet_without_lanes_becomes_another_one(flow in flow(), repr in repr(), bit in 0..8 * xagg_wire::HEADER_LEN) {
        prop_assume!(!matches!(repr, Repr::Gradient(_) | Repr::Aggregate(_) | Repr::Result { .. }));
        let mut bytes = written_with(&flow, &repr, false);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Repr::parse(&Packet::new_unchecked(&bytes), LANES, false).is_err());
    }

    #[test]
    fn words_that_changed_places_are_noticed(flow in flow(), repr in repr(), words in any::<[prop::sample::Index; 2]>()) {
        let mut bytes = written(&flow, &repr);
        let [first, second] = words.map(|word| 4 * word.index(bytes.len() / 4));
        let before = bytes.clone();
        for offset in 0..4 {
            bytes.swap(first + offset, second + offset);
        }
        prop_assume!(bytes != before);
        prop_assert!(Repr::parse(&Packet::new_unchecked(&bytes), LANES, true).is_err());
    }

    #[test]
    fn a_packet_of_another_length_is_refused(flow in flow(), repr in repr(), length in 0..300_usize) {
        let mut bytes = written(&flow, &repr);
        prop_assume!(length != bytes.len());
        bytes.resize(length, 0);
        prop_assert_eq!(Repr::parse(&Packet::new_unchecked(&bytes), LANES, true), Err(Reason::Length));
    }

    #[test]
    fn receipts_are_a_window_onto_the_set_of_numbers(start in any::<u32>(), steps in prop::collection::vec(-40..40_i32, 1..200)) {
        let mut receipts = Receipts { largest: start, bitmap: 0, echo: 0, marks: 0 };
        let (mut seen, mut largest, mut echo) = (BTreeSet::new(), 0_i64, 0);
        let mut position = 0_i64;
        for (timestamp, step) in (1..).zip(steps) {
            position += i64::from(step);
            receipts.note(start.wrapping_add(position as u32), timestamp);
            seen.insert(position);
            if position > largest {
                (largest, echo) = (position, timestamp);
            }
            prop_assert_eq!(receipts.echo, echo);
            prop_assert_eq!(receipts.largest, start.wrapping_add(largest as u32));
            for behind in 0..32_i64 {
                let number = receipts.largest.wrapping_sub(behind as u32);
                prop_assert_eq!(receipts.contains(number), seen.contains(&(largest - behind)));
            }
        }
    }
}
