//! The clock of the machine jumps, as when somebody sets it: for every member, between 1970 and 2106, several times a second.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use xagg_testbed::Process;

use crate::common::{JobFile, LIMIT, expect_error, finish, ready, spawn, text};

/// Stands before the C library's function, through which programs ask for the time.
const SHIM: &str = "
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time)
{
	int failed = syscall(SYS_clock_gettime, clock, time);
	if (!failed && clock == CLOCK_REALTIME)
		time->tv_sec = time->tv_nsec / 50000000 % 2 ? 4300000000 : 1;
	return failed;
}
";

/// Compiles the shim beside the job file.
fn shim(job: &JobFile) -> PathBuf {
    let (source, library) = (job.beside("clock.c"), job.beside("clock.so"));
    std::fs::write(&source, SHIM).expect("writes");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o", text(&library), text(&source)]);
    let finished = finish(compiler);
    assert!(finished.status.success(), "{}", finished.stderr);
    library
}

fn with_jumps(mut command: Command, shim: &Path) -> Command {
    command.env("LD_PRELOAD", shim);
    command
}

/// What the log says of the time: the fault is there.
fn assert_jumped(log: &str) {
    assert!(log.starts_with("1970-") || log.starts_with("2106-"), "{log}");
}

#[test]
fn a_clock_that_jumps_changes_no_sum_and_no_timeout() {
    let job = JobFile::on_loopback(3, 2.0);
    // Everybody may read the job file, which is worth a line of the log.
    std::fs::set_permissions(job.path(), Permissions::from_mode(0o644)).expect("changes the mode");
    let shim = shim(&job);
    let aggregator = ready(with_jumps(job.aggregator(&["--datapath", "udp"]), &shim));
    let rank = |rank| {
        let arguments = ["--elements", "100000", "--iterations", if rank == 2 { "20" } else { "21" }];
        spawn(with_jumps(job.rank(rank, &arguments), &shim))
    };
    let mut ranks: Vec<Process> = (0..3).map(rank).collect();
    // It has had enough one iteration before the others.
    let first = ranks[2].wait(LIMIT).expect("ends");
    let begin = Instant::now();
    assert!(
        first.status.success() && first.stdout.contains("every result is exactly the sum"),
        "{}",
        first.stderr
    );
    assert_jumped(&first.stderr);
    for rank in &mut ranks[..2] {
        let finished = rank.wait(LIMIT).expect("ends");
        assert!(begin.elapsed() > Duration::from_secs(1), "not before the timeout of 2 s");
        assert!(begin.elapsed() < Duration::from_secs(10), "nor long after it");
        expect_error(&finished, &["operation 20", "no progress for 2.0s", "rank 2 is missing"]);
        assert_jumped(&finished.stderr);
    }
    assert_jumped(&aggregator.stderr().expect("log"));
}
