//! `xagg allreduce`: one rank that sums a vector with all the others and checks the result.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use xagg_proto::Job;
use xagg_worker::{Client, Reduction, Stats, WorkerError};

mod values;

use crate::job;
use values::Source;

/// Be one rank of a job: sum a vector with all other ranks and check the result
///
/// Start it once for every rank of the job. Generated values are integers that every rank can compute for all the others,
/// so each checks its result bit for bit and fails if one differs. Values from a file cannot be checked that way: compare the
/// digests that the ranks print.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  xagg allreduce --job job.toml --rank 0 --elements 25000000 --iterations 10"
)]
pub struct Args {
    /// Job file, the same on all ranks
    #[arg(long, value_name = "FILE")]
    job: PathBuf,

    /// This process's rank, from 0
    #[arg(long)]
    rank: u16,

    /// How many values to generate, the same on all ranks
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    elements: u64,

    /// Sum the values of this file (f32, little-endian, nothing else) instead of generated ones
    #[arg(long, value_name = "FILE", conflicts_with_all = ["elements", "seed", "no_check"])]
    input: Option<PathBuf>,

    /// Write the result of the last iteration to this file (f32, little-endian)
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// How often to do it, the same on all ranks
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,

    /// What to do with everybody's values, the same on all ranks
    #[arg(long, value_enum, default_value_t = ReductionChoice::Sum)]
    reduction: ReductionChoice,

    /// Do not check the result
    #[arg(long)]
    no_check: bool,

    /// From what to generate values, the same on all ranks
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReductionChoice {
    /// The sum over all ranks
    Sum,
    /// The sum divided by the number of ranks
    Mean,
}

impl From<ReductionChoice> for Reduction {
    fn from(choice: ReductionChoice) -> Self {
        match choice {
            ReductionChoice::Sum => Self::Sum,
            ReductionChoice::Mean => Self::Mean,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    job: u32,
    rank: u16,
    workers: u16,
    elements: usize,
    reduction: String,
    /// Whether every result was compared with the exact one, bit for bit.
    checked: bool,
    iterations: Vec<Iteration>,
    stats: Stats,
    /// Whom this rank waited for with nothing left to push; times overlap where several were missing.
    waited_for: Vec<WaitedFor>,
}

#[derive(Serialize)]
struct WaitedFor {
    rank: u16,
    seconds: f64,
}

#[derive(Serialize)]
struct Iteration {
    seconds: f64,
    /// Bytes of this rank's vector by time.
    gigabytes_per_second: f64,
    retransmissions: u64,
    /// See [`values::digest`].
    digest: String,
}

/// Runs the sub-command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let job = job::load(&args.job)?;
    let source = match &args.input {
        Some(path) => Source::read(path)?,
        None => Source::Generated { seed: args.seed, elements: usize::try_from(args.elements)? },
    };
    let output = args.output.as_deref().map(create).transpose()?;
    let rank = Rank { client: Client::connect(&job, args.rank)?, job: &job, source: &source, args };
    let mut iterations = vec![];
    let mut last = vec![];
    for number in 0..args.iterations {
        let iteration;
        (iteration, last) = rank.iterate(number)?;
        if !args.json {
            writeln!(std::io::stdout(), "{}", line(number, &iteration))?;
        }
        iterations.push(iteration);
    }
    if let Some((path, file)) = output {
        write(&last, file).with_context(|| format!("cannot write {}", path.display()))?;
    }
    rank.report(iterations)
}

/// One rank at work.
struct Rank<'a> {
    client: Client,
    job: &'a Job,
    source: &'a Source,
    args: &'a Args,
}

impl Rank<'_> {
    fn checks(&self) -> bool {
        !self.args.no_check && self.args.input.is_none()
    }

