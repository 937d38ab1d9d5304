//! Tests that need root say so loudly when they have not got it.

use std::io::Write;

/// Whether this process may make namespaces and load kernel programs.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Whether the calling test must be left out: without root it is, and says so on stderr and in the file that `XAGG_SKIP_LOG`
/// names, from which `cargo xtask test` counts. With `XAGG_REQUIRE_ROOT` set it fails instead.
///
/// # Panics
/// Without root, if `XAGG_REQUIRE_ROOT` is set.
#[must_use]
pub fn skip_unless_root(test: &str) -> bool {
    if is_root() {
        return false;
    }
    assert!(
        std::env::var_os("XAGG_REQUIRE_ROOT").is_none(),
        "{test} needs root, and XAGG_REQUIRE_ROOT is set"
    );
    let line = format!("SKIPPED {test}: needs root");
    // Not with `eprintln`, whose output the test harness keeps to itself when a test succeeds.
    let _best_effort = writeln!(std::io::stderr(), "{line}");
    if let Some(path) = std::env::var_os("XAGG_SKIP_LOG") {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let _best_effort = log.and_then(|mut log| writeln!(log, "{line}"));
    }
    true
}
