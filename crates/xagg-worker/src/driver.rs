//! The thread that owns a rank's socket and state machine. It alone touches them; others send it commands.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xagg_proto::worker::{Buffer, Event, Failure, Stats, Waits, WorkerError};
use xagg_proto::{Job, Time, Worker};
use xagg_socket::{BatchSocket, LONGEST_WAIT, Retries, Waker};
use xagg_wire::Reduction;

/// Batches received, and sent, before the other gets its turn: receipts open the window, sending empties it.
const BATCHES_A_TURN: usize = 4;
/// How often in a row sending may fail with what an ICMP message can cause: an error of our own machine fails every time.
const MOST_CLAIMS: u32 = 8;

/// How an operation ends: the buffer comes back in any case.
pub(crate) type Ended = Result<Buffer, Failure>;

/// What is called when an operation ends.
pub(crate) type Done = Box<dyn FnOnce(Ended) + Send>;

/// What the driver is told.
pub(crate) enum Command {
    /// Begin an all-reduce.
    AllReduce { buffer: Buffer, reduction: Reduction, weight: u32, done: Done },
    /// Fail what is in progress and end.
    Close,
}

/// What the driver lets others see of its worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub stats: Stats,
    pub waits: Waits,
}

/// The latest one, taken at every turn of the driver.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedSnapshot(Arc<Mutex<Snapshot>>);

impl SharedSnapshot {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread's state.
pub(crate) struct Driver {
    worker: Worker,
    socket: BatchSocket,
    aggregator: SocketAddr,
    lanes: usize,
    /// What the path must carry, in bytes.
    mtu: usize,
    packet_len: usize,
    /// Packets in one call; 1 where the aggregator cannot take batches.
    segments: usize,
    waker: Waker,
    inbox: Receiver<Command>,
    /// Told once whether the worker has joined.
    joined: Option<Sender<Result<(), WorkerError>>>,
    pending: HashMap<u64, Done>,
    snapshot: SharedSnapshot,
    /// Packets to be sent; `unsent` bytes of it could not be yet.
    outgoing: Vec<u8>,
    unsent: usize,
    retries: Retries,
    claims: u32,
    origin: Instant,
    closed: bool,
}

impl Driver {
    pub(crate) fn new(
        worker: Worker,
        socket: BatchSocket,
        job: &Job,
        inbox: Receiver<Command>,
        joined: Sender<Result<(), WorkerError>>,
        snapshot: SharedSnapshot,
    ) -> io::Result<Self> {
        let waker = Waker::new()?;
        let packet_len = job.packet_len();
        let segments = socket.segments(packet_len);
        Ok(Self {
            worker,
            socket,
            aggregator: job.aggregator,
            lanes: job.lanes,
            mtu: job.mtu(),
            packet_len,
            segments,
            waker,
            inbox,
            joined: Some(joined),
            pending: HashMap::new(),
            snapshot,
            outgoing: vec![0; segments * packet_len],
            unsent: 0,
            retries: Retries::default(),
            claims: 0,
            origin: Instant::now(),
            closed: false,
        })
    }

    /// What wakes the thread after a command has been sent.
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Works until closed.
    pub(crate) fn run(mut self) {
        loop {
            self.take_commands();
            let more_to_receive = self.receive();
            let now = self.now();
            self.worker.handle_timeout(now);
            let more_to_send = self.transmit();
            self.report();
            if self.closed {
                return;
            }
            if !more_to_receive && !more_to_send {
                self.wait();
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    /// Waits for packets, commands, or a timer of the worker. One that has failed receives no more, so only commands wake it.
    fn wait(&mut self) {
        let timeout = self.timeout();
        let waited = if self.worker.error().is_some() {
            self.waker.wait(timeout)
        } else {
            self.socket.wait(&self.waker, self.unsent > 0, timeout)
        };
        if let Err(error) = waited {
            self.worker.handle_network_error(format!("waiting for packets: {error}"));
        }
    }

    /// While packets wait for room, there is no use in looking for more of them.
    fn timeout(&mut self) -> Duration {
        let now = self.now();
        let next = if self.unsent > 0 { self.worker.next_timer() } else { self.worker.poll_timeout() };
        next.map_or(LONGEST_WAIT, |at| at.since(now)).min(LONGEST_WAIT)
    }

    fn take_commands(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(Command::AllReduce { buffer, reduction, weight, done }) => {
                    let now = self.now();
                    match self.worker.submit(now, buffer, reduction, weight) {
                        Ok(operation) => drop(self.pending.insert(operation, done)),
                        Err(failure) => done(Err(*failure)),
                    }
                }
                Err(TryRecvError::Empty) => return,
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return self.worker.handle_network_error("the client has been closed".to_owned());
                }
            }
        }
    }

