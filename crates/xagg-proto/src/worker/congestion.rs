//! How many packets may be without a receipt: a window that grows with receipts, and shrinks with marks of congestion in
//! proportion to how many there are (DCTCP, RFC 8257), and with loss. All laws are pure: time and round trip are arguments.

use std::time::Duration;

use crate::Time;

/// One packet more than can be lost unnoticed until a probe: a later one must be able to show that it was.
const LEAST: f64 = 2.0;
const MOST: f64 = 8192.0;
/// All workers start at once into one aggregator (incast): together with no more than the smallest queues of its port hold.
const MOST_AT_START_TOGETHER: usize = 256;
const MOST_AT_START: usize = 64;
/// What remains after a loss: CUBIC's value (RFC 9438), so that it gets its share beside us.
const AFTER_LOSS: f64 = 0.7;
/// The weight of a new round in the share of marked packets: g of RFC 8257.
const SHARE_GAIN: f64 = 1.0 / 16.0;

/// How many packets of one direction come with a mark, as a moving average over round trips: alpha of RFC 8257.
#[derive(Debug)]
struct MarkedShare {
    average: f64,
    packets: usize,
    marked: usize,
    since: Time,
}

impl MarkedShare {
    /// Nothing known: the first mark counts as if all were marked.
    const fn new() -> Self {
        Self { average: 1.0, packets: 0, marked: 0, since: Time::ZERO }
    }

    fn note(&mut self, now: Time, round_trip: Duration, packets: usize, marked: usize) {
        self.packets += packets;
        self.marked += marked;
        if now.since(self.since) >= round_trip && self.packets > 0 {
            let share = (self.marked as f64 / self.packets as f64).min(1.0);
            self.average += (share - self.average) * SHARE_GAIN;
            *self = Self { average: self.average, packets: 0, marked: 0, since: now };
        }
    }
}

/// The congestion window of one flow; the unit is one packet.
#[derive(Debug)]
pub struct Congestion {
    size: f64,
    slow_start_until: f64,
    grant: f64,
    /// Of what we send: marks come back with receipts.
    up: MarkedShare,
    /// Of the results. Their rate follows that of the slowest worker, which must not be faster than its results come through.
    down: MarkedShare,
    /// What was sent before the last decrease says nothing about the window since.
    decreased: Time,
}

impl Congestion {
    /// The window of one of `workers` workers that start together.
    pub fn new(workers: usize) -> Self {
        let size = (MOST_AT_START_TOGETHER / workers.max(1)).min(MOST_AT_START) as f64;
        Self {
            size: size.max(LEAST),
            slow_start_until: MOST,
            grant: MOST,
            up: MarkedShare::new(),
            down: MarkedShare::new(),
            decreased: Time::ZERO,
        }
    }

    /// The aggregator's receive queue has room for so many packets of this worker (WIRE H8).
    pub fn set_grant(&mut self, packets: u32) {
        self.grant = f64::from(packets).clamp(LEAST, MOST);
        self.size = self.size.min(self.grant);
    }

    /// How many packets may be without a receipt at the same time.
    pub const fn size(&self) -> usize {
        self.size as usize
    }

    /// Whether the window still doubles every round trip.
    pub const fn is_in_slow_start(&self) -> bool {
        self.size < self.slow_start_until
    }

    /// `receipted` packets were receipted, and `marked` arrived with a mark; `limited`: the window was what held packets back.
    pub fn on_receipts(
        &mut self,
        now: Time,
        round_trip: Duration,
        receipted: usize,
        marked: usize,
        limited: bool,
    ) {
        self.up.note(now, round_trip, receipted, marked);
        if marked > 0 {
            self.decrease_once(now, round_trip, 1.0 - self.up.average / 2.0);
        } else if limited {
            let receipted = receipted as f64;
            let growth = if self.is_in_slow_start() { receipted } else { receipted / self.size };
            self.size = (self.size + growth).min(self.grant);
        }
    }

    /// A result has come, with or without a mark.
    pub fn on_result(&mut self, now: Time, round_trip: Duration, marked: bool) {
        self.down.note(now, round_trip, 1, usize::from(marked));
        if marked {
            self.decrease_once(now, round_trip, 1.0 - self.down.average / 2.0);
        }
    }

    /// A packet sent at `sent` was lost.
    pub fn on_loss(&mut self, now: Time, sent: Time) {
        if sent >= self.decreased {
            self.decrease(now, AFTER_LOSS);
        }
    }

