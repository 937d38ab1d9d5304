//! The system packages that the sub-commands need, by their names in Debian.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

/// What compiles the kernel program, libbpf and the rest.
pub const BUILD: &[&str] =
    &["clang", "gcc", "git", "libc6-dev", "libelf-dev", "llvm", "make", "pkg-config", "zlib1g-dev"];
/// What makes network namespaces; of use to root only.
pub const NETWORK: &[&str] = &["ethtool", "iproute2", "iputils-ping"];
/// PyTorch. With OpenBLAS it trains twice as fast as with the BLAS that it comes with.
pub const PYTORCH: &[&str] =
    &["libopenblas0-pthread", "python3", "python3-numpy", "python3-torch", "python3-venv"];
/// What the benchmarks compare with, besides PyTorch.
pub const PEERS: &[&str] = &["libopenmpi-dev", "openmpi-bin"];
/// What the demo trains on.
pub const DATA: &[&str] = &["dataset-fashion-mnist"];
/// The letters of the demo's plot.
pub const FONT: &[&str] = &["fonts-dejavu-core"];

/// Installs those of the packages that are missing, and says so first.
///
/// # Errors
/// Names the missing packages where they cannot be installed.
pub fn ensure(groups: &[&[&str]]) -> Result<()> {
    let wanted: BTreeSet<&str> = groups.iter().flat_map(|group| group.iter().copied()).collect();
    if !shell::exists("dpkg-query") {
        let list = join(wanted);
        eprintln!(
            "note: this is no Debian, so it is not checked that these packages (by Debian's names) are there: {list}"
        );
        return Ok(());
    }
    let missing: BTreeSet<&str> = wanted.into_iter().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !shell::is_root() {
        bail!(
            "these packages are missing and only root can install them: run\n  sudo apt-get install {}",
            join(missing)
        );
    }
    eprintln!("installing with apt-get: {}", join(missing.iter().copied()));
    shell::run(&mut apt_get(&["update"]))?;
    shell::run(apt_get(&["install", "--yes", "--no-install-recommends"]).args(&missing))
}

/// The files of an installed package.
///
/// # Errors
/// When the package is not installed.
pub fn files(package: &str) -> Result<Vec<String>> {
    let list = shell::read(Command::new("dpkg").args(["--listfiles", package]))?;
    Ok(list.lines().map(str::to_owned).collect())
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-o", "Dpkg::Use-Pty=0"]).args(arguments);
    command
}

fn is_installed(package: &str) -> bool {
    let query =
        shell::read(Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]));
    query.is_ok_and(|status| status == "installed")
}

fn join<'a>(packages: impl IntoIterator<Item = &'a str>) -> String {
    packages.into_iter().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_nobody_has_is_missing() {
        assert!(!is_installed("xagg-no-such-package"));
    }

    #[test]
    fn an_essential_package_is_there_where_there_are_packages() {
        if shell::exists("dpkg-query") {
            assert!(is_installed("dpkg"));
        }
    }
}
