//! What the end of an aggregator, its new beginning and a partition are to the workers, on every datapath.

mod common;

use std::time::{Duration, Instant};

use xagg_aggregator::Datapath;
use xagg_testbed::exact::{exact_sum, integers};
use xagg_testbed::{Node, Process, Testbed, skip_unless_root};
use xagg_wire::Family;
use xagg_worker::handle::Outcome;
use xagg_worker::{Client, Reduction};

/// The job's timeout: no error here may have waited for it.
const TIMEOUT_SECONDS: f64 = 40.0;
/// What "at once" may take: a few PULLs to a silent aggregator, on a machine that does other things.
const AT_ONCE: Duration = Duration::from_secs(6);

/// Values of an operation.
const LENGTH: usize = 100_000;

/// The error of a rank whose partner never comes, and whose aggregator is treated like this.
fn error_after(datapath: Datapath, restart: bool) -> (String, Duration) {
    let bed = Testbed::builder().workers(2).build().expect("builds");
    let job = common::job(Family::V4, 2, 352, 100, TIMEOUT_SECONDS);
    let aggregator = common::aggregator(&bed, &job, datapath);
    let client = bed.worker(0).enter(|| Client::connect(&job, 0)).expect("joins");
    let handle = client.all_reduce(vec![1.0; 10_000], Reduction::Sum);
    let receipted = || aggregator.status().jobs[0].counters["added"] >= 29;
    let begin = Instant::now();
    while !receipted() {
        assert!(begin.elapsed() < AT_ONCE, "{datapath}: the fragments do not arrive");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(aggregator);
    let _again = restart.then(|| common::aggregator(&bed, &job, datapath));
    let begin = Instant::now();
    let error = handle.wait().expect_err("the sums are gone").to_string();
    (error, begin.elapsed())
}

fn is_noticed_at_once(name: &str, restart: bool, what: &str) {
    if skip_unless_root(name) {
        return;
    }
    for datapath in Datapath::LADDER {
        let (error, waited) = error_after(datapath, restart);
        for word in ["rank 0", "operation 0", "phase: waiting for results", "last heard", what] {
            assert!(error.contains(word), "{datapath}: {word} is missing: {error}");
        }
        assert!(waited < AT_ONCE, "{datapath}: after {waited:?}");
    }
}

#[test]
fn a_restarted_aggregator_is_noticed_at_once_on_every_datapath() {
    let name = "a_restarted_aggregator_is_noticed_at_once_on_every_datapath";
    is_noticed_at_once(name, true, "has been started again");
}

#[test]
fn an_aggregator_that_has_ended_is_noticed_at_once_on_every_datapath() {
    let name = "an_aggregator_that_has_ended_is_noticed_at_once_on_every_datapath";
    is_noticed_at_once(name, false, "has ended or cannot be reached any more");
}

/// What a partition cuts.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Rank 1's link, at the switch: it notices nothing but silence.
    Link,
    /// Rank 1's own interface: its system has no way to the aggregator any more, and says so.
    Interface,
    /// The aggregator's link, at the switch.
    Aggregator,
    /// The same, and after some seconds the workers' systems find out that nobody answers to its address.
    Neighbour,
}

impl Cut {
    const ALL: [Self; 4] = [Self::Link, Self::Interface, Self::Aggregator, Self::Neighbour];

    fn make(self, bed: &Testbed) {
        match self {
            Self::Link => bed.link_down(bed.worker(1)).expect("goes down"),
            Self::Interface => ip(bed.worker(1), &["link", "set", Node::INTERFACE, "down"]),
            Self::Aggregator => bed.link_down(bed.aggregator(0)).expect("goes down"),
            Self::Neighbour => {
                Self::Aggregator.make(bed);
                // Else they would first trust what they know for up to half a minute.
                bed.workers()
                    .iter()
                    .for_each(|worker| ip(worker, &["neigh", "flush", "dev", Node::INTERFACE]));
            }
        }
    }

