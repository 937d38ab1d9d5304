//! `xagg aggregator`: sums the gradients of its jobs until it is told to stop.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::ValueEnum;
use indicatif::DecimalBytes;
use signal_hook::consts::TERM_SIGNALS;
use signal_hook::iterator::Signals;
use xagg_aggregator::status::JobStatus;
use xagg_aggregator::{Datapath, Options, RunningAggregator, Status};

use crate::job;

/// Run the aggregator of one or more jobs on this server
///
/// Prints one line when it is ready and runs until Ctrl-C or SIGTERM, which detaches the kernel program and frees all
/// memory; a second one ends it at once.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  xagg aggregator --job job.toml")]
pub struct Args {
    /// Job file; repeat it for more jobs at the same address and port
    #[arg(long = "job", value_name = "FILE", required = true)]
    jobs: Vec<PathBuf>,

    /// Network interface for the kernel datapaths; in a VLAN, the one that carries the tagged frames [default: the one with
    /// the aggregator's address]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,

    /// How to get at packets
    #[arg(long, value_enum, default_value_t = DatapathChoice::Auto)]
    datapath: DatapathChoice,
}

#[derive(Clone, Copy, ValueEnum)]
enum DatapathChoice {
    /// The first of the others that works
    Auto,
    /// Kernel program in the network driver (needs CAP_BPF and CAP_NET_ADMIN)
    XdpNative,
    /// Kernel program in the network stack (needs CAP_BPF and CAP_NET_ADMIN)
    XdpGeneric,
    /// Plain socket, works everywhere
    Udp,
}

impl DatapathChoice {
    const fn fixed(self) -> Option<Datapath> {
        match self {
            Self::Auto => None,
            Self::XdpNative => Some(Datapath::XdpNative),
            Self::XdpGeneric => Some(Datapath::XdpGeneric),
            Self::Udp => Some(Datapath::Udp),
        }
    }
}

/// Runs the sub-command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // Before the start, so that a Ctrl-C in the middle of it still detaches.
    let mut signals = stop_signals()?;
    let jobs = args.jobs.iter().map(|path| job::load(path)).collect::<Result<Vec<_>, _>>()?;
    let options = Options { datapath: args.datapath.fixed(), interface: args.interface.clone() };
    let aggregator = RunningAggregator::start(&jobs, &options)?;
    writeln!(std::io::stdout(), "{}", ready_line(&aggregator.status()))?;
    let signal = wait(&mut signals, &aggregator)?;
    tracing::info!("stopping on signal {signal}");
    Ok(())
}

/// Waits until it is told to stop, or the aggregator stops by itself.
fn wait(signals: &mut Signals, aggregator: &RunningAggregator) -> anyhow::Result<i32> {
    const LOOK: Duration = Duration::from_millis(50);
    loop {
        if let Some(signal) = signals.pending().next() {
            return Ok(signal);
        }
        if let Some(failure) = aggregator.failure() {
            anyhow::bail!("the aggregator cannot go on: {failure}");
        }
        std::thread::sleep(LOOK);
    }
}

/// The signals that ask to stop. The second of them ends the process at once.
fn stop_signals() -> std::io::Result<Signals> {
    const FAILURE: i32 = 1;
    let asked = Arc::new(AtomicBool::new(false));
    for signal in TERM_SIGNALS {
        // In this order: the first signal finds the flag unset.
        signal_hook::flag::register_conditional_shutdown(*signal, FAILURE, Arc::clone(&asked))?;
        signal_hook::flag::register(*signal, Arc::clone(&asked))?;
    }
    Signals::new(TERM_SIGNALS)
}

fn ready_line(status: &Status) -> String {
    let place = status.interface.as_ref().map_or_else(String::new, |interface| format!(" on {interface}"));
    let jobs: Vec<String> = status.jobs.iter().map(describe).collect();
    format!("ready: datapath {}{place}, {}, {}", status.datapath, status.address, jobs.join("; "))
}

fn describe(job: &JobStatus) -> String {
    let (workers, reserved) = (job.workers.len(), DecimalBytes(job.bytes_reserved));
    format!("job {}: {workers} workers, {} slots of {} lanes, {reserved}", job.job, job.slots, job.lanes)
}
