//! How two ends meet: at a name of the network namespace, where the end that connects hands over the memory.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect as connect_socket, listen as listen_at, recvmsg, sendmsg, socket_with, sockopt,
};
use weft_core::units::Nanos;
use weft_memory::Region;

use super::connection::{Connection, Role};
use super::ring::{End, MEMORY_BYTES, ends};
use super::{Entry, ShmConfig, ShmLink};
use crate::address::{LinkAddress, LinkKind};
use crate::error::LinkError;
use crate::preamble::{PREAMBLE_BYTES, Preamble};

/// Who has connected says what for within this.
pub(super) const HANDSHAKE_MAX: Nanos = Nanos::from_secs(3);

/// Connections whose makers have not said what for, at most: the oldest one goes for a new one. Who may connect says it as it
/// connects.
const UNFINISHED_MAX: usize = 64;

/// Connections taken in one turn at most.
const ACCEPTS_MAX: usize = 16;

/// Connections that may wait to be taken.
const BACKLOG: i32 = 128;

/// When the system has no more descriptors, others are taken after this.
const ACCEPT_AGAIN_AFTER: Nanos = Nanos::from_millis(100);

/// What `statfs` says of a memfd of ordinary pages. One of huge pages could run out of them while it is used, which ends the
/// process that touches it.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The name that an end is reached at: in its network namespace, where everybody sees it.
fn name(address: &LinkAddress) -> String {
    format!("weft-shm/{}/{}", address.ip(), address.ports().first)
}

fn address(of: &LinkAddress) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name(of).as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

/// Opens the socket that others connect to.
pub(super) fn listen(config: &ShmConfig) -> Result<OwnedFd, LinkError> {
    let here = config.address();
    let failed = |call: &'static str, ip: IpAddr| {
        move |source: io::Error| LinkError::System {
            call,
            address: ip,
            source,
        }
    };
    let listener = socket().map_err(failed("socket", here.ip()))?;
    let bound = address(&here).and_then(|at| Ok(bind(&listener, &at)?));
    bound.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => LinkError::NameTaken { name: name(&here) },
        _ => failed("bind", here.ip())(source),
    })?;
    let listens = listen_at(&listener, BACKLOG).map_err(io::Error::from);
    listens.map_err(failed("listen", here.ip()))?;
    Ok(listener)
}

/// Connects to an end, and hands it new memory. It takes both at once, or nothing.
pub(super) fn connect(to: &LinkAddress, said: &Preamble) -> io::Result<(OwnedFd, Arc<Region>)> {
    let socket = socket()?;
    connect_socket(&socket, &address(to)?)?;
    let memory = Region::memfd("weft-shm", MEMORY_BYTES as u64).map_err(io::Error::other)?;
    let file = memory.file().ok_or(io::ErrorKind::Unsupported)?;
    let (said, files) = (said.emit(), [file]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(&socket, &[IoSlice::new(&said)], &mut control, flags)?;
    match sent == said.len() {
        true => Ok((socket, Arc::new(memory))),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// What an end that connects has said first.
enum Said {
    /// Nothing so far.
    Nothing,
    /// This, with a file.
    All([u8; PREAMBLE_BYTES], OwnedFd),
    /// Something else.
    Wrong,
}

fn hear(socket: &impl AsFd) -> Said {
    let mut said = [0; PREAMBLE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut said)],
            &mut control,
            flags,
        ) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Said::Nothing,
            Err(_) => return Said::Wrong,
        }
    };
    // Files that are not taken are closed here.
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    match file {
        Some(file) if received.bytes == PREAMBLE_BYTES => Said::All(said, file),
        _ => Said::Wrong,
    }
}

/// The memory of a file that another process has made, if it is one that can be used without harm.
fn take_memory(file: OwnedFd) -> Option<Arc<Region>> {
    let of = fstatfs(&file).ok()?;
    let is_ordinary = u64::try_from(of.f_type) == Ok(TMPFS_MAGIC);
    // It checks that the file cannot become shorter, and how long it is.
    let memory = Region::from_memfd(file, MEMORY_BYTES as u64);
    is_ordinary.then_some(Arc::new(memory.ok()?))
}

impl ShmLink {
    /// Takes what has been connected.
    pub(super) fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => {
                    self.is_listener_readable = false;
                    return;
                }
                // Of a connection that is gone already.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(_) => {
                    self.counters.receive_errors += 1;
                    self.is_listener_readable = false;
                    self.check_by(self.now + ACCEPT_AGAIN_AFTER);
                    return;
                }
            };
            if self.unfinished.len() >= UNFINISHED_MAX
                && let Some(&oldest) = self.unfinished.front()
            {
                self.refuse(oldest);
            }
            let entry = Entry::Unfinished {
                socket,
                finish_by: None,
            };
            // A connection that the system does not support further is dropped, and made again.
            if let Ok(slot) = self.insert(entry) {
                self.unfinished.push_back(slot);
                // The next turn says when it has to be finished.
                self.check_by(self.now);
                self.finish(slot);
            }
        }
    }

    /// Hears what who has connected says, and opens the connection.
    pub(super) fn finish(&mut self, slot: usize) {
        let Some(Entry::Unfinished { socket, .. }) = self.entries.get(slot) else {
            return;
        };
        let (said, file) = match hear(socket) {
            Said::Nothing => return,
            Said::All(said, file) => (said, file),
            Said::Wrong => return self.refuse(slot),
        };
        let Some(preamble) = Preamble::parse(LinkKind::Shm, &said) else {
            return self.refuse(slot);
        };
        let is_known = preamble.token == self.config.token;
        if !is_known || u16::from(preamble.path.0) >= self.config.paths {
            return self.refuse(slot);
        }
        let Ok(user) = sockopt::socket_peercred(socket).map(|peer| peer.uid.as_raw()) else {
            return self.refuse(slot);
        };
        let way = (preamble.from, preamble.path);
        // Who has only the token takes the place of no other user's process.
        let before = self.incoming.get(&way).and_then(|slot| self.open(slot));
        if before.is_some_and(|before| before.user != user) {
            return self.refuse(slot);
        }
        let memory = take_memory(file);
        let Some(Ok(rings)) = memory.map(|memory| ends(&memory, End::Acceptor)) else {
            return self.refuse(slot);
        };
        let Ok(before) = self.incoming.insert(way, slot) else {
            return self.refuse(slot);
        };
        self.unfinished.retain(|&other| other != slot);
        let (now, generation) = (self.now, self.next_generation());
        if let Some(entry) = self.entries.get_mut(slot)
            && let Entry::Unfinished { socket, .. } = std::mem::replace(entry, Entry::Closed)
        {
            let mut connection = Connection::new(socket, way, Role::Incoming, user, rings, now);
            connection.generation = generation;
            *entry = Entry::Open(Box::new(connection));
            self.slots.push(slot);
        }
        // The other end has made a new one: it has given the old one up.
        if let Some(before) = before {
            self.close(before);
        }
        // What the poller has told of so far was told of a connection that was not open.
        if let Some(connection) = self.open_mut(slot) {
            connection.drain();
        }
    }

    /// Closes the connection of a stranger.
    pub(super) fn refuse(&mut self, slot: usize) {
        self.counters.strangers += 1;
        self.close(slot);
    }
}
