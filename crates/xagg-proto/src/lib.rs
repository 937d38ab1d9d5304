//! The protocol of XAgg without I/O: `handle_*` takes what came in, `poll_*` gives what goes out, and time is an argument.
//! No clock, no socket, no thread.
//!
//! - [`job`]: what all members of a job know of it, read from one TOML file;
//! - [`worker`]: cuts operations into fragments, gets them there exactly once, puts results together;
//! - [`aggregator`]: sums fragments in slots: the twin of the kernel program, and its executable specification;
//! - [`time`]: instants and the arithmetic of timers.

#![forbid(unsafe_code)]

pub mod aggregator;
pub mod job;
pub mod time;
pub mod worker;

pub use aggregator::Aggregator;
pub use job::Job;
pub use time::Time;
pub use worker::Worker;
