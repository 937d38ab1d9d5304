//! Measures: one system in one setting after the other.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use xagg_testbed::{Node, Testbed};
use xagg_wire::Family;

use crate::control::{Listener, Ranks, elapsed};
use crate::cpu::Cpu;
use crate::report::Row;
use crate::scenario::{Scenario, Setting};
use crate::system::{Place, System};

/// What a system ends in by itself once its ranks have been told to.
const PATIENCE: Duration = Duration::from_secs(10);

/// All rows of a scenario. `xagg` is the path of the binary.
///
/// # Errors
/// The first system that fails, or sums wrongly.
pub fn run(scenario: &Scenario, xagg: &Path, progress: &ProgressBar) -> Result<Vec<Row>> {
    let settings = scenario.settings();
    progress.set_length((settings.len() * scenario.systems.len()) as u64);
    let mut rows = vec![];
    for setting in &settings {
        let bed = testbed(scenario, setting)?;
        let begin = rows.len();
        for &system in &scenario.systems {
            progress.set_message(format!("{system}, {setting}"));
            if system.missing().is_none() {
                let row = measure(scenario, setting, system, &bed, xagg);
                rows.push(row.with_context(|| format!("{system}, {setting}"))?);
            }
            progress.inc(1);
        }
        Row::compare(&mut rows[begin..]);
    }
    Ok(rows)
}

fn testbed(scenario: &Scenario, setting: &Setting) -> Result<Testbed> {
    let mut builder = Testbed::builder().workers(setting.workers).mtu(setting.mtu).offloads(setting.offloads);
    for rank in 0..setting.workers {
        if let Some(rate) = scenario.rate_of(setting, rank) {
            builder = builder.worker_rate(rank, rate);
        }
    }
    builder.build().context("cannot make the network namespaces")
}

fn measure(
    scenario: &Scenario,
    setting: &Setting,
    system: System,
    bed: &Testbed,
    xagg: &Path,
) -> Result<Row> {
    let folder = tempfile::tempdir()?;
    let listener = Listener::bind(folder.path())?;
    let place = Place { bed, setting, control: listener.path(), folder: folder.path(), xagg };
    let mut roles = system.start(&place)?;
    let mut ranks = listener.accept(setting.workers, || roles.check())?;
    // Also brings buffers, neighbours and congestion windows to life.
    ranks.fill(setting.elements)?;
    ranks.go(1)?;
    ranks.check()?;
    let measured = measure_rounds(scenario, setting, &mut ranks, bed)?;
    ranks.end()?;
    for worker in &mut roles.workers {
        worker.wait(PATIENCE).context("a rank does not end")?;
    }
    Ok(Row { scenario: scenario.name.clone(), system, ..measured.row(scenario, setting) })
}

/// What all rounds came to.
struct Measured {
    /// Of each sum of each round.
    seconds: Vec<f64>,
    cpu: Cpu,
    /// In and out of the workers' interfaces, for each sum.
    wire_bytes: u64,
    retransmissions: u64,
}

fn measure_rounds(
    scenario: &Scenario,
    setting: &Setting,
    ranks: &mut Ranks,
    bed: &Testbed,
) -> Result<Measured> {
    let sums = scenario.rounds * scenario.repeats;
    let (bytes, again) = (wire_bytes(bed)?, retransmissions(ranks, bed)?);
    let (mut seconds, mut cpu) = (vec![], Cpu::default());
    for _ in 0..scenario.rounds {
        ranks.fill(setting.elements)?;
        let before = Cpu::now(bed)?;
        seconds.push(elapsed(&ranks.go(scenario.repeats)?) / scenario.repeats as f64);
        cpu = cpu.plus(&Cpu::now(bed)?.since(&before));
    }
    Ok(Measured {
        seconds,
        cpu: cpu.over(sums as f64),
        wire_bytes: (wire_bytes(bed)? - bytes) / sums as u64,
        retransmissions: retransmissions(ranks, bed)? - again,
    })
}

impl Measured {
    fn row(mut self, scenario: &Scenario, setting: &Setting) -> Row {
        self.seconds.sort_by(f64::total_cmp);
        let median = self.seconds[self.seconds.len() / 2];
        Row {
            scenario: String::new(),
            system: System::Gloo,
            workers: setting.workers,
            mbytes: setting.elements as f64 * 4.0 / 1e6,
            mtu: setting.mtu,
            offloads: setting.offloads,
            rate: scenario.rate.map(|rate| rate.to_string()),
            slow: scenario.slow.map(|rate| rate.to_string()),
            seconds_median: median,
            seconds_min: self.seconds[0],
            seconds_max: *self.seconds.last().expect("a round at least"),
            cpu_seconds: self.cpu.machine,
            cpu_seconds_workers: self.cpu.workers,
            cpu_seconds_servers: self.cpu.servers,
            wire_mbytes: self.wire_bytes as f64 / 1e6,
            retransmissions: self.retransmissions,
            ratio_to_bound: bound(scenario, setting).map(|bound| median / bound),
            ratio_to_gloo: None,
        }
    }
}

/// The least time, with the headers of XAgg's packets.
fn bound(scenario: &Scenario, setting: &Setting) -> Option<f64> {
    Some(scenario.bound(setting)? * header_factor(setting.mtu)?)
}

/// By how much XAgg's frames (with Ethernet headers, as queueing disciplines count) are longer than what they carry.
pub fn header_factor(mtu: usize) -> Option<f64> {
    const ETHERNET: usize = 14;
    let lanes = Family::V4.lanes_for_mtu(mtu)?;
    Some((Family::V4.mtu_for_lanes(lanes) + ETHERNET) as f64 / (4 * lanes) as f64)
}

fn wire_bytes(bed: &Testbed) -> Result<u64> {
    let of = |node: &Node| -> Result<u64> {
        let counters = node.counters()?;
        Ok(counters.received_bytes + counters.sent_bytes)
    };
    bed.workers().iter().map(of).sum()
}

/// Packets that were sent again so far: by the system's own count, or TCP's.
fn retransmissions(ranks: &mut Ranks, bed: &Testbed) -> Result<u64> {
    ranks.count()?.map_or_else(|| tcp_retransmissions(bed), Ok)
}

/// Segments that the workers' and the aggregator's TCP has sent again.
fn tcp_retransmissions(bed: &Testbed) -> Result<u64> {
    let of = |node: &Node| -> Result<u64> {
        let table = node.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))?;
        retransmitted(&table).context("no TCP counters in /proc/net/snmp")
    };
    bed.workers().iter().chain([bed.aggregator(0)]).map(of).sum()
}

/// The value under the name, in two lines that begin with `Tcp:`.
fn retransmitted(table: &str) -> Option<u64> {
    let mut lines = table.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let column = names.split_whitespace().position(|name| name == "RetransSegs")?;
    values.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tcp_sent_again_is_read_by_its_name() {
        let table = "Ip: a b\nIp: 1 2\nTcp: InSegs RetransSegs OutRsts\nTcp: 7 8 9\n";
        assert_eq!(retransmitted(table), Some(8));
        assert_eq!(retransmitted("Tcp: InSegs\nTcp: 7\n"), None);
    }

    #[test]
    fn headers_cost_what_they_do() {
        let factor = header_factor(1500).expect("fits");
        assert!((factor - 1514.0 / 1408.0).abs() < 1e-9, "{factor}");
    }
}
