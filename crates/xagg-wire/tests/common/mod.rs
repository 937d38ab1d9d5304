//! A bank of an aggregator as a few lines of code, on the lane functions of the crate (WIRE F4, F5).

use xagg_wire::fixed::{
    Exponent, Format, Magnitude, add_lanes, copy_lanes, magnitude, quantise, shift_lanes,
};

/// The exponent and the lanes of one worker's fragment.
pub type Contribution = (Exponent, Vec<u8>);

/// What has come of a fragment.
pub struct Gathered {
    /// That of the result.
    pub exponent: Exponent,
    /// The sums.
    pub bank: Vec<u32>,
    /// Whether it took the second phase.
    pub redone: bool,
}

/// The exponent that a fragment has by itself.
pub fn own_exponent(values: &[f32]) -> Exponent {
    match magnitude(values) {
        Magnitude::Finite(exponent) => exponent,
        Magnitude::Zero => Exponent::ZERO,
        Magnitude::Nonfinite => panic!("the test makes finite values only"),
    }
}

/// Quantises a fragment in a packet of `lanes` lanes.
pub fn lanes_of(format: Format, exponent: Exponent, values: &[f32], lanes: usize) -> Vec<u8> {
    let mut bytes = vec![0; 4 * lanes];
    quantise(format, exponent, values, &mut bytes);
    bytes
}

/// Sums contributions in this order as an aggregator does; exponent and lanes of the sum, or the exponent of the second phase.
fn one_phase(format: Format, contributions: &[Contribution]) -> Result<(Exponent, Vec<u32>), Exponent> {
    let mut bank = vec![0; contributions[0].1.len() / 4];
    let (mut largest, mut least) = (Exponent::ZERO, Exponent::ZERO);
    for (count, (exponent, lanes)) in (0..).zip(contributions) {
        let before = largest;
        if !exponent.is_zero() {
            least = if before.is_zero() { *exponent } else { least.min(*exponent) };
            largest = before.max(*exponent);
        }
        let below = |lower: Exponent| {
            if lower.is_zero() { 0 } else { u32::from(largest.to_wire().abs_diff(lower.to_wire())) }
        };
        if below(least) > format.guard_bits() {
            continue;
        }
        if count == 0 {
            copy_lanes(&mut bank, lanes);
        } else {
            shift_lanes(format, &mut bank, below(before), count);
            add_lanes(format, &mut bank, lanes, below(*exponent));
        }
    }
    let spread = u32::from(largest.to_wire().abs_diff(least.to_wire()));
    if spread > format.guard_bits() { Err(largest) } else { Ok((largest, bank)) }
}

/// Both phases, with workers arriving in `order`.
pub fn gather(format: Format, fragments: &[Vec<f32>], order: &[usize], lanes: usize) -> Gathered {
    let contributions = |exponent_of: &dyn Fn(&[f32]) -> Exponent| -> Vec<Contribution> {
        let contribution = |rank: &usize| {
            let exponent = exponent_of(&fragments[*rank]);
            (exponent, lanes_of(format, exponent, &fragments[*rank], lanes))
        };
        order.iter().map(contribution).collect()
    };
    match one_phase(format, &contributions(&own_exponent)) {
        Ok((exponent, bank)) => Gathered { exponent, bank, redone: false },
        Err(largest) => {
            let again = one_phase(format, &contributions(&|_| largest));
            let (exponent, bank) = again.expect("one exponent has no spread");
            Gathered { exponent, bank, redone: true }
        }
    }
}
