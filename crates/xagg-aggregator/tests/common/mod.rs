//! A job whose workers and aggregator are in namespaces, each rank on a thread of this process.

use std::thread;

use xagg_aggregator::{Datapath, Options, RunningAggregator};
use xagg_testbed::{Testbed, aggregator_address, worker_address};
use xagg_worker::{Client, Job};

/// A job over a testbed's addresses.
pub fn job(workers: usize, lanes: usize, slots: u32, timeout_seconds: f64) -> Job {
    let mut text = format!(
        "job = 3\nsecret = \"a secret for namespaces\"\nlanes = {lanes}\nslots = {slots}\n\
         timeout_seconds = {timeout_seconds:.3}\naggregator = \"{}:9700\"\n",
        aggregator_address(0)
    );
    for rank in 0..workers {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"{}:9701\"\n", worker_address(rank));
    }
    Job::parse(&text).expect("valid")
}

/// The job's aggregator, in the testbed's first aggregator namespace.
pub fn aggregator(bed: &Testbed, job: &Job, datapath: Datapath) -> RunningAggregator {
    let options = Options { datapath: Some(datapath), interface: None };
    let start = || RunningAggregator::start(std::slice::from_ref(job), &options);
    bed.aggregator(0).enter(start).unwrap_or_else(|error| panic!("{datapath}: {error}"))
}

/// Runs `body` as every rank, each on a thread of its own.
pub fn as_every_rank<T: Send>(bed: &Testbed, job: &Job, body: impl Fn(u16, Client) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..job.worker_count())
            .map(|rank| {
                let body = &body;
                scope.spawn(move || {
                    let client = bed.worker(usize::from(rank)).enter(|| Client::connect(job, rank));
                    body(rank, client.unwrap_or_else(|error| panic!("rank {rank}: {error}")))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}
