//! Whether there is memory for a job before any of it is reserved.

use thiserror::Error;
use xagg_proto::Job;
use xagg_proto::aggregator::memory_needed;

/// The jobs do not fit the memory that is free.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "not enough memory: {slots} slots of {lanes} lanes need {needed} bytes, {free} bytes are free. Lower gradient_elements or slots, or use a server with more memory"
)]
pub struct OutOfMemory {
    slots: u64,
    lanes: usize,
    needed: u64,
    free: u64,
}

/// Checks the jobs against the memory that the system can give without swapping.
///
/// # Errors
/// [`OutOfMemory`] with the bytes needed and free.
pub fn check(jobs: &[Job]) -> Result<(), OutOfMemory> {
    match available() {
        Some(free) => check_against(jobs, free),
        None => Ok(()),
    }
}

fn check_against(jobs: &[Job], free: u64) -> Result<(), OutOfMemory> {
    let needed = jobs.iter().map(memory_needed).sum();
    if needed <= free {
        return Ok(());
    }
    let slots = jobs.iter().map(|job| u64::from(job.slots)).sum();
    Err(OutOfMemory { slots, lanes: jobs[0].lanes, needed, free })
}

/// `MemAvailable`, in bytes; `None` where there is no /proc.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_bytes_needed_and_free() {
        let job = Job::parse(
            "job = 1\nsecret = \"0123456789abcdef\"\nslots = 1000\naggregator = \"127.0.0.1:9700\"\n\
             [[worker]]\nrank = 0\naddress = \"127.0.0.2:9701\"",
        )
        .expect("valid");
        let needed = memory_needed(&job);
        assert!(needed >= 1000 * 2 * 1408);
        assert_eq!(check_against(std::slice::from_ref(&job), needed), Ok(()));
        let message = check_against(&[job], needed - 1).expect_err("too little").to_string();
        assert!(
            message.contains(&needed.to_string()) && message.contains(&(needed - 1).to_string()),
            "{message}"
        );
        assert!(available().is_some_and(|free| free > 1 << 20));
    }
}
