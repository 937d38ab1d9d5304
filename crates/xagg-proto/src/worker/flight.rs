//! The packets that were sent and what became of them: receipts, round-trip time, loss (WIRE W3, after RFC 9002).

use std::collections::VecDeque;
use std::time::Duration;

use xagg_wire::Receipts;

use crate::Time;
use crate::time::Jitter;

/// A packet is lost when this many later ones are receipted (RFC 9002 section 6.1.1).
const REORDERING: u32 = 3;
/// Assumed before anything was measured.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(20);
/// No probe sooner: a worker that waits for its turn on a busy core is not a loss.
const LEAST_PROBE: Duration = Duration::from_millis(10);
const MOST_BACKOFF: u32 = 6;
/// So many packets ask whether the others are lost.
pub const PROBE_PACKETS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Flying,
    Receipted,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    sequence: u64,
    redo: bool,
    at: Time,
    fate: Fate,
}

impl Sent {
    const fn report(&self, packet_number: u32) -> Reported {
        Reported { packet_number, sequence: self.sequence, redo: self.redo, sent: self.at }
    }
}

/// A packet whose loss or receipt is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The number of the packet.
    pub packet_number: u32,
    /// The fragment that it carried.
    pub sequence: u64,
    /// Whether that was in its second phase.
    pub redo: bool,
    /// When it was sent.
    pub sent: Time,
}

/// All packets that were sent and are not yet accounted for.
#[derive(Debug)]
pub struct Flight {
    sent: VecDeque<Sent>,
    /// The number of the first in `sent`.
    first: u32,
    flying: usize,
    /// The largest number receipted so far, if any.
    largest: Option<u32>,
    smoothed: Option<Duration>,
    variation: Duration,
    /// Sending and hearing both put the probe off.
    last_activity: Time,
    backoff: u32,
    /// Probes are never further apart, however long the silence.
    longest_silence: Duration,
    /// After a probe: how long the next one waits.
    probe_interval: Option<Duration>,
    jitter: Jitter,
}

impl Flight {
    /// Nothing sent yet; probes will not be further apart than `longest_silence`.
    pub fn new(longest_silence: Duration, jitter: Jitter) -> Self {
        Self {
            longest_silence,
            probe_interval: None,
            jitter,
            sent: VecDeque::new(),
            first: 1,
            flying: 0,
            largest: None,
            smoothed: None,
            variation: Duration::ZERO,
            last_activity: Time::ZERO,
            backoff: 0,
        }
    }

    /// How many packets are neither receipted nor lost.
    pub const fn flying(&self) -> usize {
        self.flying
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// The smoothed round-trip time.
    pub fn round_trip(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL_ROUND_TRIP)
    }

    /// The number that the next packet will have.
    pub fn next_number(&self) -> u32 {
        self.first.wrapping_add(self.sent.len() as u32)
    }

    /// Notes that the packet with [`next_number`](Self::next_number) was sent.
    pub fn on_sent(&mut self, now: Time, sequence: u64, redo: bool) {
        self.sent.push_back(Sent { sequence, redo, at: now, fate: Fate::Flying });
        self.flying += 1;
        self.last_activity = now;
    }

    /// Takes in receipts; calls `receipted` for every packet that they show for the first time.
    pub fn on_receipts(&mut self, now: Time, receipts: &Receipts, mut receipted: impl FnMut(Reported)) {
        let mut news = false;
        for behind in (0..32).filter(|behind| receipts.bitmap >> behind & 1 == 1) {
            let number = receipts.largest.wrapping_sub(behind);
            if let Some(report) = self.settle(number) {
                news = true;
                if behind == 0 {
                    self.measure(now.as_timestamp().wrapping_sub(receipts.echo));
                }
                receipted(report);
            }
        }
        // Also a copy that nobody misses any more shows that those sent before it are late.
        let ahead = |largest: u32| receipts.largest.wrapping_sub(largest) < 1 << 31;
        if self.is_kept(receipts.largest) && self.largest.is_none_or(ahead) {
            self.largest = Some(receipts.largest);
        }
        if news {
            self.last_activity = now;
            self.end_backoff();
        }
        self.forget();
    }

    /// Probes come soon after each other again, from now on.
    pub const fn restart_probes(&mut self, now: Time) {
        self.last_activity = now;
        self.end_backoff();
    }

    const fn end_backoff(&mut self) {
        self.backoff = 0;
        self.probe_interval = None;
    }

    /// The packet's fate does not matter any more: its fragment's result is there, or a copy is receipted. Probes of what nobody misses
    /// would send nothing, so they must not find it.
    pub fn forget_packet(&mut self, packet_number: u32) {
        self.settle(packet_number);
        self.forget();
    }

