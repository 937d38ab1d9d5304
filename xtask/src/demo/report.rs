//! The comparison: as a table and as JSON.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle, presets};
use serde::Serialize;
use serde_json::Value;

use super::events::{End, Epoch, Step};
use super::training::Outcome;

/// Both trainings side by side.
#[derive(Serialize)]
pub struct Report {
    datapath: String,
    workers: u16,
    /// Through XAgg.
    pub xagg: Side,
    /// Through gloo.
    pub gloo: Side,
    counters: Counters,
}

/// One training.
#[derive(Serialize)]
pub struct Side {
    /// Of the last epoch, from 0 to 1.
    test_accuracy: f64,
    /// Of the last epoch.
    loss: f64,
    epochs: Vec<Epoch>,
    /// The mean over steps and ranks.
    step_seconds: f64,
    /// The mean over steps and ranks.
    comm_seconds_per_step: f64,
    /// Of the whole training, tests included.
    seconds: f64,
    /// Of the parameters at the end, the same at all ranks.
    parameters_sha256: String,
    /// Of rank 0, for the plot.
    #[serde(skip)]
    pub steps: Vec<Step>,
}

/// What XAgg's members counted.
#[derive(Serialize)]
struct Counters {
    /// Over all workers.
    packets_sent: u64,
    packets_received: u64,
    retransmissions: u64,
    pulls: u64,
    redos: u64,
    /// Packets that the aggregator refused, by reason.
    drops: BTreeMap<String, u64>,
    /// The aggregator's events, by name.
    aggregator: BTreeMap<String, u64>,
}

impl Report {
    /// # Errors
    /// When the ranks of a training disagree, or the aggregator's status lacks something.
    pub fn new(workers: u16, xagg: Outcome, gloo: Outcome) -> Result<Self> {
        let status = xagg.aggregator.as_ref().context("there is no status of the aggregator")?;
        Ok(Self {
            datapath: status["datapath"].as_str().context("the status names no datapath")?.to_owned(),
            workers,
            counters: Counters::new(&xagg.ends, status),
            xagg: Side::new("xagg", xagg)?,
            gloo: Side::new("gloo", gloo)?,
        })
    }

    /// How far apart the losses of the last epoch are.
    pub fn loss_difference(&self) -> f64 {
        (self.xagg.loss - self.gloo.loss).abs()
    }

    /// For people.
    pub fn table(&self) -> String {
        const STYLE: TableStyle = presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none());
        let mut table = Table::new();
        table.load_style(STYLE).set_header(["", "xagg", "gloo"]);
        let mut row = |name: String, value: &dyn Fn(&Side) -> String| {
            table.add_row([name, value(&self.xagg), value(&self.gloo)]);
        };
        for index in 0..self.xagg.epochs.len().min(self.gloo.epochs.len()) {
            let name = format!("epoch {}: loss, test accuracy", index + 1);
            row(name, &|side| {
                let Epoch { loss, test_accuracy, .. } = side.epochs[index];
                format!("{loss:.4}  {:.2} %", test_accuracy * 100.0)
            });
        }
        row("time per step".to_owned(), &|side| format!("{:.1} ms", side.step_seconds * 1e3));
        row("communication time per step".to_owned(), &|side| {
            format!("{:.1} ms", side.comm_seconds_per_step * 1e3)
        });
        row("training time".to_owned(), &|side| format!("{:.1} s", side.seconds));
        for index in [1, 2] {
            table.column_mut(index).expect("the header has three").set_cell_alignment(CellAlignment::Right);
        }
        format!("{table}\n{}", self.counters.lines(&self.datapath))
    }

    /// For programs.
    ///
    /// # Errors
    /// When a number cannot be written as JSON.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

impl Side {
    fn new(name: &str, outcome: Outcome) -> Result<Self> {
        let last = *outcome.epochs.last().with_context(|| format!("{name}: no epoch was trained"))?;
        let first = outcome.ends.first().with_context(|| format!("{name}: no rank has trained"))?;
        let agree = outcome.ends.iter().all(|end| end.parameters_sha256 == first.parameters_sha256);
        ensure!(agree, "{name}: the ranks do not have the same parameters at the end");
        let mean =
            |value: fn(&End) -> f64| outcome.ends.iter().map(value).sum::<f64>() / outcome.ends.len() as f64;
        Ok(Self {
            test_accuracy: last.test_accuracy,
            loss: last.loss,
            step_seconds: mean(|end| end.step_seconds),
            comm_seconds_per_step: mean(|end| end.comm_seconds),
            seconds: mean(|end| end.seconds),
            parameters_sha256: first.parameters_sha256.clone(),
            epochs: outcome.epochs,
            steps: outcome.steps,
        })
    }
}

