//! A parameter server over TCP, as good a one as we know how to write; the kernel program has to beat it, so anything less would prove nothing:
//!
//! - a worker has several connections, each for a stripe of the vector of its own, and a thread of the server owns whole stripes;
//! - what the first worker sends of a stripe is received right into the sum, what the others send is added to it out of the cache;
//! - sums go out as soon as the last worker's values are in, while more come in (both directions are always in use), right from
//!   the sum's memory and right into the worker's;
//! - the server has room for the whole vector, so no worker waits for another one to send.

mod connection;
mod rank;
mod server;

use std::net::SocketAddr;
use std::ops::Range;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Result;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use xagg_testbed::aggregator_address;

use super::{Place, Roles, ourselves, spawn};

pub use rank::serve as serve_rank;
pub use server::serve;

const PORT: u16 = 9703;
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections of a worker, if there is enough for each: 2 to 8 take the same time, 1 and 16 longer.
const MOST_STRIPES: usize = 4;
/// A stripe of fewer values is not worth a connection.
const LEAST_STRIPE: usize = 1 << 14;
/// Values that are received, and sums that are sent, at once: what fits the cache of a core.
const BATCH: usize = 1 << 16;

pub fn start(place: &Place<'_>) -> Result<Roles> {
    let address = SocketAddr::from((aggregator_address(0), PORT)).to_string();
    let (workers, elements) = (place.setting.workers.to_string(), place.setting.elements.to_string());
    let threads = available_parallelism()?.to_string();
    let mut command = place.bed.aggregator(0).command(ourselves()?);
    command.args(["tcp-ps-server", &address, &workers, &elements, &threads]);
    let mut server = spawn(command)?;
    server.wait_for_output("ready: ", PATIENCE)?;
    let mut roles = Roles { servers: vec![server], ..Roles::default() };
    for rank in 0..place.setting.workers {
        let mut command = place.bed.worker(rank).command(ourselves()?);
        command.arg("tcp-ps-rank").arg(place.control).args([
            &address,
            &rank.to_string(),
            &workers,
            &elements,
        ]);
        roles.workers.push(spawn(command)?);
    }
    Ok(roles)
}

/// The stripes of a vector of so many values: as many as there are connections of each worker.
fn stripes(elements: usize) -> Vec<Range<usize>> {
    let count = (elements / LEAST_STRIPE).clamp(1, MOST_STRIPES);
    let begin = |index: usize| elements * index / count;
    (0..count).map(|index| begin(index)..begin(index + 1)).collect()
}

/// What to wait for at a connection with this number: something to receive always, room to send if that is missing.
fn interest(number: usize, is_blocked: bool) -> EpollEvent {
    let mut flags = EpollFlags::EPOLLIN;
    flags.set(EpollFlags::EPOLLOUT, is_blocked);
    EpollEvent::new(flags, number as u64)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::control::Reduce;

    #[test]
    fn stripes_are_the_vector() {
        for elements in [1, 1000, LEAST_STRIPE * 3 + 1, 25_000_000] {
            let all = stripes(elements);
            assert!(all.len() <= MOST_STRIPES);
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start && !pair[0].is_empty()));
            assert_eq!((all[0].start, all[all.len() - 1].end), (0, elements));
        }
    }

    /// Every rank's sums of this many rounds.
    fn run(workers: usize, elements: usize, rounds: usize, threads: usize) -> Vec<Vec<f32>> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("bound");
        let work = |rank: usize| {
            let mut system = rank::Rank::connect(address, rank, elements).expect("connects");
            let mut values = xagg_testbed::exact::integers(rank as u16, elements);
            for _ in 0..rounds {
                system.all_reduce(&mut values).expect("sums");
            }
            values
        };
        thread::scope(|scope| {
            scope.spawn(|| server::serve_on(&listener, workers, elements, threads).expect("serves"));
            let ranks: Vec<_> = (0..workers).map(|rank| scope.spawn(move || work(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("does not panic")).collect()
        })
    }

    #[test]
    fn every_rank_has_the_exact_sum() {
        for (workers, elements, threads) in [(1, 7, 1), (2, 70_001, 2), (4, 1_000_003, 2), (3, 1, 4)] {
            let sum = xagg_testbed::exact::exact_sum(workers, elements);
            let all = run(workers.into(), elements, 1, threads);
            assert!(all.iter().all(|values| *values == sum), "{workers} workers, {elements} values");
        }
    }

    #[test]
    fn rounds_do_not_mix() {
        let (workers, elements) = (3_u16, 200_000);
        let sum = xagg_testbed::exact::exact_sum(workers, elements);
        let expected: Vec<f32> = sum.iter().map(|value| value * 9.0).collect();
        assert!(run(workers.into(), elements, 3, 2).iter().all(|values| *values == expected));
    }
}
