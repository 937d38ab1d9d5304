//! Block floating point keeps its promises for any input (WIRE section 2). What the crate computes is compared with integers
//! of 128 bits, into which every value of these tests fits without rounding.

mod common;

use std::cmp::Ordering;

use common::{Gathered, gather, lanes_of, own_exponent};
use proptest::prelude::*;
use xagg_wire::fixed::{Exponent, Format, Magnitude, dequantise, magnitude, write_lanes};
use xagg_wire::repr::MAX_WEIGHT;
use xagg_wire::{LANE_BLOCK, MAX_WORKERS};

/// Any finite f32: zeros of both signs, subnormals, the largest; often several of about the same magnitude.
fn finite() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite()),
        4 => -1.0_f32..1.0,
        1 => Just(0.0_f32),
        1 => Just(-0.0_f32),
        1 => (1_u32..0x80_0000).prop_map(f32::from_bits),
        1 => Just(f32::MAX),
        1 => Just(f32::MIN),
        1 => Just(2.0_f32.powi(127)),
    ]
}

/// Fragments of values below 2^scale, and all-zero ones.
fn scaled(scale: impl Strategy<Value = i32>) -> impl Strategy<Value = Vec<f32>> {
    let times = |values: Vec<f32>, scale| -> Vec<f32> {
        values.iter().map(|value| (f64::from(*value) * 2.0_f64.powi(scale)) as f32).collect()
    };
    prop_oneof![
        8 => (prop::collection::vec(-1.0_f32..1.0, LANE_BLOCK), scale)
            .prop_map(move |(values, scale)| times(values, scale)),
        1 => Just(vec![-0.0; LANE_BLOCK]),
    ]
}

/// One fragment of each worker: of magnitudes that have nothing to do with each other, or whose exponents spread by no more
/// than the guard bits, or by a little more.
fn fragments() -> impl Strategy<Value = Vec<Vec<f32>>> {
    let workers = prop_oneof![8 => 1..=12_usize, 1 => 13..=MAX_WORKERS];
    (workers, -149..=120_i32, 0..=9_i32).prop_flat_map(|(workers, least, spread)| {
        prop_oneof![
            1 => prop::collection::vec(prop::collection::vec(finite(), LANE_BLOCK), workers),
            3 => prop::collection::vec(scaled(least..=(least + spread).min(127)), workers),
        ]
    })
}

fn fragments_and_order() -> impl Strategy<Value = (Vec<Vec<f32>>, Vec<usize>)> {
    fragments().prop_flat_map(|fragments| {
        let order: Vec<usize> = (0..fragments.len()).collect();
        (Just(fragments), Just(order).prop_shuffle())
    })
}

fn format_of(workers: usize) -> Format {
    Format::for_workers(workers).expect("in range")
}

fn finite_exponent(exponent: i16) -> Exponent {
    Exponent::finite(exponent).expect("legal")
}

/// A finite f32 as integer times power of two.
fn parts(value: f32) -> (i128, i32) {
    let (fraction, exponent) =
        (i128::from(value.to_bits() & 0x7f_ffff), (value.to_bits() >> 23 & 0xff) as i32);
    let (integer, power) =
        if exponent == 0 { (fraction, -149) } else { (fraction | 1 << 23, exponent - 150) };
    (if value.is_sign_negative() { -integer } else { integer }, power)
}

/// WIRE F1 in integers, without guard bits and bias: what `value` is in units of 2^(e - (b - 1)).
fn quantised(format: Format, exponent: Exponent, value: f32) -> i128 {
    if exponent.is_zero() {
        return 0;
    }
    let (integer, power) = parts(value);
    let limit = (1 << (format.value_bits() - 1)) - 1;
    let shift = power + format.value_bits() as i32 - 1 - i32::from(exponent.to_wire());
    let rounded = match shift {
        ..-99 => 0,
        -99..0 => {
            let (whole, rest) = (integer >> -shift, integer & ((1 << -shift) - 1));
            let half = 1 << (-shift - 1);
            whole + i128::from(rest > half || (rest == half && whole & 1 == 1))
        }
        0..=90 => integer << shift,
        _ => integer.signum() * limit,
    };
    rounded.clamp(-limit, limit)
}

/// What the lanes of a bank hold beside `contributors` biases.
fn unbiased(format: Format, contributors: usize, lane: u32) -> i128 {
    i128::from(lane) - contributors as i128 * i128::from(format.bias())
}

