//! The aggregator: the twin of the kernel program, and its executable specification (WIRE sections 3 and 4).
//!
//! A packet goes through the same stages as in the kernel program, and like there it is turned into its answer in place:
//! `admit` lets only registered workers in, `slot` finds out what to do with it and adds it, `emit` makes it an answer.
//!
//! - what came in: [`Aggregator::handle`];
//! - what goes to everybody: [`Aggregator::next_copy`];
//! - getters: [`Aggregator::counters`], [`Aggregator::progress`], [`Aggregator::bank`].

use std::collections::HashMap;
use std::net::SocketAddr;

use thiserror::Error;
use xagg_wire::counter::COUNTERS;
use xagg_wire::{Cookie, Counter, Kind, Packet, Reason, Receipts};

use crate::{Job, Time};

mod admit;
mod emit;
mod limit;
mod slot;

pub use slot::{Bank, Status};

use limit::RejectLimit;
use slot::Slots;

/// What is to be done with a packet after [`Aggregator::handle`] has turned it into its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing more: it was taken in, or refused without an answer for the reason.
    Drop(Option<Reason>),
    /// The first `len` bytes go back to where the packet came from.
    Reply {
        /// In bytes.
        len: usize,
    },
    /// Copies of the first `len` bytes go to every worker: [`Aggregator::next_copy`] addresses them.
    Broadcast {
        /// In bytes.
        len: usize,
    },
}

/// Why a job is not admitted.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AdmitError {
    /// The same job and view again.
    #[error("job {job}, view {view} is on this aggregator already: give each job file a `job` of its own")]
    Duplicate {
        /// The job.
        job: u32,
        /// Its view.
        view: u16,
    },
    /// Another packet length than the jobs before.
    #[error(
        "job {job} has lanes = {lanes}, the jobs before it have {others}: all jobs of an aggregator must have the same"
    )]
    Lanes {
        /// The job.
        job: u32,
        /// Its lanes.
        lanes: usize,
        /// Those of the jobs before.
        others: usize,
    },
    /// The system refuses the memory.
    #[error(
        "the system has no {needed} bytes of memory for job {job}: lower gradient_elements or slots, raise the limit of this process (`ulimit -v`) if there is one, or use a server with more memory"
    )]
    OutOfMemory {
        /// The job.
        job: u32,
        /// The bytes that it needs.
        needed: u64,
    },
    /// The table of jobs is full.
    #[error("an aggregator has room for {MAX_JOBS} jobs: start another one, on another port or server")]
    Full,
}

/// The most jobs of an aggregator.
pub const MAX_JOBS: usize = 63;

/// One worker of an admitted job, as the aggregator knows it.
struct Member {
    address: SocketAddr,
    cookie: Cookie,
    /// 0 until HELLO.
    nonce: u64,
    receipts: Receipts,
    /// How many RESULTs were made for it.
    results: u32,
    rejects: RejectLimit,
    progress: Progress,
}

/// How far a worker has come, for status reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether its HELLO was accepted.
    pub joined: bool,
    /// Its packets that were admitted.
    pub packets: u64,
    /// One more than the largest sequence that it has contributed to.
    pub sequences: u64,
    /// When something of it was last admitted.
    pub last_heard: Option<Time>,
}

struct AdmittedJob {
    id: u32,
    view: u16,
    members: Vec<Member>,
    /// Whether packets with lanes have one.
    checksum: bool,
    slots: Slots,
    counters: [u64; COUNTERS],
}

impl AdmittedJob {
    fn count(&mut self, counter: Counter) {
        self.counters[counter.index()] += 1;
    }
}

/// All jobs of an aggregator. See the [module](self).
pub struct Aggregator {
    incarnation: u32,
    /// How many packets wait at most where packets come in.
    ring: usize,
    lanes: Option<usize>,
    jobs: HashMap<(u32, u16), AdmittedJob>,
    /// Counts what belongs to no job.
    unassigned: [u64; COUNTERS],
}

/// The bytes of memory that a job takes: two banks of lanes for every slot, and their state.
#[must_use]
pub fn memory_needed(job: &Job) -> u64 {
    let bank = 4 * job.lanes + size_of::<Bank>();
    2 * bank as u64 * u64::from(job.slots)
}

/// The most packets that each of `workers` workers may have without a receipt, so that all of them together fit a receive
/// queue of `ring` packets (WIRE H8).
#[must_use]
pub fn grant(ring: usize, workers: usize) -> u32 {
    const LEAST: usize = 2;
    u32::try_from(ring / workers.max(1)).unwrap_or(u32::MAX).max(LEAST as u32)
}

