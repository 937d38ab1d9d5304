//! What an aggregator's end and its new beginning are to the workers, on every datapath.

#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod common;

use std::time::{Duration, Instant};

use xagg_aggregator::Datapath;
use xagg_testbed::{Testbed, skip_unless_root};
use xagg_worker::{Client, Reduction};

/// The job's timeout: no error here may have waited for it.
const TIMEOUT_SECONDS: f64 = 40.0;
/// What "at once" may take: a few PULLs to a silent aggregator, on a machine that does other things.
const AT_ONCE: Duration = Duration::from_secs(10);

/// The error of a rank whose partner never comes, and whose aggregator is treated like this.
fn error_after(datapath: Datapath, restart: bool) -> (String, Duration) {
    let bed = Testbed::builder().workers(2).build().expect("builds");
    let job = common::job(2, 352, 100, TIMEOUT_SECONDS);
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
    is_noticed_at_once(name, false, "has ended (its port is closed)");
}
