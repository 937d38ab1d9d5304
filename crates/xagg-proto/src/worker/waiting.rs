//! Whom a worker waits for, and how long (WIRE W8).
//!
//! A worker waits while it has nothing left to push and results are missing. No result tells who came last, so the worker asks
//! from time to time for the last fragment that it has pushed of its oldest operation: PENDING tells whose contribution is missing.
//! A rank that is missing then has been missing since the wait began, so the time since the last report is its own; the
//! time after the last report of a wait belongs to those whom that report named. Waits that are over before the first
//! question is answered (50 ms) are nobody's.

use std::time::Duration;

use crate::Time;

/// The time before the first question of a wait; it doubles from question to question.
const LEAST_INTERVAL: Duration = Duration::from_millis(50);
const MOST_INTERVAL: Duration = Duration::from_secs(1);

/// Whom a worker has waited for, and for whom it waits now, as far as the aggregator has told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The ranks that it waits for now, in order; empty also while that is not known yet.
    pub now: Vec<u16>,
    /// The ranks that it has waited for, in order, and for how long in all. Times overlap where several were missing.
    pub spent: Vec<(u16, Duration)>,
}

/// The ranks of `workers` whose bit is not set in a bitmap of contributions.
pub fn missing(seen: &[u64; 4], workers: u16) -> Vec<u16> {
    (0..workers).filter(|rank| seen[usize::from(rank / 64)] >> (rank % 64) & 1 == 0).collect()
}

/// One wait after the other.
#[derive(Debug)]
pub struct Waiting {
    rank: u16,
    waits: Waits,
    /// While waiting: the time before this is attributed.
    since: Option<Time>,
    next: Time,
    interval: Duration,
    asked: Option<u64>,
}

impl Waiting {
    /// Not waiting; `rank` is the worker's own, which never waits for itself.
    pub const fn new(rank: u16) -> Self {
        let waits = Waits { now: Vec::new(), spent: Vec::new() };
        Self { rank, waits, since: None, next: Time::ZERO, interval: LEAST_INTERVAL, asked: None }
    }

    /// All waits so far.
    pub const fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Takes note of whether the worker waits now; a wait begins or ends if that is news.
    pub fn update(&mut self, now: Time, waits: bool) {
        if waits && self.since.is_none() {
            self.since = Some(now);
            self.interval = LEAST_INTERVAL;
            self.next = now + LEAST_INTERVAL;
        } else if !waits && self.since.is_some() {
            self.attribute(now);
            self.since = None;
            self.asked = None;
            self.waits.now.clear();
        }
    }

    /// When to ask next, while waiting.
    pub fn deadline(&self) -> Option<Time> {
        self.since.map(|_| self.next)
    }

    /// Whether it is time to ask; if so, the time after that is set.
    pub fn take_timeout(&mut self, now: Time) -> bool {
        let due = self.since.is_some() && now >= self.next;
        if due {
            self.interval = (self.interval * 2).min(MOST_INTERVAL);
            self.next = now + self.interval;
        }
        due
    }

    /// A PULL for this fragment is sent to learn who is missing.
    pub fn ask(&mut self, sequence: u64) {
        self.asked = Some(sequence);
    }

    /// These ranks have not contributed to the fragment; that counts if it is the one that was asked for.
    pub fn on_pending(&mut self, now: Time, sequence: u64, missing: &[u16]) {
        if self.asked == Some(sequence) {
            self.waits.now.clear();
            self.waits.now.extend(missing.iter().filter(|rank| **rank != self.rank));
            self.attribute(now);
        }
    }

    /// The time up to now belongs to the ranks that are missing now.
    fn attribute(&mut self, now: Time) {
        let Some(since) = self.since.replace(now) else { return };
        let elapsed = now.since(since);
        for rank in &self.waits.now {
            match self.waits.spent.binary_search_by_key(rank, |(rank, _)| *rank) {
                Ok(place) => self.waits.spent[place].1 += elapsed,
                Err(place) => self.waits.spent.insert(place, (*rank, elapsed)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_origin(Duration::from_millis(millis))
    }

    fn millis(waiting: &Waiting) -> Vec<(u16, u128)> {
        waiting.waits().spent.iter().map(|(rank, spent)| (*rank, spent.as_millis())).collect()
    }

    /// A wait of rank 0 from the start, with a question for fragment 9.
    fn asked() -> Waiting {
        let mut waiting = Waiting::new(0);
        waiting.update(at(0), true);
        assert!(!waiting.take_timeout(at(49)) && waiting.take_timeout(at(50)));
        waiting.ask(9);
        waiting
    }

    #[test]
    fn the_time_before_a_report_belongs_to_whom_it_names_and_that_after_the_last_too() {
        let mut waiting = asked();
        waiting.on_pending(at(51), 9, &[2, 3]);
        assert_eq!(waiting.waits().now, [2, 3]);
        waiting.on_pending(at(150), 9, &[3]);
        waiting.update(at(200), true);
        assert_eq!(millis(&waiting), [(2, 51), (3, 150)]);
        waiting.update(at(250), false);
        assert_eq!(millis(&waiting), [(2, 51), (3, 250)]);
        assert!(waiting.waits().now.is_empty());
    }

    #[test]
    fn time_between_waits_is_nobodys_and_waits_add_up() {
        let mut waiting = asked();
        waiting.on_pending(at(60), 9, &[1]);
        waiting.update(at(100), false);
        waiting.on_pending(at(500), 9, &[1]);
        waiting.update(at(1000), true);
        waiting.on_pending(at(1010), 9, &[1]);
        assert_eq!(millis(&waiting), [(1, 100)], "the question was one of the last wait");
        assert!(waiting.take_timeout(at(1050)));
        waiting.ask(20);
        waiting.on_pending(at(1060), 20, &[1]);
        assert_eq!(millis(&waiting), [(1, 160)]);
    }

    #[test]
    fn a_short_wait_is_nobodys() {
        let mut waiting = Waiting::new(0);
        waiting.update(at(0), true);
        waiting.update(at(49), false);
        assert_eq!(*waiting.waits(), Waits::default());
        assert_eq!(waiting.deadline(), None);
    }

    #[test]
    fn only_an_answer_to_the_question_counts_and_never_the_own_rank() {
        let mut waiting = asked();
        waiting.on_pending(at(60), 8, &[1]);
        assert_eq!(*waiting.waits(), Waits::default());
        waiting.on_pending(at(60), 9, &[0, 5]);
        assert_eq!(millis(&waiting), [(5, 60)]);
    }

    #[test]
    fn questions_become_rarer_until_the_next_wait() {
        let mut waiting = asked();
        let mut intervals = vec![];
        for _ in 0..6 {
            let due = waiting.deadline().expect("waits");
            assert!(waiting.take_timeout(due));
            intervals.push(waiting.deadline().expect("waits").since(due).as_millis());
        }
        assert_eq!(intervals, [200, 400, 800, 1000, 1000, 1000]);
        waiting.update(at(20_000), false);
        waiting.update(at(30_000), true);
        assert_eq!(waiting.deadline(), Some(at(30_050)));
    }

    #[test]
    fn the_missing_are_those_not_seen() {
        let mut seen = [0; 4];
        seen[0] = 0b1011;
        assert_eq!(missing(&seen, 6), [2, 4, 5]);
        seen = [u64::MAX; 4];
        seen[3] = !(1 << 63);
        assert_eq!(missing(&seen, 256), [255]);
    }
}