    /// Reports the packets that are lost by number or by time.
    pub fn detect_losses(&mut self, now: Time, mut lost: impl FnMut(Reported)) {
        let Some(largest) = self.largest else { return };
        let patience = self.patience();
        for (index, sent) in self.sent.iter_mut().enumerate() {
            let number = self.first.wrapping_add(index as u32);
            let behind = largest.wrapping_sub(number);
            if behind == 0 || behind >= 1 << 31 {
                break;
            }
            if sent.fate == Fate::Flying && (behind >= REORDERING || now.since(sent.at) >= patience) {
                sent.fate = Fate::Lost;
                self.flying -= 1;
                lost(sent.report(number));
            }
        }
        self.forget();
    }

    /// When a packet may be lost by time, or a probe is due: nothing was heard for long although packets fly.
    pub fn deadline(&self) -> Option<Time> {
        (self.flying > 0)
            .then(|| self.loss_time().map_or(self.probe_time(), |loss| loss.min(self.probe_time())))
    }

    /// If a probe is due, gives up the two oldest flying packets, so that they are sent again and ask for an answer.
    pub fn probe(&mut self, now: Time, mut lost: impl FnMut(Reported)) -> bool {
        if self.flying == 0 || now < self.probe_time() {
            return false;
        }
        self.last_activity = now;
        self.backoff = (self.backoff + 1).min(MOST_BACKOFF);
        let interval = (self.probe_timeout() * (1 << self.backoff)).min(self.longest_silence);
        self.probe_interval = Some(self.jitter.spread(interval));
        let flying = self.sent.iter_mut().enumerate().filter(|(_, sent)| sent.fate == Fate::Flying);
        let oldest = flying.take(PROBE_PACKETS);
        let mut given_up = 0;
        for (index, sent) in oldest {
            sent.fate = Fate::Lost;
            given_up += 1;
            let packet_number = self.first.wrapping_add(index as u32);
            lost(sent.report(packet_number));
        }
        self.flying -= given_up;
        self.forget();
        true
    }

    /// How long a packet may fly once a later one is receipted (RFC 9002 section 6.1.2).
    fn patience(&self) -> Duration {
        (self.round_trip() * 9 / 8).max(Duration::from_millis(1))
    }

    fn loss_time(&self) -> Option<Time> {
        let largest = self.largest?;
        let oldest = self.sent.iter().position(|sent| sent.fate == Fate::Flying)?;
        let behind = largest.wrapping_sub(self.first.wrapping_add(oldest as u32));
        (behind != 0 && behind < 1 << 31).then(|| self.sent[oldest].at + self.patience())
    }

    fn probe_time(&self) -> Time {
        let interval = self.probe_interval.unwrap_or(self.probe_timeout().min(self.longest_silence));
        self.last_activity + interval
    }

    fn probe_timeout(&self) -> Duration {
        (self.round_trip() * 2 + self.variation * 4).max(LEAST_PROBE)
    }

    fn is_kept(&self, packet_number: u32) -> bool {
        (packet_number.wrapping_sub(self.first) as usize) < self.sent.len()
    }

    /// Marks a packet as receipted; reports it if that is news.
    fn settle(&mut self, packet_number: u32) -> Option<Reported> {
        let index = packet_number.wrapping_sub(self.first) as usize;
        let sent = self.sent.get_mut(index)?;
        if sent.fate == Fate::Receipted {
            return None;
        }
        if sent.fate == Fate::Flying {
            self.flying -= 1;
        }
        sent.fate = Fate::Receipted;
        Some(sent.report(packet_number))
    }

