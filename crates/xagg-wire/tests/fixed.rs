//! Block floating point keeps its promises for any input (WIRE section 2).

use proptest::prelude::*;
use xagg_wire::fixed::{
    Exponent, Format, Magnitude, add_lanes, copy_lanes, dequantise, magnitude, quantise, shift_lanes,
    write_lanes,
};
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

fn fragment() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        prop::collection::vec(finite(), 1..=LANE_BLOCK),
        (prop::collection::vec(-1.0_f32..1.0, 1..=LANE_BLOCK), -149..128_i32)
            .prop_map(|(values, scale)| values.iter().map(|value| value * 2.0_f32.powi(scale)).collect()),
    ]
}

fn fragments() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1_usize..=12)
        .prop_flat_map(|workers| prop::collection::vec(prop::collection::vec(finite(), LANE_BLOCK), workers))
}

fn own_exponent(values: &[f32]) -> Exponent {
    match magnitude(values) {
        Magnitude::Finite(exponent) => exponent,
        Magnitude::Zero => Exponent::ZERO,
        Magnitude::Nonfinite => panic!("the test makes finite values only"),
    }
}

fn lanes_of(format: Format, exponent: Exponent, values: &[f32]) -> Vec<u8> {
    let mut lanes = vec![0; 4 * LANE_BLOCK];
    quantise(format, exponent, values, &mut lanes);
    lanes
}

/// Sums contributions in this order as an aggregator does; lanes and exponent of the sum, or the exponent of the second phase.
fn aggregate(
    format: Format,
    contributions: &[(Exponent, Vec<u8>)],
) -> Result<(Exponent, Vec<u32>), Exponent> {
    let mut bank = vec![0; LANE_BLOCK];
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

/// Both phases.
fn all_reduce(format: Format, fragments: &[Vec<f32>], order: &[usize]) -> (Exponent, Vec<f32>) {
    let contributions = |exponent_of: &dyn Fn(&[f32]) -> Exponent| -> Vec<(Exponent, Vec<u8>)> {
        let contribution = |rank: &usize| {
            let exponent = exponent_of(&fragments[*rank]);
            (exponent, lanes_of(format, exponent, &fragments[*rank]))
        };
        order.iter().map(contribution).collect()
    };
    let (exponent, bank) = aggregate(format, &contributions(&own_exponent)).unwrap_or_else(|largest| {
        aggregate(format, &contributions(&|_| largest)).expect("one exponent has no spread")
    });
    let mut lanes = vec![0; 4 * bank.len()];
    write_lanes(&bank, &mut lanes);
    let mut values = vec![0.0; bank.len()];
    dequantise(format, exponent, order.len() as u32, 1, &lanes, &mut values);
    (exponent, values)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn the_error_of_a_sum_is_within_its_bound(fragments in fragments()) {
        let workers = fragments.len();
        let format = Format::for_workers(workers).expect("in range");
        let order: Vec<usize> = (0..workers).collect();
        let (exponent, sums) = all_reduce(format, &fragments, &order);
        let bound = format.error_bound(exponent, workers as u32);
        for (lane, sum) in sums.iter().enumerate() {
            // Exact: at most 12 terms; where f64 rounds, the bound is far above its last place.
            let exact: f64 = fragments.iter().map(|values| f64::from(values[lane])).sum();
            if !sum.is_finite() {
                prop_assert!(exact.abs() + bound >= f64::from(f32::MAX), "{sum} for {exact}");
                continue;
            }
            let rounding = f64::from(sum.abs()) * f64::from(f32::EPSILON) + 2.0_f64.powi(-149);
            let error = (f64::from(*sum) - exact).abs();
            prop_assert!(error <= bound + rounding, "{error} > {bound}");
        }
    }

    #[test]
    fn the_order_of_arrival_does_not_matter(fragments in fragments(), seed in any::<u64>()) {
        let workers = fragments.len();
        let format = Format::for_workers(workers).expect("in range");
        let mut order: Vec<usize> = (0..workers).collect();
        let first = all_reduce(format, &fragments, &order);
        for turn in 0..6 {
            order.sort_by_key(|rank| (seed ^ turn).wrapping_mul(*rank as u64 * 2 + 1).rotate_left(17));
            let again = all_reduce(format, &fragments, &order);
            prop_assert_eq!(first.0, again.0);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&first.1), bits(&again.1));
        }
    }

    #[test]
    fn a_sum_is_that_of_the_quantised_values(
        values in prop::collection::vec(prop::collection::vec(-1.0_f32..1.0, LANE_BLOCK), 2..=6),
        scales in prop::collection::vec(0..5_i32, 6),
    ) {
        let format = Format::for_workers(values.len()).expect("in range");
        let scaled = |(values, scale): (&Vec<f32>, &i32)| -> Vec<f32> {
            values.iter().map(|value| value * 2.0_f32.powi(*scale)).collect()
        };
        let fragments: Vec<Vec<f32>> = values.iter().zip(&scales).map(scaled).collect();
        let exponents: Vec<i32> =
            fragments.iter().map(|values| i32::from(own_exponent(values).to_wire())).collect();
        let spread = exponents.iter().max().zip(exponents.iter().min()).map_or(0, |(most, least)| most - least);
        prop_assume!(spread <= format.guard_bits() as i32);
        let order: Vec<usize> = (0..fragments.len()).collect();
        let (_, sums) = all_reduce(format, &fragments, &order);
        for (lane, sum) in sums.iter().enumerate() {
            let mut exact = 0.0_f64;
            for (values, exponent) in fragments.iter().zip(&exponents) {
                let step = 2.0_f64.powi(exponent - format.value_bits() as i32 + 1);
                let limit = 2.0_f64.powi(format.value_bits() as i32 - 1) - 1.0;
                exact += (f64::from(values[lane]) / step).round_ties_even().clamp(-limit, limit) * step;
            }
            prop_assert_eq!(*sum, exact as f32);
        }
    }

    #[test]
    fn one_worker_gets_its_own_values_back(values in fragment()) {
        // 24 bits hold what an f32 has, relative to the largest value of the fragment.
        let format = Format::for_workers(1).expect("in range");
        let exponent = own_exponent(&values);
        let mut back = vec![0.0; values.len()];
        dequantise(format, exponent, 1, 1, &lanes_of(format, exponent, &values), &mut back);
        let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        for (value, back) in values.iter().zip(&back) {
            prop_assert!((value - back).abs() <= largest * f32::EPSILON, "{value} came back as {back}");
        }
    }

    #[test]
    fn any_bits_are_quantised_without_panic(
        bits in prop::collection::vec(any::<u32>(), 0..=LANE_BLOCK),
        exponent in -149..=128_i16,
        workers in 1..=MAX_WORKERS,
    ) {
        let format = Format::for_workers(workers).expect("in range");
        let values: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
        let lanes = lanes_of(format, Exponent::finite(exponent).expect("legal"), &values);
        for lane in lanes.as_chunks::<4>().0 {
            prop_assert!(u64::from(u32::from_le_bytes(*lane)) * workers as u64 <= u64::from(u32::MAX));
        }
        let _any = magnitude(&values);
    }
}