/// Compares `left.0` * 2^`left.1` with `right.0` * 2^`right.1`.
fn compare(left: (i128, i32), right: (i128, i32)) -> Ordering {
    let common = left.1.min(right.1);
    let at_common = |(integer, power): (i128, i32)| {
        if integer == 0 {
            return 0;
        }
        let shift = (power - common) as u32;
        assert!(integer.unsigned_abs().leading_zeros() > shift + 1, "{integer} << {shift} leaves 128 bits");
        integer << shift
    };
    at_common(left).cmp(&at_common(right))
}

fn values_of(format: Format, gathered: &Gathered, workers: usize) -> Vec<f32> {
    let mut lanes = vec![0; 4 * gathered.bank.len()];
    write_lanes(&gathered.bank, &mut lanes);
    let mut values = vec![0.0; gathered.bank.len()];
    dequantise(format, gathered.exponent, workers as u32, 1, &lanes, &mut values);
    values
}

/// The exact sum of quantised values, as what the bank must hold.
fn exact_sum(format: Format, gathered: &Gathered, fragments: &[Vec<f32>], lane: usize) -> i128 {
    let term = |values: &Vec<f32>| {
        let own = own_exponent(values);
        let at = if gathered.redone || own.is_zero() { gathered.exponent } else { own };
        let below = if at.is_zero() { 0 } else { gathered.exponent.to_wire() - at.to_wire() };
        let guard = format.guard_bits() as i32 - i32::from(below);
        quantised(format, at, values[lane]) << guard
    };
    fragments.iter().map(term).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn a_lane_is_the_value_rounded_half_to_even(
        value in finite(),
        tie in any::<(i16, bool)>(),
        exponent in -149..=128_i16,
        workers in 1..=MAX_WORKERS,
    ) {
        let (format, exponent) = (format_of(workers), finite_exponent(exponent));
        // Ties are rare: make some.
        let half_units = f64::from(tie.0) + if tie.1 { 0.5 } else { 0.0 };
        let unit = 2.0_f64.powi(i32::from(exponent.to_wire()) - format.value_bits() as i32 + 1);
        let values = [value, (half_units * unit) as f32];
        let lanes = lanes_of(format, exponent, &values, LANE_BLOCK);
        for (value, lane) in values.into_iter().zip(lanes.as_chunks::<4>().0) {
            let lane = unbiased(format, 1, u32::from_le_bytes(*lane));
            prop_assert_eq!(lane, quantised(format, exponent, value) << format.guard_bits(), "of {:e}", value);
        }
    }

    #[test]
    fn a_sum_is_exactly_that_of_the_quantised_values_in_any_order((fragments, order) in fragments_and_order()) {
        let workers = fragments.len();
        let format = format_of(workers);
        let gathered = gather(format, &fragments, &order, LANE_BLOCK);
        let own = fragments.iter().map(|values| own_exponent(values)).filter(|own| !own.is_zero());
        let exponents: Vec<i16> = own.map(Exponent::to_wire).collect();
        let most = exponents.iter().max().copied();
        let spread = most.zip(exponents.iter().min()).map_or(0, |(most, least)| most.abs_diff(*least));
        prop_assert_eq!(gathered.redone, u32::from(spread) > format.guard_bits());
        prop_assert_eq!(gathered.exponent.to_wire(), most.unwrap_or(Exponent::ZERO.to_wire()));
        for (lane, sum) in gathered.bank.iter().enumerate() {
            prop_assert_eq!(unbiased(format, workers, *sum), exact_sum(format, &gathered, &fragments, lane));
        }
    }

    #[test]
    fn the_error_of_a_sum_is_within_its_bound((fragments, order) in fragments_and_order()) {
        let workers = fragments.len();
        let format = format_of(workers);
        let gathered = gather(format, &fragments, &order, LANE_BLOCK);
        let bound = format.error_bound(gathered.exponent, workers as u32);
        for (lane, sum) in values_of(format, &gathered, workers).iter().enumerate() {
            // Where f64 rounds this sum, the bound is far above its last place.
            let exact: f64 = fragments.iter().map(|values| f64::from(values[lane])).sum();
            if !sum.is_finite() {
                prop_assert!(exact.abs() + bound >= f64::from(f32::MAX), "{sum} for {exact}");
                continue;
            }
            // Half of the last place of an f32.
            let rounding = (f64::from(sum.abs()) * f64::from(f32::EPSILON)).max(2.0_f64.powi(-149)) / 2.0;
            let error = (f64::from(*sum) - exact).abs();
            prop_assert!(error <= bound + rounding, "{error:e} > {bound:e} + {rounding:e}");
        }
    }

    #[test]
    fn a_result_is_divided_and_rounded_to_f32_once(
        lane in any::<u32>(),
        exponent in -149..=128_i16,
        workers in 1..=MAX_WORKERS,
        weights in prop_oneof![1..=8_u32, 1..=MAX_WEIGHT * MAX_WORKERS as u32],
    ) {
        let format = format_of(workers);
        // The lanes of so many contributions are below the sum of so many largest ones.
        let most = workers as u64 * 2 * u64::from(format.bias());
        let lane = ((u64::from(lane) * most) >> 32) as u32;
        let mut value = [0.0_f32];
        let (contributors, exponent) = (workers as u32, finite_exponent(exponent));
        dequantise(format, exponent, contributors, weights, &lane.to_le_bytes(), &mut value);
        let scale = i32::from(exponent.to_wire()) + 1 - (format.value_bits() + format.guard_bits()) as i32;
        let exact = (unbiased(format, workers, lane).abs(), scale);
        // The f32 nearest to exact / weights: exact is between weights times the middles to its neighbours.
        let (integer, power) = if value[0].is_infinite() { (1 << 24, 104) } else { parts(value[0].abs()) };
        let odd = integer & 1 == 1;
        let middle = |halves: i128| ((2 * integer + halves) * i128::from(weights), power - 1);
        // Below a power of two, f32 are twice as dense.
        let lower = if integer == 1 << 23 && power > -149 {
            ((4 * integer - 1) * i128::from(weights), power - 2)
        } else {
            middle(-1)
        };
        let from_lower = compare(exact, lower);
        prop_assert!(from_lower.is_gt() || (from_lower.is_eq() && !odd), "{value:?} is too large");
        if value[0].is_finite() {
            let from_upper = compare(exact, middle(1));
            prop_assert!(from_upper.is_lt() || (from_upper.is_eq() && !odd), "{value:?} is too small");
        }
        prop_assert!(value[0] == 0.0 || (value[0] < 0.0) == (unbiased(format, workers, lane) < 0));
    }

    #[test]
    fn any_bits_become_legal_lanes(
        bits in prop::collection::vec(any::<u32>(), 0..=LANE_BLOCK),
        exponent in -149..=128_i16,
        workers in 1..=MAX_WORKERS,
    ) {
        let format = format_of(workers);
        let values: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
        let lanes = lanes_of(format, finite_exponent(exponent), &values, LANE_BLOCK);
        for lane in lanes.as_chunks::<4>().0 {
            prop_assert!(u64::from(u32::from_le_bytes(*lane)) * workers as u64 <= u64::from(u32::MAX));
        }
        let nonfinite = values.iter().any(|value| !value.is_finite());
        prop_assert_eq!(magnitude(&values) == Magnitude::Nonfinite, nonfinite);
    }

    #[test]
    fn an_exponent_is_the_smallest_that_bounds_the_values(values in prop::collection::vec(finite(), 1..=LANE_BLOCK)) {
        let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(f64::from(value.abs())));
        match magnitude(&values) {
            Magnitude::Zero => prop_assert_eq!(largest, 0.0),
            Magnitude::Finite(exponent) => {
                let bound = 2.0_f64.powi(exponent.to_wire().into());
                prop_assert!(bound / 2.0 <= largest && largest < bound);
            }
            Magnitude::Nonfinite => prop_assert!(false, "all are finite"),
        }
    }
}

