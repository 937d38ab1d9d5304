//! What the testbed promises. Nearly all of it needs root.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
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

/// Whether a process ends soon.
fn ends(pid: u32) -> bool {
    let state = format!("/proc/{pid}/stat");
    // One that nobody has reaped yet is a zombie.
    let ended = || std::fs::read_to_string(&state).map_or(true, |text| text.contains(") Z "));
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        ended()
    })
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

/// The MTU that one node's system knows for the way to another.
fn path_mtu(from: &Node, to: &Node) -> usize {
    let socket = from.enter(|| UdpSocket::bind("0.0.0.0:0")).expect("binds");
    socket.connect((to.address(), 9999)).expect("connects");
    let mtu = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::IpMtu).expect("is known");
    usize::try_from(mtu).expect("not negative")
}

#[test]
fn nodes_reach_each_other_at_the_full_mtu() {
    if skip_unless_root("nodes_reach_each_other_at_the_full_mtu") {
        return;
    }
    for mtu in [1500, 3498] {
        let bed = Testbed::builder().workers(2).mtu(mtu).build().expect("builds");
        for node in [bed.worker(0), bed.aggregator(0)] {
            assert_eq!(path_mtu(node, bed.worker(1)), mtu, "else what arrives may have come in pieces");
        }
        assert_eq!(exchange(bed.worker(0), bed.aggregator(0), mtu - 28, 10), 10);
        assert_eq!(exchange(bed.aggregator(0), bed.worker(1), mtu - 28, 10), 10);
    }
}

