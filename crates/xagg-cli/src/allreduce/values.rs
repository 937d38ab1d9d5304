//! What a rank contributes and what it must get back.

use std::path::Path;

use anyhow::{Context, bail};
use xagg_wire::Reduction;

/// Generated values are integers of at most this magnitude, so sums over 256 ranks are exact in f32.
const LARGEST: i32 = 1000;

/// Where a rank's values come from.
pub enum Source {
    /// Made from a seed, so that every rank knows what all the others contribute.
    Generated {
        /// The same on all ranks.
        seed: u64,
        /// How many values.
        elements: usize,
    },
    /// Read from a file.
    File(Vec<f32>),
}

impl Source {
    /// Reads little-endian f32 values.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (values, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() || values.is_empty() {
            let length = bytes.len();
            bail!(
                "{} has {length} bytes: a file of little-endian f32 values has 4, 8, 12, ...",
                path.display()
            );
        }
        Ok(Self::File(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }

    /// How many values there are.
    pub const fn elements(&self) -> usize {
        match self {
            Self::Generated { elements, .. } => *elements,
            Self::File(values) => values.len(),
        }
    }

    /// What `rank` contributes to an iteration.
    pub fn values(&self, rank: u16, iteration: u64) -> anyhow::Result<Vec<f32>> {
        let mut values = Vec::new();
        let elements = self.elements();
        values
            .try_reserve_exact(elements)
            .with_context(|| format!("not enough memory for {elements} values of 4 bytes: use fewer"))?;
        match self {
            Self::File(file) => values.extend_from_slice(file),
            Self::Generated { seed, .. } => {
                let stream = Stream::new(*seed, rank, iteration);
                values.extend((0..elements).map(|index| stream.value(index) as f32));
            }
        }
        Ok(values)
    }

    /// Compares the result of an iteration with the exact one, bit for bit; nothing can be said of values from files.
    pub fn check(
        &self,
        result: &[f32],
        iteration: u64,
        workers: u16,
        reduction: Reduction,
    ) -> anyhow::Result<()> {
        let Self::Generated { seed, elements } = self else { return Ok(()) };
        let streams: Vec<Stream> = (0..workers).map(|rank| Stream::new(*seed, rank, iteration)).collect();
        let expected = |index: usize| {
            let sum: i32 = streams.iter().map(|stream| stream.value(index)).sum();
            match reduction {
                Reduction::Sum => sum as f32,
                Reduction::Mean => (f64::from(sum) / f64::from(workers)) as f32,
            }
        };
        let differs = |index: &usize| result[*index].to_bits() != expected(*index).to_bits();
        if let Some(first) = (0..*elements).find(differs) {
            let count = (first..*elements).filter(differs).count();
            bail!(
                "iteration {iteration}: {count} of {elements} values are not the {reduction} over all ranks; value {first} is {} and must be {}. Do all ranks have the same --seed, and none an --input?",
                result[first],
                expected(first)
            );
        }
        Ok(())
    }
}

/// The generated values of one rank in one iteration.
struct Stream(u64);

impl Stream {
    const fn new(seed: u64, rank: u16, iteration: u64) -> Self {
        Self(mix(mix(seed ^ mix(iteration)) ^ rank as u64))
    }

    fn value(&self, index: usize) -> i32 {
        const RANGE: u64 = 2 * LARGEST as u64 + 1;
        let high = mix(self.0.wrapping_add(index as u64)) >> 32;
        ((high * RANGE) >> 32) as i32 - LARGEST
    }
}

/// A bijection that spreads every input bit over all output bits (the finaliser of SplitMix64).
const fn mix(input: u64) -> u64 {
    let mut bits = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The values as little-endian bytes, in blocks that fit a cache.
pub fn byte_blocks(values: &[f32]) -> impl Iterator<Item = Vec<u8>> {
    values.chunks(1 << 14).map(|block| block.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// By which ranks can be compared: the first 64 bits of the BLAKE3 hash of the values, in hexadecimal.
pub fn digest(values: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for block in byte_blocks(values) {
        hasher.update(&block);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source::Generated { seed: 7, elements: 1000 };

    fn sum(workers: u16, iteration: u64) -> Vec<f32> {
        let all: Vec<Vec<f32>> =
            (0..workers).map(|rank| SOURCE.values(rank, iteration).expect("small")).collect();
        (0..1000).map(|index| all.iter().map(|values| values[index]).sum()).collect()
    }

    #[test]
    fn the_true_sum_passes_and_any_wrong_bit_fails() {
        let mut result = sum(4, 3);
        SOURCE.check(&result, 3, 4, Reduction::Sum).expect("exact");
        assert!(SOURCE.check(&result, 2, 4, Reduction::Sum).is_err(), "another iteration has other values");
        result[999] = f32::from_bits(result[999].to_bits() ^ 1);
        let message = SOURCE.check(&result, 3, 4, Reduction::Sum).expect_err("wrong").to_string();
        assert!(message.contains("1 of 1000") && message.contains("value 999"), "{message}");
    }

    #[test]
    fn values_differ_by_rank_and_stay_in_range() {
        let values = SOURCE.values(0, 0).expect("small");
        assert_ne!(values, SOURCE.values(1, 0).expect("small"));
        assert!(values.iter().all(|value| value.abs() <= 1000.0 && value.fract() == 0.0));
        assert!(values.iter().any(|value| *value > 900.0) && values.iter().any(|value| *value < -900.0));
    }

    #[test]
    fn digests_tell_results_apart() {
        assert_eq!(digest(&[1.0, 2.0]), digest(&[1.0, 2.0]));
        assert_ne!(digest(&[1.0, 2.0]), digest(&[2.0, 1.0]));
        assert_eq!(digest(&[0.0; 3]).len(), 16);
    }
}
