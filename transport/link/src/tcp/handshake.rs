//! Connections that others make: taken, and known by what is said first on them.

use std::io::{self, Read as _};
use std::net::{IpAddr, TcpListener};

use socket2::SockRef;
use weft_core::units::{Host, Nanos};

use super::stream::{self, Role, Stream};
use super::{TcpConfig, TcpLink, failed};
use crate::address::LinkKind;
use crate::error::LinkError;
use crate::nics::bind_device;
use crate::preamble::{PREAMBLE_BYTES, Preamble};

/// Connections whose makers have not said what for, at most: the oldest one goes for a new one. Who may connect says it with
/// its first packet.
const UNFINISHED_MAX: usize = 64;

/// Connections taken in one turn at most.
const ACCEPTS_MAX: usize = 16;

/// When the system has no more descriptors, others are taken after this.
const ACCEPT_AGAIN_AFTER: Nanos = Nanos::from_millis(100);

/// Opens the sockets that others connect to, one for each NIC, at the NIC's device where one is given.
pub(super) fn listen(
    config: &TcpConfig,
    devices: &[Option<String>],
) -> Result<Vec<TcpListener>, LinkError> {
    let nics = config.nics.iter().zip(devices);
    nics.map(|(&address, device)| listen_at(config, address, device.as_deref()))
        .collect()
}

fn listen_at(
    config: &TcpConfig,
    address: IpAddr,
    device: Option<&str>,
) -> Result<TcpListener, LinkError> {
    let ports = config.ports;
    let port = ports.first;
    let listener = TcpListener::bind((address, port)).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => LinkError::PortTaken {
            address,
            port,
            ports,
        },
        io::ErrorKind::AddrNotAvailable => LinkError::AddressNotHere { address },
        io::ErrorKind::PermissionDenied => LinkError::NotPermitted { address, ports },
        _ => failed("bind", address)(source),
    })?;
    let set = listener.set_nonblocking(true);
    set.map_err(failed("fcntl O_NONBLOCK", address))?;
    let bound = bind_device(&SockRef::from(&listener), device);
    bound.map_err(failed("setsockopt SO_BINDTODEVICE", address))?;
    Ok(listener)
}

impl TcpLink {
    /// Takes what has been connected. Where room may be short, what the unfinished ones have said is read first: none that
    /// has said what for goes for a new one.
    pub(super) fn accept(&mut self) {
        if self.unfinished.len() + ACCEPTS_MAX > UNFINISHED_MAX {
            for slot in self.unfinished.clone() {
                if self.read_preamble(slot) {
                    self.set_readable(slot);
                }
            }
        }
        let mut accepted = 0;
        let mut empty = 0;
        while accepted < ACCEPTS_MAX {
            if empty == self.listeners.len() {
                self.is_listener_readable = false;
                return;
            }
            // One connection of each NIC in turn: many of one keep none of another waiting.
            self.next_listener = (self.next_listener + 1) % self.listeners.len();
            let (socket, host) = match self.listeners[self.next_listener].accept() {
                Ok((socket, peer)) => (socket, Host::from(peer.ip())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    empty += 1;
                    continue;
                }
                // Of a connection that is gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    accepted += 1;
                    continue;
                }
                Err(_) => {
                    self.counters.receive_errors += 1;
                    self.is_listener_readable = false;
                    self.check_by(self.now + ACCEPT_AGAIN_AFTER);
                    return;
                }
            };
            (accepted, empty) = (accepted + 1, 0);
            if self.unfinished.len() >= UNFINISHED_MAX
                && let Some(&oldest) = self.unfinished.front()
            {
                self.counters.strangers += 1;
                self.close(oldest);
            }
            let set = socket.set_nonblocking(true);
            let role = Role::Unfinished {
                host,
                finish_by: None,
                said: [0; PREAMBLE_BYTES],
                bytes: 0,
            };
            let stream = Stream::new(socket, role, self.now);
            // A connection that the system does not support further is dropped, and made again.
            if let Ok(slot) = set.and_then(|()| self.insert(stream)) {
                self.unfinished.push_back(slot);
                self.set_readable(slot);
                // The next turn says when it has to be finished.
                self.check_by(self.now);
            }
        }
    }

    /// Reads what who has connected says. Answers whether there may be more to read.
    pub(super) fn read_preamble(&mut self, slot: usize) -> bool {
        let Some(stream) = self.streams.get_mut(slot) else {
            return false;
        };
        let Role::Unfinished {
            host, said, bytes, ..
        } = &mut stream.role
        else {
            return true;
        };
        let host = *host;
        while *bytes < PREAMBLE_BYTES {
            match (&stream.socket).read(&mut said[*bytes..]) {
                Ok(0) => return self.refuse(slot),
                Ok(read) => *bytes += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.refuse(slot),
            }
        }
        let Some(preamble) = Preamble::parse(LinkKind::Tcp, said) else {
            return self.refuse(slot);
        };
        // Who has only the token takes no other machine's place.
        let is_known = preamble.token == self.config.token && preamble.from.host() == host;
        if !is_known || u16::from(preamble.path.0) >= self.config.paths {
            return self.refuse(slot);
        }
        let way = (preamble.from, preamble.path);
        let (here, dscp) = (self.config.nics.first(), self.config.dscp);
        if stream::set_options(&stream.socket, here, dscp).is_err() {
            // As in `accept`.
            self.close(slot);
            return false;
        }
        let Ok(before) = self.incoming.insert(way, slot) else {
            return self.refuse(slot);
        };
        stream.role = Role::Incoming { way };
        self.unfinished.retain(|&other| other != slot);
        // The other end has made a new one: it has given the old one up.
        if let Some(before) = before {
            self.close(before);
        }
        true
    }

    /// Closes the connection of a stranger. Answers that there is nothing to read.
    pub(super) fn refuse(&mut self, slot: usize) -> bool {
        self.counters.strangers += 1;
        self.close(slot);
        false
    }
}
