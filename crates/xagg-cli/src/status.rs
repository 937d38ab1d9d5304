//! `xagg status`: the live counters of an aggregator.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle, presets};
use indicatif::{DecimalBytes, HumanCount};
use xagg_aggregator::Status;
use xagg_aggregator::status::{self, JobStatus, WorkerStatus};

/// Show what an aggregator is doing
///
/// Asks the aggregators that run on this machine, in this network namespace: their jobs, slots, packets and drops by
/// reason, how far every worker has come, and which of them the job waits for: those missing from the oldest fragment that
/// others have contributed to.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  xagg status --watch")]
pub struct Args {
    /// Ask only the aggregator with this UDP port
    #[arg(long)]
    port: Option<u16>,

    /// Print JSON: one object a line for each aggregator
    #[arg(long)]
    json: bool,

    /// Show it again and again, every so many seconds (1 if none are given), until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = parse_seconds)]
    watch: Option<Duration>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("0.1 to 3600 seconds".to_owned())
    }
}

/// Runs the sub-command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let mut stdout = std::io::stdout();
    let clear = if args.watch.is_some() && !args.json && stdout.is_terminal() { CLEAR } else { "" };
    loop {
        let shown = find(args.port)?.into_iter().map(|address| show(address, args.json));
        writeln!(stdout, "{clear}{}", shown.collect::<Result<Vec<_>, _>>()?.join("\n"))?;
        match args.watch {
            Some(interval) => std::thread::sleep(interval),
            None => return Ok(()),
        }
    }
}

/// The aggregators to ask: at least one.
fn find(port: Option<u16>) -> anyhow::Result<Vec<SocketAddr>> {
    let running = status::running();
    let asked: Vec<_> =
        running.iter().copied().filter(|address| port.is_none_or(|port| address.port() == port)).collect();
    match (asked.is_empty(), port) {
        (false, _) => Ok(asked),
        (true, Some(port)) if !running.is_empty() => {
            let others: Vec<String> = running.iter().map(SocketAddr::to_string).collect();
            bail!("no aggregator runs here with port {port}: there is {}", others.join(", "))
        }
        (true, _) => bail!(
            "no aggregator runs on this machine (in this network namespace): start one with `xagg aggregator --job FILE`"
        ),
    }
}

fn show(address: SocketAddr, json: bool) -> anyhow::Result<String> {
    let status = status::query(address)?;
    Ok(if json { serde_json::to_string(&status)? } else { render(&status) })
}

fn render(status: &Status) -> String {
    let place = status.interface.as_ref().map_or_else(String::new, |interface| format!(" on {interface}"));
    let mut text = format!(
        "{}{place}, {}, up {:.1} s, incarnation {:08x}\n",
        status.datapath, status.address, status.uptime_seconds, status.incarnation
    );
    for (reason, count) in &status.drops {
        let _infallible = writeln!(text, "dropped, of no job: {reason} {count}{}", hint(reason));
    }
    for job in &status.jobs {
        text += &render_job(job);
    }
    text
}

fn render_job(job: &JobStatus) -> String {
    let mut workers = table(["rank", "address", "joined", "packets", "fragments", "behind", "last heard"]);
    for worker in &job.workers {
        workers.add_row(worker_row(worker));
    }
    let mut counters = table(["event", "count"]);
    for (name, count) in &job.counters {
        counters.add_row([name, &count.to_string()]);
    }
    for (reason, count) in &job.drops {
        counters.add_row([format!("dropped: {reason}"), count.to_string()]);
    }
    right_align(&mut workers, 2);
    right_align(&mut counters, 1);
    let hints: String = job
        .drops
        .keys()
        .map(|reason| (reason, hint(reason)))
        .filter(|(_, hint)| !hint.is_empty())
        .map(|(reason, hint)| format!("{reason}{hint}\n"))
        .collect();
    let reserved = DecimalBytes(job.bytes_reserved);
    format!(
        "\njob {}, view {}: {} slots of {} lanes, {reserved}\n{}\n{workers}\n{counters}\n{hints}",
        job.job,
        job.view,
        job.slots,
        job.lanes,
        waiting(job)
    )
}

