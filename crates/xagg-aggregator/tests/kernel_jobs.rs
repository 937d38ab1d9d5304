//! Several jobs on one kernel program, and who else is on the interface.

mod common;

use std::thread;

use xagg_aggregator::{Datapath, Options, RunningAggregator};
use xagg_testbed::exact::{exact_sum, integers};
use xagg_testbed::{Testbed, skip_unless_root};
use xagg_wire::Family;
use xagg_worker::{Job, Reduction};

const LENGTH: usize = 50_000;

/// A job with an id, and worker ports, of its own.
fn job(id: u32, workers: usize, slots: u32) -> Job {
    let mut job = common::job(Family::V4, workers, 352, slots, 20.0);
    job.id = id;
    for address in &mut job.workers {
        address.set_port(9700 + id as u16);
    }
    job
}

/// Jobs with other numbers of workers have other numbers of copies to make, out of the same interface, at the same time.
#[test]
fn jobs_of_different_sizes_share_one_program() {
    if skip_unless_root("jobs_of_different_sizes_share_one_program") {
        return;
    }
    for datapath in [Datapath::XdpNative, Datapath::XdpGeneric] {
        let bed = Testbed::builder().workers(5).build().expect("builds");
        let jobs = [job(1, 2, 64), job(2, 5, 500), job(3, 1, 100)];
        let options = Options { datapath: Some(datapath), interface: None };
        let start = || RunningAggregator::start(&jobs, &options).expect("starts");
        let aggregator = bed.aggregator(0).enter(start);
        thread::scope(|scope| {
            for job in &jobs {
                scope.spawn(|| {
                    common::as_every_rank(&bed, job, |rank, client| {
                        for _ in 0..3 {
                            let sum = client.all_reduce(integers(rank, LENGTH), Reduction::Sum).wait();
                            let expected = exact_sum(job.worker_count(), LENGTH);
                            assert!(sum.expect("completes") == expected, "job {}, rank {rank}", job.id);
                        }
                    })
                });
            }
        });
        for (status, job) in aggregator.status().jobs.iter().zip(&jobs) {
            let [added, results] = ["added", "results"].map(|name| status.counters[name]);
            assert_eq!(results, 3 * LENGTH.div_ceil(352) as u64, "job {}", job.id);
            assert_eq!(added, results * u64::from(job.worker_count()), "job {}", job.id);
            // A copy whose transmission fails ends the broadcast early; then a PULL repairs it.
            let sent = status.counters["copies"] + status.counters["results_again"];
            assert!(sent >= added, "job {}: {:?}", job.id, status.counters);
        }
    }
}

#[test]
fn the_program_that_is_in_the_way_is_named() {
    if skip_unless_root("the_program_that_is_in_the_way_is_named") {
        return;
    }
    let bed = Testbed::builder().workers(1).build().expect("builds");
    let first = job(1, 1, 10);
    let _first = common::aggregator(&bed, &first, Datapath::XdpNative);
    let mut second = job(2, 1, 10);
    second.aggregator.set_port(9800);
    let options = Options { datapath: Some(Datapath::XdpNative), interface: None };
    let Err(error) = bed.aggregator(0).enter(|| RunningAggregator::start(&[second], &options)) else {
        panic!("two programs on one interface")
    };
    let message = error.to_string();
    let id = message.split("(id ").nth(1).and_then(|rest| rest.split(')').next()?.parse::<u32>().ok());
    assert!(id.is_some_and(|id| id > 0), "{message}");
}
