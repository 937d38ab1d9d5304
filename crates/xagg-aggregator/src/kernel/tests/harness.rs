//! The kernel program without a network: frames go in by BPF_PROG_TEST_RUN, and what it does with them comes back.

use std::net::{Ipv4Addr, SocketAddrV4};

use libbpf_rs::{MapCore, MapFlags};
use xagg_proto::{Job, Time};
use xagg_wire::counter::COUNTERS;

use super::super::skeleton::types;
use super::super::{KernelConfig, Loaded, Mode, load, plain, run};
use crate::interface::Interface;

pub const INCARNATION: u32 = 0x1234_5678;
/// How many packets the aggregator is said to have room for.
pub const RING: usize = 1000;
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The address of the link of whoever sends.
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Some class of service, with ECT(1) and with CE.
const TOS_UNMARKED: u8 = 0xb9;
const TOS_MARKED: u8 = 0xbb;
/// What an answer has: the network may mark it.
const TOS_ANSWER: u8 = 2;
const IP: usize = 14;
const UDP: usize = 34;
pub const PAYLOAD: usize = 42;

pub const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;

/// What the program did with a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Taken in or refused, without an answer.
    Drop,
    /// Left to the network stack.
    Pass,
    /// Sent back to the worker; the payload.
    Reply(Vec<u8>),
    /// Copies to workers: where each goes, and its payload.
    Broadcast(Vec<(SocketAddrV4, Vec<u8>)>),
}

/// The kernel program loaded for one job, attached to nothing.
pub struct Harness {
    pub job: Job,
    loaded: Loaded,
}

/// A job over addresses that nobody has.
pub fn job(workers: usize, lanes: usize, slots: u32) -> Job {
    let mut text = format!(
        "job = 9\nview = 2\nsecret = \"a secret for test runs\"\nlanes = {lanes}\nslots = {slots}\n\
         aggregator = \"10.8.0.1:9700\"\n"
    );
    for rank in 0..workers {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"10.8.1.{}:{}\"\n", rank % 250, 9701 + rank);
    }
    Job::parse(&text).expect("valid")
}

impl Harness {
    pub fn new(job: Job) -> Self {
        let loopback = Interface::find(Some("lo"), Ipv4Addr::LOCALHOST).expect("loopback");
        let interface = Interface { ring: RING, ..loopback };
        let config =
            KernelConfig { interface, mode: Mode::Native, address: job.aggregator, incarnation: INCARNATION };
        let loaded =
            load::load(&config, std::slice::from_ref(&job)).unwrap_or_else(|error| panic!("{error}"));
        Self { job, loaded }
    }

    /// Runs the program on a payload in a correct frame.
    pub fn run(&self, source: SocketAddrV4, payload: &[u8]) -> Outcome {
        self.run_frame(&frame(source, self.job.aggregator, payload))
    }

    /// The same for a packet that comes with a mark of congestion, or without.
    pub fn run_marked(&self, source: SocketAddrV4, marked: bool, payload: &[u8]) -> Outcome {
        let mut frame = frame(source, self.job.aggregator, payload);
        if marked {
            set_tos(&mut frame, TOS_MARKED);
        }
        self.run_frame(&frame)
    }

    /// Runs the program on any frame.
    pub fn run_frame(&self, frame: &[u8]) -> Outcome {
        let ran = run::dry(&self.loaded.ingress, frame).expect("runs");
        match ran.action {
            XDP_DROP => Outcome::Drop,
            XDP_PASS => {
                assert_eq!(ran.frame, frame, "what is not ours stays untouched");
                Outcome::Pass
            }
            XDP_REDIRECT if destination(&ran.frame) == self.job.aggregator => {
                assert!(ran.frame.len() <= frame.len(), "WIRE P2");
                Outcome::Broadcast(self.copies(&ran.frame))
            }
            XDP_REDIRECT => {
                assert!(ran.frame.len() <= frame.len(), "WIRE P2");
                Outcome::Reply(self.checked_answer(&ran.frame))
            }
            action => panic!("XDP action {action}"),
        }
    }

    /// Lets time pass: until this, the program's clock stands still.
    pub fn set_now(&self, now: Time) {
        let nanoseconds = now.since(Time::ZERO).as_nanos() as u64;
        self.loaded
            .clock
            .update(&0_u32.to_ne_bytes(), &nanoseconds.to_ne_bytes(), MapFlags::ANY)
            .expect("writes");
    }

    /// What the egress program makes of a broadcast: one copy for each worker that has joined.
    fn copies(&self, frame: &[u8]) -> Vec<(SocketAddrV4, Vec<u8>)> {
        let copy = |_| {
            let ran = run::dry(&self.loaded.egress, frame).expect("runs");
            if ran.action == XDP_DROP {
                return None;
            }
            assert_eq!(ran.action, XDP_PASS);
            let again = run::dry(&self.loaded.egress, &ran.frame).expect("runs");
            assert_eq!(
                (again.action, &again.frame),
                (XDP_PASS, &ran.frame),
                "an addressed frame passes untouched"
            );
            Some((destination(&ran.frame), self.checked_answer(&ran.frame)))
        };
        self.job.workers.iter().filter_map(copy).collect()
    }

