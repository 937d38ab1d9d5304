//! Links: veth pairs between nodes and the switch, their offloads, rates and counters.

use std::io;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use xagg_wire::Rate;

use crate::namespace::Node;
use crate::shell::{ShellError, output, run, run_with_input};

/// What every link is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub mtu: usize,
    pub offloads: bool,
    pub ipv6: bool,
    /// Both ends have as many queues, in both directions.
    pub queues: usize,
}

/// What a node's interface has counted. A frame that is longer than the MTU, see [`crate::Builder::offloads`], is one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Packets received.
    pub received: u64,
    /// Bytes received, with Ethernet headers.
    pub received_bytes: u64,
    /// Packets dropped on the way in.
    pub receive_drops: u64,
    /// Packets sent.
    pub sent: u64,
    /// Bytes sent; veth counts them without Ethernet headers where frames are not longer than the MTU.
    pub sent_bytes: u64,
    /// Packets dropped on the way out.
    pub send_drops: u64,
}

/// Connects a node to the switch's bridge.
pub(crate) fn connect(
    switch: &Node,
    node: &Node,
    bridge: &str,
    properties: Properties,
) -> Result<(), ShellError> {
    let (mtu, queues) = (properties.mtu, properties.queues);
    let (port, interface) = (node.port(), Node::INTERFACE);
    let queues = format!("numtxqueues {queues} numrxqueues {queues}");
    let link = format!(
        "link add {port} mtu {mtu} {queues} type veth peer name {interface} mtu {mtu} {queues} netns {}\n\
         link set {port} master {bridge} up\n",
        node.name()
    );
    run_with_input("ip", &["-n", switch.name(), "-batch", "-"], &link)?;
    // Where faults and an aggregator's rate are attached.
    run("tc", &["-n", switch.name(), "qdisc", "add", "dev", port, "clsact"])?;
    let mut ends = format!("addr add {}/16 dev {interface}\nlink set {interface} up\n", node.address());
    if properties.ipv6 {
        // Nobody else has it, so there is no need to wait until that is found out.
        ends += &format!("addr add {}/64 dev {interface} nodad\n", node.ipv6_address());
    }
    run_with_input("ip", &["-n", node.name(), "-batch", "-"], &ends)?;
    set_offloads(switch, node, properties)
}

/// GRO stays on at the switch's end whatever the offloads: it gives that end NAPI, without which frames that an XDP program
/// sends out of the node's end are dropped.
fn set_offloads(switch: &Node, node: &Node, properties: Properties) -> Result<(), ShellError> {
    let ethtool = |node: &Node, device: &str, settings: &[&str]| {
        let arguments = [&["netns", "exec", node.name(), "ethtool", "-K", device], settings].concat();
        run("ip", &arguments)
    };
    if properties.offloads {
        ethtool(switch, node.port(), &["gro", "on", "rx-udp-gro-forwarding", "on"])
    } else {
        // UDP's segmentation (GSO) is not in `gso`.
        let none = ["tso", "off", "gso", "off", "tx-udp-segmentation", "off", "gro"];
        ethtool(switch, node.port(), &[&none[..], &["on"]].concat())?;
        ethtool(node, Node::INTERFACE, &[&none[..], &["off"]].concat())
    }
}

/// One sending CPU for each queue towards the node, else two senders overrun one queue.
pub(crate) fn spread_queues(switch: &Node, node: &Node, queues: usize) -> Result<(), ShellError> {
    for queue in 0..queues {
        let path = format!("/sys/class/net/{}/queues/tx-{queue}/xps_cpus", node.port());
        let command = format!("echo {:x} > {path}", 1_u64 << queue);
        // `ip netns exec` mounts the namespace's own sysfs.
        run("ip", &["netns", "exec", switch.name(), "sh", "-c", &command])?;
    }
    Ok(())
}

/// A direction of a node's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// What is sent to the node.
    ToNode,
    /// What the node sends, also what an XDP program of the node sends.
    FromNode,
}

/// What a link of this rate passes at once after a pause, in bytes: its token bucket. It refills once a timer tick at worst (4 ms), so it
/// must hold what passes in that time.
pub(crate) fn burst(rate: Rate) -> u64 {
    rate.bytes_in(Duration::from_millis(5)).max(20_000)
}

/// The bytes that may wait for a link of this rate, if nothing else is said: what passes in 25 ms, and a burst.
pub(crate) fn usual_queue(rate: Rate) -> u64 {
    rate.bytes_in(Duration::from_millis(25)) + burst(rate)
}

/// Limits a worker's link in both directions: each end limits what it sends, so the sender feels it at once.
pub(crate) fn limit_worker(switch: &Node, node: &Node, rate: Rate) -> Result<(), ShellError> {
    set_bucket(switch, node.port(), rate, usual_queue(rate))?;
    set_bucket(node, Node::INTERFACE, rate, usual_queue(rate))
}

