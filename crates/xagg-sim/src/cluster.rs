//! Workers, aggregator and links, event by event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use xagg_proto::aggregator::Action;
use xagg_proto::worker::{Event, Stats, Waits};
use xagg_proto::{Aggregator, Job, Time, Worker};
use xagg_wire::Packet;

use crate::check::{Checker, Rule, Violation};
use crate::inputs;
use crate::link::{Carried, Frame, Link};
use crate::member::Member;
use crate::outcome::{Outcome, RankOutcome};
use crate::scenario::{Incident, Scenario, micros};

mod incidents;

/// The share of packets that an intruder has a forged copy of.
const FORGED: f64 = 0.05;

/// The most events and packets sent in one run, six times more than the longest of 4000 seeds takes: members that keep each other busy
/// without getting anywhere, or at one moment for ever, are a failure like a hang.
const MOST_STEPS: u64 = 10_000_000;

/// Where a frame arrives.
#[derive(Clone, Copy, Debug)]
enum Hop {
    /// On its way up, where all packets come together.
    SwitchUp,
    Aggregator,
    /// On its way down, before the link of its worker.
    SwitchDown,
    Worker,
}

enum Happening {
    Arrive(Hop, Frame),
    /// The aggregator's machine, or somebody in its name, tells the rank that its port is closed.
    Unreachable(usize),
    Start(usize),
    Wake(usize),
    /// This process of the rank has computed the next gradient.
    Issue(usize, u64),
    Begin(Incident),
    End(Incident),
}

/// A run in progress.
pub struct Cluster<'a> {
    scenario: &'a Scenario,
    must_succeed: bool,
    deadline: Time,
    job: Job,
    rng: ChaCha8Rng,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: std::collections::HashMap<u64, Happening>,
    scheduled: u64,
    /// Events and packets sent so far.
    steps: u64,
    /// Processes of workers that will start.
    starts_to_come: usize,
    aggregator: Option<Aggregator>,
    lives: u32,
    unreachable: bool,
    to_aggregator: Link,
    from_aggregator: Link,
    members: Vec<Member>,
    checker: Checker,
}

type Checked = Result<(), Violation>;

impl<'a> Cluster<'a> {
    /// All processes before their start.
    #[must_use]
    pub fn new(scenario: &'a Scenario) -> Self {
        let job = scenario.job();
        let mut cluster = Self {
            checker: Checker::new(scenario, &job),
            rng: ChaCha8Rng::seed_from_u64(scenario.seed),
            now: Time::ZERO,
            queue: BinaryHeap::new(),
            happenings: std::collections::HashMap::new(),
            scheduled: 0,
            steps: 0,
            starts_to_come: scenario.workers.len(),
            aggregator: None,
            lives: 0,
            unreachable: false,
            to_aggregator: Link::new(&scenario.to_aggregator),
            from_aggregator: Link::new(&scenario.from_aggregator),
            members: scenario.workers.iter().map(Member::new).collect(),
            must_succeed: scenario.must_succeed(),
            deadline: scenario.deadline(),
            job,
            scenario,
        };
        cluster.start_aggregator();
        for (rank, plan) in scenario.workers.iter().enumerate() {
            cluster.schedule(micros(plan.start), Happening::Start(rank));
        }
        for incident in &scenario.incidents {
            cluster.schedule(micros(incident.at()), Happening::Begin(*incident));
        }
        cluster
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn run(mut self) -> Result<Outcome, Violation> {
        while self.step()? {}
        self.finish()
    }

    /// Lets the next thing happen; whether there was one. A run is over when nothing is to be done any more.
    ///
    /// # Errors
    /// What does not hold after it.
    pub fn step(&mut self) -> Result<bool, Violation> {
        let Some(Reverse((at, number))) = self.queue.pop() else { return Ok(false) };
        assert!(at >= self.now, "time does not go back");
        self.count_step()?;
        if at > self.deadline {
            return self.is_over().then_some(false).ok_or_else(|| self.hang());
        }
        (self.now, self.checker.now) = (at, at);
        if let Some(happening) = self.happenings.remove(&number) {
            self.happen(happening)?;
        }
        Ok(!self.is_over())
    }

    fn count_step(&mut self) -> Checked {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(self.checker.violation(Rule::Progress, format!("not over after {MOST_STEPS} steps")));
        }
        Ok(())
    }

