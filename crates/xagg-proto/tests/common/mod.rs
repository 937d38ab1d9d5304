//! A simulated network of real workers and the real twin: one seed decides everything that happens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use xagg_proto::aggregator::Action;
use xagg_proto::worker::{Event, Stats, Waits, WorkerError};
use xagg_proto::{Aggregator, Job, Time, Worker};
use xagg_wire::Reduction;

/// What the links do to packets, in both directions.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: f64,
    pub duplication: f64,
    pub corruption: f64,
    /// Packets take 20 microseconds plus a random time up to this, so they overtake each other.
    pub jitter: Duration,
}

impl Faults {
    pub const NONE: Self = Self { loss: 0.0, duplication: 0.0, corruption: 0.0, jitter: Duration::ZERO };
    pub const HARSH: Self =
        Self { loss: 0.1, duplication: 0.05, corruption: 0.02, jitter: Duration::from_micros(300) };
}

enum Happening {
    ToAggregator { from: usize, payload: Vec<u8> },
    ToWorker { rank: usize, payload: Vec<u8> },
    Wake { rank: usize },
    Submit { rank: usize, values: Vec<f32>, reduction: Reduction, weight: u32 },
    Unreachable { rank: usize },
    Kill { rank: usize },
}

/// What became of a rank's operations, in the order in which they were submitted.
pub type Outcome = Vec<Ended>;

type Ended = Result<Vec<f32>, WorkerError>;

pub struct Simulation {
    pub job: Job,
    aggregator: Aggregator,
    workers: Vec<Option<Worker>>,
    wakes: Vec<Option<Time>>,
    /// By rank and operation; `None` while it is in progress.
    outcomes: Vec<Vec<Option<Ended>>>,
    faults: Faults,
    deaf: Option<(usize, std::ops::Range<Duration>)>,
    pauses: Vec<(usize, std::ops::Range<Duration>)>,
    rng: StdRng,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: std::collections::HashMap<u64, Happening>,
    count: u64,
}

/// A job of `workers` workers over addresses that nobody uses.
pub fn job(workers: usize, lanes: usize, slots: u32, timeout_seconds: f64) -> Job {
    let mut text = format!(
        "job = 5\nsecret = \"a secret for simulations\"\nlanes = {lanes}\nslots = {slots}\n\
         timeout_seconds = {timeout_seconds:.3}\naggregator = \"10.9.0.1:9700\"\n"
    );
    for rank in 0..workers {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"10.9.1.{}:9701\"\n", rank + 1);
    }
    Job::parse(&text).expect("a valid job")
}

impl Simulation {
    pub fn new(job: Job, faults: Faults, seed: u64) -> Self {
        let mut aggregator = Aggregator::new(77, 256);
        aggregator.admit_job(&job).expect("the first job");
        let workers: Vec<_> = (0..job.worker_count())
            .map(|rank| Some(Worker::new(&job, rank, u64::from(rank) + 1).expect("a rank of the job")))
            .collect();
        let ranks = workers.len();
        let mut simulation = Self {
            job,
            aggregator,
            workers,
            wakes: vec![None; ranks],
            outcomes: vec![vec![]; ranks],
            faults,
            deaf: None,
            pauses: vec![],
            rng: StdRng::seed_from_u64(seed),
            now: Time::ZERO,
            queue: BinaryHeap::new(),
            happenings: std::collections::HashMap::new(),
            count: 0,
        };
        for rank in 0..ranks {
            simulation.schedule(Duration::ZERO, Happening::Wake { rank });
        }
        simulation
    }

    /// The rank issues an all-reduce once `after` has passed.
    pub fn submit(
        &mut self,
        after: Duration,
        rank: usize,
        values: Vec<f32>,
        reduction: Reduction,
        weight: u32,
    ) {
        self.schedule(after, Happening::Submit { rank, values, reduction, weight });
    }

    /// The rank's process ends once `after` has passed.
    pub fn kill(&mut self, after: Duration, rank: usize) {
        self.schedule(after, Happening::Kill { rank });
    }

    /// The network says to the rank, after `after`, that the aggregator's port is closed, which it is not.
    pub fn claim_unreachable(&mut self, after: Duration, rank: usize) {
        self.schedule(after, Happening::Unreachable { rank });
    }

    /// Everything for the rank is lost during this time.
    pub fn deafen(&mut self, rank: usize, during: std::ops::Range<Duration>) {
        self.deaf = Some((rank, during));
    }

    /// The rank's process does nothing during this time; what comes for it waits in its socket.
    pub fn pause(&mut self, rank: usize, during: std::ops::Range<Duration>) {
        self.pauses.push((rank, during));
    }

    /// Runs until nothing happens any more or `most` has passed; what became of every rank's operations.
    pub fn run(&mut self, most: Duration) -> Vec<Outcome> {
        self.run_until(most);
        let finished = |outcome: &mut Vec<Option<_>>| {
            outcome.iter_mut().map(|operation| operation.take().expect("every operation ends")).collect()
        };
        self.outcomes.iter_mut().map(finished).collect()
    }

    /// Runs until nothing happens any more or `most` has passed; may be gone on with.
    pub fn run_until(&mut self, most: Duration) {
        while let Some(Reverse((at, number))) = self.queue.peek().copied() {
            if at.since(Time::ZERO) > most {
                break;
            }
            self.queue.pop();
            assert!(at >= self.now, "time does not go back");
            self.now = at;
            if let Some(happening) = self.happenings.remove(&number) {
                match self.pause_of(&happening) {
                    Some(left) => self.schedule(left, happening),
                    None => self.happen(happening),
                }
            }
        }
    }

