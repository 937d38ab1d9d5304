//! What a datapath reports, in numbers only; [`crate::status`] gives them their names.

use std::time::Duration;

use xagg_wire::counter::COUNTERS;

/// The counters of everything.
pub struct Report {
    /// Of what belongs to no job.
    pub unassigned: [u64; COUNTERS],
    /// In the order in which the jobs were given.
    pub jobs: Vec<JobReport>,
}

/// The counters of a job.
pub struct JobReport {
    /// By counter index and reason number.
    pub counters: [u64; COUNTERS],
    /// By rank.
    pub workers: Vec<WorkerReport>,
}

/// How far a worker has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerReport {
    /// Whether its HELLO was accepted.
    pub joined: bool,
    /// Its packets that were admitted.
    pub packets: u64,
    /// One more than the largest sequence that it has contributed to.
    pub sequences: u64,
    /// How long ago something of it was last admitted.
    pub last_heard: Option<Duration>,
}
