//! Which results were lost on their way (WIRE H7, W4). Results are numbered per worker, so a gap tells **how many** were lost;
//! which fragments they were for, only a PULL can tell.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::Time;
use crate::time::Jitter;

/// A result is lost when this many later ones are there.
const REORDERING: u32 = 3;
/// The first wait for results before asking; it doubles while nothing comes.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// So many answers to PULLs are awaited at the same time: a burst of them would be lost like the results were.
const MOST_ASKED: usize = 64;

/// What the numbers of the results tell, the PULLs that are on their way, and the timer for when nothing is told.
#[derive(Debug)]
pub struct Results {
    largest: u32,
    /// Numbers below `largest` that may still come.
    missing: BTreeSet<u32>,
    /// Results known to be lost that no PULL is on its way for.
    owed: usize,
    /// Fragments asked for and not answered yet, and since when.
    asked: Vec<(u64, Time)>,
    interval: Duration,
    longest_silence: Duration,
    jitter: Jitter,
    /// The last result, or the last time that the timer fired.
    last: Time,
}

impl Results {
    /// No result yet; nobody is asked less often than every `longest_silence`.
    pub const fn new(longest_silence: Duration, jitter: Jitter) -> Self {
        Self {
            longest_silence,
            jitter,
            largest: 0,
            missing: BTreeSet::new(),
            owed: 0,
            asked: Vec::new(),
            interval: LEAST_INTERVAL,
            last: Time::ZERO,
        }
    }

    /// A result for the fragment has come, with this number. How many others it shows to be lost.
    pub fn on_result(&mut self, now: Time, sequence: u64, packet_number: u32) -> usize {
        self.answered(sequence);
        self.last = now;
        self.interval = LEAST_INTERVAL;
        let ahead = packet_number.wrapping_sub(self.largest);
        if ahead == 0 || ahead >= 1 << 31 {
            self.missing.remove(&packet_number);
            return 0;
        }
        let in_sight = ahead.min(REORDERING);
        self.missing.extend((1..in_sight).map(|step| packet_number.wrapping_sub(step)));
        self.largest = packet_number;
        let before = self.missing.len();
        self.missing.retain(|number| packet_number.wrapping_sub(*number) < REORDERING);
        let lost = (ahead - in_sight) as usize + before - self.missing.len();
        self.owed += lost;
        lost
    }

    /// The fragment that was asked for is not complete. If `look_on`, the lost result is looked for further on.
    pub fn on_pending(&mut self, sequence: u64, look_on: bool) {
        if self.answered(sequence) && look_on {
            self.owed += 1;
        }
    }

    /// Whether a PULL should be sent now because a result is known to be lost.
    pub const fn owes(&self) -> bool {
        self.owed > 0 && self.asked.len() < MOST_ASKED
    }

    /// A PULL for the fragment is sent because a result is known to be lost.
    pub fn ask(&mut self, now: Time, sequence: u64) {
        self.owed = self.owed.saturating_sub(1);
        self.asked.push((sequence, now));
    }

    /// There is no fragment left that could be asked for: what is still missing, the timer will find.
    pub const fn give_up(&mut self) {
        self.owed = 0;
    }

    /// PULLs without an answer after `patience` are lost: their fragments may be asked for again.
    pub fn expire(&mut self, now: Time, patience: Duration) {
        let before = self.asked.len();
        self.asked.retain(|(_, at)| now.since(*at) < patience);
        self.owed += before - self.asked.len();
    }

    /// Waiting begins now (the first fragment is receipted).
    pub fn restart_timer(&mut self, now: Time) {
        self.last = now;
        self.interval = LEAST_INTERVAL;
    }

    /// When a PULL will have been lost, or the oldest results should be asked for although no gap shows.
    pub fn deadline(&self, patience: Duration) -> Time {
        let timer = self.last + self.interval;
        self.asked.iter().map(|(_, at)| *at + patience).fold(timer, Time::min)
    }

    /// If the timer is due, restarts it with a longer wait.
    pub fn take_timeout(&mut self, now: Time) -> bool {
        if now < self.last + self.interval {
            return false;
        }
        self.last = now;
        self.interval = self.jitter.spread((self.interval * 2).min(self.longest_silence));
        true
    }

    /// Whether the fragment had been asked for.
    fn answered(&mut self, sequence: u64) -> bool {
        let place = self.asked.iter().position(|(asked, _)| *asked == sequence);
        place.map(|place| self.asked.swap_remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(5);

    fn after(numbers: &[u32]) -> Results {
        let mut results = Results::new(Duration::from_secs(1), Jitter::new(0));
        for number in numbers {
            results.on_result(Time::ZERO, u64::from(*number), *number);
        }
        results
    }

    #[test]
    fn a_gap_counts_once_three_later_results_are_there() {
        assert_eq!(after(&[1, 2, 3]).owed, 0);
        assert_eq!(after(&[1, 3, 4]).owed, 0);
        assert_eq!(after(&[1, 3, 4, 5]).owed, 1);
        assert_eq!(after(&[1, 3, 4, 5, 6, 7]).owed, 1);
        assert_eq!(after(&[1, 3, 2, 4, 5, 6]).owed, 0, "reordered, not lost");
        assert_eq!(after(&[10]).owed, 7, "1 to 7; 8 and 9 may still come");
        assert_eq!(after(&[10, 11]).owed, 8);
        assert_eq!(after(&[1, 1, 1]).owed, 0);
    }

    #[test]
    fn so_many_pulls_are_on_their_way_and_lost_ones_are_asked_for_again() {
        let mut results = after(&[200]);
        let mut asked = 0;
        while results.owes() {
            results.ask(Time::ZERO, asked);
            asked += 1;
        }
        assert_eq!(asked, MOST_ASKED as u64);
        results.on_result(Time::ZERO, 5, 201);
        assert!(results.owes());
        let later = results.deadline(PATIENCE);
        assert_eq!(later, Time::ZERO + PATIENCE);
        results.expire(later, PATIENCE);
        assert_eq!((results.owed, results.asked.len()), (198 - 1, 0), "one of 198 was answered");
    }

    #[test]
    fn a_pending_fragment_is_not_the_lost_one() {
        let mut results = after(&[4]);
        assert_eq!(results.owed, 1);
        results.ask(Time::ZERO, 7);
        assert!(!results.owes());
        results.on_pending(9, true);
        assert!(!results.owes(), "was not asked for");
        results.on_pending(7, true);
        assert!(results.owes());
        results.ask(Time::ZERO, 8);
        results.on_pending(8, false);
        assert!(!results.owes());
    }

    #[test]
    fn the_timer_backs_off_until_a_result_comes() {
        let mut results = Results::new(Duration::from_secs(1), Jitter::new(0));
        let first = results.deadline(PATIENCE);
        assert!(!results.take_timeout(Time::ZERO));
        assert!(results.take_timeout(first));
        let second = results.deadline(PATIENCE);
        assert!(second.since(first) > first.since(Time::ZERO));
        results.on_result(second, 1, 1);
        assert_eq!(results.deadline(PATIENCE).since(second), LEAST_INTERVAL);
    }
}
