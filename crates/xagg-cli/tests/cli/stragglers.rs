//! A rank that is stopped for two seconds in the middle of a job: nobody takes it for loss, and everybody says whom it waits for.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use xagg_testbed::{Finished, Process, Testbed, skip_unless_root};

use crate::common::{JobFile, LIMIT, finish, ready, spawn, xagg};
use crate::namespaces::{inside, job};

const PAUSE: Duration = Duration::from_secs(2);
const ARGUMENTS: [&str; 5] = ["--elements", "100000", "--iterations", "100", "--json"];
/// Of one iteration.
const FRAGMENTS: u64 = 100_000_u64.div_ceil(352);

fn json(finished: &Finished) -> Value {
    let text = &finished.stdout;
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}{}", finished.stderr))
}

/// What `xagg status` says of the job.
struct Sample(Value);

impl Sample {
    fn counter(&self, name: &str) -> u64 {
        self.0["counters"][name].as_u64().expect("a counter")
    }

    /// How many fragments the ranks have contributed to.
    fn fragments(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|rank: usize| self.0["workers"][rank]["fragments"].as_u64().expect("a number"))
    }

    /// Whether all but rank 3 have contributed all of an iteration that rank 3 has not.
    fn waits_only_for_rank_3(&self) -> bool {
        let [others @ .., last] = self.fragments();
        others.iter().all(|fragments| *fragments == others[0])
            && others[0] > last
            && others[0].is_multiple_of(FRAGMENTS)
    }

    /// GRADIENTs that the aggregator has admitted: new ones, and ones that it had.
    fn gradients(&self) -> [u64; 3] {
        ["added", "duplicates", "stale"].map(|name| self.counter(name))
    }
}

/// Takes samples until one is as wanted.
fn wait_for(status: &impl Fn(&[&str]) -> Finished, what: &str, wanted: impl Fn(&Sample) -> bool) -> Sample {
    let deadline = Instant::now() + LIMIT;
    loop {
        let sample = Sample(json(&status(&["--json"]))["jobs"][0].take());
        if wanted(&sample) {
            return sample;
        }
        assert!(Instant::now() < deadline, "{what}: {}", sample.0);
    }
}

/// Stops rank 3 of a job of four at work, looks at it, and lets it go on. `status` runs `xagg status` where the aggregator is.
fn check_a_pause(mut ranks: Vec<Process>, status: impl Fn(&[&str]) -> Finished) {
    wait_for(&status, "the job begins", |sample| sample.fragments()[3] > 3 * FRAGMENTS);
    ranks[3].signal(Signal::SIGSTOP).expect("stops");
    let stopped = Instant::now();
    let pushed = wait_for(&status, "the others push everything", Sample::waits_only_for_rank_3);
    // What was lost of the last burst, if anything, has been repaired by then.
    std::thread::sleep(PAUSE.saturating_sub(stopped.elapsed()) / 2);
    let before = wait_for(&status, "they still wait", Sample::waits_only_for_rank_3);
    assert_eq!(before.fragments(), pushed.fragments());
    std::thread::sleep(PAUSE.saturating_sub(stopped.elapsed()));
    let after = wait_for(&status, "they still wait", Sample::waits_only_for_rank_3);
    let text = status(&[]).stdout;
    ranks[3].signal(Signal::SIGCONT).expect("goes on");

    assert_eq!(before.gradients(), after.gradients(), "nothing is sent again while rank 3 is silent");
    assert_eq!(after.0["waiting_for"], Value::from(vec![3]));
    let behind = pushed.fragments()[0] - pushed.fragments()[3];
    assert_eq!(after.0["workers"][3]["behind"], behind);
    assert!(after.0["workers"][3]["last_heard_seconds"].as_f64() >= Some(1.5), "{}", after.0);
    assert!(text.contains(&format!("waiting for rank 3 ({behind} fragments behind, last heard ")), "{text}");
    for (rank, process) in ranks.iter_mut().enumerate() {
        let finished = process.wait(LIMIT).expect("ends");
        assert!(finished.status.success(), "{}", finished.stderr);
        check_waits(rank, &json(&finished));
    }
}

/// What a rank reports after the pause.
fn check_waits(rank: usize, report: &Value) {
    let seconds = |waited: &Value| waited["seconds"].as_f64().expect("a number");
    let waited_for = report["waited_for"].as_array().expect("a list");
    let longest = waited_for.iter().max_by(|one, other| seconds(one).total_cmp(&seconds(other)));
    if rank == 3 {
        assert!(longest.is_none_or(|waited| seconds(waited) < 1.0), "{report}");
    } else {
        let longest = longest.unwrap_or_else(|| panic!("rank {rank} waited for nobody: {report}"));
        assert!(longest["rank"] == 3 && seconds(longest) > 1.0, "{report}");
    }
}

#[test]
fn a_stopped_rank_is_waited_for_and_never_looks_like_loss() {
    let job = JobFile::on_loopback(4, 20.0);
    let _aggregator = job.running();
    let port = job.port.to_string();
    check_a_pause(job.ranks(&ARGUMENTS), |arguments| {
        finish(xagg(&[&["status", "--port", &port], arguments].concat()))
    });
}

#[test]
fn a_stopped_rank_is_waited_for_on_both_datapaths_in_namespaces() {
    if skip_unless_root("a_stopped_rank_is_waited_for_on_both_datapaths_in_namespaces") {
        return;
    }
    for datapath in ["xdp-native", "udp"] {
        let bed = Testbed::builder().workers(4).build().expect("a testbed");
        let job = job(4, "slots = 3000");
        let _aggregator = ready(inside(bed.aggregator(0), &job.aggregator(&["--datapath", datapath])));
        let rank = |rank| spawn(inside(bed.worker(rank), &job.rank(rank, &ARGUMENTS)));
        check_a_pause((0..4).map(rank).collect(), |arguments| {
            finish(inside(bed.aggregator(0), &xagg(&[&["status"], arguments].concat())))
        });
    }
}
