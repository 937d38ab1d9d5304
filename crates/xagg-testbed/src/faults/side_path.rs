//! A longer way through the switch: frames wait here while later ones pass.
//!
//! The fault program sends frames into a TAP device, whose other end is a thread of this process; what it writes back comes out
//! of the device, where another program lets it go on. No queueing discipline of a bare kernel delays frames that it has room for.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, ppoll};

use crate::namespace::Node;
use crate::shell::{run, run_with_input};

const LONGEST_FRAME: usize = 1 << 16;
/// More frames than this at a time are lost.
const CAPACITY: usize = 4096;

/// The device and its thread, which end when this is dropped.
#[derive(Debug)]
pub(super) struct SidePath {
    index: u32,
    delay_micros: Arc<AtomicU64>,
    /// Closing it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl SidePath {
    /// Makes the device in the switch's namespace.
    pub(super) fn open(switch: &Node, name: &str) -> io::Result<Self> {
        let name = format!("tap-{name}");
        let device = switch.enter(|| open_tap(&name))?;
        let up = format!("link set {name} mtu 9000 up\n");
        run_with_input("ip", &["-n", switch.name(), "-batch", "-"], &up).map_err(io::Error::other)?;
        run("tc", &["-n", switch.name(), "qdisc", "add", "dev", &name, "clsact"])
            .map_err(io::Error::other)?;
        let index = switch.enter(|| if_nametoindex(name.as_str()))?;
        let (stopped, stop) = io::pipe()?;
        let delay_micros = Arc::new(AtomicU64::new(0));
        let waiting =
            Waiting { device, stopped, delay_micros: Arc::clone(&delay_micros), frames: VecDeque::new() };
        let thread = std::thread::Builder::new().name(name).spawn(move || waiting.run())?;
        Ok(Self { index, delay_micros, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) const fn index(&self) -> u32 {
        self.index
    }

    /// How long frames wait from now on.
    pub(super) fn set_delay(&self, delay: Duration) {
        self.delay_micros.store(delay.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Drop for SidePath {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _a_panic_was_printed = thread.join();
        }
    }
}

/// What the thread has.
struct Waiting {
    device: File,
    stopped: PipeReader,
    delay_micros: Arc<AtomicU64>,
    /// By when they may go on.
    frames: VecDeque<(Instant, Vec<u8>)>,
}

impl Waiting {
    fn run(mut self) {
        let mut buffer = vec![0; LONGEST_FRAME];
        while self.wait() {
            while let Ok(length) = self.device.read(&mut buffer) {
                let delay = Duration::from_micros(self.delay_micros.load(Ordering::Relaxed));
                if self.frames.len() < CAPACITY {
                    self.frames.push_back((Instant::now() + delay, buffer[..length].to_vec()));
                }
            }
            while self.frames.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                let (_, frame) = self.frames.pop_front().unwrap_or_else(|| unreachable!("there is a front"));
                let _lost_if_the_link_is_down = self.device.write(&frame);
            }
        }
    }

    /// Until a frame comes or is due; whether to go on.
    fn wait(&self) -> bool {
        let due = self.frames.front().map(|(due, _)| due.saturating_duration_since(Instant::now()).into());
        let mut events = [
            PollFd::new(self.device.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.stopped.as_fd(), PollFlags::empty()),
        ];
        let _interrupted = ppoll(&mut events, due, None);
        events[1].any() != Some(true)
    }
}

/// A TAP device of the thread's namespace.
fn open_tap(name: &str) -> io::Result<File> {
    let mut options = File::options();
    let device = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all zeros are a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the call reads and writes an `ifreq`, which lives as long as the call.
    match unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } {
        0 => Ok(device),
        _ => Err(io::Error::last_os_error()),
    }
}
