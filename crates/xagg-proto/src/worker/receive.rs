//! What a worker hears: WELCOME, receipts, results, REDO, PENDING, REJECT.

use xagg_wire::fixed::{Exponent, dequantise};
use xagg_wire::packet::HEADER_LEN;
use xagg_wire::repr::Rejection;
use xagg_wire::{Flow, Kind, Packet, Reason, Receipts, Reduction, Repr};

use super::error::refusal;
use super::{Event, Membership, PendingReport, Worker, WorkerError, missing};
use crate::Time;

/// What a RESULT says of its lanes.
struct Sum {
    sequence: u64,
    nonfinite: bool,
    exponent: Exponent,
    contributors: u16,
    weight: u32,
}

impl Worker {
    /// Takes in one datagram's payload, from the aggregator's address and port; `marked` says whether it came with a mark of
    /// congestion (ECN CE).
    pub fn handle_datagram(&mut self, now: Time, marked: bool, payload: &[u8]) {
        match Repr::parse(&Packet::new_unchecked(payload), self.lanes, self.checksum) {
            Ok((flow, repr)) if self.is_mine(&flow, &repr) => {
                self.stats.packets_received += 1;
                self.stats.bytes_received += payload.len() as u64;
                self.last_heard = Some((repr.kind_and_flags().0, now));
                (self.unreachable, self.no_way) = (None, false);
                self.stats.marked_received += u64::from(marked);
                if repr.kind_and_flags().0 == Kind::Result {
                    self.congestion.on_result(now, self.flight.round_trip(), marked);
                }
                self.handle(now, &flow, &repr, &payload[HEADER_LEN..]);
            }
            _ => self.stats.dropped += 1,
        }
    }

    /// WIRE H4. A WELCOME tells the incarnation, a REJECT(INCARNATION) tells that it has changed: all else must have it.
    fn is_mine(&self, flow: &Flow, repr: &Repr) -> bool {
        let tells = matches!(repr, Repr::Welcome { .. } | Repr::Reject(_));
        let incarnation = if tells { flow.incarnation } else { self.flow.incarnation };
        *flow == Flow { incarnation, ..self.flow }
    }

    fn handle(&mut self, now: Time, flow: &Flow, repr: &Repr, body: &[u8]) {
        match (&self.membership, *repr) {
            (Membership::Failed(_), _) => {}
            (Membership::Joining { .. }, Repr::Welcome { nonce, no_gso, grant }) if nonce == self.nonce => {
                self.congestion.set_grant(grant);
                self.on_welcome(now, flow.incarnation, no_gso);
            }
            (_, Repr::Reject(rejection)) => self.on_reject(now, &rejection),
            (Membership::Joining { .. }, _) => {}
            (Membership::Joined, Repr::Ack { receipts }) => self.on_receipts(now, &receipts),
            (Membership::Joined, Repr::Redo { sequence, packet_number, exponent, receipts }) => {
                self.on_receipts(now, &receipts);
                self.note_result(now, sequence, packet_number);
                self.on_redo(now, sequence, exponent);
            }
            (
                Membership::Joined,
                Repr::Result { sequence, packet_number, nonfinite, exponent, contributors, weight, receipts },
            ) => {
                // Before the result settles its packet, which would hide the round trip.
                self.on_receipts(now, &receipts);
                self.note_result(now, sequence, packet_number);
                self.on_result(now, &Sum { sequence, nonfinite, exponent, contributors, weight }, body);
            }
            (Membership::Joined, Repr::Pending { sequence, seen, receipts }) => {
                self.on_receipts(now, &receipts);
                self.on_pending(now, sequence, &seen);
            }
            (Membership::Joined, _) => {}
        }
        if matches!(self.membership, Membership::Joined) {
            self.detect_losses(now);
        }
        self.update_waiting(now);
    }

    fn on_welcome(&mut self, now: Time, incarnation: u32, no_gso: bool) {
        self.flow.incarnation = incarnation;
        self.membership = Membership::Joined;
        self.last_progress = now;
        self.results.restart_timer(now);
        self.events.push_back(Event::Joined { no_gso });
    }

