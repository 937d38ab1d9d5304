//! A job whose aggregator is behind a slow link, and what passes it.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use xagg_aggregator::{Datapath, RunningAggregator};
use xagg_testbed::exact::{exact_sum, integers};
use xagg_testbed::{Direction, Faults, Node, Rate, Testbed};
use xagg_wire::Family;
use xagg_worker::{Client, Reduction};

use super::tcp::Tcp;
use crate::common;

const LANES: usize = 352;
/// With its Ethernet header, as queueing disciplines count.
const FRAME: u64 = 1514;
/// The queue before the bottleneck, in frames: 23 ms at 100 Mbit/s.
const ROOM: u64 = 192;
/// From where on it marks. The first forty are none: what the link's bucket passes at once.
const MARKS_ABOVE: u64 = 81;
/// Round trips after which everybody has found his pace.
const START: u32 = 10;
/// The longest that a measurement may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// What the queue before the bottleneck does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// It marks what can be marked (ECN) long before it is full.
    Marks,
    /// It drops what finds it full, no more.
    Overflows,
}

/// Ranks that have joined, and the bottleneck between them and their aggregator.
pub struct Bottleneck {
    bed: Testbed,
    clients: Vec<Client>,
    rate: Rate,
    workers: usize,
    _aggregator: RunningAggregator,
}

/// What passed it in an interval in which all were sending.
pub struct Measured {
    /// The share of its rate that was used, by all.
    pub utilisation: f64,
    /// By TCP, if there was any: what the receiver got, with its headers.
    pub share_of_tcp: f64,
    /// Jain's index of the fragments that the workers got through.
    pub fairness: f64,
    /// Drops in the first round trips.
    pub early_drops: u64,
    /// Drops from then until the end.
    pub late_drops: u64,
    /// The smoothed round trip of the slowest at the end of the interval.
    pub round_trip: Duration,
    /// The share of packets that were marked.
    pub marked: f64,
}

/// How things stand at a moment.
struct Sample {
    at: Instant,
    bytes: u64,
    tcp_bytes: u64,
    fragments: Vec<u64>,
    marked: u64,
    drops: u64,
}

impl Bottleneck {
    /// So many workers, and `extra` nodes beside them.
    pub fn start(workers: usize, extra: usize, datapath: Datapath, mbit: u64, queue: Queue) -> Self {
        let bed = Testbed::builder().workers(workers + extra).offloads(false).build().expect("builds");
        let (rate, aggregator) = (Rate::mbit(mbit), bed.aggregator(0));
        bed.limit(aggregator, Direction::ToNode, rate, ROOM * FRAME).expect("limits");
        if queue == Queue::Marks {
            let queue = Some(xagg_testbed::Queue { rate, threshold: MARKS_ABOVE * FRAME });
            let faults = Faults { queue, ..Faults::default() };
            bed.set_faults(aggregator, Direction::ToNode, &faults).expect("sets");
        }
        let slots = u32::try_from(fragments_in(rate, PATIENCE)).expect("fits");
        let job = common::job(Family::V4, workers, LANES, slots, 20.0);
        let _aggregator = common::aggregator(&bed, &job, datapath);
        let clients = common::join_all(&bed, &job);
        Self { bed, clients, rate, workers, _aggregator }
    }

    /// The aggregator's node.
    pub fn aggregator(&self) -> &Node {
        self.bed.aggregator(0)
    }

    /// A node that is no worker.
    pub fn extra(&self, index: usize) -> &Node {
        self.bed.worker(self.workers + index)
    }

