//! What wrong usage, wrong job files and missing means get: one clear sentence and an exit code.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use xagg_wire::Rate;

use crate::common::{JobFile, expect_error, finish, ready, text, xagg};

const SUB_COMMANDS: [&str; 4] = ["aggregator", "allreduce", "status", "job"];

#[test]
fn every_help_has_an_example_of_its_own() {
    for name in SUB_COMMANDS {
        let help = finish(xagg(&[name, "--help"]));
        assert!(help.status.success());
        assert!(help.stdout.contains(&format!("Example:\n  xagg {name}")), "{}", help.stdout);
        assert!(finish(xagg(&["--help"])).stdout.contains(name));
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    let wrong: [&[&str]; 13] = [
        &[],
        &["reduce"],
        &["aggregator"],
        &["aggregator", "--job", "job.toml", "--datapath", "xdp"],
        &["allreduce", "--job", "job.toml"],
        &["allreduce", "--job", "job.toml", "--rank", "-1"],
        &["allreduce", "--job", "job.toml", "--rank", "0", "--elements", "0"],
        &["allreduce", "--job", "job.toml", "--rank", "0", "--iterations", "0"],
        &["allreduce", "--job", "job.toml", "--rank", "0", "--input", "file", "--elements", "5"],
        &["allreduce", "--job", "job.toml", "--rank", "0", "--reduction", "max"],
        &["status", "--watch", "0"],
        &["job", "--workers", "10.0.0.1", "--aggregator", "10.0.0.9:9700", "--elements", "1"],
        &[
            "job",
            "--workers",
            "10.0.0.1:1",
            "--aggregator",
            "10.0.0.9:9",
            "--elements",
            "1",
            "--rate",
            "fast",
        ],
    ];
    for arguments in wrong {
        let finished = finish(xagg(arguments));
        assert_eq!(finished.status.code(), Some(2), "{arguments:?}: {}", finished.stderr);
        assert!(!finished.stderr.is_empty() && finished.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_wrong_job_file_is_one_sentence_at_every_member() {
    let job = || JobFile::on_loopback(2, 5.0);
    let too_many = JobFile::on_loopback(257, 5.0);
    let cases: [(JobFile, &[&str]); 8] = [
        (job().replaced("rank = 1", "rank = 0"), &["job.toml", "rank 0 stands twice"]),
        (job().replaced("job = 5", "job = 5\ncolour = 3"), &["job.toml", "colour"]),
        (job().replaced("job = 5", "job ="), &["job.toml"]),
        (job().replaced("slots = 3000", "lanes = 350"), &["350", "multiple of 16"]),
        (job().replaced("a secret for tests", "short"), &["secret", "16"]),
        (job().replaced("slots = 3000", "slots = 0"), &["slots"]),
        (job().replaced("rank = 1", "rank = 1\nrate = \"1mbit\""), &["1mbit", "rank 1", "at least"]),
        (too_many, &["257", "256"]),
    ];
    for (job, words) in &cases {
        expect_error(&finish(job.aggregator(&["--datapath", "udp"])), words);
        expect_error(&finish(job.rank(0, &[])), words);
    }
    for name in ["aggregator", "allreduce"] {
        let mut command = xagg(&[name, "--job", "/nonexistent/job.toml"]);
        command.args(if name == "allreduce" { &["--rank", "0"][..] } else { &[] });
        expect_error(&finish(command), &["/nonexistent/job.toml", "cannot read"]);
    }
}

#[test]
fn a_rank_that_the_job_has_not_is_an_error() {
    expect_error(&finish(JobFile::on_loopback(2, 5.0).rank(2, &[])), &["rank 2", "0 to 1"]);
}

#[test]
fn slots_that_do_not_fit_are_refused_with_the_bytes_needed_and_free() {
    let job = JobFile::on_loopback(2, 5.0).replaced("slots = 3000", "slots = 67108864\nlanes = 848");
    let finished = finish(job.aggregator(&["--datapath", "udp"]));
    expect_error(&finished, &["not enough memory", "67108864 slots", "bytes are free", "Lower"]);
    // Two banks of 848 lanes of 4 bytes for each slot, at least.
    let needed =
        finished.stderr.split("need ").nth(1).and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    assert!(needed.is_some_and(|needed| needed >= 67_108_864 * 2 * 848 * 4), "{}", finished.stderr);
}

/// There is memory, but this process may not have it: found out when it is reserved, before the aggregator is ready.
#[test]
fn memory_that_the_system_refuses_is_an_error_with_the_bytes() {
    const LIMIT: &str = "--as=536870912";
    let job = JobFile::on_loopback(2, 5.0).replaced("slots = 3000", "slots = 400000");
    let command = job.aggregator(&["--datapath", "udp"]);
    let mut limited = Command::new("prlimit");
    limited.arg(LIMIT).arg(command.get_program()).args(command.get_args());
    expect_error(&finish(limited), &["the system has no", "bytes of memory for job 5", "lower", "ulimit"]);
}

#[test]
fn an_unknown_interface_is_an_error_that_lists_the_others() {
    let job = JobFile::on_loopback(2, 5.0);
    for datapath in ["auto", "xdp-native", "xdp-generic"] {
        let arguments = ["--interface", "nosuch0", "--datapath", datapath];
        expect_error(&finish(job.aggregator(&arguments)), &["nosuch0", "lo"]);
    }
}

#[test]
fn an_address_of_another_machine_is_an_error_that_says_so() {
    let job = JobFile::write(&["203.0.113.1:9701".to_owned()], "203.0.113.9:9700", "slots = 9", 5.0);
    expect_error(&finish(job.aggregator(&["--datapath", "xdp-native"])), &["203.0.113.9", "127.0.0.1"]);
    expect_error(&finish(job.aggregator(&["--datapath", "udp"])), &["203.0.113.9"]);
    expect_error(&finish(job.rank(0, &[])), &["rank 0", "203.0.113.1:9701", "machine that has its address"]);
}

/// The command without any capability, also where the tests run as root.
fn without_capabilities(command: &Command) -> Command {
    let mut without = Command::new("setpriv");
    without.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]);
    without.arg(command.get_program()).args(command.get_args());
    without
}

/// A job whose aggregator has the one address that the loopback interface is known by.
fn job_on_localhost(base: u16) -> JobFile {
    let port = base + std::process::id() as u16 % 5000;
    JobFile::write(&["127.0.0.2:9701".to_owned()], &format!("127.0.0.1:{port}"), "slots = 9", 5.0)
}

#[test]
fn without_capabilities_the_kernel_datapaths_are_an_error_that_says_what_to_do() {
    let job = job_on_localhost(10_000);
    for datapath in ["xdp-native", "xdp-generic"] {
        let command = without_capabilities(&job.aggregator(&["--datapath", datapath]));
        expect_error(&finish(command), &["CAP_BPF", "CAP_NET_ADMIN", "--datapath udp"]);
    }
}

#[test]
fn without_capabilities_auto_takes_udp_and_says_why() {
    let job = job_on_localhost(15_000);
    let aggregator = ready(without_capabilities(&job.aggregator(&["--datapath", "auto"])));
    assert!(aggregator.stdout().expect("output").contains("ready: datapath udp, 127.0.0.1:"));
    let log = aggregator.stderr().expect("log");
    assert!(log.contains("no xdp-native datapath") && log.contains("no xdp-generic datapath"), "{log}");
    assert!(log.contains("CAP_BPF"), "{log}");
}

#[test]
fn jobs_that_cannot_share_an_aggregator_are_refused() {
    let (one, other) = (JobFile::on_loopback(2, 5.0), JobFile::on_loopback(2, 5.0));
    let both = |other: &JobFile| one.aggregator(&["--datapath", "udp", "--job", text(&other.path())]);
    expect_error(&finish(both(&other)), &["different aggregators"]);
    expect_error(&finish(both(&one)), &["job 5"]);
}

#[test]
fn the_port_of_another_aggregator_is_taken() {
    let job = JobFile::on_loopback(2, 5.0);
    let _aggregator = job.running();
    expect_error(&finish(job.aggregator(&["--datapath", "udp"])), &["another aggregator"]);
}

#[test]
fn a_wrong_file_is_an_error_before_the_job_begins() {
    // Nobody listens: what reaches the network would wait for the timeout and say so.
    let job = JobFile::on_loopback(1, 60.0);
    let input = job.beside("input");
    std::fs::write(&input, [0; 6]).expect("writes");
    expect_error(&finish(job.rank(0, &["--input", text(&input)])), &["6 bytes", "f32"]);
    std::fs::write(&input, []).expect("writes");
    expect_error(&finish(job.rank(0, &["--input", text(&input)])), &["0 bytes"]);
    expect_error(&finish(job.rank(0, &["--input", "/nonexistent/input"])), &["/nonexistent/input"]);
    expect_error(&finish(job.rank(0, &["--output", "/nonexistent/output"])), &["/nonexistent/output"]);
}

#[test]
fn a_log_filter_that_is_none_is_an_error() {
    let mut command = xagg(&["status"]);
    command.env("XAGG_LOG", "xagg=loud");
    expect_error(&finish(command), &["XAGG_LOG"]);
}

#[test]
fn a_written_job_is_valid_and_has_a_secret_of_its_own() {
    let job = |more: &[&str]| {
        let mut command =
            xagg(&["job", "--workers", "10.0.0.1:9701,10.0.0.2:9701", "--aggregator", "10.0.0.9:9700"]);
        command.args(["--elements", "1000000"]).args(more);
        finish(command)
    };
    let parse = |text: &str| xagg_proto::Job::parse(text).expect("valid");
    let (first, second) = (parse(&job(&[]).stdout), parse(&job(&[]).stdout));
    assert_eq!((first.lanes, first.timeout.as_secs(), first.worker_count()), (352, 60, 2));
    assert!(u64::from(first.slots) * 352 >= 1_000_000);
    assert_ne!(first.cookie(0), second.cookie(0));
    assert!(first.checksum && !parse(&job(&["--no-checksum"]).stdout).checksum);
    let other = parse(&job(&["--mtu", "3498", "--timeout", "2.5", "--id", "7"]).stdout);
    assert_eq!((other.id, other.lanes, other.timeout.as_millis()), (7, 848, 2500));
    let rates = |rate: &str| parse(&job(&["--rate", rate]).stdout).rates;
    assert_eq!(first.rates, [None, None]);
    assert_eq!(rates("10gbit"), [Some(Rate::mbit(10_000)); 2]);
    assert_eq!(rates("1gbit,250mbit"), [Some(Rate::mbit(1000)), Some(Rate::mbit(250))]);
    expect_error(&job(&["--rate", "1gbit,1gbit,1gbit"]), &["3 rates for 2 workers"]);
    expect_error(&job(&["--rate", "1mbit"]), &["1mbit", "at least"]);
    expect_error(&job(&["--mtu", "100"]), &["MTU of 100", "IPv4", "156"]);
    expect_error(&job(&["--timeout", "0"]), &["timeout"]);
}

#[test]
fn a_written_job_fits_every_mtu_from_1280_to_3498_over_both_versions_of_ip() {
    for (workers, aggregator, fitting) in [
        ("10.0.0.1:9701,10.0.0.2:9701", "10.0.0.9:9700", [288, 352, 848]),
        ("[fd00::1]:9701,[fd00::2]:9701", "[fd00::9]:9700", [288, 336, 832]),
    ] {
        let job = |mtu: &str| {
            let arguments = ["--aggregator", aggregator, "--elements", "1000000", "--mtu", mtu];
            let mut command = xagg(&["job", "--workers", workers]);
            command.args(arguments);
            finish(command)
        };
        for (mtu, lanes) in ["1280", "1500", "3498"].iter().zip(fitting) {
            let written = job(mtu).stdout;
            let parsed = xagg_proto::Job::parse(&written).expect("valid");
            assert_eq!(
                (parsed.lanes, parsed.aggregator.to_string()),
                (lanes, aggregator.to_owned()),
                "{written}"
            );
        }
        expect_error(&job("0"), &["MTU of 0"]);
    }
    let mixed = ["job", "--workers", "[fd00::1]:9701", "--aggregator", "10.0.0.9:9700", "--elements", "1"];
    expect_error(&finish(xagg(&mixed)), &["10.0.0.9:9700", "[fd00::1]:9701", "all IPv6"]);
}

#[test]
fn no_aggregator_has_no_status() {
    expect_error(&finish(xagg(&["status", "--port", "9"])), &["no aggregator runs"]);
}

#[test]
fn a_job_file_that_everybody_may_read_is_warned_about() {
    for (mode, is_warned) in [(0o644, true), (0o604, true), (0o640, false), (0o600, false)] {
        let job = JobFile::on_loopback(1, 5.0);
        std::fs::set_permissions(job.path(), Permissions::from_mode(mode)).expect("changes the mode");
        // An unknown rank ends it as soon as the file has been read.
        let finished = finish(job.rank(7, &[]));
        let warning = format!("chmod 600 {}", job.path().display());
        assert_eq!(finished.stderr.contains(&warning), is_warned, "{mode:o}: {}", finished.stderr);
    }
}
