//! What must hold after every event, whatever the network did.

use std::collections::{HashMap, HashSet};

use thiserror::Error;
use xagg_proto::aggregator::{Bank, Status};
use xagg_proto::{Aggregator, Job, Time, Worker};
use xagg_wire::fixed::Exponent;
use xagg_wire::{Flags, Kind, Packet, full_len};

use crate::Scenario;
use crate::inputs::{self, Expected, Place};

/// Something that must hold and does not.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("after {at:?}: {rule}: {what}")]
pub struct Violation {
    /// Which rule of this module.
    pub rule: Rule,
    /// Simulated time.
    pub at: std::time::Duration,
    /// What was seen.
    pub what: String,
}

/// The rules.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A result is the exact sum of every contribution, once.
    #[error("exact sums")]
    Exact,
    /// A result that was issued never changes.
    #[error("stable results")]
    Stable,
    /// What an operation ends with is what its fragments' results say.
    #[error("right buffers")]
    Buffers,
    /// A bank is given to another fragment only when nobody needs it any more.
    #[error("no early reset")]
    EarlyReset,
    /// Whatever is receipted is in the aggregator's memory.
    #[error("true receipts")]
    Receipts,
    /// No packet number is used twice.
    #[error("fresh packet numbers")]
    Numbers,
    /// Nobody sends a fragment before its slot is free.
    #[error("free slots")]
    Slots,
    /// Every operation ends, once, in bounded time.
    #[error("progress")]
    Progress,
    /// Nothing fails that need not.
    #[error("no needless failure")]
    Failure,
    /// A restarted worker is refused: its contributions would count twice.
    #[error("no second life")]
    Restart,
    /// Nothing is kept once everything is done.
    #[error("no leak")]
    Leak,
    /// No member panics.
    #[error("no panic")]
    Panic,
}

impl Violation {
    pub(crate) fn of_panic(what: String) -> Self {
        Self { rule: Rule::Panic, at: std::time::Duration::ZERO, what }
    }
}

/// What the checker remembers of one worker process.
#[derive(Default)]
struct Sender {
    /// Fragment and phase of every packet number.
    sent: HashMap<u32, (u64, bool)>,
    receipted: HashSet<u32>,
}

/// Watches all members.
pub struct Checker {
    job: Job,
    places: Vec<Place>,
    /// By operation and rank; dropped once the operation is over everywhere.
    gradients: HashMap<usize, Vec<Vec<f32>>>,
    expected: HashMap<u64, Expected>,
    /// The exponent and lanes of every result that was issued.
    issued: HashMap<u64, (i16, Vec<u8>)>,
    senders: Vec<Sender>,
    pub(crate) now: Time,
}

type Checked = Result<(), Violation>;

impl Checker {
    /// A checker of a run that has not begun.
    #[must_use]
    pub fn new(scenario: &Scenario, job: &Job) -> Self {
        Self {
            job: job.clone(),
            places: inputs::places(scenario),
            gradients: HashMap::new(),
            expected: HashMap::new(),
            issued: HashMap::new(),
            senders: scenario.workers.iter().map(|_| Sender::default()).collect(),
            now: Time::ZERO,
        }
    }

    pub(crate) fn violation(&self, rule: Rule, what: String) -> Violation {
        Violation { rule, at: self.now.since(Time::ZERO), what }
    }

    fn require(&self, holds: bool, rule: Rule, what: impl FnOnce() -> String) -> Checked {
        if holds { Ok(()) } else { Err(self.violation(rule, what())) }
    }

    /// A new process has taken the rank.
    pub fn on_start(&mut self, rank: usize) {
        self.senders[rank] = Sender::default();
    }

