//! What the testbed promises. All of it needs root.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use xagg_testbed::{Node, Process, Rate, Testbed, skip_unless_root};

fn namespaces_of(bed_name: &str) -> usize {
    let entries = std::fs::read_dir("/var/run/netns").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(bed_name)).count()
}

/// `xagg-PID-NUMBER-` of the node's testbed.
fn bed_name(node: &Node) -> String {
    node.name().rsplit_once('-').expect("a name with parts").0.to_owned() + "-"
}

/// Sends datagrams of `len` bytes from one node to another; how many arrive.
fn exchange(from: &Node, to: &Node, len: usize, count: usize) -> usize {
    exchange_with(from, to, to.address().into(), len, count)
}

/// The same with one of the receiver's addresses.
fn exchange_with(from: &Node, to: &Node, address: IpAddr, len: usize, count: usize) -> usize {
    let target = SocketAddr::from((address, 9999));
    let receiver = to.enter(|| UdpSocket::bind(target)).expect("binds");
    receiver.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let sender = from.enter(|| UdpSocket::bind(any)).expect("binds");
    let mut arrived = 0;
    let mut buffer = vec![0; 4096];
    for _ in 0..count {
        sender.send_to(&vec![7; len], target).expect("sends");
        std::thread::sleep(Duration::from_micros(20));
    }
    while receiver.recv(&mut buffer).is_ok_and(|received| received == len) {
        arrived += 1;
    }
    arrived
}

#[test]
fn nodes_reach_each_other_at_the_full_mtu() {
    if skip_unless_root("nodes_reach_each_other_at_the_full_mtu") {
        return;
    }
    for mtu in [1500, 3498] {
        let bed = Testbed::builder().workers(2).mtu(mtu).build().expect("builds");
        assert_eq!(exchange(bed.worker(0), bed.aggregator(0), mtu - 28, 10), 10);
        assert_eq!(exchange(bed.aggregator(0), bed.worker(1), mtu - 28, 10), 10);
    }
}

#[test]
fn nodes_reach_each_other_over_ipv6_if_they_are_to() {
    if skip_unless_root("nodes_reach_each_other_over_ipv6_if_they_are_to") {
        return;
    }
    for mtu in [1280, 3498] {
        let bed = Testbed::builder().workers(1).mtu(mtu).ipv6(true).build().expect("builds");
        let (worker, aggregator) = (bed.worker(0), bed.aggregator(0));
        let over_ipv6 = |from, to: &Node| exchange_with(from, to, to.ipv6_address().into(), mtu - 48, 10);
        assert_eq!((over_ipv6(worker, aggregator), over_ipv6(aggregator, worker)), (10, 10));
        assert_eq!(exchange(worker, aggregator, mtu - 28, 10), 10, "and over IPv4");
    }
}

#[test]
fn rates_hold_in_both_directions() {
    if skip_unless_root("rates_hold_in_both_directions") {
        return;
    }
    let bed = Testbed::builder().workers(2).worker_rate(0, Rate::mbit(100)).build().expect("builds");
    for (from, to) in [(bed.worker(0), bed.worker(1)), (bed.worker(1), bed.worker(0))] {
        let listener = to.enter(|| TcpListener::bind((to.address(), 9998))).expect("binds");
        let mut sender = from.enter(|| TcpStream::connect((to.address(), 9998))).expect("connects");
        let (mut receiver, _) = listener.accept().expect("accepts");
        let stop = Instant::now() + Duration::from_millis(600);
        sender.set_write_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        let sending = std::thread::spawn(move || {
            while Instant::now() < stop {
                let _full = std::io::Write::write(&mut sender, &[0; 65536]);
            }
        });
        let (start, mut bytes, mut buffer) = (Instant::now(), 0, vec![0; 65536]);
        while let Ok(count @ 1..) = receiver.read(&mut buffer) {
            bytes += count;
        }
        sending.join().expect("no panic");
        let megabits = bytes as f64 * 8e-6 / start.elapsed().as_secs_f64();
        assert!((20.0..130.0).contains(&megabits), "{megabits} Mbit/s through a link of 100");
    }
}

