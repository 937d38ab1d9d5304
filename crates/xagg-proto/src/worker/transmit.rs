//! What a worker sends: HELLO, PULL, GRADIENT. All have the job's full length.

use std::time::Duration;

use xagg_wire::fixed::{Exponent, Magnitude, magnitude, quantise};
use xagg_wire::repr::Contribution;
use xagg_wire::{Packet, Repr, full_len};

use super::pacer::Limit;
use super::{Membership, Worker, longest_silence};
use crate::Time;

/// An answer is asked for with every packet number that this divides, and at the tail.
const ACK_EVERY: u32 = 16;
/// A PULL is not taken for lost sooner, whatever the round trip.
const LEAST_PULL_PATIENCE: Duration = Duration::from_millis(20);

impl Worker {
    /// Writes the next packet, if one may be sent now, to the front of `buffer`, which must have room for the job's packet
    /// length; returns that length, in bytes. To be called until it returns `None`.
    pub fn poll_transmit(&mut self, now: Time, buffer: &mut [u8]) -> Option<usize> {
        if self.limit.as_mut().is_some_and(|limit| !limit.allows(now)) {
            return None;
        }
        let len = full_len(self.lanes);
        let mut packet = Packet::new_unchecked(&mut buffer[..len]);
        match self.membership {
            Membership::Failed(_) => return None,
            Membership::Joining { .. } => self.write_hello(now, &mut packet)?,
            Membership::Joined => match self.next_pull(now) {
                Some(sequence) => self.write_pull(now, sequence, &mut packet),
                None => self.write_next_gradient(now, &mut packet)?,
            },
        }
        if let Some(limit) = &mut self.limit {
            limit.on_sent();
        }
        self.stats.bytes_sent += len as u64;
        Some(len)
    }

    /// When the worker's own rate lets the next packet go.
    pub(super) fn next_allowed(&self) -> Time {
        self.limit.as_ref().map_or(Time::ZERO, Limit::next)
    }

    /// Whether only the worker's own rate holds back a PULL.
    pub(super) fn is_held_back(&self) -> bool {
        self.limit.is_some() && (!self.pulls.is_empty() || self.results.owes())
    }

    /// Whether window and slots would let a fragment go, if the pacer did.
    pub(super) fn may_send(&mut self) -> bool {
        let sendable = self.fragments.sendable().is_some();
        let full = self.flight.flying() >= self.congestion.size();
        self.window_limited = sendable && full && self.probes_due == 0;
        sendable && !self.window_limited
    }

    fn write_hello(&mut self, now: Time, packet: &mut Packet<&mut [u8]>) -> Option<()> {
        let Membership::Joining { hellos, next, interval, since } = &mut self.membership else { return None };
        if now < *next {
            return None;
        }
        *hellos += 1;
        *next = now + self.jitter.spread(*interval);
        *interval = (*interval * 2).min(longest_silence(self.timeout));
        since.get_or_insert(now);
        packet.body_mut().fill(0);
        let checksum = self.checksum;
        let hello = Repr::Hello { nonce: self.nonce, slots: self.slots, workers: self.workers, checksum };
        hello.emit(&self.flow, packet, checksum);
        Some(())
    }

    /// The fragment to ask for now: one that the timer chose, or one whose result may be the one that is known to be lost.
    fn next_pull(&mut self, now: Time) -> Option<u64> {
        if let Some(sequence) = self.pulls.pop_front() {
            return Some(sequence);
        }
        if !self.results.owes() {
            return None;
        }
        let sequence = self.fragments.pull_next(now, self.pull_patience());
        match sequence {
            Some(sequence) => self.results.ask(now, sequence),
            None => self.results.give_up(),
        }
        sequence
    }

    /// How long a PULL may go without an answer, and how soon a fragment may be asked for again.
    pub(super) fn pull_patience(&self) -> Duration {
        (self.flight.round_trip() * 2).max(LEAST_PULL_PATIENCE)
    }

    fn write_pull(&mut self, now: Time, sequence: u64, packet: &mut Packet<&mut [u8]>) {
        self.stats.pulls += 1;
        packet.body_mut().fill(0);
        let pull = Repr::Pull {
            sequence,
            slot: self.slot(sequence),
            redo: self.fragments.redo(sequence).is_some(),
            timestamp: now.as_timestamp(),
        };
        pull.emit(&self.flow, packet, self.checksum);
    }

    fn write_next_gradient(&mut self, now: Time, packet: &mut Packet<&mut [u8]>) -> Option<()> {
        if !self.may_send() || !self.pacer.take_token(now, self.pace()) {
            return None;
        }
        let sequence = self.fragments.sendable()?;
        let packet_number = self.flight.next_number();
        let redo = self.fragments.redo(sequence);
        let again = self.fragments.on_sent(sequence, packet_number);
        self.flight.on_sent(now, sequence, redo.is_some());
        self.probes_due = self.probes_due.saturating_sub(1);
        self.stats.packets_sent += 1;
        self.stats.retransmissions += u64::from(again && redo.is_none());
        let ack_request = again || packet_number.is_multiple_of(ACK_EVERY) || !self.may_send();
        self.write_gradient(now, sequence, packet_number, redo, ack_request, packet)
    }

    fn write_gradient(
        &mut self,
        now: Time,
        sequence: u64,
        packet_number: u32,
        redo: Option<Exponent>,
        ack_request: bool,
        packet: &mut Packet<&mut [u8]>,
    ) -> Option<()> {
        let (lanes, slot) = (self.lanes, self.slot(sequence));
        let operation = self.operations.of(sequence)?;
        let range = operation.range(sequence, lanes);
        let values = &(**operation.buffer.as_mut()?).as_mut()[range];
        let (exponent, nonfinite) = match magnitude(values) {
            Magnitude::Zero => (Exponent::ZERO, false),
            Magnitude::Finite(exponent) => (exponent, false),
            Magnitude::Nonfinite => (Exponent::ZERO, true),
        };
        let exponent_of_values = if nonfinite { Exponent::ZERO } else { redo.unwrap_or(exponent) };
        quantise(self.format, exponent_of_values, values, packet.body_mut());
        let contribution = Contribution {
            sequence,
            slot,
            packet_number,
            redo: redo.is_some(),
            nonfinite,
            ack_request,
            exponent: redo.unwrap_or(exponent),
            contributors: 1,
            weight: operation.weight,
            signature: operation.signature,
            timestamp: now.as_timestamp(),
        };
        Repr::Gradient(contribution).emit(&self.flow, packet, self.checksum);
        Some(())
    }

    fn slot(&self, sequence: u64) -> u32 {
        (sequence % u64::from(self.slots)) as u32
    }
}
