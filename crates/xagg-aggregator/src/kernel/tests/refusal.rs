//! What is said when the kernel refuses the program.

use std::net::Ipv4Addr;

use xagg_testbed::skip_unless_root;

use super::super::{KernelConfig, KernelError, Mode, load};
use super::harness::{INCARNATION, job};
use crate::interface::Interface;

#[test]
fn a_refusal_says_what_the_verifier_objects_to() {
    if skip_unless_root("a_refusal_says_what_the_verifier_objects_to") {
        return;
    }
    let mut job = job(1, 16, 1);
    // More than a packet can hold, which a job file cannot ask for: the verifier must object.
    job.lanes = 100_000;
    let interface = Interface::find(Some("lo"), Ipv4Addr::LOCALHOST.into()).expect("loopback");
    let config =
        KernelConfig { interface, mode: Mode::Native, address: job.aggregator, incarnation: INCARNATION };
    let Err(error) = load::load(&config, &[job]) else { panic!("the verifier takes anything") };
    let message = error.to_string();
    assert!(matches!(error, KernelError::Refused { .. }), "{message}");
    assert!(
        message.contains("processed") && message.contains("insns"),
        "the verifier's last line: {message}"
    );
    assert!(message.contains("--datapath udp"), "what to do: {message}");
    assert!(message.lines().count() <= 20, "only the end of the log: {message}");
}

#[test]
fn memory_that_the_kernel_does_not_have_is_an_error_with_the_bytes() {
    if skip_unless_root("memory_that_the_kernel_does_not_have_is_an_error_with_the_bytes") {
        return;
    }
    // More than any machine has, which the check before admission keeps a job file from asking for.
    let (lanes, banks) = (848, u32::MAX);
    let error = load::lanes_map(lanes, banks).expect_err("14 terabytes");
    let bytes = 4 * lanes as u64 * u64::from(banks);
    assert!(matches!(error, KernelError::OutOfMemory { bytes: refused } if refused == bytes), "{error}");
    assert!(error.to_string().contains(&format!("no {bytes} bytes")), "{error}");
}
