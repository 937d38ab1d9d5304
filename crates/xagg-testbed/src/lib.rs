//! Network namespaces for tests, demo and benchmarks: workers, aggregators and a switch between them, on one machine.
//!
//! Every node is a namespace with one interface, `eth0`, which is one end of a veth pair; the other end is a port of a
//! Linux bridge in the switch's namespace. Links can be given a rate in both directions, and lose, repeat,
//! damage, reorder and mark packets (feature `faults`, on by default). Needs root, and `ip`, `tc` and `ethtool`.
//!
//! What is particular about veth and XDP: frames that a program sends out of a veth arrive only if the other end has NAPI,
//! which GRO gives it; and they bypass the queueing discipline, so an aggregator's rate is limited at the switch's port.

mod builder;
pub mod exact;
#[cfg(feature = "faults")]
mod faults;
mod flood;
mod link;
pub mod loopback;
mod namespace;
mod process;
mod root;
mod shell;
mod udp;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use builder::Builder;
#[cfg(feature = "faults")]
pub use faults::{Done, Faults, LossBurst, Queue, Reorder};
pub use flood::{Burst, Flood, Flooded};
pub use link::{Counters, Direction};
pub use namespace::Node;
pub use process::{Finished, Process};
pub use root::{is_root, skip_unless_root};
pub use shell::ShellError;
pub use udp::UdpErrors;
pub use xagg_wire::Rate;

use shell::run;

/// Every name of a namespace of ours begins with this, then comes the process that made it.
const PREFIX: &str = "xagg-";

/// A set of namespaces; dropping it removes them, and with them all links, rates and rules.
#[derive(Debug)]
pub struct Testbed {
    /// First, so that what holds on to the switch is gone before it.
    #[cfg(feature = "faults")]
    injectors: faults::Injectors,
    switch: Node,
    workers: Vec<Node>,
    aggregators: Vec<Node>,
}

impl Testbed {
    /// What is to be made.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The node of a rank.
    #[must_use]
    pub fn worker(&self, rank: usize) -> &Node {
        &self.workers[rank]
    }

    /// All workers' nodes, by rank.
    #[must_use]
    pub fn workers(&self) -> &[Node] {
        &self.workers
    }

    /// The switch between all of them.
    #[must_use]
    pub const fn switch(&self) -> &Node {
        &self.switch
    }

    /// An aggregator's node.
    #[must_use]
    pub fn aggregator(&self, index: usize) -> &Node {
        &self.aggregators[index]
    }

    /// Takes a node's link down.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn link_down(&self, node: &Node) -> Result<(), ShellError> {
        run("ip", &["-n", self.switch.name(), "link", "set", node.port(), "down"])
    }

    /// Takes a node's link up again.
    ///
    /// # Errors
    /// What `ip` says.
    pub fn link_up(&self, node: &Node) -> Result<(), ShellError> {
        run("ip", &["-n", self.switch.name(), "link", "set", node.port(), "up"])
    }

    /// Limits a direction of a node's link from now on, at the switch: it passes packets on at this rate, and drops what finds as many
    /// bytes waiting as `queue`.
    ///
    /// # Errors
    /// What the system's tools say.
    pub fn limit(&self, node: &Node, direction: Direction, rate: Rate, queue: u64) -> Result<(), ShellError> {
        link::limit(&self.switch, node, direction, rate, queue)
    }

    /// Packets that have been dropped so far because the queue of a link's rate was full, of all links in both directions.
    ///
    /// # Errors
    /// What `tc` says.
    pub fn queue_drops(&self) -> Result<u64, ShellError> {
        let nodes = std::iter::once(&self.switch).chain(&self.workers).chain(&self.aggregators);
        nodes.map(link::queue_drops).sum()
    }

    /// Removes what processes have left that did not live to remove it: namespaces, and the processes in them.
    pub fn remove_stale() {
        for name in namespace::existing() {
            let creator =
                name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
            if creator.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
                namespace::end_processes(&name);
                let _gone_already = run("ip", &["netns", "delete", &name]);
            }
        }
    }
}

/// The address of a rank's node, also where nothing of the kind has been made yet.
#[must_use]
pub fn worker_address(rank: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, (rank / 250) as u8, (rank % 250 + 1) as u8)
}

/// The address of an aggregator's node.
#[must_use]
pub fn aggregator_address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 100, (index + 1) as u8)
}

/// The IPv6 address of the node with this IPv4 address: the last 32 bits are the same.
#[must_use]
pub const fn ipv6_of(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets();
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}