/// What one node sends another over TCP for a while, in Mbit/s.
fn blast(from: &Node, to: &Node) -> f64 {
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
    receiver.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    let (start, mut bytes, mut buffer) = (Instant::now(), 0, vec![0; 65536]);
    while let Ok(count @ 1..) = receiver.read(&mut buffer) {
        bytes += count;
    }
    sending.join().expect("no panic");
    bytes as f64 * 8e-6 / start.elapsed().as_secs_f64()
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
fn a_workers_rate_holds_in_both_directions() {
    if skip_unless_root("a_workers_rate_holds_in_both_directions") {
        return;
    }
    let bed = Testbed::builder().workers(2).worker_rate(0, Rate::mbit(100)).build().expect("builds");
    for (from, to) in [(bed.worker(0), bed.worker(1)), (bed.worker(1), bed.worker(0))] {
        let megabits = blast(from, to);
        assert!((20.0..130.0).contains(&megabits), "{megabits} Mbit/s through a link of 100");
    }
}

#[test]
fn an_aggregators_rate_holds_in_both_directions() {
    if skip_unless_root("an_aggregators_rate_holds_in_both_directions") {
        return;
    }
    let bed = Testbed::builder()
        .workers(2)
        .rate(Rate::mbit(100))
        .worker_rate(0, Rate::mbit(1000))
        .worker_rate(1, Rate::mbit(1000))
        .build()
        .expect("builds");
    for (from, to) in [(bed.worker(0), bed.aggregator(0)), (bed.aggregator(0), bed.worker(0))] {
        let megabits = blast(from, to);
        assert!((20.0..130.0).contains(&megabits), "{megabits} Mbit/s through an aggregator's link of 100");
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
    let mut orphan = std::process::Command::new("ip");
    orphan.args(["netns", "exec", &name, "sh", "-c", "echo ready; exec sleep 60"]);
    let mut orphan = Process::spawn(orphan).expect("starts");
    orphan.wait_for_output("ready", Duration::from_secs(5)).expect("is inside");
    Testbed::remove_stale();
    assert_eq!(namespaces_of(&name), 0);
    assert!(!orphan.wait(Duration::from_secs(5)).expect("ends").status.success());
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

#[test]
fn what_a_process_leaves_running_ends_with_it() {
    if skip_unless_root("what_a_process_leaves_running_ends_with_it") {
        return;
    }
    let bed = Testbed::builder().workers(1).aggregators(0).build().expect("builds");
    let mut command = bed.worker(0).command("sh");
    command.args(["-c", "sleep 60 & echo $!"]);
    let mut process = Process::spawn(command).expect("starts");
    let left = process.wait(Duration::from_secs(5)).expect("ends").stdout;
    assert!(ends(left.trim().parse().expect("a pid")), "what {left} was in has ended");
    let error =
        process.signal(nix::sys::signal::Signal::SIGTERM).expect_err("its id may be another's by now");
    assert_eq!(error.raw_os_error(), Some(nix::errno::Errno::ESRCH as i32));
}

/// Sends batches of datagrams that the system may pass on as one frame each (UDP GSO).
fn send_batches(from: &Node, to: &Node) {
    let receiver = to.enter(|| UdpSocket::bind((to.address(), 9997))).expect("binds");
    let sender = from.enter(|| UdpSocket::bind("0.0.0.0:0")).expect("binds");
    nix::sys::socket::setsockopt(&sender, nix::sys::socket::sockopt::UdpGsoSegment, &1000)
        .expect("Linux has it");
    for _ in 0..100 {
        sender.send_to(&[7; 10_000], (to.address(), 9997)).expect("sends");
    }
    drop(receiver);
}

#[test]
fn counters_count_and_without_offloads_no_frame_exceeds_the_mtu() {
    if skip_unless_root("counters_count_and_without_offloads_no_frame_exceeds_the_mtu") {
        return;
    }
    let over_tcp: fn(&Node, &Node) = |from, to| assert!(blast(from, to) > 0.0);
    let ways = [("TCP", over_tcp), ("UDP", send_batches)];
    for ((name, send), offloads) in ways.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let bed = Testbed::builder().workers(2).offloads(offloads).build().expect("builds");
        let (from, to) = (bed.worker(0), bed.worker(1));
        let before = to.counters().expect("reads");
        send(from, to);
        let (sent, received) = (from.counters().expect("reads"), to.counters().expect("reads"));
        let bytes = received.received_bytes - before.received_bytes;
        let frames = received.received - before.received;
        // The switch may add a few frames of its own.
        assert!(sent.sent.abs_diff(frames) < 50, "{name}: {sent:?}, {received:?}");
        assert_eq!(
            bytes / frames <= 1514,
            !offloads,
            "{name}: {frames} frames of {bytes} bytes, offloads {offloads}"
        );
    }
}

#[test]
fn a_rate_for_a_worker_that_is_not_there_is_an_error() {
    let error = Testbed::builder().workers(2).worker_rate(2, Rate::mbit(1)).build().expect_err("no rank 2");
    assert!(error.to_string().contains("worker 2") && error.to_string().contains("0 to 1"), "{error}");
}

#[test]
fn skips_are_loud_and_logged_and_can_be_forbidden() {
    if skip_unless_root("skips_are_loud_and_logged_and_can_be_forbidden") {
        return;
    }
    const TEST: &str = "what_a_dead_process_left_is_removed";
    // A copy that nobody may run, wherever the original is.
    let folder = tempfile::tempdir().expect("a folder");
    let (copy, log) = (folder.path().join("tests"), folder.path().join("log"));
    // By another process: a file that is open for writing, also in a child that another test forks meanwhile, cannot be run.
    let original = std::env::current_exe().expect("is known");
    let copied = std::process::Command::new("cp").arg(original).arg(&copy).status().expect("runs");
    assert!(copied.success());
    std::fs::write(&log, "").expect("writes");
    for (path, mode) in [(folder.path(), 0o755), (&*copy, 0o755), (&*log, 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("sets");
    }
    let mut as_nobody = std::process::Command::new(copy);
    as_nobody.args(["--exact", TEST]).uid(65534).gid(65534).current_dir("/").env("XAGG_SKIP_LOG", &log);
    let skipped = as_nobody.env_remove("XAGG_REQUIRE_ROOT").output().expect("runs");
    let line = format!("SKIPPED {TEST}: needs root\n");
    assert!(skipped.status.success());
    assert_eq!(String::from_utf8_lossy(&skipped.stderr), line, "also without --nocapture");
    assert_eq!(std::fs::read_to_string(&log).expect("reads"), line);
    let forbidden = as_nobody.env("XAGG_REQUIRE_ROOT", "1").output().expect("runs");
    assert!(!forbidden.status.success());
}
