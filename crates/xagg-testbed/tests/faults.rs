//! What the fault program does to packets, one fault at a time. Needs root.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use xagg_testbed::{Direction, Faults, LossBurst, Node, Queue, Rate, Reorder, Testbed, skip_unless_root};

const COUNT: usize = 2000;
const LENGTH: usize = 500;
/// ECT(0) and CE of RFC 3168.
const ECN_CAPABLE: u8 = 2;
const MARKED: u8 = 3;

struct Arrived {
    number: u32,
    /// Bits of the payload that are not as they were sent.
    flipped: u32,
    ecn: u8,
}

/// A worker and an aggregator.
fn bed() -> Testbed {
    Testbed::builder().workers(1).offloads(false).build().expect("builds")
}

fn receiver(node: &Node) -> UdpSocket {
    let receiver = node.enter(|| UdpSocket::bind((node.address(), 9999))).expect("binds");
    receiver.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    setsockopt(&receiver, sockopt::RcvBufForce, &(16 << 20)).expect("a buffer for all");
    setsockopt(&receiver, sockopt::IpRecvTos, &true).expect("asks for the ECN bits");
    receiver
}

fn receive(socket: &UdpSocket) -> Option<Arrived> {
    use std::os::fd::AsRawFd;
    let (mut buffer, mut control) = ([0; 2048], nix::cmsg_space!(u8));
    let mut slices = [std::io::IoSliceMut::new(&mut buffer)];
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::empty()).ok()?;
    let ecn = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos & 3),
        _ => None,
    });
    let length = message.bytes;
    let number = u32::from_le_bytes(buffer[..4].try_into().expect("four bytes"));
    let flipped = buffer[4..length].iter().map(|byte| (byte ^ 0x55).count_ones()).sum();
    Some(Arrived { number, flipped, ecn: ecn.expect("asked for") })
}

