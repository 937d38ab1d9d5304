//! OpenMPI, over TCP.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use xagg_testbed::{Node, Testbed, worker_address};

use super::{Place, Roles, spawn};

/// From so many values on the ring is faster than what OpenMPI takes by itself.
const RING_FROM: usize = 100_000;

pub fn missing() -> Option<String> {
    let is_there = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let missing = ["mpirun", "mpicc"].into_iter().find(|program| !is_there(program))?;
    Some(format!("there is no {missing}: install openmpi-bin and libopenmpi-dev"))
}

pub fn start(place: &Place<'_>) -> Result<Roles> {
    let program = compile(place.folder)?;
    let agent = write_agent(place.bed, place.folder)?;
    let hosts: Vec<String> =
        (0..place.setting.workers).map(|rank| format!("{}:1", worker_address(rank))).collect();
    // Where all ranks can be reached, and no rank is.
    let mut command = place.bed.aggregator(0).command("mpirun");
    command.args(["--allow-run-as-root", "--host", &hosts.join(","), "-np", &hosts.len().to_string()]);
    let agent = agent.display().to_string();
    let settings = [
        ("plm_rsh_agent", agent.as_str()),
        ("plm_rsh_no_tree_spawn", "1"),
        ("oob_tcp_if_include", Node::INTERFACE),
        ("pml", "ob1"),
        // All ranks are on one machine, which they must not make use of.
        ("btl", "self,tcp"),
        ("btl_tcp_if_include", Node::INTERFACE),
        // There are more ranks than cores.
        ("mpi_yield_when_idle", "1"),
    ];
    let ring = [("coll_tuned_use_dynamic_rules", "1"), ("coll_tuned_allreduce_algorithm", "4")];
    let ring = ring.into_iter().filter(|_| place.setting.elements >= RING_FROM);
    for (name, value) in settings.into_iter().chain(ring) {
        command.args(["--mca", name, value]);
    }
    command.arg(program).arg(place.control);
    Ok(Roles { workers: vec![spawn(command)?], ..Roles::default() })
}

fn compile(folder: &Path) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/openmpi.c");
    let program = folder.join("openmpi");
    let output = Command::new("mpicc").args(["-O2", "-o"]).args([&program, &source]).output()?;
    ensure!(output.status.success(), "mpicc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}

/// What mpirun starts programs on other hosts with: `AGENT HOST COMMAND...`. Here hosts are namespaces.
fn write_agent(bed: &Testbed, folder: &Path) -> Result<PathBuf> {
    let namespace =
        |(rank, node): (usize, &Node)| format!("{}) node={};;\n", worker_address(rank), node.name());
    let namespaces: String = bed.workers().iter().enumerate().map(namespace).collect();
    let script = format!(
        "#!/bin/sh\ncase $1 in\n{namespaces}esac\nshift\nexec ip netns exec \"$node\" sh -c \"$*\"\n"
    );
    let path = folder.join("agent");
    fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
