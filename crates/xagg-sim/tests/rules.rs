//! Every rule of the checkers holds in a few hundred random jobs (thousands: `cargo xtask sim`), and in some that are made for one
//! rule. What the sums must be comes from [`xagg_sim::inputs`], which computes them in another way.

use std::time::Duration;

use xagg_proto::worker::{Missing, Phase, WorkerError};
use xagg_sim::inputs::{Expected, expected, gradient, places};
use xagg_sim::scenario::{Incident, Scenario, Values};
use xagg_sim::table::{gigabit, of};
use xagg_sim::{Outcome, random, run};

const SECOND: u64 = 1_000_000;

fn succeed(scenario: &Scenario) -> Outcome {
    assert!(scenario.must_succeed(), "every failure is a violation");
    run(scenario).unwrap_or_else(|violation| panic!("{violation}"))
}

#[test]
fn sums_are_exact_and_identical_under_loss_duplication_damage_and_reordering() {
    for seed in 0..300 {
        run(&random::scenario(seed)).unwrap_or_else(|violation| {
            panic!("{violation}; replay: cargo xtask sim --first {seed} --seeds 1")
        });
    }
}

#[test]
fn nan_and_infinity_come_back_as_nan_in_their_fragment_only() {
    let values = Values { spread: 2, zero: 0.1, nonfinite: 0.1 };
    let scenario = Scenario { values, ..of(3, &gigabit()) };
    let gradients: Vec<_> = (0..3).map(|rank| gradient(&scenario, rank, 0)).collect();
    let places = places(&scenario);
    let nonfinite = places
        .iter()
        .filter(|place| expected(&scenario.job(), &gradients, **place) == Expected::Nonfinite)
        .count();
    assert!((100..places.len() - 100).contains(&nonfinite), "{nonfinite} of {}", places.len());
    let outcome = succeed(&scenario);
    assert!(outcome.ranks.iter().all(|rank| rank.stats.nonfinite == nonfinite as u64));
}

#[test]
fn the_mean_divides_by_the_sum_of_weights() {
    let mut scenario = of(3, &gigabit());
    // Every other operation is a mean.
    scenario.operations = vec![100, 100];
    for (worker, weight) in scenario.workers.iter_mut().zip([1, 2, 5]) {
        worker.weight = weight;
    }
    let outcome = succeed(&scenario);
    assert!(outcome.ranks.iter().all(|rank| rank.ends == [Ok(()), Ok(())]));
}

#[test]
fn whom_the_others_miss_is_named() {
    // Before it is let in, and in the middle.
    for at in [1, 1500] {
        let incidents = vec![Incident::CrashWorker { rank: 1, at, restart: None }];
        let scenario = Scenario { incidents, timeout: 2 * SECOND, ..of(3, &gigabit()) };
        let outcome = run(&scenario).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(outcome.finished < Duration::from_secs(3), "{:?}", outcome.finished);
        for rank in [0, 2] {
            let [Err(WorkerError::Stalled { phase, missing, operation, .. })] = &outcome.ranks[rank].ends[..]
            else {
                panic!("{:?}", outcome.ranks[rank].ends)
            };
            assert_eq!((*phase, missing), (Phase::Waiting, &Missing(Some(vec![1]))));
            assert!(operation.contains("operation 0"), "{operation}");
        }
    }
}

/// Whoever knows the addresses can forge an ICMP message: it has no cookie.
#[test]
fn a_claim_that_the_port_is_closed_ends_nothing_while_the_aggregator_answers() {
    let claims = Incident::Claims { rank: 0, at: 0, lasting: 8 * SECOND };
    // While rank 0 pushes, while it waits for rank 1, and while results come; and when it wakes up after a pause.
    let pause = Incident::Pause { rank: 0, at: 2 * SECOND, lasting: 3 * SECOND };
    for incidents in [vec![claims], vec![claims, pause]] {
        let mut scenario = Scenario { incidents, ..of(2, &gigabit()) };
        scenario.workers[1].start = 6 * SECOND;
        succeed(&scenario);
    }
}
