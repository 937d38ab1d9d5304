//! Running system tools.

use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use thiserror::Error;

/// A system tool that failed or is not there.
#[derive(Debug, Error)]
pub enum ShellError {
    /// It cannot be started.
    #[error("cannot run `{command}`: {reason}. Are iproute2 and ethtool installed?")]
    Missing {
        /// The command line.
        command: String,
        /// What the system said.
        reason: io::Error,
    },
    /// It ended with an error.
    #[error("`{command}` failed: {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// What it wrote to stderr.
        stderr: String,
    },
    /// What was asked for cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The system refuses.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        reason: io::Error,
    },
}

/// Runs a command to its end.
pub fn run(program: &str, arguments: &[&str]) -> Result<(), ShellError> {
    output(program, arguments).map(drop)
}

/// Runs a command to its end; what it wrote to stdout.
pub fn output(program: &str, arguments: &[&str]) -> Result<String, ShellError> {
    let command = format!("{program} {}", arguments.join(" "));
    let result = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    checked(command, result)
}

/// Runs a command with this on its stdin.
pub fn run_with_input(program: &str, arguments: &[&str], input: &str) -> Result<(), ShellError> {
    let command = format!("{program} {} <<< {input}", arguments.join(" "));
    let result = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(|mut child| {
            child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()))?;
            child.wait_with_output()
        });
    checked(command, result).map(drop)
}

fn checked(command: String, result: io::Result<Output>) -> Result<String, ShellError> {
    let output = result.map_err(|reason| ShellError::Missing { command: command.clone(), reason })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(ShellError::Failed { command, stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}
