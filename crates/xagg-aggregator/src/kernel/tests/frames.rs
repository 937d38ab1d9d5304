//! Ethernet frames as they are on a link: written and read on their own, without anything of the kernel program.

use std::net::{IpAddr, SocketAddr};

/// The aggregator's place on the link.
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// That of whoever sends.
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Some class of service, with ECT(1) and with CE.
const TOS_UNMARKED: u8 = 0xb9;
const TOS_MARKED: u8 = 0xbb;
/// What an answer has: the network may mark it.
const TOS_ANSWER: u8 = 2;
/// 802.1Q, before the two bytes of the tag itself.
const TAG: [u8; 2] = [0x81, 0];
const TAG_AT: usize = 12;
const IP: usize = 14;
const UDP_LEN: usize = 8;

/// Where UDP begins in a frame without a tag.
fn udp_of(frame: &[u8]) -> usize {
    IP + if frame[TAG_AT..IP] == [8, 0] { 20 } else { 40 }
}

/// Where the payload begins in a frame without a tag.
pub fn payload_of(frame: &[u8]) -> usize {
    udp_of(frame) + UDP_LEN
}

/// A frame from a worker's place on the link. Some fields are not as an answer's must be, to show that it does not keep them.
pub fn frame(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut frame = frame_of([source, destination], payload, [PEER_MAC, OWN_MAC]);
    if source.is_ipv4() {
        frame[IP + 4..IP + 6].copy_from_slice(&[0x12, 0x34]);
        frame[IP + 8] = 17;
    } else {
        frame[IP + 1..IP + 4].copy_from_slice(&[0x01, 0x23, 0x45]);
        frame[IP + 7] = 17;
    }
    set_class(&mut frame, TOS_UNMARKED);
    frame
}

/// The same with a mark of congestion.
pub fn marked_frame(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut frame = frame(source, destination, payload);
    set_class(&mut frame, TOS_MARKED);
    frame
}

/// The frame of an answer from the aggregator.
pub fn answer_frame(aggregator: SocketAddr, worker: SocketAddr, payload: &[u8]) -> Vec<u8> {
    frame_of([aggregator, worker], payload, [OWN_MAC, PEER_MAC])
}

/// The UDP checksum of a frame without a tag, in network byte order.
pub fn udp_checksum(frame: &[u8]) -> [u8; 2] {
    let udp = udp_of(frame);
    [frame[udp + 6], frame[udp + 7]]
}

/// Where a frame without a tag goes.
pub fn destination(frame: &[u8]) -> SocketAddr {
    let udp = udp_of(frame);
    let port = u16::from_be_bytes([frame[udp + 2], frame[udp + 3]]);
    let address: IpAddr = match <[u8; 4]>::try_from(&frame[IP + 16..udp]) {
        Ok(v4) => v4.into(),
        Err(_) => <[u8; 16]>::try_from(&frame[IP + 24..udp]).expect("IPv6").into(),
    };
    SocketAddr::new(address, port)
}

/// The frame with a VLAN tag before what it begins with, if one is given.
pub fn tagged(mut frame: Vec<u8>, tag: Option<u16>) -> Vec<u8> {
    if let Some(tag) = tag {
        let [high, low] = tag.to_be_bytes();
        frame.splice(TAG_AT..TAG_AT, [TAG[0], TAG[1], high, low]);
    }
    frame
}

/// The frame without its VLAN tag, and the tag.
pub fn untagged(mut frame: Vec<u8>) -> (Vec<u8>, Option<u16>) {
    if frame[TAG_AT..IP] != TAG {
        return (frame, None);
    }
    let tag = u16::from_be_bytes([frame[IP], frame[IP + 1]]);
    frame.drain(TAG_AT..TAG_AT + 4);
    (frame, Some(tag))
}

/// `ends` are source and destination, and so are `macs`.
fn frame_of(ends: [SocketAddr; 2], payload: &[u8], macs: [[u8; 6]; 2]) -> Vec<u8> {
    let udp_len = ((UDP_LEN + payload.len()) as u16).to_be_bytes();
    let (kind, ip) = match ends.map(|end| end.ip()) {
        [IpAddr::V4(from), IpAddr::V4(to)] => {
            let ip_len = ((20 + UDP_LEN + payload.len()) as u16).to_be_bytes();
            let head = [0x45, 0, ip_len[0], ip_len[1], 0, 0, 0x40, 0, 64, 17, 0, 0];
            ([8, 0], [&head[..], &from.octets(), &to.octets()].concat())
        }
        [IpAddr::V6(from), IpAddr::V6(to)] => {
            let head = [0x60, 0, 0, 0, udp_len[0], udp_len[1], 17, 64];
            ([0x86, 0xdd], [&head[..], &from.octets(), &to.octets()].concat())
        }
        mixed => panic!("{mixed:?}"),
    };
    let [from_port, to_port] = ends.map(|end| end.port().to_be_bytes());
    let udp = [from_port, to_port, udp_len, [0, 0]].concat();
    let mut frame = [&macs[1][..], &macs[0], &kind, &ip, &udp, payload].concat();
    set_class(&mut frame, TOS_ANSWER);
    let addresses = if kind == [8, 0] { &ip[12..] } else { &ip[8..] };
    let udp = udp_of(&frame);
    let checksum = match !ones_complement(&[addresses, &[0, 17], &udp_len, &frame[udp..]]) {
        0 => 0xffff,
        checksum => checksum,
    };
    frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// Sets type of service or traffic class.
fn set_class(frame: &mut [u8], class: u8) {
    let udp = udp_of(frame);
    if frame[TAG_AT..IP] == [8, 0] {
        frame[IP + 1] = class;
        frame[IP + 10..IP + 12].fill(0);
        let checksum = !ones_complement(&[&frame[IP..udp]]);
        frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        frame[IP] = 0x60 | class >> 4;
        frame[IP + 1] = class << 4 | frame[IP + 1] & 15;
    }
}

/// RFC 1071, word by word. All parts but the last have an even length.
fn ones_complement(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum as u16
}
