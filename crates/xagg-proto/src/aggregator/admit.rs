//! Who gets in: WIRE H1 to H3.

use std::net::SocketAddr;

use xagg_wire::{Counter, Flags, Kind, Packet, Reason, full_len};

use super::{Action, AdmittedJob, Aggregator};

/// A refusal, and the job that it is counted for, if that is known.
type Refused = (Option<(u32, u16)>, Reason);

impl Aggregator {
    /// Checks a packet in the order of WIRE H3; its job and rank.
    pub(super) fn admit(&self, source: SocketAddr, packet: &[u8]) -> Result<((u32, u16), u16), Refused> {
        let unassigned = |reason| (None, reason);
        let lanes = self.lanes.ok_or(unassigned(Reason::Length))?;
        if packet.len() != full_len(lanes) {
            return Err(unassigned(Reason::Length));
        }
        let packet = Packet::new_checked(packet).map_err(unassigned)?;
        if !matches!(packet.kind(), Some(Kind::Hello | Kind::Gradient | Kind::Pull)) {
            return Err(unassigned(Reason::Kind));
        }
        let key = (packet.job(), packet.view());
        let job = self.jobs.get(&key).ok_or(unassigned(Reason::Job))?;
        let rank = packet.rank();
        let member = job.members.get(usize::from(rank)).filter(|member| member.address == source);
        let member = member.ok_or((Some(key), Reason::Worker))?;
        if packet.cookie() != member.cookie.to_wire() {
            return Err((Some(key), Reason::Cookie));
        }
        if !packet.is_intact(job.checksum) {
            return Err((Some(key), Reason::Checksum));
        }
        Ok((key, rank))
    }
}

impl AdmittedJob {
    /// Opens a flow (WIRE H1, H2).
    pub(super) fn hello(
        &mut self,
        incarnation: u32,
        grant: u32,
        rank: u16,
        packet: &mut Packet<&mut [u8]>,
    ) -> Action {
        let nonce = packet.sequence();
        if nonce == 0 {
            return self.drop_for(Reason::Field);
        }
        let checksum = !packet.flags().contains(Flags::NO_CHECKSUM);
        let shape = (packet.slot(), usize::from(packet.contributors()), checksum);
        if shape != (self.slots.count(), self.members.len(), self.checksum) {
            return self.reject(incarnation, rank, packet, Reason::Shape);
        }
        let member = &mut self.members[usize::from(rank)];
        if member.nonce == 0 {
            member.nonce = nonce;
        }
        if member.nonce != nonce {
            return self.reject(incarnation, rank, packet, Reason::Nonce);
        }
        self.count(Counter::Welcome);
        let len = packet.bytes().len();
        self.write_header(incarnation, Kind::Welcome, Flags::NONE, packet);
        packet.set_grant(grant);
        self.address(rank, len, packet);
        Action::Reply { len }
    }

    /// Whether a GRADIENT or PULL is meant for this life of the aggregator, from a worker that has said HELLO.
    pub(super) fn is_current(&self, incarnation: u32, rank: u16, packet: &Packet<&mut [u8]>) -> bool {
        packet.incarnation() == incarnation && self.members[usize::from(rank)].nonce != 0
    }

    /// Counts a packet that is refused without an answer.
    pub(super) fn drop_for(&mut self, reason: Reason) -> Action {
        self.counters[usize::from(reason)] += 1;
        Action::Drop(Some(reason))
    }
}
