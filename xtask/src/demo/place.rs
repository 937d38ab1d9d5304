//! Where the demo's processes run: in network namespaces, or all on loopback.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use xagg_testbed::{Node, Testbed};

use super::Options;
use crate::shell;

const AGGREGATOR_PORT: u16 = 9700;
const WORKER_PORT: u16 = 9701;
const RENDEZVOUS_PORT: u16 = 9702;

/// Where the demo's processes run; dropping it removes what was made for them.
pub struct Place {
    bed: Option<Testbed>,
    aggregator: SocketAddrV4,
    workers: Vec<SocketAddrV4>,
    description: String,
}

/// Checks what the arguments' own types cannot.
///
/// # Errors
/// When an option names a rank that is not there, or needs root where there is none.
pub fn check(options: &Options) -> Result<()> {
    if let Some(slow) = options.slow.iter().find(|slow| slow.rank >= options.workers) {
        bail!("--slow names rank {}, but ranks are 0 to {}", slow.rank, options.workers - 1);
    }
    if shell::is_root() {
        return Ok(());
    }
    let limits = options.rate.is_some() || !options.slow.is_empty();
    ensure!(!limits, "--rate and --slow need network namespaces, and only root can make those");
    let has_datapath = ["auto", "udp"].contains(&options.datapath.as_str());
    ensure!(has_datapath, "--datapath {} needs root: without it there is only udp", options.datapath);
    Ok(())
}

impl Place {
    /// Namespaces for root, loopback for everybody else.
    ///
    /// # Errors
    /// When the namespaces cannot be made, or there is no free port.
    pub fn make(options: &Options) -> Result<Self> {
        if shell::is_root() { Self::namespaces(options) } else { Self::loopback(options.workers) }
    }

    fn namespaces(options: &Options) -> Result<Self> {
        let mut builder = Testbed::builder().workers(options.workers.into()).aggregators(1);
        if let Some(rate) = options.rate {
            builder = builder.rate(rate);
        }
        for slow in &options.slow {
            builder = builder.worker_rate(slow.rank.into(), slow.rate);
        }
        let bed = builder.build().context("cannot make the network namespaces")?;
        let rate = options.rate.map_or_else(|| "as fast as the machine".to_owned(), |rate| rate.to_string());
        let slow: Vec<_> =
            options.slow.iter().map(|slow| format!(", rank {}: {}", slow.rank, slow.rate)).collect();
        Ok(Self {
            aggregator: SocketAddrV4::new(bed.aggregator(0).address(), AGGREGATOR_PORT),
            workers: bed
                .workers()
                .iter()
                .map(|node| SocketAddrV4::new(node.address(), WORKER_PORT))
                .collect(),
            bed: Some(bed),
            description: format!(
                "network: {} workers, an aggregator and a switch in namespaces; links {rate}{}",
                options.workers,
                slow.concat()
            ),
        })
    }

    fn loopback(workers: u16) -> Result<Self> {
        // All are held until the last one has been chosen, so that no port comes twice.
        let sockets: Vec<UdpSocket> =
            (0..=workers).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
        let mut addresses = sockets
            .iter()
            .map(|socket| Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, socket.local_addr()?.port())))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            bed: None,
            aggregator: addresses.pop().expect("one more than workers"),
            workers: addresses,
            description: format!(
                "note: without root there are no network namespaces and no XDP: {workers} workers and an aggregator \
                 run over loopback, with the datapath udp"
            ),
        })
    }

    /// Where the aggregator listens.
    pub const fn aggregator(&self) -> SocketAddrV4 {
        self.aggregator
    }

    /// Where the workers of XAgg are, by rank.
    pub fn workers(&self) -> &[SocketAddrV4] {
        &self.workers
    }

    /// Where rank 0 gathers the gloo group: an address and a port that are free now.
    ///
    /// # Errors
    /// When the system has no free port.
    pub fn rendezvous(&self) -> Result<SocketAddrV4> {
        let address = *self.workers[0].ip();
        let port = match &self.bed {
            Some(_) => RENDEZVOUS_PORT,
            None => TcpListener::bind((address, 0))?.local_addr()?.port(),
        };
        Ok(SocketAddrV4::new(address, port))
    }

    /// The interface that the workers' traffic uses.
    pub const fn interface(&self) -> &'static str {
        if self.bed.is_some() { Node::INTERFACE } else { "lo" }
    }

    /// The datapath to ask for where `wanted` was asked for.
    pub fn datapath<'a>(&self, wanted: &'a str) -> &'a str {
        if self.bed.is_some() { wanted } else { "udp" }
    }

    /// A command that runs where the aggregator is.
    pub fn aggregator_command(&self, program: &Path) -> Command {
        self.bed.as_ref().map_or_else(|| Command::new(program), |bed| bed.aggregator(0).command(program))
    }

    /// A command that runs where a rank is.
    pub fn worker_command(&self, rank: usize, program: &Path) -> Command {
        self.bed.as_ref().map_or_else(|| Command::new(program), |bed| bed.worker(rank).command(program))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.description)
    }
}
