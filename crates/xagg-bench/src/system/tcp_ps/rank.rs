//! A worker of the TCP parameter server: sends its stripes and receives their sums over them, all at once, in one thread.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::connection::{Connection, Received};
use super::{BATCH, interest, stripes};
use crate::control::{self, Reduce};

/// Nothing comes for so long, in milliseconds: the server is gone.
const SILENCE: u16 = 60_000;

/// A worker's connections.
pub struct Rank {
    stripes: Vec<Stripe>,
    epoll: Epoll,
}

struct Stripe {
    index: usize,
    values: Range<usize>,
    connection: Connection,
    /// Values of this round.
    received: usize,
    /// Bytes of this round.
    sent: usize,
    /// Whether it waits for room to send.
    is_blocked: bool,
}

/// Is a rank until the benchmark ends it.
///
/// # Errors
/// What goes wrong.
pub fn serve(control: &Path, server: SocketAddr, rank: u16, workers: u16, elements: usize) -> Result<()> {
    control::serve(control, rank, workers, Rank::connect(server, rank.into(), elements)?)
}

impl Rank {
    /// Connects to the server.
    pub fn connect(server: SocketAddr, rank: usize, elements: usize) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        let mut all = vec![];
        for (index, values) in stripes(elements).into_iter().enumerate() {
            let mut stream = TcpStream::connect(server).with_context(|| format!("no server at {server}"))?;
            stream.write_all(bytemuck::cast_slice(&[rank as u32, index as u32]))?;
            let connection = Connection::new(stream)?;
            epoll.add(&connection, interest(index, false))?;
            all.push(Stripe { index, values, connection, received: 0, sent: 0, is_blocked: false });
        }
        Ok(Self { stripes: all, epoll })
    }

    fn wait(&self, events: &mut [EpollEvent]) -> Result<usize> {
        let count = self.epoll.wait(events, EpollTimeout::from(SILENCE))?;
        ensure!(count > 0, "the server says nothing");
        Ok(count)
    }
}

impl Reduce for Rank {
    fn all_reduce(&mut self, values: &mut Vec<f32>) -> Result<()> {
        let len: usize = self.stripes.iter().map(|stripe| stripe.values.len()).sum();
        ensure!(values.len() == len, "the server is made for {len} values");
        for stripe in &mut self.stripes {
            (stripe.received, stripe.sent) = (0, 0);
            stripe.send(values, &self.epoll)?;
        }
        while self.stripes.iter().any(|stripe| !stripe.is_done()) {
            let mut events = [EpollEvent::empty(); 32];
            let count = self.wait(&mut events)?;
            for event in &events[..count] {
                let stripe = &mut self.stripes[event.data() as usize];
                if event.events().contains(EpollFlags::EPOLLOUT) {
                    stripe.send(values, &self.epoll)?;
                }
                if event.events().contains(EpollFlags::EPOLLIN) {
                    stripe.receive(values)?;
                }
            }
        }
        Ok(())
    }

    fn retransmissions(&self) -> Option<u64> {
        None
    }
}

impl Stripe {
    fn is_done(&self) -> bool {
        self.received == self.values.len()
    }

    /// Sends what there is room for; asks for more room unless that is all.
    fn send(&mut self, values: &[f32], epoll: &Epoll) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(&values[self.values.clone()]);
        let end = bytes.len().min(self.sent + BATCH * size_of::<f32>());
        self.sent += self.connection.send(&bytes[self.sent..end])?;
        let is_blocked = self.sent < bytes.len();
        if is_blocked != self.is_blocked {
            self.is_blocked = is_blocked;
            epoll.modify(&self.connection, &mut interest(self.index, is_blocked))?;
        }
        Ok(())
    }

    /// The sum of a value only comes when it has been sent, so sums take the values' place.
    fn receive(&mut self, values: &mut [f32]) -> Result<()> {
        let room = &mut values[self.values.clone()][self.received..];
        let most = room.len().min(BATCH);
        match self.connection.receive(&mut room[..most])? {
            Received::Values(count) => self.received += count,
            Received::End => bail!("the server has ended"),
        }
        Ok(())
    }
}
