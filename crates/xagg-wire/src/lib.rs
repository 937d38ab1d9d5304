//! The bytes of XAgg, and nothing but the bytes: no socket, no clock, no state.
//!
//! - [`packet`]: the 64-byte header as a view over a buffer, and the checksum;
//! - [`repr`]: what a packet may legally say, one variant a kind;
//! - [`fixed`]: gradients as integers (block floating point), whose sum does not depend on the order;
//! - [`path`]: how many lanes fit an MTU; [`rate`]: rates of links, as they are written;
//! - [`identity`]: cookies and operation signatures;
//! - [`reason`]: why a packet is refused; [`counter`]: what an aggregator counts.
//!
//! `docs/WIRE.md` is the normative text; rule numbers such as `WIRE P3` refer to it.

#![forbid(unsafe_code)]

pub mod counter;
pub mod fixed;
pub mod identity;
pub mod packet;
pub mod path;
pub mod rate;
pub mod reason;
pub mod repr;
mod vectorised;

use std::time::Duration;

pub use counter::Counter;
pub use identity::{Cookie, Operation, Reduction};
pub use packet::{Flags, HEADER_LEN, Kind, Packet, SHORT_BODY_LEN};
pub use path::Family;
pub use rate::Rate;
pub use reason::Reason;
pub use repr::{Flow, Receipts, Repr};

/// The most workers that a job can have: the size of a bank's bitmap of ranks.
pub const MAX_WORKERS: usize = 256;

/// Lanes come in blocks of this many: eight 64-bit words, one turn of the kernel program's loops.
pub const LANE_BLOCK: usize = 16;

/// The most lanes of any packet. Over IPv6 it is a little less: [`Family::max_lanes`].
pub const MAX_LANES: usize = 848;

/// The most REJECTs that a worker gets at once (WIRE H9).
pub const REJECT_BURST: u32 = 16;

/// How long it takes until a worker may get one REJECT more (WIRE H9).
pub const REJECT_INTERVAL: Duration = Duration::from_millis(10);

/// The length in bytes of a packet that carries `lanes` lanes, without IP and UDP headers.
#[must_use]
pub const fn full_len(lanes: usize) -> usize {
    HEADER_LEN + 4 * lanes
}
