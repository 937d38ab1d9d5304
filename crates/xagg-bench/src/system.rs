//! The systems that are compared: how their processes are started in a testbed.

mod gloo;
mod openmpi;
pub mod tcp_ps;
pub mod xagg;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use xagg_testbed::{Process, Testbed};

use crate::scenario::Setting;

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// XAgg, summed by the kernel program in native mode.
    XaggXdp,
    /// XAgg, summed in user space over plain sockets.
    XaggUdp,
    /// XAgg's kernel program with as few slots as a switch has: our stand-in for SwitchML and ATP.
    XaggXdpPool,
    /// A parameter server of our own over TCP, as fast as we can make it.
    TcpPs,
    /// PyTorch's `torch.distributed` with its backend gloo: a ring over TCP.
    Gloo,
    /// `MPI_Allreduce` of OpenMPI, over TCP.
    Openmpi,
}

/// What a system is given.
pub struct Place<'a> {
    /// Where the processes run.
    pub bed: &'a Testbed,
    /// What is measured.
    pub setting: &'a Setting,
    /// Where ranks report to.
    pub control: &'a Path,
    /// For files that they need.
    pub folder: &'a Path,
    /// The `xagg` binary.
    pub xagg: &'a Path,
}

/// A system's processes.
#[derive(Default)]
pub struct Roles {
    /// The ranks, or what starts them; they end when the ranks are told to.
    pub workers: Vec<Process>,
    /// What they need besides.
    pub servers: Vec<Process>,
}

impl Roles {
    /// Fails if one of them has ended.
    ///
    /// # Errors
    /// With what it wrote.
    pub fn check(&mut self) -> Result<()> {
        for process in self.workers.iter_mut().chain(&mut self.servers) {
            if let Some(finished) = process.finished()? {
                bail!("a process has ended ({}): {}{}", finished.status, finished.stdout, finished.stderr);
            }
        }
        Ok(())
    }
}

impl System {
    /// Why it cannot run here, if so.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Gloo => gloo::missing(),
            Self::Openmpi => openmpi::missing(),
            _ => None,
        }
    }

    /// Starts its processes. Ranks come to the control socket by themselves.
    ///
    /// # Errors
    /// What cannot be started.
    pub fn start(self, place: &Place<'_>) -> Result<Roles> {
        match self {
            Self::XaggXdp | Self::XaggUdp | Self::XaggXdpPool => xagg::start(self, place),
            Self::TcpPs => tcp_ps::start(place),
            Self::Gloo => gloo::start(place),
            Self::Openmpi => openmpi::start(place),
        }
        .with_context(|| format!("{self} cannot be started"))
    }
}

impl fmt::Display for System {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::XaggXdp => "xagg-xdp",
            Self::XaggUdp => "xagg-udp",
            Self::XaggXdpPool => "xagg-xdp-pool",
            Self::TcpPs => "tcp-ps",
            Self::Gloo => "gloo",
            Self::Openmpi => "openmpi",
        })
    }
}

fn spawn(command: Command) -> Result<Process> {
    let line = format!("{command:?}");
    Process::spawn(command).with_context(|| format!("cannot start {line}"))
}

/// This program, which is also the ranks of our own systems.
fn ourselves() -> Result<PathBuf> {
    std::env::current_exe().context("where is this program?")
}