    /// A worker sends a packet.
    ///
    /// # Errors
    /// [`Rule::Numbers`], [`Rule::Slots`].
    pub fn on_transmit(&mut self, rank: usize, worker: &Worker, payload: &[u8]) -> Checked {
        let packet = Packet::new_unchecked(payload);
        if packet.kind() != Some(Kind::Gradient) {
            return Ok(());
        }
        let (number, sequence) = (packet.packet_number(), packet.sequence());
        let phase = (sequence, packet.flags().contains(Flags::REDO));
        let before = self.senders[rank].sent.insert(number, phase);
        self.require(before.is_none(), Rule::Numbers, || {
            format!("rank {rank} sends number {number} again, for {sequence}")
        })?;
        let slots = u64::from(self.job.slots);
        let free = sequence < slots || worker.holds_result(sequence - slots);
        self.require(free, Rule::Slots, || {
            format!("rank {rank} sends {sequence} without the result of {}", sequence - slots)
        })
    }

    /// The aggregator has handled a packet of this sequence, whose bank was `before`.
    ///
    /// # Errors
    /// [`Rule::EarlyReset`].
    pub fn on_handled<'a>(
        &self,
        aggregator: &Aggregator,
        sequence: u64,
        before: Bank,
        mut alive: impl Iterator<Item = (usize, &'a Worker)>,
    ) -> Checked {
        let Some(after) = self.bank(aggregator, sequence) else { return Ok(()) };
        if before.status == Status::Empty || after.sequence == before.sequence {
            return Ok(());
        }
        let what = |who: String| format!("the bank of {} goes to {}: {who}", before.sequence, after.sequence);
        self.require(before.status == Status::Done, Rule::EarlyReset, || what("not done".to_owned()))?;
        let lacks = alive.find(|(_, worker)| !worker.holds_result(before.sequence));
        self.require(lacks.is_none(), Rule::EarlyReset, || {
            what(format!("rank {} lacks its result", lacks.map_or(0, |(rank, _)| rank)))
        })
    }

    /// The bank of a sequence.
    #[must_use]
    pub fn bank(&self, aggregator: &Aggregator, sequence: u64) -> Option<Bank> {
        let bank = (sequence / u64::from(self.job.slots) % 2) as usize;
        aggregator.bank(self.job.id, self.job.view, self.job.slot(sequence), bank).map(|(bank, _)| *bank)
    }

    /// The aggregator has addressed an answer to a rank.
    ///
    /// # Errors
    /// [`Rule::Receipts`], [`Rule::Exact`], [`Rule::Stable`].
    pub fn on_answer(
        &mut self,
        scenario: &Scenario,
        aggregator: &Aggregator,
        rank: usize,
        payload: &[u8],
    ) -> Checked {
        let packet = Packet::new_unchecked(payload);
        self.check_receipts(aggregator, rank, &packet)?;
        let is_result = packet.kind() == Some(Kind::Result) && payload.len() == full_len(self.job.lanes);
        if is_result { self.check_result(scenario, &packet) } else { Ok(()) }
    }

    fn check_receipts(&mut self, aggregator: &Aggregator, rank: usize, packet: &Packet<&[u8]>) -> Checked {
        for behind in (0..32).filter(|behind| packet.receipts() >> behind & 1 == 1) {
            let number = packet.largest().wrapping_sub(behind);
            // What a worker's process before this one has sent is not known any more.
            let Some((sequence, redo)) = self.senders[rank].sent.get(&number).copied() else { continue };
            if !self.senders[rank].receipted.insert(number) {
                continue;
            }
            let has = self.bank(aggregator, sequence).is_some_and(|bank| {
                let seen = bank.seen[rank / 64] >> (rank % 64) & 1 == 1;
                let current = bank.status == Status::Done || seen || (bank.redo && !redo);
                bank.sequence > sequence || (bank.sequence == sequence && current)
            });
            self.require(has, Rule::Receipts, || {
                format!("number {number} of rank {rank} is receipted, its fragment {sequence} is not there")
            })?;
        }
        Ok(())
    }

    fn check_result(&mut self, scenario: &Scenario, packet: &Packet<&[u8]>) -> Checked {
        let sequence = packet.sequence();
        let said = (packet.exponent(), packet.body().to_vec());
        if let Some(before) = self.issued.get(&sequence) {
            return self.require(*before == said, Rule::Stable, || format!("that of {sequence} has changed"));
        }
        let expected = self.expected(scenario, sequence);
        let nonfinite = packet.flags().contains(Flags::NONFINITE);
        let right = match &expected {
            None => false,
            Some(Expected::Nonfinite) => nonfinite,
            Some(Expected::Sums(sums)) => !nonfinite && self.lanes_are(packet, sums),
        };
        self.require(right, Rule::Exact, || format!("that of {sequence} is not {expected:?}"))?;
        self.issued.insert(sequence, said);
        Ok(())
    }