    /// One operation, and what passes during an interval in which everybody has something to send, beside a TCP flow or not.
    pub fn measure(&self, interval: Duration, tcp: Option<&Tcp>) -> Measured {
        // The start takes a second at most, and the fastest may have more than its share.
        let sending = 2 * interval + Duration::from_secs(1);
        let length = fragments_in(self.rate, sending) / self.workers * LANES;
        let sums: Vec<_> = (0..)
            .zip(&self.clients)
            .map(|(rank, client)| client.all_reduce(integers(rank, length), Reduction::Sum))
            .collect();
        let zero = self.sample(tcp);
        self.wait_for_the_start();
        let begin = self.sample(tcp);
        thread::sleep(interval);
        let end = self.sample(tcp);
        let left = (length / LANES) as u64;
        assert!(
            end.fragments.iter().all(|sent| *sent < left),
            "somebody is done already: {:?}",
            end.fragments
        );
        let round_trip = self.round_trip();
        if let Some(tcp) = tcp {
            tcp.stop();
        }
        let exact = exact_sum(self.workers as u16, length);
        for sum in sums {
            assert!(sum.wait().expect("completes") == exact, "a sum is not exact");
        }
        let drops = self.sample(tcp).drops;
        Measured {
            utilisation: self.share(&begin, &end, end.bytes - begin.bytes),
            share_of_tcp: self.share(&begin, &end, end.tcp_bytes - begin.tcp_bytes),
            fairness: fairness(&begin, &end),
            early_drops: begin.drops - zero.drops,
            late_drops: drops - begin.drops,
            round_trip,
            marked: (end.marked - begin.marked) as f64 / end.sent_since(&begin) as f64,
        }
    }

    /// Waits for ten round trips.
    fn wait_for_the_start(&self) {
        let begin = Instant::now();
        loop {
            thread::sleep(LOOK);
            let (elapsed, round_trip) = (begin.elapsed(), self.round_trip());
            let sends = self.clients.iter().all(|client| client.stats().packets_sent > 100);
            if sends && elapsed >= START * round_trip {
                return;
            }
            assert!(elapsed < PATIENCE, "ten round trips of {round_trip:?} are not over");
        }
    }

    fn round_trip(&self) -> Duration {
        let micros = self.clients.iter().map(|client| client.stats().round_trip_micros).max();
        Duration::from_micros(micros.expect("there are workers"))
    }

    fn sample(&self, tcp: Option<&Tcp>) -> Sample {
        let stats: Vec<_> = self.clients.iter().map(Client::stats).collect();
        Sample {
            at: Instant::now(),
            bytes: received(self.aggregator()),
            tcp_bytes: tcp.map_or(0, Tcp::received),
            fragments: stats.iter().map(|stats| stats.packets_sent - stats.retransmissions).collect(),
            marked: stats.iter().map(|stats| stats.marked_sent).sum(),
            drops: self.bed.queue_drops().expect("reads"),
        }
    }

    fn share(&self, begin: &Sample, end: &Sample, bytes: u64) -> f64 {
        let possible = self.rate.bits_per_second() as f64 * (end.at - begin.at).as_secs_f64();
        8.0 * bytes as f64 / possible
    }
}

impl Sample {
    fn sent_since(&self, before: &Self) -> u64 {
        self.fragments.iter().sum::<u64>() - before.fragments.iter().sum::<u64>()
    }
}

/// Bytes of frames that a node has received. Its interface counts them without their Ethernet headers.
fn received(node: &Node) -> u64 {
    let counters = node.counters().expect("reads");
    counters.received_bytes + 14 * counters.received
}

/// How many fragments pass in a time.
fn fragments_in(rate: Rate, time: Duration) -> usize {
    (rate.bytes_in(time) / FRAME) as usize
}

/// Jain's index: 1 if all got the same, one by their number if one got all.
fn fairness(begin: &Sample, end: &Sample) -> f64 {
    let got = end.fragments.iter().zip(&begin.fragments).map(|(end, begin)| (end - begin) as f64);
    let (sum, squares) = got.fold((0.0, 0.0), |(sum, squares), got| (sum + got, squares + got * got));
    sum * sum / (end.fragments.len() as f64 * squares)
}

impl fmt::Display for Measured {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { utilisation, share_of_tcp, fairness, early_drops, late_drops, round_trip, marked } = self;
        write!(
            formatter,
            "utilisation {utilisation:.3} (TCP {share_of_tcp:.3}), fairness {fairness:.3}, {early_drops} drops in the first ten round trips, \
             {late_drops} after, round trip {:.1} ms, {:.1} % marked",
            round_trip.as_secs_f64() * 1e3,
            marked * 100.0
        )
    }
}
