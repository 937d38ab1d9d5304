//! gloo, by way of PyTorch.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use xagg_testbed::{Node, worker_address};

use super::{Place, Roles, spawn};

/// Debian's python3-torch belongs to this one.
const PYTHON: &str = "/usr/bin/python3";
const PORT: u16 = 9702;

pub fn missing() -> Option<String> {
    let mut command = Command::new(PYTHON);
    command.args(["-c", "import torch.distributed"]).stderr(Stdio::null());
    let is_there = command.status().is_ok_and(|status| status.success());
    (!is_there).then(|| format!("{PYTHON} has no torch: install python3-torch and python3-numpy"))
}

pub fn start(place: &Place<'_>) -> Result<Roles> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/gloo.py");
    let mut roles = Roles::default();
    for rank in 0..place.setting.workers {
        let mut command = place.bed.worker(rank).command(PYTHON);
        command.arg(&program).arg(place.control).arg(rank.to_string());
        command.arg(place.setting.workers.to_string()).arg(format!("tcp://{}:{PORT}", worker_address(0)));
        command.env("GLOO_SOCKET_IFNAME", Node::INTERFACE).env("OMP_NUM_THREADS", "1");
        roles.workers.push(spawn(command)?);
    }
    Ok(roles)
}
