//! Garbage on the aggregator's port, as much as one core can send, while a job runs. A plain socket has one buffer for garbage and
//! gradients, so with `udp` the job may hardly get on until the flood is over: nothing but its time is lost.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use serde_json::Value;
use xagg_testbed::{
    Burst, Flood, Node, Process, Testbed, aggregator_address, skip_unless_root, worker_address,
};
use xagg_wire::{Kind, Packet, full_len};

use crate::common::{JobFile, LIMIT, finish, ready, spawn, xagg};
use crate::namespaces::inside;

const WORKERS: usize = 2;
const LANES: usize = 352;
/// Bursts that are different.
const BURSTS: usize = 256;
/// What the aggregator may grow by: the slots of the udp datapath are 9 MB that are not touched before they are used.
const GROWTH: u64 = 16 << 20;
/// How long the flood lasts if the job does not end before.
const LONGEST: Duration = Duration::from_secs(3);

/// Random bytes of any length; of the right length; XAgg's from anywhere; a worker's, but for the cookie. Sources are spoofed.
fn garbage(rng: &mut StdRng, packets: usize) -> Burst {
    let shape = rng.random_range(0..4);
    let packet_len = if shape == 0 { rng.random_range(1..200) } else { full_len(LANES) };
    let mut payloads = vec![0; packets * packet_len];
    rng.fill_bytes(&mut payloads);
    let rank = rng.random_range(0..WORKERS as u16);
    let somewhere = SocketAddrV4::new([10, 77, rng.random(), rng.random_range(1..255)].into(), rng.random());
    let source =
        if shape == 3 { SocketAddrV4::new(worker_address(usize::from(rank)), 9701) } else { somewhere };
    if shape >= 2 {
        for payload in payloads.chunks_exact_mut(packet_len) {
            disguise(rng, rank, payload);
        }
    }
    Burst { source, destination: SocketAddrV4::new(aggregator_address(0), 9700), packet_len, payloads }
}

/// Makes random bytes a packet of the job's, but for the cookie.
fn disguise(rng: &mut StdRng, rank: u16, payload: &mut [u8]) {
    let mut packet = Packet::new_unchecked(payload);
    let cookie = packet.cookie();
    packet.reset_header([Kind::Hello, Kind::Gradient, Kind::Pull][rng.random_range(0..3)]);
    packet.set_cookie(cookie);
    packet.set_job(5);
    packet.set_view(1);
    packet.set_rank(rank);
    packet.fill_checksum();
}

/// The memory of a process that is not shared, in bytes.
fn memory(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux has it");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

/// Every rank of the job to its end, each of whose results it has compared with the exact sum; how long it took.
fn run_job(bed: &Testbed, job: &JobFile) -> Duration {
    let begin = Instant::now();
    let arguments = ["--elements", "200000", "--iterations", "20"];
    let ranks: Vec<Process> =
        (0..WORKERS).map(|rank| spawn(inside(bed.worker(rank), &job.rank(rank, &arguments)))).collect();
    for mut rank in ranks {
        let finished = rank.wait(LIMIT).expect("ends");
        assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    }
    begin.elapsed()
}

fn job(view: u16) -> JobFile {
    let addresses: Vec<String> = (0..WORKERS).map(|rank| format!("{}:9701", worker_address(rank))).collect();
    let more = format!("view = {view}\nslots = 3000\nlanes = {LANES}");
    JobFile::write(&addresses, &format!("{}:9700", aggregator_address(0)), &more, 30.0)
}

fn drops(aggregator: &Node) -> impl Fn(&str) -> u64 {
    let status = finish(inside(aggregator, &xagg(&["status", "--json"])));
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    let status = status.get(0).unwrap_or(&status).clone();
    move |reason| {
        let of = |part: &Value| part["drops"][reason].as_u64().unwrap_or(0);
        of(&status) + of(&status["jobs"][0])
    }
}

/// `packets` of each burst.
fn withstands_garbage(datapath: &str, packets: usize) {
    let bed = Testbed::builder().workers(WORKERS + 1).build().expect("a testbed");
    let node = bed.aggregator(0);
    let start = |job: &JobFile| ready(inside(node, &job.aggregator(&["--datapath", datapath])));
    let quiet_job = job(2);
    let quiet = {
        let _aggregator = start(&quiet_job);
        run_job(&bed, &quiet_job)
    };

    let job = job(1);
    let aggregator = start(&job);
    let before = memory(&aggregator);
    let mut rng = StdRng::seed_from_u64(1);
    let bursts: Vec<Burst> = (0..BURSTS).map(|_| garbage(&mut rng, packets)).collect();
    let flood = Flood::start(bed.worker(WORKERS), node, &bursts, LONGEST).expect("starts");
    let loud = run_job(&bed, &job);
    let flooded = flood.stop();

    let drops = drops(node);
    for reason in ["length", "magic", "worker", "cookie"] {
        assert!(drops(reason) > 0, "{datapath}: {reason}");
    }
    let grown = memory(&aggregator).saturating_sub(before);
    assert!(grown < GROWTH, "{datapath}: {grown} bytes more");
    let counted: u64 = ["length", "magic", "kind", "job", "worker", "cookie"].into_iter().map(drops).sum();
    println!(
        "{datapath}: {:.0} garbage packets/s, {counted} of {} counted; the job took {:.2} s instead of {:.2} s; {grown} bytes more",
        flooded.packets as f64 / flooded.elapsed.as_secs_f64(),
        flooded.packets,
        loud.as_secs_f64(),
        quiet.as_secs_f64(),
    );
}

#[test]
fn a_flood_of_garbage_changes_no_sum_and_takes_no_memory() {
    if skip_unless_root("a_flood_of_garbage_changes_no_sum_and_takes_no_memory") {
        return;
    }
    withstands_garbage("xdp-native", 40);
    // In generic mode a burst would not be cut before the program sees it.
    withstands_garbage("xdp-generic", 1);
    withstands_garbage("udp", 40);
}
