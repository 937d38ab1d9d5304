//! Slow and silent ranks: nobody sends anything twice because of them, and everybody knows whom it waits for.

use std::time::Duration;

use xagg_sim::scenario::{Incident, Link, Scenario, Way};
use xagg_sim::table::{gigabit, of};
use xagg_sim::{Cluster, Outcome};
use xagg_wire::Counter;

const SECOND: u64 = 1_000_000;

/// Workers on links that lose nothing, one gradient of so many fragments.
fn scenario(workers: usize, fragments: usize) -> Scenario {
    let scenario = of(workers, &Link { queue: 2 * fragments, mark_above: None, ..gigabit() });
    let hub = Link { queue: 2 * fragments * workers, ..scenario.to_aggregator.clone() };
    Scenario {
        slots: fragments as u32,
        operations: vec![scenario.lanes * fragments],
        ring: 4096,
        to_aggregator: hub.clone(),
        from_aggregator: hub,
        ..scenario
    }
}

fn step(cluster: &mut Cluster) -> bool {
    cluster.step().unwrap_or_else(|violation| panic!("{violation}"))
}

fn run_until(cluster: &mut Cluster, micros: u64) {
    while cluster.now() < Duration::from_micros(micros) {
        assert!(step(cluster), "over too early");
    }
}

/// What a rank has waited for, in whole milliseconds.
fn waited(cluster: &Cluster, rank: usize) -> Vec<(u16, u128)> {
    cluster.waits(rank).spent.iter().map(|(rank, spent)| (*rank, spent.as_millis())).collect()
}

fn assert_nothing_twice(cluster: &Cluster, ranks: usize, fragments: u64) {
    for rank in 0..ranks {
        let stats = cluster.stats(rank);
        assert_eq!((stats.packets_sent, stats.retransmissions), (fragments, 0), "rank {rank}: {stats:?}");
    }
    let counters = cluster.aggregator().expect("runs").counters(5, 1).expect("the job");
    assert_eq!((counters[Counter::Duplicate.index()], counters[Counter::Stale.index()]), (0, 0));
}

#[test]
fn a_straggler_never_looks_like_loss() {
    let mut scenario = scenario(4, 1500);
    scenario.workers[3].start = 2 * SECOND;
    let mut cluster = Cluster::new(&scenario);
    while step(&mut cluster) {}
    assert_nothing_twice(&cluster, 4, 1500);
}

#[test]
fn a_paused_worker_causes_no_retransmission_and_every_other_attributes_its_wait_to_it() {
    const FRAGMENTS: u64 = 3000;
    for begin in (300..1300).step_by(50) {
        let incidents = vec![Incident::Pause { rank: 3, at: begin, lasting: 2 * SECOND }];
        let mut scenario = Scenario { seed: begin, incidents, ..scenario(4, FRAGMENTS as usize) };
        scenario.workers[3].receive_queue = 4000;
        let mut cluster = Cluster::new(&scenario);
        run_until(&mut cluster, begin + 1_900_000);
        let progress: Vec<_> =
            cluster.aggregator().expect("runs").progress(5, 1).map(|progress| progress.sequences).collect();
        assert_eq!(progress[..3], [FRAGMENTS; 3], "the others have pushed everything meanwhile");
        assert!((1..FRAGMENTS).contains(&progress[3]), "rank 3 was in the middle: {progress:?}");
        assert!((0..3).all(|rank| cluster.waits(rank).now == [3]), "all know whom they wait for");
        while step(&mut cluster) {}
        assert_nothing_twice(&cluster, 4, FRAGMENTS);
        for rank in 0..3 {
            let waited = waited(&cluster, rank);
            assert!(matches!(waited[..], [(3, 1950..2050)]), "rank {rank} waited: {waited:?}");
        }
        assert_eq!(waited(&cluster, 3), [], "the paused one waited for nobody");
    }
}

#[test]
fn a_slow_worker_is_waited_for_although_results_keep_coming() {
    const FRAGMENTS: usize = 20_000;
    // Never silent for so long that anybody misses results.
    let pause = |number: u64| Incident::Pause { rank: 2, at: 20_000 * number + 500, lasting: 19_900 };
    let scenario = Scenario { incidents: (0..100).map(pause).collect(), ..scenario(3, FRAGMENTS) };
    let mut cluster = Cluster::new(&scenario);
    run_until(&mut cluster, SECOND / 2);
    let results = cluster.stats(0).results;
    assert!((500..FRAGMENTS as u64).contains(&results), "{results} results have come meanwhile");
    assert_eq!(cluster.waits(0).now, [2]);
    while step(&mut cluster) {}
    let took = cluster.now().as_millis();
    for rank in 0..2 {
        let waited = waited(&cluster, rank);
        assert!(
            matches!(waited[..], [(2, spent)] if (took - 200..took).contains(&spent)),
            "{took}: {waited:?}"
        );
    }
}

#[test]
fn of_two_stragglers_each_gets_its_own_time() {
    let mut scenario = scenario(4, 100);
    (scenario.workers[2].start, scenario.workers[3].start) = (SECOND, 3 * SECOND);
    let mut cluster = Cluster::new(&scenario);
    while step(&mut cluster) {}
    for rank in 0..2 {
        let waited = waited(&cluster, rank);
        assert!(matches!(waited[..], [(2, 500..1000), (3, 2900..3100)]), "{waited:?}");
    }
    let waited_by_the_first = waited(&cluster, 2);
    assert!(matches!(waited_by_the_first[..], [(3, 1900..2100)]), "{waited_by_the_first:?}");
    assert_eq!(waited(&cluster, 3), []);
}

#[test]
fn results_lost_in_a_row_are_pulled_at_the_speed_of_the_network() {
    const FRAGMENTS: usize = 10_000;
    // Rank 1 comes later, so that rank 0 has all receipts and hears none of the results.
    let deaf = Incident::Partition { rank: 0, at: 1_900_000, lasting: 2_100_000, way: Way::Down };
    let mut scenario = Scenario { incidents: vec![deaf], ..scenario(2, FRAGMENTS) };
    scenario.workers[1].start = 2 * SECOND;
    let Outcome { finished, ranks, .. } =
        xagg_sim::run(&scenario).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(ranks[0].down.lost >= FRAGMENTS as u64 / 2, "{:?}", ranks[0].down);
    assert!(ranks[0].stats.pulls < 2 * FRAGMENTS as u64, "{:?}", ranks[0].stats);
    assert!(finished < Duration::from_secs(7), "{FRAGMENTS} results were pulled by {finished:?}");
}