    /// Receives a few batches; whether there may be more. A worker that has failed needs nothing more.
    fn receive(&mut self) -> bool {
        for _ in 0..BATCHES_A_TURN {
            if self.worker.error().is_some() {
                return false;
            }
            let now = self.now();
            let worker = &mut self.worker;
            match self.socket.receive(|_, marked, datagram| worker.handle_datagram(now, marked, datagram)) {
                Ok(0) => {
                    self.retries.reset();
                    return false;
                }
                Ok(_) => self.retries.reset(),
                Err(error) if is_transient(&error) => {
                    if !self.retries.pause() {
                        self.worker.handle_network_error(self.refusal(&error));
                    }
                }
                Err(error) => match Claim::of(&error) {
                    Some(claim) => self.pass_on(claim),
                    None => self.handle_error(&error),
                },
            }
        }
        true
    }

    /// Sends a few batches; whether there may be more.
    fn transmit(&mut self) -> bool {
        for _ in 0..BATCHES_A_TURN {
            if self.unsent == 0 {
                self.unsent = self.fill();
            }
            if self.unsent == 0 {
                return false;
            }
            match self.socket.send(self.aggregator, &self.outgoing[..self.unsent], self.packet_len) {
                Ok(true) => (self.unsent, self.claims) = (0, 0),
                // The wait ends when there is room again.
                Ok(false) => return false,
                Err(error) => {
                    if !self.is_bearable(&error) {
                        self.handle_send_error(&error);
                    }
                }
            }
        }
        true
    }

    /// Whether sending may go on after this error: one of a few claims, or any that the aggregator of a worker that has joined cannot
    /// be reached. Then what was to be sent is lost, and the worker's timeouts bound it.
    fn is_bearable(&mut self, error: &io::Error) -> bool {
        let Some(claim) = Claim::of(error) else { return false };
        self.pass_on(claim);
        if self.claims < MOST_CLAIMS {
            self.claims += 1;
            return true;
        }
        let is_unreachable = claim != Claim::TooLong && self.joined.is_none();
        if is_unreachable {
            self.unsent = 0;
        }
        is_unreachable
    }

    fn pass_on(&mut self, claim: Claim) {
        match claim {
            Claim::Closed => {
                let now = self.now();
                self.worker.handle_unreachable(now);
            }
            Claim::NoWay => self.worker.handle_no_way(),
            Claim::TooLong => {}
        }
    }

    /// What was to be sent is lost, like any other packet that does not arrive. Some devices take no batches and say so only
    /// when they get one.
    fn handle_send_error(&mut self, error: &io::Error) {
        let batch = self.unsent > self.packet_len;
        self.unsent = 0;
        if batch && matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) {
            tracing::info!(
                "no segmentation offload towards {} ({error}): packets are sent one by one",
                self.aggregator
            );
            self.segments = 1;
        } else {
            self.handle_error(error);
        }
    }

    /// Fills the outgoing buffer with packets that may go now; how many bytes.
    fn fill(&mut self) -> usize {
        let now = self.now();
        let mut filled = 0;
        for packet in self.outgoing.chunks_exact_mut(self.packet_len).take(self.segments) {
            let Some(len) = self.worker.poll_transmit(now, packet) else { break };
            filled += len;
        }
        filled
    }

    /// Hands what has happened to whoever waits for it.
    fn report(&mut self) {
        self.share_snapshot();
        while let Some(event) = self.worker.poll_event() {
            match event {
                Event::Joined { no_gso } => {
                    if no_gso {
                        self.segments = 1;
                    }
                    self.answer_join(Ok(()));
                }
                Event::Complete { operation, buffer } => self.finish(operation, Ok(buffer)),
                Event::Failed { operation, error, buffer } => self.finish(operation, Err((error, buffer))),
            }
        }
        if let Some(error) = self.worker.error().cloned() {
            self.answer_join(Err(error));
        }
    }

    fn share_snapshot(&self) {
        let mut snapshot = self.snapshot.lock();
        snapshot.stats = self.worker.stats();
        snapshot.waits.clone_from(self.worker.waits());
    }

    fn answer_join(&mut self, outcome: Result<(), WorkerError>) {
        if let Some(joined) = self.joined.take() {
            // Nobody listens any more if the client was dropped meanwhile.
            let _heard = joined.send(outcome);
        }
    }

    fn finish(&mut self, operation: u64, outcome: Ended) {
        if let Some(done) = self.pending.remove(&operation) {
            done(outcome);
        }
    }

