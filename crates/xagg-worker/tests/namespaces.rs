//! What loopback cannot show: links that are down. Needs root.

use std::thread;
use std::time::Duration;

use xagg_aggregator::{Datapath, Options, RunningAggregator};
use xagg_testbed::{Testbed, aggregator_address, skip_unless_root, worker_address};
use xagg_worker::{Client, Job, Reduction};

/// Longer than the network looks for a neighbour before it says that there is none.
const NEIGHBOUR_GIVEN_UP: Duration = Duration::from_millis(4500);

#[test]
fn a_worker_waits_for_an_aggregator_whose_link_comes_up_later() {
    if skip_unless_root("a_worker_waits_for_an_aggregator_whose_link_comes_up_later") {
        return;
    }
    let text = format!(
        "job = 1\nsecret = \"a secret for namespaces\"\nlanes = 16\nslots = 8\ntimeout_seconds = 15\n\
         aggregator = \"{}:9700\"\n[[worker]]\nrank = 0\naddress = \"{}:9701\"\n",
        aggregator_address(0),
        worker_address(0)
    );
    let job = Job::parse(&text).expect("valid");
    let bed = Testbed::builder().workers(1).build().expect("builds");
    bed.link_down(bed.aggregator(0)).expect("goes down");
    thread::scope(|scope| {
        let client = scope.spawn(|| bed.worker(0).enter(|| Client::connect(&job, 0)));
        thread::sleep(NEIGHBOUR_GIVEN_UP);
        bed.link_up(bed.aggregator(0)).expect("comes up");
        let options = Options { datapath: Some(Datapath::Udp), interface: None };
        let start = || RunningAggregator::start(std::slice::from_ref(&job), &options);
        let _aggregator = bed.aggregator(0).enter(start).expect("starts");
        let client = client.join().expect("no panic").expect("joins");
        assert_eq!(client.all_reduce(vec![2.0; 5], Reduction::Sum).wait(), Ok(vec![2.0; 5]));
    });
}
