//! One direction of one cable: a queue before it, a rate, a delay, and whatever the scenario lets go wrong.

use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use xagg_proto::Time;

use crate::scenario::{self, OVERHEAD, micros};

/// A datagram on its way between a worker and the aggregator.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The worker that it is from or for.
    pub rank: usize,
    /// The UDP payload.
    pub payload: Vec<u8>,
    /// Some queue on its way was too long (ECN CE).
    pub marked: bool,
}

/// What a link has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Packets that went over it.
    pub packets: u64,
    /// Bytes, with all headers.
    pub bytes: u64,
    /// Packets that came to a full queue.
    pub overflows: u64,
    /// When the last of them did.
    pub last_overflow: Option<Time>,
    /// Packets marked.
    pub marked: u64,
    /// Packets that its faults took.
    pub lost: u64,
    /// The most packets that waited.
    pub longest_queue: usize,
}

/// A link at work.
#[derive(Debug)]
pub struct Link {
    config: scenario::Link,
    /// Its queue is empty from then on.
    busy_until: Time,
    /// All is lost until then.
    burst_until: Time,
    /// Nothing passes: a partition.
    pub cut: bool,
    /// What it has done.
    pub carried: Carried,
}

impl Link {
    /// An idle link.
    #[must_use]
    pub fn new(config: &scenario::Link) -> Self {
        Self {
            config: config.clone(),
            busy_until: Time::ZERO,
            burst_until: Time::ZERO,
            cut: false,
            carried: Carried::default(),
        }
    }

    /// Takes a frame; when what of it arrives at the other end: nothing, one frame, or two.
    pub fn carry(&mut self, now: Time, mut frame: Frame, rng: &mut ChaCha8Rng) -> Vec<(Time, Frame)> {
        let config = &self.config;
        if self.cut || config.mtu.is_some_and(|mtu| frame.payload.len() > mtu) || self.takes(now, rng) {
            self.carried.lost += 1;
            return vec![];
        }
        let Some(leaves) = self.enqueue(now, &mut frame) else { return vec![] };
        let config = &self.config;
        if rng.random_bool(config.corruption) {
            damage(&mut frame.payload, rng);
        }
        let mut arrival = leaves + micros(config.delay) + up_to(config.jitter, rng);
        if rng.random_bool(config.reordering) {
            arrival = arrival + up_to(config.stale, rng);
        }
        let mut arrivals = vec![];
        if rng.random_bool(config.duplication) {
            arrivals.push((arrival + up_to(config.stale, rng), frame.clone()));
        }
        arrivals.push((arrival, frame));
        arrivals
    }

    /// Whether its faults take a packet.
    fn takes(&mut self, now: Time, rng: &mut ChaCha8Rng) -> bool {
        if now >= self.burst_until && rng.random_bool(self.config.burst) {
            self.burst_until = now + up_to(self.config.burst_lasting, rng);
        }
        now < self.burst_until || rng.random_bool(self.config.loss)
    }

    /// Puts a frame at the end of the queue; when its last bit leaves. `None`: the queue is full.
    fn enqueue(&mut self, now: Time, frame: &mut Frame) -> Option<Time> {
        let bytes = frame.payload.len() + OVERHEAD;
        let Some(rate) = self.config.rate else {
            self.carried.packets += 1;
            self.carried.bytes += bytes as u64;
            return Some(now);
        };
        let transmission = Duration::from_secs_f64(bytes as f64 * 8.0 / (rate * 1e6));
        let waiting = self.busy_until.since(now).as_secs_f64() / transmission.as_secs_f64();
        let waiting = waiting.ceil() as usize;
        if waiting >= self.config.queue {
            self.carried.overflows += 1;
            self.carried.last_overflow = Some(now);
            return None;
        }
        self.carried.longest_queue = self.carried.longest_queue.max(waiting + 1);
        if self.config.mark_above.is_some_and(|threshold| waiting > threshold) {
            frame.marked = true;
            self.carried.marked += 1;
        }
        self.carried.packets += 1;
        self.carried.bytes += bytes as u64;
        self.busy_until = self.busy_until.max(now) + transmission;
        Some(self.busy_until)
    }
}

/// Damage that the checksum notices (WIRE P3): one or two flipped bits, as it promises, or any in one 32-bit word, as good as always.
fn damage(payload: &mut [u8], rng: &mut ChaCha8Rng) {
    let word = rng.random_range(0..payload.len() / 4);
    let bit = 1 << rng.random_range(0..32);
    match rng.random_range(0..4) {
        0 => swap_bits(payload, word, bit),
        // All 32 would turn a word of zeros into one of ones, which is the same modulo 2^32 - 1.
        1 => flip(payload, word, rng.random_range(1..u32::MAX)),
        _ => flip(payload, word, bit),
    }
}

/// Flips a bit of this word and the same bit of the first other word that has it otherwise: their plain sum stays as it was.
fn swap_bits(payload: &mut [u8], word: usize, bit: u32) {
    let words = payload.as_chunks::<4>().0;
    let bit_of = |word: usize| u32::from_le_bytes(words[word]) & bit;
    let other = (0..words.len()).find(|other| bit_of(*other) != bit_of(word));
    flip(payload, word, bit);
    if let Some(other) = other {
        flip(payload, other, bit);
    }
}

fn flip(payload: &mut [u8], word: usize, bits: u32) {
    for (byte, flipped) in payload[4 * word..].iter_mut().zip(bits.to_le_bytes()) {
        *byte ^= flipped;
    }
}

/// A random time up to so many microseconds.
fn up_to(most: u64, rng: &mut ChaCha8Rng) -> Duration {
    Duration::from_nanos(rng.random_range(0..=most * 1000))
}
