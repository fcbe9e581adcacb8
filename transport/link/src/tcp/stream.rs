//! One TCP connection: what it is for, what waits to be sent on it, and what of a frame has come.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use weft_core::units::{Host, Time};

use super::frame::ENVELOPE_BYTES;
use crate::link::Counters;
use crate::nics::bind_device;
use crate::outgoing::Way;
use crate::preamble::PREAMBLE_BYTES;

/// A peer that is silent for so long is asked whether it is there, and given up when it does not answer.
const KEEP_ALIVE_S: u32 = 30;
const KEEP_ALIVE_INTERVAL_S: u32 = 5;
const KEEP_ALIVE_PROBES: u32 = 3;

/// A connection whose peer takes nothing for so long is broken, milliseconds: as long as a connection of the engine may
/// stall.
const USER_TIMEOUT_MS: u32 = 10_000;

/// Buffers that are kept for what is sent next.
const SPARE_MAX: usize = 8;

/// Of larger ones none is kept: a turn's chunks and a little more need less.
const SPARE_BYTES_MAX: usize = 512 << 10;

/// What a TCP connection is for.
#[derive(Debug)]
pub(super) enum Role {
    /// This end sends data on it.
    Outgoing {
        way: Way,
        /// Attempts before this one in which the peer said nothing.
        failures: u32,
        /// Until when it has to be connected.
        connect_by: Time,
        /// The endpoint was told that it takes no chunk.
        is_blocked: bool,
    },
    /// Another end has made it, and has not said what for.
    Unfinished {
        /// Where the connection comes from.
        host: Host,
        /// Until when it has to say; set in the first turn after.
        finish_by: Option<Time>,
        said: [u8; PREAMBLE_BYTES],
        bytes: usize,
    },
    /// The other end sends data on it.
    Incoming { way: Way },
}

/// What of a frame has come.
#[derive(Debug)]
pub(super) enum Input {
    /// So many of the bytes before its payload.
    Head {
        bytes: [u8; ENVELOPE_BYTES],
        filled: usize,
    },
    /// A part of it, in a buffer with room for a trailer behind it.
    Part {
        buffer: Box<[u8]>,
        filled: usize,
        frame: usize,
        is_wanted: bool,
    },
}

impl Default for Input {
    fn default() -> Self {
        let bytes = [0; ENVELOPE_BYTES];
        Self::Head { bytes, filled: 0 }
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: TcpStream,
    pub(super) role: Role,
    pub(super) input: Input,
    /// Until when the rest of a frame has to come; set in the first check after its beginning has.
    pub(super) half_by: Option<Time>,
    /// The last packet was long: what follows is likely a payload that is better read into its place.
    pub(super) is_bulk: bool,
    /// It is among those that may hold something received.
    pub(super) is_readable: bool,
    /// Its socket has taken something: it is connected.
    pub(super) has_sent: bool,
    /// When something was last sent or received.
    pub(super) used_at: Time,
    /// What waits for the socket: `out[sent..end]`. What stands behind is only room.
    out: Vec<u8>,
    sent: usize,
    end: usize,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, role: Role, now: Time) -> Self {
        Self {
            socket,
            role,
            input: Input::default(),
            half_by: None,
            is_bulk: false,
            is_readable: false,
            has_sent: false,
            used_at: now,
            out: Vec::new(),
            sent: 0,
            end: 0,
        }
    }

