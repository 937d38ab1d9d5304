//! A process of the demo: its lines come as they are written, its complaints go to a log, and it ends when it is dropped.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

const POLL: Duration = Duration::from_millis(20);
/// How long a process that was asked to stop has before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
const TAIL_LINES: usize = 15;

/// A running process, the head of a process group, so that Ctrl-C at the terminal does not reach it.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command. `on_line` gets every line that it writes to stdout, on a thread of its own.
    ///
    /// # Errors
    /// When the log cannot be made or the program cannot be started.
    pub fn spawn(
        name: String,
        mut command: Command,
        log: PathBuf,
        on_line: impl FnMut(String) + Send + 'static,
    ) -> Result<Self> {
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file).process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        // Ends with the process, which holds the other end of the pipe.
        thread::spawn(move || stdout.lines().map_while(Result::ok).for_each(on_line));
        Ok(Self { name, child, log })
    }

    /// What it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// The last lines of its log, to be shown when it fails.
    pub fn tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n  ");
        format!("the end of {}:\n  {tail}", self.log.display())
    }

    /// Asks it to stop, as Ctrl-C does, and waits until it has; then the system has taken back what it held.
    pub fn stop(mut self) {
        self.signal(Signal::SIGINT);
        let deadline = Instant::now() + STOP_PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }

    fn signal(&self, signal: Signal) {
        // Fails only for a process that is gone already.
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_come_while_it_runs_and_it_is_gone_when_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let (sender, lines) = mpsc::channel();
        let process = Process::spawn(
            "test".into(),
            shell("echo lost >&2; echo one; sleep 60"),
            folder.path().join("log"),
            move |line| {
                sender.send(line).expect("the test listens");
            },
        )
        .expect("starts");
        assert_eq!(lines.recv_timeout(Duration::from_secs(5)).as_deref(), Ok("one"));
        let pid = process.child.id();
        assert!(process.tail().ends_with("lost"), "{}", process.tail());
        drop(process);
        assert!(!PathBuf::from(format!("/proc/{pid}")).exists());
    }

    #[test]
    fn an_end_is_noticed_with_its_status() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut process =
            Process::spawn("test".into(), shell("exit 7"), folder.path().join("log"), drop).expect("starts");
        let deadline = Instant::now() + Duration::from_secs(5);
        while process.ended().expect("the system says").is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(POLL);
        }
        assert_eq!(process.ended().expect("the system says").and_then(|status| status.code()), Some(7));
    }
}
