//! The gradients of a scenario, and the sums that they must have by another way of computing: exactly, in f64, fragment by
//! fragment, from docs/WIRE.md alone.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use xagg_proto::Job;
use xagg_wire::Reduction;
use xagg_wire::fixed::{Magnitude, magnitude};

use crate::Scenario;
use crate::scenario::Values;

/// A fragment's place: which operation, and which values of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The operation.
    pub operation: usize,
    /// Its first value.
    pub start: usize,
    /// How many.
    pub length: usize,
}

/// Where every sequence of a job belongs: all ranks issue the same operations, each from a fresh fragment on (WIRE W1).
#[must_use]
pub fn places(scenario: &Scenario) -> Vec<Place> {
    let mut places = vec![];
    for (operation, length) in scenario.operations.iter().enumerate() {
        for start in (0..*length).step_by(scenario.lanes) {
            places.push(Place { operation, start, length: scenario.lanes.min(length - start) });
        }
    }
    places
}

/// A rank's gradient of an operation; the same whenever it is asked for.
#[must_use]
pub fn gradient(scenario: &Scenario, rank: usize, operation: usize) -> Vec<f32> {
    let seed = scenario.seed ^ (rank as u64) << 48 ^ (operation as u64) << 32;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut values = vec![0.0; scenario.operations[operation]];
    for (number, fragment) in values.chunks_mut(scenario.lanes).enumerate() {
        fill(fragment, number, &scenario.values, &mut rng);
    }
    values
}

fn fill(fragment: &mut [f32], number: usize, values: &Values, rng: &mut ChaCha8Rng) {
    if rng.random_bool(values.zero) {
        return;
    }
    // Ranks differ by the spread around a magnitude that the fragment has at all of them.
    let common = (number % 40) as i32 - 20;
    let scale = 2.0_f32.powi(common + rng.random_range(0..=values.spread) as i32);
    fragment.fill_with(|| rng.random_range(-1.0..1.0) * scale);
    if rng.random_bool(values.nonfinite) {
        let at = rng.random_range(0..fragment.len());
        fragment[at] = if rng.random() { f32::NAN } else { f32::INFINITY };
    }
}

/// What the sum of a fragment must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    /// Some value was NaN or infinite: every worker gets NaN (WIRE F3).
    Nonfinite,
    /// The exact sums of the quantised values (WIRE F4, F5).
    Sums(Vec<f64>),
}

/// The expected sum of the fragment that all ranks' `gradients` of an operation have at this place.
#[must_use]
pub fn expected(job: &Job, gradients: &[Vec<f32>], place: Place) -> Expected {
    let fragments: Vec<&[f32]> =
        gradients.iter().map(|values| &values[place.start..place.start + place.length]).collect();
    let magnitudes: Vec<Magnitude> = fragments.iter().map(|values| magnitude(values)).collect();
    if magnitudes.contains(&Magnitude::Nonfinite) {
        return Expected::Nonfinite;
    }
    let exponent = |magnitude: &Magnitude| match magnitude {
        Magnitude::Finite(exponent) => Some(i32::from(exponent.to_wire())),
        Magnitude::Zero | Magnitude::Nonfinite => None,
    };
    let exponents = || magnitudes.iter().filter_map(exponent);
    let (Some(least), Some(most)) = (exponents().min(), exponents().max()) else {
        return Expected::Sums(vec![0.0; place.length]);
    };
    let again = most - least > job.format.guard_bits() as i32;
    let mut sums = vec![0.0_f64; place.length];
    for (values, own) in fragments.iter().zip(&magnitudes) {
        let Some(own) = exponent(own) else { continue };
        add_quantised(job, if again { most } else { own }, values, &mut sums);
    }
    Expected::Sums(sums)
}

/// WIRE F1, in f64, which holds all of it exactly.
fn add_quantised(job: &Job, exponent: i32, values: &[f32], sums: &mut [f64]) {
    let bits = job.format.value_bits() as i32;
    let step = 2.0_f64.powi(exponent - (bits - 1));
    let limit = 2.0_f64.powi(bits - 1) - 1.0;
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += (f64::from(*value) / step).round_ties_even().clamp(-limit, limit) * step;
    }
}

/// What a rank's buffer must hold for one value of a fragment.
#[must_use]
pub fn result(sum: f64, reduction: Reduction, weights: u32) -> f32 {
    let divisor = if reduction == Reduction::Mean { f64::from(weights) } else { 1.0 };
    (sum / divisor) as f32
}
