//! How many packets may be on their way: a window that grows with receipts and shrinks with loss, and a pacer that spreads
//! it over the round trip.

use std::time::Duration;

use crate::Time;

/// Never fewer: three later packets must be able to show that one is lost (WIRE W3).
const LEAST: f64 = 4.0;
const MOST: f64 = 1024.0;
/// All workers start at once into one aggregator, whose receive ring may hold as few as 256 packets (a veth's).
const RING: usize = 256;
const MOST_AT_START: usize = 64;
/// What remains after a loss; CUBIC's value.
const DECREASE: f64 = 0.7;
/// Timers of the driver may be late by a scheduler tick: the pacer lets through what has been missed, up to this much time.
const PACER_SLACK: Duration = Duration::from_millis(4);
const PACER_LEAST_BURST: f64 = 32.0;
/// Paced faster than the window alone would be, so that the window stays the limit.
const PACER_GAIN: f64 = 2.0;

/// Congestion window and pacer of one flow; the unit is one packet.
#[derive(Debug)]
pub struct Window {
    size: f64,
    slow_start_until: f64,
    /// Losses of packets sent before this belong to the last decrease.
    recovery_start: Time,
    tokens: f64,
    refilled: Time,
}

impl Window {
    /// The window of one of `workers` workers that start together.
    pub fn new(workers: usize) -> Self {
        let size = (RING / workers.max(1)).min(MOST_AT_START) as f64;
        Self {
            size: size.max(LEAST),
            slow_start_until: MOST,
            recovery_start: Time::ZERO,
            tokens: PACER_LEAST_BURST,
            refilled: Time::ZERO,
        }
    }

    /// How many packets may be without receipt at the same time.
    pub const fn size(&self) -> usize {
        self.size as usize
    }

    /// `packets` were receipted while the window was the limit.
    pub fn on_receipts(&mut self, packets: usize) {
        let packets = packets as f64;
        let growth = if self.size < self.slow_start_until { packets } else { packets / self.size };
        self.size = (self.size + growth).min(MOST);
    }

    /// A packet sent at `sent` was lost; the window shrinks once per round trip.
    pub fn on_loss(&mut self, now: Time, sent: Time) {
        if sent >= self.recovery_start {
            self.recovery_start = now;
            self.size = (self.size * DECREASE).max(LEAST);
            self.slow_start_until = self.size;
        }
    }

    /// Whether the pacer lets a packet go now; if so it is taken as sent.
    pub fn take_token(&mut self, now: Time, round_trip: Duration) -> bool {
        let rate = self.rate(round_trip);
        let burst = (rate * PACER_SLACK.as_secs_f64()).max(PACER_LEAST_BURST);
        self.tokens = (self.tokens + rate * now.since(self.refilled).as_secs_f64()).min(burst);
        self.refilled = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// When the pacer lets the next packet go.
    pub fn next_token(&self, round_trip: Duration) -> Time {
        let missing = (1.0 - self.tokens).max(0.0);
        self.refilled + Duration::from_secs_f64(missing / self.rate(round_trip))
    }

    /// Packets a second.
    fn rate(&self, round_trip: Duration) -> f64 {
        PACER_GAIN * self.size / round_trip.max(Duration::from_micros(10)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Time {
        Time::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn many_workers_begin_with_less() {
        assert_eq!(Window::new(1).size(), 64);
        assert_eq!(Window::new(8).size(), 32);
        assert_eq!(Window::new(256).size(), 4);
    }

    #[test]
    fn loss_shrinks_once_per_round_trip_and_growth_is_slower_after() {
        let mut window = Window::new(4);
        window.on_receipts(36);
        assert_eq!(window.size(), 100);
        window.on_loss(at(10), at(9));
        window.on_loss(at(11), at(9));
        assert_eq!(window.size(), 70, "the second packet was sent before the first loss was seen");
        window.on_receipts(70);
        assert_eq!(window.size(), 71);
        window.on_loss(at(12), at(12));
        assert_eq!(window.size(), 49);
    }

    #[test]
    fn the_window_keeps_its_bounds() {
        let mut window = Window::new(4);
        window.on_receipts(1_000_000);
        assert_eq!(window.size(), 1024);
        for round in 0..100 {
            window.on_loss(at(2 * round + 1), at(2 * round + 1));
        }
        assert_eq!(window.size(), 4);
    }

    #[test]
    fn the_pacer_spreads_the_window() {
        let mut window = Window::new(4);
        let burst = (0..10_000).filter(|_| window.take_token(at(1), RTT)).count();
        assert!(burst < 1024, "{burst}");
        assert!(window.next_token(RTT) > at(1));
        let later = window.next_token(RTT) + Duration::from_nanos(10);
        assert!(window.take_token(later, RTT));
    }
}
