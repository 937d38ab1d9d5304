//! `xagg job`: writes a job file, so that nobody has to by hand.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, ensure};
use xagg_proto::Job;
use xagg_proto::job::JobError;
use xagg_wire::{Family, LANE_BLOCK, Rate};

/// Print a job file with a fresh random secret
///
/// Give the file to the aggregator and to every worker, and to nobody else: whoever has it can speak for any worker.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  xagg job --workers 10.0.0.1:9701,10.0.0.2:9701 --aggregator 10.0.0.100:9700 --elements 25000000 > job.toml"
)]
pub struct Args {
    /// Address and UDP port of every worker, in the order of their ranks; an IPv6 address in brackets: `[fd00::1]:9701`
    #[arg(long, value_name = "IP:PORT,...", value_delimiter = ',', required = true)]
    workers: Vec<SocketAddr>,

    /// Address and UDP port of the aggregator
    #[arg(long, value_name = "IP:PORT")]
    aggregator: SocketAddr,

    /// Values (f32) in flight in one step, that is, the parameters of the model; the aggregator reserves memory for them
    #[arg(long, value_name = "COUNT")]
    elements: u64,

    /// MTU, in bytes, of the path between workers and aggregator; up to 3498 is of use
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: usize,

    /// The longest time, in seconds, that anything waits without progress
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    timeout: f64,

    /// What each worker's network card may send, such as 10gbit, in the order of ranks, or one rate for all [default: as fast as
    /// congestion control finds]
    #[arg(long, value_name = "RATE,...", value_delimiter = ',')]
    rate: Vec<Rate>,

    /// Gradients and results go without XAgg's checksum, a little faster: what memory of network cards and switches damages then gets
    /// into sums unnoticed
    #[arg(long)]
    no_checksum: bool,

    /// Number of the job; jobs on the same aggregator need different ones
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    id: u32,
}

/// Runs the sub-command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let family = Family::of(&args.aggregator);
    let lanes = family.lanes_for_mtu(args.mtu).with_context(|| {
        let (mtu, smallest) = (args.mtu, family.mtu_for_lanes(LANE_BLOCK));
        format!("an MTU of {mtu} bytes carries no packet: over {family} the smallest is {smallest} bytes")
    })?;
    let (rates, workers) = (args.rate.len(), args.workers.len());
    ensure!(
        rates <= 1 || rates == workers,
        "--rate has {rates} rates for {workers} workers: give one for each, or one for all"
    );
    let text = describe(args, lanes, &hex(rand::random::<u128>()));
    Job::parse(&text)?;
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Reads a job file; an error names it.
pub fn load(path: &Path) -> anyhow::Result<Job> {
    let job = Job::load(path).map_err(|error| match error {
        JobError::Unreadable { .. } => error.into(),
        _ => anyhow::Error::new(error).context(path.display().to_string()),
    })?;
    if is_public(path) {
        let path = path.display();
        tracing::warn!(
            "everybody on this machine may read {path}, and whoever reads its secret can speak for any worker: `chmod 600 {path}`"
        );
    }
    Ok(job)
}

fn is_public(path: &Path) -> bool {
    const READABLE_BY_OTHERS: u32 = 0o004;
    path.metadata().is_ok_and(|file| file.permissions().mode() & READABLE_BY_OTHERS != 0)
}

fn hex(secret: u128) -> String {
    format!("{secret:032x}")
}

fn describe(args: &Args, lanes: usize, secret: &str) -> String {
    let mut text = format!(
        "job = {id}\n\
         view = 1                      # raise it to run the job again on an aggregator that goes on\n\
         secret = \"{secret}\"\n\
         lanes = {lanes}                   # f32 values per packet, for MTU {mtu} over {family}\n\
         gradient_elements = {elements}\n\
         timeout_seconds = {timeout}\n\
         checksum = {checksum}               # false: gradients and results go without one\n\
         aggregator = \"{aggregator}\"\n",
        id = args.id,
        mtu = args.mtu,
        family = Family::of(&args.aggregator),
        elements = args.elements,
        timeout = args.timeout,
        checksum = !args.no_checksum,
        aggregator = args.aggregator,
    );
    for (rank, address) in args.workers.iter().enumerate() {
        let _infallible = write!(text, "\n[[worker]]\nrank = {rank}\naddress = \"{address}\"\n");
        if let Some(rate) = args.rate.get(rank).or(args.rate.last()) {
            let _infallible = writeln!(text, "rate = \"{rate}\"");
        }
    }
    text
}
