//! Any text is a job or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xagg_proto::Job;

fuzz_target!(|text: &str| {
    if let Ok(job) = Job::parse(text) {
        assert!(!job.workers.is_empty() && job.lanes.is_multiple_of(16) && job.slots > 0);
        assert!(job.mtu() <= 3498 && job.workers.iter().all(|end| end.is_ipv6() == job.aggregator.is_ipv6()));
    }
});
