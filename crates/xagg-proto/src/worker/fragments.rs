//! The stream of a job's fragments as one worker sees it: what is unsent, on its way, receipted, done.

use std::collections::VecDeque;
use std::time::Duration;

use xagg_wire::fixed::Exponent;

use crate::Time;

/// What became of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never sent.
    Unsent,
    /// To be sent again.
    Queued,
    /// Sent under this packet number, no receipt yet.
    Flying(u32),
    /// In the aggregator's memory.
    Receipted,
    /// The result is there.
    Done,
}

impl State {
    /// The number of the packet that carries it, if that flies.
    const fn flying(self) -> Option<u32> {
        if let Self::Flying(packet_number) = self { Some(packet_number) } else { None }
    }
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    state: State,
    /// The exponent of the second phase, once it has begun.
    redo: Option<Exponent>,
    /// When it was last asked for.
    pulled: Option<Time>,
}

/// All fragments from the first that is not done to the last that was submitted.
#[derive(Debug)]
pub struct Fragments {
    slots: u64,
    /// The sequence of the first in `fragments`; all below are done.
    base: u64,
    fragments: VecDeque<Fragment>,
    /// The first that was never sent.
    next: u64,
    again: VecDeque<u64>,
    /// One more than the largest sequence with a result.
    result_end: u64,
    /// Where the search for a fragment to pull goes on.
    pull_cursor: u64,
    receipted: usize,
}

impl Fragments {
    /// An empty stream of a job with this many slots.
    pub fn new(slots: u32) -> Self {
        Self {
            slots: u64::from(slots),
            base: 0,
            fragments: VecDeque::new(),
            next: 0,
            again: VecDeque::new(),
            result_end: 0,
            pull_cursor: 0,
            receipted: 0,
        }
    }

    /// Appends the fragments of an operation; the sequence of the first of them.
    pub fn append(&mut self, count: u64) -> u64 {
        let first = self.end();
        let unsent = Fragment { state: State::Unsent, redo: None, pulled: None };
        self.fragments.extend((0..count).map(|_| unsent));
        first
    }

    /// One more than the last sequence submitted.
    pub fn end(&self) -> u64 {
        self.base + self.fragments.len() as u64
    }

    /// How many fragments are receipted and wait for their result.
    pub const fn waiting(&self) -> usize {
        self.receipted
    }

    /// The first fragment without a result, if any.
    pub fn oldest(&self) -> Option<u64> {
        (!self.fragments.is_empty()).then_some(self.base)
    }

    /// The next fragment to send: what must be sent again comes first; a new one only if the slot is free for it (WIRE S6).
    pub fn sendable(&mut self) -> Option<u64> {
        while let Some(sequence) = self.again.front().copied() {
            if self.get(sequence).is_some_and(|fragment| fragment.state == State::Queued) {
                return Some(sequence);
            }
            self.again.pop_front();
        }
        let free = self.next < self.slots || self.is_done(self.next - self.slots);
        (self.next < self.end() && free).then_some(self.next)
    }

    /// What [`sendable`](Self::sendable) gave has been sent. Returns whether it had been sent before.
    pub fn on_sent(&mut self, sequence: u64, packet_number: u32) -> bool {
        let again = self.again.front() == Some(&sequence);
        if again {
            self.again.pop_front();
        } else {
            debug_assert_eq!(sequence, self.next, "new fragments are sent in order");
            self.next += 1;
        }
        if let Some(fragment) = self.get_mut(sequence) {
            fragment.state = State::Flying(packet_number);
        }
        again
    }

    /// A packet with this fragment is receipted, `redo`: of its second phase. Returns the number of the last packet that carried it if that
    /// flies: that one, or a copy whose fate does not matter any more.
    pub fn on_receipt(&mut self, sequence: u64, redo: bool) -> Option<u32> {
        let fragment = self.get_mut(sequence)?;
        let is_of_this_phase = redo == fragment.redo.is_some();
        if !is_of_this_phase || !matches!(fragment.state, State::Flying(_) | State::Queued) {
            return None;
        }
        let before = std::mem::replace(&mut fragment.state, State::Receipted);
        self.receipted += 1;
        before.flying()
    }

    /// The packet with this number and fragment is lost: it is queued, unless it has been sent again since.
    pub fn on_lost(&mut self, sequence: u64, packet_number: u32) {
        let Some(fragment) = self.get_mut(sequence) else { return };
        if fragment.state == State::Flying(packet_number) {
            fragment.state = State::Queued;
            self.again.push_back(sequence);
        }
    }

