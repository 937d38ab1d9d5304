//! Whole jobs over loopback with the udp datapath: every member a process.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{JobFile, LIMIT, expect_error, finish, ready, spawn, text, xagg};
use nix::sys::signal::Signal;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn four_ranks_get_the_exact_sums_and_the_status_shows_them() {
    let job = JobFile::on_loopback(4, 20.0);
    let aggregator = job.running();
    let ready = aggregator.stdout().expect("output");
    let expected = format!(":{}, job 5: 4 workers, 3000 slots of 352 lanes, ", job.port);
    assert!(ready.starts_with("ready: datapath udp, 127.") && ready.contains(&expected), "{ready}");
    let mut reports = vec![];
    for mut rank in job.ranks(&["--elements", "100000", "--iterations", "3", "--json"]) {
        let finished = rank.wait(LIMIT).expect("ends");
        assert!(finished.status.success(), "{}", finished.stderr);
        reports.push(json(&finished.stdout));
    }
    for (rank, report) in reports.iter().enumerate() {
        assert_eq!((&report["rank"], &report["checked"]), (&Value::from(rank), &Value::from(true)));
        for iteration in 0..3 {
            assert_eq!(
                report["iterations"][iteration]["digest"],
                reports[0]["iterations"][iteration]["digest"]
            );
        }
        assert_ne!(
            report["iterations"][0]["digest"], report["iterations"][1]["digest"],
            "other values each time"
        );
    }
    let port = job.port.to_string();
    let status = json(&finish(xagg(&["status", "--port", &port, "--json"])).stdout);
    let fragments = 3 * 100_000_u64.div_ceil(352);
    assert_eq!(status["jobs"][0]["counters"]["results"], fragments);
    assert_eq!(status["jobs"][0]["workers"][3]["fragments"], fragments);
    let table = finish(xagg(&["status", "--port", &port])).stdout;
    for word in ["udp", "job 5, view 1: 3000 slots", "fragments", &fragments.to_string(), "added"] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

#[test]
fn a_job_over_ipv6_is_written_run_and_shown_like_any_other() {
    let port = 10_000 + 4 * (std::process::id() % 10_000);
    let [end, first, second] = [port, port + 1, port + 2].map(|port| format!("[::1]:{port}"));
    let workers = format!("{first},{second}");
    let arguments =
        ["job", "--workers", &workers, "--aggregator", &end, "--elements", "100000", "--mtu", "3498"];
    let job = JobFile::of(finish(xagg(&arguments)).stdout, 2, port as u16);
    let aggregator = job.running();
    let ready = aggregator.stdout().expect("output");
    assert!(ready.contains(&format!("{end}, job 1: 2 workers")) && ready.contains("832 lanes"), "{ready}");
    for mut rank in job.ranks(&["--elements", "100000"]) {
        let finished = rank.wait(LIMIT).expect("ends");
        assert!(finished.status.success(), "{}", finished.stderr);
        assert!(finished.stdout.contains("exactly the sum over 2 ranks"), "{}", finished.stdout);
    }
    let status = json(&finish(xagg(&["status", "--port", &port.to_string(), "--json"])).stdout);
    assert_eq!(
        (&status["address"], &status["jobs"][0]["workers"][1]["address"]),
        (&end.into(), &second.into())
    );
}

#[test]
fn a_mean_is_exact_too() {
    let job = JobFile::on_loopback(3, 20.0);
    let _aggregator = job.running();
    for mut rank in job.ranks(&["--elements", "10000", "--reduction", "mean"]) {
        let finished = rank.wait(LIMIT).expect("ends");
        assert!(finished.status.success(), "{}", finished.stderr);
        assert!(finished.stdout.contains("exactly the mean over 3 ranks"), "{}", finished.stdout);
    }
}

#[test]
fn files_are_summed_and_said_to_be_unchecked() {
    let job = JobFile::on_loopback(2, 20.0);
    let _aggregator = job.running();
    let mut ranks = vec![];
    for rank in 0..2_u8 {
        let (input, output) = (job.beside(&format!("in{rank}")), job.beside(&format!("out{rank}")));
        let values = (0..1000_u16).map(|index| f32::from(index) * (1.0 + f32::from(rank)));
        std::fs::write(&input, values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()).expect("writes");
        let arguments = ["--input", text(&input), "--output", text(&output), "--iterations", "2"];
        ranks.push((spawn(job.rank(rank.into(), &arguments)), output));
    }
    let expected: Vec<u8> = (0..1000_u16).flat_map(|index| (f32::from(index) * 3.0).to_le_bytes()).collect();
    for (mut rank, output) in ranks {
        let finished = rank.wait(LIMIT).expect("ends");
        assert!(finished.status.success(), "{}", finished.stderr);
        assert!(finished.stdout.contains("not checked"), "{}", finished.stdout);
        assert_eq!(std::fs::read(output).expect("written"), expected);
    }
}

#[test]
fn a_wrong_sum_is_a_failure() {
    let job = JobFile::on_loopback(2, 20.0);
    let _aggregator = job.running();
    // Each rank takes the other's values for what its own seed gives.
    let ranks = [spawn(job.rank(0, &["--seed", "1"])), spawn(job.rank(1, &["--seed", "2"]))];
    for mut rank in ranks {
        expect_error(&rank.wait(LIMIT).expect("ends"), &["iteration 0", "are not the sum", "--seed"]);
    }
}

#[test]
fn different_lengths_are_an_error_at_both_ranks() {
    let job = JobFile::on_loopback(2, 20.0);
    let _aggregator = job.running();
    let ranks = [("rank 0", 0, "1000"), ("rank 1", 1, "1001")]
        .map(|(name, rank, elements)| (name, elements, spawn(job.rank(rank, &["--elements", elements]))));
    let mut signatures = vec![];
    for (name, elements, mut rank) in ranks {
        let finished = rank.wait(LIMIT).expect("ends");
        expect_error(&finished, &[name, "different operations", &format!("of {elements} f32")]);
        let mut both: Vec<String> =
            finished.stderr.split("one with signature ").skip(1).map(|rest| rest[..8].to_owned()).collect();
        both.sort();
        signatures.push(both);
    }
    assert_eq!(signatures[0], signatures[1], "both name the same two signatures");
    assert_eq!(signatures[0].len(), 2);
}

#[test]
fn no_aggregator_is_an_error_in_time() {
    let job = JobFile::on_loopback(2, 1.0);
    let begin = Instant::now();
    expect_error(&finish(job.rank(0, &[])), &["rank 0", "no answer", "xagg aggregator", "joining"]);
    assert!(begin.elapsed() < Duration::from_secs(6));
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let job = JobFile::on_loopback(3, 2.0);
    let _aggregator = job.running();
    let ranks = [0, 1].map(|rank| spawn(job.rank(rank, &["--elements", "1000"])));
    for (name, mut rank) in ["rank 0", "rank 1"].into_iter().zip(ranks) {
        expect_error(&rank.wait(LIMIT).expect("ends"), &[name, "operation 0", "phase", "rank 2 is missing"]);
    }
}

#[test]
fn a_killed_aggregator_is_an_error_at_every_rank() {
    let job = JobFile::on_loopback(3, 3.0);
    let aggregator = job.running();
    // The third rank never comes, so these two are in the middle of their operation.
    let ranks = [0, 1].map(|rank| spawn(job.rank(rank, &["--elements", "1000"])));
    let port = job.port.to_string();
    let added = || {
        json(&finish(xagg(&["status", "--port", &port, "--json"])).stdout)["jobs"][0]["counters"]["added"]
            .as_u64()
    };
    let deadline = Instant::now() + LIMIT;
    while added() < Some(2 * 3) {
        assert!(Instant::now() < deadline, "the ranks do not begin");
    }
    aggregator.signal(Signal::SIGKILL).expect("kills");
    let begin = Instant::now();
    for (name, mut rank) in ["rank 0", "rank 1"].into_iter().zip(ranks) {
        expect_error(&rank.wait(LIMIT).expect("ends"), &[name, "operation 0", "phase", "aggregator"]);
    }
    assert!(begin.elapsed() < Duration::from_secs(3 + 3));
}

#[test]
fn a_killed_worker_is_named_by_every_survivor() {
    let job = JobFile::on_loopback(3, 2.0);
    let _aggregator = job.running();
    let mut ranks = job.ranks(&["--elements", "5000", "--iterations", "1000000"]);
    let mut victim = ranks.pop().expect("three");
    victim.wait_for_output("iteration 3", LIMIT).expect("works");
    victim.signal(Signal::SIGKILL).expect("kills");
    for (name, mut rank) in ["rank 0", "rank 1"].into_iter().zip(ranks) {
        expect_error(&rank.wait(LIMIT).expect("ends"), &[name, "operation", "phase", "rank 2 is missing"]);
    }
}

#[test]
fn a_restarted_worker_is_refused() {
    let job = JobFile::on_loopback(2, 5.0);
    let _aggregator = job.running();
    let mut ranks = job.ranks(&["--elements", "1000"]);
    assert!(ranks.iter_mut().all(|rank| rank.wait(LIMIT).expect("ends").status.success()));
    expect_error(&finish(job.rank(0, &[])), &["rank 0", "joined the job already", "view"]);
}

#[test]
fn the_aggregator_ends_well_on_the_signals_that_ask_for_it() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let job = JobFile::on_loopback(2, 5.0);
        let mut aggregator = job.running();
        aggregator.signal(signal).expect("sent");
        let finished = aggregator.wait(Duration::from_secs(5)).expect("ends");
        assert_eq!(finished.status.code(), Some(0), "{signal}: {}", finished.stderr);
        // The port and the name of its status are free again.
        drop(job.running());
    }
}