    fn heal(self, bed: &Testbed) {
        match self {
            Self::Link => bed.link_up(bed.worker(1)).expect("comes up"),
            Self::Interface => ip(bed.worker(1), &["link", "set", Node::INTERFACE, "up"]),
            Self::Aggregator | Self::Neighbour => bed.link_up(bed.aggregator(0)).expect("comes up"),
        }
    }
}

fn ip(node: &Node, arguments: &[&str]) {
    let mut command = node.command("ip");
    command.args(arguments);
    let finished = Process::spawn(command).and_then(|mut process| process.wait(AT_ONCE)).expect("runs");
    assert!(finished.status.success(), "{}", finished.stderr);
}

/// There is a cut while both ranks sum, and it is healed after this time, if ever; what the ranks' operations end with.
fn through_a_partition(
    datapath: Datapath,
    cut: Cut,
    timeout_seconds: f64,
    heals_after: Option<Duration>,
) -> Vec<Outcome> {
    let bed = Testbed::builder().workers(2).build().expect("builds");
    let job = common::job(Family::V4, 2, 352, 3000, timeout_seconds);
    let _aggregator = common::aggregator(&bed, &job, datapath);
    common::as_every_rank(&bed, &job, |rank, client| {
        let first = client.all_reduce(integers(rank, LENGTH), Reduction::Sum);
        assert!(first.wait().expect("nothing is wrong yet") == exact_sum(2, LENGTH));
        if rank == 1 {
            cut.make(&bed);
        }
        let second = client.all_reduce(integers(rank, LENGTH), Reduction::Sum);
        if let Some(pause) = heals_after.filter(|_| rank == 1) {
            std::thread::sleep(pause);
            assert!(!second.is_done(), "{cut:?} cuts nothing, or is an error at once");
            cut.heal(&bed);
        }
        second.wait()
    })
}

/// Longer than a system looks for a neighbour, and than a worker asks an aggregator that is said to have ended.
const PARTITION: Duration = Duration::from_secs(8);

fn heals_within_the_timeout(name: &str, datapath: Datapath) {
    if skip_unless_root(name) {
        return;
    }
    std::thread::scope(|scope| {
        for cut in Cut::ALL {
            scope.spawn(move || {
                for outcome in through_a_partition(datapath, cut, 30.0, Some(PARTITION)) {
                    let sum = outcome.unwrap_or_else(|error| panic!("{datapath}, {cut:?}: {error}"));
                    assert!(sum == exact_sum(2, LENGTH), "{datapath}, {cut:?}");
                }
            });
        }
    });
}

#[test]
fn a_partition_that_heals_within_the_timeout_costs_time_only() {
    let name = "a_partition_that_heals_within_the_timeout_costs_time_only";
    heals_within_the_timeout(name, Datapath::XdpNative);
}

#[test]
fn a_partition_that_heals_within_the_timeout_costs_time_only_on_udp() {
    let name = "a_partition_that_heals_within_the_timeout_costs_time_only_on_udp";
    heals_within_the_timeout(name, Datapath::Udp);
}

#[test]
fn a_partition_that_stays_is_an_error_on_both_sides() {
    if skip_unless_root("a_partition_that_stays_is_an_error_on_both_sides") {
        return;
    }
    for (datapath, cut) in
        Datapath::LADDER.into_iter().flat_map(|datapath| Cut::ALL.map(|cut| (datapath, cut)))
    {
        let begin = Instant::now();
        let outcomes = through_a_partition(datapath, cut, 2.0, None);
        assert!(begin.elapsed() < AT_ONCE, "{datapath}, {cut:?}: after {:?}", begin.elapsed());
        for (rank, outcome) in outcomes.into_iter().enumerate() {
            let error = outcome.expect_err("half of the job is gone").to_string();
            let more = match (cut, rank) {
                (Cut::Link | Cut::Interface, 0) => "rank 1 is missing",
                (Cut::Interface, _) => "the network says that there is no way",
                // Within two seconds no system has found out.
                _ => "",
            };
            let who = format!("rank {rank}, operation 1");
            for word in [&who, "phase", "no progress for 2.0s", more, "last heard"] {
                assert!(error.contains(word), "{datapath}, {cut:?}: {word:?} is missing: {error}");
            }
        }
    }
}