    /// The aggregator does not have this fragment, whatever the receipts said.
    pub fn on_absent(&mut self, sequence: u64) {
        let Some(fragment) = self.get_mut(sequence) else { return };
        if fragment.state == State::Receipted {
            fragment.state = State::Queued;
            self.receipted -= 1;
            self.again.push_back(sequence);
        }
    }

    /// The fragment is to be sent again, quantised at `exponent` (WIRE F5). Returns the number of the packet that carried
    /// it if that still flies; `None` also if this is no news.
    pub fn on_redo(&mut self, sequence: u64, exponent: Exponent) -> Option<Option<u32>> {
        let fragment = self.get_mut(sequence)?;
        if fragment.redo.is_some() || matches!(fragment.state, State::Unsent | State::Done) {
            return None;
        }
        let before = std::mem::replace(&mut fragment.state, State::Queued);
        fragment.redo = Some(exponent);
        fragment.pulled = None;
        if before == State::Receipted {
            self.receipted -= 1;
        }
        if before != State::Queued {
            self.again.push_back(sequence);
        }
        Some(before.flying())
    }

    /// The result is there. `None` if it was there before; else the number of the packet that still flies, if any.
    pub fn on_result(&mut self, sequence: u64) -> Option<Option<u32>> {
        let fragment = self.get_mut(sequence)?;
        if matches!(fragment.state, State::Done | State::Unsent) {
            return None;
        }
        let before = std::mem::replace(&mut fragment.state, State::Done);
        if before == State::Receipted {
            self.receipted -= 1;
        }
        self.result_end = self.result_end.max(sequence + 1);
        while self.fragments.front().is_some_and(|oldest| oldest.state == State::Done) {
            self.fragments.pop_front();
            self.base += 1;
        }
        Some(before.flying())
    }

    /// Whether the fragment is in its second phase, and at which exponent.
    pub fn redo(&self, sequence: u64) -> Option<Exponent> {
        self.get(sequence)?.redo
    }

    /// Whether some later fragment has its result already, so that this one's is likely to have been lost.
    pub const fn is_overtaken(&self, sequence: u64) -> bool {
        sequence < self.result_end
    }

    /// The next fragment whose result may have been lost: receipted, and not asked for within `interval`. Goes on from where
    /// it last was.
    pub fn pull_next(&mut self, now: Time, interval: Duration) -> Option<u64> {
        let (start, end) = (self.base, self.next);
        // Beyond the newest result lost ones are looked for only when there are none before it.
        let from = if self.pull_cursor < self.result_end { self.pull_cursor.max(start) } else { start };
        let sequence =
            (from..end).chain(start..from).find(|sequence| self.may_pull(*sequence, now, interval))?;
        self.pull_cursor = sequence + 1;
        self.note_pull(sequence, now);
        Some(sequence)
    }

    /// The oldest fragments that wait for their result, to be asked for because time has passed.
    pub fn pull_oldest(&mut self, now: Time, count: usize) -> Vec<u64> {
        let waiting = |sequence: &u64| self.may_pull(*sequence, now, Duration::ZERO);
        let oldest: Vec<u64> = (self.base..self.next).filter(waiting).take(count).collect();
        for sequence in &oldest {
            self.note_pull(*sequence, now);
        }
        oldest
    }

    /// The last fragment before `end` that waits for its result.
    pub fn last_waiting(&self, end: u64) -> Option<u64> {
        let waiting =
            |sequence: &u64| self.get(*sequence).is_some_and(|fragment| fragment.state == State::Receipted);
        (self.base..end.min(self.next)).rev().find(waiting)
    }

    fn may_pull(&self, sequence: u64, now: Time, interval: Duration) -> bool {
        self.get(sequence).is_some_and(|fragment| {
            fragment.state == State::Receipted
                && fragment.pulled.is_none_or(|pulled| now.since(pulled) >= interval)
        })
    }

    fn note_pull(&mut self, sequence: u64, at: Time) {
        if let Some(fragment) = self.get_mut(sequence) {
            fragment.pulled = Some(at);
        }
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.fragments.len()
    }

    /// Whether the fragment's result is there.
    pub fn is_done(&self, sequence: u64) -> bool {
        sequence < self.base || self.get(sequence).is_some_and(|fragment| fragment.state == State::Done)
    }

