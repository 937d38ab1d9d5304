//! The server: threads that own stripes.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::connection::{Connection, Received};
use super::{BATCH, interest, stripes};

/// Serves until all workers have closed their connections.
///
/// # Errors
/// What goes wrong with the network.
pub fn serve(address: SocketAddr, workers: usize, elements: usize, threads: usize) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    println!("ready: {address}, {threads} threads");
    serve_on(&listener, workers, elements, threads)
}

/// Serves those who connect to this listener.
///
/// # Errors
/// What goes wrong with the network.
pub fn serve_on(listener: &TcpListener, workers: usize, elements: usize, threads: usize) -> Result<()> {
    let stripes = accept(listener, workers, elements)?;
    let mut shares: Vec<Vec<Stripe>> = (0..threads).map(|_| vec![]).collect();
    for (index, stripe) in stripes.into_iter().enumerate() {
        shares[index % threads].push(stripe);
    }
    thread::scope(|scope| {
        let threads: Vec<_> = shares.into_iter().map(|share| scope.spawn(|| run(share))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread does not panic"))
    })
}

/// Waits for the connections of all workers.
fn accept(listener: &TcpListener, workers: usize, elements: usize) -> Result<Vec<Stripe>> {
    let lens: Vec<usize> = stripes(elements).iter().map(ExactSizeIterator::len).collect();
    let mut streams: Vec<Vec<Option<TcpStream>>> =
        lens.iter().map(|_| (0..workers).map(|_| None).collect()).collect();
    for _ in 0..workers * lens.len() {
        let (mut stream, _) = listener.accept()?;
        let mut hello = [0_u32; 2];
        stream.read_exact(bytemuck::cast_slice_mut(&mut hello))?;
        let [rank, stripe] = hello.map(|number| number as usize);
        ensure!(rank < workers && stripe < lens.len(), "there is no rank {rank}, or no stripe {stripe}");
        streams[stripe][rank] = Some(stream);
    }
    let stripe = |(len, streams): (usize, Vec<Option<TcpStream>>)| {
        let streams = streams.into_iter().map(|stream| stream.context("a rank has connected twice"));
        Stripe::new(len, streams.collect::<Result<_>>()?)
    };
    lens.into_iter().zip(streams).map(stripe).collect()
}

/// One stripe of the vector.
struct Stripe {
    /// The number under which rank 0's connection is waited for; the others follow.
    first: usize,
    /// Values.
    len: u64,
    /// Of this round, and of the one after or before: a worker may begin the next one while another still receives sums, but not
    /// the one after that, which needs the values of all for the next.
    sums: [Vec<f32>; 2],
    workers: Vec<Worker>,
    /// Of the sums that are complete, in values of all rounds, how many have been offered to the workers.
    offered: u64,
}

/// A worker's part in a stripe.
struct Worker {
    connection: Connection,
    /// Values, of all rounds.
    received: u64,
    /// Bytes, of all rounds.
    sent: u64,
    is_blocked: bool,
    is_closed: bool,
}

fn run(mut stripes: Vec<Stripe>) -> Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    let most = stripes.iter().map(|stripe| stripe.workers.len()).max().unwrap_or(0);
    for (index, stripe) in stripes.iter_mut().enumerate() {
        stripe.begin(index * most, &epoll)?;
    }
    let mut room = vec![0.0; BATCH];
    let mut events = [EpollEvent::empty(); 64];
    while !stripes.iter().all(Stripe::is_closed) {
        let count = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for event in &events[..count] {
            let number = event.data() as usize;
            stripes[number / most].handle(number % most, event.events(), &mut room, &epoll)?;
        }
    }
    Ok(())
}

impl Stripe {
    fn new(len: usize, streams: Vec<TcpStream>) -> Result<Self> {
        let worker = |stream| {
            let connection = Connection::new(stream)?;
            Ok(Worker { connection, received: 0, sent: 0, is_blocked: false, is_closed: false })
        };
        let workers = streams.into_iter().map(worker).collect::<Result<_>>()?;
        Ok(Self { first: 0, len: len as u64, sums: [vec![0.0; len], vec![0.0; len]], workers, offered: 0 })
    }