    /// A result was lost on its way to us.
    pub fn on_result_loss(&mut self, now: Time, round_trip: Duration) {
        self.decrease_once(now, round_trip, AFTER_LOSS);
    }

    /// The effect of a decrease shows after a round trip: until then there is no other.
    fn decrease_once(&mut self, now: Time, round_trip: Duration, factor: f64) {
        if self.decreased == Time::ZERO || now.since(self.decreased) >= round_trip {
            self.decrease(now, factor);
        }
    }

    fn decrease(&mut self, now: Time, factor: f64) {
        self.decreased = now;
        self.size = (self.size * factor).max(LEAST);
        self.slow_start_until = self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Time {
        Time::from_origin(Duration::from_millis(millis))
    }

    /// A window of 100 packets in its first round.
    fn hundred() -> Congestion {
        let mut congestion = Congestion::new(4);
        congestion.on_receipts(at(1), RTT, 36, 0, true);
        assert_eq!(congestion.size(), 100);
        congestion
    }

    #[test]
    fn many_workers_begin_with_less() {
        assert_eq!(Congestion::new(1).size(), 64);
        assert_eq!(Congestion::new(8).size(), 32);
        assert_eq!(Congestion::new(64).size(), 4);
        assert_eq!(Congestion::new(256).size(), 2);
    }

    #[test]
    fn loss_shrinks_once_per_round_trip_and_growth_is_slower_after() {
        let mut congestion = hundred();
        congestion.on_loss(at(10), at(9));
        congestion.on_loss(at(11), at(9));
        assert_eq!(congestion.size(), 70, "the second packet was sent before the first loss was seen");
        congestion.on_receipts(at(12), RTT, 70, 0, true);
        assert_eq!(congestion.size(), 71, "one packet a round trip");
        congestion.on_loss(at(12), at(12));
        assert_eq!(congestion.size(), 49);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut congestion = hundred();
        congestion.on_receipts(at(2), RTT, 50, 0, false);
        assert_eq!(congestion.size(), 100);
    }

    #[test]
    fn the_first_mark_halves_and_ends_slow_start() {
        let mut congestion = hundred();
        congestion.on_receipts(at(10), RTT, 10, 1, true);
        assert!((50..=55).contains(&congestion.size()), "{}", congestion.size());
        assert!(!congestion.is_in_slow_start());
        let before = congestion.size();
        congestion.on_receipts(at(10), RTT, 10, 10, true);
        assert_eq!(congestion.size(), before, "once a round trip");
    }

    #[test]
    fn a_decrease_follows_the_share_of_marks() {
        let after = |share: usize| {
            let mut congestion = hundred();
            // Long enough for the average to settle.
            for round in 2..200 {
                congestion.size = 100.0;
                congestion.on_receipts(at(2 * round), RTT, 100, share, true);
            }
            100.0 - congestion.size
        };
        assert!(after(0) < 0.0, "grows");
        assert!((after(10) - 5.0).abs() < 0.1, "a tenth marked: a twentieth less, not {}", after(10));
        assert!((after(100) - 50.0).abs() < 0.1, "all marked: half");
    }

    #[test]
    fn results_that_are_marked_or_lost_slow_us_too() {
        let mut congestion = hundred();
        congestion.on_result(at(5), RTT, false);
        assert_eq!(congestion.size(), 100);
        congestion.on_result(at(10), RTT, true);
        assert!(congestion.size() < 60);
        let mut congestion = hundred();
        congestion.on_result_loss(at(10), RTT);
        congestion.on_result_loss(at(10), RTT);
        assert_eq!(congestion.size(), 70);
    }

    #[test]
    fn the_window_keeps_its_bounds() {
        let mut congestion = Congestion::new(4);
        congestion.on_receipts(at(1), RTT, 1_000_000, 0, true);
        assert_eq!(congestion.size(), 8192);
        congestion.set_grant(300);
        assert_eq!(congestion.size(), 300);
        congestion.on_receipts(at(2), RTT, 1000, 0, true);
        assert_eq!(congestion.size(), 300);
        for round in 0..100 {
            congestion.on_loss(at(2 * round + 1), at(2 * round + 1));
        }
        assert_eq!(congestion.size(), 2);
        congestion.set_grant(0);
        assert_eq!(congestion.size(), 2);
    }
}