#[test]
fn a_watched_status_goes_on_until_the_aggregator_ends() {
    let job = JobFile::on_loopback(2, 5.0);
    let aggregator = job.running();
    let mut status = spawn(xagg(&["status", "--port", &job.port.to_string(), "--json", "--watch", "0.1"]));
    let deadline = Instant::now() + LIMIT;
    while status.stdout().expect("output").lines().count() < 3 {
        assert!(Instant::now() < deadline, "it is shown again and again");
        std::thread::sleep(Duration::from_millis(20));
    }
    aggregator.signal(Signal::SIGINT).expect("sent");
    expect_error(&status.wait(LIMIT).expect("ends"), &["no aggregator"]);
}

#[test]
fn drops_are_counted_by_reason_with_what_they_mean() {
    let job = JobFile::on_loopback(2, 1.0);
    let _aggregator = job.running();
    let stranger = job.replaced("a secret for tests", "another secret, as long");
    expect_error(&finish(stranger.rank(0, &[])), &["rank 0", "no answer", "secret"]);
    let status = finish(xagg(&["status", "--port", &stranger.port.to_string()])).stdout;
    assert!(status.contains("dropped: cookie"), "{status}");
    assert!(status.contains("cookie: a worker has a job file with another secret"), "{status}");
}

/// The command with a log that goes to a full disk.
fn with_full_log(command: &Command) -> Command {
    let mut full = Command::new("sh");
    full.args(["-c", "exec \"$0\" \"$@\" 2> /dev/full"]).arg(command.get_program()).args(command.get_args());
    full.env("XAGG_LOG", "trace");
    full
}

