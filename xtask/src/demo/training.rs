//! One training: starts the processes, follows them, and gathers what they say.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::events::{End, Epoch, Event, Step};
use super::interrupt::Interrupt;
use super::job;
use super::place::Place;
use super::process::Process;
use super::progress::Progress;
use crate::python::Python;
use crate::shell;

/// How long until the aggregator is ready.
const READY_PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing may be heard of any rank: longer than a job's own time limit, which gives the better error.
const SILENCE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);

/// What sums the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// XAgg.
    Xagg,
    /// PyTorch's own.
    Gloo,
}

impl Backend {
    const fn name(self) -> &'static str {
        match self {
            Self::Xagg => "xagg",
            Self::Gloo => "gloo",
        }
    }
}

/// What both trainings share.
pub struct Setup {
    pub workers: u16,
    pub epochs: u32,
    pub samples: u32,
    pub datapath: String,
    /// The `xagg` binary.
    pub xagg: PathBuf,
    pub python: Python,
    /// The folder with the images.
    pub data: PathBuf,
    /// Where logs and results go.
    pub folder: PathBuf,
}

/// What came of a training.
pub struct Outcome {
    /// Of rank 0.
    pub steps: Vec<Step>,
    pub epochs: Vec<Epoch>,
    /// By rank.
    pub ends: Vec<End>,
    /// What the aggregator said of itself at the end; none with gloo.
    pub aggregator: Option<Value>,
}

/// An event, and the rank that had it; a line that is no event is told as it is.
type Message = (usize, Result<Event, String>);

/// Trains once.
///
/// # Errors
/// When a process fails, with the end of its log; when nothing is heard for too long; on Ctrl-C.
pub fn run(backend: Backend, setup: &Setup, place: &Place, interrupt: &Interrupt) -> Result<Outcome> {
    let folder = setup.folder.join(backend.name());
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let progress = Progress::begin(backend.name());
    let job = folder.join("job.toml");
    let mut aggregator = None;
    if backend == Backend::Xagg {
        fs::write(&job, job::text(place.aggregator(), place.workers()))?;
        aggregator = Some(start_aggregator(setup, place, &job, &folder, interrupt)?);
    }
    let (sender, messages) = mpsc::channel();
    let rendezvous = place.rendezvous()?.to_string();
    let mut processes: Vec<Process> = aggregator.into_iter().collect();
    let first_worker = processes.len();
    for rank in 0..usize::from(setup.workers) {
        let mut command = worker_command(backend, setup, place, rank);
        command.arg("--rendezvous").arg(&rendezvous).arg("--job").arg(&job);
        let sender = sender.clone();
        let log = folder.join(format!("rank-{rank}.log"));
        processes.push(Process::spawn(format!("rank {rank}"), command, log, move |line| {
            let event = serde_json::from_str(&line).map_err(|_| line);
            // Nobody listens any more once another process has failed.
            let _ = sender.send((rank, event));
        })?);
    }
    drop(sender);
    let mut outcome = follow(&messages, &mut processes, usize::from(setup.workers), &progress, interrupt)?;
    if first_worker == 1 {
        outcome.aggregator = Some(status(setup, place)?);
        processes.swap_remove(0).stop();
    }
    wait_for_ends(processes)?;
    Ok(outcome)
}

fn start_aggregator(
    setup: &Setup,
    place: &Place,
    job: &Path,
    folder: &Path,
    interrupt: &Interrupt,
) -> Result<Process> {
    let mut command = place.aggregator_command(&setup.xagg);
    command.args(["aggregator", "--datapath", place.datapath(&setup.datapath), "--job"]).arg(job);
    let (sender, ready) = mpsc::channel();
    let mut process =
        Process::spawn("the aggregator".to_owned(), command, folder.join("aggregator.log"), move |line| {
            let _ = sender.send(line);
        })?;
    let deadline = Instant::now() + READY_PATIENCE;
    loop {
        interrupt.check()?;
        match ready.recv_timeout(POLL) {
            Ok(line) if line.starts_with("ready") => return Ok(process),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(_) => {
                let end =
                    process.ended()?.map_or_else(|| "it still runs".to_owned(), |status| status.to_string());
                bail!("the aggregator is not ready ({end}); {}", process.tail());
            }
        }
    }
}

fn worker_command(backend: Backend, setup: &Setup, place: &Place, rank: usize) -> std::process::Command {
    let mut command = place.worker_command(rank, &setup.python.interpreter());
    command.current_dir(shell::workspace()).env("PYTHONNOUSERSITE", "1");
    // One thread a rank: there are more ranks than cores, and the order of sums stays the same.
    command.env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
    command.env("GLOO_SOCKET_IFNAME", place.interface());
    command.args(["-u", "bindings/python/demo/train.py", "--backend", backend.name()]);
    command.args(["--rank", &rank.to_string(), "--workers", &setup.workers.to_string()]);
    command.args(["--epochs", &setup.epochs.to_string(), "--samples", &setup.samples.to_string()]);
    command.arg("--data").arg(&setup.data);
    command
}

/// Takes messages until every rank has ended its training.
fn follow(
    messages: &Receiver<Message>,
    processes: &mut [Process],
    workers: usize,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let mut outcome = Outcome { steps: Vec::new(), epochs: Vec::new(), ends: Vec::new(), aggregator: None };
    let mut ends: Vec<Option<End>> = vec![None; workers];
    let mut heard = Instant::now();
    while ends.iter().any(Option::is_none) {
        interrupt.check()?;
        match messages.recv_timeout(POLL) {
            Ok((rank, Ok(event))) => {
                heard = Instant::now();
                if rank == 0 {
                    progress.show(&event);
                }
                match event {
                    Event::Step(step) if rank == 0 => outcome.steps.push(step),
                    Event::Epoch(epoch) if rank == 0 => outcome.epochs.push(epoch),
                    Event::End(end) => ends[rank] = Some(end),
                    _ => {}
                }
            }
            Ok((rank, Err(line))) => bail!("rank {rank} printed what is no event: {line}"),
            Err(_) => check_processes(processes, heard)?,
        }
    }
    outcome.ends = ends.into_iter().flatten().collect();
    Ok(outcome)
}

/// For the time when nothing is heard.
fn check_processes(processes: &mut [Process], heard: Instant) -> Result<()> {
    for process in processes.iter_mut() {
        // A rank that has trained may end before the others do.
        if let Some(status) = process.ended()?
            && !status.success()
        {
            bail!("{} failed ({status}); {}", process.name(), process.tail());
        }
    }
    ensure!(
        heard.elapsed() < SILENCE,
        "nothing heard of any rank for {} s; {}",
        SILENCE.as_secs(),
        processes[0].tail()
    );
    std::thread::sleep(POLL);
    Ok(())
}

fn status(setup: &Setup, place: &Place) -> Result<Value> {
    let mut command = place.aggregator_command(&setup.xagg);
    let port = place.aggregator().port().to_string();
    let text = shell::read(command.args(["status", "--json", "--port", &port]))?;
    serde_json::from_str(&text).context("`xagg status --json` printed no JSON")
}

fn wait_for_ends(mut processes: Vec<Process>) -> Result<()> {
    let deadline = Instant::now() + SILENCE;
    for process in &mut processes {
        while process.ended()?.is_none() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        let status = process.ended()?;
        ensure!(
            status.is_some_and(|status| status.success()),
            "{} has trained but does not end well; {}",
            process.name(),
            process.tail()
        );
    }
    Ok(())
}
