//! The program meets the interface.

use std::fmt;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use socket2::{Domain, Socket, Type};
use xagg_proto::Job;

use super::{KernelConfig, KernelError};
use crate::interface::Interface;

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel makes anything of a frame.
    Native,
    /// In the network stack: any driver, but slower.
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// Whether the jobs' packets fit the interface.
pub(super) fn check_mtu(interface: &Interface, jobs: &[Job]) -> Result<(), KernelError> {
    let (lanes, needed) = (jobs[0].lanes, jobs[0].mtu());
    if interface.mtu >= needed {
        return Ok(());
    }
    let fitting = jobs[0].family().lanes_for_mtu(interface.mtu).unwrap_or(0);
    Err(KernelError::MtuTooSmall {
        interface: interface.name.clone(),
        mtu: interface.mtu,
        lanes,
        needed,
        fitting,
    })
}

/// Attaches the program by a link: it never replaces another one, and goes with the process.
pub(super) fn attach(program: &OwnedFd, config: &KernelConfig) -> Result<OwnedFd, KernelError> {
    let index = config.interface.index;
    link(program, index, config.mode).map_err(|reason| {
        let interface = config.interface.name.clone();
        match reason.raw_os_error() {
            Some(libc::EPERM) => KernelError::Permission,
            Some(libc::EBUSY | libc::EEXIST) => {
                KernelError::Occupied { interface, program: occupant(index.cast_signed()) }
            }
            _ => KernelError::Driver { interface, mode: config.mode, mtu: config.interface.mtu, reason },
        }
    })
}

/// The program on the interface of this index, until the link is closed.
pub(super) fn link(program: &OwnedFd, interface: u32, mode: Mode) -> Result<OwnedFd, Error> {
    let flags = match mode {
        Mode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
        Mode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
    };
    let options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        flags,
        ..Default::default()
    };
    let index = interface.cast_signed();
    // SAFETY: the descriptor is that of a loaded program, and the options outlive the call.
    let link = unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), index, libbpf_sys::BPF_XDP, &raw const options)
    };
    if link < 0 {
        return Err(Error::from_raw_os_error(-link));
    }
    // SAFETY: the kernel has just given this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Which program is attached to the interface, for a message.
fn occupant(interface: i32) -> String {
    let mut id = 0;
    // SAFETY: the call writes one integer, which outlives it.
    let result = unsafe { libbpf_sys::bpf_xdp_query_id(interface, 0, &raw mut id) };
    if result == 0 && id != 0 { format!(" (id {id})") } else { String::new() }
}

/// Binds the port and never reads it. Its buffer is as small as can be: what gets past the program is not for us.
pub(super) fn hold_port(address: SocketAddr) -> Result<Socket, KernelError> {
    let hold = || {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        socket.set_recv_buffer_size(1)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    hold().map_err(|reason: Error| match reason.kind() {
        ErrorKind::PermissionDenied => KernelError::Permission,
        _ => KernelError::Port { address, reason },
    })
}