#[test]
fn nan_and_infinity_are_not_finite_wherever_they_are() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in 0..5 {
            let mut values = [1.0; 5];
            values[place] = bad;
            assert_eq!(magnitude(&values), Magnitude::Nonfinite);
        }
    }
}

#[test]
fn exponents_are_the_smallest_that_bound_the_values() {
    let exponent = |value: f32| match magnitude(&[value]) {
        Magnitude::Finite(exponent) => exponent.to_wire(),
        other => panic!("{other:?}"),
    };
    assert_eq!(exponent(1.0), 1);
    assert_eq!(exponent(-0.5), 0);
    assert_eq!(exponent(0.75), 0);
    assert_eq!(exponent(f32::MAX), 128);
    assert_eq!(exponent(f32::MIN_POSITIVE), -125);
    assert_eq!(exponent(f32::from_bits(1)), -148);
    assert_eq!(exponent(f32::from_bits(0x40_0000)), -126);
    assert_eq!(magnitude(&[0.0, -0.0]), Magnitude::Zero);
    assert_eq!(magnitude(&[]), Magnitude::Zero);
}

#[test]
fn the_largest_value_of_an_exponent_is_clamped_not_wrapped() {
    for workers in [1, 3, 16, 17, 256] {
        let format = Format::for_workers(workers).expect("in range");
        let value = 1.0_f32.next_down();
        let lanes = lanes_of(format, Exponent::finite(0).expect("legal"), &[value, -value, -1.0]);
        let lane = |index: usize| u32::from_le_bytes(lanes.as_chunks::<4>().0[index]);
        let top = ((1 << (format.value_bits() - 1)) - 1) << format.guard_bits();
        assert_eq!(lane(0), format.bias() + top);
        assert_eq!(lane(1), format.bias() - top);
        assert_eq!(lane(2), format.bias() - top, "too large for the exponent");
    }
}

#[test]
fn the_tail_is_zero() {
    let format = Format::for_workers(4).expect("in range");
    let lanes = lanes_of(format, Exponent::finite(1).expect("legal"), &[1.0]);
    assert!(lanes.as_chunks::<4>().0[1..].iter().all(|lane| u32::from_le_bytes(*lane) == format.bias()));
    let zero = lanes_of(format, Exponent::ZERO, &[5.0; 3]);
    assert!(zero.as_chunks::<4>().0.iter().all(|lane| u32::from_le_bytes(*lane) == format.bias()));
}

#[test]
fn every_number_of_workers_fits_32_bits() {
    for workers in 1..=MAX_WORKERS {
        let format = Format::for_workers(workers).expect("in range");
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

#[test]
fn the_mean_is_rounded_once() {
    let format = Format::for_workers(3).expect("in range");
    let exponent = Exponent::finite(1).expect("legal");
    let contribution = (exponent, lanes_of(format, exponent, &[1.0]));
    let (_, bank) =
        aggregate(format, &[contribution.clone(), contribution.clone(), contribution]).expect("one phase");
    let mut lanes = vec![0; 4 * LANE_BLOCK];
    write_lanes(&bank, &mut lanes);
    let mut mean = [0.0];
    dequantise(format, exponent, 3, 7, &lanes, &mut mean);
    assert_eq!(mean[0], (3.0_f64 / 7.0) as f32);
}
