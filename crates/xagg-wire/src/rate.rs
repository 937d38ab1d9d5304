//! Rates, as people write them: `1gbit`, `250mbit`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A rate of a link: 1 kbit to 1000 gbit a second, with all that a frame takes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u64);

/// Not a rate, and what one looks like.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("\"{0}\" is not a rate: write a number and a unit, such as 1gbit, 250mbit or 2.5gbit")]
pub struct NotARate(String);

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

    /// How many packets of `bytes` bytes on the wire pass in a second.
    #[must_use]
    pub fn packets_per_second(self, bytes: usize) -> f64 {
        self.0 as f64 / (8 * bytes) as f64
    }
}

impl FromStr for Rate {
    type Err = NotARate;

    fn from_str(text: &str) -> Result<Self, NotARate> {
        let wrong = || NotARate(text.to_owned());
        let (number, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
            .ok_or_else(wrong)?;
        let bits = number.trim().parse::<f64>().map_err(|_| wrong())? * *factor as f64;
        if (1000.0..=1e12).contains(&bits) { Ok(Self(bits.round() as u64)) } else { Err(wrong()) }
    }
}

impl TryFrom<String> for Rate {
    type Error = NotARate;

    fn try_from(text: String) -> Result<Self, NotARate> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut unit, mut factor) = UNITS[2];
        if let Some(found) = UNITS.iter().find(|(_, factor)| self.0.is_multiple_of(*factor)) {
            (unit, factor) = *found;
        }
        write!(formatter, "{}{unit}", self.0 as f64 / factor as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for (text, bits) in
            [("1gbit", 1_000_000_000), ("250mbit", 250_000_000), ("64kbit", 64_000), ("1.0625kbit", 1063)]
        {
            let rate: Rate = text.parse().expect("valid");
            assert_eq!(rate.bits_per_second(), bits);
            assert_eq!(rate.to_string().parse(), Ok(rate), "{rate}");
        }
        assert_eq!(Rate::mbit(250).to_string(), "250mbit");
        assert_eq!("2.5gbit".parse(), Ok(Rate::mbit(2500)));
        let written = serde_json::to_string(&Rate::mbit(2000)).expect("writes");
        assert_eq!(written, "\"2gbit\"");
        assert_eq!(serde_json::from_str::<Rate>(&written).expect("reads"), Rate::mbit(2000));
    }

    #[test]
    fn what_is_no_rate_is_said_to_be_none() {
        for text in ["", "fast", "1", "gbit", "-1gbit", "0mbit", "1 TB/s", "nangbit", "2000gbit"] {
            let message = text.parse::<Rate>().expect_err(text).to_string();
            assert!(message.contains("such as 1gbit"), "{message}");
        }
    }

    #[test]
    fn what_passes_follows_from_the_rate() {
        assert_eq!(Rate::mbit(8).bytes_in(Duration::from_millis(25)), 25_000);
        assert!((Rate::mbit(12).packets_per_second(1500) - 1000.0).abs() < 1e-9);
    }
}
