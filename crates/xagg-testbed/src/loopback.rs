//! Addresses on loopback, of which every test has its own.

use std::sync::atomic::{AtomicU32, Ordering};

/// The first three numbers of a network that no other test of a process has, nor of one whose id is near (up to 64 networks each), as in
/// `127.93.7`. All of 127/8 is this machine, no address of it needs to be made, and the tests of one process run side by side.
#[must_use]
pub fn network() -> String {
    static NETWORKS: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id() * 64 + NETWORKS.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{}", 64 + number / 256 % 128, number % 256)
}
