//! The bytes of XAgg, and nothing but the bytes: no socket, no clock, no state.
//!
//! - [`packet`]: the 64-byte header as a view over a buffer, and the checksum;
//! - [`repr`]: what a packet may legally say, one variant a kind;
//! - [`fixed`]: gradients as integers (block floating point), whose sum does not depend on the order;
//! - [`identity`]: cookies and operation signatures;
//! - [`reason`]: why a packet is refused; [`counter`]: what an aggregator counts.
//!
//! `docs/WIRE.md` is the normative text; rule numbers such as `WIRE P3` refer to it.

#![forbid(unsafe_code)]

pub mod counter;
pub mod fixed;
pub mod identity;
pub mod packet;
pub mod reason;
pub mod repr;

use std::time::Duration;

pub use counter::Counter;
pub use identity::{Cookie, Operation, Reduction};
pub use packet::{Flags, HEADER_LEN, Kind, Packet, SHORT_BODY_LEN};
pub use reason::Reason;
pub use repr::{Flow, Receipts, Repr};

/// The most workers that a job can have: the size of a bank's bitmap of ranks.
pub const MAX_WORKERS: usize = 256;

/// Lanes come in blocks of this many: eight 64-bit words, one turn of the kernel program's loops.
pub const LANE_BLOCK: usize = 16;

/// The most lanes of a packet: what fits a frame of MTU 3498, the largest that XDP sees in one buffer.
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

/// IPv4 and UDP headers, in bytes.
const IP_UDP_LEN: usize = 28;

/// The most lanes that fit an IPv4 path of `mtu` bytes, or `None` if not even one block does.
#[must_use]
pub const fn lanes_for_mtu(mtu: usize) -> Option<usize> {
    let Some(room) = mtu.checked_sub(IP_UDP_LEN + HEADER_LEN) else { return None };
    let lanes = room / (4 * LANE_BLOCK) * LANE_BLOCK;
    match lanes {
        0 => None,
        1..=MAX_LANES => Some(lanes),
        _ => Some(MAX_LANES),
    }
}

/// The smallest MTU, in bytes, of an IPv4 path that carries packets of `lanes` lanes.
#[must_use]
pub const fn mtu_for_lanes(lanes: usize) -> usize {
    IP_UDP_LEN + full_len(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_fit_their_mtu() {
        assert_eq!(lanes_for_mtu(1500), Some(352));
        assert_eq!(mtu_for_lanes(352), 1500);
        assert_eq!(lanes_for_mtu(3498), Some(848));
        assert_eq!(lanes_for_mtu(9000), Some(848));
        assert_eq!(lanes_for_mtu(28 + 64 + 63), None);
        assert_eq!(lanes_for_mtu(0), None);
    }
}
