//! What a simulation is made of, as plain data: it can be printed, read again, and made smaller. Times are in microseconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use xagg_proto::{Job, Time};
use xagg_wire::{Family, Rate, Reduction};

/// One job from its first HELLO to its last result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Values a packet.
    pub lanes: usize,
    /// Slots of the job.
    pub slots: u32,
    /// The job's timeout.
    pub timeout: u64,
    /// What the aggregator says that its receive queue holds, in packets.
    pub ring: usize,
    /// Lengths of the operations; every other one is a mean.
    pub operations: Vec<usize>,
    /// What the gradients look like.
    pub values: Values,
    /// Somebody on the way sends packets of his own: right but for the cookie, or from another life.
    pub intruder: bool,
    /// Where all packets come together.
    pub to_aggregator: Link,
    /// Where all results begin.
    pub from_aggregator: Link,
    /// The ranks.
    pub workers: Vec<WorkerPlan>,
    /// What goes wrong beside the links.
    #[serde(default)]
    pub incidents: Vec<Incident>,
    /// Whether packets with lanes have a checksum: without, no link may corrupt any.
    #[serde(default = "yes")]
    pub checksum: bool,
}

const fn yes() -> bool {
    true
}

/// What the gradients look like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    /// Exponents of a fragment differ by up to this much between ranks; beyond the guard bits that costs a second phase.
    pub spread: u32,
    /// How many fragments are all zero.
    pub zero: f64,
    /// How many fragments have a NaN or an infinity.
    pub nonfinite: f64,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerPlan {
    /// When its process starts.
    pub start: u64,
    /// How long it computes before each operation.
    pub compute: u64,
    /// How many operations it has in progress before it waits for the oldest.
    pub in_flight: usize,
    /// Its weight.
    pub weight: u32,
    /// What the job file says that it may send.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// How many datagrams wait for it while it pauses; what comes then is lost.
    pub receive_queue: usize,
    /// From it to the switch.
    pub up: Link,
    /// From the switch to it.
    pub down: Link,
}

/// One direction of a cable, and the queue before it. Probabilities are from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// In Mbit/s; none: as fast as one likes.
    pub rate: Option<f64>,
    /// Packets that the queue holds; more are dropped.
    pub queue: usize,
    /// Packets in the queue from which on packets are marked (ECN CE).
    pub mark_above: Option<usize>,
    /// Every packet takes so long.
    pub delay: u64,
    /// And up to so much longer, at random, overtaking others.
    pub jitter: u64,
    /// A packet is lost.
    pub loss: f64,
    /// From a packet on all are lost, for up to `burst_lasting`.
    pub burst: f64,
    /// See `burst`.
    pub burst_lasting: u64,
    /// A packet comes twice, the second time up to `stale` later.
    pub duplication: f64,
    /// A packet takes up to `stale` longer than others.
    pub reordering: f64,
    /// See `duplication` and `reordering`.
    pub stale: u64,
    /// Some bits of a 32-bit word of a packet are flipped.
    pub corruption: f64,
    /// Longer UDP payloads are dropped.
    pub mtu: Option<usize>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            rate: None,
            queue: 256,
            mark_above: None,
            delay: 20,
            jitter: 0,
            loss: 0.0,
            burst: 0.0,
            burst_lasting: 1000,
            duplication: 0.0,
            reordering: 0.0,
            stale: 1000,
            corruption: 0.0,
            mtu: None,
        }
    }
}

/// Which way of a worker's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Both.
    #[default]
    Both,
    /// From it to the switch.
    Up,
    /// From the switch to it.
    Down,
}

/// Something that goes wrong at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "what")]
pub enum Incident {
    /// A worker's process stands still, like in a garbage collection.
    Pause {
        /// Who.
        rank: u16,
        /// From when.
        at: u64,
        /// For how long.
        lasting: u64,
    },
    /// Nothing passes to or from a worker.
    Partition {
        /// Who.
        rank: u16,
        /// From when.
        at: u64,
        /// For how long.
        lasting: u64,
        /// Which way.
        #[serde(default)]
        way: Way,
    },
    /// Somebody who knows the addresses tells a worker again and again that the aggregator's port is closed (ICMP has no cookie).
    Claims {
        /// Who is told.
        rank: u16,
        /// From when.
        at: u64,
        /// For how long.
        lasting: u64,
    },
    /// A worker's process ends, and is started again later, if ever.
    CrashWorker {
        /// Who.
        rank: u16,
        /// When.
        at: u64,
        /// After how long a new process takes its rank; none: never.
        restart: Option<u64>,
    },
    /// The aggregator's process ends, and is started again later, if ever.
    CrashAggregator {
        /// When.
        at: u64,
        /// After how long a new one is there; none: never.
        restart: Option<u64>,
        /// While it is gone its machine says that the port is closed (ICMP).
        unreachable: bool,
    },
}

impl Incident {
    /// When it happens.
    #[must_use]
    pub const fn at(&self) -> u64 {
        match *self {
            Self::Pause { at, .. }
            | Self::Partition { at, .. }
            | Self::Claims { at, .. }
            | Self::CrashWorker { at, .. }
            | Self::CrashAggregator { at, .. } => at,
        }
    }

