//! A worker: one rank that pushes its gradients to the aggregator and gets everybody's sum back.
//!
//! - commands: [`Worker::submit`];
//! - what came in: [`Worker::handle_datagram`], [`Worker::handle_unreachable`], [`Worker::handle_no_way`], [`Worker::handle_timeout`];
//! - what goes out: [`Worker::poll_transmit`], [`Worker::poll_timeout`], [`Worker::poll_event`];
//! - getters: [`Worker::stats`], [`Worker::waits`], [`Worker::rank`], [`Worker::error`], [`Worker::holds_result`], [`Worker::held`].
//!
//! The way of a gradient: `submit` appends its fragments to the stream (`fragments`); `poll_transmit` quantises the next one that
//! the window (`congestion`), the `pacer` and its own rate let go and the slots have room for, and notes it in the `flight`; receipts move it to the aggregator's
//! memory; its result, or a PULL where `results` shows that one was lost, completes it; the last one completes the `operation`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use xagg_wire::{Family, Flow, Kind, Operation, Reduction};

use crate::time::Jitter;
use crate::{Job, Time};

mod congestion;
mod error;
mod flight;
mod fragments;
mod operation;
mod pacer;
mod receive;
mod results;
mod stats;
mod transmit;
mod waiting;

pub use error::{Heard, Missing, Phase, WorkerError};
pub use operation::{Buffer, Failure, Values};
pub use stats::Stats;
pub use waiting::Waits;

use congestion::Congestion;
use flight::Flight;
use fragments::Fragments;
use operation::{InProgress, Operations};
use pacer::{Limit, Pace, Pacer};
use results::Results;
use waiting::{Waiting, missing};

/// The first wait for a WELCOME; it doubles up to [`longest_silence`].
const LEAST_HELLO_INTERVAL: Duration = Duration::from_millis(50);

/// HELLOs, probes and PULLs that go without an answer are repeated, at most so far apart that within the timeout many of
/// them are lost before the aggregator is given up.
fn longest_silence(timeout: Duration) -> Duration {
    (timeout / 10).min(Duration::from_secs(1))
}

/// What a worker tells its driver.
pub enum Event {
    /// The aggregator has let this worker in.
    Joined {
        /// Packets must be sent one by one, without segmentation offload.
        no_gso: bool,
    },
    /// An operation is complete; the buffer holds the result.
    Complete {
        /// The operation.
        operation: u64,
        /// The values given to [`Worker::submit`], replaced by the result.
        buffer: Buffer,
    },
    /// An operation has failed; some values in the buffer may have been replaced.
    Failed {
        /// The operation.
        operation: u64,
        /// Why; the same for all operations, since a job that has failed once is over.
        error: WorkerError,
        /// The values given to [`Worker::submit`].
        buffer: Buffer,
    },
}

/// Whether the aggregator has let this worker in.
enum Membership {
    Joining { hellos: u64, next: Time, interval: Duration, since: Option<Time> },
    Joined,
    Failed(WorkerError),
}

/// What the aggregator last said of an unfinished fragment.
struct PendingReport {
    sequence: u64,
    missing: Vec<u16>,
}

/// The state of one rank of a job. See the [module](self).
pub struct Worker {
    // What never changes.
    workers: u16,
    lanes: usize,
    slots: u32,
    checksum: bool,
    format: xagg_wire::fixed::Format,
    timeout: Duration,
    aggregator: SocketAddr,
    nonce: u64,
    /// Whose packets these are; the incarnation is 0 until WELCOME.
    flow: Flow,

    membership: Membership,
    jitter: Jitter,
    operations: Operations,
    issued: u64,
    fragments: Fragments,
    flight: Flight,
    congestion: Congestion,
    pacer: Pacer,
    limit: Option<Limit>,
    /// The marks of congestion on our packets that the aggregator has told of so far.
    marks: u16,
    results: Results,
    /// PULLs that the timer wants sent.
    pulls: VecDeque<u64>,
    /// Packets that may go although the window is full: it says nothing while all that fill it may be lost (RFC 9002 section 7.5).
    probes_due: usize,
    /// Whether the window, not the lack of fragments, was what last held back a packet.
    window_limited: bool,
    events: VecDeque<Event>,
    last_progress: Time,
    last_heard: Option<(Kind, Time)>,
    /// Since when the network says that the aggregator cannot be reached, unless something was heard from it since.
    unreachable: Option<Time>,
    /// When this worker last looked at its timers.
    last_look: Time,
    /// Whether the network says that there is no way to the aggregator, unless something was heard from it since.
    no_way: bool,
    last_pending: Option<PendingReport>,
    waiting: Waiting,
    stats: Stats,
}

