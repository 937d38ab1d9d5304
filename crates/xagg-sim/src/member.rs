//! A rank of a cluster.

use std::collections::VecDeque;

use xagg_proto::worker::WorkerError;
use xagg_proto::{Time, Worker};

use crate::link::{Frame, Link};
use crate::scenario::WorkerPlan;

/// A rank: its process, if it runs, and its links.
pub(crate) struct Member {
    pub worker: Option<Worker>,
    pub paused: bool,
    /// What came while it paused.
    pub waiting: VecDeque<Frame>,
    pub wake: Option<Time>,
    pub up: Link,
    pub down: Link,
    /// Which process of this rank: the nonce.
    pub process: u64,
    /// The first process that was let in.
    pub joined: Option<u64>,
    pub issued: usize,
    pub computing: bool,
    /// How every issued operation ended, and when.
    pub ends: Vec<Option<(Time, Result<(), WorkerError>)>>,
}

impl Member {
    /// A rank before its start.
    pub fn new(plan: &WorkerPlan) -> Self {
        Self {
            worker: None,
            paused: false,
            waiting: VecDeque::new(),
            wake: None,
            up: Link::new(&plan.up),
            down: Link::new(&plan.down),
            process: 0,
            joined: None,
            issued: 0,
            computing: false,
            ends: vec![],
        }
    }

    /// Whether another process than this was let in before.
    pub fn takes_part_again(&self) -> bool {
        self.joined.is_some_and(|first| first != self.process)
    }

    /// How many operations it waits for.
    pub fn in_progress(&self) -> usize {
        self.ends.iter().filter(|end| end.is_none()).count()
    }
}
