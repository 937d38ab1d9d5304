//! Block floating point: a fragment of f32 as integers with one exponent, whose sum does not depend on the order (WIRE section 2).
//!
//! The bank of an aggregator is a slice of `u32` lanes; the lanes of a packet are bytes, little-endian. Loops are written so
//! that the compiler vectorises them.

use thiserror::Error;

use crate::MAX_WORKERS;
use crate::vectorised::vectorised;

/// The number of workers is 0 or more than a fragment's integers have room for.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "{0} workers are out of range: a job has 1 to {MAX_WORKERS}, which is what the 32-bit sums have room for"
)]
pub struct TooManyWorkers(pub usize);

/// How values become lanes in a job of so many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    value_bits: u32,
    guard_bits: u32,
}

impl Format {
    /// The format of a job of `workers` workers: their sum fits 32 bits, whatever the values.
    ///
    /// # Errors
    /// [`TooManyWorkers`] if there are more than 256, or none.
    pub const fn for_workers(workers: usize) -> Result<Self, TooManyWorkers> {
        if workers == 0 || workers > MAX_WORKERS {
            return Err(TooManyWorkers(workers));
        }
        let carry_bits = workers.next_power_of_two().trailing_zeros();
        let value_bits = if carry_bits > 4 { 28 - carry_bits } else { 24 };
        Ok(Self { value_bits, guard_bits: 32 - carry_bits - value_bits })
    }

    /// b: the bits of a value, sign included.
    #[must_use]
    pub const fn value_bits(self) -> u32 {
        self.value_bits
    }

    /// G: the zero bits below a value, into which it may be shifted without loss.
    #[must_use]
    pub const fn guard_bits(self) -> u32 {
        self.guard_bits
    }

    /// B: what is added to a value to make it an unsigned lane.
    #[must_use]
    pub const fn bias(self) -> u32 {
        1 << (self.value_bits - 1 + self.guard_bits)
    }

    /// The most that the sum of `contributors` values differs from the exact one before it is rounded to f32 (WIRE F6),
    /// `exponent` being the result's.
    #[must_use]
    pub fn error_bound(self, exponent: Exponent, contributors: u32) -> f64 {
        if exponent.is_zero() {
            return 0.0;
        }
        f64::from(contributors) * power_of_two(i32::from(exponent.0) - self.value_bits as i32 + 1)
    }
}

/// The exponent of a fragment: ZERO, or -149 to 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exponent(i16);

impl Exponent {
    /// Of a fragment whose values are all zero.
    pub const ZERO: Self = Self(i16::MIN);
    /// The exponent of the smallest subnormal, 2^-149, is -148; -149 leaves no special case below.
    pub const MIN: i16 = -149;
    /// The exponent of the largest f32.
    pub const MAX: i16 = 128;

    /// A finite exponent, if it is in range.
    #[must_use]
    pub const fn finite(exponent: i16) -> Option<Self> {
        if exponent < Self::MIN || exponent > Self::MAX { None } else { Some(Self(exponent)) }
    }

    /// The exponent with this value in a header, if it is legal.
    #[must_use]
    pub const fn from_wire(value: i16) -> Option<Self> {
        if value == i16::MIN { Some(Self::ZERO) } else { Self::finite(value) }
    }

    /// The value in a header.
    #[must_use]
    pub const fn to_wire(self) -> i16 {
        self.0
    }

    /// Whether it is that of an all-zero fragment.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == i16::MIN
    }
}

/// How large the values of a fragment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magnitude {
    /// All are zero.
    Zero,
    /// All are finite, and below 2^exponent in magnitude.
    Finite(Exponent),
    /// Some value is NaN or infinite.
    Nonfinite,
}

/// How large the values are (WIRE F1 to F3).
#[must_use]
pub fn magnitude(values: &[f32]) -> Magnitude {
    const SIGN: u32 = 1 << 31;
    const INFINITY: u32 = 0xff << 23;
    // Magnitudes of f32 order like their bits.
    let largest =
        vectorised(move || values.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & !SIGN)));
    match largest {
        0 => Magnitude::Zero,
        INFINITY.. => Magnitude::Nonfinite,
        subnormal if subnormal >> 23 == 0 => {
            Magnitude::Finite(Exponent((32 - subnormal.leading_zeros()) as i16 - 149))
        }
        normal => Magnitude::Finite(Exponent((normal >> 23) as i16 - 126)),
    }
}

/// Turns values into lanes at `exponent` (WIRE F1); lanes beyond the values are those of zero. With [`Exponent::ZERO`] all are.
/// Values that are too large for the exponent are clamped; what NaN becomes is unspecified, but legal. `lanes` is 4 bytes a lane.
///
/// # Panics
/// If there are more values than lanes.
pub fn quantise(format: Format, exponent: Exponent, values: &[f32], lanes: &mut [u8]) {
    let (lanes, _) = lanes.as_chunks_mut::<4>();
    let values = if exponent.is_zero() { &[] } else { values };
    let (used, tail) = lanes.split_at_mut(values.len());
    tail.fill(format.bias().to_le_bytes());
    // Two factors, since 2^(b-1-e) may be beyond f32. Products are exact, or so small that they round to 0 anyway, or (at an
    // exponent too small for the value) infinite and then clamped.
    let (first, second) = split_power(format.value_bits as i32 - 1 - i32::from(exponent.0));
    // Exact as f32, and half to even rounds nothing beyond it.
    let limit = ((1_i32 << (format.value_bits - 1)) - 1) as f32;
    let (guard_bits, bias) = (format.guard_bits, format.bias());
    vectorised(move || {
        for (lane, value) in used.iter_mut().zip(values) {
            let rounded = round_half_even(value * first * second, limit);
            *lane = (rounded << guard_bits).wrapping_add(bias).to_le_bytes();
        }
    });
}

