//! Which results were lost on their way (WIRE H7, W4). Results are numbered per worker, so a gap tells **how many** were lost;
//! which fragments they were for, only a PULL can tell.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::Time;

/// A result is lost when this many later ones are there.
const REORDERING: u32 = 3;
/// The first wait for results before asking; it doubles while nothing comes.
const LEAST_INTERVAL: Duration = Duration::from_millis(50);
const MOST_INTERVAL: Duration = Duration::from_secs(1);

/// What the numbers of the results tell, and the timer for when they tell nothing.
#[derive(Debug)]
pub struct Results {
    largest: u32,
    /// Numbers below `largest` that may still come.
    missing: BTreeSet<u32>,
    /// Results known to be lost for which no PULL has been sent yet.
    owed: usize,
    interval: Duration,
    /// The last result, or the last time that the timer fired.
    last: Time,
}

impl Results {
    /// No result yet.
    pub const fn new() -> Self {
        Self { largest: 0, missing: BTreeSet::new(), owed: 0, interval: LEAST_INTERVAL, last: Time::ZERO }
    }

    /// A result with this number has come.
    pub fn on_result(&mut self, now: Time, packet_number: u32) {
        self.last = now;
        self.interval = LEAST_INTERVAL;
        let ahead = packet_number.wrapping_sub(self.largest);
        if ahead == 0 || ahead >= 1 << 31 {
            self.missing.remove(&packet_number);
            return;
        }
        self.missing.extend((1..ahead.min(1 << 16)).map(|step| packet_number.wrapping_sub(step)));
        self.largest = packet_number;
        let before = self.missing.len();
        self.missing.retain(|number| packet_number.wrapping_sub(*number) < REORDERING);
        self.owed += before - self.missing.len();
    }

    /// How many PULLs should be sent now.
    pub const fn owed(&self) -> usize {
        self.owed
    }

    /// A PULL has been sent, or there is no fragment left that could be asked for.
    pub const fn settle(&mut self, pulls: usize) {
        self.owed = self.owed.saturating_sub(pulls);
    }

    /// A PULL was answered with PENDING, so the lost result was another fragment's.
    pub const fn on_pending(&mut self) {
        self.owed += 1;
    }

    /// Waiting begins now (the first fragment is receipted).
    pub fn restart_timer(&mut self, now: Time) {
        self.last = now;
        self.interval = LEAST_INTERVAL;
    }

    /// When to ask for the oldest results although no gap shows.
    pub fn deadline(&self) -> Time {
        self.last + self.interval
    }

    /// If the timer is due, restarts it with a longer wait.
    pub fn take_timeout(&mut self, now: Time) -> bool {
        if now < self.deadline() {
            return false;
        }
        self.last = now;
        self.interval = (self.interval * 2).min(MOST_INTERVAL);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owed_after(numbers: &[u32]) -> usize {
        let mut results = Results::new();
        for number in numbers {
            results.on_result(Time::ZERO, *number);
        }
        results.owed()
    }

    #[test]
    fn a_gap_counts_once_three_later_results_are_there() {
        assert_eq!(owed_after(&[1, 2, 3]), 0);
        assert_eq!(owed_after(&[1, 3, 4]), 0);
        assert_eq!(owed_after(&[1, 3, 4, 5]), 1);
        assert_eq!(owed_after(&[1, 3, 4, 5, 6, 7]), 1);
        assert_eq!(owed_after(&[1, 3, 2, 4, 5, 6]), 0, "reordered, not lost");
        assert_eq!(owed_after(&[10]), 7, "1 to 7; 8 and 9 may still come");
        assert_eq!(owed_after(&[1, 1, 1]), 0);
    }

    #[test]
    fn the_timer_backs_off_until_a_result_comes() {
        let mut results = Results::new();
        let first = results.deadline();
        assert!(!results.take_timeout(Time::ZERO));
        assert!(results.take_timeout(first));
        let second = results.deadline();
        assert!(second.since(first) > first.since(Time::ZERO));
        results.on_result(second, 1);
        assert_eq!(results.deadline().since(second), LEAST_INTERVAL);
    }
}
