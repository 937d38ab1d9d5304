//! A worker with a rate in the job file never sends faster, and loses little by it.

use std::time::Duration;

use xagg_sim::Cluster;
use xagg_sim::scenario::Scenario;
use xagg_sim::table::{gigabit, of};
use xagg_wire::{Family, Rate};

const RATE: Rate = Rate::mbit(200);
const FRAGMENTS: usize = 10_000;
const LANES: usize = 352;
const SPAN: Duration = Duration::from_millis(50);
/// What it may send at once after a pause.
const BURST: Duration = Duration::from_millis(4);

/// Two workers on links of 1 Gbit/s; the last one is to send at a fifth of that.
fn scenario() -> Scenario {
    let mut scenario = of(2, &gigabit());
    scenario.workers[1].rate = Some(RATE);
    Scenario { lanes: LANES, slots: FRAGMENTS as u32, operations: vec![LANES * FRAGMENTS], ..scenario }
}

/// What a rank has sent, in bytes on the wire.
fn sent(cluster: &Cluster, rank: usize) -> u64 {
    let payload = xagg_wire::full_len(LANES);
    cluster.stats(rank).bytes_sent / payload as u64 * Family::V4.wire_len(LANES) as u64
}

#[test]
fn a_worker_keeps_to_its_rate() {
    let scenario = scenario();
    let mut cluster = Cluster::new(&scenario);
    let (mut since, mut before, mut spans) = (Duration::ZERO, 0, 0);
    while cluster.step().unwrap_or_else(|violation| panic!("{violation}")) {
        let elapsed = cluster.now() - since;
        if elapsed >= SPAN {
            let bytes = sent(&cluster, 1) - before;
            assert!(bytes <= RATE.bytes_in(elapsed + BURST), "{bytes} bytes in {elapsed:?}");
            (since, before, spans) = (cluster.now(), sent(&cluster, 1), spans + 1);
        }
    }
    let all = (FRAGMENTS * Family::V4.wire_len(LANES)) as f64;
    let least = all * 8.0 / RATE.bits_per_second() as f64;
    let took = cluster.now().as_secs_f64();
    println!("{took:.4} s where {least:.4} s are needed, {spans} spans");
    assert!(spans > 6 && took < 1.05 * least, "{took} s where {least} s are needed, {spans} spans");
    assert_eq!(cluster.carried().0.overflows, 0, "nothing waits for a link that is faster");
}

#[test]
fn the_others_do_not_wait_for_it() {
    let scenario = scenario();
    let mut cluster = Cluster::new(&scenario);
    while cluster.stats(0).packets_sent < FRAGMENTS as u64 {
        assert!(cluster.step().unwrap_or_else(|violation| panic!("{violation}")), "over too early");
    }
    assert!(sent(&cluster, 0) > 4 * sent(&cluster, 1), "rank 0 has pushed all, rank 1 its fifth");
}
