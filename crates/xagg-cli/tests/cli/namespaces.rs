//! The kernel datapaths as a user meets them, in network namespaces.

use std::time::Duration;

use crate::common::{JobFile, LIMIT, expect_error, finish, ready, spawn, xagg};
use nix::sys::signal::Signal;
use xagg_testbed::{Node, Process, Testbed, aggregator_address, ipv6_of, skip_unless_root, worker_address};

/// A job whose members are in a testbed's namespaces.
pub fn job(workers: usize, more: &str) -> JobFile {
    let addresses: Vec<String> = (0..workers).map(|rank| format!("{}:9701", worker_address(rank))).collect();
    JobFile::write(&addresses, &format!("{}:9700", aggregator_address(0)), more, 5.0)
}

/// The command inside a node.
pub fn inside(node: &Node, command: &std::process::Command) -> std::process::Command {
    let mut inside = node.command(command.get_program());
    inside.args(command.get_args());
    inside
}

fn aggregator(bed: &Testbed, job: &JobFile, arguments: &[&str]) -> Process {
    ready(inside(bed.aggregator(0), &job.aggregator(arguments)))
}

fn error_of(bed: &Testbed, job: &JobFile, arguments: &[&str], words: &[&str]) {
    expect_error(&finish(inside(bed.aggregator(0), &job.aggregator(arguments))), words);
}

/// Whether some XDP program is attached to the aggregator's interface.
fn attached(bed: &Testbed) -> bool {
    let mut command = bed.aggregator(0).command("ip");
    command.args(["-details", "link", "show", "dev", Node::INTERFACE]);
    let shown = finish(command);
    assert!(shown.status.success(), "{}", shown.stderr);
    shown.stdout.contains("xdp")
}

#[test]
fn the_best_datapath_is_taken_and_gone_after_ctrl_c() {
    if skip_unless_root("the_best_datapath_is_taken_and_gone_after_ctrl_c") {
        return;
    }
    let bed = Testbed::builder().workers(4).build().expect("a testbed");
    let job = job(4, "slots = 3000");
    let mut aggregator = aggregator(&bed, &job, &[]);
    let ready = aggregator.stdout().expect("output");
    let place = format!("xdp-native on eth0, {}:9700", aggregator_address(0));
    assert!(ready.starts_with(&format!("ready: datapath {place}, job 5: 4 workers")), "{ready}");
    assert!(attached(&bed));
    let ranks: Vec<Process> = (0..4)
        .map(|rank| {
            spawn(inside(bed.worker(rank), &job.rank(rank, &["--elements", "100000", "--iterations", "2"])))
        })
        .collect();
    for mut rank in ranks {
        let finished = rank.wait(LIMIT).expect("ends");
        assert!(finished.status.success(), "{}", finished.stderr);
    }
    let status = finish(inside(bed.aggregator(0), &xagg(&["status"])));
    assert!(status.stdout.starts_with(&place), "{}{}", status.stdout, status.stderr);
    aggregator.signal(Signal::SIGINT).expect("sent");
    let finished = aggregator.wait(Duration::from_secs(10)).expect("ends");
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert!(!attached(&bed));
}

#[test]
fn a_killed_aggregator_leaves_nothing_attached() {
    if skip_unless_root("a_killed_aggregator_leaves_nothing_attached") {
        return;
    }
    let bed = Testbed::builder().workers(1).build().expect("a testbed");
    for datapath in ["xdp-native", "xdp-generic"] {
        let mut aggregator = aggregator(&bed, &job(1, "slots = 100"), &["--datapath", datapath]);
        assert!(attached(&bed), "{datapath}");
        aggregator.signal(Signal::SIGKILL).expect("sent");
        aggregator.wait(LIMIT).expect("ends");
        // The kernel lets go of a program a moment after the last descriptor of its link is closed.
        let gone = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            !attached(&bed)
        });
        assert!(gone, "{datapath}");
    }
}

#[test]
fn the_program_of_somebody_else_is_left_alone() {
    if skip_unless_root("the_program_of_somebody_else_is_left_alone") {
        return;
    }
    let bed = Testbed::builder().workers(1).build().expect("a testbed");
    let other = JobFile::write(
        &[format!("{}:9801", worker_address(0))],
        &format!("{}:9800", aggregator_address(0)),
        "slots = 9",
        5.0,
    );
    let _somebody_else = aggregator(&bed, &other, &["--datapath", "xdp-native"]);
    let job = job(1, "slots = 100");
    for datapath in ["xdp-native", "xdp-generic"] {
        error_of(&bed, &job, &["--datapath", datapath], &["eth0", "another XDP program", "--datapath udp"]);
        assert!(attached(&bed), "the first one stays");
    }
    let fallen_back = aggregator(&bed, &job, &[]);
    assert!(fallen_back.stdout().expect("output").contains("ready: datapath udp"));
}

#[test]
fn an_mtu_too_small_for_the_lanes_is_an_error_at_every_member() {
    if skip_unless_root("an_mtu_too_small_for_the_lanes_is_an_error_at_every_member") {
        return;
    }
    let bed = Testbed::builder().workers(1).mtu(1400).build().expect("a testbed");
    let job = job(1, "slots = 100");
    for datapath in ["xdp-native", "xdp-generic"] {
        error_of(
            &bed,
            &job,
            &["--datapath", datapath],
            &["eth0", "1400", "lanes = 352", "1500", "lanes = 320"],
        );
        assert!(!attached(&bed), "{datapath}");
    }
    let _aggregator = aggregator(&bed, &job, &["--datapath", "udp"]);
    expect_error(
        &finish(inside(bed.worker(0), &job.rank(0, &[]))),
        &["rank 0", "lanes = 352", "MTU of 1500"],
    );
}

#[test]
fn an_mtu_too_small_for_the_lanes_over_ipv6_is_an_error_at_every_member() {
    if skip_unless_root("an_mtu_too_small_for_the_lanes_over_ipv6_is_an_error_at_every_member") {
        return;
    }
    let bed = Testbed::builder().workers(1).mtu(1455).ipv6(true).build().expect("a testbed");
    let ends =
        [worker_address(0), aggregator_address(0)].map(|address| format!("[{}]:9700", ipv6_of(address)));
    let job = JobFile::write(&ends[..1], &ends[1], "slots = 100", 5.0);
    let words = ["eth0", "1455", "lanes = 336", "1456", "lanes = 320"];
    error_of(&bed, &job, &["--datapath", "xdp-native"], &words);
    let _aggregator = aggregator(&bed, &job, &["--datapath", "udp"]);
    expect_error(
        &finish(inside(bed.worker(0), &job.rank(0, &[]))),
        &["rank 0", "lanes = 336", "MTU of 1456"],
    );
}

#[test]
fn an_mtu_too_large_for_the_driver_is_an_error_that_names_the_limit() {
    if skip_unless_root("an_mtu_too_large_for_the_driver_is_an_error_that_names_the_limit") {
        return;
    }
    let bed = Testbed::builder().workers(1).mtu(9000).build().expect("a testbed");
    error_of(&bed, &job(1, "slots = 100"), &["--datapath", "xdp-native"], &["eth0", "9000", "3498"]);
    assert!(!attached(&bed));
}
