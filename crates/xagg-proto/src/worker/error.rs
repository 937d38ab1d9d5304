//! What a worker reports when a job cannot go on: rank, operation, phase, what is missing from whom, what was last heard.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use xagg_wire::{Kind, Reason};

/// Where an operation stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Some of this worker's fragments have no receipt yet.
    Pushing,
    /// The aggregator has all of this worker's fragments; results are missing.
    Waiting,
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pushing => "pushing its gradient",
            Self::Waiting => "waiting for results",
        })
    }
}

/// What was last heard from the aggregator, and how long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard(pub Option<(Kind, Duration)>);

impl fmt::Display for Heard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => formatter.write_str("nothing was ever heard from the aggregator"),
            Some((kind, ago)) => {
                write!(formatter, "the aggregator was last heard {:.1} s ago ({kind:?})", ago.as_secs_f64())
            }
        }
    }
}

/// The ranks whose contribution is missing, if the aggregator has told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub Option<Vec<u16>>);

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ranks) = &self.0 else {
            return formatter.write_str("the aggregator did not say whose contribution is missing");
        };
        let ranks: Vec<String> = ranks.iter().map(u16::to_string).collect();
        match ranks.as_slice() {
            [] => formatter.write_str("no contribution is missing"),
            [rank] => write!(formatter, "the contribution of rank {rank} is missing"),
            _ => write!(formatter, "the contributions of ranks {} are missing", ranks.join(", ")),
        }
    }
}

/// Why a worker's job has failed. All its operations fail with it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WorkerError {
    /// The rank is not in the job.
    #[error("rank {rank} is not in the job: its ranks are 0 to {last}", last = workers - 1)]
    UnknownRank {
        /// The rank asked for.
        rank: u16,
        /// The job's workers.
        workers: u16,
    },
    /// An operation on nothing.
    #[error("cannot all-reduce a tensor of length 0: leave it out on every rank")]
    Empty,
    /// A weight out of range.
    #[error("weight {0} is out of range: 1 to 65535")]
    Weight(u32),
    /// The aggregator never answered.
    #[error(
        "rank {rank}: no answer from the aggregator at {aggregator} to {hellos} HELLOs in {waited:.1?}, phase: joining. Is `xagg aggregator` running there with the same job file (secret, lanes = {lanes}), and does the path carry packets of {mtu} bytes?"
    )]
    NoAnswer {
        /// This worker.
        rank: u16,
        /// Where the aggregator should be.
        aggregator: SocketAddr,
        /// How often it was asked.
        hellos: u64,
        /// For how long.
        waited: Duration,
        /// The job's lanes.
        lanes: usize,
        /// The IP length of the job's packets, in bytes.
        mtu: usize,
    },
    /// No progress for the job's timeout.
    #[error(
        "rank {rank}, {operation}, phase: {phase}: no progress for {waited:.1?} ({progress}); {missing}; {heard}"
    )]
    Stalled {
        /// This worker.
        rank: u16,
        /// The oldest operation that is not complete.
        operation: String,
        /// Where it stands.
        phase: Phase,
        /// The job's timeout.
        waited: Duration,
        /// How many results of how many are there.
        progress: String,
        /// Who has not contributed.
        missing: Missing,
        /// What was last heard.
        heard: Heard,
    },
    /// Workers issued different operations.
    #[error(
        "rank {rank}, {operation}, phase: {phase}: workers issued different operations at this point: rank {first_rank} one with signature {first_signature:08x}, rank {other_rank} one with signature {other_signature:08x} (this rank's own is {own_signature:08x}). Every rank must issue the same operations, of the same lengths, in the same order; {heard}"
    )]
    Mismatch {
        /// This worker.
        rank: u16,
        /// This worker's operation.
        operation: String,
        /// Where it stands.
        phase: Phase,
        /// The rank that came first.
        first_rank: u16,
        /// Its operation's signature.
        first_signature: u32,
        /// The rank that disagreed.
        other_rank: u16,
        /// Its operation's signature.
        other_signature: u32,
        /// The signature of this worker's operation.
        own_signature: u32,
        /// What was last heard.
        heard: Heard,
    },
    /// The aggregator has ended or begun anew.
    #[error(
        "rank {rank}, {operation}, phase: {phase}: the aggregator at {aggregator} {what}: the sums that it held are gone, so start the job again; {heard}"
    )]
    AggregatorLost {
        /// This worker.
        rank: u16,
        /// The oldest operation that is not complete.
        operation: String,
        /// Where it stands.
        phase: Phase,
        /// The aggregator.
        aggregator: SocketAddr,
        /// What happened to it.
        what: &'static str,
        /// What was last heard.
        heard: Heard,
    },
    /// The aggregator refuses this worker.
    #[error("rank {rank}: the aggregator at {aggregator} refuses: {why}")]
    Refused {
        /// This worker.
        rank: u16,
        /// The aggregator.
        aggregator: SocketAddr,
        /// The reason on the wire.
        reason: Reason,
        /// The same in words, with what to do.
        why: &'static str,
    },
    /// The network refuses to send.
    #[error("rank {rank}: {0}", .reason)]
    Network {
        /// This worker.
        rank: u16,
        /// What is wrong and what to do.
        reason: String,
    },
}

/// What a worker is told by a REJECT that no other error covers, with what to do.
pub const fn refusal(reason: Reason) -> &'static str {
    match reason {
        Reason::Nonce => {
            "this rank has joined the job already, and a restarted worker cannot take its place (its contributions would count twice): raise `view` in the job file and start aggregator and workers again"
        }
        Reason::Shape => {
            "its job file has another number of slots or workers, or another `checksum`: give every member of the job the same file"
        }
        Reason::Window => {
            "a fragment came outside of the window of its slot, which a correct worker never sends: please report this"
        }
        _ => "for a reason that a worker of this version does not know: use the same version everywhere",
    }
}
