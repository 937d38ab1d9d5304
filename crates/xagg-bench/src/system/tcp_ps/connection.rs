//! One end of a TCP connection that never blocks, and carries whole values of 4 bytes whatever TCP makes of them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes of a value.
const VALUE: usize = size_of::<f32>();

/// A connection.
pub struct Connection {
    stream: TcpStream,
    /// The bytes of a value that is not complete yet.
    carry: [u8; VALUE],
    carried: usize,
}

/// What became of an attempt to receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// So many whole values, perhaps none.
    Values(usize),
    /// The other end is closed.
    End,
}

impl Connection {
    /// Of a connected stream.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, carry: [0; VALUE], carried: 0 })
    }

    /// Receives what is there, as far as there is room. What is behind the values that are reported may be overwritten too.
    pub fn receive(&mut self, room: &mut [f32]) -> io::Result<Received> {
        let room: &mut [u8] = bytemuck::cast_slice_mut(room);
        room[..self.carried].copy_from_slice(&self.carry[..self.carried]);
        let Some(len) = unless_blocked(self.stream.read(&mut room[self.carried..]))? else {
            return Ok(Received::Values(0));
        };
        if len == 0 {
            return Ok(Received::End);
        }
        let len = self.carried + len;
        self.carried = len % VALUE;
        self.carry[..self.carried].copy_from_slice(&room[len - self.carried..len]);
        Ok(Received::Values(len / VALUE))
    }

    /// Sends these bytes, as many as there is room for.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(unless_blocked(self.stream.write(bytes))?.unwrap_or(0))
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn values_arrive_whole_however_their_bytes_do() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let mut stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let mut connection = Connection::new(listener.accept().expect("comes").0).expect("is set up");
        let values = [1.5_f32, -2.0, 3.25];
        let mut all = vec![];
        for byte in bytemuck::cast_slice::<f32, u8>(&values) {
            stream.write_all(&[*byte]).expect("sends");
            let mut room = [0.0; 2];
            connection.stream.set_nonblocking(false).expect("is set");
            let Received::Values(count) = connection.receive(&mut room).expect("receives") else {
                panic!("not the end")
            };
            all.extend_from_slice(&room[..count]);
        }
        assert_eq!(all, values);
        drop(stream);
        assert_eq!(connection.receive(&mut [0.0]).expect("receives"), Received::End);
    }
}