    /// The rank that it happens to; none: the aggregator.
    #[must_use]
    pub const fn rank(&self) -> Option<u16> {
        match *self {
            Self::Pause { rank, .. }
            | Self::Partition { rank, .. }
            | Self::Claims { rank, .. }
            | Self::CrashWorker { rank, .. } => Some(rank),
            Self::CrashAggregator { .. } => None,
        }
    }

    /// Whether a job can go on as if nothing had happened.
    #[must_use]
    pub const fn heals(&self) -> bool {
        matches!(self, Self::Pause { .. } | Self::Partition { .. } | Self::Claims { .. })
    }

    const fn outage(&self) -> u64 {
        match *self {
            Self::Pause { lasting, .. } | Self::Partition { lasting, .. } => lasting,
            _ => 0,
        }
    }
}

impl Scenario {
    /// The job file's content.
    ///
    /// # Panics
    /// If the scenario's numbers are not those of a job.
    #[must_use]
    pub fn job(&self) -> Job {
        let mut text = format!(
            "job = 5\nsecret = \"a secret for simulations\"\nlanes = {}\nslots = {}\nchecksum = {}\n\
             timeout_seconds = {:.6}\naggregator = \"10.9.0.1:9700\"\n",
            self.lanes,
            self.slots,
            self.checksum,
            micros(self.timeout).as_secs_f64()
        );
        for (rank, worker) in self.workers.iter().enumerate() {
            let (high, low) = (rank / 250, rank % 250 + 1);
            text += &format!("[[worker]]\nrank = {rank}\naddress = \"10.9.{}.{low}:9701\"\n", high + 1);
            text += &worker.rate.map_or_else(String::new, |rate| format!("rate = \"{rate}\"\n"));
        }
        Job::parse(&text).unwrap_or_else(|error| panic!("not a job: {error}"))
    }

    /// What an operation does with the sum.
    #[must_use]
    pub const fn reduction(operation: usize) -> Reduction {
        if operation.is_multiple_of(2) { Reduction::Sum } else { Reduction::Mean }
    }

    /// Whether every operation of every rank must succeed: nothing goes wrong that does not heal in time.
    #[must_use]
    pub fn must_succeed(&self) -> bool {
        let packet = self.job().packet_len();
        let fits = |link: &Link| link.mtu.is_none_or(|mtu| mtu >= packet);
        let links = self.workers.iter().flat_map(|worker| [&worker.up, &worker.down]);
        self.incidents.iter().all(Incident::heals) && !self.is_deceived() && links.into_iter().all(fits)
    }

    /// Whether a rank may believe that the aggregator has ended: it is told so while it hears nothing of it.
    fn is_deceived(&self) -> bool {
        let is_cut_off = |rank| {
            let cuts = |other: &Incident| matches!(other, Incident::Partition { .. }) && other.rank() == rank;
            self.incidents.iter().any(cuts)
        };
        let told = self.incidents.iter().filter(|incident| matches!(incident, Incident::Claims { .. }));
        told.map(Incident::rank).any(is_cut_off)
    }

    /// When every operation of every rank must have ended, one way or the other: twice the timeout after all that can hold it up
    /// on purpose. Generous, since it only has to tell a job that ends from one that hangs.
    #[must_use]
    pub fn deadline(&self) -> Time {
        let outages: u64 = self.incidents.iter().map(Incident::outage).sum();
        let last = self.incidents.iter().map(Incident::at).max().unwrap_or(0);
        let starts = self.workers.iter().map(|worker| worker.start).max().unwrap_or(0);
        let compute = self.workers.iter().map(|worker| worker.compute).max().unwrap_or(0);
        let computing = compute * self.operations.len() as u64;
        let fragments: usize = self.operations.iter().map(|length| length.div_ceil(self.lanes)).sum();
        let one_by_one = fragments as u64 * 1_000_000;
        let held_up = micros(outages + last + starts + computing + one_by_one) + self.transfer();
        Time::ZERO + held_up + micros(self.timeout) * 2
    }

    /// How long all gradients and results take on the slowest link, if each packet is sent twenty times.
    fn transfer(&self) -> Duration {
        let fragments: usize = self.operations.iter().map(|length| length.div_ceil(self.lanes)).sum();
        let bits = (fragments * self.workers.len() * (self.job().packet_len() + OVERHEAD) * 8) as f64;
        let hubs = [&self.to_aggregator, &self.from_aggregator];
        let links = self.workers.iter().flat_map(|worker| [&worker.up, &worker.down]).chain(hubs);
        let own = self.workers.iter().filter_map(|worker| worker.rate);
        let own = own.map(|rate| rate.bits_per_second() as f64 / 1e6);
        let slowest = links.filter_map(|link| link.rate).chain(own).fold(f64::INFINITY, f64::min);
        Duration::from_secs_f64(20.0 * bits / (slowest * 1e6))
    }
}

/// What a UDP payload takes on the wire beside itself.
pub const OVERHEAD: usize = Family::V4.wire_overhead();

/// Microseconds as a duration.
#[must_use]
pub const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}