    /// WIRE F6, without the division.
    fn lanes_are(&self, packet: &Packet<&[u8]>, sums: &[f64]) -> bool {
        let format = self.job.format;
        let exponent = Exponent::from_wire(packet.exponent()).unwrap_or(Exponent::ZERO);
        let lowest = 1 - format.value_bits() as i32 - format.guard_bits() as i32;
        let zero = self.job.workers.len() as f64 * f64::from(format.bias());
        let (lanes, _) = packet.body().as_chunks::<4>();
        lanes.iter().zip(sums).all(|(lane, sum)| {
            let units = f64::from(u32::from_le_bytes(*lane)) - zero;
            let value = if exponent.is_zero() {
                units
            } else {
                units * 2.0_f64.powi(i32::from(exponent.to_wire()) + lowest)
            };
            value == *sum
        })
    }

    fn expected(&mut self, scenario: &Scenario, sequence: u64) -> Option<Expected> {
        let place = *self.places.get(usize::try_from(sequence).ok()?)?;
        if let Some(expected) = self.expected.get(&sequence) {
            return Some(expected.clone());
        }
        let ranks = 0..scenario.workers.len();
        let gradients = self
            .gradients
            .entry(place.operation)
            .or_insert_with(|| ranks.map(|rank| inputs::gradient(scenario, rank, place.operation)).collect());
        let expected = inputs::expected(&self.job, gradients, place);
        self.expected.insert(sequence, expected.clone());
        Some(expected)
    }

    /// A rank's operation has ended well.
    ///
    /// # Errors
    /// [`Rule::Buffers`].
    pub fn on_complete(
        &mut self,
        scenario: &Scenario,
        rank: usize,
        operation: usize,
        buffer: &[f32],
    ) -> Checked {
        let weights = scenario.workers.iter().map(|worker| worker.weight).sum();
        let reduction = Scenario::reduction(operation);
        for sequence in 0..self.places.len() as u64 {
            let place = self.places[sequence as usize];
            if place.operation != operation {
                continue;
            }
            let values = &buffer[place.start..place.start + place.length];
            let right = match self.expected(scenario, sequence) {
                None => false,
                Some(Expected::Nonfinite) => values.iter().all(|value| value.is_nan()),
                Some(Expected::Sums(sums)) => values
                    .iter()
                    .zip(sums)
                    .all(|(value, sum)| *value == inputs::result(sum, reduction, weights)),
            };
            self.require(right, Rule::Buffers, || {
                format!("rank {rank} has a wrong result of fragment {sequence}, operation {operation}")
            })?;
        }
        Ok(())
    }

    /// A worker has nothing to do any more.
    ///
    /// # Errors
    /// [`Rule::Leak`].
    pub fn on_idle(&self, rank: usize, worker: &Worker) -> Checked {
        /// Lost packets are remembered while a late receipt could still come in a bitmap.
        const REMEMBERED: usize = 64;
        let (fragments, packets) = worker.held();
        self.require(fragments == 0 && packets <= REMEMBERED, Rule::Leak, || {
            format!("rank {rank} keeps {fragments} fragments and {packets} packets")
        })
    }

    /// All operations of all ranks have ended well.
    ///
    /// # Errors
    /// [`Rule::Leak`].
    pub fn on_all_done(&self, aggregator: &Aggregator) -> Checked {
        for slot in 0..self.job.slots {
            for bank in 0..2 {
                let status =
                    aggregator.bank(self.job.id, self.job.view, slot, bank).map(|(bank, _)| bank.status);
                let over = matches!(status, Some(Status::Empty | Status::Done));
                self.require(over, Rule::Leak, || format!("bank {bank} of slot {slot} is {status:?}"))?;
            }
        }
        Ok(())
    }
}
