//! `cargo xtask bench`: XAgg beside its peers.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;

use crate::packages;
use crate::profile::Profile;
use crate::shell;

/// Measure XAgg beside its peers, in network namespaces on this machine (needs root)
///
/// Without a scenario, or with `list`, lists the scenarios. Every comparison is one of the same run.
#[derive(Args)]
#[command(
    after_help = "Example:\n  cargo xtask bench allreduce-unlimited --only gloo,xagg-xdp --json rows.json"
)]
pub struct Options {
    /// The scenario
    #[arg(default_value = "list")]
    scenario: String,
    /// Only these systems
    #[arg(long, value_name = "SYSTEM,...")]
    only: Option<String>,
    /// A small vector and one round, to see that it works
    #[arg(long)]
    quick: bool,
    /// Also write the rows to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// More options of the benchmark, such as `-- --workers 4 --mtu 1500`
    #[arg(last = true, value_name = "OPTION")]
    more: Vec<String>,
}

/// Runs a scenario.
///
/// # Errors
/// What cannot be had or built, or a system that fails.
pub fn run(options: &Options) -> Result<()> {
    if options.scenario == "list" {
        return shell::run(bench()?.arg("list"));
    }
    ensure!(shell::is_root(), "the benchmarks make network namespaces, and only root can");
    packages::ensure(&[packages::BUILD, packages::NETWORK, packages::PYTORCH, packages::PEERS])?;
    let xagg = Profile::Release.build_xagg()?;
    let mut command = bench()?;
    command.arg("run").arg(&options.scenario).arg("--xagg").arg(xagg);
    if options.quick {
        command.arg("--quick");
    }
    if let Some(only) = &options.only {
        command.arg("--only").arg(only);
    }
    if let Some(json) = &options.json {
        command.arg("--json").arg(json);
    }
    command.args(&options.more);
    shell::run(&mut command)
}

/// Whether a scenario of each kind runs, whatever the figures.
///
/// # Errors
/// As [`run`].
pub fn check() -> Result<()> {
    for scenario in ["allreduce-small", "allreduce-hetero"] {
        run(&Options { scenario: scenario.to_owned(), only: None, quick: true, json: None, more: vec![] })?;
    }
    Ok(())
}

fn bench() -> Result<Command> {
    let mut build = shell::cargo(&["build", "--quiet", "--release", "--package", "xagg-bench"]);
    shell::run(&mut build)?;
    Ok(Command::new(shell::target().join("release/xagg-bench")))
}
