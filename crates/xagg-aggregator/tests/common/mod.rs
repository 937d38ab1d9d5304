//! A job whose workers and aggregator are in namespaces, all of them in this process.
#![allow(dead_code, reason = "each suite uses a part of it")]

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

/// Values of many magnitudes, so that banks are shifted and fragments are sent again at a common exponent.
pub fn reals(rank: u16, length: usize) -> Vec<f32> {
    let value = |index: usize| {
        let hash = (index as u64 * 1000 + u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let fraction = (hash >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
        // The magnitude changes with rank and fragment: by up to 2^30, mostly by less than the guard bits.
        let block = (index / 352 * 7 + usize::from(rank) * 3) % 31;
        fraction * if block < 25 { 2.0_f32.powi((block % 4) as i32) } else { 2.0_f32.powi(block as i32) }
    };
    (0..length).map(value).collect()
}

/// Every rank, each in its namespace.
pub fn join_all(bed: &Testbed, job: &Job) -> Vec<Client> {
    let join = |rank: u16| {
        let client = bed.worker(rank.into()).enter(|| Client::connect(job, rank));
        client.unwrap_or_else(|error| panic!("rank {rank}: {error}"))
    };
    (0..job.worker_count()).map(join).collect()
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
