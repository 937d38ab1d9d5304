//! Faults of a link, made by a kernel program at the switch's port: see `bpf/faults.bpf.c`.

mod injector;
mod side_path;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::namespace::Node;
use crate::shell::ShellError;
use crate::{Direction, Rate, Testbed};

use injector::Injector;

/// The fault programs by port and direction.
pub(crate) type Injectors = Mutex<BTreeMap<(String, Direction), Injector>>;

/// What happens to IP packets in one direction of a link. Shares are in millionths, and chance decides for each packet anew.
///
/// ARP is spared, because the kernel asks again only after a second, and so are multicast and what has a VLAN tag. With [`crate::Builder::offloads`] a batch of packets passes as
/// one frame and meets one fate, so tests of faults turn offloads off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets lost, one at a time.
    pub drop_ppm: u32,
    /// Packets lost in bursts.
    pub burst: Option<LossBurst>,
    /// Packets that arrive twice.
    pub duplicate_ppm: u32,
    /// UDP packets with flipped bits in the Ethernet, IP or UDP header.
    pub flip_headers_ppm: u32,
    /// UDP packets with flipped bits in the payload. The UDP checksum is not put right, but veth mostly has nobody check it.
    pub flip_payload_ppm: u32,
    /// So many bits at most, and one at least, are flipped in a packet: up to 16.
    pub flip_bits: u32,
    /// Packets that are held back while later ones pass.
    pub reorder: Option<Reorder>,
    /// ECN-capable packets that are marked (CE) by chance.
    pub mark_ppm: u32,
    /// ECN-capable packets that are marked (CE) because of a queue.
    pub queue: Option<Queue>,
}

/// Loss as of Gilbert and Elliott: in one of two states everything is lost, in the other nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossBurst {
    /// How probably each packet begins a burst.
    pub enter_ppm: u32,
    /// How probably each packet ends one: 100,000 makes bursts of ten packets on average.
    pub leave_ppm: u32,
}

/// Packets that take a longer way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// How many.
    pub ppm: u32,
    /// How much later they arrive.
    pub delay: Duration,
}

/// Marks packets that would find more than a threshold of bytes queued at a bottleneck, as DCTCP's K does. The bottleneck itself
/// is the link's rate, see [`crate::Builder::rate`] and [`Testbed::limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// What the bottleneck passes.
    pub rate: Rate,
    /// Beyond so many bytes in the queue packets are marked.
    pub threshold: u64,
}

/// What has been done to packets in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// IP packets that came by, copies and returns not counted.
    pub packets: u64,
    /// Lost, one at a time.
    pub dropped: u64,
    /// Lost in bursts.
    pub dropped_in_bursts: u64,
    /// Sent on twice.
    pub duplicated: u64,
    /// With bits flipped.
    pub flipped: u64,
    /// Held back.
    pub reordered: u64,
    /// ECN-capable and marked.
    pub marked: u64,
}

impl Faults {
    /// In the order of `struct settings`.
    fn to_words(&self, side_path: u32) -> [u64; 12] {
        let burst = self.burst.unwrap_or(LossBurst { enter_ppm: 0, leave_ppm: 0 });
        let (picoseconds_per_byte, nanoseconds) = self.queue.map_or((0, 0), |queue| {
            let bits = queue.rate.bits_per_second();
            (8_000_000_000_000 / bits, queue.threshold * 8_000_000_000 / bits)
        });
        [
            self.drop_ppm.into(),
            burst.enter_ppm.into(),
            burst.leave_ppm.into(),
            self.duplicate_ppm.into(),
            self.flip_headers_ppm.into(),
            self.flip_payload_ppm.into(),
            self.flip_bits.into(),
            self.reorder.map_or(0, |reorder| reorder.ppm.into()),
            side_path.into(),
            self.mark_ppm.into(),
            picoseconds_per_byte,
            nanoseconds,
        ]
    }
}

impl Done {
    /// From the order of `struct done`.
    const fn from_words(words: [u64; 7]) -> Self {
        let [packets, dropped, dropped_in_bursts, duplicated, flipped, reordered, marked] = words;
        Self { packets, dropped, dropped_in_bursts, duplicated, flipped, reordered, marked }
    }
}

impl Testbed {
    /// What happens from now on to packets in one direction of a node's link; [`Faults::default`] stops it.
    ///
    /// # Errors
    /// What the system says, if the kernel program cannot be loaded or attached.
    pub fn set_faults(&self, node: &Node, direction: Direction, faults: &Faults) -> Result<(), ShellError> {
        let mut injectors = self.injectors();
        let injector = match injectors.entry((node.port().to_owned(), direction)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Injector::attach(&self.switch, node.port(), direction)?),
        };
        injector.set(&self.switch, faults)
    }

    /// What has happened to packets in one direction of a node's link since faults were set there for the first time.
    ///
    /// # Errors
    /// What the system says.
    pub fn faults_done(&self, node: &Node, direction: Direction) -> Result<Done, ShellError> {
        let injectors = self.injectors();
        injectors
            .get(&(node.port().to_owned(), direction))
            .map_or_else(|| Ok(Done::default()), Injector::done)
    }

    fn injectors(&self) -> MutexGuard<'_, BTreeMap<(String, Direction), Injector>> {
        self.injectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses packets at random on a node's link, and does nothing else to them: so many of 1000 on their way to the node, and
    /// from it. 0 stops it.
    ///
    /// # Errors
    /// Those of [`Self::set_faults`].
    pub fn set_loss(&self, node: &Node, to_permille: u32, from_permille: u32) -> Result<(), ShellError> {
        for (direction, permille) in [(Direction::ToNode, to_permille), (Direction::FromNode, from_permille)]
        {
            self.set_faults(node, direction, &Faults { drop_ppm: 1000 * permille, ..Faults::default() })?;
        }
        Ok(())
    }
}
