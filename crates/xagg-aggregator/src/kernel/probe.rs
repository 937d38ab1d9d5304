//! The self-test: frames that the program sends must really leave the interface. A veth whose other end has no NAPI takes
//! them and drops them silently, for instance.
//!
//! The frames come in at a TAP interface of ours, which runs programs in its driver and is gone when it is closed, however the process
//! ends. (BPF_PROG_TEST_RUN with live frames could do without, but kernels before 5.18 have no live frames, and hardened ones refuse them.)

use std::io::Error;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tun_rs::{DeviceBuilder, Layer};

use super::{KernelError, Mode, attach};
use crate::interface::Interface;

const FRAMES: u64 = 8;
/// IEEE Std 802 local experimental EtherType 1: nobody does anything with such a frame.
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];
/// How long the counters of the interface may take to show the frames.
const PATIENCE: Duration = Duration::from_millis(200);

/// Sends a few harmless frames, from the interface's own address to the same, by the same broadcast as results.
pub(super) fn run(program: &OwnedFd, interface: &Interface) -> Result<(), KernelError> {
    let failed = |reason| KernelError::Probe { interface: interface.name.clone(), reason };
    let address = hardware_address(&interface.name);
    let mut frame = vec![0; 64];
    frame[..6].copy_from_slice(&address);
    frame[6..12].copy_from_slice(&address);
    frame[12..14].copy_from_slice(&EXPERIMENTAL);
    let before = transmitted(&interface.name).map_err(failed)?;
    send(program, &frame).map_err(failed)?;
    let mut sent = 0;
    for _ in 0..20 {
        sent = transmitted(&interface.name).map_err(failed)?.saturating_sub(before);
        if sent >= FRAMES {
            return Ok(());
        }
        std::thread::sleep(PATIENCE / 20);
    }
    Err(KernelError::Transmit { interface: interface.name.clone(), sent, frames: FRAMES })
}

/// Lets the program see the frame so many times, in the driver of an interface that is there for this only.
fn send(program: &OwnedFd, frame: &[u8]) -> Result<(), Error> {
    let tap = DeviceBuilder::new().name("xaggprobe%d").layer(Layer::L2).build_sync()?;
    // Only a frame that is written without blocking meets the program in the driver; others do in the network stack.
    tap.set_nonblocking(true)?;
    let _link = attach::link(program, tap.if_index()?, Mode::Native)?;
    for _ in 0..FRAMES {
        tap.send(frame)?;
    }
    Ok(())
}

/// Frames that the interface has sent, from /proc/net/dev, which shows the caller's namespace.
fn transmitted(interface: &str) -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    const SENT_PACKETS: usize = 9;
    let packets = line.and_then(|line| line.split_whitespace().nth(SENT_PACKETS)?.parse().ok());
    packets.ok_or_else(|| Error::other("the interface is not in /proc/net/dev"))
}

fn hardware_address(interface: &str) -> [u8; 6] {
    let entries = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let links = entries.filter(|entry| entry.interface_name == interface);
    links.filter_map(|entry| entry.address?.as_link_addr()?.addr()).next().unwrap_or_default()
}
