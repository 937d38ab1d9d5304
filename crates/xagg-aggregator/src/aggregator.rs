//! Starts an aggregator on the best datapath that there is: native XDP, else generic XDP, else udp.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use thiserror::Error;
use xagg_proto::Job;

use crate::interface::{Interface, InterfaceError};
use crate::kernel::{KernelAggregator, KernelConfig, KernelError, Mode};
use crate::memory::{self, OutOfMemory};
use crate::report::Report;
use crate::status::{self, JobStatus, Status};
use crate::udp::{UdpAggregator, UdpError};

/// How an aggregator gets at packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    /// The kernel program in the driver.
    XdpNative,
    /// The kernel program in the network stack.
    XdpGeneric,
    /// The twin over a plain socket.
    Udp,
}

impl Datapath {
    /// From the best to the one that always works.
    pub const LADDER: [Self; 3] = [Self::XdpNative, Self::XdpGeneric, Self::Udp];
}

impl fmt::Display for Datapath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::XdpNative => "xdp-native",
            Self::XdpGeneric => "xdp-generic",
            Self::Udp => "udp",
        })
    }
}

impl FromStr for Datapath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::LADDER.into_iter().find(|datapath| datapath.to_string() == text);
        found.ok_or_else(|| format!("{text} is not a datapath: use xdp-native, xdp-generic or udp"))
    }
}

/// What the user may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only this datapath; `None`: the best that works.
    pub datapath: Option<Datapath>,
    /// The interface; `None`: the one with the aggregator's address.
    pub interface: Option<String>,
}

/// Why an aggregator does not start.
#[derive(Debug, Error)]
pub enum AggregatorError {
    /// No job.
    #[error("an aggregator needs at least one job file")]
    NoJob,
    /// The jobs name different addresses.
    #[error(
        "the job files name different aggregators, {first} and {other}: start one aggregator for each address and port"
    )]
    Address {
        /// That of the first job.
        first: SocketAddr,
        /// That of another.
        other: SocketAddr,
    },
    /// The jobs cannot be on one aggregator.
    #[error(transparent)]
    Admit(#[from] xagg_proto::aggregator::AdmitError),
    /// The jobs do not fit the memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// There is no such interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel datapath that was asked for cannot be had.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The udp datapath cannot be had.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// Status queries cannot be served.
    #[error(
        "cannot serve status queries for {address}: {reason}. Is another aggregator with this address running here?"
    )]
    Status {
        /// The aggregator's address.
        address: SocketAddr,
        /// What the system said.
        reason: std::io::Error,
    },
}

enum Running {
    Kernel(KernelAggregator),
    Udp(UdpAggregator),
}

/// An aggregator at work. Dropping it detaches and frees everything.
pub struct RunningAggregator {
    shared: Arc<Shared>,
    _status: status::Server,
}

struct Shared {
    running: Running,
    datapath: Datapath,
    interface: Option<String>,
    incarnation: u32,
    jobs: Vec<Job>,
    started: Instant,
}

impl RunningAggregator {
    /// Starts an aggregator for the jobs.
    ///
    /// # Errors
    /// [`AggregatorError`], each with what to do. Nothing is left attached, bound or reserved.
    pub fn start(jobs: &[Job], options: &Options) -> Result<Self, AggregatorError> {
        let address = check(jobs)?;
        memory::check(jobs)?;
        let incarnation = rand::random::<u32>().max(1);
        let (running, datapath, interface) = climb(jobs, options, address, incarnation)?;
        let (jobs, started) = (jobs.to_vec(), Instant::now());
        let shared = Arc::new(Shared { running, datapath, interface, incarnation, jobs, started });
        let server = {
            let shared = Arc::clone(&shared);
            status::Server::start(address, move || shared.status())
        };
        let server = server.map_err(|reason| AggregatorError::Status { address, reason })?;
        Ok(Self { shared, _status: server })
    }

    /// The datapath in use.
    #[must_use]
    pub fn datapath(&self) -> Datapath {
        self.shared.datapath
    }

    /// Why it has stopped working by itself, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match &self.shared.running {
            Running::Udp(udp) => udp.failure(),
            Running::Kernel(_) => None,
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }
}

impl Shared {
    fn report(&self) -> Report {
        match &self.running {
            Running::Udp(udp) => udp.report(),
            Running::Kernel(kernel) => kernel.report().unwrap_or_else(|error| {
                tracing::error!("{error}");
                Report { unassigned: [0; _], jobs: vec![] }
            }),
        }
    }

    fn status(&self) -> Status {
        let report = self.report();
        Status {
            datapath: self.datapath.to_string(),
            interface: self.interface.clone(),
            address: self.jobs[0].aggregator,
            incarnation: self.incarnation,
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            drops: status::unassigned_drops(&report),
            jobs: self
                .jobs
                .iter()
                .zip(&report.jobs)
                .map(|(job, report)| JobStatus::new(job, report))
                .collect(),
        }
    }
}

/// What all datapaths demand of the jobs; their common address.
fn check(jobs: &[Job]) -> Result<SocketAddr, AggregatorError> {
    use xagg_proto::aggregator::{AdmitError, MAX_JOBS};
    let first = jobs.first().ok_or(AggregatorError::NoJob)?;
    if jobs.len() > MAX_JOBS {
        return Err(AdmitError::Full.into());
    }
    for (position, job) in jobs.iter().enumerate() {
        if job.aggregator != first.aggregator {
            return Err(AggregatorError::Address { first: first.aggregator, other: job.aggregator });
        }
        if job.lanes != first.lanes {
            return Err(AdmitError::Lanes { job: job.id, lanes: job.lanes, others: first.lanes }.into());
        }
        if jobs[..position].iter().any(|earlier| (earlier.id, earlier.view) == (job.id, job.view)) {
            return Err(AdmitError::Duplicate { job: job.id, view: job.view }.into());
        }
    }
    Ok(first.aggregator)
}

type Started = (Running, Datapath, Option<String>);

/// The datapath that was asked for, or the best that works; why the better ones do not is logged.
fn climb(
    jobs: &[Job],
    options: &Options,
    address: SocketAddr,
    incarnation: u32,
) -> Result<Started, AggregatorError> {
    if let Some(datapath) = options.datapath {
        return start(datapath, jobs, options, address, incarnation);
    }
    for datapath in [Datapath::XdpNative, Datapath::XdpGeneric] {
        match start(datapath, jobs, options, address, incarnation) {
            Ok(started) => return Ok(started),
            // A wrong interface is the user's mistake, not a reason to take another datapath.
            Err(error @ AggregatorError::Interface(_)) if options.interface.is_some() => return Err(error),
            Err(error) => tracing::info!("no {datapath} datapath: {error}"),
        }
    }
    start(Datapath::Udp, jobs, options, address, incarnation)
}

fn start(
    datapath: Datapath,
    jobs: &[Job],
    options: &Options,
    address: SocketAddr,
    incarnation: u32,
) -> Result<Started, AggregatorError> {
    let mode = match datapath {
        Datapath::XdpNative => Mode::Native,
        Datapath::XdpGeneric => Mode::Generic,
        Datapath::Udp => {
            return Ok((Running::Udp(UdpAggregator::start(address, incarnation, jobs)?), datapath, None));
        }
    };
    let interface = Interface::find(options.interface.as_deref(), address.ip())?;
    let name = interface.name.clone();
    let config = KernelConfig { interface, mode, address, incarnation };
    Ok((Running::Kernel(KernelAggregator::start(&config, jobs)?), datapath, Some(name)))
}