#[test]
fn a_log_on_a_full_disk_changes_nothing() {
    let job = JobFile::on_loopback(2, 5.0);
    // Everybody may read the job file, which is worth a line of the log.
    std::fs::set_permissions(job.path(), Permissions::from_mode(0o644)).expect("changes the mode");
    let mut aggregator = ready(with_full_log(&job.aggregator(&["--datapath", "udp"])));
    let ranks = [0, 1].map(|rank| spawn(with_full_log(&job.rank(rank, &["--elements", "1000"]))));
    for mut rank in ranks {
        assert_eq!(rank.wait(LIMIT).expect("ends").status.code(), Some(0));
    }
    aggregator.signal(Signal::SIGINT).expect("sent");
    assert_eq!(aggregator.wait(LIMIT).expect("ends").status.code(), Some(0));
    // An error that cannot be told is still one in the exit code.
    assert_eq!(finish(with_full_log(&job.rank(9, &[]))).status.code(), Some(1));
}

#[test]
fn a_worker_of_another_view_gets_no_answer() {
    let job = JobFile::on_loopback(2, 1.0).replaced("job = 5", "job = 5\nview = 2");
    let _aggregator = job.running();
    let old = job.replaced("view = 2", "view = 1");
    expect_error(&finish(old.rank(0, &[])), &["rank 0", "no answer", "same job file"]);
    let status = finish(xagg(&["status", "--port", &old.port.to_string(), "--json"]));
    assert!(json(&status.stdout)["drops"]["job"].as_u64() > Some(0), "{}", status.stdout);
}

#[test]
fn a_full_disk_is_an_error_and_no_panic() {
    let job = JobFile::on_loopback(1, 5.0);
    let _aggregator = job.running();
    // Every write to this device ends as on a full disk.
    let finished = finish(job.rank(0, &["--elements", "1000", "--output", "/dev/full"]));
    expect_error(&finished, &["cannot write /dev/full", "No space left"]);

    let job = JobFile::on_loopback(1, 5.0);
    let _aggregator = job.running();
    let mut rank = job.rank(0, &["--elements", "1000"]);
    rank.stdout(std::fs::File::create("/dev/full").expect("opens"));
    let finished = rank.stderr(std::process::Stdio::piped()).spawn().expect("starts");
    let finished = finished.wait_with_output().expect("ends");
    let stderr = String::from_utf8_lossy(&finished.stderr);
    assert!(finished.status.code() == Some(1) && stderr.contains("No space left"), "{stderr}");
}
