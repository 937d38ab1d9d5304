//! The demo's job file.

use std::fmt::Write;
use std::net::SocketAddrV4;

/// Values of the CNN in `train.py`, with room for the same model made somewhat larger.
const GRADIENT_ELEMENTS: u32 = 500_000;
const TIMEOUT_SECONDS: u32 = 30;

/// The text of a job file for these workers, by rank.
pub fn text(aggregator: SocketAddrV4, workers: &[SocketAddrV4]) -> String {
    // Nobody else is in the demo's network; a real job's secret is random (`xagg job`).
    let mut text = format!(
        "job = 1\nsecret = \"only for the demo\"\ngradient_elements = {GRADIENT_ELEMENTS}\n\
         timeout_seconds = {TIMEOUT_SECONDS}\naggregator = \"{aggregator}\"\n"
    );
    for (rank, address) in workers.iter().enumerate() {
        write!(text, "\n[[worker]]\nrank = {rank}\naddress = \"{address}\"\n")
            .expect("a string takes everything");
    }
    text
}
