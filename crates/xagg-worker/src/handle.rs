//! An operation in progress.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use xagg_proto::worker::{Buffer, WorkerError};

use crate::client::driver_failed;
use crate::driver::{Ended, SharedSnapshot};

/// What an all-reduce ends with.
pub type Outcome = Result<Vec<f32>, WorkerError>;

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, outcome: Outcome) {
        let mut state = self.lock();
        state.outcome.get_or_insert(outcome);
        self.changed.notify_all();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// An all-reduce in progress: to be waited for, or awaited. It always ends: with the result, or with an error after the
/// job's timeout at the latest.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    snapshot: SharedSnapshot,
}

/// Sets an error if it is dropped before an outcome was set, so that nobody waits for a thread that is gone.
struct Promise {
    shared: Arc<Shared>,
    rank: u16,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.shared.set(Err(driver_failed(self.rank)));
    }
}

impl Handle {
    /// A handle, and what is to be called with the buffer, a `Vec<f32>`.
    pub(crate) fn new(rank: u16, snapshot: SharedSnapshot) -> (Self, impl FnOnce(Ended) + Send + 'static) {
        let shared = Arc::new(Shared::default());
        let promise = Promise { shared: Arc::clone(&shared), rank };
        let done = move |outcome: Ended| {
            promise.shared.set(outcome.map(into_vec).map_err(|(error, _)| error));
        };
        (Self { shared, snapshot }, done)
    }

    /// Whether the outcome is there.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shared.lock().outcome.is_some()
    }

    /// The ranks that it waits for now: this rank has pushed everything, and they have not. Empty while that is not so, or not known
    /// yet (50 ms).
    #[must_use]
    pub fn waiting_for(&self) -> Vec<u16> {
        if self.is_done() { vec![] } else { self.snapshot.lock().waits.now.clone() }
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// Why the operation failed.
    pub fn wait(self) -> Outcome {
        let mut state = self.shared.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the outcome for at most this long; the handle comes back if it is not there.
    ///
    /// # Errors
    /// The handle, to wait again.
    pub fn wait_timeout(self, timeout: Duration) -> Result<Outcome, Self> {
        let deadline = Instant::now() + timeout;
        {
            let mut state = self.shared.lock();
            loop {
                if let Some(outcome) = state.outcome.take() {
                    return Ok(outcome);
                }
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state =
                    self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Err(self)
    }
}

impl Future for Handle {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.shared.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn into_vec(buffer: Buffer) -> Vec<f32> {
    let any: Box<dyn Any> = buffer;
    any.downcast().map(|values| *values).unwrap_or_default()
}
