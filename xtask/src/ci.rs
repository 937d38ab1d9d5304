//! `cargo xtask ci`: everything that a change must pass.

use anyhow::Result;

use crate::shell;
use crate::steps::Steps;
use crate::{test, tidy};

/// Runs the tests and every check of style.
///
/// # Errors
/// Names the steps that failed.
pub fn run() -> Result<()> {
    let mut steps = Steps::default();
    // The tests come first: they install what the other steps need for building.
    test::add_to(&mut steps)?;
    steps.run("tidy", tidy::run);
    steps.run("format", || shell::run(&mut shell::cargo(&["fmt", "--all", "--check"])));
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    steps.run("clippy", || shell::run(&mut shell::cargo(&clippy)));
    let documentation = ["doc", "--workspace", "--no-deps"];
    steps.run("documentation", || {
        shell::run(shell::cargo(&documentation).env("RUSTDOCFLAGS", "--deny warnings"))
    });
    if shell::exists("cargo-deny") {
        steps.run("licences and advisories", || shell::run(&mut shell::cargo(&["deny", "check"])));
    } else {
        println!("\nSKIPPED licences and advisories: cargo-deny is not installed (cargo install cargo-deny)");
    }
    steps.finish()
}