/// Whom the job waits for, in words.
fn waiting(job: &JobStatus) -> String {
    const MOST_NAMED: usize = 4;
    let missing: Vec<&WorkerStatus> =
        job.workers.iter().filter(|worker| job.waiting_for.contains(&worker.rank)).collect();
    let describe = |worker: &&WorkerStatus| {
        let (rank, behind, heard) = (worker.rank, HumanCount(worker.behind), last_heard(worker));
        format!("rank {rank} ({behind} fragments behind, last heard {heard})")
    };
    let named: Vec<String> = missing.iter().take(MOST_NAMED).map(describe).collect();
    match missing.len() {
        0 => "waiting for nobody: all ranks have come equally far".to_owned(),
        count if count > MOST_NAMED => {
            format!("waiting for {} and {} more ranks", named.join(", "), count - MOST_NAMED)
        }
        _ => format!("waiting for {}", named.join(", ")),
    }
}

fn last_heard(worker: &WorkerStatus) -> String {
    worker.last_heard_seconds.map_or_else(|| "never".to_owned(), |ago| format!("{ago:.1} s ago"))
}

fn worker_row(worker: &WorkerStatus) -> [String; 7] {
    [
        worker.rank.to_string(),
        worker.address.to_string(),
        if worker.joined { "yes" } else { "no" }.to_owned(),
        worker.packets.to_string(),
        worker.fragments.to_string(),
        worker.behind.to_string(),
        last_heard(worker),
    ]
}

fn table<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Table {
    const STYLE: TableStyle = presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none());
    let mut table = Table::new();
    table.load_style(STYLE).set_header(header);
    table
}

fn right_align(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// What a drop usually means, where that helps.
fn hint(reason: &str) -> &'static str {
    match reason {
        "length" => {
            ": packets of another length than the job's. Do all members have the same job file? With xdp-generic, \
             senders other than XAgg's workers must not use segmentation offload (GSO)"
        }
        "job" => ": a worker has a job file with another `job` or `view`",
        "worker" => ": packets from an address or port that the job file does not give to that rank",
        "cookie" => ": a worker has a job file with another secret",
        "nonce" => ": a worker was started a second time; raise `view` and start the job again",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(behind: &[u64]) -> JobStatus {
        let worker = |(rank, behind): (u16, &u64)| WorkerStatus {
            rank,
            address: SocketAddr::new([10, 0, 0, 1].into(), 9701),
            joined: true,
            packets: 0,
            fragments: 2000 - behind,
            behind: *behind,
            last_heard_seconds: (rank > 0).then_some(1.84),
        };
        let most = behind.iter().max().filter(|most| **most > 0);
        JobStatus {
            job: 1,
            view: 1,
            lanes: 352,
            slots: 3000,
            bytes_reserved: 0,
            counters: [].into(),
            drops: [].into(),
            waiting_for: (0..)
                .zip(behind)
                .filter(|(_, behind)| Some(*behind) == most)
                .map(|(rank, _)| rank)
                .collect(),
            workers: (0..).zip(behind).map(worker).collect(),
        }
    }

    #[test]
    fn whom_a_job_waits_for_is_said_in_one_line() {
        assert_eq!(
            waiting(&job(&[0, 7, 1204])),
            "waiting for rank 2 (1,204 fragments behind, last heard 1.8 s ago)"
        );
        assert_eq!(
            waiting(&job(&[9, 9, 0])),
            "waiting for rank 0 (9 fragments behind, last heard never), rank 1 (9 fragments behind, last heard 1.8 s ago)"
        );
        assert!(waiting(&job(&[0, 5, 5, 5, 5, 5, 5])).ends_with(" and 2 more ranks"));
        assert_eq!(waiting(&job(&[0, 0])), "waiting for nobody: all ranks have come equally far");
    }
}
