//! What loopback cannot show: links that are down. Needs root.

use std::net::SocketAddrV4;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use xagg_aggregator::{Datapath, Options, RunningAggregator};
use xagg_testbed::{Testbed, aggregator_address, skip_unless_root, worker_address};
use xagg_worker::{Client, Job, Reduction};

/// Longer than the network looks for a neighbour before it says that there is none.
const NEIGHBOUR_GIVEN_UP: Duration = Duration::from_millis(4500);

/// A job of as many workers, in the testbed's namespaces.
fn job(workers: usize, timeout_seconds: u32) -> Job {
    let mut text = format!(
        "job = 1\nsecret = \"a secret for namespaces\"\nlanes = 16\nslots = 8\ntimeout_seconds = {timeout_seconds}\n\
         aggregator = \"{}:9700\"\n",
        aggregator_address(0)
    );
    for rank in 0..workers {
        text += &format!("[[worker]]\nrank = {rank}\naddress = \"{}:9701\"\n", worker_address(rank));
    }
    Job::parse(&text).expect("valid")
}

fn aggregator(bed: &Testbed, job: &Job) -> RunningAggregator {
    let options = Options { datapath: Some(Datapath::Udp), interface: None };
    let start = || RunningAggregator::start(std::slice::from_ref(job), &options);
    bed.aggregator(0).enter(start).expect("starts")
}

#[test]
fn a_worker_waits_for_an_aggregator_whose_link_comes_up_later() {
    if skip_unless_root("a_worker_waits_for_an_aggregator_whose_link_comes_up_later") {
        return;
    }
    let job = job(1, 15);
    let bed = Testbed::builder().workers(1).build().expect("builds");
    bed.link_down(bed.aggregator(0)).expect("goes down");
    thread::scope(|scope| {
        let client = scope.spawn(|| bed.worker(0).enter(|| Client::connect(&job, 0)));
        thread::sleep(NEIGHBOUR_GIVEN_UP);
        bed.link_up(bed.aggregator(0)).expect("comes up");
        let _aggregator = aggregator(&bed, &job);
        let client = client.join().expect("no panic").expect("joins");
        assert_eq!(client.all_reduce(vec![2.0; 5], Reduction::Sum).wait(), Ok(vec![2.0; 5]));
    });
}

/// An ICMP message to rank 0 that its packets to the aggregator cannot be delivered, for the reason with this code.
fn unreachable(code: u8) -> Vec<u8> {
    let (worker, aggregator) = (worker_address(0).octets(), aggregator_address(0).octets());
    let next_hop_mtu = [0, 0, 2, 88];
    let inner = [&[0x45, 0, 0, 156, 0, 0, 0x40, 0, 64, 17, 0, 0][..], &worker, &aggregator].concat();
    let ports = [9701_u16, 9700, 136, 0].map(u16::to_be_bytes).concat();
    let mut message = [&[3, code, 0, 0][..], &next_hop_mtu, &inner, &ports].concat();
    let words = message.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// A host off the path knows addresses and ports, if nothing else, and can say that the aggregator is not there.
#[test]
fn forged_icmp_messages_end_nothing() {
    if skip_unless_root("forged_icmp_messages_end_nothing") {
        return;
    }
    let (job, length) = (job(2, 20), 16 * 300);
    let bed = Testbed::builder().workers(3).build().expect("builds");
    let _aggregator = aggregator(&bed, &job);
    let connect = |rank: u16| bed.worker(rank.into()).enter(|| Client::connect(&job, rank)).expect("joins");
    let clients = [connect(0), connect(1)];
    let waiting = clients[0].all_reduce(vec![1.0; length], Reduction::Sum);
    let stranger = bed.worker(2).enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)));
    let (stranger, rank_0) = (stranger.expect("root"), SocketAddrV4::new(worker_address(0), 0));
    // Protocol, port, length of packets, administration.
    for code in [2, 3, 4, 13].into_iter().cycle().take(400) {
        stranger.send_to(&unreachable(code), &rank_0.into()).expect("sends");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!waiting.is_done(), "rank 0 still waits for rank 1");
    let late = clients[1].all_reduce(vec![2.0; length], Reduction::Sum);
    assert!(waiting.wait().expect("completes") == vec![3.0; length]);
    assert!(late.wait().expect("completes") == vec![3.0; length]);
}
