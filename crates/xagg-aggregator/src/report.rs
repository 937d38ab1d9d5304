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

impl JobReport {
    /// How far the furthest rank has come, in sequences.
    pub fn furthest(&self) -> u64 {
        self.workers.iter().map(|worker| worker.sequences).max().unwrap_or(0)
    }

    /// The ranks that the job waits for: those missing from the oldest fragment that some rank has contributed to and some has not.
    ///
    /// Ranks contribute in the order of sequences, so these are the ranks that have come least far, unless all have come equally
    /// far. What is sent again (lost, or of the second phase) does not show here. The datapaths read one rank after the
    /// other, so that in a job that moves, ranks differ by what moved in between.
    pub fn waiting_for(&self) -> Vec<u16> {
        let furthest = self.furthest();
        let least = self.workers.iter().map(|worker| worker.sequences).min().unwrap_or(furthest);
        let ranks = (0..).zip(&self.workers);
        ranks
            .filter(|(_, worker)| worker.sequences == least && least < furthest)
            .map(|(rank, _)| rank)
            .collect()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting_for(sequences: &[u64]) -> Vec<u16> {
        let worker = |sequences: &u64| WorkerReport { sequences: *sequences, ..Default::default() };
        JobReport { counters: [0; COUNTERS], workers: sequences.iter().map(worker).collect() }.waiting_for()
    }

    #[test]
    fn the_job_waits_for_the_ranks_missing_from_the_oldest_fragment_that_others_have_contributed_to() {
        assert_eq!(waiting_for(&[9, 9, 9, 4]), [3]);
        assert_eq!(waiting_for(&[4, 9, 4, 5]), [0, 2], "rank 3 has contributed to fragment 4");
        assert_eq!(waiting_for(&[0, 0, 1]), [0, 1]);
    }

    #[test]
    fn a_job_in_step_waits_for_nobody() {
        for sequences in [&[0, 0][..], &[7, 7, 7], &[7]] {
            assert!(waiting_for(sequences).is_empty());
        }
    }
}
