//! Spreads the window over the round trip, so that it does not leave as one burst that overruns a queue.

use std::time::Duration;

use crate::Time;

/// Timers of the driver may be late by a scheduler tick: the pacer lets through what has been missed, up to this much time.
const SLACK: Duration = Duration::from_millis(4);
/// So many packets may always go together: what one call hands to the network.
const LEAST_BURST: f64 = 32.0;
/// Faster than the window alone would be, so that the window stays the limit; in slow start it doubles within the round trip.
const GAIN: f64 = 1.25;
const SLOW_START_GAIN: f64 = 2.0;

/// A token bucket; the unit is one packet.
#[derive(Debug)]
pub struct Pacer {
    tokens: f64,
    refilled: Time,
    /// Packets a second, whatever the window says.
    limit: Option<f64>,
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
    /// A pacer that never exceeds `limit` packets a second, if there is a limit.
    pub const fn new(limit: Option<f64>) -> Self {
        Self { tokens: LEAST_BURST, refilled: Time::ZERO, limit }
    }

    /// Whether a packet may go now; if so it is taken as sent.
    pub fn take_token(&mut self, now: Time, pace: Pace) -> bool {
        let rate = self.rate(pace);
        let burst = (rate * SLACK.as_secs_f64()).max(LEAST_BURST);
        self.tokens = (self.tokens + rate * now.since(self.refilled).as_secs_f64()).min(burst);
        self.refilled = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// When the next packet may go.
    pub fn next_token(&self, pace: Pace) -> Time {
        let missing = (1.0 - self.tokens).max(0.0);
        // Rounded up: a wait that ends a nanosecond early would be followed by another one.
        self.refilled + Duration::from_nanos((missing / self.rate(pace) * 1e9).ceil() as u64)
    }

    fn rate(&self, pace: Pace) -> f64 {
        self.limit.map_or(pace.rate(), |limit| limit.min(pace.rate()))
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
        let sent = in_a_second(&mut Pacer::new(None), PACE);
        assert!((125_000..=125_040).contains(&sent), "{sent}: a quarter more than 100 windows of 1000");
        let sent = in_a_second(&mut Pacer::new(None), Pace { slow_start: true, ..PACE });
        assert!((200_000..=200_040).contains(&sent), "{sent}: two windows a round trip");
    }

    #[test]
    fn a_limit_is_kept_whatever_the_window() {
        let sent = in_a_second(&mut Pacer::new(Some(5000.0)), PACE);
        assert!((5000..=5040).contains(&sent), "{sent}");
    }

    #[test]
    fn what_was_missed_is_sent_but_not_more() {
        let mut pacer = Pacer::new(None);
        let burst = (0..10_000).filter(|_| pacer.take_token(at(50), PACE)).count();
        assert_eq!(burst, 500, "4 ms at 125 packets a millisecond");
        assert!(pacer.next_token(PACE) > at(50));
    }
}
