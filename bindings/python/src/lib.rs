//! The native half of the Python package `xagg`: a rank's membership of a job, whose operations end in a queue.
//!
//! Python hands over memory as a pointer, a length and the object that owns it; nothing here knows PyTorch. The thread that
//! sums needs no GIL, and whoever waits here releases it.

use std::collections::HashMap;
use std::mem;
use std::path::PathBuf;
use std::process;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use xagg_worker::{Job, Reduction};

mod memory;
mod ticket;

use memory::Memory;
use ticket::{Completion, Ticket};

create_exception!(
    xagg,
    XaggError,
    PyRuntimeError,
    "A job cannot be joined or cannot go on; the text says what is wrong and what to do."
);

/// The extension module.
#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    const __VERSION__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use super::{Client, XaggError};
}

/// A rank that has joined its job.
#[pyclass(frozen, module = "xagg._native")]
pub struct Client {
    /// Gone once closed.
    joined: Mutex<Option<Joined>>,
    completions: Mutex<Receiver<Completion>>,
    rank: u16,
    /// A child made by `fork` has a copy of this object, but not the thread behind it.
    process: u32,
}

struct Joined {
    client: xagg_worker::Client,
    completions: Sender<Completion>,
}

#[pymethods]
impl Client {
    /// Joins the job that the file describes; waits at most for the job's timeout.
    #[new]
    fn new(py: Python<'_>, job: PathBuf, rank: i64) -> PyResult<Self> {
        let job =
            Job::load(&job).map_err(|error| XaggError::new_err(format!("{}: {error}", job.display())))?;
        let rank = u16::try_from(rank).map_err(|_| {
            PyValueError::new_err(format!("rank {rank} is out of range: ranks are 0, 1, 2, ..."))
        })?;
        let client = join(py, job, rank)?;
        let (sender, completions) = channel();
        Ok(Self {
            joined: Mutex::new(Some(Joined { client, completions: sender })),
            completions: Mutex::new(completions),
            rank,
            process: process::id(),
        })
    }

    /// Begins an all-reduce, in place, of `length` f32 values at `pointer`, which belong to `owner` and which nobody else
    /// may touch until `next_completion` gives `owner` back.
    fn all_reduce(
        &self,
        owner: Py<PyAny>,
        pointer: usize,
        length: usize,
        reduction: &str,
        weight: i64,
        py: Python<'_>,
    ) -> PyResult<()> {
        let reduction = match reduction {
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "{reduction:?} is not supported: use \"sum\" or \"mean\""
                )));
            }
        };
        let weight =
            u32::try_from(weight).ok().filter(|weight| (1..=65535).contains(weight)).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "weight {weight} is out of range: it is a whole number from 1 to 65535"
                ))
            })?;
        let joined = self.lock();
        let joined = joined.as_ref().ok_or_else(|| self.closed())?;
        if self.process != process::id() {
            return Err(XaggError::new_err(format!(
                "rank {} was joined by another process than this one: join after the fork, not before",
                self.rank
            )));
        }
        let memory = Memory::new(owner.clone_ref(py), pointer, length)?;
        let ticket = Ticket::new(owner, joined.completions.clone());
        joined
            .client
            .all_reduce_with(Box::new(memory), reduction, weight, move |outcome| ticket.complete(outcome));
        Ok(())
    }

    /// Waits for the next operation to end: its owner and, if it failed, the error. `None` once the client is closed and
    /// everything has ended.
    fn next_completion(&self, py: Python<'_>) -> Option<(Py<PyAny>, Option<PyErr>)> {
        let next = || self.completions.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Completion { owner, error, memory } = py.detach(next).ok()?;
        drop(memory);
        Some((owner, error.map(XaggError::new_err)))
    }

    /// The counters of this rank.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.lock().as_ref().map(|joined| joined.client.stats()).ok_or_else(|| self.closed())?;
        let dict = PyDict::new(py);
        let counters = serde_json::to_value(stats).map_err(|error| XaggError::new_err(error.to_string()))?;
        for (name, count) in counters.as_object().into_iter().flatten() {
            dict.set_item(name, count.as_u64())?;
        }
        Ok(dict)
    }

    /// The ranks that this one waits for now, and for how many seconds it has waited for whom.
    fn waits(&self) -> PyResult<(Vec<u16>, HashMap<u16, f64>)> {
        let waits = self.lock().as_ref().map(|joined| joined.client.waits()).ok_or_else(|| self.closed())?;
        let spent = waits.spent.iter().map(|(rank, spent)| (*rank, spent.as_secs_f64()));
        Ok((waits.now, spent.collect()))
    }

    /// Leaves the job; what is in progress fails. Does nothing if done before.
    fn close(&self, py: Python<'_>) {
        let joined = self.lock().take();
        py.detach(|| self.leave(joined));
    }
}

impl Client {
    fn lock(&self) -> MutexGuard<'_, Option<Joined>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> PyErr {
        XaggError::new_err(format!("rank {} has left its job (it was closed): join again", self.rank))
    }

    /// Ends the thread, unless it is that of the process that this one was forked from.
    fn leave(&self, joined: Option<Joined>) {
        if self.process == process::id() {
            drop(joined);
        } else {
            mem::forget(joined);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let joined = self.lock().take();
        self.leave(joined);
    }
}

/// Joins on a thread of its own, so that Ctrl-C ends the wait.
fn join(py: Python<'_>, job: Job, rank: u16) -> PyResult<xagg_worker::Client> {
    const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
    let (sender, mut answer) = channel();
    // Whoever no longer waits does not get the client, which leaves the job when it is dropped.
    thread::spawn(move || sender.send(xagg_worker::Client::connect(&job, rank)));
    loop {
        let answer = &mut answer;
        match py.detach(move || answer.recv_timeout(SIGNAL_INTERVAL)) {
            Ok(outcome) => return outcome.map_err(|error| XaggError::new_err(error.to_string())),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let text = format!(
                    "rank {rank} could not join: the thread that joins has failed; please report this"
                );
                return Err(XaggError::new_err(text));
            }
        }
    }
}