    fn handle_error(&mut self, error: &io::Error) {
        match error.kind() {
            // A full queue on the way out is loss like any other.
            _ if is_transient(error) => {}
            _ if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                self.worker.handle_network_error(format!(
                    "lanes = {} need an MTU of {} bytes on the whole path to {}, which is smaller: raise it on all \
                     machines, or lower `lanes` in the job file (`xagg job --mtu` says what fits)",
                    self.lanes, self.mtu, self.aggregator
                ));
            }
            _ => self.worker.handle_network_error(self.refusal(error)),
        }
    }

    fn refusal(&self, error: &io::Error) -> String {
        format!(
            "the network refuses packets to {}: {error}. Is the address in the job file right, and is there a route to it?",
            self.aggregator
        )
    }
}

/// What an error says that an ICMP message can have caused. Whoever forges one needs no cookie, so it is only a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// The aggregator's machine is there, and nobody listens at the port.
    Closed,
    /// Packets do not get there: no route, no neighbour, an interface that is down, a filter.
    NoWay,
    /// Packets are too long for the way.
    TooLong,
}

impl Claim {
    fn of(error: &io::Error) -> Option<Self> {
        match error.raw_os_error()? {
            libc::ECONNREFUSED => Some(Self::Closed),
            libc::EMSGSIZE => Some(Self::TooLong),
            libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::ENONET
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::EPROTO
            | libc::EACCES
            | libc::EPERM => Some(Self::NoWay),
            _ => None,
        }
    }
}

/// Whether an error is one of a moment without memory or room.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::OutOfMemory)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn driver() -> Driver {
        let network = xagg_testbed::loopback::network();
        let text = format!(
            "job = 1\nsecret = \"a secret for unit tests\"\nlanes = 16\nslots = 8\naggregator = \"{network}.1:9700\"\n\
             [[worker]]\nrank = 0\naddress = \"{network}.2:9701\"\n"
        );
        let job = Job::parse(&text).expect("valid");
        let socket = BatchSocket::bind(job.workers[0]).expect("binds");
        let worker = Worker::new(&job, 0, 1).expect("rank 0");
        Driver::new(worker, socket, &job, channel().1, channel().0, SharedSnapshot::default())
            .expect("starts")
    }

    #[test]
    fn a_device_that_refuses_batches_gets_single_packets_and_a_second_refusal_is_an_error() {
        let mut driver = driver();
        assert!(driver.segments > 1, "this kernel has segmentation offload");
        driver.unsent = 2 * driver.packet_len;
        driver.handle_send_error(&io::Error::from_raw_os_error(libc::EIO));
        assert_eq!((driver.segments, driver.unsent), (1, 0));
        assert_eq!(driver.worker.error(), None);

        driver.unsent = driver.packet_len;
        driver.handle_send_error(&io::Error::from_raw_os_error(libc::EIO));
        let error = driver.worker.error().expect("a single packet is refused").to_string();
        assert!(error.contains("the network refuses packets"), "{error}");
    }

    #[test]
    fn while_there_is_no_room_to_send_only_timers_end_the_wait() {
        let mut driver = driver();
        assert_eq!(driver.timeout(), Duration::ZERO, "a HELLO is due");
        driver.unsent = driver.packet_len;
        assert_eq!(driver.timeout(), LONGEST_WAIT, "but it could not be sent");
    }

    #[test]
    fn whatever_the_network_says_of_the_aggregator_a_worker_that_has_joined_goes_on() {
        for code in [libc::ECONNREFUSED, libc::EHOSTUNREACH] {
            let error = io::Error::from_raw_os_error(code);
            let mut driver = driver();
            (driver.claims, driver.unsent) = (MOST_CLAIMS, driver.packet_len);
            assert!(!driver.is_bearable(&error), "it may be that nothing can ever be sent");
            driver.joined = None;
            assert!(driver.is_bearable(&error));
            assert_eq!((driver.unsent, driver.worker.error()), (0, None));
        }
    }

    /// Puts something in the socket's place that is none, so that every call fails for ever.
    fn break_socket(socket: &BatchSocket) {
        use std::os::fd::AsRawFd;
        let nothing = std::fs::File::open("/dev/null").expect("opens");
        // SAFETY: both descriptors are open, and the socket's owner goes on to own its number.
        let replaced = unsafe { libc::dup2(nothing.as_raw_fd(), socket.as_raw_fd()) };
        assert_eq!(replaced, socket.as_raw_fd());
    }

    #[test]
    fn a_socket_that_is_broken_for_good_is_an_error_and_no_busy_loop() {
        let mut driver = driver();
        break_socket(&driver.socket);
        assert!(!driver.receive(), "there is nothing more to receive");
        let error = driver.worker.error().expect("it has failed").to_string();
        assert!(error.contains("rank 0") && error.contains("the network refuses packets"), "{error}");
        assert!(!driver.receive() && !driver.transmit(), "nor to send");
        assert_eq!(driver.timeout(), LONGEST_WAIT);
        // What was put in its place is always ready.
        let start = Instant::now();
        driver.wait();
        assert!(start.elapsed() >= LONGEST_WAIT);
    }
}
