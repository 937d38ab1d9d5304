//! Congestion control over a real bottleneck: the link to the aggregator has a rate, and a queue that marks or overflows. It is full,
//! shared fairly among workers and with TCP, and does not overflow once everybody has found his pace. Needs root.
//!
//! Only ratios are judged, over a second or more, so a slow machine only takes longer; one that does not let senders run for longer than the
//! queue lasts leaves the bottleneck empty through no fault of theirs, so the best of a few tries counts.

mod common;

#[path = "congestion/bottleneck.rs"]
mod bottleneck;
#[path = "congestion/tcp.rs"]
mod tcp;

use std::time::Duration;

use bottleneck::{Bottleneck, Measured, Queue};
use tcp::Tcp;
use xagg_aggregator::Datapath;
use xagg_testbed::skip_unless_root;

/// Of the bottleneck.
const MBIT: u64 = 100;
const TRIES: usize = 3;
/// How long is measured.
const INTERVAL: Duration = Duration::from_secs(2);
/// And beside TCP: a dozen times that a queue fills and overflows.
const LONG_INTERVAL: Duration = Duration::from_secs(4);

/// Measures until `good`, a few times at most; the last if none is.
fn best_of(tries: usize, measure: impl Fn() -> Measured, good: impl Fn(&Measured) -> bool) -> Measured {
    let mut measured = measure();
    for _ in 1..tries {
        if good(&measured) {
            break;
        }
        println!("  again: {measured}");
        measured = measure();
    }
    measured
}

#[test]
fn a_bottleneck_is_full_shared_fairly_and_does_not_overflow() {
    if skip_unless_root("a_bottleneck_is_full_shared_fairly_and_does_not_overflow") {
        return;
    }
    for (datapath, workers) in
        [(Datapath::XdpNative, 2), (Datapath::XdpNative, 4), (Datapath::XdpNative, 8), (Datapath::Udp, 8)]
    {
        let measure = || Bottleneck::start(workers, 0, datapath, MBIT, Queue::Marks).measure(INTERVAL, None);
        let good = |measured: &Measured| {
            measured.utilisation >= 0.95 && measured.fairness >= 0.95 && measured.late_drops == 0
        };
        let measured = best_of(TRIES, measure, good);
        println!("{datapath}, {workers} workers: {measured}");
        assert!(good(&measured), "{datapath}, {workers} workers: {measured}");
    }
}

#[test]
fn beside_tcp_nobody_starves() {
    if skip_unless_root("beside_tcp_nobody_starves") {
        return;
    }
    for control in ["cubic", "bbr"] {
        let measure = || {
            let bottleneck = Bottleneck::start(1, 1, Datapath::XdpNative, MBIT, Queue::Overflows);
            let tcp = Tcp::start(bottleneck.extra(0), bottleneck.aggregator(), control);
            bottleneck.measure(LONG_INTERVAL, Some(&tcp))
        };
        // A quarter of its half.
        let good = |measured: &Measured| {
            let tcp = measured.share_of_tcp;
            tcp >= 0.125 && measured.utilisation - tcp >= 0.125
        };
        let measured = best_of(TRIES, measure, good);
        println!("beside {control}: {measured}");
        assert!(good(&measured), "beside {control}: {measured}");
    }
}
