//! How a run went.

use std::time::Duration;

use xagg_proto::Time;
use xagg_proto::worker::{Stats, WorkerError};

use crate::link::Carried;
use crate::member::Member;

/// How a run went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// When the last operation ended.
    pub finished: Duration,
    /// By rank; that of a rank whose process has ended is empty.
    pub ranks: Vec<RankOutcome>,
    /// The link that all packets go over.
    pub to_aggregator: Carried,
    /// The link that all results go over.
    pub from_aggregator: Carried,
    /// Packets that were delivered to members.
    pub packets: u64,
}

/// How a run went for a rank.
#[derive(Clone, Debug, Default)]
pub struct RankOutcome {
    /// When its last operation ended.
    pub finished: Duration,
    /// How its operations ended.
    pub ends: Vec<Result<(), WorkerError>>,
    /// What its last process counted.
    pub stats: Stats,
    /// Its link to the switch.
    pub up: Carried,
    /// Its link from the switch.
    pub down: Carried,
}

impl RankOutcome {
    pub(crate) fn of(member: Member) -> Self {
        let ends = member.ends.into_iter().flatten();
        let (times, ends): (Vec<Time>, Vec<_>) = ends.unzip();
        Self {
            finished: times.into_iter().max().unwrap_or_default().since(Time::ZERO),
            ends,
            stats: member.worker.map_or_else(Stats::default, |worker| worker.stats()),
            up: member.up.carried,
            down: member.down.carried,
        }
    }
}