/// Rounds to an integer (in two's complement), half to even, after x has been clamped to +-`limit` < 2^23; what NaN becomes is within that
/// too. Without a branch or an instruction that not every processor has: the spacing of f32 is 1 from 2^23 on, so the addition
/// rounds, and leaves the integer in the mantissa.
#[inline(always)]
fn round_half_even(x: f32, limit: f32) -> u32 {
    const SPACING_ONE: f32 = 8_388_608.0;
    let magnitude = x.abs();
    let clamped = if magnitude < limit { magnitude } else { limit };
    let rounded = (clamped + SPACING_ONE).to_bits() & 0x7f_ffff;
    // All ones if x is negative: its complement is -1 - rounded.
    let sign = (x.to_bits().cast_signed() >> 31).cast_unsigned();
    (rounded ^ sign).wrapping_sub(sign)
}

/// Turns the lanes of a result back into values (WIRE F6): the sum of `contributors` lanes each, divided by `divisor` (0 counts
/// as 1, below 2^24: what 256 weights sum to), rounded once. `values` may be shorter than the lanes: the tail is left out.
pub fn dequantise(
    format: Format,
    exponent: Exponent,
    contributors: u32,
    divisor: u32,
    lanes: &[u8],
    values: &mut [f32],
) {
    if exponent.is_zero() {
        values.fill(0.0);
        return;
    }
    // N * B may be 2^32: taken modulo 2^32, like the lanes, the difference is right as a signed integer.
    let bias = contributors.wrapping_mul(format.bias());
    let lowest = 1 - format.value_bits as i32 - format.guard_bits as i32;
    let step = i32::from(exponent.0) + lowest;
    let (lanes, _) = lanes.as_chunks::<4>();
    let divisor = divisor.max(1);
    let sum_of = move |lane: &[u8; 4]| u32::from_le_bytes(*lane).wrapping_sub(bias).cast_signed();
    let quotient_step = step - divisor.trailing_zeros() as i32;
    if divisor.is_power_of_two() && quotient_step >= f32::MIN_EXP - 1 {
        // Only the sum is rounded: a product with a power of two is exact, or infinite, and here never subnormal.
        let step = power_of_two(quotient_step) as f32;
        vectorised(move || {
            for (value, lane) in values.iter_mut().zip(lanes) {
                *value = sum_of(lane) as f32 * step;
            }
        });
        return;
    }
    // Rounding the quotient to f64 first does not change the f32: closer than 2^-49 (relative) to the middle of two f32, a sum of
    // 32 bits over a divisor of 24 is only if it is that middle.
    let (step, divisor) = (power_of_two(step), f64::from(divisor));
    vectorised(move || {
        for (value, lane) in values.iter_mut().zip(lanes) {
            *value = (f64::from(sum_of(lane)) * step / divisor) as f32;
        }
    });
}

/// 2^power, for |power| <= 1022.
fn power_of_two(power: i32) -> f64 {
    f64::from_bits(((1023 + power) as u64) << 52)
}

/// Two normal f32 whose product is 2^power, for -126 <= power / 2 <= 127.
fn split_power(power: i32) -> (f32, f32) {
    let half = power / 2;
    let factor = |power: i32| f32::from_bits(((127 + power) as u32) << 23);
    (factor(half), factor(power - half))
}

/// What F4 adds to a lane that holds `count` contributions when it is shifted right by `shift`, to keep its bias.
const fn rebias(format: Format, shift: u32, count: u32) -> u32 {
    count.wrapping_mul(format.bias().wrapping_sub(format.bias() >> shift))
}

/// Sets a bank's lanes to a packet's.
pub fn copy_lanes(bank: &mut [u32], packet: &[u8]) {
    for (sum, lane) in bank.iter_mut().zip(packet.as_chunks::<4>().0) {
        *sum = u32::from_le_bytes(*lane);
    }
}

/// Adds a packet's lanes, of a smaller exponent by `shift`, to a bank's (WIRE F4).
pub fn add_lanes(format: Format, bank: &mut [u32], packet: &[u8], shift: u32) {
    let rebias = rebias(format, shift, 1);
    vectorised(move || {
        for (sum, lane) in bank.iter_mut().zip(packet.as_chunks::<4>().0) {
            let lane = (u32::from_le_bytes(*lane) >> shift).wrapping_add(rebias);
            *sum = sum.wrapping_add(lane);
        }
    });
}

/// Shifts a bank's lanes, which hold `count` contributions, to an exponent larger by `shift` (WIRE F4).
pub fn shift_lanes(format: Format, bank: &mut [u32], shift: u32, count: u32) {
    let rebias = rebias(format, shift, count);
    vectorised(move || {
        for sum in bank {
            *sum = (*sum >> shift).wrapping_add(rebias);
        }
    });
}

/// Writes a bank's lanes as those of a packet.
pub fn write_lanes(bank: &[u32], packet: &mut [u8]) {
    for (lane, sum) in packet.as_chunks_mut::<4>().0.iter_mut().zip(bank) {
        *lane = sum.to_le_bytes();
    }
}
