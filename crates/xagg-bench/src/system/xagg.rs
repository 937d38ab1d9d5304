//! XAgg: an aggregator, and ranks that use the worker's library.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use xagg_testbed::{aggregator_address, worker_address};
use xagg_wire::Family;
use xagg_worker::{Client, Job, Reduction};

use super::{Place, Roles, System, ourselves, spawn};
use crate::control::{self, Reduce};

/// What a switch has for a job: SwitchML uses so many.
const POOL: usize = 512;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn start(system: System, place: &Place<'_>) -> Result<Roles> {
    let job = place.folder.join("job.toml");
    std::fs::write(&job, job_file(system, place)?)?;
    let datapath = if system == System::XaggUdp { "udp" } else { "xdp-native" };
    let mut command = place.bed.aggregator(0).command(place.xagg);
    command.args(["aggregator", "--datapath", datapath, "--job"]).arg(&job);
    let mut aggregator = spawn(command)?;
    aggregator.wait_for_output("ready: ", PATIENCE)?;
    let mut roles = Roles { servers: vec![aggregator], ..Roles::default() };
    for rank in 0..place.setting.workers {
        let mut command = place.bed.worker(rank).command(ourselves()?);
        command.arg("rank").arg(place.control).arg(&job).arg(rank.to_string());
        roles.workers.push(spawn(command)?);
    }
    Ok(roles)
}

fn job_file(system: System, place: &Place<'_>) -> Result<String> {
    let setting = place.setting;
    let lanes = Family::V4.lanes_for_mtu(setting.mtu).context("the MTU is too small")?;
    let all = setting.elements.div_ceil(lanes) + 1;
    let slots = if system == System::XaggXdpPool { POOL.min(all) } else { all };
    let mut text = format!(
        "job = 1\nsecret = \"of a benchmark, not secret\"\nlanes = {lanes}\nslots = {slots}\ntimeout_seconds = 60\naggregator = \"{}:9700\"\n",
        aggregator_address(0)
    );
    for rank in 0..setting.workers {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"{}:9701\"\n", worker_address(rank));
    }
    Ok(text)
}

/// Is a rank until the benchmark ends it.
///
/// # Errors
/// What goes wrong.
pub fn serve(control: &Path, job: &Path, rank: u16) -> Result<()> {
    let job = Job::load(job)?;
    let client = Client::connect(&job, rank)?;
    control::serve(control, rank, job.worker_count(), Rank(client))
}

struct Rank(Client);

impl Reduce for Rank {
    fn all_reduce(&mut self, values: &mut Vec<f32>) -> Result<()> {
        let len = values.len();
        *values = self.0.all_reduce(std::mem::take(values), Reduction::Sum).wait()?;
        ensure!(values.len() == len, "the result has another length");
        Ok(())
    }

    fn retransmissions(&self) -> Option<u64> {
        Some(self.0.stats().retransmissions)
    }
}
