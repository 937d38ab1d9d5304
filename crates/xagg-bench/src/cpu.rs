//! CPU time, of processes and of the whole machine.

use std::fs;

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};
use xagg_testbed::{Node, Testbed};

/// CPU seconds so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    /// Of the processes in the workers' namespaces.
    pub workers: f64,
    /// Of those in the aggregator's.
    pub servers: f64,
    /// Of the whole machine: with what the kernel does for them on its own account, such as moving packets.
    pub machine: f64,
}

impl Cpu {
    /// Now.
    ///
    /// # Errors
    /// A process that ends at this moment.
    pub fn now(bed: &Testbed) -> Result<Self> {
        let workers = bed.workers().iter().map(of_node).sum::<Result<f64>>()?;
        Ok(Self { workers, servers: of_node(bed.aggregator(0))?, machine: of_machine()? })
    }

    /// What was used since then.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.each(|of| of(self) - of(before))
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.each(|of| of(self) + of(other))
    }

    /// For one of so many.
    #[must_use]
    pub fn over(&self, count: f64) -> Self {
        self.each(|of| of(self) / count)
    }

    fn each(&self, value: impl Fn(fn(&Self) -> f64) -> f64) -> Self {
        Self {
            workers: value(|cpu| cpu.workers),
            servers: value(|cpu| cpu.servers),
            machine: value(|cpu| cpu.machine),
        }
    }
}

fn tick() -> Result<f64> {
    let ticks = sysconf(SysconfVar::CLK_TCK)?.context("the system has no clock ticks")?;
    Ok(1.0 / ticks as f64)
}

fn of_node(node: &Node) -> Result<f64> {
    node.processes()?.into_iter().map(of_process).sum()
}

fn of_process(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ticks = process_ticks(&text).with_context(|| format!("{path} has no times"))?;
    Ok(ticks as f64 * tick()?)
}

/// User's and system's time: the 14th and 15th number; the 2nd is a name in brackets, which may have spaces in it.
fn process_ticks(stat: &str) -> Option<u64> {
    let mut numbers = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || numbers.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn of_machine() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let ticks = machine_ticks(&text).context("/proc/stat has no times")?;
    Ok(ticks as f64 * tick()?)
}

/// All but idle time, waiting for disks, and what other machines on the same host took.
fn machine_ticks(stat: &str) -> Option<u64> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let numbers: Vec<u64> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, _idle, _disk, interrupts, soft_interrupts, ..] = numbers[..] else {
        return None;
    };
    Some(user + nice + system + interrupts + soft_interrupts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_the_right_places() {
        let stat = "12 (a) b) R 1 2 3 4 5 6 7 8 9 10 14 15 16 17";
        assert_eq!(process_ticks(stat), Some(29));
        assert_eq!(machine_ticks("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1"), Some(19));
        assert_eq!((process_ticks("12 (a"), machine_ticks("intr 1")), (None, None));
        assert!(of_machine().expect("Linux has it") > 0.0);
    }
}
