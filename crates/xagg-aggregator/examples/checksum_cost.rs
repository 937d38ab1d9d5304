//! What the checksum costs from end to end: 100 MB summed over 4 workers in namespaces, with and without, in turn. Needs root.
//! `cargo run --release -p xagg-aggregator --example checksum_cost`

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Barrier;
use std::time::Instant;

use xagg_aggregator::{Datapath, Options, RunningAggregator};
use xagg_testbed::Testbed;
use xagg_testbed::exact::{exact_sum, integers};
use xagg_wire::Family;
use xagg_worker::{Client, Job, Reduction};

const WORKERS: usize = 4;
const LENGTH: usize = 25_000_000;
/// Of each kind, after one of each that does not count.
const ROUNDS: usize = 9;

/// Two jobs that differ in the checksum only.
fn jobs(lanes: usize) -> [Job; 2] {
    let with = common::job(Family::V4, WORKERS, lanes, LENGTH.div_ceil(lanes) as u32, 20.0);
    let mut without = with.clone();
    without.id += 1;
    without.checksum = false;
    without.workers.iter_mut().for_each(|worker| worker.set_port(worker.port() + 1));
    [with, without]
}

/// The seconds that a rank's sums took, by job.
fn sum_in_turn(clients: &[Client; 2], rank: u16, barrier: &Barrier) -> [Vec<f64>; 2] {
    let (own, expected) = (integers(rank, LENGTH), exact_sum(WORKERS as u16, LENGTH));
    let mut seconds = [vec![], vec![]];
    for round in 0..=ROUNDS {
        for job in [round % 2, 1 - round % 2] {
            let values = own.clone();
            barrier.wait();
            let begin = Instant::now();
            let sum = clients[job].all_reduce(values, Reduction::Sum).wait().expect("completes");
            let elapsed = begin.elapsed().as_secs_f64();
            assert!(sum == expected, "rank {rank} is not exact");
            if round > 0 {
                seconds[job].push(elapsed);
            }
        }
    }
    seconds
}

/// The time of the slowest rank: median, least and most of the rounds.
fn summary(ranks: &[[Vec<f64>; 2]], job: usize) -> String {
    let slowest = |round: usize| ranks.iter().map(|rank| rank[job][round]).fold(0.0, f64::max);
    let mut rounds: Vec<f64> = (0..ROUNDS).map(slowest).collect();
    rounds.sort_by(f64::total_cmp);
    format!("{:.3} s ({:.3} to {:.3})", rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1])
}

fn measure(datapath: Datapath, mtu: usize) {
    let bed = Testbed::builder().workers(WORKERS).mtu(mtu).build().expect("builds");
    let jobs = jobs(Family::V4.lanes_for_mtu(mtu).expect("fits"));
    let options = Options { datapath: Some(datapath), interface: None };
    let start = || RunningAggregator::start(&jobs, &options);
    let _aggregator = bed.aggregator(0).enter(start).expect("starts");
    let barrier = Barrier::new(WORKERS);
    let ranks = common::as_every_rank(&bed, &jobs[0], |rank, with| {
        let without = bed.worker(usize::from(rank)).enter(|| Client::connect(&jobs[1], rank));
        sum_in_turn(&[with, without.expect("joins")], rank, &barrier)
    });
    let (with, without) = (summary(&ranks, 0), summary(&ranks, 1));
    println!("{datapath}, MTU {mtu}: with checksum {with}, without {without}");
}

fn main() {
    for mtu in [1500, 3498] {
        for datapath in [Datapath::XdpNative, Datapath::Udp] {
            measure(datapath, mtu);
        }
    }
}
