//! A job whose workers and aggregator are in namespaces, each rank on a thread of this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use xagg_aggregator::{Datapath, Options, RunningAggregator};
use xagg_testbed::{Testbed, aggregator_address, ipv6_of, worker_address};
use xagg_wire::Family;
use xagg_worker::{Client, Job};

/// A job over a testbed's addresses of this version.
pub fn job(family: Family, workers: usize, lanes: usize, slots: u32, timeout_seconds: f64) -> Job {
    let end = |address: Ipv4Addr, port: u16| match family {
        Family::V4 => SocketAddr::from((address, port)),
        Family::V6 => SocketAddr::from((ipv6_of(address), port)),
    };
    let mut text = format!(
        "job = 3\nsecret = \"a secret for namespaces\"\nlanes = {lanes}\nslots = {slots}\n\
         timeout_seconds = {timeout_seconds:.3}\naggregator = \"{}\"\n",
        end(aggregator_address(0), 9700)
    );
    for rank in 0..workers {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"{}\"\n", end(worker_address(rank), 9701));
    }
    Job::parse(&text).expect("valid")
}

/// The job's aggregator, in the testbed's first aggregator namespace.
#[allow(dead_code, reason = "the measurement has two jobs")]
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
