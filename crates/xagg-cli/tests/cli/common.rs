//! The built command, and jobs for it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use xagg_testbed::{Finished, Process};

/// No command of a test takes longer.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The command with arguments, not run yet.
pub fn xagg(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xagg"));
    command.args(arguments);
    command
}

/// Runs a command to its end.
pub fn finish(command: Command) -> Finished {
    spawn(command).wait(LIMIT).expect("ends in time")
}

/// Starts a command.
pub fn spawn(command: Command) -> Process {
    Process::spawn(command).expect("starts")
}

/// The command must have failed with one error that has all these words.
pub fn expect_error(finished: &Finished, words: &[&str]) {
    let (status, stderr) = (finished.status, &finished.stderr);
    assert_eq!(status.code(), Some(1), "{stderr}{}", finished.stdout);
    let errors: Vec<&str> = stderr.split("error: ").collect();
    assert_eq!(errors.len(), 2, "one error: {stderr}");
    for word in words {
        assert!(errors[1].contains(word), "{word:?} is missing: {stderr}");
    }
}

/// A job file in a folder of its own.
pub struct JobFile {
    folder: TempDir,
    /// How many workers it has.
    pub workers: usize,
    /// The aggregator's port.
    pub port: u16,
}

impl JobFile {
    /// A job on loopback, with addresses and ports that no other test has.
    pub fn on_loopback(workers: usize, timeout_seconds: f64) -> Self {
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let host = format!("{}.3", xagg_testbed::loopback::network());
        let port = 20_000 + 300 * JOBS.fetch_add(1, Ordering::Relaxed) as usize;
        let addresses: Vec<String> = (1..=workers).map(|rank| format!("{host}:{}", port + rank)).collect();
        Self::write(&addresses, &format!("{host}:{port}"), "slots = 3000", timeout_seconds)
    }

    /// A job of these addresses; `more` is TOML.
    pub fn write(workers: &[String], aggregator: &str, more: &str, timeout_seconds: f64) -> Self {
        let mut text = format!(
            "job = 5\nsecret = \"a secret for tests\"\n{more}\ntimeout_seconds = {timeout_seconds:.2}\n\
             aggregator = \"{aggregator}\"\n"
        );
        for (rank, address) in workers.iter().enumerate() {
            text += &format!("[[worker]]\nrank = {rank}\naddress = \"{address}\"\n");
        }
        let port = aggregator.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        Self::of(text, workers.len(), port)
    }

    /// A job of this text, with so many workers, and whose aggregator has this port.
    pub fn of(text: String, workers: usize, port: u16) -> Self {
        let job = Self { folder: TempDir::new().expect("a folder"), workers, port };
        std::fs::write(job.path(), text).expect("writes");
        job
    }

    /// The same job with a part of its text replaced.
    pub fn replaced(self, from: &str, to: &str) -> Self {
        let text = std::fs::read_to_string(self.path()).expect("reads");
        assert!(text.contains(from), "the test replaces something that is there");
        std::fs::write(self.path(), text.replacen(from, to, 1)).expect("writes");
        self
    }

    /// A file beside the job file.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the job file is.
    pub fn path(&self) -> PathBuf {
        self.beside("job.toml")
    }

    /// `xagg aggregator` with this job.
    pub fn aggregator(&self, arguments: &[&str]) -> Command {
        let mut command = xagg(&["aggregator", "--job", text(&self.path())]);
        command.args(arguments);
        command
    }

    /// `xagg allreduce` with this job.
    pub fn rank(&self, rank: usize, arguments: &[&str]) -> Command {
        let mut command = xagg(&["allreduce", "--job", text(&self.path()), "--rank", &rank.to_string()]);
        command.args(arguments);
        command
    }

    /// An aggregator at work, on the udp datapath.
    pub fn running(&self) -> Process {
        ready(self.aggregator(&["--datapath", "udp"]))
    }

    /// Every rank at work.
    pub fn ranks(&self, arguments: &[&str]) -> Vec<Process> {
        (0..self.workers).map(|rank| spawn(self.rank(rank, arguments))).collect()
    }
}

/// Starts an aggregator and waits until it is ready.
pub fn ready(command: Command) -> Process {
    let mut aggregator = spawn(command);
    aggregator.wait_for_output("ready: ", LIMIT).expect("an aggregator");
    aggregator
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}
