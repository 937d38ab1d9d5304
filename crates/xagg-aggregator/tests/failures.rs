//! What the end of an aggregator, its new beginning and a partition are to the workers, on every datapath.

mod common;

use std::time::{Duration, Instant};

use xagg_aggregator::Datapath;
use xagg_testbed::exact::{exact_sum, integers};
use xagg_testbed::{Testbed, skip_unless_root};
use xagg_wire::Family;
use xagg_worker::handle::Outcome;
use xagg_worker::{Client, Reduction};

/// The job's timeout: no error here may have waited for it.
const TIMEOUT_SECONDS: f64 = 40.0;
/// What "at once" may take: a few PULLs to a silent aggregator, on a machine that does other things.
const AT_ONCE: Duration = Duration::from_secs(10);

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

/// Rank 1's link goes down while both ranks sum, and comes up again after this time, if ever; what the ranks' operations end with.
fn through_a_partition(
    datapath: Datapath,
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
            bed.link_down(bed.worker(1)).expect("goes down");
        }
        let second = client.all_reduce(integers(rank, LENGTH), Reduction::Sum);
        if let Some(pause) = heals_after.filter(|_| rank == 1) {
            std::thread::sleep(pause);
            bed.link_up(bed.worker(1)).expect("comes up");
        }
        second.wait()
    })
}

#[test]
fn a_partition_that_heals_within_the_timeout_costs_time_only() {
    if skip_unless_root("a_partition_that_heals_within_the_timeout_costs_time_only") {
        return;
    }
    for datapath in Datapath::LADDER {
        for outcome in through_a_partition(datapath, 30.0, Some(Duration::from_secs(2))) {
            let sum = outcome.unwrap_or_else(|error| panic!("{datapath}: {error}"));
            assert!(sum == exact_sum(2, LENGTH), "{datapath}");
        }
    }
}

#[test]
fn a_partition_that_stays_is_an_error_on_both_sides() {
    if skip_unless_root("a_partition_that_stays_is_an_error_on_both_sides") {
        return;
    }
    for datapath in Datapath::LADDER {
        let outcomes = through_a_partition(datapath, 2.0, None);
        let words: [&[&str]; 2] = [
            &["rank 0", "operation 1", "phase", "rank 1 is missing", "last heard"],
            &["rank 1", "operation 1", "phase", "last heard"],
        ];
        for (outcome, words) in outcomes.into_iter().zip(words) {
            let error = outcome.expect_err("half of the job is gone").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{datapath}: {error}");
        }
    }
}
