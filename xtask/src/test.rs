//! `cargo xtask test`: all tests in order, what they skipped, and whether they cleaned up.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::bench;
use crate::demo;
use crate::leftovers::Leftovers;
use crate::packages;
use crate::profile::Profile;
use crate::python::Python;
use crate::shell;
use crate::sim;
use crate::steps::Steps;

/// Runs every test.
///
/// # Errors
/// Names the steps that failed.
pub fn run() -> Result<()> {
    let mut steps = Steps::default();
    add_to(&mut steps)?;
    steps.finish()
}

/// Runs every test as steps of a longer list.
///
/// # Errors
/// When the tests cannot even begin.
pub fn add_to(steps: &mut Steps) -> Result<()> {
    packages::ensure(&[packages::BUILD, packages::PYTORCH, packages::DATA, packages::FONT])?;
    if shell::is_root() {
        packages::ensure(&[packages::NETWORK])?;
    }
    let skips = SkipLog::begin()?;
    let before = Leftovers::find();
    steps.run("Rust tests", || rust_tests(&skips));
    steps.run("Python tests", || python_tests(&skips));
    steps.run("simulation", sim::check);
    steps.run("the simulation can fail", sim::mutants);
    steps.run("demo, in short", demo::check);
    if shell::is_root() {
        steps.run("benchmarks, in short", bench::check);
    } else {
        skips.note("SKIPPED benchmarks, in short: they need root")?;
    }
    steps.run("nothing is left behind", || before.expect_nothing_new());
    skips.report()
}

fn rust_tests(skips: &SkipLog) -> Result<()> {
    // The Python module links against no libpython: what it does is tested from Python.
    let mut tests = shell::cargo(&["test", "--workspace", "--exclude", "xagg-python", "--no-fail-fast"]);
    shell::run(tests.env("XAGG_SKIP_LOG", skips.path()))
}

fn python_tests(skips: &SkipLog) -> Result<()> {
    let xagg = Profile::Dev.build_xagg()?;
    let mut pytest = Python::prepare(Profile::Dev)?.command();
    pytest.args(["-m", "pytest", "--quiet", "bindings/python/tests"]);
    pytest.env("XAGG_BIN", xagg).env("XAGG_SKIP_LOG", skips.path());
    shell::run(&mut pytest)
}

/// Where tests write one line for each thing that they skip.
struct SkipLog(PathBuf);

impl SkipLog {
    fn begin() -> Result<Self> {
        let path = shell::target().join("skips.log");
        fs::create_dir_all(shell::target())?;
        fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn note(&self, line: &str) -> Result<()> {
        eprintln!("{line}");
        writeln!(fs::OpenOptions::new().append(true).open(&self.0)?, "{line}")?;
        Ok(())
    }

    fn report(&self) -> Result<()> {
        println!("\n{}", summary(&fs::read_to_string(&self.0)?));
        Ok(())
    }
}

fn summary(log: &str) -> String {
    let skipped: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    if skipped.is_empty() {
        return "no test was skipped".to_owned();
    }
    format!("{} TESTS SKIPPED:\n  {}", skipped.len(), skipped.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_skip_is_shown_and_counted() {
        assert_eq!(summary("\n"), "no test was skipped");
        let text = summary("one: needs root\ntwo: needs root\n");
        assert!(text.starts_with("2 TESTS SKIPPED") && text.contains("\n  two: needs root"), "{text}");
    }
}