impl Worker {
    /// The worker of `rank`; `nonce` is random and not 0, and new for every start of the process (WIRE H1).
    ///
    /// # Errors
    /// [`WorkerError::UnknownRank`].
    pub fn new(job: &Job, rank: u16, nonce: u64) -> Result<Self, WorkerError> {
        if usize::from(rank) >= job.workers.len() {
            return Err(WorkerError::UnknownRank { rank, workers: job.worker_count() });
        }
        let flow = Flow { job: job.id, view: job.view, rank, cookie: job.cookie(rank), incarnation: 0 };
        let jitter = Jitter::new(nonce);
        Ok(Self {
            workers: job.worker_count(),
            lanes: job.lanes,
            slots: job.slots,
            checksum: job.checksum,
            format: job.format,
            timeout: job.timeout,
            aggregator: job.aggregator,
            nonce: nonce.max(1),
            flow,
            membership: Membership::Joining {
                hellos: 0,
                next: Time::ZERO,
                interval: LEAST_HELLO_INTERVAL,
                since: None,
            },
            jitter: jitter.clone(),
            operations: Operations::default(),
            issued: 0,
            fragments: Fragments::new(job.slots),
            flight: Flight::new(longest_silence(job.timeout), jitter.clone()),
            congestion: Congestion::new(job.workers.len()),
            pacer: Pacer::new(),
            limit: job.packet_rate(rank).map(Limit::new),
            marks: 0,
            results: Results::new(longest_silence(job.timeout), jitter.clone()),
            pulls: VecDeque::new(),
            probes_due: 0,
            window_limited: false,
            events: VecDeque::new(),
            last_progress: Time::ZERO,
            last_heard: None,
            unreachable: None,
            last_look: Time::ZERO,
            no_way: false,
            last_pending: None,
            waiting: Waiting::new(rank),
            stats: Stats::default(),
        })
    }

    /// Begins an all-reduce of `buffer`, which comes back with the result in an [`Event::Complete`]; the operation's
    /// number. Any number of operations may be in progress. With [`Reduction::Mean`] the sum is divided by the sum of all
    /// workers' weights (values are not multiplied by them); a weight says nothing with [`Reduction::Sum`].
    ///
    /// # Errors
    /// [`WorkerError::Empty`], [`WorkerError::Weight`], or the error with which the job has failed; the buffer comes back.
    pub fn submit(
        &mut self,
        now: Time,
        mut buffer: Buffer,
        reduction: Reduction,
        weight: u32,
    ) -> Result<u64, Box<Failure>> {
        let length = (*buffer).as_mut().len();
        if let Membership::Failed(error) = &self.membership {
            return Err(Box::new((error.clone(), buffer)));
        }
        if length == 0 {
            return Err(Box::new((WorkerError::Empty, buffer)));
        }
        if !(1..=xagg_wire::repr::MAX_WEIGHT).contains(&weight) {
            return Err(Box::new((WorkerError::Weight(weight), buffer)));
        }
        if self.operations.len() == 0 {
            self.last_progress = now;
            self.results.restart_timer(now);
        }
        let fragments = length.div_ceil(self.lanes) as u64;
        let operation = Operation { index: self.issued, length: length as u64, reduction };
        self.issued += 1;
        self.operations.push(InProgress {
            operation,
            signature: operation.signature(),
            weight,
            first: self.fragments.append(fragments),
            fragments,
            done: 0,
            buffer: Some(buffer),
        });
        self.update_waiting(now);
        Ok(operation.index)
    }

