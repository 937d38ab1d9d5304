//! An aggregator with one job, and the packets of its workers.

use std::net::SocketAddr;

use xagg_proto::aggregator::{Action, Bank};
use xagg_proto::{Aggregator, Job, Time};
use xagg_wire::fixed::{Exponent, Magnitude, magnitude, quantise};
use xagg_wire::repr::{Contribution, Rejection};
use xagg_wire::{Counter, Flow, Packet, Reason, Repr, full_len};

pub const INCARNATION: u32 = 0x1234_5678;
/// How many packets the aggregator has room for.
pub const RING: usize = 100;
pub const LANES: usize = 16;

/// What the aggregator did with a packet.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// Taken in, or refused without an answer for the reason.
    Drop(Option<Reason>),
    /// An answer to the sender.
    Reply(Vec<u8>),
    /// An answer to every worker that has joined, by rank.
    Broadcast(Vec<Vec<u8>>),
}

/// A contribution of the same value in all lanes.
#[derive(Clone, Copy)]
pub struct Gradient {
    pub sequence: u64,
    pub number: u32,
    pub value: f32,
    /// Of the second phase, at this exponent.
    pub redo: Option<Exponent>,
    pub nonfinite: bool,
    pub ack: bool,
    pub signature: u32,
}

impl Gradient {
    pub fn of(sequence: u64, number: u32, value: f32) -> Self {
        Self { sequence, number, value, redo: None, nonfinite: false, ack: false, signature: 7 }
    }

    pub fn asking(self) -> Self {
        Self { ack: true, ..self }
    }
}

/// A job over addresses that nobody has.
pub fn job(id: u32, view: u16, workers: usize, lanes: usize, slots: u32) -> Job {
    let mut text = format!(
        "job = {id}\nview = {view}\nsecret = \"a secret for test runs\"\nlanes = {lanes}\nslots = {slots}\n\
         aggregator = \"10.8.0.1:9700\"\n"
    );
    for rank in 0..workers {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"10.8.1.{}:{}\"\n", rank % 250, 9701 + rank);
    }
    Job::parse(&text).expect("valid")
}

pub struct Fixture {
    pub job: Job,
    /// When packets come in.
    pub now: Time,
    pub aggregator: Aggregator,
}

impl Fixture {
    /// An aggregator that no worker has said HELLO to.
    pub fn fresh(workers: usize, slots: u32) -> Self {
        Self::admitted(job(9, 2, workers, LANES, slots))
    }

    fn admitted(job: Job) -> Self {
        let mut aggregator = Aggregator::new(INCARNATION, RING);
        aggregator.admit_job(&job).expect("the first job");
        Self::of(job, aggregator)
    }

    pub fn of(job: Job, aggregator: Aggregator) -> Self {
        Self { job, now: Time::ZERO, aggregator }
    }

    /// An aggregator whose workers have all joined.
    pub fn joined(workers: usize, slots: u32) -> Self {
        Self::fresh(workers, slots).join()
    }

    /// The same, of a job whose packets with lanes have no checksum.
    pub fn joined_without_checksum(workers: usize, slots: u32) -> Self {
        let mut job = job(9, 2, workers, LANES, slots);
        job.checksum = false;
        Self::admitted(job).join()
    }

    fn join(mut self) -> Self {
        for rank in 0..self.job.worker_count() {
            let outcome = self.hello(rank, 100 + u64::from(rank));
            assert!(matches!(self.reply(&outcome), Repr::Welcome { .. }));
        }
        self
    }

    pub fn address(&self, rank: u16) -> SocketAddr {
        self.job.workers[usize::from(rank)]
    }

    pub fn payload(&self, rank: u16, repr: &Repr, write_body: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut payload = vec![0; full_len(self.job.lanes)];
        let mut packet = Packet::new_unchecked(&mut payload);
        write_body(packet.body_mut());
        let incarnation = if matches!(repr, Repr::Hello { .. }) { 0 } else { INCARNATION };
        let cookie = self.job.cookie(rank);
        repr.emit(
            &Flow { job: self.job.id, view: self.job.view, rank, cookie, incarnation },
            &mut packet,
            self.job.checksum,
        );
        payload
    }

    pub fn gradient_payload(&self, rank: u16, gradient: Gradient) -> Vec<u8> {
        let values = [gradient.value; LANES];
        let own = match magnitude(&values) {
            Magnitude::Finite(exponent) => exponent,
            Magnitude::Zero | Magnitude::Nonfinite => Exponent::ZERO,
        };
        let exponent = gradient.redo.unwrap_or(own);
        let contribution = Contribution {
            sequence: gradient.sequence,
            slot: self.job.slot(gradient.sequence),
            packet_number: gradient.number,
            redo: gradient.redo.is_some(),
            nonfinite: gradient.nonfinite,
            ack_request: gradient.ack,
            exponent,
            contributors: 1,
            weight: u32::from(rank) + 1,
            signature: gradient.signature,
            timestamp: 1000 + gradient.number,
        };
        let write_body = |body: &mut [u8]| quantise(self.job.format, exponent, &values, body);
        self.payload(rank, &Repr::Gradient(contribution), write_body)
    }

    /// Hands a datagram to the aggregator, and holds whatever it answers to the rules of all answers: no longer than what
    /// asked for it (WIRE P2), sound (P3), for its receiver and of this life (H4), one copy a worker.
    pub fn run(&mut self, source: SocketAddr, payload: &[u8]) -> Outcome {
        self.run_marked(source, false, payload)
    }

