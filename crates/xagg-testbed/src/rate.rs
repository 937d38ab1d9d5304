//! Rates of links.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A rate, in bits a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

const UNITS: [(&str, u64); 3] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000)];

impl Rate {
    /// So many million bits a second.
    #[must_use]
    pub const fn mbit(megabits: u64) -> Self {
        Self(megabits * 1_000_000)
    }

    /// In bits a second.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// The bytes that pass in this time.
    #[must_use]
    pub const fn bytes_in(self, time: Duration) -> u64 {
        (self.0 as u128 * time.as_micros() / 8_000_000) as u64
    }

    /// What a link of this rate passes at once after a pause, in bytes: its token bucket. It refills once a timer tick at worst (4 ms), so it
    /// must hold what passes in that time.
    #[must_use]
    pub fn burst(self) -> u64 {
        self.bytes_in(Duration::from_millis(5)).max(20_000)
    }

    /// The bytes that may wait for a link of this rate, if nothing else is said: what passes in 25 ms, and a burst.
    pub(crate) fn usual_queue(self) -> u64 {
        self.bytes_in(Duration::from_millis(25)) + self.burst()
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text} is not a rate: write a number and a unit, such as 1gbit, 250mbit or 2.5gbit");
        let (unit, factor) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
        let number: f64 = text[..text.len() - unit.len()].trim().parse().map_err(|_| wrong())?;
        let bits = number * *factor as f64;
        if (1000.0..=1e12).contains(&bits) { Ok(Self(bits.round() as u64)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = UNITS.iter().find(|(_, factor)| self.0.is_multiple_of(*factor));
        match found {
            Some((unit, factor)) => write!(formatter, "{}{unit}", self.0 / factor),
            None => write!(formatter, "{}bit", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for (text, bits) in [("1gbit", 1_000_000_000), ("250mbit", 250_000_000), ("64kbit", 64_000)] {
            let rate: Rate = text.parse().expect("valid");
            assert_eq!(rate.bits_per_second(), bits);
            assert_eq!(rate.to_string(), text);
        }
        assert_eq!("2.5gbit".parse(), Ok(Rate::mbit(2500)));
    }

    #[test]
    fn what_is_no_rate_is_said_to_be_none() {
        for text in ["", "fast", "1", "gbit", "-1gbit", "0mbit", "1 TB/s", "nangbit"] {
            let message = text.parse::<Rate>().expect_err(text);
            assert!(message.contains("such as 1gbit"), "{message}");
        }
    }
}
