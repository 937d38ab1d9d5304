//! The udp datapath: the twin of the kernel program over a plain socket. Needs no privileges and runs on any Linux.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;
use xagg_proto::aggregator::{Action, AdmitError};
use xagg_proto::{Aggregator, Job, Time};
use xagg_socket::{BatchSocket, LONGEST_WAIT, Retries, Waker};

use crate::report::{JobReport, Report, WorkerReport};

/// How long a full send buffer may stay full before an answer is given up: it is then a lost packet like any other.
const SEND_PATIENCE: Duration = Duration::from_millis(10);

/// Why the udp datapath does not run.
#[derive(Debug, Error)]
pub enum UdpError {
    /// The socket cannot be bound.
    #[error(
        "cannot listen on {address}: {reason}. Is another aggregator running here, and is this an address of this machine?"
    )]
    Bind {
        /// The aggregator's address and port.
        address: SocketAddr,
        /// What the system said.
        reason: io::Error,
    },
    /// A job is refused.
    #[error(transparent)]
    Admit(#[from] AdmitError),
    /// The system refuses a waker or a thread.
    #[error("cannot start the udp datapath: {0}")]
    System(#[from] io::Error),
}

/// The udp datapath at work. Dropping it stops its thread and frees its memory.
pub struct UdpAggregator {
    shared: Arc<Shared>,
    jobs: Vec<(u32, u16)>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    aggregator: Mutex<Aggregator>,
    stop: AtomicBool,
    /// Why the thread has ended, if it was not told to.
    failure: Mutex<Option<io::Error>>,
    origin: Instant,
}

impl Shared {
    fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }
}

impl UdpAggregator {
    /// Admits the jobs and listens at their aggregator's address.
    ///
    /// # Errors
    /// [`UdpError`].
    pub fn start(address: SocketAddr, incarnation: u32, jobs: &[Job]) -> Result<Self, UdpError> {
        let socket = BatchSocket::bind(address).map_err(|reason| UdpError::Bind { address, reason })?;
        let packet_len = jobs.first().map_or(1, Job::packet_len);
        let mut aggregator = Aggregator::new(incarnation, socket.receive_room(packet_len));
        for job in jobs {
            aggregator.admit_job(job)?;
        }
        let waker = Waker::new()?;
        let (aggregator, origin) = (Mutex::new(aggregator), Instant::now());
        let shared =
            Arc::new(Shared { aggregator, stop: AtomicBool::new(false), failure: Mutex::new(None), origin });
        let thread = {
            let (shared, waker) = (Arc::clone(&shared), waker.clone());
            std::thread::Builder::new().name("xagg-udp".to_owned()).spawn(move || {
                // The socket is closed with this, so workers notice at once that nobody listens.
                if let Err(error) = serve(&shared, socket, &waker) {
                    *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            })?
        };
        let jobs = jobs.iter().map(|job| (job.id, job.view)).collect();
        Ok(Self { shared, jobs, waker, thread: Some(thread) })
    }

    /// Why it has ended by itself, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let panicked = || {
            let has_ended = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
            has_ended.then(|| "its thread has panicked".to_owned())
        };
        failure.as_ref().map(ToString::to_string).or_else(panicked)
    }

    /// All counters and every worker's progress.
    #[must_use]
    pub fn report(&self) -> Report {
        let now = self.shared.now();
        let aggregator = self.shared.aggregator.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = self.jobs.iter().filter_map(|(job, view)| {
            let workers = aggregator.progress(*job, *view).map(|progress| WorkerReport {
                joined: progress.joined,
                packets: progress.packets,
                sequences: progress.sequences,
                last_heard: progress.last_heard.map(|at| now.since(at)),
            });
            Some(JobReport { counters: *aggregator.counters(*job, *view)?, workers: workers.collect() })
        });
        Report { unassigned: *aggregator.unassigned(), jobs: jobs.collect() }
    }
}