    fn iterate(&self, number: u64) -> anyhow::Result<(Iteration, Vec<f32>)> {
        let values = self.source.values(self.args.rank, number)?;
        let before = self.client.stats();
        let begin = Instant::now();
        let result = self.all_reduce(values, number, before.results)?;
        let seconds = begin.elapsed().as_secs_f64();
        if self.checks() {
            self.source.check(&result, number, self.job.worker_count(), self.args.reduction.into())?;
        }
        let iteration = Iteration {
            seconds,
            gigabytes_per_second: (size_of::<f32>() * result.len()) as f64 / seconds / 1e9,
            retransmissions: self.client.stats().retransmissions - before.retransmissions,
            digest: values::digest(&result),
        };
        Ok((iteration, result))
    }

    /// Waits for the result; meanwhile a terminal shows how many fragments of it are there.
    fn all_reduce(&self, values: Vec<f32>, number: u64, results: u64) -> Result<Vec<f32>, WorkerError> {
        const REDRAW: Duration = Duration::from_millis(100);
        let bar = progress_bar(values.len().div_ceil(self.job.lanes), number);
        let mut handle = self.client.all_reduce(values, self.args.reduction.into());
        loop {
            match handle.wait_timeout(REDRAW) {
                Ok(outcome) => {
                    bar.finish_and_clear();
                    return outcome;
                }
                Err(unfinished) => handle = unfinished,
            }
            bar.set_position(self.client.stats().results - results);
            bar.set_message(message(number, &handle.waiting_for()));
        }
    }

    fn report(&self, iterations: Vec<Iteration>) -> anyhow::Result<()> {
        let reduction = Reduction::from(self.args.reduction);
        let report = Report {
            job: self.job.id,
            rank: self.args.rank,
            workers: self.job.worker_count(),
            elements: self.source.elements(),
            reduction: reduction.to_string(),
            checked: self.checks(),
            iterations,
            stats: self.client.stats(),
            waited_for: self.waited_for(),
        };
        let text =
            if self.args.json { serde_json::to_string(&report)? } else { self.waits() + &self.verdict() };
        writeln!(std::io::stdout(), "{text}")?;
        Ok(())
    }

    fn waited_for(&self) -> Vec<WaitedFor> {
        let spent = self.client.waits().spent;
        spent.into_iter().map(|(rank, spent)| WaitedFor { rank, seconds: spent.as_secs_f64() }).collect()
    }

    /// A line for every rank that was waited for.
    fn waits(&self) -> String {
        let line = |WaitedFor { rank, seconds }| {
            format!(
                "rank {}: waited {seconds:.1} s for rank {rank}, with nothing left to push\n",
                self.args.rank
            )
        };
        self.waited_for().into_iter().map(line).collect()
    }

    fn verdict(&self) -> String {
        let (rank, workers) = (self.args.rank, self.job.worker_count());
        if self.checks() {
            format!(
                "rank {rank}: every result is exactly the {} over {workers} ranks",
                Reduction::from(self.args.reduction)
            )
        } else {
            format!(
                "rank {rank}: results not checked; they are right only if all {workers} ranks print the same digests"
            )
        }
    }
}

fn line(number: u64, iteration: &Iteration) -> String {
    let Iteration { seconds, gigabytes_per_second, retransmissions, digest } = iteration;
    format!(
        "iteration {number}: {seconds:.6} s, {gigabytes_per_second:.3} GB/s, {retransmissions} retransmissions, digest {digest}"
    )
}

/// Hidden where the standard error is not a terminal.
fn progress_bar(fragments: usize, number: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} fragments, {elapsed}");
    ProgressBar::new(fragments as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(message(number, &[]))
}

fn message(iteration: u64, waiting_for: &[u16]) -> String {
    match waiting_for {
        [] => format!("iteration {iteration}"),
        [rank] => format!("iteration {iteration}, waiting for rank {rank}"),
        [rank, others @ ..] => {
            format!("iteration {iteration}, waiting for rank {rank} and {} more", others.len())
        }
    }
}

/// Opened before the job begins: a wrong path must not cost its result.
fn create(path: &Path) -> anyhow::Result<(PathBuf, File)> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok((path.to_owned(), file))
}

fn write(values: &[f32], mut file: File) -> std::io::Result<()> {
    values::byte_blocks(values).try_for_each(|block| file.write_all(&block))
}