    fn on_receipts(&mut self, now: Time, receipts: &Receipts) {
        let fragments = &mut self.fragments;
        let (mut news, mut copies) = (0, vec![]);
        self.flight.on_receipts(now, receipts, |report| {
            let flying = fragments.on_receipt(report.sequence, report.redo);
            copies.extend(flying.filter(|copy| *copy != report.packet_number));
            news += 1;
        });
        copies.into_iter().for_each(|copy| self.flight.forget_packet(copy));
        if news > 0 {
            self.last_progress = now;
        }
        let marked = self.take_marks(receipts.marks);
        if news > 0 || marked > 0 {
            let round_trip = self.flight.round_trip();
            self.congestion.on_receipts(now, round_trip, news, marked, self.window_limited);
        }
    }

    /// How many marks are new. Answers that overtook each other say less than was known.
    fn take_marks(&mut self, marks: u16) -> usize {
        let new = marks.wrapping_sub(self.marks);
        if new >= 1 << 15 {
            return 0;
        }
        self.marks = marks;
        self.stats.marked_sent += u64::from(new);
        new.into()
    }

    /// Notes the number of a result; a gap in them is a loss.
    fn note_result(&mut self, now: Time, sequence: u64, packet_number: u32) {
        if self.results.on_result(now, sequence, packet_number) > 0 {
            self.congestion.on_result_loss(now, self.flight.round_trip());
        }
    }

    fn on_result(&mut self, now: Time, sum: &Sum, lanes: &[u8]) {
        let Some(still_flying) = self.fragments.on_result(sum.sequence) else {
            self.stats.duplicate_results += 1;
            return;
        };
        if let Some(packet_number) = still_flying {
            self.flight.forget_packet(packet_number);
        }
        self.stats.results += 1;
        self.stats.nonfinite += u64::from(sum.nonfinite);
        self.last_progress = now;
        self.land(sum, lanes);
    }

    /// Writes the values of a fragment into its operation's buffer, and completes the operation if it was the last.
    fn land(&mut self, sum: &Sum, lanes: &[u8]) {
        let Some(operation) = self.operations.of(sum.sequence) else { return };
        let range = operation.range(sum.sequence, self.lanes);
        let Some(buffer) = &mut operation.buffer else { return };
        let values = &mut (**buffer).as_mut()[range];
        if sum.nonfinite {
            values.fill(f32::NAN);
        } else {
            let divisor = if operation.operation.reduction == Reduction::Mean { sum.weight } else { 1 };
            let contributors = u32::from(sum.contributors);
            dequantise(self.format, sum.exponent, contributors, divisor, lanes, values);
        }
        operation.done += 1;
        if operation.done == operation.fragments
            && let Some(buffer) = operation.buffer.take()
        {
            let operation = operation.operation.index;
            self.stats.operations += 1;
            self.events.push_back(Event::Complete { operation, buffer });
            self.operations.forget_complete();
        }
    }

    fn on_redo(&mut self, now: Time, sequence: u64, exponent: Exponent) {
        let Some(still_flying) = self.fragments.on_redo(sequence, exponent) else { return };
        if let Some(packet_number) = still_flying {
            self.flight.forget_packet(packet_number);
        }
        self.stats.redos += 1;
        self.last_progress = now;
    }

    fn on_pending(&mut self, now: Time, sequence: u64, seen: &[u64; 4]) {
        let missing = missing(seen, self.workers);
        self.results.on_pending(sequence, self.fragments.is_overtaken(sequence));
        if missing.contains(&self.flow.rank) {
            self.fragments.on_absent(sequence);
        }
        self.waiting.on_pending(now, sequence, &missing);
        self.last_pending = Some(PendingReport { sequence, missing });
    }

    fn on_reject(&mut self, now: Time, rejection: &Rejection) {
        let (rank, aggregator) = (self.flow.rank, self.aggregator);
        let error = match rejection.reason {
            Reason::Mismatch => self.mismatch(now, rejection),
            Reason::Incarnation => self.aggregator_lost(now, "has been started again"),
            reason => WorkerError::Refused { rank, aggregator, reason, why: refusal(reason) },
        };
        self.fail(error);
    }

    fn mismatch(&mut self, now: Time, rejection: &Rejection) -> WorkerError {
        let (oldest, phase) = self.standing();
        let own =
            self.operations.of(rejection.sequence).map(|own| (own.operation.to_string(), own.signature));
        let (operation, own_signature) = own.unwrap_or((oldest, 0));
        WorkerError::Mismatch {
            rank: self.flow.rank,
            operation,
            phase,
            first_rank: rejection.first_rank,
            first_signature: rejection.first_signature,
            other_rank: rejection.other_rank,
            other_signature: rejection.other_signature,
            own_signature,
            heard: self.heard(now),
        }
    }
}
