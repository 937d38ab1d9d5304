//! What is answered: the packet becomes its answer in place (WIRE section 4, H4, H6, H7).

use std::net::SocketAddr;

use xagg_wire::fixed::write_lanes;
use xagg_wire::repr::MAX_WEIGHT;
use xagg_wire::{Counter, Flags, HEADER_LEN, Kind, Packet, Reason, SHORT_BODY_LEN};

use super::slot::{Added, Found, Status};
use super::{Action, AdmittedJob};

type Frame<'a> = Packet<&'a mut [u8]>;

impl AdmittedJob {
    /// A GRADIENT (WIRE S1 to S4).
    pub(super) fn gradient(&mut self, incarnation: u32, rank: u16, packet: &mut Frame) -> Action {
        if !self.is_current(incarnation, rank, packet) {
            return self.reject(incarnation, rank, packet, Reason::Incarnation);
        }
        let sequence = packet.sequence();
        if !self.has_legal_fields(packet) {
            return self.drop_for(Reason::Field);
        }
        match self.slots.find(sequence) {
            Found::Window => self.reject(incarnation, rank, packet, Reason::Window),
            Found::Older => {
                self.count(Counter::Stale);
                self.receipt(rank, packet);
                self.ack(incarnation, rank, packet)
            }
            Found::Free if packet.flags().contains(Flags::REDO) => self.drop_for(Reason::Field),
            Found::Free => {
                self.slots.begin(rank, packet);
                self.add(incarnation, rank, packet)
            }
            Found::Current => self.current_gradient(incarnation, rank, packet),
        }
    }

    /// A GRADIENT whose sequence is its bank's own (WIRE S1).
    fn current_gradient(&mut self, incarnation: u32, rank: u16, packet: &mut Frame) -> Action {
        let sequence = packet.sequence();
        let bank = self.slots.of(sequence).0;
        match bank.status {
            Status::Done => {
                self.count(Counter::Duplicate);
                self.receipt(rank, packet);
                return self.result_again(incarnation, rank, packet);
            }
            Status::Mismatched => return self.reject(incarnation, rank, packet, Reason::Mismatch),
            Status::Empty | Status::Gathering => {}
        }
        if packet.signature() != bank.signature {
            bank.status = Status::Mismatched;
            bank.other_rank = rank;
            bank.other_signature = packet.signature();
            bank.cursor = 0;
            return self.broadcast_mismatch(incarnation, rank, packet);
        }
        let redo = packet.flags().contains(Flags::REDO);
        if !redo && bank.redo {
            self.count(Counter::Duplicate);
            self.receipt(rank, packet);
            return self.redo_again(incarnation, rank, packet);
        }
        if redo && (!bank.redo || packet.exponent() != bank.exponent.to_wire()) {
            return self.drop_for(Reason::Field);
        }
        if self.slots.has_seen(sequence, rank) {
            self.count(Counter::Duplicate);
            self.receipt(rank, packet);
            return self.ack(incarnation, rank, packet);
        }
        self.add(incarnation, rank, packet)
    }

    /// Adds a contribution and answers (WIRE S4).
    fn add(&mut self, incarnation: u32, rank: u16, packet: &mut Frame) -> Action {
        let sequence = packet.sequence();
        let added = self.slots.add(rank, packet);
        self.count(Counter::Added);
        self.receipt(rank, packet);
        let progress = &mut self.members[usize::from(rank)].progress;
        progress.sequences = progress.sequences.max(sequence + 1);
        match added {
            Added::Gathering if packet.flags().contains(Flags::ACK_REQUEST) => {
                self.ack(incarnation, rank, packet)
            }
            Added::Gathering => Action::Drop(None),
            Added::Done => {
                self.count(Counter::Broadcast);
                let len = self.write_result(incarnation, packet);
                Action::Broadcast { len }
            }
            Added::Redo => {
                self.count(Counter::Redo);
                let len = self.write_redo(incarnation, packet);
                Action::Broadcast { len }
            }
        }
    }

