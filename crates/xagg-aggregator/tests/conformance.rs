//! One suite over all three datapaths: the same protocol, the same bits.

mod common;

use std::time::Duration;

use xagg_aggregator::Datapath;
use xagg_testbed::exact::{exact_sum, integers};
use xagg_testbed::{Testbed, skip_unless_root};
use xagg_wire::Family;
use xagg_worker::{Job, Reduction};

struct Case {
    workers: usize,
    family: Family,
    mtu: usize,
    slots: u32,
    length: usize,
    loss_permille: u32,
    checksum: bool,
}

const PLAIN: Case = Case {
    workers: 4,
    family: Family::V4,
    mtu: 1500,
    slots: 3000,
    length: 500_000,
    loss_permille: 0,
    checksum: true,
};

/// A job whose packets are the longest that fit the case's MTU.
fn job_of(case: &Case) -> Job {
    let lanes = case.family.lanes_for_mtu(case.mtu).expect("fits");
    let mut job = common::job(case.family, case.workers, lanes, case.slots, 20.0);
    job.checksum = case.checksum;
    job
}

/// Exact integers and reals with the same bits on all ranks; the bits of the reals.
fn run(case: &Case, datapath: Datapath) -> Vec<u32> {
    // Frames longer than the MTU would be lost as a whole, which is not what 1 % means.
    let offloads = case.loss_permille == 0;
    let ipv6 = case.family == Family::V6;
    let builder = Testbed::builder().workers(case.workers).mtu(case.mtu).offloads(offloads).ipv6(ipv6);
    let bed = builder.build().expect("builds");
    for worker in bed.workers() {
        bed.set_loss(worker, case.loss_permille, case.loss_permille).expect("sets the loss");
    }
    let job = job_of(case);
    let aggregator = common::aggregator(&bed, &job, datapath);
    let results = common::as_every_rank(&bed, &job, |rank, client| {
        let first = client.all_reduce(integers(rank, case.length), Reduction::Sum);
        let second = client.all_reduce(common::reals(rank, case.length), Reduction::Sum);
        let sum = first.wait().unwrap_or_else(|error| panic!("{datapath}: {error}"));
        assert!(sum == exact_sum(job.worker_count(), case.length), "{datapath}: rank {rank} is not exact");
        let reals = second.wait().unwrap_or_else(|error| panic!("{datapath}: {error}"));
        reals.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    });
    assert_eq!(aggregator.status().datapath, datapath.to_string());
    let counters = &aggregator.status().jobs[0].counters;
    assert!(counters["redos"] > 0, "the reals are chosen to need REDO: {counters:?}");
    if case.loss_permille > 0 {
        assert!(counters["pulls"] + counters["duplicates"] > 0, "losses were repaired: {counters:?}");
    }
    assert!(results.iter().all(|result| *result == results[0]), "{datapath}: ranks differ");
    results[0].clone()
}

fn conforms(name: &str, case: &Case) {
    if skip_unless_root(name) {
        return;
    }
    let native = run(case, Datapath::XdpNative);
    assert!(run(case, Datapath::XdpGeneric) == native, "xdp-generic differs from xdp-native");
    assert!(run(case, Datapath::Udp) == native, "udp differs from xdp-native");
}

#[test]
fn four_workers_at_mtu_1500() {
    conforms("four_workers_at_mtu_1500", &PLAIN);
}

#[test]
fn eight_workers_at_mtu_1500() {
    conforms("eight_workers_at_mtu_1500", &Case { workers: 8, length: 200_000, ..PLAIN });
}

#[test]
fn four_workers_at_mtu_3498() {
    conforms("four_workers_at_mtu_3498", &Case { mtu: 3498, slots: 1500, ..PLAIN });
}

#[test]
fn four_workers_at_mtu_1280() {
    conforms("four_workers_at_mtu_1280", &Case { mtu: 1280, length: 200_000, ..PLAIN });
}

#[test]
fn four_workers_over_ipv6_at_mtu_1280() {
    let case = Case { family: Family::V6, mtu: 1280, length: 200_000, ..PLAIN };
    conforms("four_workers_over_ipv6_at_mtu_1280", &case);
}

#[test]
fn four_workers_over_ipv6_at_mtu_1500() {
    conforms("four_workers_over_ipv6_at_mtu_1500", &Case { family: Family::V6, ..PLAIN });
}

#[test]
fn four_workers_over_ipv6_at_mtu_3498() {
    let case = Case { family: Family::V6, mtu: 3498, slots: 1500, ..PLAIN };
    conforms("four_workers_over_ipv6_at_mtu_3498", &case);
}

#[test]
fn four_workers_with_few_slots() {
    conforms("four_workers_with_few_slots", &Case { slots: 64, length: 200_000, ..PLAIN });
}

#[test]
fn four_workers_with_a_loss_of_one_percent_each_way() {
    let case = Case { loss_permille: 10, length: 200_000, ..PLAIN };
    conforms("four_workers_with_a_loss_of_one_percent_each_way", &case);
}

/// WIRE P7.
#[test]
fn four_workers_without_checksums() {
    let case = Case { checksum: false, loss_permille: 10, length: 200_000, ..PLAIN };
    conforms("four_workers_without_checksums", &case);
}

#[test]
fn two_runs_with_other_arrival_orders_have_the_same_bits() {
    if skip_unless_root("two_runs_with_other_arrival_orders_have_the_same_bits") {
        return;
    }
    let case = Case { length: 100_000, ..PLAIN };
    let run = |first: u16| {
        let bed = Testbed::builder().workers(case.workers).build().expect("builds");
        let job = job_of(&case);
        let _aggregator = common::aggregator(&bed, &job, Datapath::XdpNative);
        let results = common::as_every_rank(&bed, &job, |rank, client| {
            std::thread::sleep(Duration::from_millis(if rank == first {
                0
            } else {
                100 + 50 * u64::from(rank)
            }));
            client.all_reduce(common::reals(rank, case.length), Reduction::Sum).wait().expect("completes")
        });
        results[0].iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    };
    assert!(run(0) == run(3), "the order of arrival shows in the result");
}