impl Counters {
    fn new(ends: &[End], status: &Value) -> Self {
        let stats: Vec<_> = ends.iter().filter_map(|end| end.stats).collect();
        let mut drops = counts(&status["drops"]);
        for (reason, count) in counts(&status["jobs"][0]["drops"]) {
            *drops.entry(reason).or_default() += count;
        }
        Self {
            packets_sent: stats.iter().map(|stats| stats.packets_sent).sum(),
            packets_received: stats.iter().map(|stats| stats.packets_received).sum(),
            retransmissions: stats.iter().map(|stats| stats.retransmissions).sum(),
            pulls: stats.iter().map(|stats| stats.pulls).sum(),
            redos: stats.iter().map(|stats| stats.redos).sum(),
            drops,
            aggregator: counts(&status["jobs"][0]["counters"]),
        }
    }

    fn lines(&self, datapath: &str) -> String {
        let drops: Vec<String> =
            self.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
        format!(
            "xagg's datapath: {datapath}\npackets: {} sent by workers, {} received by them\nretransmissions: {}, \
             pulls of lost results: {}, fragments sent again at a common exponent: {}\ndropped by the aggregator: {drops}\n",
            self.packets_sent, self.packets_received, self.retransmissions, self.pulls, self.redos
        )
    }
}

fn counts(value: &Value) -> BTreeMap<String, u64> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::demo::events::WorkerStats;
    use serde_json::json;

    fn outcome(sha256: [&str; 2], stats: Option<WorkerStats>) -> Outcome {
        let ends = sha256.map(|sha256| End {
            seconds: 30.0,
            step_seconds: 0.04,
            comm_seconds: 0.02,
            parameters_sha256: sha256.to_owned(),
            stats,
        });
        Outcome {
            steps: Vec::new(),
            epochs: vec![Epoch { epoch: 1, loss: 0.5, test_accuracy: 0.875 }],
            ends: ends.into(),
            aggregator: None,
        }
    }

    fn xagg(sha256: [&str; 2]) -> Outcome {
        let stats =
            WorkerStats { packets_sent: 100, packets_received: 90, retransmissions: 2, pulls: 1, redos: 0 };
        let status = json!({
            "datapath": "xdp-native",
            "drops": {"job": 1},
            "jobs": [{"counters": {"packets": 200}, "drops": {"job": 2, "cookie": 3}}],
        });
        Outcome { aggregator: Some(status), ..outcome(sha256, Some(stats)) }
    }

    /// A report whose two sides have these steps.
    pub fn report_with_steps(ours: Vec<Step>, theirs: Vec<Step>) -> Report {
        let gloo = Outcome { steps: theirs, ..outcome(["b", "b"], None) };
        Report::new(2, Outcome { steps: ours, ..xagg(["a", "a"]) }, gloo).expect("complete")
    }

    #[test]
    fn counters_are_summed_over_ranks_and_jobs() {
        let report = Report::new(2, xagg(["a", "a"]), outcome(["b", "b"], None)).expect("complete");
        let json: Value = serde_json::from_str(&report.json().expect("is JSON")).expect("is JSON");
        assert_eq!(json["datapath"], "xdp-native");
        assert_eq!(json["xagg"]["test_accuracy"], 0.875);
        assert_eq!(json["gloo"]["comm_seconds_per_step"], 0.02);
        assert_eq!(json["counters"]["packets_sent"], 200);
        assert_eq!(json["counters"]["drops"], json!({"cookie": 3, "job": 3}));
        assert_eq!(json["counters"]["aggregator"]["packets"], 200);
    }

    #[test]
    fn the_table_has_every_number_that_was_promised() {
        let report = Report::new(2, xagg(["a", "a"]), outcome(["b", "b"], None)).expect("complete");
        let table = report.table();
        for text in [
            "87.50 %",
            "0.5000",
            "40.0 ms",
            "20.0 ms",
            "xdp-native",
            "200 sent",
            "retransmissions: 4",
            "cookie 3, job 3",
        ] {
            assert!(table.contains(text), "{text} is not in\n{table}");
        }
    }

    #[test]
    fn ranks_that_disagree_are_an_error() {
        let error = Report::new(2, xagg(["a", "c"]), outcome(["b", "b"], None)).err().expect("they disagree");
        assert!(error.to_string().contains("xagg: the ranks do not have the same parameters"));
    }
}
