//! What a network path carries: how many lanes fit its MTU, which depends on the version of IP.

use std::fmt;
use std::net::SocketAddr;

use crate::{HEADER_LEN, LANE_BLOCK, full_len};

/// The largest MTU, in bytes, whose frames XDP sees in one buffer.
pub const MAX_MTU: usize = 3498;

/// The version of IP that all members of a job speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, without options.
    V4,
    /// IPv6, without extension headers.
    V6,
}

impl Family {
    /// That of an address.
    #[must_use]
    pub const fn of(address: &SocketAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The length of IP and UDP headers together, in bytes.
    const fn headers_len(self) -> usize {
        const UDP: usize = 8;
        match self {
            Self::V4 => 20 + UDP,
            Self::V6 => 40 + UDP,
        }
    }

    /// The most lanes of a packet: what fits [`MAX_MTU`].
    #[must_use]
    pub const fn max_lanes(self) -> usize {
        blocks(MAX_MTU - self.headers_len()) * LANE_BLOCK
    }

    /// The most lanes that fit a path of `mtu` bytes, or `None` if not even one block does.
    #[must_use]
    pub const fn lanes_for_mtu(self, mtu: usize) -> Option<usize> {
        let mtu = if mtu < MAX_MTU { mtu } else { MAX_MTU };
        match blocks(mtu.saturating_sub(self.headers_len())) {
            0 => None,
            blocks => Some(blocks * LANE_BLOCK),
        }
    }

    /// The smallest MTU, in bytes, of a path that carries packets of `lanes` lanes.
    #[must_use]
    pub const fn mtu_for_lanes(self, lanes: usize) -> usize {
        self.headers_len() + full_len(lanes)
    }

    /// What a UDP payload takes of an Ethernet beside itself, in bytes: preamble, Ethernet, IP and UDP headers, frame check, and the gap
    /// after it.
    #[must_use]
    pub const fn wire_overhead(self) -> usize {
        const ETHERNET: usize = 8 + 14 + 4 + 12;
        ETHERNET + self.headers_len()
    }

    /// What a packet of `lanes` lanes takes of an Ethernet, in bytes.
    #[must_use]
    pub const fn wire_len(self, lanes: usize) -> usize {
        self.wire_overhead() + full_len(lanes)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// How many blocks of lanes fit a UDP datagram of `len` bytes.
const fn blocks(len: usize) -> usize {
    len.saturating_sub(HEADER_LEN) / (4 * LANE_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_fit_their_mtu() {
        let cases = [(1280, 288, 288), (1500, 352, 336), (3498, 848, 832), (9000, 848, 832)];
        for (mtu, v4, v6) in cases {
            assert_eq!((Family::V4.lanes_for_mtu(mtu), Family::V6.lanes_for_mtu(mtu)), (Some(v4), Some(v6)));
        }
        assert_eq!((Family::V4.max_lanes(), Family::V6.max_lanes()), (crate::MAX_LANES, 832));
        assert_eq!((Family::V4.mtu_for_lanes(352), Family::V4.wire_len(352)), (1500, 1538));
        for family in [Family::V4, Family::V6] {
            let smallest = family.mtu_for_lanes(LANE_BLOCK);
            assert_eq!(
                (family.lanes_for_mtu(smallest), family.lanes_for_mtu(smallest - 1)),
                (Some(16), None)
            );
            assert_eq!(family.lanes_for_mtu(0), None);
            for mtu in 1280..=MAX_MTU {
                let lanes = family.lanes_for_mtu(mtu).expect("fits");
                assert!(family.mtu_for_lanes(lanes) <= mtu && family.mtu_for_lanes(lanes + LANE_BLOCK) > mtu);
            }
        }
    }
}
