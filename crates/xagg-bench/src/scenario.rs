//! A scenario: what is measured, in which settings. One TOML file each in `scenarios/`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;
use xagg_testbed::Rate;

use crate::system::System;

/// What stands in the file. Where there are several values, every combination is a setting.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name: that of the file.
    #[serde(skip)]
    pub name: String,
    /// What it shows, in a sentence or two.
    pub about: String,
    /// Who takes part, in this order.
    pub systems: Vec<System>,
    /// Numbers of workers.
    pub workers: Vec<usize>,
    /// The lengths of the vector, in values of 4 bytes.
    pub elements: Vec<usize>,
    /// MTUs, in bytes.
    pub mtu: Vec<usize>,
    /// Whether frames may be longer than the MTU, as on no wire, see [`xagg_testbed::Builder::offloads`].
    pub offloads: Vec<bool>,
    /// The rate of every worker's link, both ways; the aggregator's is as fast as the machine.
    pub rate: Option<Rate>,
    /// The last worker's, if it is another one.
    pub slow: Option<Rate>,
    /// How often is measured, after one round that is not.
    pub rounds: usize,
    /// All-reduces of a round, one after the other.
    #[serde(default = "one")]
    pub repeats: usize,
}

/// Which settings of a scenario are measured, if not all.
#[derive(Clone, Debug, Default, Args)]
pub struct Only {
    /// Only settings with so many workers
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Only settings with this MTU
    #[arg(long, value_name = "BYTES")]
    mtu: Option<usize>,
    /// Only settings with offloads, or only those without
    #[arg(long, value_name = "BOOL")]
    offloads: Option<bool>,
}

/// One combination.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// How many workers.
    pub workers: usize,
    /// Values.
    pub elements: usize,
    /// In bytes.
    pub mtu: usize,
    /// Whether frames may be longer than that.
    pub offloads: bool,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (workers, bytes, mtu) = (self.workers, 4 * self.elements, self.mtu);
        let offloads = if self.offloads { "on" } else { "off" };
        write!(formatter, "{workers} workers, {bytes} bytes, MTU {mtu}, offloads {offloads}")
    }
}

impl Scenario {
    /// All scenarios, by name.
    ///
    /// # Errors
    /// A file that cannot be read, or is wrong.
    pub fn all() -> Result<BTreeMap<String, Self>> {
        let folder = folder();
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        let paths: Vec<PathBuf> =
            entries.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
        paths.iter().map(|path| Self::read(path).map(|scenario| (scenario.name.clone(), scenario))).collect()
    }

    fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut scenario: Self =
            toml::from_str(&text).with_context(|| format!("{} is wrong", path.display()))?;
        scenario.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        ensure!(scenario.rounds > 0 && scenario.repeats > 0, "{}: nothing is measured", path.display());
        Ok(scenario)
    }

    /// A twentieth of the values and one round, to see that it works.
    #[must_use]
    pub fn quick(mut self) -> Self {
        for elements in &mut self.elements {
            *elements = (*elements / 20).max(1);
        }
        (self.rounds, self.repeats) = (1, self.repeats.min(2));
        self
    }

    /// Leaves out what is not to be measured.
    ///
    /// # Errors
    /// When nothing is left.
    pub fn restrict(&mut self, only: &Only) -> Result<()> {
        keep(&mut self.workers, only.workers, "workers")?;
        keep(&mut self.mtu, only.mtu, "mtu")?;
        keep(&mut self.offloads, only.offloads, "offloads")
    }

    /// Every combination, those on the same network side by side.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = vec![];
        for &workers in &self.workers {
            for &mtu in &self.mtu {
                for &offloads in &self.offloads {
                    for &elements in &self.elements {
                        settings.push(Setting { workers, elements, mtu, offloads });
                    }
                }
            }
        }
        settings
    }

    /// The rate of a rank's link.
    #[must_use]
    pub fn rate_of(&self, setting: &Setting, rank: usize) -> Option<Rate> {
        let is_slow = rank + 1 == setting.workers;
        self.slow.filter(|_| is_slow).or(self.rate)
    }

    /// The least time that any exact system with a spare server takes, in seconds: the slowest link must carry the whole vector. Payload
    /// only.
    #[must_use]
    pub fn bound(&self, setting: &Setting) -> Option<f64> {
        let rates = (0..setting.workers).map(|rank| self.rate_of(setting, rank));
        let slowest = rates.flatten().min()?;
        Some(setting.elements as f64 * 32.0 / slowest.bits_per_second() as f64)
    }
}

fn keep<T: PartialEq + fmt::Debug>(all: &mut Vec<T>, only: Option<T>, what: &str) -> Result<()> {
    if let Some(only) = only {
        ensure!(all.contains(&only), "--{what} {only:?}: the scenario has {all:?}");
        *all = vec![only];
    }
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

const fn one() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_valid_and_has_settings() {
        let all = Scenario::all().expect("valid");
        assert!(all.contains_key("allreduce-unlimited"));
        assert!(all.values().all(|scenario| !scenario.settings().is_empty() && !scenario.systems.is_empty()));
    }

    #[test]
    fn a_scenario_is_restricted_to_what_it_has() {
        let mut scenario = Scenario::all().expect("valid")["allreduce-unlimited"].clone();
        let only = Only { workers: Some(4), mtu: None, offloads: Some(false) };
        scenario.restrict(&only).expect("it has these");
        assert!(scenario.settings().iter().all(|setting| setting.workers == 4 && !setting.offloads));
        let error =
            scenario.restrict(&Only { workers: Some(5), ..Only::default() }).expect_err("none is left");
        assert_eq!(error.to_string(), "--workers 5: the scenario has [4]");
    }

    #[test]
    fn the_bound_is_that_of_the_slowest_link() {
        let hetero = &Scenario::all().expect("valid")["allreduce-hetero"];
        let setting = Setting { workers: 4, elements: 25_000_000, mtu: 1500, offloads: true };
        assert_eq!(hetero.bound(&setting), Some(3.2));
        assert_eq!(hetero.rate_of(&setting, 0), Some(Rate::mbit(1000)));
        assert_eq!(Scenario::all().expect("valid")["allreduce-unlimited"].bound(&setting), None);
    }
}
