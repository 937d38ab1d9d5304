//! Workers and the aggregator's twin over a network that loses, doubles, damages and reorders packets. Every run is
//! decided by its seed; a failure prints it, and `XAGG_SEED=N cargo test -p xagg-proto --test simulation` runs it alone.

mod common;

use std::time::Duration;

use common::{Faults, Outcome, Simulation, job};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use xagg_proto::Job;
use xagg_proto::worker::{Missing, Phase, WorkerError};
use xagg_wire::fixed::{Magnitude, magnitude};
use xagg_wire::{Counter, Reduction};

const SECONDS: Duration = Duration::from_secs(1);

/// Runs `test` with many seeds, or with the one in `XAGG_SEED`.
fn with_seeds(seeds: u64, test: impl Fn(u64)) {
    let chosen = std::env::var("XAGG_SEED").ok().map(|seed| seed.parse().expect("XAGG_SEED is a number"));
    let range = chosen.map_or(0..seeds, |seed: u64| seed..seed + 1);
    for seed in range {
        let guard = SeedOnPanic(seed);
        test(seed);
        std::mem::forget(guard);
    }
}

struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        eprintln!("failed with XAGG_SEED={}", self.0);
    }
}

/// The sum as the wire defines it, computed in another way: per fragment, in f64, which holds every intermediate exactly.
fn reference(job: &Job, inputs: &[Vec<f32>]) -> Vec<f32> {
    let mut result = vec![];
    for start in (0..inputs[0].len()).step_by(job.lanes) {
        let end = (start + job.lanes).min(inputs[0].len());
        let fragments: Vec<&[f32]> = inputs.iter().map(|values| &values[start..end]).collect();
        let magnitudes: Vec<Magnitude> = fragments.iter().map(|values| magnitude(values)).collect();
        if magnitudes.contains(&Magnitude::Nonfinite) {
            result.extend((start..end).map(|_| f32::NAN));
            continue;
        }
        let exponent = |magnitude: &Magnitude| match magnitude {
            Magnitude::Finite(exponent) => Some(i32::from(exponent.to_wire())),
            _ => None,
        };
        let exponents: Vec<i32> = magnitudes.iter().filter_map(exponent).collect();
        let (least, most) = (exponents.iter().min().copied(), exponents.iter().max().copied());
        let spread = most.unwrap_or(0) - least.unwrap_or(0);
        let redo = spread > job.format.guard_bits() as i32;
        let mut sums = vec![0.0_f64; end - start];
        for (values, own) in fragments.iter().zip(&magnitudes) {
            let Some(own) = exponent(own) else { continue };
            let e = if redo { most.unwrap_or(own) } else { own };
            let bits = job.format.value_bits() as i32;
            let step = 2.0_f64.powi(e - (bits - 1));
            let limit = 2.0_f64.powi(bits - 1) - 1.0;
            for (sum, value) in sums.iter_mut().zip(*values) {
                let lane = (f64::from(*value) / step).round_ties_even().clamp(-limit, limit);
                *sum += lane * step;
            }
        }
        result.extend(sums.iter().map(|sum| *sum as f32));
    }
    result
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

fn random_values(rng: &mut StdRng, length: usize) -> Vec<f32> {
    let scale = 2.0_f32.powi(rng.random_range(-20..20));
    (0..length).map(|_| rng.random_range(-1.0..1.0) * scale).collect()
}

/// One random scenario: workers, slots, lengths, magnitudes, start times; several operations in flight.
fn random_scenario(faults: Faults, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
    let workers = rng.random_range(1..=6);
    let slots = [1, 2, 3, 8, 64, 1000][rng.random_range(0..6)];
    let job = job(workers, 16, slots, 30.0);
    let mut simulation = Simulation::new(job.clone(), faults, seed);
    let lengths: Vec<usize> = (0..rng.random_range(1..5)).map(|_| rng.random_range(1..600)).collect();
    let mut inputs = vec![];
    let starts: Vec<Duration> =
        (0..workers).map(|_| Duration::from_micros(rng.random_range(0..200_000))).collect();
    for length in &lengths {
        let values: Vec<Vec<f32>> = (0..workers).map(|_| random_values(&mut rng, *length)).collect();
        for (rank, values) in values.iter().enumerate() {
            simulation.submit(starts[rank], rank, values.clone(), Reduction::Sum, 1);
        }
        inputs.push(values);
    }
    let outcomes = simulation.run(120 * SECONDS);
    for (operation, inputs) in inputs.iter().enumerate() {
        let expected = bits(&reference(&job, inputs));
        for (rank, outcome) in outcomes.iter().enumerate() {
            let result = outcome[operation].as_ref().unwrap_or_else(|error| panic!("rank {rank}: {error}"));
            assert!(
                bits(result) == expected,
                "rank {rank}, operation {operation} differs from the exact sum"
            );
        }
    }
}

#[test]
fn sums_are_exact_and_identical_on_a_perfect_network() {
    with_seeds(100, |seed| random_scenario(Faults::NONE, seed));
}

#[test]
fn sums_are_exact_and_identical_under_loss_duplication_damage_and_reordering() {
    with_seeds(300, |seed| random_scenario(Faults::HARSH, seed));
}

#[test]
fn a_straggler_never_looks_like_loss() {
    let mut simulation = Simulation::new(job(4, 16, 2000, 30.0), Faults::NONE, 1);
    for rank in 0..4 {
        let start = if rank == 3 { 2 * SECONDS } else { Duration::ZERO };
        simulation.submit(start, rank, vec![rank as f32; 16 * 1500], Reduction::Sum, 1);
    }
    let outcomes = simulation.run(10 * SECONDS);
    for (rank, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome[0].as_ref().expect("complete")[0].to_bits(), 6.0_f32.to_bits());
        let stats = simulation.stats(rank);
        assert_eq!((stats.retransmissions, stats.losses), (0, 0), "rank {rank}: {stats:?}");
        assert_eq!(stats.packets_sent, 1500);
    }
}

