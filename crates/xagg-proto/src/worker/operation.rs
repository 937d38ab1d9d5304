//! Operations in progress: where their values are and which fragments they are cut into.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;

use xagg_wire::Operation;

use super::WorkerError;

/// Something that owns values, or guards them.
pub trait Values: Any + AsMut<[f32]> + Send {}

impl<T: Any + AsMut<[f32]> + Send> Values for T {}

/// The values of an operation, to be replaced by the result. All workers keep the source until then (WIRE W5), so one
/// buffer serves as both. It comes back as what it was: `Box<dyn Values>` coerces to `Box<dyn Any>`.
pub type Buffer = Box<dyn Values>;

/// Why an operation has failed, and its values, some of which may have been replaced.
pub type Failure = (WorkerError, Buffer);

/// An operation that is not complete.
pub struct InProgress {
    /// What all workers agree on.
    pub operation: Operation,
    /// Its signature on the wire.
    pub signature: u32,
    /// This worker's weight.
    pub weight: u32,
    /// The sequence of its first fragment.
    pub first: u64,
    /// How many fragments it has.
    pub fragments: u64,
    /// How many of their results are there.
    pub done: u64,
    /// The values; gone once the operation is complete.
    pub buffer: Option<Buffer>,
}

impl InProgress {
    /// Which values of the operation are in the fragment.
    pub fn range(&self, sequence: u64, lanes: usize) -> Range<usize> {
        let start = (sequence - self.first) as usize * lanes;
        start..(start + lanes).min(self.operation.length as usize)
    }
}

/// All operations in progress, in the order of their sequences.
#[derive(Default)]
pub struct Operations(VecDeque<InProgress>);

impl Operations {
    /// Appends an operation.
    pub fn push(&mut self, operation: InProgress) {
        self.0.push_back(operation);
    }

    /// The operation that the fragment is of.
    pub fn of(&mut self, sequence: u64) -> Option<&mut InProgress> {
        let after = self.0.partition_point(|operation| operation.first <= sequence);
        let operation = self.0.get_mut(after.checked_sub(1)?)?;
        (sequence < operation.first + operation.fragments).then_some(operation)
    }

    /// The oldest that is not complete.
    pub fn oldest(&self) -> Option<&InProgress> {
        self.0.iter().find(|operation| operation.buffer.is_some())
    }

    /// Forgets the oldest ones that are complete.
    pub fn forget_complete(&mut self) {
        while self.0.front().is_some_and(|operation| operation.buffer.is_none()) {
            self.0.pop_front();
        }
    }

    /// Takes out all that are not complete.
    pub fn take_all(&mut self) -> impl Iterator<Item = InProgress> {
        std::mem::take(&mut self.0).into_iter().filter(|operation| operation.buffer.is_some())
    }

    /// How many are not complete.
    pub fn len(&self) -> usize {
        self.0.iter().filter(|operation| operation.buffer.is_some()).count()
    }
}
