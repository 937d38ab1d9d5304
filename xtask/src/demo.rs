//! `cargo xtask demo`: a PyTorch job on Fashion-MNIST, its gradients summed once by XAgg and once by gloo.

mod events;
mod interrupt;
mod job;
mod place;
mod plot;
mod process;
mod progress;
mod report;
mod training;

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use xagg_testbed::Rate;

use crate::packages;
use crate::profile::Profile;
use crate::python::Python;
use crate::shell;
use interrupt::Interrupt;
use place::Place;
use report::Report;
use training::{Backend, Setup};

/// Train a CNN with PyTorch twice, through XAgg and through gloo, and compare
///
/// Makes a network of namespaces with a worker in each, an aggregator and a switch (as root), trains on Fashion-MNIST with the
/// same seeds through both systems, and shows loss, accuracy, times and packets. Without root everything runs over
/// loopback, with the datapath in user space.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo xtask demo --rate 1gbit --slow 3:250mbit --json demo.json")]
pub struct Options {
    /// Ranks of the job
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=32))]
    workers: u16,

    /// Passes over the training images
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    epochs: u32,

    /// Training images of an epoch, at most 60000
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1000..=60_000))]
    samples: u32,

    /// The rate of every link, such as 1gbit [default: as fast as the machine]
    #[arg(long)]
    rate: Option<Rate>,

    /// A rank with a slower link, such as 3:250mbit; may be given more than once
    #[arg(long, value_name = "RANK:RATE")]
    slow: Vec<Slow>,

    /// How the aggregator gets at packets; `auto` takes the first that works
    #[arg(long, default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "xdp-native", "xdp-generic", "udp"]))]
    datapath: String,

    /// Also write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where the plot of loss and communication time goes [default: demo/demo.png in cargo's target folder]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A rank and the rate of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slow {
    rank: u16,
    rate: Rate,
}

impl FromStr for Slow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is not a rank and a rate: write for instance 3:250mbit");
        let (rank, rate) = text.split_once(':').ok_or_else(wrong)?;
        Ok(Self {
            rank: rank.parse().map_err(|_| wrong())?,
            rate: rate.parse::<Rate>().map_err(|error| error.to_string())?,
        })
    }
}

/// Runs the demo.
///
/// # Errors
/// When a package, a program or the network cannot be had, a process fails, or Ctrl-C was pressed.
pub fn run(options: &Options) -> Result<()> {
    place::check(options)?;
    let interrupt = Interrupt::catch()?;
    let setup = build(options, Profile::Release)?;
    let place = Place::make(options)?;
    println!("{place}");
    let xagg = training::run(Backend::Xagg, &setup, &place, &interrupt)?;
    let gloo = training::run(Backend::Gloo, &setup, &place, &interrupt)?;
    drop(place);
    let report = Report::new(setup.workers, xagg, gloo)?;
    println!("\n{}", report.table());
    let plot = options.plot.clone().unwrap_or_else(|| setup.folder.join("demo.png"));
    plot::draw(&report, &plot)?;
    println!("plot of loss and communication time: {}", plot.display());
    if let Some(path) = &options.json {
        fs::write(path, report.json()?).with_context(|| format!("cannot write {}", path.display()))?;
        println!("the same as JSON: {}", path.display());
    }
    Ok(())
}

/// The demo as a test: a few steps, through XAgg twice.
///
/// # Errors
/// As [`run`]; and when XAgg's two trainings differ in a bit, or what they learn is not what gloo's learns.
pub fn check() -> Result<()> {
    let options = Options {
        workers: 4,
        epochs: 1,
        samples: 3000,
        rate: None,
        slow: Vec::new(),
        datapath: "auto".to_owned(),
        json: None,
        plot: None,
    };
    let interrupt = Interrupt::catch()?;
    let setup = build(&options, Profile::Dev)?;
    let place = Place::make(&options)?;
    println!("{place}");
    let xagg = training::run(Backend::Xagg, &setup, &place, &interrupt)?;
    let again = training::run(Backend::Xagg, &setup, &place, &interrupt)?;
    let gloo = training::run(Backend::Gloo, &setup, &place, &interrupt)?;
    let same_bits = xagg.ends[0].parameters_sha256 == again.ends[0].parameters_sha256;
    ensure!(same_bits, "two trainings through XAgg with the same seeds gave different parameters");
    let report = Report::new(setup.workers, xagg, gloo)?;
    let difference = report.loss_difference();
    ensure!(difference < 0.01, "the losses of xagg and gloo differ by {difference}");
    println!("{}", report.table());
    Ok(())
}

/// Installs and builds everything that the demo needs.
fn build(options: &Options, profile: Profile) -> Result<Setup> {
    packages::ensure(&[packages::BUILD, packages::PYTORCH, packages::DATA, packages::FONT])?;
    if shell::is_root() {
        packages::ensure(&[packages::NETWORK])?;
    }
    println!("building (the first time takes a few minutes) ...");
    let xagg = profile.build_xagg()?;
    let folder = shell::target().join("demo");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(Setup {
        workers: options.workers,
        epochs: options.epochs,
        samples: options.samples,
        datapath: options.datapath.clone(),
        xagg,
        python: Python::prepare(profile)?,
        data: training_data()?,
        folder,
    })
}

fn training_data() -> Result<PathBuf> {
    let files = packages::files("dataset-fashion-mnist")?;
    let images = files.iter().find(|file| file.ends_with("/train-images-idx3-ubyte.gz"));
    let images = images.context("the package dataset-fashion-mnist has no train-images-idx3-ubyte.gz")?;
    Ok(PathBuf::from(images).parent().expect("a file is in a folder").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_worker_is_a_rank_and_a_rate() {
        assert_eq!("3:250mbit".parse(), Ok(Slow { rank: 3, rate: Rate::mbit(250) }));
        assert!("250mbit".parse::<Slow>().expect_err("no rank").contains("3:250mbit"));
        assert!("x:250mbit".parse::<Slow>().expect_err("no rank").contains("3:250mbit"));
        assert!("3:fast".parse::<Slow>().expect_err("no rate").contains("\"fast\" is not a rate"));
    }
}
