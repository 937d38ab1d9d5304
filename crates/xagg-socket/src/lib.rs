//! A UDP socket that sends and receives in batches: segmentation offload (GSO) one way, coalescing (GRO) and `recvmmsg` the other.
//! Packets carry DF and can be marked by the network (ECT(0)), and the socket never blocks. Used by the worker and by the aggregator's udp datapath.

mod wait;

use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use nix::sys::socket::sockopt::RcvBufForce;
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::SockRef;

pub use wait::{LONGEST_WAIT, Waker};

/// What is asked for as receive buffer, in bytes: results come when the last worker is ready, not when we are.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Below this a warning is due.
const SMALL_BUFFER: usize = 1 << 20;
/// The most that one call hands to the network, in bytes: an IP packet's length before it is cut into segments.
const MOST_BYTES: usize = 65_000;
/// Room for one coalesced run of datagrams.
const RUN: usize = 1 << 16;

/// A bound, non-blocking UDP socket with room for a batch of datagrams.
pub struct BatchSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    room: Box<[u8]>,
}

impl BatchSocket {
    /// A socket bound to this address and port.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new((&socket).into())?;
        set_receive_buffer(&socket);
        let room = vec![0; RUN * BATCH_SIZE].into_boxed_slice();
        Ok(Self { socket, state, room })
    }

    /// Takes datagrams only from this peer from now on, and errors (ICMP) about it.
    ///
    /// # Errors
    /// What the system says.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(peer)
    }

    /// How many packets of this length go out in one call.
    #[must_use]
    pub fn segments(&self, packet_len: usize) -> usize {
        self.state.max_gso_segments().min(MOST_BYTES / packet_len).max(1)
    }

    /// Sends packets of `packet_len` bytes each, which `packets` holds one after the other. `false`: the socket's buffer is
    /// full, nothing was sent.
    ///
    /// # Errors
    /// What the system says.
    pub fn send(&self, destination: SocketAddr, packets: &[u8], packet_len: usize) -> io::Result<bool> {
        let transmit = Transmit {
            destination,
            ecn: Some(EcnCodepoint::Ect0),
            contents: packets,
            segment_size: (packets.len() > packet_len).then_some(packet_len),
            src_ip: None,
        };
        match self.state.try_send((&self.socket).into(), &transmit) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How many datagrams of this length the receive buffer holds. The system counts the memory that they take, which is up
    /// to about twice their length.
    #[must_use]
    pub fn receive_room(&self, packet_len: usize) -> usize {
        let buffer = SockRef::from(&self.socket).recv_buffer_size().unwrap_or(0);
        buffer / (2 * packet_len).max(1)
    }

    /// Receives one batch and hands each datagram to `handle`, with whether it came with a mark of congestion (ECN); how many
    /// there were. 0: nothing is left.
    ///
    /// # Errors
    /// What the system says; for a connected socket also what ICMP says of the peer, such as `ConnectionRefused`.
    pub fn receive(&mut self, mut handle: impl FnMut(SocketAddr, bool, &mut [u8])) -> io::Result<usize> {
        let mut runs: [&mut [u8]; BATCH_SIZE] = self
            .room
            .chunks_exact_mut(RUN)
            .collect::<Vec<_>>()
            .try_into()
            .map_err(|_| io::Error::other("the room is a batch long"))?;
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let received = {
            let mut slices = runs.each_mut().map(|run| IoSliceMut::new(run));
            match self.state.recv((&self.socket).into(), &mut slices, &mut metas) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(error) => return Err(error),
            }
        };
        let mut datagrams = 0;
        for (run, meta) in runs.iter_mut().zip(&metas[..received]) {
            // The system only coalesces what is marked alike.
            let marked = meta.ecn == Some(EcnCodepoint::Ce);
            for datagram in run[..meta.len].chunks_mut(meta.stride.max(1)) {
                handle(meta.addr, marked, datagram);
                datagrams += 1;
            }
        }
        // A batch of empty datagrams is not the end.
        Ok(datagrams.max(received))
    }
}

/// How often a call that fails is tried again before its error is taken for lasting: about a second.
const MOST_FAILURES: u32 = 100;
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

/// Keeps a loop from spinning on an error that does not pass.
#[derive(Debug, Default)]
pub struct Retries {
    failures: u32,
}

impl Retries {
    /// The call has worked.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// The call has failed: waits a moment. `false`: it has failed so often in a row that it is no use to go on.
    pub fn pause(&mut self) -> bool {
        self.failures += 1;
        if self.failures >= MOST_FAILURES {
            return false;
        }
        std::thread::sleep(FAILURE_PAUSE);
        true
    }
}

impl AsRawFd for BatchSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for BatchSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Asks for a large receive buffer; privileged processes get it whatever the limit.
fn set_receive_buffer(socket: &UdpSocket) {
    let forced = nix::sys::socket::setsockopt(socket, RcvBufForce, &RECEIVE_BUFFER);
    let socket = SockRef::from(socket);
    if forced.is_err() {
        let _best_effort = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    }
    match socket.recv_buffer_size() {
        Ok(size) if size < SMALL_BUFFER => tracing::warn!(
            "the kernel grants a receive buffer of {size} bytes only, so packets will be lost under load: \
             raise it with `sysctl -w net.core.rmem_max={RECEIVE_BUFFER}`"
        ),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    pub(crate) fn ends_on_loopback() -> [SocketAddr; 2] {
        let network = xagg_testbed::loopback::network();
        [1, 2].map(|host| format!("{network}.{host}:9001").parse().expect("address"))
    }

    fn receive_all(socket: &mut BatchSocket, expected: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut all = vec![];
        for _ in 0..1000 {
            let count =
                socket.receive(|from, _, datagram| all.push((from, datagram.to_vec()))).expect("receives");
            if all.len() >= expected {
                break;
            }
            if count == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        all
    }

    #[test]
    fn retries_end_and_a_success_renews_them() {
        let mut retries = Retries { failures: MOST_FAILURES - 2 };
        assert!(retries.pause());
        assert!(!retries.pause() && !retries.pause());
        retries.reset();
        assert!(retries.pause());
    }

    #[test]
    fn a_batch_arrives_as_the_packets_that_were_sent() {
        let port = 10_000 + std::process::id() as u16 % 20_000;
        let over_ipv6 = [port, port + 1].map(|port| SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
        let over_ipv4 = ends_on_loopback();
        for [from, to] in [over_ipv4, over_ipv6] {
            let sender = BatchSocket::bind(from).expect("binds");
            let mut receiver = BatchSocket::bind(to).expect("binds");
            let count = sender.segments(1000);
            assert!(count > 1, "this kernel has segmentation offload");
            let packets: Vec<u8> = (0..count).flat_map(|number| vec![number as u8; 1000]).collect();
            assert!(sender.send(to, &packets, 1000).expect("sends"));
            let expected: Vec<_> = packets.chunks(1000).map(|packet| (from, packet.to_vec())).collect();
            assert_eq!(receive_all(&mut receiver, count), expected);
        }
    }

    #[test]
    fn a_closed_port_is_an_error_of_a_connected_socket() {
        let [from, to] = ends_on_loopback();
        let mut socket = BatchSocket::bind(from).expect("binds");
        socket.connect(to).expect("connects");
        socket.send(to, &[0; 10], 10).expect("sends");
        let refused = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            socket.receive(|_, _, _| ()).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        });
        assert!(refused);
    }
}
