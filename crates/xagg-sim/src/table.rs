//! What named scenarios cost, as a table: completion time, repetitions, marks, fairness. It is kept with the tests, so a change of
//! behaviour is a diff that one can read.

use comfy_table::{CellAlignment, Table, presets};

use crate::scenario::{Incident, Link, Scenario, Values, Way, WorkerPlan};
use crate::{Outcome, Violation, run};

/// All named scenarios.
#[must_use]
pub fn scenarios() -> Vec<(&'static str, Scenario)> {
    let lossy = |loss: f64| Link { loss, ..gigabit() };
    let bursty = Link { burst: 0.002, burst_lasting: 500, ..gigabit() };
    let reordering = Link { reordering: 0.05, duplication: 0.05, stale: 300, ..gigabit() };
    let damaging = Link { corruption: 0.01, ..gigabit() };
    let pause = Incident::Pause { rank: 1, at: 1000, lasting: 2_000_000 };
    let partition = Incident::Partition { rank: 1, at: 1000, lasting: 1_000_000, way: Way::Both };
    vec![
        ("calm, 4 workers", of(4, &gigabit())),
        ("calm, few slots", Scenario { slots: 32, ..of(4, &gigabit()) }),
        ("one worker at 250 Mbit/s", slow(250.0)),
        ("loss of 0.1 %", of(4, &lossy(0.001))),
        ("loss of 1 %", of(4, &lossy(0.01))),
        ("loss of 10 %", of(4, &lossy(0.1))),
        ("bursts of loss", of(4, &bursty)),
        ("reordering and duplication", of(4, &reordering)),
        ("damage of 1 %", of(4, &damaging)),
        ("second phases", Scenario { values: Values { spread: 12, ..PLAIN }, ..of(4, &gigabit()) }),
        ("a pause of 2 s", Scenario { incidents: vec![pause], ..of(4, &gigabit()) }),
        ("a partition of 1 s", Scenario { incidents: vec![partition], ..of(4, &gigabit()) }),
        ("8 into one marked link", incast(8, Some(40))),
        ("8 into one link without marks", incast(8, None)),
        ("64 into one marked link", incast(64, Some(40))),
        ("64 into one link without marks", incast(64, None)),
    ]
}

const PLAIN: Values = Values { spread: 0, zero: 0.0, nonfinite: 0.0 };
const FRAGMENTS: usize = 2000;

/// A link of a common cluster.
#[must_use]
pub fn gigabit() -> Link {
    Link { rate: Some(1000.0), queue: 256, mark_above: Some(40), delay: 10, ..Link::default() }
}

/// One gradient of so many workers over links of this kind; the aggregator's own are not the limit. Packets carry few values but
/// have a rate that makes them take what 1408-byte ones take at eight times that.
#[must_use]
pub fn of(workers: usize, link: &Link) -> Scenario {
    let plan = WorkerPlan {
        start: 0,
        compute: 0,
        in_flight: 1,
        weight: 1,
        rate: None,
        receive_queue: 1000,
        up: link.clone(),
        down: link.clone(),
    };
    let hub = Link { rate: Some(1000.0 * workers as f64), queue: 256 * workers, delay: 5, ..Link::default() };
    Scenario {
        seed: 1,
        lanes: 16,
        slots: FRAGMENTS as u32,
        timeout: 20_000_000,
        ring: 256 * workers,
        operations: vec![16 * FRAGMENTS],
        values: PLAIN,
        intruder: false,
        to_aggregator: hub.clone(),
        from_aggregator: hub,
        workers: vec![plan; workers],
        incidents: vec![],
        checksum: true,
    }
}

fn slow(rate: f64) -> Scenario {
    let mut scenario = of(4, &gigabit());
    let last = scenario.workers.last_mut().expect("four");
    (last.up.rate, last.down.rate) = (Some(rate), Some(rate));
    scenario
}

/// So many workers into one aggregator whose link is as fast as one of theirs.
#[must_use]
pub fn incast(workers: usize, mark_above: Option<usize>) -> Scenario {
    let hub = Link { rate: Some(1000.0), mark_above, ..gigabit() };
    let down = Link { rate: Some(1000.0 * workers as f64), ..hub.clone() };
    let one = Link { mark_above: None, ..gigabit() };
    Scenario { ring: 4096, to_aggregator: hub, from_aggregator: down, ..of(workers, &one) }
}

/// Jain's fairness index of what several got: 1 if all got the same, 1/n if one got everything (Jain, Chiu, Hawe 1984).
#[must_use]
pub fn fairness(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Runs all named scenarios.
///
/// # Errors
/// The first rule that breaks.
pub fn table() -> Result<String, Violation> {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let heads =
        ["scenario", "ms", "sent", "again", "probes", "pulls", "redos", "marked", "overflows", "lost"];
    table.set_header(heads);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for (name, scenario) in scenarios() {
        table.add_row(row(name, &run(&scenario)?));
    }
    Ok(format!("{table}\n"))
}

fn row(name: &str, outcome: &Outcome) -> Vec<String> {
    let sum =
        |of: fn(&crate::outcome::RankOutcome) -> u64| outcome.ranks.iter().map(of).sum::<u64>().to_string();
    let hubs = [outcome.to_aggregator, outcome.from_aggregator];
    let links = || outcome.ranks.iter().flat_map(|rank| [rank.up, rank.down]).chain(hubs);
    let overflows: u64 = links().map(|link| link.overflows).sum();
    let lost: u64 = links().map(|link| link.lost).sum();
    vec![
        name.to_owned(),
        format!("{:.1}", outcome.finished.as_secs_f64() * 1e3),
        sum(|rank| rank.stats.packets_sent),
        sum(|rank| rank.stats.retransmissions),
        sum(|rank| rank.stats.probes),
        sum(|rank| rank.stats.pulls),
        sum(|rank| rank.stats.redos),
        sum(|rank| rank.stats.marked_sent + rank.stats.marked_received),
        overflows.to_string(),
        lost.to_string(),
    ]
}