/// All orders of `0..count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let insert = |shorter: Vec<usize>| {
        (0..count).map(move |place| {
            let mut order = shorter.clone();
            order.insert(place, count - 1);
            order
        })
    };
    permutations(count - 1).into_iter().flat_map(insert).collect()
}

#[test]
fn every_order_of_arrival_gives_the_same_bits() {
    const WORKERS: usize = 6;
    let orders = permutations(WORKERS);
    assert_eq!(orders.len(), 720);
    let format = format_of(WORKERS);
    for (step, redone) in [(0, false), (1, false), (3, true), (40, true)] {
        // Exponents differ by `step` from rank to rank; rank 4 has nothing but zeros.
        let value = |rank: usize, lane: usize| {
            let sign = if (rank + lane).is_multiple_of(3) { -1.0 } else { 1.0 };
            sign * (0.5 + lane as f32 / 37.0) * 2.0_f32.powi(-step * rank as i32)
        };
        let fragment = |rank| match rank {
            4 => vec![0.0; LANE_BLOCK],
            _ => (0..LANE_BLOCK).map(|lane| value(rank, lane)).collect(),
        };
        let fragments: Vec<Vec<f32>> = (0..WORKERS).map(fragment).collect();
        let first = gather(format, &fragments, &orders[0], LANE_BLOCK);
        assert_eq!(first.redone, redone, "steps of {step}");
        for order in &orders {
            let again = gather(format, &fragments, order, LANE_BLOCK);
            assert_eq!((again.exponent, &again.bank), (first.exponent, &first.bank), "{order:?}");
        }
    }
}