    /// Forgets the oldest packets whose fate is known. A lost one is kept while a late receipt for it could still come in a bitmap.
    fn forget(&mut self) {
        while let Some(oldest) = self.sent.front() {
            let out_of_reach = self.largest.is_some_and(|largest| largest.wrapping_sub(self.first) < 1 << 31)
                && self.sent.len() > 64;
            if oldest.fate == Fate::Flying || (oldest.fate == Fate::Lost && !out_of_reach) {
                break;
            }
            self.sent.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Takes in a round trip of `micros` microseconds (RFC 6298).
    fn measure(&mut self, micros: u32) {
        let sample = Duration::from_micros(u64::from(micros.min(60_000_000)));
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(sample);
            self.variation = sample / 2;
            return;
        };
        self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
        self.smoothed = Some((smoothed * 7 + sample) / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_origin(Duration::from_micros(micros))
    }

    fn receipts(largest: u32, bitmap: u32) -> Receipts {
        Receipts { largest, bitmap, echo: largest * 10, marks: 0 }
    }

    /// Sends packets 1 to `count`, packet n at 10 n microseconds with sequence n.
    fn flight(count: u32) -> Flight {
        let mut flight = Flight::new(Duration::from_secs(1), Jitter::new(0));
        for number in 1..=count {
            assert_eq!(flight.next_number(), number);
            flight.on_sent(at(u64::from(number) * 10), u64::from(number), false);
        }
        flight
    }

    fn lost(flight: &mut Flight, now: Time) -> Vec<u32> {
        let mut numbers = vec![];
        flight.detect_losses(now, |report| numbers.push(report.packet_number));
        numbers
    }

    #[test]
    fn silence_does_not_put_probes_off_for_long() {
        let mut flight = Flight::new(Duration::from_secs(1), Jitter::new(0));
        flight.on_sent(Time::ZERO, 0, false);
        // A receipt that took its time makes for a long round trip.
        let mut now = Time::from_origin(Duration::from_secs(2));
        flight.on_receipts(now, &Receipts { largest: 1, bitmap: 1, echo: 0, marks: 0 }, |_| {});
        for _ in 0..20 {
            flight.on_sent(now, 1, false);
            let due = flight.deadline().expect("flying");
            assert!(due.since(now) <= Duration::from_millis(1250), "a probe {:?} later", due.since(now));
            now = due;
            assert!(flight.probe(now, |_| {}));
        }
    }

    #[test]
    fn a_gap_of_three_is_a_loss_and_less_is_not() {
        let mut flight = flight(6);
        flight.on_receipts(at(100), &receipts(4, 0b1101), |_| {});
        assert_eq!(lost(&mut flight, at(100)), [] as [u32; 0], "packet 3 is only one behind");
        flight.on_receipts(at(110), &receipts(6, 0b11_0101), |_| {});
        assert_eq!(lost(&mut flight, at(110)), [3]);
        assert_eq!(lost(&mut flight, at(110)), [] as [u32; 0], "reported once");
        assert_eq!(flight.flying(), 1, "packet 5");
    }

    #[test]
    fn a_later_receipt_and_time_are_a_loss() {
        let mut flight = flight(2);
        flight.on_receipts(at(120), &receipts(2, 0b1), |_| {});
        let deadline = flight.deadline().expect("packet 1 flies");
        assert_eq!(lost(&mut flight, at(200)), [] as [u32; 0]);
        assert_eq!(lost(&mut flight, deadline), [1]);
    }

    #[test]
    fn silence_is_a_probe_with_backoff_not_a_loss() {
        let mut flight = flight(5);
        assert_eq!(lost(&mut flight, at(1_000_000)), [] as [u32; 0], "nothing receipted, nothing lost");
        let first = flight.deadline().expect("flying");
        let mut given_up = vec![];
        assert!(flight.probe(first, |report| given_up.push(report.sequence)));
        assert_eq!(given_up, [1, 2]);
        let second = flight.deadline().expect("three still fly");
        assert!(second.since(first) > first.since(at(50)), "the second wait is longer");
        assert!(!flight.probe(first, |_| ()));
    }

    #[test]
    fn a_late_receipt_of_a_lost_packet_is_still_news() {
        let mut flight = flight(6);
        flight.on_receipts(at(100), &receipts(6, 0b1), |_| {});
        assert_eq!(lost(&mut flight, at(100)), [1, 2, 3]);
        let mut news = vec![];
        flight.on_receipts(at(130), &receipts(6, 0b11_1111), |report| news.push(report.packet_number));
        assert_eq!(news, [5, 4, 3, 2, 1]);
        assert_eq!(flight.flying(), 0);
        assert_eq!(flight.deadline(), None);
    }

    #[test]
    fn a_copy_that_nobody_misses_still_shows_that_packets_before_it_are_late() {
        let mut flight = flight(6);
        flight.forget_packet(6);
        flight.on_receipts(at(100), &receipts(6, 0b1), |report| panic!("{report:?} is no news"));
        assert_eq!(lost(&mut flight, at(100)), [1, 2, 3]);
    }

    #[test]
    fn numbers_wrap() {
        let mut flight = Flight::new(Duration::from_secs(1), Jitter::new(0));
        flight.first = u32::MAX - 1;
        for sequence in 0..6 {
            flight.on_sent(at(sequence), sequence, false);
        }
        flight.on_receipts(at(100), &Receipts { largest: 3, bitmap: 0b1, echo: 0, marks: 0 }, |_| {});
        assert_eq!(lost(&mut flight, at(100)), [u32::MAX - 1, u32::MAX, 0]);
        assert_eq!(flight.flying(), 2);
    }
}
