//! Whole jobs of real processes in namespaces, and what becomes of them when one is killed, stopped, started again or starved.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use xagg_testbed::{Process, Testbed, skip_unless_root};

use crate::common::{JobFile, LIMIT, expect_error, finish, ready, spawn};
use crate::namespaces::{inside, job};

/// Work that does not end by itself in a test.
const ENDLESS: [&str; 4] = ["--elements", "100000", "--iterations", "1000000"];
const KERNEL: &str = "xdp-native";

/// Every rank at work in its namespace, and the aggregator on this datapath.
fn start(bed: &Testbed, job: &JobFile, datapath: &str, arguments: &[&str]) -> (Process, Vec<Process>) {
    let aggregator = ready(inside(bed.aggregator(0), &job.aggregator(&["--datapath", datapath])));
    let rank = |rank| spawn(inside(bed.worker(rank), &job.rank(rank, arguments)));
    (aggregator, (0..job.workers).map(rank).collect())
}

/// Each of these ranks must end in one error, within twice the job's timeout of 5 s, that has its name, where it stood, and these words.
fn expect_errors(ranks: &mut [Process], words: &[&str]) {
    let begin = Instant::now();
    for (rank, process) in ranks.iter_mut().enumerate() {
        let name = format!("rank {rank}");
        let finished = process.wait(LIMIT).expect("ends");
        expect_error(&finished, &[&[&name, "operation", "phase", "last heard"], words].concat());
    }
    assert!(begin.elapsed() < 2 * Duration::from_secs(5), "within the job's timeout");
}

/// Each of these ranks must come to its end with nothing but exact sums.
fn expect_exact(ranks: &mut [Process]) {
    for rank in ranks {
        let finished = rank.wait(LIMIT).expect("ends");
        assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
        assert!(finished.stdout.contains("every result is exactly the sum"), "{}", finished.stdout);
    }
}

/// How many iterations a rank has finished.
fn iterations(rank: &Process) -> usize {
    rank.stdout().expect("output").lines().filter(|line| line.starts_with("iteration ")).count()
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
        let (_aggregator, mut ranks) =
            start(&bed, &job, KERNEL, &["--elements", "100000", "--iterations", "2"]);
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
    let (_aggregator, mut ranks) = start(&bed, &job, KERNEL, &ENDLESS);
    ranks[3].wait_for_output("iteration 3", LIMIT).expect("works");
    ranks[3].signal(Signal::SIGKILL).expect("kills");
    expect_errors(&mut ranks[..3], &["rank 3 is missing"]);
}

#[test]
fn a_worker_that_starts_again_is_refused_and_the_others_name_it() {
    if skip_unless_root("a_worker_that_starts_again_is_refused_and_the_others_name_it") {
        return;
    }
    for datapath in [KERNEL, "udp"] {
        let bed = Testbed::builder().workers(4).build().expect("a testbed");
        let job = job(4, "slots = 3000");
        let (_aggregator, mut ranks) = start(&bed, &job, datapath, &ENDLESS);
        ranks[3].wait_for_output("iteration 3", LIMIT).expect("works");
        ranks[3].signal(Signal::SIGKILL).expect("kills");
        ranks[3].wait(LIMIT).expect("has ended");
        let again = finish(inside(bed.worker(3), &job.rank(3, &ENDLESS)));
        expect_error(&again, &["rank 3", "joined the job already", "raise `view`"]);
        expect_errors(&mut ranks[..3], &["rank 3 is missing"]);
    }
}

#[test]
fn a_second_process_of_a_rank_is_refused_and_the_job_goes_on() {
    if skip_unless_root("a_second_process_of_a_rank_is_refused_and_the_job_goes_on") {
        return;
    }
    let bed = Testbed::builder().workers(3).build().expect("a testbed");
    let job = job(2, "slots = 3000");
    let (_aggregator, mut ranks) =
        start(&bed, &job, KERNEL, &["--elements", "100000", "--iterations", "100"]);
    ranks[1].wait_for_output("iteration 3", LIMIT).expect("works");
    let second = |machine| finish(inside(bed.worker(machine), &job.rank(1, &[])));
    expect_error(&second(1), &["rank 1", "another process running as this rank"]);
    expect_error(&second(2), &["rank 1", "machine that has its address"]);
    expect_exact(&mut ranks);
}

