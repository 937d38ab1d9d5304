//! One rank of a job.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use thiserror::Error;
use xagg_proto::worker::{Buffer, Failure, Stats, Waits, WorkerError};
use xagg_proto::{Job, Worker};
use xagg_socket::{BatchSocket, Waker};
use xagg_wire::Reduction;

use crate::driver::{Command, Done, Driver, SharedSnapshot};
use crate::handle::Handle;

/// Why a rank cannot join its job.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The rank's address cannot be used.
    #[error("rank {rank} cannot use its address {address}: {reason}. {advice}")]
    Bind {
        /// The rank.
        rank: u16,
        /// Its address in the job file.
        address: SocketAddr,
        /// What the system said.
        reason: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// The system refuses a poll or a thread.
    #[error("rank {rank} cannot start: {reason}")]
    System {
        /// The rank.
        rank: u16,
        /// What the system said.
        reason: io::Error,
    },
    /// The aggregator does not answer, or refuses.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// A rank that has joined its job. Can be used from several threads; operations are issued in the order of the calls, which must
/// be the same on all ranks. Dropping it ends the membership; what is in progress fails.
#[derive(Debug)]
pub struct Client {
    rank: u16,
    commands: Sender<Command>,
    waker: Waker,
    snapshot: SharedSnapshot,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Joins the job as `rank`: binds the rank's address and waits for the aggregator's answer, at most for the job's timeout.
    ///
    /// # Errors
    /// [`ClientError`], each with what to do.
    pub fn connect(job: &Job, rank: u16) -> Result<Self, ClientError> {
        let worker = Worker::new(job, rank, rand::random())?;
        let address = job.workers[usize::from(rank)];
        let system = |reason| ClientError::System { rank, reason };
        let socket = BatchSocket::bind(address).map_err(|reason| bind_error(rank, address, reason))?;
        socket.connect(job.aggregator).map_err(system)?;
        let (commands, inbox) = channel();
        let (joined, answer) = channel();
        let snapshot = SharedSnapshot::default();
        let driver = Driver::new(worker, socket, job, inbox, joined, snapshot.clone()).map_err(system)?;
        let waker = driver.waker();
        let thread = std::thread::Builder::new()
            .name(format!("xagg-rank-{rank}"))
            .spawn(move || driver.run())
            .map_err(system)?;
        let client = Self { rank, commands, waker, snapshot, thread: Some(thread) };
        // Bounded: the worker gives up joining after the job's timeout, and a driver that dies hangs up.
        let outcome = answer.recv().unwrap_or_else(|_| Err(driver_failed(rank)));
        outcome.map(|()| client).map_err(ClientError::from)
    }

    /// Begins an all-reduce of the values; any number may be in progress.
    pub fn all_reduce(&self, values: Vec<f32>, reduction: Reduction) -> Handle {
        let (handle, done) = Handle::new(self.rank, self.snapshot.clone());
        self.all_reduce_with(Box::new(values), reduction, 1, done);
        handle
    }

    /// Begins an all-reduce in place: `buffer` holds the values and then the result. `done` is called once, on the driver's
    /// thread, with the buffer; it should be quick. `weight`, 1 to 65535, is what this rank adds to the divisor of a mean: how many
    /// samples the values are a sum over, for instance. If the thread fails (a `done` that panics), it is dropped uncalled.
    pub fn all_reduce_with(
        &self,
        buffer: Buffer,
        reduction: Reduction,
        weight: u32,
        done: impl FnOnce(Result<Buffer, Failure>) + Send + 'static,
    ) {
        let done: Done = Box::new(done);
        match self.commands.send(Command::AllReduce { buffer, reduction, weight, done }) {
            Ok(()) => self.waker.wake(),
            Err(failed) => {
                if let Command::AllReduce { buffer, done, .. } = failed.0 {
                    done(Err((driver_failed(self.rank), buffer)));
                }
            }
        }
    }

    /// What this rank has counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.snapshot.lock().stats.clone()
    }

    /// For whom this rank has waited so far with nothing left to push, and for whom it waits now. Waits shorter than 50 ms are
    /// nobody's; the times of several stragglers are known to a second.
    #[must_use]
    pub fn waits(&self) -> Waits {
        self.snapshot.lock().waits.clone()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _sent = self.commands.send(Command::Close);
        self.waker.wake();
        // In a callback on the driver's own thread there is nothing to wait for: it ends once the callback returns.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ended = thread.join();
        }
    }
}

fn bind_error(rank: u16, address: SocketAddr, reason: io::Error) -> ClientError {
    let advice = match reason.kind() {
        io::ErrorKind::AddrInUse => "Is another process running as this rank?",
        io::ErrorKind::AddrNotAvailable => {
            "Start each rank on the machine that has its address, or change the address in the job file"
        }
        _ => "Change the address or the port in the job file",
    };
    ClientError::Bind { rank, address, reason, advice }
}

/// The error of operations whose driver has panicked: closing a client fails them in the driver itself.
pub(crate) fn driver_failed(rank: u16) -> WorkerError {
    let reason = "the client's thread has ended unexpectedly: see its panic on stderr, and join again with a higher `view`";
    WorkerError::Network { rank, reason: reason.to_owned() }
}