    /// A PULL (WIRE S5).
    pub(super) fn pull(&mut self, incarnation: u32, rank: u16, packet: &mut Frame) -> Action {
        if !self.is_current(incarnation, rank, packet) {
            return self.reject(incarnation, rank, packet, Reason::Incarnation);
        }
        let sequence = packet.sequence();
        if packet.slot() != self.slots.slot_of(sequence) {
            return self.drop_for(Reason::Field);
        }
        self.count(Counter::Pull);
        match self.slots.find(sequence) {
            Found::Older => {
                self.count(Counter::Stale);
                return self.ack(incarnation, rank, packet);
            }
            Found::Free | Found::Window => return self.pending(incarnation, rank, packet, [0; 4]),
            Found::Current => {}
        }
        let bank = *self.slots.of(sequence).0;
        match bank.status {
            Status::Done => self.result_again(incarnation, rank, packet),
            Status::Mismatched => self.reject(incarnation, rank, packet, Reason::Mismatch),
            _ if bank.redo && !packet.flags().contains(Flags::REDO) => {
                self.redo_again(incarnation, rank, packet)
            }
            _ => self.pending(incarnation, rank, packet, bank.seen),
        }
    }

    /// The fields of a GRADIENT (WIRE H3, last sentence).
    fn has_legal_fields(&self, packet: &Frame) -> bool {
        packet.slot() == self.slots.slot_of(packet.sequence())
            && (1..=MAX_WEIGHT).contains(&packet.weight())
            && packet.contributors() == 1
            && xagg_wire::fixed::Exponent::from_wire(packet.exponent()).is_some()
    }

    fn receipt(&mut self, rank: u16, packet: &Frame) {
        let receipts = &mut self.members[usize::from(rank)].receipts;
        receipts.note(packet.packet_number(), packet.timestamp());
    }

    fn ack(&mut self, incarnation: u32, rank: u16, packet: &mut Frame) -> Action {
        self.count(Counter::Ack);
        self.reply(incarnation, rank, Kind::Ack, Flags::NONE, packet)
    }

    fn pending(&mut self, incarnation: u32, rank: u16, packet: &mut Frame, seen: [u64; 4]) -> Action {
        self.count(Counter::Pending);
        let body = packet.body_mut();
        for (bytes, ranks) in body.as_chunks_mut::<8>().0.iter_mut().zip(seen) {
            *bytes = ranks.to_le_bytes();
        }
        self.reply(incarnation, rank, Kind::Pending, Flags::NONE, packet)
    }

    /// Counts the reason, and answers with it unless the worker has had too many REJECTs.
    pub(super) fn reject(
        &mut self,
        incarnation: u32,
        rank: u16,
        packet: &mut Frame,
        reason: Reason,
    ) -> Action {
        if !self.may_reject(rank, reason) {
            return Action::Drop(Some(reason));
        }
        self.write_rejection(packet, reason);
        self.reply(incarnation, rank, Kind::Reject, Flags::NONE, packet)
    }

    /// Counts the reason, and takes it from what the worker that is to blame may cause (WIRE H9).
    fn may_reject(&mut self, rank: u16, reason: Reason) -> bool {
        self.counters[usize::from(reason)] += 1;
        let member = &mut self.members[usize::from(rank)];
        // What it was last heard with is the packet at hand.
        let now = member.progress.last_heard.unwrap_or_default();
        let may = member.rejects.take(now);
        self.count(if may { Counter::Reject } else { Counter::RejectLimited });
        may
    }

    fn broadcast_mismatch(&mut self, incarnation: u32, rank: u16, packet: &mut Frame) -> Action {
        if !self.may_reject(rank, Reason::Mismatch) {
            return Action::Drop(Some(Reason::Mismatch));
        }
        self.write_rejection(packet, Reason::Mismatch);
        self.write_header(incarnation, Kind::Reject, Flags::NONE, packet);
        Action::Broadcast { len: HEADER_LEN + SHORT_BODY_LEN }
    }

    /// The body of a REJECT; ranks and signatures only for MISMATCH.
    fn write_rejection(&mut self, packet: &mut Frame, reason: Reason) {
        let bank = *self.slots.of(packet.sequence()).0;
        let mut body = [0; SHORT_BODY_LEN];
        body[0] = reason as u8;
        if reason == Reason::Mismatch {
            body[4..6].copy_from_slice(&bank.first_rank.to_le_bytes());
            body[6..8].copy_from_slice(&bank.other_rank.to_le_bytes());
            body[8..12].copy_from_slice(&bank.signature.to_le_bytes());
            body[12..16].copy_from_slice(&bank.other_signature.to_le_bytes());
        }
        packet.body_mut()[..SHORT_BODY_LEN].copy_from_slice(&body);
    }

