//! The aggregator: sums gradients in the kernel where it can, in user space where it must.
//!
//! - [`aggregator`]: starts an aggregator on the best datapath that there is, and says which;
//! - [`kernel`]: the kernel program (`src/bpf`), loaded and attached;
//! - [`udp`]: the same protocol over a plain socket, with the twin of the kernel program;
//! - [`status`]: what an aggregator is doing, and how to ask a running one.

pub mod aggregator;
pub mod interface;
pub mod kernel;
mod memory;
mod report;
pub mod status;
pub mod udp;

pub use aggregator::{AggregatorError, Datapath, Options, RunningAggregator};
pub use status::Status;
