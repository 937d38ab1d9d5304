//! `xagg-sim`: runs many seeds in parallel; shows the smallest scenario of the first one that fails.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use xagg_sim::{Scenario, Violation, random, run, shrink};

/// Simulate whole jobs over bad networks, one scenario for each seed
///
/// Everything in a run follows from its seed. The first seed that breaks a rule is made as small as possible and shown with
/// the command that replays it.
///
/// Example: xagg-sim --seeds 10000
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How many seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Threads [default: one for each core]
    #[arg(long)]
    threads: Option<usize>,
    /// Run one scenario from a TOML file instead
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    scenario: Option<PathBuf>,
    /// Show a failing scenario as it is, without making it smaller
    #[arg(long)]
    no_shrink: bool,
}

/// How many scenarios are tried to make one smaller.
const SHRINK_TRIES: usize = 400;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic of a member is a violation, which is reported with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    match work(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether all rules held.
fn work(arguments: &Arguments) -> Result<bool> {
    if let Some(path) = &arguments.scenario {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let scenario: Scenario =
            toml::from_str(&text).with_context(|| format!("{} is not a scenario", path.display()))?;
        return match run(&scenario) {
            Ok(outcome) => {
                println!("every rule holds; over after {:.1?}", outcome.finished);
                Ok(true)
            }
            Err(violation) => {
                eprintln!("FAILED {violation}");
                Ok(false)
            }
        };
    }
    let began = Instant::now();
    let progress = ProgressBar::new(arguments.seeds);
    progress.set_style(ProgressStyle::with_template("{wide_bar} {pos}/{len} seeds, {eta} left")?);
    let threads = arguments.threads.map_or_else(std::thread::available_parallelism, |count| {
        std::num::NonZero::new(count).ok_or_else(|| std::io::Error::other("--threads 0: use 1 or more"))
    })?;
    let search = Search::new(arguments.first, arguments.seeds);
    std::thread::scope(|scope| {
        for _ in 0..threads.get() {
            scope.spawn(|| search.work(&progress));
        }
    });
    progress.finish_and_clear();
    let packets = search.packets.load(Ordering::Relaxed);
    let seconds = began.elapsed().as_secs_f64();
    match search.first_failure() {
        None => {
            println!("{} seeds, {packets} packets, every rule holds ({seconds:.1} s)", arguments.seeds);
            Ok(true)
        }
        Some((seed, violation)) => {
            show(seed, &violation, arguments.no_shrink)?;
            Ok(false)
        }
    }
}

/// Threads that take seed after seed until one fails.
struct Search {
    next: AtomicU64,
    end: u64,
    packets: AtomicU64,
    stop: AtomicBool,
    failures: Mutex<Vec<(u64, Violation)>>,
}

impl Search {
    const fn new(first: u64, seeds: u64) -> Self {
        Self {
            next: AtomicU64::new(first),
            end: first.saturating_add(seeds),
            packets: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failures: Mutex::new(vec![]),
        }
    }

    fn work(&self, progress: &ProgressBar) {
        while !self.stop.load(Ordering::Relaxed) {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            match run(&random::scenario(seed)) {
                Ok(outcome) => drop(self.packets.fetch_add(outcome.packets, Ordering::Relaxed)),
                Err(violation) => {
                    self.stop.store(true, Ordering::Relaxed);
                    let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push((seed, violation));
                }
            }
            progress.inc(1);
        }
    }

    fn first_failure(self) -> Option<(u64, Violation)> {
        let failures = self.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        failures.into_iter().min_by_key(|(seed, _)| *seed)
    }
}

fn show(seed: u64, violation: &Violation, no_shrink: bool) -> Result<()> {
    eprintln!("FAILED with seed {seed}, {violation}");
    eprintln!("replay: cargo xtask sim --first {seed} --seeds 1");
    if no_shrink {
        return Ok(());
    }
    let (smallest, found) = shrink::shrink(&random::scenario(seed), violation, SHRINK_TRIES);
    let path = std::env::temp_dir().join(format!("xagg-sim-{seed}.toml"));
    std::fs::write(&path, toml::to_string(&smallest)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!(
        "the smallest that breaks the same rule: {} workers, operations {:?}, {} incidents; {found}",
        smallest.workers.len(),
        smallest.operations,
        smallest.incidents.len()
    );
    eprintln!("replay: cargo xtask sim --scenario {}", path.display());
    Ok(())
}