#[test]
fn losses_are_applied_in_each_direction() {
    if skip_unless_root("losses_are_applied_in_each_direction") {
        return;
    }
    let bed = Testbed::builder().workers(1).build().expect("builds");
    let (worker, aggregator) = (bed.worker(0), bed.aggregator(0));
    bed.set_loss(worker, 0, 500).expect("sets");
    let arrived = exchange(worker, aggregator, 100, 400);
    assert!((100..300).contains(&arrived), "{arrived} of 400 at a loss of one half");
    bed.set_loss(worker, 1000, 0).expect("sets");
    assert_eq!(exchange(aggregator, worker, 100, 20), 0);
    bed.set_loss(worker, 0, 0).expect("sets");
    assert_eq!(exchange(aggregator, worker, 100, 20), 20);
}

#[test]
fn a_link_goes_down_and_up() {
    if skip_unless_root("a_link_goes_down_and_up") {
        return;
    }
    let bed = Testbed::builder().workers(1).build().expect("builds");
    bed.link_down(bed.worker(0)).expect("down");
    assert_eq!(exchange(bed.worker(0), bed.aggregator(0), 100, 5), 0);
    bed.link_up(bed.worker(0)).expect("up");
    // The sender may have given up asking for the receiver's hardware address, and asks again only after a while.
    assert!((0..20).any(|_| exchange(bed.worker(0), bed.aggregator(0), 100, 5) == 5));
}

#[test]
fn dropping_removes_namespaces_and_processes_also_after_a_panic() {
    if skip_unless_root("dropping_removes_namespaces_and_processes_also_after_a_panic") {
        return;
    }
    let mut left = None;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let bed = Testbed::builder().workers(2).build().expect("builds");
        let mut command = bed.worker(0).command("sleep");
        command.arg("60");
        let sleeper = Process::spawn(command).expect("starts");
        left = Some((bed_name(bed.worker(0)), sleeper.pid()));
        assert_eq!(namespaces_of(&bed_name(bed.worker(0))), 4);
        panic!("a test fails");
    }));
    assert!(panicked.is_err());
    let (name, pid) = left.expect("it came that far");
    assert_eq!(namespaces_of(&name), 0);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn what_a_dead_process_left_is_removed() {
    if skip_unless_root("what_a_dead_process_left_is_removed") {
        return;
    }
    let mut dead = std::process::Command::new("true").spawn().expect("starts");
    let name = format!("xagg-{}-7-w0", dead.id());
    dead.wait().expect("ends");
    let added = std::process::Command::new("ip").args(["netns", "add", &name]).status().expect("runs");
    assert!(added.success());
    Testbed::remove_stale();
    assert_eq!(namespaces_of(&name), 0);
}

#[test]
fn output_is_kept_and_waiting_is_bounded() {
    if skip_unless_root("output_is_kept_and_waiting_is_bounded") {
        return;
    }
    let bed = Testbed::builder().workers(1).aggregators(0).build().expect("builds");
    let mut command = bed.worker(0).command("sh");
    command.args(["-c", "echo ready; ip -4 addr show dev eth0 >&2; exec sleep 60"]);
    let mut process = Process::spawn(command).expect("starts");
    process.wait_for_output("ready", Duration::from_secs(5)).expect("says so");
    assert!(process.wait(Duration::from_millis(50)).is_err_and(|error| error.to_string().contains("ready")));
    process.signal(nix::sys::signal::Signal::SIGTERM).expect("signals");
    let finished = process.wait(Duration::from_secs(5)).expect("ends");
    assert!(!finished.status.success());
    assert!(finished.stderr.contains(&bed.worker(0).address().to_string()), "{}", finished.stderr);
}
