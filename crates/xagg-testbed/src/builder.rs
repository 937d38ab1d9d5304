//! Making a testbed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::link::{self, Properties};
use crate::namespace::Node;
use crate::shell::{ShellError, run, run_with_input};
use crate::{Direction, PREFIX, Rate, Testbed, aggregator_address, worker_address};

const BRIDGE: &str = "br0";

/// What a testbed is to be. Without a rate, links are as fast as the machine.
#[derive(Clone, Debug)]
pub struct Builder {
    workers: usize,
    aggregators: usize,
    mtu: usize,
    offloads: bool,
    ipv6: bool,
    rate: Option<Rate>,
    worker_rates: BTreeMap<usize, Rate>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            workers: 4,
            aggregators: 1,
            mtu: 1500,
            offloads: true,
            ipv6: false,
            rate: None,
            worker_rates: BTreeMap::new(),
        }
    }
}

impl Builder {
    /// So many workers; 4 if not said.
    #[must_use]
    pub const fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// So many aggregators; 1 if not said.
    #[must_use]
    pub const fn aggregators(mut self, aggregators: usize) -> Self {
        self.aggregators = aggregators;
        self
    }

    /// The MTU of all links, in bytes; 1500 if not said.
    #[must_use]
    pub const fn mtu(mut self, mtu: usize) -> Self {
        self.mtu = mtu;
        self
    }

    /// Whether frames may be longer than the MTU until they are received, as no wire carries them but veth does; `true` if
    /// not said.
    #[must_use]
    pub const fn offloads(mut self, offloads: bool) -> Self {
        self.offloads = offloads;
        self
    }

    /// Whether nodes have an IPv6 address ([`Node::ipv6_address`]) as well, and with it neighbour discovery; `false` if not said.
    #[must_use]
    pub const fn ipv6(mut self, ipv6: bool) -> Self {
        self.ipv6 = ipv6;
        self
    }

    /// The rate of all links, in both directions.
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// The rate of one worker's link.
    #[must_use]
    pub fn worker_rate(mut self, rank: usize, rate: Rate) -> Self {
        self.worker_rates.insert(rank, rate);
        self
    }

    /// Makes it. What has been made when something fails is removed.
    ///
    /// # Errors
    /// A rate for a worker that is not there; what the system's tools say.
    pub fn build(&self) -> Result<Testbed, ShellError> {
        static TESTBEDS: AtomicU32 = AtomicU32::new(0);
        self.check()?;
        Testbed::remove_stale();
        let id = format!("{PREFIX}{}-{}", std::process::id(), TESTBEDS.fetch_add(1, Ordering::Relaxed));
        let switch = Node::create(format!("{id}-sw"), std::net::Ipv4Addr::UNSPECIFIED, String::new(), false)?;
        let bridge = format!("link add {BRIDGE} mtu {} type bridge\nlink set {BRIDGE} up\n", self.mtu);
        run_with_input("ip", &["-n", switch.name(), "-batch", "-"], &bridge)?;
        // A switch has no firewall: without this every frame would pass the hooks of iptables.
        for hook in ["iptables", "ip6tables", "arptables"] {
            switch.set_sysctl(&format!("net/bridge/bridge-nf-call-{hook}"), "0")?;
        }
        let mut bed = Testbed {
            #[cfg(feature = "faults")]
            injectors: crate::faults::Injectors::default(),
            switch,
            workers: vec![],
            aggregators: vec![],
        };
        for rank in 0..self.workers {
            let (name, port) = (format!("{id}-w{rank}"), format!("w{rank}"));
            let node = Node::create(name, worker_address(rank), port, self.ipv6)?;
            bed.workers.push(node);
            self.connect_worker(&bed, rank)?;
        }
        for index in 0..self.aggregators {
            let (name, port) = (format!("{id}-a{index}"), format!("a{index}"));
            let node = Node::create(name, aggregator_address(index), port, self.ipv6)?;
            bed.aggregators.push(node);
            self.connect_aggregator(&bed, index)?;
        }
        Ok(bed)
    }

    const fn properties(&self, queues: usize) -> Properties {
        Properties { mtu: self.mtu, offloads: self.offloads, ipv6: self.ipv6, queues }
    }

    fn check(&self) -> Result<(), ShellError> {
        let (last, workers) = (self.worker_rates.keys().next_back(), self.workers);
        match last {
            Some(&rank) if rank >= workers => Err(ShellError::Invalid(format!(
                "a rate for worker {rank}: the testbed has {workers}, 0 to {}",
                workers.saturating_sub(1)
            ))),
            _ => Ok(()),
        }
    }

    fn connect_worker(&self, bed: &Testbed, rank: usize) -> Result<(), ShellError> {
        let node = &bed.workers[rank];
        let properties = self.properties(1);
        link::connect(&bed.switch, node, BRIDGE, properties)?;
        match self.worker_rates.get(&rank).copied().or(self.rate) {
            Some(rate) => link::limit_worker(&bed.switch, node, rate),
            None => Ok(()),
        }
    }

    fn connect_aggregator(&self, bed: &Testbed, index: usize) -> Result<(), ShellError> {
        let node = &bed.aggregators[index];
        let queues = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        let properties = self.properties(queues);
        link::connect(&bed.switch, node, BRIDGE, properties)?;
        match self.rate {
            Some(rate) => {
                for direction in [Direction::ToNode, Direction::FromNode] {
                    bed.limit(node, direction, rate, link::usual_queue(rate))?;
                }
            }
            None => link::spread_queues(&bed.switch, node, queues)?,
        }
        // The bridge learns where the node is before any worker asks.
        run("ip", &["-n", node.name(), "link", "set", "dev", Node::INTERFACE, "up"])
    }
}