    fn get(&self, sequence: u64) -> Option<&Fragment> {
        self.fragments.get(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }

    fn get_mut(&mut self, sequence: u64) -> Option<&mut Fragment> {
        self.fragments.get_mut(usize::try_from(sequence.checked_sub(self.base)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    fn send(fragments: &mut Fragments, packet_number: u32) -> u64 {
        let sequence = fragments.sendable().expect("something to send");
        fragments.on_sent(sequence, packet_number);
        sequence
    }

    #[test]
    fn a_new_fragment_waits_for_the_result_one_round_of_slots_before() {
        let mut fragments = Fragments::new(2);
        assert_eq!(fragments.append(5), 0);
        assert_eq!((send(&mut fragments, 1), send(&mut fragments, 2)), (0, 1));
        assert_eq!(fragments.sendable(), None);
        fragments.on_receipt(0, false);
        assert_eq!(fragments.sendable(), None, "a receipt is not a result");
        assert_eq!(fragments.on_result(1), Some(Some(2)));
        assert_eq!(fragments.sendable(), None, "2 needs the result of 0");
        assert_eq!(fragments.on_result(0), Some(None));
        assert_eq!(send(&mut fragments, 3), 2);
        assert_eq!(send(&mut fragments, 4), 3);
        assert_eq!(fragments.sendable(), None);
    }

    #[test]
    fn lost_fragments_come_first_and_once() {
        let mut fragments = Fragments::new(10);
        fragments.append(5);
        for number in 1..=3 {
            send(&mut fragments, number);
        }
        fragments.on_lost(1, 2);
        fragments.on_lost(1, 2);
        assert_eq!(send(&mut fragments, 4), 1);
        fragments.on_lost(1, 2);
        assert_eq!(fragments.sendable(), Some(3), "packet 2 is old news: packet 4 flies");
        fragments.on_lost(1, 4);
        assert_eq!(fragments.on_receipt(1, false), None);
        assert_eq!(fragments.sendable(), Some(3), "a late receipt makes sending again needless");
    }

    #[test]
    fn a_late_receipt_tells_of_the_copy_that_nobody_misses_any_more() {
        let mut fragments = Fragments::new(10);
        fragments.append(1);
        send(&mut fragments, 1);
        fragments.on_lost(0, 1);
        assert_eq!(send(&mut fragments, 2), 0);
        assert_eq!(fragments.on_receipt(0, false), Some(2), "packet 1 came after all, packet 2 need not");
        assert_eq!(fragments.on_receipt(0, false), None, "no news");
    }

    #[test]
    fn a_redo_is_sent_again_whatever_state_it_was_in() {
        let exponent = Exponent::finite(3).expect("legal");
        let mut fragments = Fragments::new(10);
        fragments.append(2);
        send(&mut fragments, 1);
        assert_eq!(fragments.on_redo(1, exponent), None, "never sent: somebody else's mistake");
        assert_eq!(fragments.on_redo(0, exponent), Some(Some(1)));
        assert_eq!(fragments.on_redo(0, exponent), None, "once");
        assert_eq!(send(&mut fragments, 2), 0);
        assert_eq!(fragments.redo(0), Some(exponent));
        assert_eq!(fragments.on_receipt(0, false), None, "of the first phase");
        assert_eq!(fragments.waiting(), 0);
        assert_eq!(fragments.on_receipt(0, true), Some(2));
        assert_eq!(fragments.waiting(), 1);
    }

    #[test]
    fn pulls_go_to_the_oldest_first() {
        let mut fragments = Fragments::new(10);
        fragments.append(6);
        for number in 1..=6 {
            let sequence = send(&mut fragments, number);
            fragments.on_receipt(sequence, false);
        }
        fragments.on_result(0);
        fragments.on_result(4);
        let interval = Duration::from_secs(1);
        let pulled: Vec<_> = std::iter::from_fn(|| fragments.pull_next(NOW, interval)).collect();
        assert_eq!(pulled, [1, 2, 3, 5]);
        assert!(fragments.is_overtaken(1) && !fragments.is_overtaken(5));
        assert_eq!(fragments.pull_oldest(NOW, 9), [1, 2, 3, 5]);
        assert_eq!(fragments.waiting(), 4);
        assert_eq!([9, 5, 1].map(|end| fragments.last_waiting(end)), [Some(5), Some(3), None]);
    }
}