    /// What has happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) will have something to do,
    /// if nothing comes in before.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        let (timer, transmit) = (self.next_timer(), self.next_transmit());
        timer.into_iter().chain(transmit).min()
    }

    /// When [`handle_timeout`](Self::handle_timeout) will: all that there is to wait for while nothing can be sent.
    pub fn next_timer(&self) -> Option<Time> {
        match &self.membership {
            Membership::Failed(_) => None,
            Membership::Joining { since, .. } => since.map(|since| since + self.timeout),
            Membership::Joined => {
                let stalled = (self.operations.len() > 0).then(|| self.last_progress + self.timeout);
                let pull =
                    (self.fragments.waiting() > 0).then(|| self.results.deadline(self.pull_patience()));
                let timers =
                    [stalled, pull, self.flight.deadline(), self.waiting.deadline(), self.end_of_doubt()];
                timers.into_iter().flatten().min()
            }
        }
    }

    fn next_transmit(&mut self) -> Option<Time> {
        match self.membership {
            Membership::Failed(_) => None,
            Membership::Joining { next, .. } => Some(next),
            Membership::Joined => {
                let send =
                    self.may_send().then(|| self.pacer.next_token(self.pace()).max(self.next_allowed()));
                let ask = self.is_held_back().then(|| self.next_allowed());
                send.into_iter().chain(ask).min()
            }
        }
    }

    /// Does what time has made due: loss by time, probes, PULLs, and the end of waiting.
    pub fn handle_timeout(&mut self, now: Time) {
        match &self.membership {
            Membership::Failed(_) => {}
            Membership::Joining { hellos, since, .. } => {
                let (hellos, waited) = (*hellos, since.map_or(Duration::ZERO, |since| now.since(since)));
                if waited >= self.timeout {
                    self.fail(self.no_answer(hellos, waited));
                }
            }
            Membership::Joined => self.handle_joined_timeout(now),
        }
        self.last_look = now;
        self.update_waiting(now);
    }

    fn handle_joined_timeout(&mut self, now: Time) {
        // Timers are never so far apart: the process stood still, and who does not ask hears nothing.
        let stood_still = now.since(self.last_look) > longest_silence(self.timeout) * 3 / 2;
        if stood_still && self.unreachable.is_some() {
            self.doubt(now);
        }
        self.detect_losses(now);
        let fragments = &mut self.fragments;
        if self.flight.probe(now, |lost| fragments.on_lost(lost.sequence, lost.packet_number)) {
            self.stats.probes += 1;
            self.probes_due = flight::PROBE_PACKETS;
        }
        self.results.expire(now, self.pull_patience());
        if self.fragments.waiting() > 0 && self.results.take_timeout(now) {
            const OLDEST: usize = 4;
            self.pulls = self.fragments.pull_oldest(now, OLDEST).into();
        }
        if self.waiting.take_timeout(now)
            && let Some(oldest) = self.operations.oldest()
            && let Some(sequence) = self.fragments.last_waiting(oldest.first + oldest.fragments)
        {
            self.waiting.ask(sequence);
            self.pulls.push_back(sequence);
        }
        if self.end_of_doubt().is_some_and(|end| end <= now) {
            self.fail(self.aggregator_lost(
                now,
                "has ended or cannot be reached any more (the network says so, and it does not answer)",
            ));
        } else if self.operations.len() > 0 && now.since(self.last_progress) >= self.timeout {
            self.fail(self.stalled(now));
        }
    }

    /// Nobody listens at the aggregator's port: its machine has said so (ICMP), or somebody has who
    /// knows the addresses only, since such a message has no cookie. So it is a reason to ask, and silence after that is the answer. While joining, the
    /// aggregator may just not be there yet.
    pub fn handle_unreachable(&mut self, now: Time) {
        let is_waiting = matches!(self.membership, Membership::Joined) && self.operations.len() > 0;
        if is_waiting && self.unreachable.is_none() {
            self.doubt(now);
        }
    }

    /// Silence from now on means that the aggregator has ended, so enough is asked from now on.
    fn doubt(&mut self, now: Time) {
        self.unreachable = Some(now);
        self.results.restart_timer(now);
        self.flight.restart_probes(now);
    }

    /// The network says that there is no way to the aggregator: a link is down, or its machine does not answer. That passes, or the
    /// timeout ends it.
    pub const fn handle_no_way(&mut self) {
        self.no_way = true;
    }

    /// When silence will have shown that the aggregator has ended.
    fn end_of_doubt(&self) -> Option<Time> {
        self.unreachable.map(|since| since + 2 * longest_silence(self.timeout))
    }

    /// The driver cannot go on; `reason` says what is wrong and what to do.
    pub fn handle_network_error(&mut self, reason: String) {
        self.fail(WorkerError::Network { rank: self.flow.rank, reason });
    }

    /// What this worker has counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            round_trip_micros: self.flight.round_trip().as_micros() as u64,
            window: self.congestion.size() as u64,
            ..self.stats.clone()
        }
    }

    /// Whether this worker holds the result of the fragment, or of its whole operation.
    #[must_use]
    pub fn holds_result(&self, sequence: u64) -> bool {
        self.fragments.is_done(sequence)
    }

    /// What this worker keeps in mind: fragments from the oldest without a result on, and packets that are not accounted for.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.fragments.len(), self.flight.len())
    }

    /// Whom this worker has waited for with nothing left to push, and for whom it waits now.
    #[must_use]
    pub const fn waits(&self) -> &Waits {
        self.waiting.waits()
    }

    /// This worker's rank.
    #[must_use]
    pub const fn rank(&self) -> u16 {
        self.flow.rank
    }

    /// The error with which the job has failed, if it has.
    #[must_use]
    pub const fn error(&self) -> Option<&WorkerError> {
        if let Membership::Failed(error) = &self.membership { Some(error) } else { None }
    }

    fn pace(&self) -> Pace {
        Pace {
            window: self.congestion.size(),
            round_trip: self.flight.round_trip(),
            slow_start: self.congestion.is_in_slow_start(),
        }
    }

    fn detect_losses(&mut self, now: Time) {
        let (fragments, congestion, stats) = (&mut self.fragments, &mut self.congestion, &mut self.stats);
        self.flight.detect_losses(now, |lost| {
            fragments.on_lost(lost.sequence, lost.packet_number);
            congestion.on_loss(now, lost.sent);
            stats.losses += 1;
        });
    }

    /// Takes note of whether only others can bring this worker on: it has pushed all that it may, and results are missing.
    fn update_waiting(&mut self, now: Time) {
        let waits = matches!(self.membership, Membership::Joined)
            && self.fragments.waiting() > 0
            && self.flight.flying() == 0
            && self.fragments.sendable().is_none();
        self.waiting.update(now, waits);
    }

    /// Ends the job: every operation fails with this error, and so does every later one.
    fn fail(&mut self, error: WorkerError) {
        for failed in self.operations.take_all() {
            let Some(buffer) = failed.buffer else { continue };
            let operation = failed.operation.index;
            self.events.push_back(Event::Failed { operation, error: error.clone(), buffer });
        }
        self.membership = Membership::Failed(error);
    }

    /// The oldest operation in words, and where it stands.
    fn standing(&self) -> (String, Phase) {
        let Some(oldest) = self.operations.oldest() else {
            return ("no operation".to_owned(), Phase::Waiting);
        };
        let all_receipted = self.fragments.oldest().is_some() && self.flight.flying() == 0;
        (oldest.operation.to_string(), if all_receipted { Phase::Waiting } else { Phase::Pushing })
    }

    fn heard(&self, now: Time) -> Heard {
        Heard(self.last_heard.map(|(kind, at)| (kind, now.since(at))))
    }

    fn no_answer(&self, hellos: u64, waited: Duration) -> WorkerError {
        WorkerError::NoAnswer {
            rank: self.flow.rank,
            aggregator: self.aggregator,
            hellos,
            waited,
            lanes: self.lanes,
            mtu: Family::of(&self.aggregator).mtu_for_lanes(self.lanes),
        }
    }

    fn aggregator_lost(&self, now: Time, what: &'static str) -> WorkerError {
        let (operation, phase) = self.standing();
        let (rank, aggregator, heard) = (self.flow.rank, self.aggregator, self.heard(now));
        WorkerError::AggregatorLost { rank, operation, phase, aggregator, what, heard }
    }

    fn stalled(&self, now: Time) -> WorkerError {
        let (operation, phase) = self.standing();
        let claim =
            if self.no_way { "; the network says that there is no way to the aggregator" } else { "" };
        let progress = self.operations.oldest().map_or_else(String::new, |oldest| {
            format!("{} of {} fragments complete{claim}", oldest.done, oldest.fragments)
        });
        let still_pending =
            self.last_pending.as_ref().filter(|report| Some(report.sequence) >= self.fragments.oldest());
        let missing = Missing(still_pending.map(|report| report.missing.clone()));
        let (rank, waited, heard) = (self.flow.rank, self.timeout, self.heard(now));
        WorkerError::Stalled { rank, operation, phase, waited, progress, missing, heard }
    }
}
