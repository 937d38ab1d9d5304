//! When packets may go: the [`Pacer`] spreads the window over the round trip, so that it does not leave as one burst that
//! overruns a queue, and the [`Limit`] is what the job file says that the worker's network card may send.

use std::time::Duration;

use crate::Time;

/// Timers of the driver may be late by a scheduler tick: the pacer lets through what has been missed, up to this much time.
const SLACK: Duration = Duration::from_millis(4);
/// So many packets may always go together: what one call hands to the network.
const LEAST_BURST: f64 = 32.0;
/// Faster than the window alone would be, so that the window stays the limit; in slow start it doubles within the round trip.
const GAIN: f64 = 1.25;
const SLOW_START_GAIN: f64 = 2.0;

/// A token bucket; the unit is one packet. Rates are in packets a second.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    refilled: Time,
}

impl Bucket {
    const fn new(tokens: f64) -> Self {
        Self { tokens, refilled: Time::ZERO }
    }

    /// Whether there is a token, after what has come at `rate` since the last time.
    fn has_token(&mut self, now: Time, rate: f64, burst: f64) -> bool {
        self.tokens = (self.tokens + rate * now.since(self.refilled).as_secs_f64()).min(burst);
        self.refilled = now;
        self.tokens >= 1.0
    }

    fn take(&mut self) {
        self.tokens -= 1.0;
    }

    fn next(&self, rate: f64) -> Time {
        let missing = (1.0 - self.tokens).max(0.0);
        // Rounded up: a wait that ends a nanosecond early would be followed by another one.
        self.refilled + Duration::from_nanos((missing / rate * 1e9).ceil() as u64)
    }
}

/// Lets packets go as fast as window and round trip say.
#[derive(Debug)]
pub struct Pacer {
    bucket: Bucket,
}

/// What the pacer's rate follows from.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The congestion window, in packets.
    pub window: usize,
    /// The smoothed round trip.
    pub round_trip: Duration,
    /// Whether the window doubles every round trip.
    pub slow_start: bool,
}

impl Pace {
    /// Packets a second.
    fn rate(self) -> f64 {
        let gain = if self.slow_start { SLOW_START_GAIN } else { GAIN };
        gain * self.window as f64 / self.round_trip.max(Duration::from_micros(10)).as_secs_f64()
    }
}

impl Pacer {
    /// One that has sent nothing yet.
    pub const fn new() -> Self {
        Self { bucket: Bucket::new(LEAST_BURST) }
    }

    /// Whether a packet may go now; if so it is taken as sent.
    pub fn take_token(&mut self, now: Time, pace: Pace) -> bool {
        let rate = pace.rate();
        let burst = (rate * SLACK.as_secs_f64()).max(LEAST_BURST);
        let may_go = self.bucket.has_token(now, rate, burst);
        if may_go {
            self.bucket.take();
        }
        may_go
    }

    /// When the next packet may go.
    pub fn next_token(&self, pace: Pace) -> Time {
        self.bucket.next(pace.rate())
    }
}

/// Never lets more packets go than a rate, whatever they are and whatever the window says.
#[derive(Debug)]
pub struct Limit {
    rate: f64,
    bucket: Bucket,
}

impl Limit {
    /// So many packets a second.
    pub fn new(rate: f64) -> Self {
        Self { rate, bucket: Bucket::new(Self::burst(rate)) }
    }

    /// What a timer that is late has missed; a rate has more than one packet in that time.
    fn burst(rate: f64) -> f64 {
        (rate * SLACK.as_secs_f64()).max(1.0)
    }

    /// Whether a packet may go now.
    pub fn allows(&mut self, now: Time) -> bool {
        self.bucket.has_token(now, self.rate, Self::burst(self.rate))
    }

    /// A packet has gone.
    pub fn on_sent(&mut self) {
        self.bucket.take();
    }

    /// When the next packet may go.
    pub fn next(&self) -> Time {
        self.bucket.next(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { window: 1000, round_trip: Duration::from_millis(10), slow_start: false };

    fn at(millis: u64) -> Time {
        Time::from_origin(Duration::from_millis(millis))
    }

    /// How many packets go in a second if it is asked whenever one may go.
    fn in_a_second(pacer: &mut Pacer, pace: Pace) -> u32 {
        let (mut now, mut sent) = (Time::ZERO, 0);
        while now < at(1000) {
            sent += u32::from(pacer.take_token(now, pace));
            now = pacer.next_token(pace).max(now);
        }
        sent
    }

    #[test]
    fn the_window_is_spread_over_the_round_trip() {
        let sent = in_a_second(&mut Pacer::new(), PACE);
        assert!((125_000..=125_040).contains(&sent), "{sent}: a quarter more than 100 windows of 1000");
        let sent = in_a_second(&mut Pacer::new(), Pace { slow_start: true, ..PACE });
        assert!((200_000..=200_040).contains(&sent), "{sent}: two windows a round trip");
    }

    #[test]
    fn a_limit_lets_its_rate_go_and_after_a_pause_what_four_milliseconds_have() {
        let (mut limit, mut now, mut sent) = (Limit::new(5000.0), Time::ZERO, 0);
        while now < at(1000) {
            if limit.allows(now) {
                limit.on_sent();
                sent += 1;
            }
            now = limit.next().max(now);
        }
        assert!((5000..=5021).contains(&sent), "{sent}");
        let burst = (0..1000).filter(|_| limit.allows(at(3000)).then(|| limit.on_sent()).is_some()).count();
        assert_eq!(burst, 20);
        assert_eq!(limit.next(), at(3000) + Duration::from_micros(200));
    }

    #[test]
    fn what_was_missed_is_sent_but_not_more() {
        let mut pacer = Pacer::new();
        let burst = (0..10_000).filter(|_| pacer.take_token(at(50), PACE)).count();
        assert_eq!(burst, 500, "4 ms at 125 packets a millisecond");
        assert!(pacer.next_token(PACE) > at(50));
    }
}
