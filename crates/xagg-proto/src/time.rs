//! Time as an argument: an instant is what has passed since an origin that the driver chose.

use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant, with the resolution of a nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Duration);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// The instant at which `elapsed` has passed since the origin.
    #[must_use]
    pub const fn from_origin(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// What has passed since `earlier`; zero if that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The low 32 bits of the microseconds since the origin: the timestamp of a packet.
    #[must_use]
    pub const fn as_timestamp(self) -> u32 {
        (self.0.as_micros() & 0xffff_ffff) as u32
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// Makes waits a little longer or shorter, differently at every member: workers that began together would else repeat what was
/// lost together, for ever into the same full queue. A seed decides how, so that simulations repeat.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// The jitter of a member with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The wait, from three quarters of it up to five.
    pub fn spread(&mut self, wait: Duration) -> Duration {
        // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let thousandths = 750 + ((mixed ^ mixed >> 31) % 500) as u32;
        wait * thousandths / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_a_quarter_and_differs() {
        let wait = Duration::from_secs(1);
        let (mut one, mut other) = (Jitter::new(1), Jitter::new(2));
        let waits: Vec<(Duration, Duration)> =
            (0..1000).map(|_| (one.spread(wait), other.spread(wait))).collect();
        let within = |wait: &Duration| (750..1250).contains(&wait.as_millis());
        assert!(waits.iter().all(|(one, other)| within(one) && within(other)));
        assert!(waits.iter().filter(|(one, other)| one.abs_diff(*other).as_millis() > 50).count() > 700);
        let mean = waits.iter().map(|(one, _)| one.as_millis()).sum::<u128>() / 1000;
        assert!((970..1030).contains(&mean), "{mean}");
    }
}
