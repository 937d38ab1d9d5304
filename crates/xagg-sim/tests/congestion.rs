//! Congestion control over bottlenecks: they are full, shared fairly, and do not overflow.

use std::time::Duration;

use xagg_sim::scenario::{Link, Scenario};
use xagg_sim::table::{fairness, gigabit, incast, of};
use xagg_sim::{Cluster, run};

/// Longer than a round trip with a queue at the mark.
const ROUND_TRIP: Duration = Duration::from_micros(600);

/// With packets of the usual length, so many fragments, and the little unsteadiness that real machines have: without it packets
/// meet the same queue for ever.
fn realistic(fragments: usize, mut scenario: Scenario) -> Scenario {
    scenario.workers.iter_mut().for_each(|worker| worker.up.jitter = 20);
    Scenario { lanes: 352, slots: fragments as u32, operations: vec![352 * fragments], ..scenario }
}

/// How things stand at some time before anybody is done.
struct Halfway {
    /// The share of the bottleneck's time that it was sending since the first quarter.
    utilisation: f64,
    /// Jain's index of what the workers got through since then.
    fairness: f64,
}

impl Halfway {
    fn check(&self, who: &str) {
        println!("{who}: utilisation {:.4}, fairness {:.4}", self.utilisation, self.fairness);
        assert!(self.utilisation >= 0.95, "{who}: utilisation {}", self.utilisation);
        assert!(self.fairness >= 0.95, "{who}: fairness {}", self.fairness);
    }
}

/// Runs until one worker has sent nine tenths of its fragments. The bottleneck is the link that all packets go over.
fn halfway(scenario: &Scenario, rate: f64) -> Halfway {
    let fragments = scenario.operations[0].div_ceil(scenario.lanes) as u64;
    let ranks = 0..scenario.workers.len();
    let mut cluster = Cluster::new(scenario);
    let sent = |cluster: &Cluster| -> Vec<u64> {
        ranks
            .clone()
            .map(|rank| cluster.stats(rank))
            .map(|stats| stats.packets_sent - stats.retransmissions)
            .collect()
    };
    let mut start = None;
    loop {
        for _ in 0..100 {
            assert!(cluster.step().unwrap_or_else(|violation| panic!("{violation}")), "over too early");
        }
        let now = cluster.now();
        let all = sent(&cluster);
        if start.is_none() && now >= 10 * ROUND_TRIP && all.iter().any(|sent| *sent >= fragments / 4) {
            start = Some((now, cluster.carried().0.bytes, all.clone()));
        }
        if let Some((since, bytes, before)) = &start
            && all.iter().any(|sent| *sent >= fragments * 9 / 10)
        {
            let bits = (cluster.carried().0.bytes - bytes) as f64 * 8.0;
            let got: Vec<f64> = all.iter().zip(before).map(|(now, before)| (now - before) as f64).collect();
            let utilisation = bits / (rate * 1e6 * (now - *since).as_secs_f64());
            return Halfway { utilisation, fairness: fairness(&got) };
        }
    }
}

#[test]
fn a_bottleneck_is_full_and_shared_fairly() {
    for (workers, mark) in [(1, 20), (2, 20), (4, 65), (8, 20), (8, 65), (16, 65)] {
        let halfway = halfway(&realistic(24_000 / workers, incast(workers, Some(mark))), 1000.0);
        halfway.check(&format!("{workers} workers, marks above {mark}"));
    }
}

#[test]
fn a_bottleneck_without_marks_is_full_and_shared_fairly() {
    for workers in [1, 8] {
        let halfway = halfway(&realistic(80_000 / workers, incast(workers, None)), 1000.0);
        halfway.check(&format!("{workers} workers without marks"));
    }
}

#[test]
fn eight_workers_into_one_link_lose_nothing_after_ten_round_trips() {
    let outcome =
        run(&realistic(1500, incast(8, Some(65)))).unwrap_or_else(|violation| panic!("{violation}"));
    let last = outcome.to_aggregator.last_overflow.map(|at| at.since(xagg_proto::Time::ZERO));
    println!("{:?}", outcome.to_aggregator);
    assert!(last.is_none_or(|last| last <= 10 * ROUND_TRIP), "a full queue after {last:?}");
}

#[test]
fn sixty_four_workers_into_one_link_do_not_collapse() {
    for marks in [Some(65), None] {
        let outcome =
            run(&realistic(300, incast(64, marks))).unwrap_or_else(|violation| panic!("{violation}"));
        let bits = 64.0 * 300.0 * (64.0 + 1408.0 + 66.0) * 8.0;
        let goodput = bits / outcome.finished.as_secs_f64() / 1e9;
        println!("marks above {marks:?}: goodput {goodput:.4}, {:?}", outcome.to_aggregator);
        assert!(goodput >= 0.9, "a goodput of {goodput} with marks above {marks:?}");
    }
}

#[test]
fn results_do_not_overrun_a_slow_way_down() {
    let down = Link { rate: Some(250.0), ..gigabit() };
    let mut scenario = of(4, &gigabit());
    scenario.workers[3].down = down;
    let outcome = run(&realistic(1500, scenario)).unwrap_or_else(|violation| panic!("{violation}"));
    let slow = &outcome.ranks[3];
    println!("{:?}, pulls {}", slow.down, slow.stats.pulls);
    // It is its last contribution that makes a result: its own pace is that of its results.
    assert!(slow.down.overflows * 20 < slow.down.packets, "{:?}", slow.down);
    let bound = 1500.0 * (64.0 + 1408.0 + 66.0) * 8.0 / 250e6;
    assert!(outcome.finished.as_secs_f64() < 1.1 * bound, "{:?}, {bound} s at best", outcome.finished);
}
