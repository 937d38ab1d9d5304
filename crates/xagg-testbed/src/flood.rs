//! A flood: UDP packets that nobody asked for, from whatever source they claim, as many as one core can send.

use std::io::Error;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Node;

/// What one call hands to the kernel.
const BATCH: usize = 32;

/// Packets that have source, destination and length in common: the kernel cuts them out of one frame, which saves most of the
/// work of sending them.
pub struct Burst {
    /// Where they claim to come from.
    pub source: SocketAddrV4,
    /// Where they go.
    pub destination: SocketAddrV4,
    /// The length of each payload in bytes; the last may be shorter.
    pub packet_len: usize,
    /// The payloads, one after the other: at most 65,000 bytes.
    pub payloads: Vec<u8>,
}

/// Sends the same bursts again and again, past every queueing discipline, for a given time or until it is stopped or dropped.
pub struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Flooded>>,
}

/// What a flood came to.
#[derive(Clone, Copy, Debug)]
pub struct Flooded {
    /// Packets that the interface has taken.
    pub packets: u64,
    /// For how long.
    pub elapsed: Duration,
}

impl Flood {
    /// Sends the bursts out of a node's interface, to another node's, for this long at most: what is flooded may not get to its end
    /// before the flood does.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(from: &Node, to: &Node, bursts: &[Burst], longest: Duration) -> Result<Self, Error> {
        let socket = from.enter(packet_socket)?;
        let (from, to) = (from.hardware_address(), to.hardware_address());
        let frames: Vec<Frame> = bursts.iter().map(|burst| Frame::new(from, to, burst)).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::Builder::new()
                .name("flood".to_owned())
                .spawn(move || flood(&socket, &frames, longest, &stop))?
        };
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends it.
    ///
    /// # Panics
    /// If its thread has.
    #[must_use]
    pub fn stop(mut self) -> Flooded {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("runs until now").join().expect("does not panic")
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// A socket for whole frames on the interface of the node that the caller is in.
fn packet_socket() -> Result<OwnedFd, Error> {
    let interface = nix::net::if_::if_nametoindex(Node::INTERFACE)?;
    // SAFETY: the call takes three numbers; the descriptor, if there is one, is ours alone.
    let socket = unsafe {
        match libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) {
            -1 => return Err(Error::last_os_error()),
            descriptor => OwnedFd::from_raw_fd(descriptor),
        }
    };
    set_option(&socket, libc::PACKET_QDISC_BYPASS)?;
    set_option(&socket, libc::PACKET_VNET_HDR)?;
    // SAFETY: a sockaddr_ll of zeros is a valid one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = interface.cast_signed();
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer is to a value of this size that outlives the call.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if bound == 0 { Ok(socket) } else { Err(Error::last_os_error()) }
}

fn set_option(socket: &OwnedFd, option: i32) -> Result<(), Error> {
    let yes = 1_i32;
    let len = size_of_val(&yes) as libc::socklen_t;
    // SAFETY: the pointer is to a value of this size that outlives the call.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw const yes).cast(), len)
    };
    if set == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// What the socket takes: how to cut a frame, then the frame from its Ethernet header on.
struct Frame {
    bytes: Vec<u8>,
    packets: u64,
}

impl Frame {
    fn new(from: [u8; 6], to: [u8; 6], burst: &Burst) -> Self {
        const HEADERS: u16 = 42;
        const UDP: u16 = 34;
        const CHECKSUM_OF_UDP: u16 = 6;
        // struct virtio_net_hdr of <linux/virtio_net.h>: the kernel computes checksums, and cuts if there is more than one.
        const NEEDS_CHECKSUM: u8 = 1;
        const CUT_UDP: u8 = 5;
        let packets = burst.payloads.len().div_ceil(burst.packet_len.max(1)).max(1);
        let (kind, len) = if packets > 1 { (CUT_UDP, burst.packet_len as u16) } else { (0, 0) };
        let numbers = [HEADERS, len, UDP, CHECKSUM_OF_UDP].map(u16::to_ne_bytes).concat();
        let udp_len = (8 + burst.payloads.len()) as u16;
        let mut ip = [0_u8; 20];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
        (ip[8], ip[9]) = (64, 17);
        ip[12..16].copy_from_slice(&burst.source.ip().octets());
        ip[16..].copy_from_slice(&burst.destination.ip().octets());
        let sum: u32 = ip.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let udp = [burst.source.port(), burst.destination.port(), udp_len, 0].map(u16::to_be_bytes).concat();
        let parts =
            [&[NEEDS_CHECKSUM, kind], &numbers[..], &to, &from, &[8, 0], &ip, &udp, &burst.payloads[..]];
        Self { bytes: parts.concat(), packets: packets as u64 }
    }
}

fn flood(socket: &OwnedFd, frames: &[Frame], longest: Duration, stop: &AtomicBool) -> Flooded {
    let (begin, mut sent) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) && begin.elapsed() < longest {
        for batch in frames.chunks(BATCH) {
            let taken = send_batch(socket, batch);
            sent += batch[..taken].iter().map(|frame| frame.packets).sum::<u64>();
        }
    }
    Flooded { packets: sent, elapsed: begin.elapsed() }
}

/// How many were taken; a frame that does not fit a queue is lost.
fn send_batch(socket: &OwnedFd, frames: &[Frame]) -> usize {
    let mut parts: Vec<libc::iovec> = frames
        .iter()
        .map(|frame| libc::iovec {
            iov_base: frame.bytes.as_ptr().cast_mut().cast(),
            iov_len: frame.bytes.len(),
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: an mmsghdr of zeros is a valid one.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect();
    // SAFETY: the messages point to parts, and these to frames, which outlive the call; it does not write to the frames.
    let taken = unsafe {
        libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, libc::MSG_DONTWAIT)
    };
    usize::try_from(taken).unwrap_or(0)
}

impl Node {
    /// The hardware address of its interface.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    fn hardware_address(&self) -> [u8; 6] {
        let find = || {
            let links = nix::ifaddrs::getifaddrs().into_iter().flatten();
            let mut of_interface = links.filter(|link| link.interface_name == Self::INTERFACE);
            of_interface.find_map(|link| link.address?.as_link_addr()?.addr())
        };
        self.enter(find).expect("a veth has an address")
    }
}
