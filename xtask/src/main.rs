//! `cargo xtask`: what a developer of XAgg runs.

mod bench;
mod ci;
mod demo;
mod leftovers;
mod packages;
mod profile;
mod python;
mod shell;
mod sim;
mod steps;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Build, try and check XAgg
///
/// Each command installs what it needs with apt-get where that is possible, and says so first.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Options),
    Sim(sim::Options),
    Bench(bench::Options),
    /// Run all tests: Rust, Python, the demo in short, and whether they cleaned up
    ///
    /// Tests that need root (network namespaces, kernel programs) are skipped without it; what was skipped is listed and
    /// counted at the end.
    Test,
    /// Run everything that a change must pass: test, tidy, format, clippy, documentation, licences
    Ci,
    /// Check the style of every file: lengths, left-overs, paths of one machine, promises without a test
    Tidy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Test => test::run(),
        Command::Ci => ci::run(),
        Command::Tidy => tidy::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
