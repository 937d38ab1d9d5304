//! A job at work on a testbed, whose links are made worse phase by phase, and what all its members count.

use std::collections::BTreeMap;
use std::fmt;

use xagg_aggregator::{Datapath, RunningAggregator};
use xagg_testbed::exact::{exact_sum, integers};
use xagg_testbed::{Direction, Done, Faults, Testbed, skip_unless_root};
use xagg_wire::Family;
use xagg_worker::handle::Handle;
use xagg_worker::{Client, Reduction};

use crate::common;

const WORKERS: u16 = 4;
/// Values of an operation: 285 fragments.
const LENGTH: usize = 100_000;

/// What happens to packets for so many operations.
pub struct Phase {
    pub from_workers: Faults,
    pub to_workers: Faults,
    pub operations: usize,
}

/// Four ranks that have joined.
pub struct Session {
    pub bed: Testbed,
    pub aggregator: RunningAggregator,
    pub clients: Vec<Client>,
    /// The bits of the sum of the reals, once it is known.
    reals: Vec<u32>,
}

/// Runs the phases on every datapath, each in one job, and hands what has happened in each to `check`.
pub fn on_every_datapath(name: &str, phases: &[Phase], check: impl Fn(&Phase, &Totals)) {
    if skip_unless_root(name) {
        return;
    }
    for datapath in Datapath::LADDER {
        let session = Session::start(datapath);
        for phase in phases {
            session.set_faults(phase);
            let before = session.totals();
            session.sum(phase.operations);
            let seen = session.totals().since(&before);
            println!("{datapath}, {:?}, {:?}: {seen}", phase.from_workers, phase.to_workers);
            check(phase, &seen);
        }
    }
}

impl Session {
    /// A job whose links are faultless so far, on this datapath.
    pub fn start(datapath: Datapath) -> Self {
        let bed = Testbed::builder().workers(WORKERS.into()).offloads(false).build().expect("builds");
        let job = common::job(Family::V4, WORKERS.into(), 352, 3000, 20.0);
        let aggregator = common::aggregator(&bed, &job, datapath);
        let clients = common::join_all(&bed, &job);
        let mut session = Self { bed, aggregator, clients, reals: vec![] };
        session.reals = session.sum_of_reals();
        session
    }

    fn set_faults(&self, phase: &Phase) {
        for worker in self.bed.workers() {
            let ways = [(Direction::FromNode, &phase.from_workers), (Direction::ToNode, &phase.to_workers)];
            for (direction, faults) in ways {
                self.bed.set_faults(worker, direction, faults).expect("sets");
            }
        }
    }

    /// So many operations at once, each of which must be exact at every rank, and one more whose bits must be those of all others.
    pub fn sum(&self, operations: usize) {
        let values: Vec<_> = (0..WORKERS).map(|rank| integers(rank, LENGTH)).collect();
        let begin = |_| {
            let ranks = self.clients.iter().zip(&values);
            ranks
                .map(|(client, values)| client.all_reduce(values.clone(), Reduction::Sum))
                .collect::<Vec<_>>()
        };
        let handles = (0..operations).flat_map(begin).collect();
        let exact = exact_sum(WORKERS, LENGTH);
        let all_exact = self.finish(handles).iter().all(|sum| *sum == exact);
        assert!(all_exact, "a sum is not exact: {}", self.totals());
        assert!(self.sum_of_reals() == self.reals, "other bits than without faults: {}", self.totals());
    }

    /// The bits of the sum of values that need some fragments to be sent twice.
    fn sum_of_reals(&self) -> Vec<u32> {
        let begin =
            |(rank, client): (u16, &Client)| client.all_reduce(common::reals(rank, LENGTH), Reduction::Sum);
        let sums = self.finish((0..).zip(&self.clients).map(begin).collect());
        let bits: Vec<Vec<u32>> =
            sums.into_iter().map(|sum| sum.into_iter().map(f32::to_bits).collect()).collect();
        assert!(bits.iter().all(|rank| *rank == bits[0]), "ranks differ: {}", self.totals());
        bits.into_iter().next().expect("there are ranks")
    }

    /// The results of operations, none of which may fail.
    fn finish(&self, handles: Vec<Handle>) -> Vec<Vec<f32>> {
        let (mut sums, mut errors) = (vec![], vec![]);
        for outcome in handles.into_iter().map(Handle::wait) {
            match outcome {
                Ok(sum) => sums.push(sum),
                Err(error) => errors.push(error.to_string()),
            }
        }
        errors.sort();
        errors.dedup();
        assert!(errors.is_empty(), "{errors:#?}\n{}", self.totals());
        sums
    }

    /// What has been done to packets so far, and what workers and aggregator have counted.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (worker, client) in self.bed.workers().iter().zip(&self.clients) {
            totals.add_done("from", self.bed.faults_done(worker, Direction::FromNode).expect("reads"));
            totals.add_done("to", self.bed.faults_done(worker, Direction::ToNode).expect("reads"));
            totals.add("worker.udp_checksum", worker.udp_errors().expect("reads").checksum);
            let stats = serde_json::to_value(client.stats()).expect("numbers");
            for (name, value) in stats.as_object().expect("named") {
                totals.add(&format!("worker.{name}"), value.as_u64().expect("a number"));
            }
        }
        let status = self.aggregator.status();
        for (name, value) in &status.jobs[0].counters {
            totals.add(&format!("aggregator.{name}"), *value);
        }
        let dropped = status.drops.values().chain(status.jobs[0].drops.values()).sum();
        totals.add("aggregator.dropped", dropped);
        let errors = self.bed.aggregator(0).udp_errors().expect("reads");
        totals.add("aggregator.udp_checksum", errors.checksum);
        totals.add("aggregator.udp_buffer", errors.buffer);
        totals
    }
}

/// Counters of all ranks together, by name.
#[derive(Default)]
pub struct Totals(BTreeMap<String, u64>);

impl Totals {
    /// The counter with this name.
    pub fn of(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("{name} is not counted: {self}"))
    }

    /// What has happened since then.
    pub fn since(&self, before: &Self) -> Self {
        // A window may have shrunk.
        let past = |name| before.0.get(name).copied().unwrap_or(0);
        Self(self.0.iter().map(|(name, value)| (name.clone(), value.saturating_sub(past(name)))).collect())
    }

    fn add(&mut self, name: &str, value: u64) {
        *self.0.entry(name.to_owned()).or_default() += value;
    }

    fn add_done(&mut self, way: &str, done: Done) {
        for (name, value) in [
            ("lost", done.dropped + done.dropped_in_bursts),
            ("duplicated", done.duplicated),
            ("flipped", done.flipped),
            ("reordered", done.reordered),
            ("marked", done.marked),
        ] {
            self.add(&format!("{way}.{name}"), value);
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.0.iter().filter(|(_, value)| **value > 0);
        let counted: Vec<String> = counted.map(|(name, value)| format!("{name} {value}")).collect();
        formatter.write_str(&counted.join(", "))
    }
}