#[test]
fn nan_and_infinity_are_not_finite_wherever_they_are() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in 0..LANE_BLOCK {
            let mut values = [1.0; LANE_BLOCK];
            values[place] = bad;
            assert_eq!(magnitude(&values), Magnitude::Nonfinite);
        }
    }
}

#[test]
fn exponents_at_the_edges() {
    let exponent = |value: f32| own_exponent(&[value]).to_wire();
    assert_eq!(exponent(1.0), 1);
    assert_eq!(exponent(-0.5), 0);
    assert_eq!(exponent(0.75), 0);
    assert_eq!(exponent(f32::MAX), 128);
    assert_eq!(exponent(f32::MIN_POSITIVE), -125);
    assert_eq!(exponent(f32::from_bits(1)), -148);
    assert_eq!(exponent(f32::from_bits(0x40_0000)), -126);
    assert_eq!(magnitude(&[0.0, -0.0]), Magnitude::Zero);
    assert_eq!(magnitude(&[]), Magnitude::Zero);
    for illegal in [-150, 129, i16::MIN + 1, i16::MAX] {
        assert_eq!(Exponent::from_wire(illegal), None);
    }
    assert_eq!(Exponent::finite(i16::MIN), None);
    assert_eq!(Exponent::from_wire(i16::MIN), Some(Exponent::ZERO));
}

#[test]
fn values_too_large_for_their_exponent_are_clamped_not_wrapped() {
    for workers in [1, 3, 16, 17, 256] {
        let format = format_of(workers);
        let value = 1.0_f32.next_down();
        for (exponent, values) in [(0, [value, -value]), (0, [1.0, -1.0]), (-149, [f32::MAX, f32::MIN])] {
            let lanes = lanes_of(format, finite_exponent(exponent), &values, LANE_BLOCK);
            let lane = |index: usize| u32::from_le_bytes(lanes.as_chunks::<4>().0[index]);
            let top = ((1 << (format.value_bits() - 1)) - 1) << format.guard_bits();
            assert_eq!((lane(0), lane(1)), (format.bias() + top, format.bias() - top), "{values:?}");
        }
    }
}

#[test]
fn the_largest_values_of_one_worker_stay_finite() {
    let format = format_of(1);
    let gathered = gather(format, &[vec![f32::MAX, f32::MIN]], &[0], LANE_BLOCK);
    assert_eq!(values_of(format, &gathered, 1)[..2], [f32::MAX.next_down(), f32::MIN.next_up()]);
}

#[test]
fn the_tail_is_zero() {
    let format = format_of(4);
    let lanes = lanes_of(format, finite_exponent(1), &[1.0], LANE_BLOCK);
    assert!(lanes.as_chunks::<4>().0[1..].iter().all(|lane| u32::from_le_bytes(*lane) == format.bias()));
    let zero = lanes_of(format, Exponent::ZERO, &[5.0; 3], LANE_BLOCK);
    assert!(zero.as_chunks::<4>().0.iter().all(|lane| u32::from_le_bytes(*lane) == format.bias()));
}

#[test]
fn every_number_of_workers_fits_32_bits() {
    for workers in 1..=MAX_WORKERS {
        let format = format_of(workers);
        assert!(format.guard_bits() >= 4);
        let largest_lane = 2 * u64::from(format.bias()) - (1 << format.guard_bits());
        assert!(largest_lane * workers as u64 <= u64::from(u32::MAX), "{workers}");
    }
    for workers in [0, 257, usize::MAX] {
        assert!(
            Format::for_workers(workers).expect_err("refused").to_string().contains(&workers.to_string())
        );
    }
}
