//! IPv6 and VLAN tags, rule by rule (WIRE section 1, P2, P6): the differential test has jobs of both kinds as well.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use xagg_testbed::skip_unless_root;
use xagg_wire::{Counter, Family, Reason};

use super::frames::{frame, tagged};
use super::harness::{Harness, Outcome, Tags, job_over};
use super::table::{Gradient, LANES, join};

const IPV6: usize = 14;
const UDP: usize = 54;
const KIND: usize = 12;
const VLAN: Option<u16> = Some(0x6005);
const UDP_HEADER: u8 = 17;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
/// What follows the kind of an extension header of eight bytes: its further blocks, and padding.
const ONE_BLOCK: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

fn joined(test: &str, family: Family, tags: Tags, workers: usize) -> Option<Harness> {
    let harness = || Harness::with_tags(job_over(family, workers, LANES, 4), tags);
    (!skip_unless_root(test)).then(|| join(harness()))
}

/// A good frame of rank 0: a contribution to fragment 0.
fn good_frame(harness: &Harness) -> Vec<u8> {
    let payload = harness.gradient_payload(0, Gradient::of(0, 1, 1.0));
    frame(harness.job.workers[0], harness.job.aggregator, &payload)
}

fn changed(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// The frame with an extension header before UDP. `rest` is what follows its kind's number.
fn extended(frame: &[u8], kind: u8, next: u8, rest: &[u8]) -> Vec<u8> {
    let mut frame = changed(frame, IPV6 + 6, &[kind]);
    let len = u16::from_be_bytes([frame[IPV6 + 4], frame[IPV6 + 5]]) + 1 + rest.len() as u16;
    frame[IPV6 + 4..IPV6 + 6].copy_from_slice(&len.to_be_bytes());
    frame.splice(UDP..UDP, [next].into_iter().chain(rest.iter().copied()));
    frame
}

#[test]
fn what_is_not_xagg_over_ipv6_passes_untouched() {
    let test = "what_is_not_xagg_over_ipv6_passes_untouched";
    let Some(harness) = joined(test, Family::V6, Tags::None, 1) else { return };
    let good = good_frame(&harness);
    let later_fragment = [0, 0, 8, 0, 0, 0, 1];
    let other_port = changed(&good, UDP + 2, &[0, 53]);
    let cases = [
        ("IPv4", changed(&good, KIND, &[8, 0])),
        ("no IP version 6", changed(&good, IPV6, &[0x40])),
        ("TCP", changed(&good, IPV6 + 6, &[6])),
        ("neighbour discovery", changed(&good, IPV6 + 6, &[58])),
        ("another port", other_port.clone()),
        ("another address, first word", changed(&good, IPV6 + 24, &[0xfe])),
        ("another address, second word", changed(&good, IPV6 + 28, &[0xfe])),
        ("another address, third word", changed(&good, IPV6 + 32, &[0xfe])),
        ("another address, last word", changed(&good, IPV6 + 39, &[0xfe])),
        ("a later fragment", extended(&good, FRAGMENT, UDP_HEADER, &later_fragment)),
        ("a fragment for another port", extended(&other_port, FRAGMENT, UDP_HEADER, &[0, 0, 1, 0, 0, 0, 1])),
        ("options for another port", extended(&other_port, DESTINATION, UDP_HEADER, &ONE_BLOCK)),
        ("options of TCP", extended(&good, HOP_BY_HOP, 6, &ONE_BLOCK)),
        (
            "two headers",
            extended(&extended(&good, ROUTING, UDP_HEADER, &ONE_BLOCK), HOP_BY_HOP, ROUTING, &ONE_BLOCK),
        ),
        ("a header beyond the end", extended(&good, ROUTING, UDP_HEADER, &[255, 1, 4, 0, 0, 0, 0])),
        ("authentication", extended(&good, AUTHENTICATION, UDP_HEADER, &[0, 0, 0, 0, 0, 0, 0])),
        ("a short frame", good[..UDP].to_vec()),
    ];
    for (name, frame) in cases {
        assert_eq!(harness.run_frame(&frame), Outcome::Pass, "{name}");
        assert_eq!(harness.run_frame(&tagged(frame, VLAN)), Outcome::Pass, "{name}, with a tag");
    }
    assert_eq!(harness.counters()[Counter::Packets.index()], 1, "the HELLO");
}

#[test]
fn fragments_extensions_and_wrong_lengths_over_ipv6_are_dropped() {
    let test = "fragments_extensions_and_wrong_lengths_over_ipv6_are_dropped";
    let Some(harness) = joined(test, Family::V6, Tags::None, 1) else { return };
    let good = good_frame(&harness);
    let two = [1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let refused = [
        extended(&good, FRAGMENT, UDP_HEADER, &[0, 0, 1, 0, 0, 0, 1]),
        extended(&good, FRAGMENT, UDP_HEADER, &[0, 0, 0, 0, 0, 0, 1]),
        extended(&good, HOP_BY_HOP, UDP_HEADER, &ONE_BLOCK),
        extended(&good, ROUTING, UDP_HEADER, &two),
        extended(&good, DESTINATION, UDP_HEADER, &two),
    ];
    for frame in &refused {
        assert_eq!(harness.run_frame(frame), Outcome::Drop);
    }
    assert_eq!(harness.refused(Reason::Fragment), 5);
    let wrong = [
        [good.as_slice(), &[0; 4]].concat(),
        good[..good.len() - 4].to_vec(),
        changed(&good, IPV6 + 5, &[good[IPV6 + 5] - 4]),
        changed(&good, UDP + 5, &[good[UDP + 5] - 4]),
        good[..UDP + 8].to_vec(),
    ];
    for (count, frame) in (0..).zip(&wrong) {
        assert_eq!(harness.run_frame(frame), Outcome::Drop);
        assert_eq!(harness.run_frame(&tagged(frame.clone(), VLAN)), Outcome::Drop, "with a tag");
        assert_eq!(harness.refused(Reason::Length), 2 * count + 2);
    }
    assert_eq!(harness.counters()[Counter::Packets.index()], 1, "the HELLO");
    assert!(matches!(harness.run_frame(&good), Outcome::Broadcast(_)), "so good it was");
}

#[test]
fn every_word_of_an_ipv6_address_counts() {
    let Some(harness) = joined("every_word_of_an_ipv6_address_counts", Family::V6, Tags::None, 1) else {
        return;
    };
    let payload = harness.gradient_payload(0, Gradient::of(0, 1, 1.0));
    let own = harness.job.workers[0];
    let IpAddr::V6(address) = own.ip() else { panic!("{own}") };
    for bit in (0..128).step_by(8) {
        let other = SocketAddr::new(Ipv6Addr::from(address.to_bits() ^ 1 << bit).into(), own.port());
        let refused = harness.refused(Reason::Worker);
        assert_eq!(harness.run(other, &payload), Outcome::Drop);
        assert_eq!(harness.refused(Reason::Worker), refused + 1, "{other}");
    }
}

#[test]
fn a_frame_with_another_tag_than_one_of_802_1q_passes_untouched() {
    let test = "a_frame_with_another_tag_than_one_of_802_1q_passes_untouched";
    let Some(harness) = joined(test, Family::V4, Tags::None, 1) else { return };
    let good = good_frame(&harness);
    let once = tagged(good.clone(), VLAN);
    let cases = [
        ("two tags", tagged(once.clone(), VLAN)),
        ("a provider's tag", changed(&once, KIND, &[0x88, 0xa8])),
        ("a tag and ARP", changed(&once, KIND + 4, &[8, 6])),
        ("a tag and another port", changed(&once, 40, &[0, 53])),
        ("a tag and nothing else", once[..16].to_vec()),
    ];
    for (name, frame) in cases {
        assert_eq!(harness.run_frame(&frame), Outcome::Pass, "{name}");
    }
    let fragment = changed(&once, 24, &[0x20]);
    assert_eq!(harness.run_frame(&fragment), Outcome::Drop);
    assert_eq!(harness.refused(Reason::Fragment), 1);
    assert!(matches!(harness.run_frame(&once), Outcome::Broadcast(_)), "so good it was");
}

#[test]
fn answers_have_the_tag_of_the_hello() {
    for family in [Family::V4, Family::V6] {
        let name = "answers_have_the_tag_of_the_hello";
        if skip_unless_root(name) {
            return;
        }
        let harness = Harness::new(job_over(family, 2, LANES, 4));
        let frame_with = |payload: Vec<u8>, tag| {
            tagged(frame(harness.job.workers[0], harness.job.aggregator, &payload), tag)
        };
        let acked =
            |number| harness.gradient_payload(0, Gradient { ack: true, ..Gradient::of(0, number, 1.0) });
        assert_eq!(harness.tag_of_answer(&frame_with(acked(1), Some(7))), Some(7), "REJECT before a HELLO");
        for (number, tag) in (2..).zip([VLAN, None, Some(0)]) {
            assert_eq!(harness.tag_of_answer(&frame_with(harness.hello_payload(0, 5), tag)), tag, "WELCOME");
            for other in [None, Some(9), tag] {
                assert_eq!(harness.tag_of_answer(&frame_with(acked(number), other)), tag, "ACK");
            }
        }
    }
}

/// The harness checks every copy's tag.
#[test]
fn a_broadcast_reaches_workers_with_and_without_a_tag() {
    for family in [Family::V4, Family::V6] {
        let test = "a_broadcast_reaches_workers_with_and_without_a_tag";
        let Some(harness) = joined(test, family, Tags::Some, 3) else { return };
        for (sequence, last) in (0..).zip([0, 1, 2]) {
            let gradient = Gradient::of(sequence, sequence as u32 + 1, 1.0);
            for rank in (0..3).filter(|rank| *rank != last) {
                assert_eq!(harness.gradient(rank, gradient), Outcome::Drop);
            }
            assert_eq!(harness.broadcast(&harness.gradient(last, gradient)).len(), 3, "ended by rank {last}");
        }
    }
}
