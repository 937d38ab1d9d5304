//! Whole jobs of real processes over the kernel datapath, and what is left of them when one is killed.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use xagg_testbed::{Process, Testbed, skip_unless_root};

use crate::common::{JobFile, LIMIT, expect_error, ready, spawn};
use crate::namespaces::{inside, job};

/// Every rank at work in its namespace, and the aggregator on `xdp-native`.
fn start(bed: &Testbed, job: &JobFile, arguments: &[&str]) -> (Process, Vec<Process>) {
    let aggregator = ready(inside(bed.aggregator(0), &job.aggregator(&["--datapath", "xdp-native"])));
    let rank = |rank| spawn(inside(bed.worker(rank), &job.rank(rank, arguments)));
    (aggregator, (0..job.workers).map(rank).collect())
}

/// The digest that a rank prints of its last result.
fn digest(rank: &mut Process) -> String {
    let finished = rank.wait(LIMIT).expect("ends");
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    let digest = finished.stdout.lines().filter_map(|line| line.split_once("digest ")).next_back();
    digest.unwrap_or_else(|| panic!("no digest: {}", finished.stdout)).1.to_owned()
}

#[test]
fn eight_processes_agree_at_both_mtus_and_in_every_run() {
    if skip_unless_root("eight_processes_agree_at_both_mtus_and_in_every_run") {
        return;
    }
    let mut digests = vec![];
    for (mtu, more) in [(1500, "slots = 3000"), (3498, "slots = 3000\nlanes = 848"), (1500, "slots = 100")] {
        let bed = Testbed::builder().workers(8).mtu(mtu).build().expect("a testbed");
        let job = job(8, more);
        let (_aggregator, mut ranks) = start(&bed, &job, &["--elements", "100000", "--iterations", "2"]);
        digests.extend(ranks.iter_mut().map(digest));
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

#[test]
fn a_worker_killed_in_the_middle_is_named_by_every_survivor() {
    if skip_unless_root("a_worker_killed_in_the_middle_is_named_by_every_survivor") {
        return;
    }
    let bed = Testbed::builder().workers(4).build().expect("a testbed");
    let job = job(4, "slots = 3000");
    let (_aggregator, mut ranks) = start(&bed, &job, &["--elements", "100000", "--iterations", "1000000"]);
    ranks[3].wait_for_output("iteration 3", LIMIT).expect("works");
    ranks[3].signal(Signal::SIGKILL).expect("kills");
    let begin = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate().take(3) {
        let name = format!("rank {rank}");
        expect_error(
            &process.wait(LIMIT).expect("ends"),
            &[&name, "operation", "phase", "rank 3 is missing"],
        );
    }
    assert!(begin.elapsed() < 2 * Duration::from_secs(5), "within the job's timeout");
}

#[test]
fn an_aggregator_killed_in_the_middle_is_an_error_at_every_rank() {
    if skip_unless_root("an_aggregator_killed_in_the_middle_is_an_error_at_every_rank") {
        return;
    }
    let bed = Testbed::builder().workers(4).build().expect("a testbed");
    let job = job(4, "slots = 3000");
    let (aggregator, mut ranks) = start(&bed, &job, &["--elements", "100000", "--iterations", "1000000"]);
    ranks[0].wait_for_output("iteration 3", LIMIT).expect("works");
    aggregator.signal(Signal::SIGKILL).expect("kills");
    let begin = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate() {
        let name = format!("rank {rank}");
        expect_error(&process.wait(LIMIT).expect("ends"), &[&name, "operation", "phase", "aggregator"]);
    }
    assert!(begin.elapsed() < 2 * Duration::from_secs(5), "within the job's timeout");
}