impl Aggregator {
    /// An aggregator without jobs; `incarnation` is random, not 0, and new at each start (WIRE H1). Its receive queue has room
    /// for `ring` packets.
    #[must_use]
    pub fn new(incarnation: u32, ring: usize) -> Self {
        let incarnation = incarnation.max(1);
        Self { incarnation, ring, lanes: None, jobs: HashMap::new(), unassigned: [0; COUNTERS] }
    }

    /// Reserves the memory of a job and lets its workers in. The caller has checked that [`memory_needed`] is there.
    ///
    /// # Errors
    /// [`AdmitError`], each with what to do.
    pub fn admit_job(&mut self, job: &Job) -> Result<(), AdmitError> {
        if self.jobs.contains_key(&(job.id, job.view)) {
            return Err(AdmitError::Duplicate { job: job.id, view: job.view });
        }
        let others = *self.lanes.get_or_insert(job.lanes);
        if others != job.lanes {
            return Err(AdmitError::Lanes { job: job.id, lanes: job.lanes, others });
        }
        if self.jobs.len() == MAX_JOBS {
            return Err(AdmitError::Full);
        }
        let member = |(rank, address): (u16, &SocketAddr)| Member {
            address: *address,
            cookie: job.cookie(rank),
            nonce: 0,
            receipts: Receipts::default(),
            results: 0,
            rejects: RejectLimit::default(),
            progress: Progress::default(),
        };
        let admitted = AdmittedJob {
            id: job.id,
            view: job.view,
            members: (0..).zip(&job.workers).map(member).collect(),
            checksum: job.checksum,
            slots: Slots::new(job)
                .ok_or(AdmitError::OutOfMemory { job: job.id, needed: memory_needed(job) })?,
            counters: [0; COUNTERS],
        };
        self.jobs.insert((job.id, job.view), admitted);
        Ok(())
    }

    /// Takes in one datagram's payload and turns it into the answer; `marked` says whether it came with a mark of congestion
    /// (ECN CE). Short answers are at the front of `packet`; a datagram that is longer than the answer keeps its length.
    pub fn handle(&mut self, now: Time, source: SocketAddr, marked: bool, packet: &mut [u8]) -> Action {
        let grant = self.grant();
        let (job, rank) = match self.admit(source, packet) {
            Ok(admitted) => admitted,
            Err((job, reason)) => {
                let counters = job.and_then(|key| self.jobs.get_mut(&key)).map(|job| &mut job.counters);
                counters.unwrap_or(&mut self.unassigned)[usize::from(reason)] += 1;
                return Action::Drop(Some(reason));
            }
        };
        let Some(job) = self.jobs.get_mut(&job) else { return Action::Drop(None) };
        job.count(Counter::Packets);
        let member = &mut job.members[usize::from(rank)];
        member.receipts.marks = member.receipts.marks.wrapping_add(u16::from(marked));
        member.progress.packets += 1;
        member.progress.last_heard = Some(now);
        let mut packet = Packet::new_unchecked(packet);
        match packet.kind() {
            Some(Kind::Hello) => job.hello(self.incarnation, grant, rank, &mut packet),
            Some(Kind::Gradient) => job.gradient(self.incarnation, rank, &mut packet),
            _ => job.pull(self.incarnation, rank, &mut packet),
        }
    }

    fn grant(&self) -> u32 {
        grant(self.ring, self.jobs.values().map(|job| job.members.len()).sum())
    }

    /// Addresses the next copy of a broadcast: fills in receiver, packet number and receipts, and returns where it goes;
    /// `None` once every worker that has joined has had one.
    pub fn next_copy(&mut self, packet: &mut [u8]) -> Option<SocketAddr> {
        let mut packet = Packet::new_unchecked(packet);
        let job = self.jobs.get_mut(&(packet.job(), packet.view()))?;
        job.next_copy(&mut packet)
    }

    /// The counters of a job, by [`Counter::index`] and by the number of the [`Reason`].
    #[must_use]
    pub fn counters(&self, job: u32, view: u16) -> Option<&[u64; COUNTERS]> {
        self.jobs.get(&(job, view)).map(|job| &job.counters)
    }

    /// The counters of what belongs to no job.
    #[must_use]
    pub const fn unassigned(&self) -> &[u64; COUNTERS] {
        &self.unassigned
    }

    /// How far the workers of a job have come, by rank.
    pub fn progress(&self, job: u32, view: u16) -> impl Iterator<Item = Progress> {
        let members = self.jobs.get(&(job, view)).map_or(&[][..], |job| &job.members);
        members.iter().map(|member| Progress { joined: member.nonce != 0, ..member.progress })
    }

    /// A bank of a job's slot, and its lanes.
    #[must_use]
    pub fn bank(&self, job: u32, view: u16, slot: u32, bank: usize) -> Option<(&Bank, &[u32])> {
        let slots = &self.jobs.get(&(job, view))?.slots;
        (slot < slots.count() && bank < 2).then(|| slots.bank(slot, bank))
    }
}
