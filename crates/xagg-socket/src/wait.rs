//! Waiting for a socket, for another thread, or for a time. Not by epoll, whose times are whole milliseconds: a paced sender waits
//! for less than that between its packets.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::BatchSocket;

/// What a thread waits at most before it looks around again, whether or not there is something to wait for.
pub const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Ends the wait of another thread, or its next one if it does not wait now.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// For one thread that waits.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self(Arc::new(EventFd::from_flags(flags)?)))
    }

    /// Ends the wait.
    pub fn wake(&self) {
        let _woken_already_if_full = self.0.write(1);
    }

    /// Waits to be woken, at most this long.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        self.wait_beside([PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout)
    }

    /// Waits for any of these events. The first is this waker's.
    fn wait_beside<const N: usize>(&self, mut events: [PollFd<'_>; N], timeout: Duration) -> io::Result<()> {
        wait_for_any(&mut events, timeout)?;
        if events[0].any() == Some(true) {
            let _wakes_once = self.0.read();
        }
        Ok(())
    }
}

impl BatchSocket {
    /// Waits until there is something to receive, or room to send if that is what is missing, or the waker is used, or for this
    /// long. What is there already ends it at once.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, waker: &Waker, to_send: bool, timeout: Duration) -> io::Result<()> {
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, to_send);
        let woken = PollFd::new(waker.0.as_fd(), PollFlags::POLLIN);
        waker.wait_beside([woken, PollFd::new(self.as_fd(), flags)], timeout)
    }

    /// Waits until there is room to send, at most this long.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait_for_room(&self, timeout: Duration) -> io::Result<()> {
        wait_for_any(&mut [PollFd::new(self.as_fd(), PollFlags::POLLOUT)], timeout)
    }
}

/// A signal ends the wait too: whoever waits looks around and waits again.
fn wait_for_any(events: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    match ppoll(events, Some(TimeSpec::from_duration(timeout)), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::tests::ends_on_loopback;

    const LONG: Duration = Duration::from_secs(10);

    fn elapsed(wait: impl FnOnce() -> io::Result<()>) -> Duration {
        let start = Instant::now();
        wait().expect("waits");
        start.elapsed()
    }

    fn socket() -> BatchSocket {
        BatchSocket::bind(ends_on_loopback()[0]).expect("binds")
    }

    #[test]
    fn a_wait_of_less_than_a_millisecond_is_neither_skipped_nor_rounded_up() {
        let (socket, waker) = (socket(), Waker::new().expect("a waker"));
        let short = Duration::from_micros(200);
        let waits: Vec<Duration> = (0..100).map(|_| elapsed(|| socket.wait(&waker, false, short))).collect();
        assert!(waits.iter().all(|wait| *wait >= short), "{waits:?}");
        // Some may be late on a busy machine, all cannot be.
        assert!(waits.iter().any(|wait| *wait < Duration::from_millis(1)), "{waits:?}");
    }

    #[test]
    fn a_waker_ends_one_wait_and_no_more() {
        let (socket, waker) = (socket(), Waker::new().expect("a waker"));
        let short = Duration::from_millis(5);
        for _ in 0..2 {
            waker.wake();
            waker.wake();
            assert!(elapsed(|| socket.wait(&waker, false, LONG)) < LONG);
            assert!(elapsed(|| socket.wait(&waker, false, short)) >= short);
            waker.clone().wake();
            assert!(elapsed(|| waker.wait(LONG)) < LONG);
            assert!(elapsed(|| waker.wait(short)) >= short);
        }
    }

    #[test]
    fn a_datagram_or_room_ends_the_wait() {
        let [from, to] = ends_on_loopback();
        let (sender, receiver) =
            (BatchSocket::bind(from).expect("binds"), BatchSocket::bind(to).expect("binds"));
        let waker = Waker::new().expect("a waker");
        assert!(elapsed(|| sender.wait(&waker, true, LONG)) < LONG, "there is room");
        assert!(elapsed(|| sender.wait_for_room(LONG)) < LONG);
        assert!(sender.send(to, &[1; 10], 10).expect("sends"));
        assert!(elapsed(|| receiver.wait(&waker, false, LONG)) < LONG, "there is a datagram");
    }
}
