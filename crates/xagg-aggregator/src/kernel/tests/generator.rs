//! Packets for the differential test: mostly what real workers would send, so that deep states are reached, and everything else
//! besides: duplicates, old and future sequences, wrong identities, damage, garbage.

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, RngCore};
use std::net::SocketAddr;
use xagg_proto::aggregator::Status;
use xagg_proto::{Aggregator, Job};
use xagg_wire::fixed::{Exponent, Magnitude, magnitude, quantise};
use xagg_wire::repr::Contribution;
use xagg_wire::{Flow, HEADER_LEN, Kind, Packet, Repr, full_len};

use super::harness::INCARNATION;

/// Where the header has the operation's signature.
const SIGNATURE: std::ops::Range<usize> = 48..52;

/// What the generator knows of a worker.
#[derive(Clone, Default)]
struct Peer {
    nonce: u64,
    /// The next sequence that it would send.
    next: u64,
    packet_number: u32,
}

pub struct Generator {
    job: Job,
    peers: Vec<Peer>,
    /// How many of 10000 packets carry another operation's signature; such a bank is stuck from then on.
    pub mismatches: u32,
}

pub struct Generated {
    pub source: SocketAddr,
    pub payload: Vec<u8>,
}

impl Generator {
    pub fn new(job: &Job) -> Self {
        Self { job: job.clone(), peers: vec![Peer::default(); job.workers.len()], mismatches: 0 }
    }

    /// The next packet; `twin` shows what state the aggregator is in.
    pub fn next(&mut self, rng: &mut StdRng, twin: &Aggregator) -> Generated {
        let rank = self.choose_rank(rng, twin);
        let has_joined = self.has_joined(twin, rank);
        let mut generated = match rng.random_range(0..100) {
            0..88 if !has_joined && rng.random_bool(0.9) => self.hello(rng, rank),
            0..88 => self.gradient(rng, twin, rank),
            88..95 => self.pull(rng, rank),
            95 => self.garbage(rng, rank),
            _ => self.hello(rng, rank),
        };
        if rng.random_bool(0.08) {
            self.spoil(rng, &mut generated);
        }
        generated
    }

    /// Mostly one whose packet moves the job on, or many workers would never complete a bank.
    fn choose_rank(&self, rng: &mut StdRng, twin: &Aggregator) -> u16 {
        let ranks = self.job.worker_count();
        let any = rng.random_range(0..ranks);
        let is_wanted = |rank: &u16| !self.has_joined(twin, *rank) || self.waiting_for(twin, *rank).is_some();
        let wanted = || (0..ranks).map(|offset| (any + offset) % ranks).find(is_wanted);
        if rng.random_bool(0.8) { wanted().unwrap_or(any) } else { any }
    }

    fn has_joined(&self, twin: &Aggregator, rank: u16) -> bool {
        twin.progress(self.job.id, self.job.view)
            .nth(usize::from(rank))
            .is_some_and(|progress| progress.joined)
    }

    fn emit(&self, rank: u16, repr: &Repr, write_body: impl FnOnce(&mut [u8])) -> Generated {
        let mut payload = vec![0; full_len(self.job.lanes)];
        let mut packet = Packet::new_unchecked(&mut payload);
        write_body(packet.body_mut());
        let incarnation = if packet_is_hello(repr) { 0 } else { INCARNATION };
        let cookie = self.job.cookie(rank);
        repr.emit(
            &Flow { job: self.job.id, view: self.job.view, rank, cookie, incarnation },
            &mut packet,
            self.job.checksum,
        );
        Generated { source: self.job.workers[usize::from(rank)], payload }
    }

