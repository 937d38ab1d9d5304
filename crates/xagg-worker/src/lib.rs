//! The worker: an all-reduce over UDP that needs no privileges.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use xagg_worker::{Client, Job, Reduction};
//!
//! let job = Job::load("job.toml".as_ref())?;
//! let client = Client::connect(&job, 0)?;
//! let first = client.all_reduce(vec![1.0; 1000], Reduction::Sum);
//! let second = client.all_reduce(vec![2.0; 1000], Reduction::Mean); // in flight at the same time
//! println!("{} {}", first.wait()?[0], second.wait()?[0]);
//! # Ok(())
//! # }
//! ```
//!
//! [`Client`] is the front door, [`handle`] what an operation gives back; the private module `driver` is the thread that
//! owns the socket and the protocol's state machine ([`xagg_proto::Worker`]).

mod client;
mod driver;
pub mod handle;

pub use client::{Client, ClientError};
pub use handle::Handle;
pub use xagg_proto::Job;
pub use xagg_proto::worker::{Buffer, Failure, Stats, Values, Waits, WorkerError};
pub use xagg_wire::Reduction;
