//! `xagg-bench`: how fast XAgg is beside what its users have. `cargo xtask bench` builds and calls it.

mod control;
mod cpu;
mod report;
mod run;
mod scenario;
mod system;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use scenario::{Only, Scenario};
use system::{System, tcp_ps};

/// Compare XAgg with its peers, side by side on one machine
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the scenarios
    List,
    /// Measure one (as root: it makes network namespaces)
    Run(Options),
    /// Be a rank of XAgg (the benchmark starts it)
    #[command(hide = true)]
    Rank { control: PathBuf, job: PathBuf, rank: u16 },
    /// Be the TCP parameter server (the benchmark starts it)
    #[command(hide = true)]
    TcpPsServer { address: SocketAddr, workers: usize, elements: usize, threads: usize },
    /// Be a worker of the TCP parameter server (the benchmark starts it)
    #[command(hide = true)]
    TcpPsRank { control: PathBuf, server: SocketAddr, rank: u16, workers: u16, elements: usize },
}

#[derive(Args)]
struct Options {
    /// Which, see `list`
    scenario: String,
    /// The `xagg` binary
    #[arg(long, value_name = "FILE")]
    xagg: PathBuf,
    /// Only these systems
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',', value_parser = parse_system)]
    only: Vec<System>,
    #[command(flatten)]
    only_settings: Only,
    /// A small vector and one round, to see that it works
    #[arg(long)]
    quick: bool,
    /// Also write the rows to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_system(text: &str) -> Result<System, String> {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};
    let deserializer: StrDeserializer<'_, Error> = text.into_deserializer();
    serde::Deserialize::deserialize(deserializer).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::List => list(),
        Command::Run(options) => run(&options),
        Command::Rank { control, job, rank } => system::xagg::serve(&control, &job, rank),
        Command::TcpPsServer { address, workers, elements, threads } => {
            tcp_ps::serve(address, workers, elements, threads)
        }
        Command::TcpPsRank { control, server, rank, workers, elements } => {
            tcp_ps::serve_rank(&control, server, rank, workers, elements)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> Result<()> {
    for (name, scenario) in Scenario::all()? {
        println!("{name}\n    {}", scenario.about.trim().replace('\n', "\n    "));
    }
    Ok(())
}

fn run(options: &Options) -> Result<()> {
    ensure!(xagg_testbed::is_root(), "it makes network namespaces, and only root can");
    let mut all = Scenario::all()?;
    let names: Vec<String> = all.keys().cloned().collect();
    let mut scenario = all
        .remove(&options.scenario)
        .with_context(|| format!("there is no scenario {}: use {}", options.scenario, names.join(", ")))?;
    if options.quick {
        scenario = scenario.quick();
    }
    scenario.restrict(&options.only_settings)?;
    if !options.only.is_empty() {
        scenario.systems.retain(|system| options.only.contains(system));
        ensure!(!scenario.systems.is_empty(), "{} has none of these systems", scenario.name);
    }
    introduce(&scenario);
    let progress =
        ProgressBar::new(0).with_style(ProgressStyle::with_template("{pos}/{len} {msg} {elapsed}")?);
    let rows = run::run(&scenario, &options.xagg, &progress)?;
    progress.finish_and_clear();
    println!("{}", report::table(&rows));
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&rows)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        println!("the same as JSON: {}", path.display());
    }
    Ok(())
}

fn introduce(scenario: &Scenario) {
    println!("{}: {}", scenario.name, scenario.about.trim());
    println!("{} rounds of {} each, after one that does not count.", scenario.rounds, scenario.repeats);
    if let Some(bound) = scenario.settings().first().and_then(|setting| scenario.bound(setting)) {
        let factors: Vec<String> = scenario
            .mtu
            .iter()
            .filter_map(|&mtu| Some(format!("{:.4} at MTU {mtu}", run::header_factor(mtu)?)))
            .collect();
        println!(
            "T* is {bound:.3} s of payload; in the table with XAgg's headers, times {}.",
            factors.join(", ")
        );
    }
    for system in &scenario.systems {
        if let Some(missing) = system.missing() {
            println!("SKIPPED: {system}: {missing}");
        }
    }
}
