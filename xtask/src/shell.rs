//! Running other programs, with errors that name the command.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// Where cargo puts what it builds: an absolute path.
pub fn target() -> PathBuf {
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from);
    std::path::absolute(&folder).unwrap_or(folder)
}

/// The cargo that runs this program, at the root of the workspace.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace());
    command
}

/// Whether this process may make network namespaces and install packages.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs a command that shares this terminal.
///
/// # Errors
/// The command line and how it ended, unless it succeeded.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    check(command, status, "")
}

/// Runs a command and returns what it wrote to its standard output.
///
/// # Errors
/// The command line, how it ended and what it wrote to its standard error, unless it succeeded.
pub fn read(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{}`", line(command)))?;
    check(command, output.status, &String::from_utf8_lossy(&output.stderr))?;
    String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote no UTF-8", line(command)))
}

/// Whether a program of this name can be started.
pub fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn check(command: &Command, status: ExitStatus, stderr: &str) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let stderr = stderr.trim();
    bail!("`{}` ended with {status}{}{stderr}", line(command), if stderr.is_empty() { "" } else { ":\n" })
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_writes_is_read() {
        assert_eq!(read(Command::new("sh").args(["-c", "echo sum"])).expect("runs"), "sum\n");
    }

    #[test]
    fn a_failure_names_the_command_its_status_and_its_complaint() {
        let error = read(Command::new("sh").args(["-c", "echo no lanes >&2; exit 3"])).expect_err("fails");
        let message = format!("{error:#}");
        assert!(
            message.contains("sh -c") && message.contains('3') && message.contains("no lanes"),
            "{message}"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("xagg-no-such-program")).expect_err("is not there");
        assert!(format!("{error:#}").contains("cannot start `xagg-no-such-program`"));
        assert!(exists("sh") && !exists("xagg-no-such-program"));
    }
}
