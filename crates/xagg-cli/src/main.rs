//! The `xagg` command, one file per sub-command.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

mod aggregator;
mod allreduce;
mod job;
mod status;

/// Sums gradients of distributed training in the network, on ordinary servers.
///
/// A job is described by one file that all its members share; `xagg job` writes one. Start `xagg aggregator` with it on
/// the server, then the workers: PyTorch through the Python package `xagg`, or `xagg allreduce` to try it out.
#[derive(Parser)]
#[command(
    name = "xagg",
    version,
    after_help = "Logs go to the standard error; XAGG_LOG sets how much (error, warn, info, debug, trace).\n\
                  Exit code: 0 success, 1 failure, 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Aggregator(aggregator::Args),
    Allreduce(allreduce::Args),
    Status(status::Args),
    Job(job::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A full disk under the standard error is no reason to end in another way.
            let _best_effort = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    start_log()?;
    match command {
        Command::Aggregator(args) => aggregator::run(&args),
        Command::Allreduce(args) => allreduce::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Job(args) => job::run(&args),
    }
}

fn start_log() -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var("XAGG_LOG")
        .from_env()
        .context("XAGG_LOG is not a log filter, such as `debug` or `info,xagg_worker=trace`")?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // It would be told on the standard error, which is what does not work then, and end the thread.
        .log_internal_errors(false)
        .init();
    Ok(())
}