    fn hello(&mut self, rng: &mut StdRng, rank: u16) -> Generated {
        let peer = &mut self.peers[usize::from(rank)];
        if peer.nonce == 0 {
            peer.nonce = rng.next_u64().max(1);
        }
        let nonce = if rng.random_bool(0.9) { peer.nonce } else { rng.next_u64() };
        let slots = if rng.random_bool(0.95) { self.job.slots } else { self.job.slots + 1 };
        let checksum = if rng.random_bool(0.95) { self.job.checksum } else { !self.job.checksum };
        self.emit(rank, &Repr::Hello { nonce, slots, workers: self.job.worker_count(), checksum }, |_| ())
    }

    fn pull(&self, rng: &mut StdRng, rank: u16) -> Generated {
        let sequence = self.near(rng, rank);
        let slot = self.job.slot(sequence);
        self.emit(rank, &Repr::Pull { sequence, slot, redo: rng.random(), timestamp: rng.random() }, |_| ())
    }

    /// A sequence around the worker's next one.
    fn near(&self, rng: &mut StdRng, rank: u16) -> u64 {
        let reach = 2 * u64::from(self.job.slots) + 1;
        let next = self.peers[usize::from(rank)].next;
        next.saturating_sub(rng.random_range(0..=reach)) + rng.random_range(0..=1)
    }

    fn gradient(&mut self, rng: &mut StdRng, twin: &Aggregator, rank: u16) -> Generated {
        let next = self.peers[usize::from(rank)].next;
        let sequence = match rng.random_range(0..100) {
            0..75 => self.waiting_for(twin, rank).unwrap_or_else(|| self.near(rng, rank)),
            75..85 => self.near(rng, rank),
            85 => next + u64::from(self.job.slots) * rng.random_range(1..4),
            _ => next,
        };
        let bank = self.bank_of(twin, sequence);
        let redo = bank.is_some_and(|bank| bank.redo && bank.sequence == sequence) && rng.random_bool(0.95);
        let redo_exponent = bank.map(|bank| bank.exponent).filter(|_| redo);
        let peer = &mut self.peers[usize::from(rank)];
        peer.packet_number = peer.packet_number.wrapping_add(rng.random_range(1..3));
        let packet_number = peer.packet_number.wrapping_sub(if rng.random_bool(0.1) { 3 } else { 0 });
        if sequence == next && self.may_send(twin, next) {
            self.peers[usize::from(rank)].next += 1;
        }
        self.contribution(rng, rank, sequence, packet_number, redo_exponent)
    }

    fn contribution(
        &self,
        rng: &mut StdRng,
        rank: u16,
        sequence: u64,
        packet_number: u32,
        redo: Option<Exponent>,
    ) -> Generated {
        // About one worker of a fragment is the odd one: so also of many workers' fragments some meet a larger exponent late,
        // and some stay within the guard bits, and some are finite.
        let is_odd_one = rng.random_ratio(1, u32::from(self.job.worker_count()).max(2));
        let scales = match sequence % 3 {
            1 if !is_odd_one => 0..1,
            2 if is_odd_one => -140..120,
            _ => 0..5,
        };
        let values = random_values(rng, self.job.lanes, scales);
        let own = match magnitude(&values) {
            Magnitude::Finite(exponent) => exponent,
            Magnitude::Zero | Magnitude::Nonfinite => Exponent::ZERO,
        };
        let exponent = redo.unwrap_or(own);
        let other_operation = rng.random_range(0..10_000) < self.mismatches;
        let contribution = Contribution {
            sequence,
            slot: self.job.slot(sequence),
            packet_number,
            redo: redo.is_some(),
            nonfinite: sequence % 5 == 4 && is_odd_one,
            ack_request: rng.random_bool(0.2),
            exponent,
            contributors: 1,
            weight: rng.random_range(1..10),
            signature: (sequence / 3) as u32 ^ u32::from(other_operation),
            timestamp: rng.random(),
        };
        self.emit(rank, &Repr::Gradient(contribution), |body| {
            quantise(self.job.format, exponent, &values, body)
        })
    }