    /// How long the rank that this happens to is still paused, if it is.
    fn pause_of(&self, happening: &Happening) -> Option<Duration> {
        let (Happening::ToWorker { rank, .. } | Happening::Wake { rank } | Happening::Submit { rank, .. }) =
            happening
        else {
            return None;
        };
        let now = self.now.since(Time::ZERO);
        let mut pauses =
            self.pauses.iter().filter(|(paused, during)| paused == rank && during.contains(&now));
        pauses.next().map(|(_, during)| during.end - now)
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn stats(&self, rank: usize) -> Stats {
        self.workers[rank].as_ref().expect("alive").stats()
    }

    pub fn waits(&self, rank: usize) -> Waits {
        self.workers[rank].as_ref().expect("alive").waits().clone()
    }

    pub fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    fn schedule(&mut self, after: Duration, happening: Happening) {
        self.count += 1;
        self.queue.push(Reverse((self.now + after, self.count)));
        self.happenings.insert(self.count, happening);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::ToAggregator { from, payload } => self.aggregate(from, payload),
            Happening::ToWorker { rank, payload } => {
                let now = self.now;
                self.drive(rank, |worker| worker.handle_datagram(now, false, &payload));
            }
            Happening::Wake { rank } => {
                let now = self.now;
                self.wakes[rank] = None;
                self.drive(rank, |worker| worker.handle_timeout(now));
            }
            Happening::Submit { rank, values, reduction, weight } => {
                let (now, outcomes) = (self.now, &mut self.outcomes[rank]);
                let Some(worker) = &mut self.workers[rank] else { return };
                match worker.submit(now, Box::new(values), reduction, weight) {
                    Ok(_) => outcomes.push(None),
                    Err(failure) => outcomes.push(Some(Err(failure.0))),
                }
                self.drive(rank, |_| ());
            }
            Happening::Unreachable { rank } => {
                let now = self.now;
                self.drive(rank, |worker| worker.handle_unreachable(now));
            }
            Happening::Kill { rank } => {
                self.workers[rank] = None;
                self.outcomes[rank].clear();
            }
        }
    }

    fn aggregate(&mut self, from: usize, mut payload: Vec<u8>) {
        let source = self.job.workers[from];
        match self.aggregator.handle(self.now, source, false, &mut payload) {
            Action::Drop(_) => {}
            Action::Reply { len } => self.send_to(source, &payload[..len]),
            Action::Broadcast { len } => {
                while let Some(destination) = self.aggregator.next_copy(&mut payload[..len]) {
                    self.send_to(destination, &payload[..len]);
                }
            }
        }
    }

    fn send_to(&mut self, destination: SocketAddr, payload: &[u8]) {
        let rank = self.job.workers.iter().position(|worker| *worker == destination).expect("a worker");
        let now = self.now.since(Time::ZERO);
        if self.deaf.as_ref().is_some_and(|(deaf, during)| *deaf == rank && during.contains(&now)) {
            return;
        }
        self.carry(payload, |payload| Happening::ToWorker { rank, payload });
    }

    /// Does something to a worker, then lets it send, report and set its alarm.
    fn drive(&mut self, rank: usize, action: impl FnOnce(&mut Worker)) {
        let Some(mut worker) = self.workers[rank].take() else { return };
        action(&mut worker);
        let mut buffer = vec![0; self.job.packet_len()];
        while let Some(len) = worker.poll_transmit(self.now, &mut buffer) {
            self.carry(&buffer[..len], |payload| Happening::ToAggregator { from: rank, payload });
        }
        while let Some(event) = worker.poll_event() {
            self.note(rank, event);
        }
        if let Some(at) = worker.poll_timeout()
            && self.wakes[rank].is_none_or(|set| at < set || set <= self.now)
        {
            self.wakes[rank] = Some(at);
            self.schedule(at.since(self.now).max(Duration::from_nanos(1)), Happening::Wake { rank });
        }
        self.workers[rank] = Some(worker);
    }

    fn note(&mut self, rank: usize, event: Event) {
        let (operation, outcome) = match event {
            Event::Joined { .. } => return,
            Event::Complete { operation, mut buffer } => (operation, Ok((*buffer).as_mut().to_vec())),
            Event::Failed { operation, error, .. } => (operation, Err(error)),
        };
        let place = &mut self.outcomes[rank][operation as usize];
        assert!(place.is_none(), "operation {operation} of rank {rank} ends once");
        *place = Some(outcome);
    }

    /// Puts a packet on a link, which may lose, double, damage and delay it.
    fn carry(&mut self, payload: &[u8], arrival: impl Fn(Vec<u8>) -> Happening) {
        let copies = 1 + usize::from(self.rng.random_bool(self.faults.duplication));
        for _ in 0..copies {
            if self.rng.random_bool(self.faults.loss) {
                continue;
            }
            let mut payload = payload.to_vec();
            if self.rng.random_bool(self.faults.corruption) {
                let at = self.rng.random_range(0..payload.len());
                payload[at] ^= 1 << self.rng.random_range(0..8);
            }
            let jitter = self.rng.random_range(0..=self.faults.jitter.as_nanos() as u64);
            let delay = Duration::from_micros(20) + Duration::from_nanos(jitter);
            self.schedule(delay, arrival(payload));
        }
    }
}