    /// The same for a datagram that comes with a mark of congestion, or without.
    pub fn run_marked(&mut self, source: SocketAddr, marked: bool, payload: &[u8]) -> Outcome {
        let mut packet = payload.to_vec();
        match self.aggregator.handle(self.now, source, marked, &mut packet) {
            Action::Drop(reason) => Outcome::Drop(reason),
            Action::Reply { len } => {
                packet.truncate(len);
                let rank = Packet::new_unchecked(payload).rank();
                self.check_answer(payload, &packet, rank);
                Outcome::Reply(packet)
            }
            Action::Broadcast { len } => {
                let mut copies = vec![];
                for rank in self.joined_ranks() {
                    let destination = self.aggregator.next_copy(&mut packet[..len]);
                    assert_eq!(
                        destination,
                        Some(self.address(rank)),
                        "everybody who has joined gets one copy"
                    );
                    self.check_answer(payload, &packet[..len], rank);
                    copies.push(packet[..len].to_vec());
                }
                assert_eq!(self.aggregator.next_copy(&mut packet[..len]), None);
                Outcome::Broadcast(copies)
            }
        }
    }

    fn joined_ranks(&self) -> Vec<u16> {
        let progress = self.aggregator.progress(self.job.id, self.job.view);
        (0..).zip(progress).filter(|(_, progress)| progress.joined).map(|(rank, _)| rank).collect()
    }

    fn check_answer(&self, asked: &[u8], answer: &[u8], rank: u16) {
        assert!(answer.len() <= asked.len(), "WIRE P2");
        let (flow, repr) =
            Repr::parse(&Packet::new_unchecked(answer), self.job.lanes, self.job.checksum).expect("sound");
        let cookie = self.job.cookie(rank);
        let expected = Flow { job: self.job.id, view: self.job.view, rank, cookie, incarnation: INCARNATION };
        assert_eq!(flow, expected);
        let (answer, asked) = (Packet::new_unchecked(answer), Packet::new_unchecked(asked));
        assert_eq!(answer.sequence(), asked.sequence(), "that of the packet that led to it");
        let is_result = matches!(repr, Repr::Result { .. } | Repr::Redo { .. });
        assert_eq!(answer.packet_number() != 0, is_result, "only RESULTs are numbered: WIRE H7");
        let grant = if let Repr::Welcome { grant, .. } = repr { grant } else { 0 };
        let fields = (answer.exponent(), answer.contributors(), answer.weight());
        assert!(is_result || fields == (0, 0, grant), "what a kind does not use is 0");
    }

    pub fn hello(&mut self, rank: u16, nonce: u64) -> Outcome {
        let (slots, workers) = (self.job.slots, self.job.worker_count());
        self.send(rank, &Repr::Hello { nonce, slots, workers, checksum: self.job.checksum })
    }

    pub fn gradient(&mut self, rank: u16, gradient: Gradient) -> Outcome {
        self.run(self.address(rank), &self.gradient_payload(rank, gradient))
    }

    pub fn pull(&mut self, rank: u16, sequence: u64, redo: bool) -> Outcome {
        self.send(rank, &Repr::Pull { sequence, slot: self.job.slot(sequence), redo, timestamp: 0 })
    }

    /// Sends a packet whose body is zero.
    pub fn send(&mut self, rank: u16, repr: &Repr) -> Outcome {
        self.run(self.address(rank), &self.payload(rank, repr, |_| ()))
    }

    /// What the one answer says.
    pub fn reply(&self, outcome: &Outcome) -> Repr {
        let Outcome::Reply(payload) = outcome else { panic!("not a reply: {outcome:?}") };
        self.parse(payload)
    }

    /// What everybody is told, by rank.
    pub fn broadcast(&self, outcome: &Outcome) -> Vec<Repr> {
        let Outcome::Broadcast(copies) = outcome else { panic!("not a broadcast: {outcome:?}") };
        copies.iter().map(|payload| self.parse(payload)).collect()
    }

    fn parse(&self, payload: &[u8]) -> Repr {
        Repr::parse(&Packet::new_unchecked(payload), self.job.lanes, self.job.checksum).expect("sound").1
    }

    /// Why the sender was answered with a REJECT.
    pub fn rejection(&self, outcome: &Outcome) -> Reason {
        match self.reply(outcome) {
            Repr::Reject(Rejection { reason, .. }) => reason,
            other => panic!("not a rejection: {other:?}"),
        }
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.aggregator.counters(self.job.id, self.job.view).expect("admitted")[counter.index()]
    }

    /// How many packets were refused for this reason, by the job and by none.
    pub fn refused(&self, reason: Reason) -> (u64, u64) {
        let of_job = self.aggregator.counters(self.job.id, self.job.view).expect("admitted");
        (of_job[usize::from(reason)], self.aggregator.unassigned()[usize::from(reason)])
    }

    /// The bank that serves a sequence.
    pub fn bank(&self, sequence: u64) -> Bank {
        let bank = (sequence / u64::from(self.job.slots) % 2) as usize;
        let found = self.aggregator.bank(self.job.id, self.job.view, self.job.slot(sequence), bank);
        *found.expect("in range").0
    }
}
