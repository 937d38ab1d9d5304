//! Processes of a testbed: stopped by pid when dropped, their output kept.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A running process, the head of a process group of its own.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdout: File,
    stderr: File,
}

/// How a process has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Process {
    /// Starts a command, see [`crate::Node::command`].
    ///
    /// # Errors
    /// What the system says.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .process_group(0)
            .spawn()?;
        Ok(Self { child, stdout, stderr })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to it and its children.
    ///
    /// # Errors
    /// What the system says.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(killpg(Pid::from_raw(self.child.id().cast_signed()), signal)?)
    }

    /// What it has written to stdout so far.
    ///
    /// # Errors
    /// What the system says.
    pub fn stdout(&self) -> io::Result<String> {
        read(&self.stdout)
    }

    /// What it has written to stderr so far.
    ///
    /// # Errors
    /// What the system says.
    pub fn stderr(&self) -> io::Result<String> {
        read(&self.stderr)
    }

    /// Waits until stdout has this text.
    ///
    /// # Errors
    /// `TimedOut`, or `UnexpectedEof` if the process ends before; with what it has written.
    pub fn wait_for_output(&mut self, text: &str, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let ended = self.child.try_wait()?.is_some();
            if self.stdout()?.contains(text) {
                return Ok(());
            }
            let kind = if ended { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::TimedOut };
            if ended || Instant::now() >= deadline {
                let (stdout, stderr) = (self.stdout()?, self.stderr()?);
                return Err(io::Error::new(kind, format!("no {text:?} in its output: {stdout}{stderr}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// `TimedOut` if it has not ended by then, with what it has written.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Finished> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Finished { status, stdout: self.stdout()?, stderr: self.stderr()? });
            }
            if Instant::now() >= deadline {
                let (stdout, stderr) = (self.stdout()?, self.stderr()?);
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("still running: {stdout}{stderr}"),
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _gone_already = self.signal(Signal::SIGKILL);
            let _reaped = self.child.wait();
        }
    }
}

/// Reads from the start, without moving the position, which is the child's too.
fn read(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(String::from_utf8_lossy(&bytes[..filled]).into_owned())
}
