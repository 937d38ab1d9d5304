//! Who a worker is and which operation it means: the cookie and the signature.

use std::fmt;

/// The secret of one worker's flow. Whoever does not know it cannot speak for the worker, nor for the aggregator to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie(u64);

impl Cookie {
    /// The cookie of a rank, derived from the job's secret (WIRE section 6, last paragraph).
    #[must_use]
    pub fn derive(secret: &str, job: u32, view: u16, rank: u16) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("xagg cookie v1");
        hasher.update(secret.as_bytes());
        hasher.update(&job.to_le_bytes());
        hasher.update(&view.to_le_bytes());
        hasher.update(&rank.to_le_bytes());
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Self(u64::from_le_bytes(bytes).max(1))
    }

    /// The cookie as it stands in the header.
    #[must_use]
    pub const fn to_wire(self) -> u64 {
        self.0
    }

    /// A cookie read from a header.
    #[must_use]
    pub const fn from_wire(value: u64) -> Self {
        Self(value)
    }
}

impl fmt::Debug for Cookie {
    /// Shows nothing: a cookie in a log would be a secret in a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Cookie(..)")
    }
}

/// What is done with everybody's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The sum divided by the sum of the weights.
    Mean,
}

impl fmt::Display for Reduction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
        })
    }
}

/// One all-reduce, as all workers must agree on it (WIRE W1, W2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Counts the operations of a job from 0.
    pub index: u64,
    /// Length in values (f32).
    pub length: u64,
    /// What is done with the values.
    pub reduction: Reduction,
}

impl Operation {
    /// The signature that every packet of the operation carries (WIRE W2).
    #[must_use]
    pub fn signature(&self) -> u32 {
        const DTYPE_F32: u8 = 0;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.index.to_le_bytes());
        hasher.update(&self.length.to_le_bytes());
        hasher.update(&[DTYPE_F32, u8::from(self.reduction == Reduction::Mean)]);
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..4]);
        u32::from_le_bytes(bytes)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "operation {} ({} of {} f32)", self.index, self.reduction, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_differ_by_every_part() {
        let base = Cookie::derive("a secret of a job", 1, 1, 0);
        assert_eq!(base, Cookie::derive("a secret of a job", 1, 1, 0));
        for other in [
            Cookie::derive("b secret of a job", 1, 1, 0),
            Cookie::derive("a secret of a job", 2, 1, 0),
            Cookie::derive("a secret of a job", 1, 2, 0),
            Cookie::derive("a secret of a job", 1, 1, 1),
        ] {
            assert_ne!(base, other);
        }
        assert_eq!(format!("{base:?}"), "Cookie(..)");
    }

    #[test]
    fn signatures_differ_by_every_part() {
        let base = Operation { index: 3, length: 100, reduction: Reduction::Sum };
        for other in [
            Operation { index: 4, ..base },
            Operation { length: 101, ..base },
            Operation { reduction: Reduction::Mean, ..base },
        ] {
            assert_ne!(base.signature(), other.signature());
        }
    }
}