    fn result_again(&mut self, incarnation: u32, rank: u16, packet: &mut Frame) -> Action {
        self.count(Counter::ResultAgain);
        let len = self.write_result(incarnation, packet);
        self.number_result(rank, packet);
        self.address(rank, len, packet);
        Action::Reply { len }
    }

    fn redo_again(&mut self, incarnation: u32, rank: u16, packet: &mut Frame) -> Action {
        self.count(Counter::ResultAgain);
        let len = self.write_redo(incarnation, packet);
        self.number_result(rank, packet);
        self.address(rank, len, packet);
        Action::Reply { len }
    }

    /// Makes the packet its fragment's RESULT, but for the receiver.
    fn write_result(&mut self, incarnation: u32, packet: &mut Frame) -> usize {
        let (bank, sums) = self.slots.of(packet.sequence());
        let bank = *bank;
        assert_eq!(bank.status, Status::Done, "WIRE S7");
        write_lanes(sums, packet.body_mut());
        self.write_header(incarnation, Kind::Result, Flags::NONFINITE.when(bank.nonfinite), packet);
        packet.set_exponent(bank.exponent.to_wire());
        packet.set_contributors(bank.contributors);
        packet.set_weight(bank.weight);
        packet.bytes().len()
    }

    /// Makes the packet the request to send its fragment again, but for the receiver.
    fn write_redo(&mut self, incarnation: u32, packet: &mut Frame) -> usize {
        let exponent = self.slots.of(packet.sequence()).0.exponent;
        self.write_header(incarnation, Kind::Result, Flags::REDO, packet);
        packet.set_exponent(exponent.to_wire());
        HEADER_LEN
    }

    /// Makes the packet an answer to the worker that sent it.
    pub(super) fn reply(
        &mut self,
        incarnation: u32,
        rank: u16,
        kind: Kind,
        flags: Flags,
        packet: &mut Frame,
    ) -> Action {
        let len = match kind {
            Kind::Pending | Kind::Reject => HEADER_LEN + SHORT_BODY_LEN,
            _ => HEADER_LEN,
        };
        self.write_header(incarnation, kind, flags, packet);
        self.address(rank, len, packet);
        Action::Reply { len }
    }

    /// A header with nothing but what all answers have.
    pub(super) fn write_header(&self, incarnation: u32, kind: Kind, flags: Flags, packet: &mut Frame) {
        let sequence = packet.sequence();
        packet.reset_header(kind);
        packet.set_flags(flags);
        packet.set_job(self.id);
        packet.set_view(self.view);
        packet.set_sequence(sequence);
        packet.set_incarnation(incarnation);
    }

    fn number_result(&mut self, rank: u16, packet: &mut Frame) {
        let results = &mut self.members[usize::from(rank)].results;
        *results = results.wrapping_add(1);
        packet.set_packet_number(*results);
    }

    /// Addresses the first `len` bytes to a worker and seals them; where it goes.
    pub(super) fn address(&mut self, rank: u16, len: usize, packet: &mut Frame) -> SocketAddr {
        let member = &self.members[usize::from(rank)];
        packet.set_rank(rank);
        packet.set_cookie(member.cookie.to_wire());
        member.receipts.emit(packet);
        let mut answer = Packet::new_unchecked(&mut packet.bytes_mut()[..len]);
        answer.seal(self.checksum);
        member.address
    }

    /// See [`Aggregator::next_copy`](super::Aggregator::next_copy).
    pub(super) fn next_copy(&mut self, packet: &mut Frame) -> Option<SocketAddr> {
        let bank = self.slots.of(packet.sequence()).0;
        let rank = loop {
            let rank = bank.cursor;
            let member = self.members.get(usize::from(rank))?;
            bank.cursor += 1;
            if member.nonce != 0 {
                break rank;
            }
        };
        self.count(Counter::Copies);
        if packet.kind() == Some(Kind::Result) {
            self.number_result(rank, packet);
        }
        let len = packet.bytes().len();
        Some(self.address(rank, len, packet))
    }
}