#[test]
fn a_worker_without_memory_is_named_by_every_survivor() {
    if skip_unless_root("a_worker_without_memory_is_named_by_every_survivor") {
        return;
    }
    let bed = Testbed::builder().workers(3).build().expect("a testbed");
    let job = job(3, "slots = 3000");
    // So long that the allocator asks the system for every vector anew.
    let long = ["--elements", "9000000", "--iterations", "1000000", "--no-check"];
    let (_aggregator, mut ranks) = start(&bed, &job, KERNEL, &long);
    ranks[2].wait_for_output("iteration 0", LIMIT).expect("works");
    let mut limit = Command::new("prlimit");
    limit.args(["--as=1:1", "--pid", &ranks[2].pid().to_string()]);
    assert!(finish(limit).status.success(), "there is no memory for it any more");
    let ended = ranks[2].wait(LIMIT).expect("ends");
    // It says so, or is aborted, by what it needed memory for.
    assert!(!ended.status.success() && ended.stderr.contains("memory"), "{}", ended.stderr);
    expect_errors(&mut ranks[..2], &["rank 2 is missing"]);
}

#[test]
fn a_worker_stopped_beyond_the_timeout_is_named_and_ends_in_an_error_itself() {
    if skip_unless_root("a_worker_stopped_beyond_the_timeout_is_named_and_ends_in_an_error_itself") {
        return;
    }
    for datapath in [KERNEL, "udp"] {
        let bed = Testbed::builder().workers(3).build().expect("a testbed");
        let job = job(3, "slots = 3000");
        let (_aggregator, mut ranks) = start(&bed, &job, datapath, &ENDLESS);
        ranks[2].wait_for_output("iteration 3", LIMIT).expect("works");
        ranks[2].signal(Signal::SIGSTOP).expect("stops");
        expect_errors(&mut ranks[..2], &["rank 2 is missing"]);
        ranks[2].signal(Signal::SIGCONT).expect("goes on");
        let finished = ranks[2].wait(2 * Duration::from_secs(5)).expect("within the timeout");
        expect_error(&finished, &["rank 2", "operation", "phase", "last heard"]);
    }
}

#[test]
fn an_aggregator_killed_in_the_middle_is_an_error_at_every_rank() {
    if skip_unless_root("an_aggregator_killed_in_the_middle_is_an_error_at_every_rank") {
        return;
    }
    let bed = Testbed::builder().workers(4).build().expect("a testbed");
    let job = job(4, "slots = 3000");
    let (aggregator, mut ranks) = start(&bed, &job, KERNEL, &ENDLESS);
    ranks[0].wait_for_output("iteration 3", LIMIT).expect("works");
    aggregator.signal(Signal::SIGKILL).expect("kills");
    expect_errors(&mut ranks, &["aggregator"]);
}

#[test]
fn an_aggregator_started_again_in_the_middle_is_noticed_by_every_rank() {
    if skip_unless_root("an_aggregator_started_again_in_the_middle_is_noticed_by_every_rank") {
        return;
    }
    for datapath in [KERNEL, "udp"] {
        let bed = Testbed::builder().workers(3).build().expect("a testbed");
        let job = job(3, "slots = 3000").replaced("timeout_seconds = 5.00", "timeout_seconds = 40.00");
        let (mut aggregator, mut ranks) = start(&bed, &job, datapath, &ENDLESS);
        ranks[0].wait_for_output("iteration 3", LIMIT).expect("works");
        // So that no rank finds the port closed before it is open again.
        ranks.iter().for_each(|rank| rank.signal(Signal::SIGSTOP).expect("stops"));
        aggregator.signal(Signal::SIGKILL).expect("kills");
        aggregator.wait(LIMIT).expect("has ended");
        let _again = ready(inside(bed.aggregator(0), &job.aggregator(&["--datapath", datapath])));
        ranks.iter().for_each(|rank| rank.signal(Signal::SIGCONT).expect("goes on"));
        // Long before the timeout of 40 s.
        expect_errors(&mut ranks, &["has been started again"]);
    }
}

