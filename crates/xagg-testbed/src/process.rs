//! Processes of a testbed: stopped by pid when dropped, with all that they started, their output kept.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// A running process, the head of a process group of its own. When it has ended, what it left running in its group is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Set once it has been reaped: its id may be another's from then on.
    ended: Option<ExitStatus>,
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
        Ok(Self { child, ended: None, stdout, stderr })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to it and its children.
    ///
    /// # Errors
    /// What the system says; that there is no such process, if it was seen to end.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if self.ended.is_some() {
            return Err(Errno::ESRCH.into());
        }
        Ok(killpg(self.id(), signal)?)
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Its status, if it has ended. Its group is killed before it is reaped: as long as it is a zombie nobody else has its id.
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            if waitid(Id::Pid(self.id()), flags)? != WaitStatus::StillAlive {
                self.end()?;
            }
        }
        Ok(self.ended)
    }

    /// Kills the group and reaps the process.
    fn end(&mut self) -> io::Result<()> {
        let _gone_already = killpg(self.id(), Signal::SIGKILL);
        self.ended = Some(self.child.wait()?);
        Ok(())
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// What the system says.
    pub fn finished(&mut self) -> io::Result<Option<Finished>> {
        let Some(status) = self.try_wait()? else { return Ok(None) };
        Ok(Some(Finished { status, stdout: self.stdout()?, stderr: self.stderr()? }))
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
            let ended = self.try_wait()?.is_some();
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
            if let Some(finished) = self.finished()? {
                return Ok(finished);
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
        if self.ended.is_none() {
            let _reaped = self.end();
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
