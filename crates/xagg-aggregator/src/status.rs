//! What an aggregator is doing, and how to ask a running one: a line of JSON from an abstract Unix socket, which belongs to
//! the network namespace and leaves nothing behind.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;
use xagg_proto::Job;
use xagg_proto::aggregator::memory_needed;
use xagg_wire::counter::COUNTERS;
use xagg_wire::{Counter, Reason};

use crate::report::{JobReport, Report};

/// How long an answer, or its reader, may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How soon the server notices that it is to stop.
const STOP_MILLIS: u8 = 100;

/// What an aggregator is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// `xdp-native`, `xdp-generic` or `udp`.
    pub datapath: String,
    /// The interface, with a kernel datapath.
    pub interface: Option<String>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Which life of it.
    pub incarnation: u32,
    /// Since it is ready.
    pub uptime_seconds: f64,
    /// Packets that belong to no job, by reason of their drop.
    pub drops: BTreeMap<String, u64>,
    /// Its jobs.
    pub jobs: Vec<JobStatus>,
}

/// What an aggregator does for one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Which job.
    pub job: u32,
    /// Which view of it.
    pub view: u16,
    /// f32 values a packet.
    pub lanes: usize,
    /// Fragments that fit its memory.
    pub slots: u32,
    /// Memory reserved for them.
    pub bytes_reserved: u64,
    /// Events, by name.
    pub counters: BTreeMap<String, u64>,
    /// Packets refused, by reason.
    pub drops: BTreeMap<String, u64>,
    /// The ranks that the job waits for now: those missing from the oldest fragment that some rank has contributed to and
    /// some has not. Empty if all have come equally far.
    pub waiting_for: Vec<u16>,
    /// By rank.
    pub workers: Vec<WorkerStatus>,
}

/// How far a worker has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its rank.
    pub rank: u16,
    /// Its address and port.
    pub address: SocketAddr,
    /// Whether it has joined.
    pub joined: bool,
    /// Packets of it that were admitted.
    pub packets: u64,
    /// How many fragments of the job's stream it has contributed to, counted to the last one.
    pub fragments: u64,
    /// How many fragments the furthest rank is ahead of it.
    pub behind: u64,
    /// How long ago it was last heard.
    pub last_heard_seconds: Option<f64>,
}

/// Why a status cannot be had.
#[derive(Debug, Error)]
pub enum QueryError {
    /// Nobody listens.
    #[error(
        "no aggregator at {address} runs on this machine (in this network namespace): start one with `xagg aggregator --job FILE`"
    )]
    Nobody {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The connection broke or took too long.
    #[error("the aggregator at {address} does not answer: {reason}")]
    Silent {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        reason: io::Error,
    },
}

impl JobStatus {
    pub(crate) fn new(job: &Job, report: &JobReport) -> Self {
        let furthest = report.furthest();
        let workers =
            (0..).zip(&job.workers).zip(&report.workers).map(|((rank, address), worker)| WorkerStatus {
                rank,
                address: *address,
                joined: worker.joined,
                packets: worker.packets,
                fragments: worker.sequences,
                behind: furthest - worker.sequences,
                last_heard_seconds: worker.last_heard.map(|ago| ago.as_secs_f64()),
            });
        Self {
            job: job.id,
            view: job.view,
            lanes: job.lanes,
            slots: job.slots,
            bytes_reserved: memory_needed(job),
            counters: Counter::ALL
                .iter()
                .map(|counter| (counter.name().to_owned(), report.counters[counter.index()]))
                .collect(),
            drops: drops(&report.counters),
            waiting_for: report.waiting_for(),
            workers: workers.collect(),
        }
    }
}

/// The counters of reasons that are not 0, by name.
fn drops(counters: &[u64; COUNTERS]) -> BTreeMap<String, u64> {
    let counted = Reason::ALL.iter().map(|reason| (reason.name().to_owned(), counters[usize::from(*reason)]));
    counted.filter(|(_, count)| *count > 0).collect()
}

/// The drops of what belongs to no job.
pub(crate) fn unassigned_drops(report: &Report) -> BTreeMap<String, u64> {
    drops(&report.unassigned)
}

/// The addresses of the aggregators that run in this network namespace.
#[must_use]
pub fn running() -> Vec<SocketAddr> {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    // A listening abstract socket is shown with an @ before its name.
    let name = |line: &str| {
        line.split_whitespace().last()?.strip_prefix('@')?.strip_prefix(SOCKET_PREFIX)?.parse().ok()
    };
    let found: std::collections::BTreeSet<SocketAddr> = sockets.lines().filter_map(name).collect();
    found.into_iter().collect()
}

/// Asks the aggregator at this address, which must run in this network namespace.
///
/// # Errors
/// [`QueryError`].
pub fn query(address: SocketAddr) -> Result<Status, QueryError> {
    let silent = |reason| QueryError::Silent { address, reason };
    let stream = connect(address).map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => QueryError::Nobody { address },
        _ => silent(error),
    })?;
    let line = read_line(stream).map_err(silent)?;
    serde_json::from_slice(&line).map_err(|error| silent(error.into()))
}

fn connect(address: SocketAddr) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Connecting waits too, while the queue of an aggregator that does nothing is full.
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.connect(&SockAddr::unix(format!("\0{SOCKET_PREFIX}{address}"))?)?;
    Ok(OwnedFd::from(socket).into())
}

/// All of it within [`PATIENCE`]: whoever has the name may not be an aggregator.
fn read_line(mut stream: UnixStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let (mut line, mut part) = (vec![], [0; 4096]);
    while !line.ends_with(b"\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => line.extend_from_slice(&part[..count]),
        }
    }
    Ok(line)
}

const SOCKET_PREFIX: &str = "xagg-aggregator-";

fn socket_name(address: SocketAddr) -> io::Result<unix::SocketAddr> {
    unix::SocketAddr::from_abstract_name(format!("{SOCKET_PREFIX}{address}"))
}

/// Answers status queries until dropped.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves what `status` gives.
    pub(crate) fn start(
        address: SocketAddr,
        status: impl Fn() -> Status + Send + 'static,
    ) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&socket_name(address)?)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            let serve = move || {
                while !stop.load(Ordering::Relaxed) {
                    serve_next(&listener, &status);
                }
            };
            std::thread::Builder::new().name("xagg-status".to_owned()).spawn(serve)?
        };
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Answers the next query, if one comes soon.
fn serve_next(listener: &UnixListener, status: &impl Fn() -> Status) {
    let mut polled = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    if poll(&mut polled, PollTimeout::from(STOP_MILLIS)).is_ok_and(|ready| ready > 0)
        && let Ok((mut stream, _)) = listener.accept()
    {
        let answer = serde_json::to_string(&status()).unwrap_or_default();
        // Whoever hangs up or does not read gets nothing.
        let _sent = stream
            .set_write_timeout(Some(PATIENCE))
            .and_then(|()| stream.write_all(format!("{answer}\n").as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_name_and_does_not_answer_is_not_waited_for_long() {
        let address = format!("{}.1:9700", xagg_testbed::loopback::network()).parse().expect("an address");
        let listener = UnixListener::bind_addr(&socket_name(address).expect("a name")).expect("binds");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A little of an answer, again and again.
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("somebody asks");
                while !stop.load(Ordering::Relaxed) && stream.write_all(b" ").is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            let begin = Instant::now();
            let error = query(address).expect_err("no answer");
            assert!(matches!(error, QueryError::Silent { .. }), "{error}");
            assert!(begin.elapsed() < 2 * PATIENCE);
            stop.store(true, Ordering::Relaxed);
        });
    }
}
