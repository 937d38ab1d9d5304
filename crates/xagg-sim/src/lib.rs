//! A deterministic simulator of whole jobs: real workers and the aggregator's twin, which are state machines without I/O, over
//! links that delay, lose, double, damage, reorder and mark packets, with processes that pause, crash and start again.
//!
//! One seed decides everything that happens. After every event global checkers compare what the members did with what they
//! ought to have done; the first difference is a [`Violation`] that names the seed.
//!
//! - [`scenario`]: what a simulation is made of, as plain data;
//! - [`random`]: a scenario for every seed;
//! - [`link`]: one direction of one cable, with its queue;
//! - [`cluster`]: workers, aggregator and links, event by event;
//! - [`outcome`]: how a run went;
//! - [`check`]: what must always hold;
//! - [`inputs`]: the gradients, and the sums that they must have;
//! - [`shrink`]: the smallest scenario that still fails;
//! - [`table`]: what scenarios cost, as a table.

#![forbid(unsafe_code)]

pub mod check;
pub mod cluster;
pub mod inputs;
pub mod link;
mod member;
pub mod outcome;
pub mod random;
pub mod scenario;
pub mod shrink;
pub mod table;

pub use check::Violation;
pub use cluster::Cluster;
pub use outcome::Outcome;
pub use scenario::Scenario;

/// Runs a scenario to its end, and takes a panic of a member for a violation.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(scenario: &Scenario) -> Result<Outcome, Violation> {
    let quiet = std::panic::AssertUnwindSafe(|| Cluster::new(scenario).run());
    std::panic::catch_unwind(quiet).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Violation::of_panic(text.unwrap_or_default()))
    })
}
