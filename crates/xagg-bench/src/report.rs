//! What was measured, as a table and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::system::System;

/// One system in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The scenario's name.
    pub scenario: String,
    /// Who.
    pub system: System,
    /// How many workers.
    pub workers: usize,
    /// The vector's length, in millions of bytes.
    pub mbytes: f64,
    /// In bytes.
    pub mtu: usize,
    /// Whether frames may be longer than that.
    pub offloads: bool,
    /// Of the workers' links, if they have one.
    pub rate: Option<String>,
    /// Of the last worker's, if it is another one.
    pub slow: Option<String>,
    /// Of one all-reduce: from the first rank's begin to the last one's end; the median of all rounds.
    pub seconds_median: f64,
    /// The fastest round.
    pub seconds_min: f64,
    /// The slowest round.
    pub seconds_max: f64,
    /// Of the whole machine in one all-reduce: all roles, with what the kernel does for them.
    pub cpu_seconds: f64,
    /// Of these, what the workers' processes used.
    pub cpu_seconds_workers: f64,
    /// Of these, what processes of aggregators and servers used. A kernel program has none.
    pub cpu_seconds_servers: f64,
    /// In and out of all workers' interfaces in one all-reduce, in millions of bytes.
    pub wire_mbytes: f64,
    /// Packets that were sent again, in all rounds.
    pub retransmissions: u64,
    /// By the least time that an exact sum with a spare server takes, with XAgg's headers; none where links have no rate.
    pub ratio_to_bound: Option<f64>,
    /// By gloo's median in the same setting of the same run.
    pub ratio_to_gloo: Option<f64>,
}

impl Row {
    /// Compares the rows of one setting.
    pub fn compare(rows: &mut [Self]) {
        let gloo = rows.iter().find(|row| row.system == System::Gloo).map(|row| row.seconds_median);
        for row in rows {
            row.ratio_to_gloo = gloo.map(|gloo| row.seconds_median / gloo);
        }
    }

    fn cells(&self) -> Vec<String> {
        let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        vec![
            self.system.to_string(),
            self.workers.to_string(),
            megabytes(self.mbytes),
            self.mtu.to_string(),
            if self.offloads { "on" } else { "off" }.to_owned(),
            seconds(self.seconds_median),
            format!("{} to {}", seconds(self.seconds_min), seconds(self.seconds_max)),
            ratio(self.ratio_to_gloo),
            ratio(self.ratio_to_bound),
            format!("{:.3}", self.cpu_seconds),
            format!("{:.3}", self.cpu_seconds_workers),
            format!("{:.3}", self.cpu_seconds_servers),
            format!("{:.1}", self.wire_mbytes),
            self.retransmissions.to_string(),
        ]
    }
}

/// All rows, as Markdown.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let heads = [
        "system",
        "N",
        "MB",
        "MTU",
        "offloads",
        "seconds",
        "least to most",
        "/ gloo",
        "/ T*",
        "CPU s",
        "workers",
        "servers",
        "MB on wire",
        "again",
    ];
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(heads);
    for row in rows {
        table.add_row(row.cells());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn megabytes(megabytes: f64) -> String {
    if megabytes >= 1.0 { format!("{megabytes:.0}") } else { format!("{megabytes:.4}") }
}

/// To three digits.
fn seconds(seconds: f64) -> String {
    if seconds >= 0.01 { format!("{seconds:.3}") } else { format!("{seconds:.6}") }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A row with these results.
    pub fn row(system: System, seconds: f64) -> Row {
        Row {
            scenario: "test".to_owned(),
            system,
            workers: 4,
            mbytes: 100.0,
            mtu: 1500,
            offloads: true,
            rate: None,
            slow: None,
            seconds_median: seconds,
            seconds_min: seconds,
            seconds_max: seconds,
            cpu_seconds: 1.0,
            cpu_seconds_workers: 0.5,
            cpu_seconds_servers: 0.1,
            wire_mbytes: 860.0,
            retransmissions: 3,
            ratio_to_bound: None,
            ratio_to_gloo: None,
        }
    }

    #[test]
    fn rows_are_compared_with_gloo_where_it_took_part() {
        let mut rows = [row(System::Gloo, 0.4), row(System::XaggXdp, 0.2)];
        Row::compare(&mut rows);
        assert_eq!(rows[1].ratio_to_gloo, Some(0.5));
        assert!(table(&rows).contains("0.50"), "{}", table(&rows));
        Row::compare(&mut rows[1..]);
        assert_eq!(rows[1].ratio_to_gloo, None);
        let json = serde_json::to_value(&rows[0]).expect("JSON");
        assert_eq!((&json["system"], &json["seconds_median"]), (&"gloo".into(), &0.4.into()));
    }
}
