//! Network interfaces: by name, by address.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use thiserror::Error;

/// For drivers that do not say it: what a veth's holds, and the least that others have by default.
const UNKNOWN_RING: usize = 256;

/// An interface of this machine (of this network namespace).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its MTU, in bytes.
    pub mtu: usize,
    /// How many packets one of its receive queues holds.
    pub ring: usize,
}

/// The interface that was asked for is not there.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum InterfaceError {
    /// No interface of this name.
    #[error("there is no network interface {name}: there are {existing}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names of those that exist.
        existing: String,
    },
    /// No interface with this address.
    #[error(
        "no network interface has the aggregator's address {address}: start the aggregator on the machine that has it, or change `aggregator` in the job file; the addresses here are {existing}"
    )]
    NoSuchAddress {
        /// The address asked for.
        address: IpAddr,
        /// The addresses that exist.
        existing: String,
    },
    /// The interface is there but does not have the address.
    #[error(
        "the network interface {name} does not have the aggregator's address {address}: its addresses are {existing}"
    )]
    WrongAddress {
        /// The name asked for.
        name: String,
        /// The address asked for.
        address: IpAddr,
        /// Its addresses.
        existing: String,
    },
}

impl Interface {
    /// The interface with this address; with a name, the one of this name, which must have the address itself or carry the
    /// tagged frames of a VLAN interface that has it.
    ///
    /// # Errors
    /// [`InterfaceError`], each with what there is instead.
    pub fn find(name: Option<&str>, address: IpAddr) -> Result<Self, InterfaceError> {
        let all = addresses();
        let Some(name) = name else {
            let found = all.iter().find(|(_, own)| *own == Some(address));
            let existing = join(all.iter().filter_map(|(_, own)| own.map(|own| own.to_string())));
            let (name, _) = found.ok_or(InterfaceError::NoSuchAddress { address, existing })?;
            return Self::named(name);
        };
        let interface = Self::named(name)?;
        let vlans = vlans_of(name, &std::fs::read_to_string(VLANS).unwrap_or_default());
        let is_own = |owner: &String| owner == name || vlans.contains(owner);
        let own: Vec<_> = all.iter().filter(|(owner, _)| is_own(owner)).filter_map(|(_, own)| *own).collect();
        if !own.contains(&address) {
            let existing = join(own.iter().map(IpAddr::to_string));
            return Err(InterfaceError::WrongAddress { name: name.to_owned(), address, existing });
        }
        Ok(interface)
    }

    fn named(name: &str) -> Result<Self, InterfaceError> {
        let index = if_nametoindex(name).map_err(|_| {
            let existing = join(addresses().into_iter().map(|(name, _)| name));
            InterfaceError::Unknown { name: name.to_owned(), existing }
        })?;
        let ring = query_ring(name).unwrap_or(UNKNOWN_RING);
        Ok(Self { name: name.to_owned(), index, mtu: query_mtu(name), ring })
    }
}

/// A line for each VLAN interface of the caller's namespace, if the kernel has VLANs and lets the caller read it.
const VLANS: &str = "/proc/thread-self/net/vlan/config";

/// The VLAN interfaces whose tagged frames this interface carries: `NAME | ID | INTERFACE` in [`VLANS`].
fn vlans_of(interface: &str, lines: &str) -> Vec<String> {
    let of_line = |line: &str| match *line.split('|').map(str::trim).collect::<Vec<_>>() {
        [name, _, lower] if lower == interface => Some(name.to_owned()),
        _ => None,
    };
    lines.lines().filter_map(of_line).collect()
}

/// Asks the kernel about an interface by ioctl: unlike sysfs, which shows the namespace that it was mounted in, that answers for
/// the namespace of the caller.
///
/// # Safety
/// What `request` says must be what the kernel expects with `question`.
unsafe fn query(name: &str, question: libc::Ioctl, mut request: libc::ifreq) -> Option<libc::ifreq> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").ok()?;
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    // SAFETY: the descriptor is open and the request is a whole `ifreq` that outlives the call; the caller vouches for the rest.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), question, std::ptr::from_mut(&mut request)) };
    (result == 0).then_some(request)
}

fn query_mtu(name: &str) -> usize {
    // SAFETY: an all-zero `ifreq` is a valid one, and SIOCGIFMTU reads nothing but the name and fills in the MTU.
    let mtu =
        unsafe { query(name, libc::SIOCGIFMTU, std::mem::zeroed()).map(|answer| answer.ifr_ifru.ifru_mtu) };
    mtu.and_then(|mtu| usize::try_from(mtu).ok()).unwrap_or(0)
}

/// `struct ethtool_ringparam` of the kernel's interface.
#[repr(C)]
#[derive(Default)]
struct RingParameters {
    command: u32,
    most: [u32; 4],
    receive: u32,
    others: [u32; 3],
}

/// How many packets a receive queue holds, if the driver says it.
fn query_ring(name: &str) -> Option<usize> {
    const GET_RING_PARAMETERS: u32 = 0x10;
    let mut ring = RingParameters { command: GET_RING_PARAMETERS, ..Default::default() };
    // SAFETY: an all-zero `ifreq` is a valid one; the kernel reads the command from where `ifru_data` points to and writes its
    // answer there, and `ring` outlives the call.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut ring).cast();
        query(name, libc::SIOCETHTOOL as libc::Ioctl, request)?;
    }
    usize::try_from(ring.receive).ok().filter(|pending| *pending > 0)
}

/// All interfaces, once for each of their addresses and once without.
fn addresses() -> Vec<(String, Option<IpAddr>)> {
    let entries = getifaddrs().into_iter().flatten();
    let mut all: Vec<_> = entries
        .map(|entry| {
            let address = entry.address.as_ref();
            let v4 = address.and_then(|address| address.as_sockaddr_in()).map(|v4| v4.ip().into());
            let v6 = address.and_then(|address| address.as_sockaddr_in6()).map(|v6| v6.ip().into());
            (entry.interface_name, v4.or(v6))
        })
        .collect();
    all.sort();
    all.dedup();
    all
}

fn join(items: impl Iterator<Item = String>) -> String {
    let items: std::collections::BTreeSet<String> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.into_iter().collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn loopback_is_found_by_address_and_by_name() {
        for localhost in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            let by_address = Interface::find(None, localhost).expect("loopback");
            assert_eq!(by_address, Interface::find(Some("lo"), localhost).expect("loopback"));
            assert_eq!((by_address.name.as_str(), by_address.mtu), ("lo", 65536));
        }
    }

    #[test]
    fn vlan_interfaces_are_found_by_what_carries_them() {
        let lines = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                     eth0.5         | 5  | eth0\nstorage        | 1000  | eth0\neth1.5         | 5  | eth1\n";
        assert_eq!(vlans_of("eth0", lines), ["eth0.5", "storage"]);
        assert!(vlans_of("eth2", lines).is_empty() && vlans_of("eth0", "").is_empty());
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let message = |name, address| Interface::find(name, address).expect_err("not there").to_string();
        assert!(message(Some("nosuch0"), LOCALHOST).contains("nosuch0: there are"));
        assert!(message(Some("nosuch0"), LOCALHOST).contains("lo"));
        assert!(message(None, Ipv4Addr::new(192, 0, 2, 1).into()).contains("192.0.2.1"));
        assert!(message(Some("lo"), Ipv4Addr::new(192, 0, 2, 1).into()).contains("127.0.0.1"));
    }
}