    /// Simulated time since the beginning.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now.since(Time::ZERO)
    }

    /// What the links to and from the aggregator have carried so far.
    #[must_use]
    pub fn carried(&self) -> (Carried, Carried) {
        (self.to_aggregator.carried, self.from_aggregator.carried)
    }

    /// What a rank's process has counted so far; nothing if it does not run.
    #[must_use]
    pub fn stats(&self, rank: usize) -> Stats {
        self.members[rank].worker.as_ref().map_or_else(Stats::default, Worker::stats)
    }

    /// Whom a rank's process has waited for so far; nobody if it does not run.
    #[must_use]
    pub fn waits(&self, rank: usize) -> Waits {
        self.members[rank].worker.as_ref().map_or_else(Waits::default, |worker| worker.waits().clone())
    }

    /// The aggregator, if it runs.
    #[must_use]
    pub const fn aggregator(&self) -> Option<&Aggregator> {
        self.aggregator.as_ref()
    }

    fn schedule(&mut self, after: Duration, happening: Happening) {
        self.schedule_at(self.now + after, happening);
    }

    fn schedule_at(&mut self, at: Time, happening: Happening) {
        self.scheduled += 1;
        self.queue.push(Reverse((at, self.scheduled)));
        self.happenings.insert(self.scheduled, happening);
    }

    fn happen(&mut self, happening: Happening) -> Checked {
        match happening {
            Happening::Arrive(hop, frame) => self.arrive(hop, frame),
            Happening::Unreachable(rank) => self.tell_unreachable(rank),
            Happening::Start(rank) => self.start(rank),
            Happening::Wake(rank) => {
                self.members[rank].wake = None;
                self.drive(rank, Worker::handle_timeout)
            }
            Happening::Issue(rank, process) if self.members[rank].process == process => self.issue(rank),
            Happening::Issue(..) => Ok(()),
            Happening::Begin(incident) => self.begin(incident),
            Happening::End(incident) => self.end(incident),
        }
    }

    fn start_aggregator(&mut self) {
        self.lives += 1;
        let mut aggregator = Aggregator::new(self.lives, self.scenario.ring);
        aggregator.admit_job(&self.job).expect("the first job");
        self.aggregator = Some(aggregator);
    }

    fn start(&mut self, rank: usize) -> Checked {
        self.starts_to_come -= 1;
        self.checker.on_start(rank);
        let member = &mut self.members[rank];
        member.process += 1;
        let nonce = rank as u64 * 1000 + member.process;
        member.worker = Some(Worker::new(&self.job, rank as u16, nonce).expect("a rank of the job"));
        (member.issued, member.computing) = (0, false);
        member.ends.clear();
        self.drive(rank, Worker::handle_timeout)
    }

    /// A frame is at the end of a link.
    fn arrive(&mut self, hop: Hop, frame: Frame) -> Checked {
        match hop {
            Hop::SwitchUp => {
                let arrivals = self.to_aggregator.carry(self.now, frame, &mut self.rng);
                self.forward(Hop::Aggregator, arrivals);
                Ok(())
            }
            Hop::SwitchDown => {
                let arrivals = self.members[frame.rank].down.carry(self.now, frame, &mut self.rng);
                self.forward(Hop::Worker, arrivals);
                Ok(())
            }
            Hop::Aggregator => self.aggregate(frame),
            Hop::Worker => self.deliver(frame),
        }
    }

    fn forward(&mut self, hop: Hop, arrivals: Vec<(Time, Frame)>) {
        for (at, frame) in arrivals {
            if self.scenario.intruder && self.rng.random_bool(FORGED) {
                let forged = self.forge(frame.clone());
                self.schedule_at(at, Happening::Arrive(hop, forged));
            }
            self.schedule_at(at, Happening::Arrive(hop, frame));
        }
    }

    /// Somebody who sees packets' shapes but knows no cookie. Everything else is right.
    fn forge(&mut self, mut frame: Frame) -> Frame {
        let mut packet = Packet::new_unchecked(&mut frame.payload);
        packet.set_cookie(self.rng.random());
        self.rng.fill(packet.body_mut());
        packet.fill_checksum();
        frame
    }

    fn aggregate(&mut self, frame: Frame) -> Checked {
        let Frame { rank, mut payload, marked } = frame;
        let source = self.job.workers[rank];
        let Some(mut aggregator) = self.aggregator.take() else {
            if self.unreachable {
                self.schedule(micros(self.scenario.from_aggregator.delay), Happening::Unreachable(rank));
            }
            return Ok(());
        };
        let sequence = Packet::new_unchecked(&payload).sequence();
        let before = self.checker.bank(&aggregator, sequence);
        let mut answers = vec![];
        match aggregator.handle(self.now, source, marked, &mut payload) {
            Action::Drop(_) => {}
            Action::Reply { len } => answers.push((source, payload[..len].to_vec())),
            Action::Broadcast { len } => {
                while let Some(destination) = aggregator.next_copy(&mut payload[..len]) {
                    answers.push((destination, payload[..len].to_vec()));
                }
            }
        }
        if let Some(before) = before {
            // A process that was started again has no part in the job: it is refused.
            let workers = self.members.iter().enumerate().filter(|(_, member)| member.process == 1);
            let alive = workers.filter_map(|(rank, member)| Some((rank, member.worker.as_ref()?)));
            self.checker.on_handled(&aggregator, sequence, before, alive)?;
        }
        for (destination, payload) in answers {
            let rank = self.job.workers.iter().position(|worker| *worker == destination).expect("a worker");
            self.checker.on_answer(self.scenario, &aggregator, rank, &payload)?;
            let frame = Frame { rank, payload, marked: false };
            let arrivals = self.from_aggregator.carry(self.now, frame, &mut self.rng);
            self.forward(Hop::SwitchDown, arrivals);
        }
        self.aggregator = Some(aggregator);
        Ok(())
    }

    /// A frame is at its worker's machine.
    fn deliver(&mut self, frame: Frame) -> Checked {
        let member = &mut self.members[frame.rank];
        if member.paused {
            if member.waiting.len() < self.scenario.workers[frame.rank].receive_queue {
                member.waiting.push_back(frame);
            }
            return Ok(());
        }
        self.drive(frame.rank, |worker, now| worker.handle_datagram(now, frame.marked, &frame.payload))
    }

    fn issue(&mut self, rank: usize) -> Checked {
        let (plan, member) = (&self.scenario.workers[rank], &mut self.members[rank]);
        member.computing = false;
        let Some(worker) = &mut member.worker else { return Ok(()) };
        let operation = member.issued;
        member.issued += 1;
        let values = Box::new(inputs::gradient(self.scenario, rank, operation));
        match worker.submit(self.now, values, Scenario::reduction(operation), plan.weight) {
            Ok(_) => member.ends.push(None),
            Err(failure) => member.ends.push(Some((self.now, Err(failure.0)))),
        }
        self.drive(rank, |_, _| ())
    }

    /// Does something to a worker, then lets it send, report and set its alarm. A paused one does nothing.
    fn drive(&mut self, rank: usize, action: impl FnOnce(&mut Worker, Time)) -> Checked {
        if self.members[rank].paused {
            return Ok(());
        }
        let Some(mut worker) = self.members[rank].worker.take() else { return Ok(()) };
        action(&mut worker, self.now);
        let mut buffer = vec![0; self.job.packet_len()];
        while let Some(len) = worker.poll_transmit(self.now, &mut buffer) {
            self.count_step()?;
            self.checker.on_transmit(rank, &worker, &buffer[..len])?;
            let frame = Frame { rank, payload: buffer[..len].to_vec(), marked: false };
            let arrivals = self.members[rank].up.carry(self.now, frame, &mut self.rng);
            self.forward(Hop::SwitchUp, arrivals);
        }
        while let Some(event) = worker.poll_event() {
            self.note(rank, event)?;
        }
        self.set_alarm(rank, &mut worker);
        if self.members[rank].in_progress() == 0 && worker.error().is_none() {
            self.checker.on_idle(rank, &worker)?;
        }
        self.members[rank].worker = Some(worker);
        self.compute(rank);
        Ok(())
    }

    fn set_alarm(&mut self, rank: usize, worker: &mut Worker) {
        let Some(at) = worker.poll_timeout() else { return };
        let member = &mut self.members[rank];
        if member.wake.is_none_or(|set| at < set) {
            let at = at.max(self.now + Duration::from_nanos(1));
            member.wake = Some(at);
            self.schedule_at(at, Happening::Wake(rank));
        }
    }

    /// Begins to compute the next gradient, if there is one and not too many are in progress.
    fn compute(&mut self, rank: usize) {
        let (plan, member) = (&self.scenario.workers[rank], &mut self.members[rank]);
        let next = member.issued < self.scenario.operations.len() && member.in_progress() < plan.in_flight;
        if next && !member.computing {
            member.computing = true;
            let process = member.process;
            self.schedule(micros(plan.compute), Happening::Issue(rank, process));
        }
    }

    fn note(&mut self, rank: usize, event: Event) -> Checked {
        let (operation, end) = match event {
            Event::Joined { .. } => {
                let member = &mut self.members[rank];
                member.joined.get_or_insert(member.process);
                return Ok(());
            }
            Event::Complete { operation, mut buffer } => {
                if self.members[rank].takes_part_again() && self.lives == 1 {
                    let what = format!("rank {rank} takes part again after its restart");
                    return Err(self.checker.violation(Rule::Restart, what));
                }
                let values = (*buffer).as_mut();
                self.checker.on_complete(self.scenario, rank, operation as usize, values)?;
                (operation, Ok(()))
            }
            Event::Failed { operation, error, .. } => (operation, Err(error)),
        };
        if let (true, Err(error)) = (self.must_succeed, &end) {
            return Err(self.checker.violation(Rule::Failure, error.to_string()));
        }
        let place = &mut self.members[rank].ends[operation as usize];
        if place.replace((self.now, end)).is_some() {
            return Err(self.checker.violation(Rule::Progress, format!("operation {operation} ends twice")));
        }
        Ok(())
    }

    /// Whether every operation of every process that runs, or will, has ended.
    fn is_over(&self) -> bool {
        let operations = self.scenario.operations.len();
        let all_over = self.members.iter().all(|member| {
            member.worker.as_ref().is_none_or(|worker| {
                let failed = worker.error().is_some() && member.in_progress() == 0;
                failed || (member.issued == operations && member.in_progress() == 0)
            })
        });
        all_over && self.starts_to_come == 0
    }

    fn hang(&self) -> Violation {
        let waiting: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.in_progress() > 0)
            .map(|(rank, member)| format!("rank {rank} with {} operations", member.in_progress()))
            .collect();
        self.checker.violation(Rule::Progress, format!("not over by now: {}", waiting.join(", ")))
    }

    fn finish(self) -> Result<Outcome, Violation> {
        if !self.is_over() {
            return Err(self.hang());
        }
        if let (true, Some(aggregator)) = (self.must_succeed, &self.aggregator) {
            self.checker.on_all_done(aggregator)?;
        }
        let packets = self.to_aggregator.carried.packets + self.from_aggregator.carried.packets;
        let ranks: Vec<RankOutcome> = self.members.into_iter().map(RankOutcome::of).collect();
        let finished = ranks.iter().map(|rank| rank.finished).max().unwrap_or_default();
        let (to_aggregator, from_aggregator) = (self.to_aggregator.carried, self.from_aggregator.carried);
        Ok(Outcome { finished, ranks, to_aggregator, from_aggregator, packets })
    }
}