/// Sends numbered packets; what arrives, in order. The number is not protected from damage.
fn exchange(from: &Node, to: &Node, count: usize) -> Vec<Arrived> {
    let receiver = receiver(to);
    let sender = from.enter(|| UdpSocket::bind("0.0.0.0:0")).expect("binds");
    setsockopt(&sender, sockopt::Ipv4Tos, &i32::from(ECN_CAPABLE)).expect("sets the ECN bits");
    let mut packet = vec![0x55; LENGTH];
    for number in 0..count as u32 {
        packet[..4].copy_from_slice(&number.to_le_bytes());
        sender.send_to(&packet, SocketAddr::from((to.address(), 9999))).expect("sends");
        if number % 16 == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    std::iter::from_fn(|| receive(&receiver)).collect()
}

/// What arrives under faults, in both directions of the link to a worker, checked one direction at a time.
fn each_way(name: &str, faults: &Faults, check: impl Fn(&[Arrived], xagg_testbed::Done)) {
    if skip_unless_root(name) {
        return;
    }
    let bed = bed();
    let (worker, aggregator) = (bed.worker(0), bed.aggregator(0));
    let ways = [(Direction::ToNode, aggregator, worker), (Direction::FromNode, worker, aggregator)];
    for (direction, from, to) in ways {
        bed.set_faults(worker, direction, faults).expect("sets");
        let arrived = exchange(from, to, COUNT);
        let done = bed.faults_done(worker, direction).expect("reads");
        assert_eq!(done.packets, COUNT as u64, "{direction:?}: {done:?}");
        check(&arrived, done);
        // The other way nothing happens.
        assert_undisturbed(&exchange(to, from, 100), 100);
        bed.set_faults(worker, direction, &Faults::default()).expect("stops");
        assert_undisturbed(&exchange(from, to, 100), 100);
    }
}

fn assert_undisturbed(arrived: &[Arrived], count: usize) {
    assert!(arrived.iter().map(|packet| packet.number).eq(0..count as u32), "all, once, in order");
    assert!(arrived.iter().all(|packet| packet.flipped == 0 && packet.ecn == ECN_CAPABLE));
}

/// How often a packet came after one with a larger number.
fn overtaken(arrived: &[Arrived]) -> usize {
    let mut largest = 0;
    let mut late = |packet: &&Arrived| {
        let late = packet.number < largest;
        largest = largest.max(packet.number);
        late
    };
    arrived.iter().filter(|packet| late(packet)).count()
}

#[test]
fn packets_are_lost_at_random() {
    let faults = Faults { drop_ppm: 100_000, ..Faults::default() };
    each_way("packets_are_lost_at_random", &faults, |arrived, done| {
        assert!((100..320).contains(&done.dropped), "{done:?}");
        assert_eq!(arrived.len() as u64 + done.dropped, COUNT as u64);
    });
}

#[test]
fn packets_are_lost_in_bursts() {
    let faults =
        Faults { burst: Some(LossBurst { enter_ppm: 10_000, leave_ppm: 100_000 }), ..Faults::default() };
    each_way("packets_are_lost_in_bursts", &faults, |arrived, done| {
        assert!((40..700).contains(&done.dropped_in_bursts), "{done:?}");
        assert_eq!(arrived.len() as u64 + done.dropped_in_bursts, COUNT as u64);
        let gaps = arrived.windows(2).filter(|pair| pair[1].number > pair[0].number + 1).count() as u64;
        assert!(gaps > 0 && done.dropped_in_bursts > 3 * gaps, "{gaps} bursts: {done:?}");
    });
}

#[test]
fn packets_arrive_twice() {
    let faults = Faults { duplicate_ppm: 100_000, ..Faults::default() };
    each_way("packets_arrive_twice", &faults, |arrived, done| {
        assert!((100..320).contains(&done.duplicated), "{done:?}");
        assert_eq!(arrived.len() as u64, COUNT as u64 + done.duplicated);
        let mut numbers: Vec<u32> = arrived.iter().map(|packet| packet.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert!(numbers.into_iter().eq(0..COUNT as u32), "each arrives");
    });
}

#[test]
fn bits_of_payloads_are_flipped() {
    let faults = Faults { flip_payload_ppm: 100_000, flip_bits: 3, ..Faults::default() };
    each_way("bits_of_payloads_are_flipped", &faults, |arrived, done| {
        assert!((100..320).contains(&done.flipped), "{done:?}");
        assert_eq!(arrived.len(), COUNT, "nobody checks the UDP checksum on veth");
        let damaged: Vec<u32> =
            arrived.iter().map(|packet| packet.flipped).filter(|bits| *bits > 0).collect();
        // Not those with flips in the number only.
        assert!(damaged.len() as u64 <= done.flipped && damaged.len() as u64 > done.flipped * 9 / 10);
        assert!(damaged.iter().all(|bits| *bits <= 3) && damaged.iter().any(|bits| *bits > 1), "{damaged:?}");
    });
}

#[test]
fn packets_with_flipped_headers_do_not_pass_for_others() {
    let faults = Faults { flip_headers_ppm: 100_000, ..Faults::default() };
    each_way("packets_with_flipped_headers_do_not_pass_for_others", &faults, |arrived, done| {
        assert!((100..320).contains(&done.flipped), "{done:?}");
        // Some flips hurt nobody: of the sender's hardware address, say.
        assert!((COUNT as u64 - done.flipped..COUNT as u64).contains(&(arrived.len() as u64)), "{done:?}");
        assert!(arrived.iter().all(|packet| packet.flipped == 0));
    });
}

#[test]
fn packets_are_overtaken() {
    let reorder = Some(Reorder { ppm: 50_000, delay: Duration::from_millis(2) });
    each_way("packets_are_overtaken", &Faults { reorder, ..Faults::default() }, |arrived, done| {
        assert!((40..200).contains(&done.reordered), "{done:?}");
        assert_eq!(arrived.len(), COUNT, "none is lost");
        let overtaken = overtaken(arrived) as u64;
        assert!(overtaken <= done.reordered && overtaken > done.reordered / 2, "{overtaken}: {done:?}");
        assert!(arrived.iter().all(|packet| packet.flipped == 0));
    });
}

#[test]
fn packets_are_marked_at_random() {
    each_way(
        "packets_are_marked_at_random",
        &Faults { mark_ppm: 100_000, ..Faults::default() },
        |arrived, done| {
            assert!((100..320).contains(&done.marked), "{done:?}");
            assert_eq!(arrived.iter().filter(|packet| packet.ecn == MARKED).count() as u64, done.marked);
            assert_eq!(arrived.len(), COUNT);
        },
    );
}

#[test]
fn packets_are_marked_when_a_queue_is_long() {
    let queue = |megabits, threshold| {
        let queue = Some(Queue { rate: Rate::mbit(megabits), threshold });
        Faults { queue, ..Faults::default() }
    };
    // 2000 packets of 542 bytes are 1.1 MB: at 1 Mbit/s nearly all of it is queued, whatever the machine does meanwhile.
    each_way("packets_are_marked_when_a_queue_is_long", &queue(1, 20_000), |arrived, done| {
        let first = arrived.iter().position(|packet| packet.ecn == MARKED).expect("some are marked");
        assert!((20_000 / 542..200).contains(&first), "{first}");
        assert!(done.marked > COUNT as u64 / 2, "{done:?}");
    });
    each_way("packets_are_marked_when_a_queue_is_long", &queue(1, 2_000_000), |_, done| {
        assert_eq!(done.marked, 0);
    });
}

#[test]
fn an_aggregators_link_has_its_rate_and_faults_too() {
    if skip_unless_root("an_aggregators_link_has_its_rate_and_faults_too") {
        return;
    }
    let bed = Testbed::builder().workers(1).offloads(false).rate(Rate::mbit(1000)).build().expect("builds");
    let (worker, aggregator) = (bed.worker(0), bed.aggregator(0));
    let all = Faults { drop_ppm: 1_000_000, ..Faults::default() };
    bed.set_faults(aggregator, Direction::FromNode, &all).expect("sets");
    assert!(exchange(aggregator, worker, 20).is_empty());
    assert_undisturbed(&exchange(worker, aggregator, 20), 20);
    let reorder = Some(Reorder { ppm: 1_000_000, delay: Duration::from_millis(50) });
    let late = Faults { reorder, ..Faults::default() };
    for direction in [Direction::FromNode, Direction::ToNode] {
        bed.set_faults(aggregator, direction, &late).expect("sets");
    }
    assert_undisturbed(&exchange(aggregator, worker, 20), 20);
    assert_undisturbed(&exchange(worker, aggregator, 20), 20);
}

#[test]
fn packets_meet_the_faults_of_every_link_that_they_pass() {
    if skip_unless_root("packets_meet_the_faults_of_every_link_that_they_pass") {
        return;
    }
    let bed = bed();
    let (worker, aggregator) = (bed.worker(0), bed.aggregator(0));
    let all = Faults { duplicate_ppm: 1_000_000, ..Faults::default() };
    bed.set_faults(worker, Direction::FromNode, &all).expect("sets");
    bed.set_faults(aggregator, Direction::ToNode, &all).expect("sets");
    assert_eq!(exchange(worker, aggregator, 20).len(), 80);
    assert_eq!(bed.faults_done(aggregator, Direction::ToNode).expect("reads").duplicated, 40);
}