#[test]
fn an_aggregator_stopped_for_a_while_costs_time_only() {
    if skip_unless_root("an_aggregator_stopped_for_a_while_costs_time_only") {
        return;
    }
    let bed = Testbed::builder().workers(3).build().expect("a testbed");
    let job = job(3, "slots = 3000");
    let (aggregator, mut ranks) = start(&bed, &job, "udp", &["--elements", "100000", "--iterations", "100"]);
    ranks[0].wait_for_output("iteration 3", LIMIT).expect("works");
    aggregator.signal(Signal::SIGSTOP).expect("stops");
    std::thread::sleep(Duration::from_millis(500));
    let before: Vec<usize> = ranks.iter().map(iterations).collect();
    std::thread::sleep(Duration::from_millis(1500));
    let after: Vec<usize> = ranks.iter().map(iterations).collect();
    assert!(before == after && after[0] < 100, "nothing is summed meanwhile: {before:?}, {after:?}");
    aggregator.signal(Signal::SIGCONT).expect("goes on");
    expect_exact(&mut ranks);
}

/// The kernel program needs nobody: its process only shows the status.
#[test]
fn a_kernel_program_works_on_while_its_process_is_stopped() {
    if skip_unless_root("a_kernel_program_works_on_while_its_process_is_stopped") {
        return;
    }
    for datapath in [KERNEL, "xdp-generic"] {
        let bed = Testbed::builder().workers(3).build().expect("a testbed");
        let job = job(3, "slots = 3000");
        let (aggregator, mut ranks) =
            start(&bed, &job, datapath, &["--elements", "100000", "--iterations", "50"]);
        ranks[0].wait_for_output("iteration 3", LIMIT).expect("works");
        aggregator.signal(Signal::SIGSTOP).expect("stops");
        assert!(iterations(&ranks[0]) < 50, "{datapath}: stopped in the middle");
        expect_exact(&mut ranks);
    }
}

/// For how long the threads of these processes have run so far, and for how long they have waited for a CPU, in nanoseconds.
fn scheduled(processes: &[Process]) -> [u64; 2] {
    let mut sums = [0; 2];
    for process in processes {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid())).expect("it runs");
        for task in tasks.flatten() {
            let numbers = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            for (sum, number) in sums.iter_mut().zip(numbers.split_whitespace()) {
                *sum += number.parse::<u64>().expect("a number");
            }
        }
    }
    sums
}

#[test]
fn members_without_cpu_time_sum_exactly() {
    if skip_unless_root("members_without_cpu_time_sum_exactly") {
        return;
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for datapath in [KERNEL, "udp"] {
        let bed = Testbed::builder().workers(4).build().expect("a testbed");
        let job = job(4, "slots = 3000").replaced("timeout_seconds = 5.00", "timeout_seconds = 30.00");
        let nice = |command: &Command| {
            let mut nice = Command::new("nice");
            nice.args(["-n", "10"]).arg(command.get_program()).args(command.get_args());
            nice
        };
        let _aggregator = ready(inside(bed.aggregator(0), &nice(&job.aggregator(&["--datapath", datapath]))));
        let hog = |_| {
            let mut hog = Command::new("timeout");
            hog.args(["30", "sh", "-c", "while :; do :; done"]);
            spawn(hog)
        };
        let _hogs: Vec<Process> = (0..2 * cpus).map(hog).collect();
        let rank = |rank| {
            let command = job.rank(rank, &["--elements", "100000", "--iterations", "6"]);
            spawn(inside(bed.worker(rank), &nice(&command)))
        };
        let mut ranks: Vec<Process> = (0..4).map(rank).collect();
        ranks[0].wait_for_output("iteration 3", LIMIT).expect("works");
        let [ran, waited] = scheduled(&ranks);
        expect_exact(&mut ranks);
        assert!(waited > 2 * ran, "{datapath}: ran for {ran} ns, waited for a CPU for {waited} ns");
    }
}
