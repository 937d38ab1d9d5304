//! How the end of an operation gets from the thread that sums to Python.

use std::sync::mpsc::Sender;

use pyo3::prelude::*;
use xagg_worker::{Buffer, Failure};

/// An operation that has ended.
pub struct Completion {
    /// The object that was given with its values.
    pub owner: Py<PyAny>,
    /// Why it failed.
    pub error: Option<String>,
    /// The values; dropped by whoever holds the GIL, as they hold a Python object.
    pub memory: Option<Buffer>,
}

/// Sends exactly one completion, also if the operation is dropped without an outcome: nobody waits in vain.
pub struct Ticket {
    owner: Option<Py<PyAny>>,
    completions: Sender<Completion>,
}

impl Ticket {
    /// The ticket of the operation on the owner's values.
    pub const fn new(owner: Py<PyAny>, completions: Sender<Completion>) -> Self {
        Self { owner: Some(owner), completions }
    }

    /// The operation has ended.
    pub fn complete(mut self, outcome: Result<Buffer, Failure>) {
        let (error, memory) = match outcome {
            Ok(memory) => (None, memory),
            Err((error, memory)) => (Some(error.to_string()), memory),
        };
        self.send(error, Some(memory));
    }

    fn send(&mut self, error: Option<String>, memory: Option<Buffer>) {
        if let Some(owner) = self.owner.take() {
            // Without a receiver there is nobody to tell.
            let _sent = self.completions.send(Completion { owner, error, memory });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(Some("the operation was given up, because the client has ended".to_owned()), None);
    }
}