    fn is_closed(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_closed)
    }

    fn begin(&mut self, first: usize, epoll: &Epoll) -> Result<()> {
        self.first = first;
        for (rank, worker) in self.workers.iter().enumerate() {
            epoll.add(&worker.connection, interest(first + rank, false))?;
        }
        Ok(())
    }

    /// Does what a worker's connection is ready for, and what follows from it for all.
    fn handle(&mut self, rank: usize, events: EpollFlags, room: &mut [f32], epoll: &Epoll) -> Result<()> {
        if events.contains(EpollFlags::EPOLLOUT) {
            self.send(rank, epoll)?;
        }
        if events.contains(EpollFlags::EPOLLIN) && self.receive(rank, room)? {
            epoll.delete(&self.workers[rank].connection)?;
        }
        if self.take_due() {
            for rank in 0..self.workers.len() {
                if !self.workers[rank].is_blocked && !self.workers[rank].is_closed {
                    self.send(rank, epoll)?;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, rank: usize, epoll: &Epoll) -> Result<()> {
        let worker = &mut self.workers[rank];
        let was_blocked = worker.is_blocked;
        worker.send(&self.sums, self.len, self.offered)?;
        if worker.is_blocked != was_blocked {
            epoll.modify(&worker.connection, &mut interest(self.first + rank, worker.is_blocked))?;
        }
        Ok(())
    }

    /// Receives from a worker what is there, into the sum; whether the worker has ended.
    fn receive(&mut self, rank: usize, room: &mut [f32]) -> Result<bool> {
        let lead = self.workers.iter().map(|worker| worker.received).max().unwrap_or(0);
        let worker = &mut self.workers[rank];
        let (round, offset) = (worker.received / self.len, worker.received % self.len);
        let sum = &mut self.sums[round as usize % 2][offset as usize..];
        let most = sum.len().min(BATCH);
        let received = if worker.received == lead {
            worker.connection.receive(&mut sum[..most])?
        } else {
            let most = most.min((lead - worker.received) as usize);
            let received = worker.connection.receive(&mut room[..most])?;
            if let Received::Values(count) = received {
                add(&mut sum[..count], &room[..count]);
            }
            received
        };
        match received {
            Received::Values(count) => worker.received += count as u64,
            Received::End => worker.is_closed = true,
        }
        Ok(worker.is_closed)
    }

    /// Whether so many sums are complete that it is worth sending them, or all of a round.
    fn take_due(&mut self) -> bool {
        let complete = self.workers.iter().map(|worker| worker.received).min().unwrap_or(0);
        let is_due = complete - self.offered >= BATCH as u64 / 4
            || (complete > self.offered && complete.is_multiple_of(self.len));
        if is_due {
            self.offered = complete;
        }
        is_due
    }
}

impl Worker {
    /// Sends what is offered and not sent, as far as there is room.
    fn send(&mut self, sums: &[Vec<f32>; 2], len: u64, offered: u64) -> Result<()> {
        const VALUE: u64 = size_of::<f32>() as u64;
        self.is_blocked = false;
        while self.sent < offered * VALUE {
            let (round, offset) = (self.sent / (len * VALUE), self.sent % (len * VALUE));
            let end = (offered - round * len).min(len) * VALUE;
            let bytes: &[u8] = bytemuck::cast_slice(&sums[round as usize % 2]);
            let bytes = &bytes[offset as usize..end as usize];
            let sent = self.connection.send(bytes)?;
            self.sent += sent as u64;
            if sent < bytes.len() {
                self.is_blocked = true;
                break;
            }
        }
        Ok(())
    }
}

/// The compiler vectorises it.
fn add(sum: &mut [f32], values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
}