    /// Begins to connect to `to` from the address of the NIC, at its device where one is given.
    pub(super) fn connect(
        from: IpAddr,
        device: Option<&str>,
        to: SocketAddr,
        dscp: u8,
    ) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        // The port is chosen when `to` is known: the same one serves for many peers.
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        socket.bind(&SocketAddr::new(from, 0).into())?;
        bind_device(&SockRef::from(&socket), device)?;
        set_options(&socket, from, dscp)?;
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {}
            Err(error) => return Err(error),
        }
        Ok(socket.into())
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Where what it is for leads to, if that is known.
    pub(super) fn way(&self) -> Option<Way> {
        match self.role {
            Role::Outgoing { way, .. } | Role::Incoming { way } => Some(way),
            Role::Unfinished { .. } => None,
        }
    }

    /// Whether the endpoint was told that its path takes no chunk.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(
            self.role,
            Role::Outgoing {
                is_blocked: true,
                ..
            }
        )
    }

    /// Whether a part of a frame has come.
    pub(super) fn is_half(&self) -> bool {
        match self.input {
            Input::Head { filled, .. } => filled > 0,
            Input::Part { .. } => true,
        }
    }

    /// Bytes that wait for the socket.
    pub(super) fn waiting(&self) -> usize {
        self.end - self.sent
    }

    /// Puts what `write` writes, `room` bytes at most, behind what waits for the socket. Answers how long it is.
    pub(super) fn put(
        &mut self,
        room: usize,
        spare: &mut Vec<Vec<u8>>,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> usize {
        if self.out.is_empty() {
            self.out = spare.pop().unwrap_or_default();
        }
        // What has left makes room once it is as much as what has to be moved: so each byte is moved once at most, and the
        // buffer is as long as twice what waits at most.
        if self.out.len() < self.end + room && self.sent >= self.waiting() {
            self.out.copy_within(self.sent..self.end, 0);
            (self.sent, self.end) = (0, self.waiting());
        }
        let needed = self.end + room;
        if self.out.len() < needed {
            self.out.resize(needed, 0);
        }
        let bytes = write(&mut self.out[self.end..needed]);
        self.end += bytes;
        bytes
    }

    /// Sends what waits, as far as the socket takes it.
    pub(super) fn flush(
        &mut self,
        spare: &mut Vec<Vec<u8>>,
        counters: &mut Counters,
    ) -> Result<(), Errno> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while self.sent < self.end {
            counters.send_calls += 1;
            let waiting = &self.out[self.sent..self.end];
            match send(self.socket.as_raw_fd(), waiting, flags) {
                Ok(sent) => {
                    self.sent += sent;
                    self.has_sent = true;
                }
                Err(Errno::EINTR) => {}
                // It is full, or not connected yet.
                Err(Errno::EAGAIN) => {
                    counters.blocked += 1;
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
        (self.sent, self.end) = (0, 0);
        let out = std::mem::take(&mut self.out);
        if spare.len() < SPARE_MAX && out.len() <= SPARE_BYTES_MAX {
            spare.push(out);
        }
        Ok(())
    }
}

/// Sets what every connection of a link has; `here` is its own address.
pub(super) fn set_options(socket: &impl AsFd, here: IpAddr, dscp: u8) -> io::Result<()> {
    // A packet goes when it is there; what waits for more is gathered before.
    setsockopt(socket, sockopt::TcpNoDelay, &true)?;
    setsockopt(socket, sockopt::TcpUserTimeout, &USER_TIMEOUT_MS)?;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &KEEP_ALIVE_S)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &KEEP_ALIVE_INTERVAL_S)?;
    setsockopt(socket, sockopt::TcpKeepCount, &KEEP_ALIVE_PROBES)?;
    set_dscp(socket, here, dscp)
}

/// Sets the differentiated services code point of what the connection sends. The two bits of ECN are the kernel's.
pub(super) fn set_dscp(socket: &impl AsFd, here: IpAddr, dscp: u8) -> io::Result<()> {
    let class = dscp << 2;
    match here {
        IpAddr::V4(_) => SockRef::from(socket).set_tos_v4(class.into()),
        IpAddr::V6(_) => Ok(setsockopt(socket, sockopt::Ipv6TClass, &class.into())?),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Bytes that always wait.
    const WAITING: usize = 1 << 20;
    /// Bytes that are put, or read, at once.
    const PIECE: usize = 64 << 10;
    /// The bytes of the stream are those of a pattern of so many, over and over.
    const PERIOD: usize = 251;

    #[test]
    fn a_socket_that_always_leaves_some_needs_room_for_what_waits_and_no_more() {
        let pattern: Vec<u8> = (0..PIECE + PERIOD).map(|at| (at % PERIOD) as u8).collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // What the kernel keeps is less than what waits.
        let buffer = 128 << 10;
        SockRef::from(&listener)
            .set_recv_buffer_size(buffer)
            .unwrap();
        let there = listener.local_addr().unwrap();
        let socket = Stream::connect(there.ip(), None, there, 0).unwrap();
        SockRef::from(&socket).set_send_buffer_size(buffer).unwrap();
        let (mut reader, _) = listener.accept().unwrap();
        let role = Role::Unfinished {
            host: Host::from(there.ip()),
            finish_by: None,
            said: [0; PREAMBLE_BYTES],
            bytes: 0,
        };
        let mut stream = Stream::new(socket, role, Time::ZERO);
        let (mut spare, mut counters) = (Vec::new(), Counters::default());
        let mut received = vec![0; PIECE];
        let (mut put, mut read) = (0, 0);
        while read < 8 * WAITING {
            while stream.waiting() < WAITING {
                let from = put % PERIOD;
                put += stream.put(PIECE, &mut spare, |room| {
                    room.copy_from_slice(&pattern[from..][..PIECE]);
                    PIECE
                });
            }
            stream.flush(&mut spare, &mut counters).unwrap();
            assert!(stream.waiting() > 0, "the kernel has taken all of it");
            let bytes = reader.read(&mut received).unwrap();
            assert!(received[..bytes] == pattern[read % PERIOD..][..bytes]);
            read += bytes;
        }
        let room = stream.out.len();
        assert!(room <= 2 * (WAITING + PIECE) + PIECE, "{room} B");
        while read < put {
            if stream.waiting() > 0 {
                stream.flush(&mut spare, &mut counters).unwrap();
            }
            read += reader.read(&mut received).unwrap();
        }
        assert!(spare.is_empty(), "a large buffer is not kept");
    }
}