    /// What the egress program does with a copy that still has our own address.
    pub fn one_copy_more(&self, payload: &[u8]) -> u32 {
        let frame = frame(self.job.aggregator, self.job.aggregator, payload);
        run::dry(&self.loaded.egress, &frame).expect("runs").action
    }

    /// Whether the program answers a frame, wherever on the link the answer goes.
    pub fn answers(&self, frame: &[u8]) -> bool {
        run::dry(&self.loaded.ingress, frame).expect("runs").action == XDP_REDIRECT
    }

    /// The UDP checksum of an answer to a worker, in network byte order.
    pub fn udp_checksum(&self, rank: u16, answer: &[u8]) -> [u8; 2] {
        let to = self.job.workers[usize::from(rank)];
        let frame = frame_of(self.job.aggregator, to, answer, OWN_MAC, PEER_MAC);
        [frame[UDP + 6], frame[UDP + 7]]
    }

    /// The payload of an answer whose Ethernet, IP and UDP headers are right (WIRE P4).
    fn checked_answer(&self, frame: &[u8]) -> Vec<u8> {
        let payload = &frame[PAYLOAD..];
        let expected = frame_of(self.job.aggregator, destination(frame), payload, OWN_MAC, PEER_MAC);
        assert_ne!(frame[UDP + 6..UDP + 8], [0, 0], "a UDP checksum of 0 would say that there is none");
        assert_eq!(frame[..PAYLOAD], expected[..PAYLOAD], "headers and their checksums");
        payload.to_vec()
    }

    pub fn counters(&self) -> [u64; COUNTERS] {
        self.loaded.counters(1).expect("reads")
    }

    pub fn unassigned(&self) -> [u64; COUNTERS] {
        self.loaded.counters(0).expect("reads")
    }

    pub fn flow(&self, rank: u16) -> types::flow {
        self.loaded.flow(1, u32::from(rank)).expect("reads")
    }

    pub fn bank(&self, slot: u32, bank: usize) -> types::bank {
        let value = self.loaded.jobs[0].slots.lookup(&slot.to_ne_bytes(), MapFlags::LOCK).expect("reads");
        plain::read::<types::slot>(&value.expect("in range")).banks[bank]
    }

    pub fn sums(&self, slot: u32, bank: usize) -> Vec<u32> {
        let key = 2 * slot + bank as u32;
        let value = self.loaded.jobs[0].sums.lookup(&key.to_ne_bytes(), MapFlags::ANY).expect("reads");
        value.expect("in range").as_chunks::<4>().0.iter().map(|lane| u32::from_ne_bytes(*lane)).collect()
    }
}

/// A frame from a worker's place on the link. Some fields are not as an answer's must be, to show that it does not keep them.
pub fn frame(source: SocketAddrV4, destination: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let mut frame = frame_of(source, destination, payload, PEER_MAC, OWN_MAC);
    frame[IP + 4..IP + 6].copy_from_slice(&[0x12, 0x34]);
    frame[IP + 8] = 17;
    set_tos(&mut frame, TOS_UNMARKED);
    frame
}

fn set_tos(frame: &mut [u8], tos: u8) {
    frame[IP + 1] = tos;
    frame[IP + 10..IP + 12].fill(0);
    let checksum = !ones_complement(&[&frame[IP..UDP]]);
    frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
}

fn frame_of(
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
    from_mac: [u8; 6],
    to_mac: [u8; 6],
) -> Vec<u8> {
    let mut frame = vec![0; PAYLOAD];
    frame.extend_from_slice(payload);
    frame[..6].copy_from_slice(&to_mac);
    frame[6..12].copy_from_slice(&from_mac);
    frame[12..14].copy_from_slice(&[8, 0]);
    let udp_len = (8 + payload.len()) as u16;
    let ip = &mut frame[IP..UDP];
    ip[0] = 0x45;
    ip[1] = TOS_ANSWER;
    ip[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
    ip[6] = 0x40;
    ip[8] = 64;
    ip[9] = 17;
    ip[12..16].copy_from_slice(&from.ip().octets());
    ip[16..20].copy_from_slice(&to.ip().octets());
    let checksum = !ones_complement(&[&frame[IP..UDP]]);
    frame[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
    let udp = &mut frame[UDP..PAYLOAD];
    udp[..2].copy_from_slice(&from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    let pseudo = [&frame[IP + 12..UDP], &[0, 17][..], &udp_len.to_be_bytes()[..]].concat();
    let checksum = !ones_complement(&[&pseudo, &frame[UDP..]]);
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    frame[UDP + 6..UDP + 8].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// RFC 1071, word by word.
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

fn destination(frame: &[u8]) -> SocketAddrV4 {
    let ip: [u8; 4] = frame[IP + 16..IP + 20].try_into().expect("four bytes");
    SocketAddrV4::new(ip.into(), u16::from_be_bytes([frame[UDP + 2], frame[UDP + 3]]))
}
