//! Why the kernel datapath cannot be had, and what to do.

use std::net::SocketAddr;

use thiserror::Error;

use super::Mode;

/// Why the kernel program does not run.
#[derive(Debug, Error)]
pub enum KernelError {
    /// Not allowed to load programs or to attach them.
    #[error(
        "no permission to load kernel programs: run as root or with CAP_BPF and CAP_NET_ADMIN (`setcap cap_bpf,cap_net_admin,cap_perfmon+ep` on the binary), or use --datapath udp, which needs no privileges"
    )]
    Permission,
    /// The program or its maps cannot be loaded.
    #[error("the kernel program cannot be loaded (XAgg needs Linux 5.15 or later): {0}")]
    Load(#[source] libbpf_rs::Error),
    /// The kernel's verifier refuses the program.
    #[error(
        "the kernel refuses the program ({reason}): XAgg needs Linux 5.15 or later, and CAP_PERFMON if not run as root; --datapath udp needs neither. The end of its objection:\n{log}"
    )]
    Refused {
        /// What loading said.
        reason: libbpf_rs::Error,
        /// The last lines of what libbpf and the verifier said.
        log: String,
    },
    /// The kernel has no memory for a job's slots.
    #[error(
        "the kernel has no {bytes} bytes of memory for the slots of a job (of one map of them): lower gradient_elements or slots, raise the limit of the memory cgroup if there is one, or use a server with more memory"
    )]
    OutOfMemory {
        /// The bytes of the map that it refused.
        bytes: u64,
    },
    /// A map cannot be made, written or read.
    #[error("the kernel refuses access to a map of the program: {0}")]
    Map(#[source] libbpf_rs::Error),
    /// Somebody else's program is there.
    #[error(
        "another XDP program{program} is attached to {interface} already: detach it (`ip link set dev {interface} xdp off` if it is yours to detach), or use --datapath udp"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// " (id N)", as `bpftool prog show id N` takes it; empty if it has gone meanwhile.
        program: String,
    },
    /// The driver does not take the program.
    #[error(
        "the driver of {interface} does not take the program in {mode} mode at MTU {mtu} ({reason}). Above 3498 bytes a frame takes several buffers, which XAgg does not use: lower the MTU, or use --datapath xdp-generic or udp"
    )]
    Driver {
        /// The interface.
        interface: String,
        /// The mode asked for.
        mode: Mode,
        /// The interface's MTU.
        mtu: usize,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The packets of the job do not fit the interface.
    #[error(
        "the MTU of {interface} is {mtu} bytes, too small for lanes = {lanes}, which need {needed}: raise the MTU (`ip link set dev {interface} mtu {needed}`) on all machines of the job, or set lanes = {fitting} in the job file"
    )]
    MtuTooSmall {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: usize,
        /// The job's lanes.
        lanes: usize,
        /// The MTU that they need.
        needed: usize,
        /// The lanes that fit.
        fitting: usize,
    },
    /// What the program sends does not leave the interface.
    #[error(
        "what the program sends does not leave {interface} (its driver took {sent} of {frames} frames): on a veth the other end needs GRO (`ethtool -K PEER gro on`) or an XDP program of its own"
    )]
    Transmit {
        /// The interface.
        interface: String,
        /// How many frames left.
        sent: u64,
        /// How many should have.
        frames: u64,
    },
    /// The frames of the self-test could not be run.
    #[error(
        "the self-test of the kernel program on {interface} could not run: {reason}; its frames need a TAP interface for a moment: /dev/net/tun and the kernel's module tun (in a container `--device /dev/net/tun`)"
    )]
    Probe {
        /// The interface.
        interface: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The UDP port is taken.
    #[error("cannot take UDP port {address}: {reason}. Is another aggregator running here?")]
    Port {
        /// The address and port.
        address: SocketAddr,
        /// What the system said.
        reason: std::io::Error,
    },
}

impl KernelError {
    /// An error of making a map of this many bytes.
    pub(super) fn of_map(error: libbpf_rs::Error, bytes: u64) -> Self {
        match error.kind() {
            libbpf_rs::ErrorKind::OutOfMemory => Self::OutOfMemory { bytes },
            _ => Self::of_load(error),
        }
    }

    /// An error of loading, told apart from missing permission.
    pub(super) fn of_load(error: libbpf_rs::Error) -> Self {
        if error.kind() == libbpf_rs::ErrorKind::PermissionDenied {
            Self::Permission
        } else {
            Self::Load(error)
        }
    }
}
