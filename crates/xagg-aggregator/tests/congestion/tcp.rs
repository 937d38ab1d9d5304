//! A TCP flow that sends as much as it may.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use socket2::SockRef;
use xagg_testbed::Node;

const PORT: u16 = 9800;
/// What a segment carries, and the length of its frame: headers of Ethernet, IP and TCP with timestamps.
const SEGMENT: u64 = 1448;
const FRAME: u64 = 1514;

/// The flow; it ends when this is dropped.
pub struct Tcp {
    sender: TcpStream,
    received: Arc<AtomicU64>,
}

impl Tcp {
    /// Starts it, with this congestion control.
    pub fn start(from: &Node, to: &Node, control: &str) -> Self {
        let address = SocketAddr::from((to.address(), PORT));
        let listener = to.enter(|| TcpListener::bind(address)).expect("binds");
        let sender =
            from.enter(|| TcpStream::connect_timeout(&address, Duration::from_secs(5))).expect("connects");
        SockRef::from(&sender).set_tcp_congestion(control.as_bytes()).expect("this kernel has it");
        let (mut receiver, _) = listener.accept().expect("accepts");
        let received = Arc::new(AtomicU64::new(0));
        let (mut source, count) = (sender.try_clone().expect("clones"), Arc::clone(&received));
        thread::spawn(move || while source.write_all(&[0; 65_536]).is_ok() {});
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 18];
            while let Ok(bytes @ 1..) = receiver.read(&mut buffer) {
                count.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        });
        Self { sender, received }
    }

    /// Bytes of frames that have arrived and were of use.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed) * FRAME / SEGMENT
    }

    /// Ends it.
    pub fn stop(&self) {
        let _ended_already = self.sender.shutdown(Shutdown::Both);
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.stop();
    }
}