/// What the rank has waited for, in whole milliseconds.
fn waited(simulation: &Simulation, rank: usize) -> Vec<(u16, u128)> {
    simulation.waits(rank).spent.iter().map(|(rank, spent)| (*rank, spent.as_millis())).collect()
}

#[test]
fn a_paused_worker_causes_no_retransmission_and_every_other_attributes_its_wait_to_it() {
    const FRAGMENTS: u64 = 3000;
    with_seeds(20, |seed| {
        let mut simulation = Simulation::new(job(4, 16, 4000, 30.0), Faults::NONE, seed);
        for rank in 0..4 {
            simulation.submit(Duration::ZERO, rank, vec![1.0; 16 * FRAGMENTS as usize], Reduction::Sum, 1);
        }
        let begin = Duration::from_micros(300 + 50 * seed);
        simulation.pause(3, begin..begin + 2 * SECONDS);
        simulation.run_until(begin + Duration::from_millis(1900));
        let progress: Vec<_> =
            simulation.aggregator().progress(5, 1).map(|progress| progress.sequences).collect();
        assert_eq!(progress[..3], [FRAGMENTS; 3], "the others have pushed everything meanwhile");
        assert!((1..FRAGMENTS).contains(&progress[3]), "rank 3 was in the middle: {progress:?}");
        assert!((0..3).all(|rank| simulation.waits(rank).now == [3]), "all know whom they wait for");

        let outcomes = simulation.run(60 * SECONDS);
        for (rank, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome[0].as_ref().expect("complete")[0].to_bits(), 4.0_f32.to_bits());
            let stats = simulation.stats(rank);
            assert_eq!((stats.packets_sent, stats.retransmissions), (FRAGMENTS, 0), "rank {rank}: {stats:?}");
        }
        let counters = simulation.aggregator().counters(5, 1).expect("the job");
        assert_eq!((counters[Counter::Duplicate.index()], counters[Counter::Stale.index()]), (0, 0));
        for rank in 0..3 {
            let waited = waited(&simulation, rank);
            assert!(matches!(waited[..], [(3, 1950..2050)]), "rank {rank} waited: {waited:?}");
        }
        assert_eq!(waited(&simulation, 3), [], "the paused one waited for nobody");
    });
}