impl Drop for UdpAggregator {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// The datapath's thread: receives, lets the twin work, sends, until told to stop.
fn serve(shared: &Shared, mut socket: BatchSocket, waker: &Waker) -> io::Result<()> {
    let (mut outbox, mut retries) = (Outbox::default(), Retries::default());
    while !shared.stop.load(Ordering::Relaxed) {
        socket.wait(waker, false, LONGEST_WAIT)?;
        serve_waiting(shared, &mut socket, &mut outbox, &mut retries)?;
    }
    Ok(())
}

/// All packets that wait. An ICMP error about a worker says nothing about the others, so receiving goes on, but not for ever.
fn serve_waiting(
    shared: &Shared,
    socket: &mut BatchSocket,
    outbox: &mut Outbox,
    retries: &mut Retries,
) -> io::Result<()> {
    while !shared.stop.load(Ordering::Relaxed) {
        match serve_batch(shared, socket, outbox) {
            Ok(0) => break,
            Ok(_) => retries.reset(),
            Err(error) if retries.pause() => tracing::debug!("receiving: {error}"),
            Err(error) => return Err(error),
        }
    }
    retries.reset();
    Ok(())
}

/// One batch of packets; how many there were.
fn serve_batch(shared: &Shared, socket: &mut BatchSocket, outbox: &mut Outbox) -> io::Result<usize> {
    let now = shared.now();
    let received = {
        let mut aggregator = shared.aggregator.lock().unwrap_or_else(PoisonError::into_inner);
        socket.receive(|source, marked, packet| match aggregator.handle(now, source, marked, packet) {
            Action::Drop(_) => {}
            Action::Reply { len } => outbox.push(source, &packet[..len]),
            Action::Broadcast { len } => {
                while let Some(destination) = aggregator.next_copy(&mut packet[..len]) {
                    outbox.push(destination, &packet[..len]);
                }
            }
        })
    };
    outbox.flush(socket);
    received
}

/// Packets on their way out, by destination and in order: a receipt that overtook an older one would look like loss.
#[derive(Default)]
struct Outbox(HashMap<SocketAddr, Vec<Run>>);

/// Packets of the same length, which go out together.
struct Run {
    packet_len: usize,
    packets: Vec<u8>,
}

impl Outbox {
    fn push(&mut self, destination: SocketAddr, packet: &[u8]) {
        let runs = self.0.entry(destination).or_default();
        match runs.last_mut() {
            Some(run) if run.packet_len == packet.len() => run.packets.extend_from_slice(packet),
            _ => runs.push(Run { packet_len: packet.len(), packets: packet.to_vec() }),
        }
    }

    fn flush(&mut self, socket: &BatchSocket) {
        for (destination, runs) in &mut self.0 {
            for run in runs.drain(..) {
                for batch in run.packets.chunks(socket.segments(run.packet_len) * run.packet_len) {
                    send(socket, *destination, batch, run.packet_len);
                }
            }
        }
    }
}

fn send(socket: &BatchSocket, destination: SocketAddr, packets: &[u8], packet_len: usize) {
    match socket.send(destination, packets, packet_len) {
        Ok(true) => {}
        Ok(false) => {
            let _timeout_or_room = socket.wait_for_room(SEND_PATIENCE);
            let _lost_if_still_full = socket.send(destination, packets, packet_len);
        }
        Err(error) => tracing::debug!("sending to {destination}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_thread_that_panics_is_a_failure() {
        let (aggregator, failure) = (Mutex::new(Aggregator::new(1, 16)), Mutex::new(None));
        let shared =
            Arc::new(Shared { aggregator, stop: AtomicBool::new(false), failure, origin: Instant::now() });
        let waker = Waker::new().expect("a waker");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv().expect("panics when the other end is dropped"));
        let datapath = UdpAggregator { shared, jobs: vec![], waker, thread: Some(thread) };
        assert_eq!(datapath.failure(), None);
        drop(end);
        let noticed = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            datapath.failure().is_some_and(|failure| failure.contains("panicked"))
        });
        assert!(noticed);
    }

    #[test]
    fn a_socket_that_is_broken_for_good_ends_the_datapath() {
        let address = format!("{}.1:9700", xagg_testbed::loopback::network()).parse().expect("an address");
        let mut socket = BatchSocket::bind(address).expect("binds");
        let aggregator = Mutex::new(Aggregator::new(1, 16));
        let (stop, failure) = (AtomicBool::new(false), Mutex::new(None));
        let shared = Shared { aggregator, stop, failure, origin: Instant::now() };
        let (mut outbox, mut retries) = (Outbox::default(), Retries::default());
        serve_waiting(&shared, &mut socket, &mut outbox, &mut retries).expect("nothing waits");

        let nothing = std::fs::File::open("/dev/null").expect("opens");
        // SAFETY: both descriptors are open, and the socket's owner goes on to own its number.
        let replaced = unsafe { libc::dup2(nothing.as_raw_fd(), socket.as_raw_fd()) };
        assert_eq!(replaced, socket.as_raw_fd());
        let error = serve_waiting(&shared, &mut socket, &mut outbox, &mut retries).expect_err("no socket");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
