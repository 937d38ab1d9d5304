//! The kernel program without a network: frames go in by BPF_PROG_TEST_RUN, and what it does with them comes back.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use libbpf_rs::{MapCore, MapFlags};
use xagg_proto::{Job, Time};
use xagg_wire::Family;
use xagg_wire::counter::COUNTERS;

use super::super::skeleton::types;
use super::super::{KernelConfig, Loaded, Mode, load, plain};
use super::frames::{
    answer_frame, destination, frame, marked_frame, payload_of, tagged, udp_checksum, untagged,
};
use super::run;
use crate::interface::Interface;

pub const INCARNATION: u32 = 0x1234_5678;
/// How many packets the aggregator is said to have room for.
pub const RING: usize = 1000;
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
    Broadcast(Vec<(SocketAddr, Vec<u8>)>),
}

/// A frame that the program has sent.
enum Answer {
    /// To a worker; the payload.
    To(SocketAddr, Vec<u8>),
    /// To become copies.
    Unaddressed(Vec<u8>),
}

/// The kernel program loaded for one job, attached to nothing.
pub struct Harness {
    pub job: Job,
    tags: Tags,
    loaded: Loaded,
}

/// Which workers' frames have a VLAN tag, of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// No worker's.
    None,
    /// Those of the odd ranks.
    Some,
    /// All.
    All,
}

impl Tags {
    /// The tag of a rank's frames: priority and VLAN, one of them 0 for some ranks, and both for rank 8.
    fn of(self, rank: usize) -> Option<u16> {
        let tag = (rank % 8) as u16 * 0x2000 + if rank % 3 == 2 { 0 } else { rank as u16 };
        let has_one = self == Self::All || (self == Self::Some && rank % 2 == 1);
        has_one.then_some(tag)
    }
}

/// A job over addresses that nobody has.
pub fn job(workers: usize, lanes: usize, slots: u32) -> Job {
    job_over(Family::V4, workers, lanes, slots)
}

/// A job over addresses of this version that nobody has.
pub fn job_over(family: Family, workers: usize, lanes: usize, slots: u32) -> Job {
    let address = |net: usize, host: usize| match family {
        Family::V4 => format!("10.8.{net}.{host}"),
        Family::V6 => format!("[fd08:{net}:a0b:c0d:e0f:102:304:{host:x}]"),
    };
    let mut text = format!(
        "job = 9\nview = 2\nsecret = \"a secret for test runs\"\nlanes = {lanes}\nslots = {slots}\n\
         aggregator = \"{}:9700\"\n",
        address(0, 1)
    );
    for rank in 0..workers {
        let (address, port) = (address(1, rank % 250), 9701 + rank);
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"{address}:{port}\"\n");
    }
    Job::parse(&text).expect("valid")
}

impl Harness {
    pub fn new(job: Job) -> Self {
        Self::with_tags(job, Tags::None)
    }

    pub fn with_tags(job: Job, tags: Tags) -> Self {
        let loopback = Interface::find(Some("lo"), Ipv4Addr::LOCALHOST.into()).expect("loopback");
        let interface = Interface { ring: RING, ..loopback };
        let config =
            KernelConfig { interface, mode: Mode::Native, address: job.aggregator, incarnation: INCARNATION };
        let loaded =
            load::load(&config, std::slice::from_ref(&job)).unwrap_or_else(|error| panic!("{error}"));
        Self { job, tags, loaded }
    }

    /// The tag that the frames of a worker with this address have, and that frames to it must have.
    fn tag_of(&self, worker: SocketAddr) -> Option<u16> {
        let is_here = |member: &SocketAddr| member.ip() == worker.ip();
        // More than 250 workers share addresses, and then tags.
        self.tags.of(self.job.workers.iter().position(is_here)?)
    }

    /// Programs for a switch that tags: what goes to the aggregator, and what comes from it.
    pub fn switch(&self) -> &[OwnedFd; 2] {
        &self.loaded.switch
    }

    /// Runs the program on a payload in a correct frame.
    pub fn run(&self, source: SocketAddr, payload: &[u8]) -> Outcome {
        self.run_marked(source, false, payload)
    }

    /// The same for a packet that comes with a mark of congestion, or without.
    pub fn run_marked(&self, source: SocketAddr, marked: bool, payload: &[u8]) -> Outcome {
        let frame = if marked { marked_frame } else { frame }(source, self.job.aggregator, payload);
        self.run_frame(&tagged(frame, self.tag_of(source)))
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
            XDP_REDIRECT => {
                assert!(ran.frame.len() <= frame.len(), "WIRE P2");
                match self.checked_answer(ran.frame) {
                    Answer::Unaddressed(frame) => Outcome::Broadcast(self.copies(&frame)),
                    Answer::To(_, payload) => Outcome::Reply(payload),
                }
            }
            action => panic!("XDP action {action}"),
        }
    }

    /// How long the program takes for a payload in a correct frame, run so many times.
    pub fn nanoseconds(&self, rank: u16, payload: &[u8], runs: u32) -> u32 {
        let frame = frame(self.job.workers[usize::from(rank)], self.job.aggregator, payload);
        run::timed(&self.loaded.ingress, &frame, runs).expect("runs")
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
    fn copies(&self, frame: &[u8]) -> Vec<(SocketAddr, Vec<u8>)> {
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
            match self.checked_answer(ran.frame) {
                Answer::To(worker, payload) => Some((worker, payload)),
                Answer::Unaddressed(frame) => panic!("not addressed: {frame:?}"),
            }
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

    /// The tag that the one answer to a frame has.
    pub fn tag_of_answer(&self, frame: &[u8]) -> Option<u16> {
        let ran = run::dry(&self.loaded.ingress, frame).expect("runs");
        assert_eq!(ran.action, XDP_REDIRECT);
        untagged(ran.frame).1
    }

    /// The UDP checksum of an answer to a worker, in network byte order.
    pub fn udp_checksum(&self, rank: u16, answer: &[u8]) -> [u8; 2] {
        udp_checksum(&answer_frame(self.job.aggregator, self.job.workers[usize::from(rank)], answer))
    }

    /// The worker and the payload of an answer whose Ethernet, IP and UDP headers are right (WIRE P2, P4).
    fn checked_answer(&self, frame: Vec<u8>) -> Answer {
        let (frame, tag) = untagged(frame);
        let worker = destination(&frame);
        if worker == self.job.aggregator {
            assert_eq!(tag, None, "copies get their tag with their address");
            return Answer::Unaddressed(frame);
        }
        let (headers, payload) = frame.split_at(payload_of(&frame));
        let expected = answer_frame(self.job.aggregator, worker, payload);
        assert_eq!(tag, self.tag_of(worker), "the tag of {worker}");
        assert_ne!(udp_checksum(&frame), [0, 0], "a UDP checksum of 0 would say that there is none");
        assert_eq!(headers, &expected[..headers.len()], "headers and their checksums");
        Answer::To(worker, payload.to_vec())
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
        let key = bank as u32 * self.job.slots + slot;
        let value = self.loaded.jobs[0].sums.lookup(&key.to_ne_bytes(), MapFlags::ANY).expect("reads");
        value.expect("in range").as_chunks::<4>().0.iter().map(|lane| u32::from_ne_bytes(*lane)).collect()
    }
}