#[test]
fn a_slow_worker_is_waited_for_although_results_keep_coming() {
    const FRAGMENTS: usize = 20_000;
    let mut simulation = Simulation::new(job(3, 16, 20_000, 30.0), Faults::NONE, 1);
    for rank in 0..3 {
        simulation.submit(Duration::ZERO, rank, vec![1.0; 16 * FRAGMENTS], Reduction::Sum, 1);
    }
    // Never silent for so long that anybody misses results.
    for pause in 0..100 {
        let begin = Duration::from_millis(20 * pause) + Duration::from_micros(500);
        simulation.pause(2, begin..begin + Duration::from_micros(19_900));
    }
    simulation.run_until(Duration::from_millis(500));
    let results = simulation.stats(0).results;
    assert!((1000..FRAGMENTS as u64).contains(&results), "{results} results have come meanwhile");
    assert_eq!(simulation.waits(0).now, [2]);
    simulation.run(60 * SECONDS);
    let took = simulation.now().since(xagg_proto::Time::ZERO).as_millis();
    for rank in 0..2 {
        let waited = waited(&simulation, rank);
        assert!(
            matches!(waited[..], [(2, spent)] if (took - 200..took).contains(&spent)),
            "{took}: {waited:?}"
        );
    }
}

#[test]
fn of_two_stragglers_each_gets_its_own_time() {
    let mut simulation = Simulation::new(job(4, 16, 200, 30.0), Faults::NONE, 1);
    for (rank, start) in [0, 0, 1000, 3000].into_iter().enumerate() {
        simulation.submit(Duration::from_millis(start), rank, vec![1.0; 16 * 100], Reduction::Sum, 1);
    }
    simulation.run(60 * SECONDS);
    for rank in 0..2 {
        let waited = waited(&simulation, rank);
        assert!(matches!(waited[..], [(2, 500..1000), (3, 2900..3100)]), "{waited:?}");
    }
    let waited_by_the_first = waited(&simulation, 2);
    assert!(matches!(waited_by_the_first[..], [(3, 1900..2100)]), "{waited_by_the_first:?}");
    assert_eq!(waited(&simulation, 3), []);
}

#[test]
fn results_lost_in_a_row_are_pulled_at_the_speed_of_the_network() {
    const FRAGMENTS: usize = 10_000;
    let mut simulation = Simulation::new(job(2, 16, 20_000, 30.0), Faults::NONE, 1);
    for rank in 0..2 {
        // Rank 1 comes later, so that rank 0 has all receipts and hears none of the results.
        let start = Duration::from_millis(rank as u64 * 2000);
        simulation.submit(start, rank, vec![1.0; 16 * FRAGMENTS], Reduction::Sum, 1);
    }
    simulation.deafen(0, Duration::from_millis(1900)..Duration::from_secs(4));
    let outcomes = simulation.run(60 * SECONDS);
    assert!(outcomes.iter().all(|outcome| outcome[0].is_ok()));
    let stats = simulation.stats(0);
    assert!(stats.pulls < 2 * FRAGMENTS as u64, "{stats:?}");
    let took = simulation.now().since(xagg_proto::Time::ZERO);
    assert!(took < 7 * SECONDS, "{FRAGMENTS} results were pulled by {took:?}");
}

#[test]
fn the_mean_divides_by_the_sum_of_weights() {
    let mut simulation = Simulation::new(job(3, 16, 8, 30.0), Faults::NONE, 1);
    for (rank, weight) in [1, 2, 5].into_iter().enumerate() {
        simulation.submit(Duration::ZERO, rank, vec![8.0; 20], Reduction::Mean, weight);
    }
    for outcome in simulation.run(10 * SECONDS) {
        assert_eq!(outcome[0].as_ref().expect("complete"), &vec![3.0; 20]);
    }
}

#[test]
fn nan_and_infinity_come_back_as_nan_in_their_fragment_only() {
    let mut simulation = Simulation::new(job(2, 16, 8, 30.0), Faults::NONE, 1);
    let mut values = vec![1.0; 48];
    values[20] = f32::INFINITY;
    simulation.submit(Duration::ZERO, 0, values, Reduction::Sum, 1);
    simulation.submit(Duration::ZERO, 1, vec![1.0; 48], Reduction::Sum, 1);
    for outcome in simulation.run(10 * SECONDS) {
        let result = outcome[0].as_ref().expect("complete");
        assert!(result[16..32].iter().all(|value| value.is_nan()));
        assert!(result[..16].iter().chain(&result[32..]).all(|value| *value == 2.0));
    }
}

#[test]
fn exponents_too_far_apart_are_redone_once() {
    let mut simulation = Simulation::new(job(2, 16, 8, 30.0), Faults::NONE, 1);
    simulation.submit(Duration::ZERO, 0, vec![1.0e10; 16], Reduction::Sum, 1);
    simulation.submit(Duration::ZERO, 1, vec![1.0; 16], Reduction::Sum, 1);
    simulation.run(10 * SECONDS);
    assert_eq!(simulation.stats(0).redos, 1);
    let counters = simulation.aggregator().counters(5, 1).expect("the job");
    assert_eq!(counters[Counter::Redo.index()], 1);
    assert_eq!(counters[Counter::Broadcast.index()], 1);
}

