//! `cargo xtask sim`: many seeds through the simulator, and the proof that it can fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use xagg_testbed::Process;

use crate::shell;

/// What the tests run: enough for every scenario of chance to come several times.
const TEST_SEEDS: u64 = 4000;
/// The most seeds that a mistake may go unnoticed.
const MUTANT_SEEDS: u64 = 6000;
/// How long that may take, many times more than without a mistake.
const MUTANT_LIMIT: Duration = Duration::from_secs(300);

/// Simulate whole jobs over bad networks, one scenario for each seed
///
/// The first seed that breaks a rule is shown with the command that replays it, and as the smallest scenario that still does.
#[derive(Args)]
pub struct Options {
    /// How many seeds
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run one scenario from a TOML file instead
    #[arg(long)]
    scenario: Option<PathBuf>,
    /// Prove that the simulator can fail: make each of the mistakes in crates/xagg-sim/mutants.toml and expect it to be noticed
    #[arg(long, conflicts_with_all = ["seeds", "first", "scenario"])]
    mutants: bool,
}

/// Runs the simulator.
///
/// # Errors
/// When a rule breaks, or a mutant goes unnoticed.
pub fn run(options: &Options) -> Result<()> {
    if options.mutants {
        return mutants();
    }
    let mut command = simulator(shell::workspace(), &shell::target())?;
    match &options.scenario {
        // The simulator runs in the folder of the caller.
        Some(path) => command.arg("--scenario").arg(path),
        None => command.args(["--first", &options.first.to_string(), "--seeds", &options.seeds.to_string()]),
    };
    shell::run(&mut command)
}

/// The seeds that every test run takes.
///
/// # Errors
/// When a rule breaks.
pub fn check() -> Result<()> {
    let mut command = simulator(shell::workspace(), &shell::target())?;
    shell::run(command.args(["--seeds", &TEST_SEEDS.to_string()]))
}

/// Builds the simulator of a tree.
fn simulator(tree: &Path, target: &Path) -> Result<Command> {
    let mut build = shell::cargo(&["build", "--quiet", "--release", "--package", "xagg-sim", "--target-dir"]);
    shell::run(build.arg(target).current_dir(tree))?;
    Ok(Command::new(target.join("release/xagg-sim")))
}

/// A mistake to be made.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    file: String,
    find: String,
    replace: String,
    #[serde(default)]
    also: Vec<Change>,
    /// The test of xagg-sim that notices it, where it breaks no rule but is slower or sends more.
    test: Option<String>,
}

/// Another change in the same file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    find: String,
    replace: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutants {
    mutant: Vec<Mutant>,
}

/// Makes one mistake after the other, in a copy of the tree.
///
/// # Errors
/// Names the mistakes that went unnoticed, and those that are out of date.
pub fn mutants() -> Result<()> {
    let list = shell::workspace().join("crates/xagg-sim/mutants.toml");
    let Mutants { mutant: all } = toml::from_str(&fs::read_to_string(&list)?)?;
    let tree = shell::target().join("mutants");
    copy_sources(&tree)?;
    let mut unnoticed = vec![];
    for mutant in &all {
        if mutant.is_noticed(&tree)? {
            println!("noticed: {}", mutant.name);
        } else {
            println!("UNNOTICED: {}", mutant.name);
            unnoticed.push(mutant.name.as_str());
        }
    }
    if !unnoticed.is_empty() {
        bail!("{} of {} mistakes went unnoticed: {}", unnoticed.len(), all.len(), unnoticed.join("; "));
    }
    println!("all {} mistakes are noticed", all.len());
    Ok(())
}

/// What the simulator is made of, as a workspace of its own. Files that did not change keep their times, so that little is
/// compiled again.
fn copy_sources(tree: &Path) -> Result<()> {
    const CRATES: [&str; 3] = ["crates/xagg-wire", "crates/xagg-proto", "crates/xagg-sim"];
    let manifest = fs::read_to_string(shell::workspace().join("Cargo.toml"))?;
    let mut manifest: toml::Table = toml::from_str(&manifest)?;
    if let Some(workspace) = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut) {
        workspace.insert("members".to_owned(), CRATES.to_vec().into());
        workspace.remove("default-members");
        // What a mistake leaves unused is no news.
        workspace.insert("lints".to_owned(), toml::toml! { rust = { warnings = "allow" } }.into());
    }
    // A mutant is compiled once to run for seconds: what it takes to compile counts.
    let profile = toml::toml! {
        release = { opt-level = 2, debug = false, incremental = true, codegen-units = 64, strip = true }
    };
    manifest.insert("profile".to_owned(), profile.into());
    let cargo = |name: &str| tree.join(name);
    fs::create_dir_all(tree)?;
    write_if_new(&cargo("Cargo.toml"), toml::to_string(&manifest)?.as_bytes())?;
    write_if_new(&cargo("Cargo.lock"), &fs::read(shell::workspace().join("Cargo.lock"))?)?;
    for name in CRATES {
        copy_folder(&shell::workspace().join(name), &tree.join(name))?;
    }
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            write_if_new(&to, &fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

fn write_if_new(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

impl Mutant {
    /// Whether some seed fails with it, or its test. The tree is as it was afterwards.
    fn is_noticed(&self, tree: &Path) -> Result<bool> {
        let path = tree.join(&self.file);
        let right = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        fs::write(&path, self.change(&right)?)?;
        let ran = self.run(tree);
        fs::write(&path, right)?;
        ran
    }

    fn change(&self, right: &str) -> Result<String> {
        let changes = self.also.iter().map(|change| (&change.find, &change.replace));
        let mut text = right.to_owned();
        for (find, replace) in std::iter::once((&self.find, &self.replace)).chain(changes) {
            if text.matches(find).count() != 1 {
                bail!(
                    "`{}`: `{find}` is not in {} exactly once: bring the mutant up to date",
                    self.name,
                    self.file
                );
            }
            text = text.replace(find, replace);
        }
        Ok(text)
    }

    fn run(&self, tree: &Path) -> Result<bool> {
        let (command, failed) = self.check(tree).with_context(|| format!("`{}`", self.name))?;
        let ended =
            Process::spawn(command)?.wait(MUTANT_LIMIT).with_context(|| format!("`{}`", self.name))?;
        match ended.status.code() {
            Some(0) => Ok(false),
            Some(code) if code == failed => Ok(true),
            other => bail!("`{}`: the check ended with {other:?}", self.name),
        }
    }

    /// Builds what is to notice it, and says with which code that fails.
    fn check(&self, tree: &Path) -> Result<(Command, i32)> {
        let target = tree.join("target");
        let Some(test) = &self.test else {
            let mut command = simulator(tree, &target)?;
            command.args(["--no-shrink", "--seeds", &MUTANT_SEEDS.to_string()]);
            return Ok((command, 1));
        };
        let cargo = || {
            let mut command =
                shell::cargo(&["test", "--quiet", "--release", "--package", "xagg-sim", "--test", test]);
            command.arg("--target-dir").arg(&target).current_dir(tree);
            command
        };
        shell::run(cargo().arg("--no-run"))?;
        Ok((cargo(), 101))
    }
}
