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