/// Limits a direction of a node's link at the switch, where `queue` bytes may wait. What an XDP program sends bypasses the queueing
/// discipline of its own end, so what comes from the node goes through an intermediate device with a bucket.
pub(crate) fn limit(
    switch: &Node,
    node: &Node,
    direction: Direction,
    rate: Rate,
    queue: u64,
) -> Result<(), ShellError> {
    match direction {
        Direction::ToNode => set_bucket(switch, node.port(), rate, queue),
        Direction::FromNode => {
            let intermediate = format!("i{}", node.port());
            if switch.enter(|| if_nametoindex(intermediate.as_str())).is_err() {
                send_through(switch, node.port(), &intermediate)?;
            }
            set_bucket(switch, &intermediate, rate, queue)
        }
    }
}

fn send_through(switch: &Node, port: &str, intermediate: &str) -> Result<(), ShellError> {
    let setup = format!("link add {intermediate} type ifb\nlink set {intermediate} up\n");
    run_with_input("ip", &["-n", switch.name(), "-batch", "-"], &setup)?;
    let redirect = format!(
        "filter add dev {port} ingress pref 2 protocol all u32 match u32 0 0 action mirred egress redirect dev {intermediate}\n"
    );
    run_with_input("tc", &["-n", switch.name(), "-batch", "-"], &redirect)
}

fn set_bucket(node: &Node, device: &str, rate: Rate, queue: u64) -> Result<(), ShellError> {
    let bucket =
        format!("qdisc replace dev {device} root tbf rate {rate} burst {} limit {queue}\n", burst(rate));
    run_with_input("tc", &["-n", node.name(), "-batch", "-"], &bucket)
}

/// What the queueing disciplines of a node's interfaces have dropped.
pub(crate) fn queue_drops(node: &Node) -> Result<u64, ShellError> {
    let table = output("tc", &["-n", node.name(), "-s", "qdisc", "show"])?;
    parse_drops(&table).ok_or_else(|| ShellError::Invalid(format!("no counters in what tc shows: {table}")))
}

/// Adds up what stands as `(dropped 12, overlimits 0 requeues 0)`.
fn parse_drops(table: &str) -> Option<u64> {
    let counts = table.split("(dropped ").skip(1).map(|rest| rest.split(',').next()?.parse::<u64>().ok());
    table.is_empty().then_some(0).or_else(|| counts.sum::<Option<u64>>())
}

impl Node {
    /// What the node's interface has counted.
    ///
    /// # Errors
    /// What the system says.
    pub fn counters(&self) -> Result<Counters, ShellError> {
        let what = || format!("reading the counters of {} in {}", Self::INTERFACE, self.name());
        // That of the thread: the process is in another namespace.
        let table = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
        let table = table.map_err(|reason| ShellError::System { what: what(), reason })?;
        Counters::parse(&table, Self::INTERFACE)
            .ok_or_else(|| ShellError::System { what: what(), reason: io::ErrorKind::InvalidData.into() })
    }
}

impl Counters {
    /// Reads an interface's line of `/proc/net/dev`: eight numbers of what came in, then eight of what went out.
    fn parse(table: &str, interface: &str) -> Option<Self> {
        let mut lines = table.lines().filter_map(|line| line.trim_start().strip_prefix(interface));
        let numbers = lines.find_map(|line| line.strip_prefix(':'))?;
        let numbers: Vec<u64> = numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [received_bytes, received, _, receive_drops, _, _, _, _, sent_bytes, sent, _, send_drops, ..] =
            numbers[..]
        else {
            return None;
        };
        Some(Self { received, received_bytes, receive_drops, sent, sent_bytes, send_drops })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
 eth01:     101     102  103  104  105   106        107       108      109     110  111  112  113   114     115        116
  eth0:1         2       3    4    5     6          7         8        9       10   11   12   13    14      15         16
";

    #[test]
    fn counters_are_read_from_the_line_of_the_interface() {
        let expected = Counters {
            received_bytes: 1,
            received: 2,
            receive_drops: 4,
            sent_bytes: 9,
            sent: 10,
            send_drops: 12,
        };
        assert_eq!(Counters::parse(TABLE, "eth0"), Some(expected));
    }

    #[test]
    fn what_is_not_there_or_not_numbers_is_not_counted_as_nothing() {
        assert_eq!(Counters::parse(TABLE, "eth"), None);
        assert_eq!(Counters::parse("eth0: 1 2 3", "eth0"), None);
        assert_eq!(Counters::parse(&TABLE.replace("12", "many"), "eth0"), None);
    }
}