fn only_error(outcome: &Outcome) -> &WorkerError {
    outcome[0].as_ref().expect_err("must fail")
}

#[test]
fn a_rank_that_never_arrives_is_named_within_the_timeout() {
    let mut simulation = Simulation::new(job(3, 16, 8, 2.0), Faults::NONE, 1);
    for rank in 0..2 {
        simulation.submit(Duration::ZERO, rank, vec![1.0; 100], Reduction::Sum, 1);
    }
    let outcomes = simulation.run(60 * SECONDS);
    assert!(simulation.now().since(xagg_proto::Time::ZERO) < 3 * SECONDS);
    for (rank, outcome) in outcomes.iter().enumerate().take(2) {
        let WorkerError::Stalled { rank: named, phase, missing, .. } = only_error(outcome) else {
            panic!("{outcome:?}")
        };
        assert_eq!(usize::from(*named), rank);
        assert_eq!(*phase, Phase::Waiting);
        assert_eq!(*missing, Missing(Some(vec![2])));
    }
}

#[test]
fn a_killed_worker_ends_the_others_within_the_timeout() {
    let mut simulation = Simulation::new(job(3, 16, 4, 2.0), Faults::HARSH, 1);
    for rank in 0..3 {
        simulation.submit(Duration::ZERO, rank, vec![1.0; 16 * 5000], Reduction::Sum, 1);
    }
    simulation.kill(Duration::from_millis(100), 1);
    let outcomes = simulation.run(60 * SECONDS);
    for outcome in [&outcomes[0], &outcomes[2]] {
        let WorkerError::Stalled { missing, operation, .. } = only_error(outcome) else {
            panic!("{outcome:?}")
        };
        assert_eq!(*missing, Missing(Some(vec![1])));
        assert!(operation.contains("operation 0"), "{operation}");
    }
}

#[test]
fn different_operations_are_an_error_with_both_signatures_at_both() {
    let mut simulation = Simulation::new(job(2, 16, 8, 5.0), Faults::NONE, 1);
    simulation.submit(Duration::ZERO, 0, vec![1.0; 100], Reduction::Sum, 1);
    simulation.submit(Duration::ZERO, 1, vec![1.0; 101], Reduction::Sum, 1);
    let outcomes = simulation.run(60 * SECONDS);
    let mut own = vec![];
    for outcome in &outcomes {
        let WorkerError::Mismatch { first_signature, other_signature, own_signature, .. } =
            only_error(outcome)
        else {
            panic!("{outcome:?}")
        };
        assert_ne!(first_signature, other_signature);
        assert!([first_signature, other_signature].contains(&own_signature));
        own.push(*own_signature);
    }
    assert_ne!(own[0], own[1]);
}

#[test]
fn an_empty_operation_and_a_bad_weight_are_refused() {
    let mut simulation = Simulation::new(job(1, 16, 8, 5.0), Faults::NONE, 1);
    simulation.submit(Duration::ZERO, 0, vec![], Reduction::Sum, 1);
    simulation.submit(Duration::ZERO, 0, vec![1.0], Reduction::Sum, 0);
    let outcomes = simulation.run(10 * SECONDS);
    assert_eq!(outcomes[0], [Err(WorkerError::Empty), Err(WorkerError::Weight(0))]);
}

/// Whoever knows the addresses can forge an ICMP message: it has no cookie.
#[test]
fn a_claim_that_the_port_is_closed_ends_nothing_while_the_aggregator_answers() {
    for faults in [Faults::NONE, Faults::HARSH] {
        let mut simulation = Simulation::new(job(2, 16, 4, 10.0), faults, 1);
        simulation.submit(Duration::ZERO, 0, vec![1.0; 16 * 500], Reduction::Sum, 1);
        simulation.submit(6 * SECONDS, 1, vec![2.0; 16 * 500], Reduction::Sum, 1);
        // While rank 0 pushes, while it waits for rank 1, and while results come.
        for number in 0..800 {
            simulation.claim_unreachable(Duration::from_millis(10 * number), 0);
        }
        for outcome in simulation.run(60 * SECONDS) {
            assert!(outcome == [Ok(vec![3.0; 16 * 500])], "{outcome:.200?}");
        }
    }
}