    fn garbage(&self, rng: &mut StdRng, rank: u16) -> Generated {
        let len = *[0, 1, 63, 64, 65, 1472, full_len(self.job.lanes)].choose(rng).expect("not empty");
        let mut payload = vec![0; len];
        rng.fill_bytes(&mut payload);
        Generated { source: self.job.workers[usize::from(rank)], payload }
    }

    /// Makes something wrong with a packet, in most cases with a checksum that is right again.
    fn spoil(&self, rng: &mut StdRng, generated: &mut Generated) {
        let payload = &mut generated.payload;
        // Another signature sticks a bank for good: the generator decides when.
        match rng.random_range(0..8) {
            0 => payload.truncate(rng.random_range(0..=payload.len())),
            1 => payload.extend_from_slice(&[0; 4]),
            2 => generated.source = *self.job.workers.choose(rng).expect("not empty"),
            3 => generated.source.set_port(generated.source.port() ^ 1),
            4 if !payload.is_empty() => {
                let places = (0..payload.len()).filter(|at| self.may_flip(*at));
                let at = places.choose(rng).expect("not empty");
                payload[at] ^= 1 << rng.random_range(0..8);
            }
            _ if payload.len() >= HEADER_LEN => {
                let headers = (0..SIGNATURE.start).chain(SIGNATURE.end..HEADER_LEN);
                let at = headers.choose(rng).expect("not empty");
                payload[at] = if rng.random_bool(0.3) { rng.random() } else { payload[at] ^ 1 };
                Packet::new_unchecked(payload).fill_checksum();
            }
            _ => {}
        }
    }

    /// Whether a bit of this byte may be damaged. Where that goes unnoticed, lanes stay in their range: what others sum to is not
    /// defined (WIRE P7).
    fn may_flip(&self, at: usize) -> bool {
        let is_top_of_lane = at >= HEADER_LEN && at % 4 == 3;
        !SIGNATURE.contains(&at) && (self.job.checksum || !is_top_of_lane)
    }

    /// The oldest fragment, of those that the worker may have sent or may send now, that lacks its contribution.
    fn waiting_for(&self, twin: &Aggregator, rank: u16) -> Option<u64> {
        let next = self.peers[usize::from(rank)].next;
        let first = next.saturating_sub(2 * u64::from(self.job.slots));
        (first..=next).find(|sequence| {
            self.bank_of(twin, *sequence).is_some_and(|bank| {
                let is_begun = bank.status != Status::Empty && bank.sequence >= *sequence;
                let seen = bank.seen[usize::from(rank / 64)] >> (rank % 64) & 1 == 1;
                let lacks = bank.sequence == *sequence && bank.status == Status::Gathering && !seen;
                lacks || (!is_begun && self.may_send(twin, *sequence))
            })
        })
    }

    /// WIRE S6.
    fn may_send(&self, twin: &Aggregator, sequence: u64) -> bool {
        let Some(before) = sequence.checked_sub(u64::from(self.job.slots)) else { return true };
        self.bank_of(twin, before).is_some_and(|bank| {
            bank.sequence > before || (bank.sequence == before && bank.status == Status::Done)
        })
    }

    fn bank_of(&self, twin: &Aggregator, sequence: u64) -> Option<xagg_proto::aggregator::Bank> {
        let bank = (sequence / u64::from(self.job.slots) % 2) as usize;
        twin.bank(self.job.id, self.job.view, self.job.slot(sequence), bank).map(|(bank, _)| *bank)
    }
}

fn packet_is_hello(repr: &Repr) -> bool {
    repr.kind_and_flags().0 == Kind::Hello
}

/// Values below a power of two from `scales`, in some cases all zero.
fn random_values(rng: &mut StdRng, lanes: usize, scales: std::ops::Range<i32>) -> Vec<f32> {
    let scale = if rng.random_ratio(1, 20) { 0.0 } else { 2.0_f32.powi(rng.random_range(scales)) };
    (0..lanes).map(|_| rng.random_range(-1.0..1.0) * scale).collect()
}
