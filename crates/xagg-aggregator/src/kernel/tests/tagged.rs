//! VLAN tags on a link: the switch puts one on what comes from every second worker, and lets nothing through to a worker that
//! has not its tag. (This kernel may know nothing of VLANs itself, so no member has an interface in one.)

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;

use libbpf_rs::libbpf_sys;
use nix::net::if_::if_nametoindex;
use xagg_proto::Job;
use xagg_testbed::exact::{exact_sum, integers};
use xagg_testbed::{Testbed, aggregator_address, skip_unless_root, worker_address};
use xagg_wire::Counter;
use xagg_worker::{Client, Reduction};

use super::super::{KernelAggregator, KernelConfig, Mode};
use super::harness::{Harness, INCARNATION};
use crate::interface::Interface;

const WORKERS: usize = 3;
const LENGTH: usize = 100_000;

fn job(lanes: usize) -> Job {
    let mut text = format!(
        "job = 1\nsecret = \"a secret for tagged links\"\nlanes = {lanes}\nslots = 1000\ntimeout_seconds = 20\n\
         aggregator = \"{}:9700\"\n",
        aggregator_address(0)
    );
    for rank in 0..WORKERS {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"{}:9701\"\n", worker_address(rank));
    }
    Job::parse(&text).expect("valid")
}

/// Attaches a program to the switch's end of the aggregator's link, in the switch's namespace.
fn attach(bed: &Testbed, program: &OwnedFd, kind: libbpf_sys::bpf_attach_type) -> OwnedFd {
    let attach = || {
        let port = if_nametoindex(bed.aggregator(0).port()).expect("the switch's end").cast_signed();
        // SAFETY: the descriptor is that of a loaded program, and no options are given.
        let link = unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), port, kind, std::ptr::null()) };
        assert!(link >= 0, "{}", std::io::Error::from_raw_os_error(-link));
        // SAFETY: the kernel has just given this descriptor to us.
        unsafe { OwnedFd::from_raw_fd(link) }
    };
    bed.switch().enter(attach)
}

fn sums_are_exact(mode: Mode, mtu: usize, lanes: usize) {
    let bed = Testbed::builder().workers(WORKERS).mtu(mtu).build().expect("builds");
    let job = job(lanes);
    let harness = Harness::new(job.clone());
    let [push, pop] = harness.switch();
    let _links =
        [attach(&bed, push, libbpf_sys::BPF_TCX_EGRESS), attach(&bed, pop, libbpf_sys::BPF_TCX_INGRESS)];
    // Else the tag would travel beside the frame, where an XDP program does not see it.
    let mut command = bed.switch().command("ethtool");
    let status = command.args(["-K", bed.aggregator(0).port(), "txvlan", "off"]).status();
    assert!(status.expect("runs").success());
    let start = || {
        let interface = Interface::find(None, aggregator_address(0).into()).expect("eth0");
        let config = KernelConfig { interface, mode, address: job.aggregator, incarnation: INCARNATION };
        KernelAggregator::start(&config, std::slice::from_ref(&job)).unwrap_or_else(|error| panic!("{error}"))
    };
    let aggregator = bed.aggregator(0).enter(start);
    thread::scope(|scope| {
        for rank in 0..WORKERS as u16 {
            let (bed, job) = (&bed, &job);
            scope.spawn(move || {
                let client = bed.worker(usize::from(rank)).enter(|| Client::connect(job, rank));
                let client = client.unwrap_or_else(|error| panic!("{mode}: {error}"));
                let sum = client.all_reduce(integers(rank, LENGTH), Reduction::Sum).wait();
                let sum = sum.unwrap_or_else(|error| panic!("{mode}: {error}"));
                assert!(sum == exact_sum(WORKERS as u16, LENGTH), "{mode}: rank {rank}");
            });
        }
    });
    let tags = (0..WORKERS as u32).map(|rank| aggregator.loaded.flow(1, rank).expect("reads").tag);
    let tag = u32::from_ne_bytes([0x81, 0, 0, 5]);
    assert_eq!(tags.collect::<Vec<_>>(), [tag, 0, tag], "the aggregator has seen tags");
    let counters = aggregator.report().expect("reads").jobs[0].counters;
    let [results, again] =
        [Counter::Broadcast, Counter::ResultAgain].map(|counter| counters[counter.index()]);
    assert_eq!(results, LENGTH.div_ceil(lanes) as u64, "{mode}");
    println!("{mode}, MTU {mtu}: {results} results, {again} sent again");
}

#[test]
fn workers_with_and_without_a_tag_get_exact_sums_in_native_mode() {
    if skip_unless_root("workers_with_and_without_a_tag_get_exact_sums_in_native_mode") {
        return;
    }
    sums_are_exact(Mode::Native, 1500, 352);
    sums_are_exact(Mode::Native, 3498, 848);
}

#[test]
fn workers_with_and_without_a_tag_get_exact_sums_in_generic_mode() {
    if skip_unless_root("workers_with_and_without_a_tag_get_exact_sums_in_generic_mode") {
        return;
    }
    sums_are_exact(Mode::Generic, 1500, 352);
    sums_are_exact(Mode::Generic, 3498, 848);
}
