//! One end of a connection: its stage, its socket, and what it has heard from its peer.

use std::io::{self, ErrorKind, Read as _};
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::message::{End, Foreign, MESSAGE_BYTES_MAX, Message};

/// `enum rdma_cm_event_type`.
pub(crate) mod kind {
    use std::ffi::c_int;

    pub(crate) const ADDRESS_RESOLVED: c_int = 0;
    pub(crate) const ADDRESS_ERROR: c_int = 1;
    pub(crate) const ROUTE_RESOLVED: c_int = 2;
    pub(crate) const CONNECT_REQUEST: c_int = 4;
    pub(crate) const CONNECT_RESPONSE: c_int = 5;
    pub(crate) const CONNECT_ERROR: c_int = 6;
    pub(crate) const UNREACHABLE: c_int = 7;
    pub(crate) const REJECTED: c_int = 8;
    pub(crate) const ESTABLISHED: c_int = 9;
    pub(crate) const DISCONNECTED: c_int = 10;
}

/// The port space of datagrams, `RDMA_PS_UDP`.
pub(crate) const DATAGRAMS: u16 = 0x0111;
/// The reasons of a reject, as InfiniBand numbers them (volume 1, section 12.6.7.2).
pub(crate) const INVALID_SERVICE: u16 = 8;
pub(crate) const BY_PROGRAM: u16 = 28;
const UNSUPPORTED: u16 = 5;

/// When TCP asks whether an idle peer is still there, and how often before it ends the connection.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_STEP: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing was asked of it yet, but perhaps an address.
    Idle,
    Listening,
    /// The TCP connection is being made.
    Connecting,
    /// The request was sent.
    Requesting,
    /// The peer has accepted; ready was not sent yet.
    Replied,
    /// A request has come, and the program has not answered it.
    Requested,
    /// It was accepted, and the peer is not ready yet.
    Accepted,
    Connected,
    Closed,
}

/// Something to tell the program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Event {
    pub(crate) kind: i32,
    pub(crate) status: i32,
    /// What the peer has said with it.
    pub(crate) end: End,
}

impl Event {
    pub(crate) fn new(kind: i32, status: i32) -> Self {
        let end = End::default();
        Self { kind, status, end }
    }
}

/// One end of a connection, or a listener. Its channel owns it.
pub(crate) struct Endpoint {
    pub(crate) stage: Stage,
    pub(crate) socket: Option<Socket>,
    pub(crate) received: Vec<u8>,
    pub(crate) port_space: u16,
    /// Where to connect to.
    pub(crate) destination: Option<SocketAddr>,
    /// How often it connects again where nobody listens: for a second.
    retries: u8,
    /// What this end says of itself.
    pub(crate) own: End,
    /// What the peer has said of itself.
    pub(crate) peer: Option<End>,
    pub(crate) traffic_class: u8,
    /// Takes IPv6 only, or both.
    pub(crate) is_v6_only: Option<bool>,
    /// `local ACK timeout`: 4.096 µs times two to the power of it.
    pub(crate) timeout: u8,
}

impl Endpoint {
    /// One second, about as of a RoCE device under Linux.
    const TIMEOUT: u8 = 18;

    pub(crate) fn new(port_space: u16) -> Self {
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        let own = End {
            packet_number: random as u32 & 0xff_ffff,
            ..End::default()
        };
        Self {
            stage: Stage::Idle,
            socket: None,
            received: Vec::new(),
            port_space,
            destination: None,
            retries: 20,
            own,
            peer: None,
            traffic_class: 0,
            is_v6_only: None,
            timeout: Self::TIMEOUT,
        }
    }

    /// The end of a connection that a request has come by.
    pub(crate) fn requested(port_space: u16, socket: Socket, peer: End) -> Self {
        let mut made = Self::new(port_space);
        made.stage = Stage::Requested;
        made.socket = Some(socket);
        made.hear(peer);
        made
    }

    /// Gives it a socket with an address of this machine; the address with its port.
    pub(crate) fn bind(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        if self.stage != Stage::Idle || self.socket.is_some() {
            return Err(invalid());
        }
        let socket = socket_for(address, self.is_v6_only)?;
        socket.bind(&address.into())?;
        let bound = socket.local_addr()?.as_socket().ok_or_else(invalid)?;
        self.socket = Some(socket);
        Ok(bound)
    }

    pub(crate) fn has_datagrams(&self) -> bool {
        self.port_space == DATAGRAMS
    }

    fn close(&mut self) {
        self.stage = Stage::Closed;
        self.socket = None;
    }

    /// What the peer begins is what this end carries out.
    fn hear(&mut self, peer: End) {
        self.own.responder_resources = peer.initiator_depth;
        self.own.initiator_depth = peer.responder_resources;
        self.peer = Some(peer);
    }

    /// Takes a message; what it means to the program.
    pub(crate) fn handle(&mut self, message: Message) -> Result<Option<Event>, Foreign> {
        let event = match (self.stage, message) {
            (Stage::Requesting, Message::Reply(end)) if self.has_datagrams() => {
                self.close();
                self.peer = Some(end.clone());
                Event {
                    end,
                    ..Event::new(kind::ESTABLISHED, 0)
                }
            }
            (Stage::Requesting, Message::Reply(end)) => {
                self.stage = Stage::Replied;
                self.hear(end.clone());
                Event {
                    end,
                    ..Event::new(kind::CONNECT_RESPONSE, 0)
                }
            }
            (
                Stage::Requesting | Stage::Accepted,
                Message::Reject {
                    status,
                    private_data,
                },
            ) => {
                let mut event = self.rejected(status);
                event.end.private_data = private_data;
                event
            }
            (Stage::Accepted, Message::Ready) => {
                self.stage = Stage::Connected;
                Event::new(kind::ESTABLISHED, 0)
            }
            // The program has said by rdma_notify that its queue pair has heard from the peer's.
            (Stage::Connected, Message::Ready) => return Ok(None),
            (Stage::Accepted | Stage::Replied | Stage::Connected, Message::Disconnect) => {
                self.close();
                Event::new(kind::DISCONNECTED, 0)
            }
            _ => return Err(Foreign),
        };
        Ok(Some(event))
    }

    /// The connection was refused.
    pub(crate) fn rejected(&mut self, reason: u16) -> Event {
        self.close();
        match (self.has_datagrams(), reason) {
            // The statuses of a service lookup: unsupported, and rejected.
            (true, INVALID_SERVICE) => Event::new(kind::UNREACHABLE, 1),
            (true, _) => Event::new(kind::UNREACHABLE, 2),
            (false, reason) => Event::new(kind::REJECTED, reason.into()),
        }
    }

    /// No TCP connection could be made.
    pub(crate) fn not_connected(&mut self, error: &io::Error) -> Event {
        match error.kind() {
            ErrorKind::ConnectionRefused => self.rejected(INVALID_SERVICE),
            _ => {
                self.close();
                let number = error.raw_os_error().unwrap_or(libc::EIO);
                Event::new(kind::UNREACHABLE, -number)
            }
        }
    }

    /// The TCP connection has ended, or the peer has said what it must not.
    pub(crate) fn handle_end(&mut self, is_foreign: bool) -> Option<Event> {
        let reason = if is_foreign { UNSUPPORTED } else { BY_PROGRAM };
        match self.stage {
            Stage::Requesting | Stage::Accepted => Some(self.rejected(reason)),
            Stage::Replied | Stage::Connected => {
                self.close();
                Some(Event::new(kind::DISCONNECTED, 0))
            }
            _ => {
                self.close();
                None
            }
        }
    }

    /// Its socket has something to read: what that means to the program.
    pub(crate) fn receive(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let Some(socket) = &self.socket else {
            return events;
        };
        let has_ended = read(socket, &mut self.received);
        let is_foreign = loop {
            let taken = take_message(&mut self.received);
            match taken.map(|message| message.map(|message| self.handle(message))) {
                Ok(None) => break false,
                Ok(Some(Ok(event))) => events.extend(event),
                Ok(Some(Err(Foreign))) | Err(Foreign) => break true,
            }
        };
        if has_ended || is_foreign {
            events.extend(self.handle_end(is_foreign));
        }
        events
    }

    /// How connecting has ended.
    pub(crate) fn connected(&self) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(ErrorKind::NotConnected)?;
        match socket.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(error)) | Err(error) => Err(error),
        }
    }

    /// Whether it was refused, and is to connect again.
    pub(crate) fn may_retry(&mut self, outcome: &io::Result<()>) -> bool {
        let refused = ErrorKind::ConnectionRefused;
        let is_refused = matches!(outcome, Err(error) if error.kind() == refused);
        let may = is_refused && self.retries > 0;
        self.retries -= u8::from(may);
        may
    }

    /// Connects again, by the same socket.
    pub(crate) fn connect_again(&self) -> io::Result<()> {
        let (socket, to) = self
            .socket
            .as_ref()
            .zip(self.destination)
            .ok_or(ErrorKind::NotConnected)?;
        let mut begun = socket.connect(&to.into());
        if matches!(&begun, Err(error) if error.kind() == ErrorKind::ConnectionAborted) {
            // Linux says once more that the last attempt has failed.
            begun = socket.connect(&to.into());
        }
        match begun {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(()),
        }
    }

    /// The TCP connection is there, or is not going to be.
    pub(crate) fn handle_connected(&mut self, outcome: io::Result<()>) -> Option<Event> {
        self.stage = Stage::Requesting;
        let request = Message::Request {
            port_space: self.port_space,
            end: self.own.clone(),
        };
        match outcome.and_then(|()| self.send(&request)) {
            Ok(()) => None,
            Err(error) => Some(self.not_connected(&error)),
        }
    }

    /// Sends a message. It fits into the empty buffer of a socket; where it does not, the connection is broken.
    pub(crate) fn send(&self, message: &Message) -> io::Result<()> {
        let bytes = message.to_bytes();
        let socket = self.socket.as_ref().ok_or(ErrorKind::NotConnected)?;
        match socket.send_with_flags(&bytes, libc::MSG_NOSIGNAL)? {
            sent if sent == bytes.len() => Ok(()),
            _ => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    /// Sends a message and ends the connection.
    pub(crate) fn send_last(&mut self, message: &Message) -> io::Result<()> {
        let sent = self.send(message);
        self.close();
        sent
    }
}

/// A socket for an address of this kind.
pub(crate) fn socket_for(address: SocketAddr, is_v6_only: Option<bool>) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE_STEP)
        .with_retries(KEEPALIVE_TRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    if let (Some(only), Domain::IPV6) = (is_v6_only, domain) {
        socket.set_only_v6(only)?;
    }
    Ok(socket)
}

/// Reads what there is, up to a message; whether the connection has ended.
pub(crate) fn read(mut socket: &Socket, received: &mut Vec<u8>) -> bool {
    let mut room = [0; MESSAGE_BYTES_MAX];
    let space = MESSAGE_BYTES_MAX.saturating_sub(received.len());
    match socket.read(&mut room[..space]) {
        Ok(0) => true,
        Ok(read) => {
            received.extend(&room[..read]);
            false
        }
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

/// Takes the first message of what was read.
pub(crate) fn take_message(received: &mut Vec<u8>) -> Result<Option<Message>, Foreign> {
    let found = Message::from_bytes(received)?;
    Ok(found.map(|(message, length)| {
        received.drain(..length);
        message
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(stage: Stage, port_space: u16) -> Endpoint {
        let mut made = Endpoint::new(port_space);
        made.stage = stage;
        made
    }

    fn end() -> End {
        End {
            responder_resources: 3,
            initiator_depth: 5,
            ..End::default()
        }
    }

    #[test]
    fn a_reply_swaps_what_each_end_begins_and_carries_out() {
        let mut client = endpoint(Stage::Requesting, 0x0106);
        let event = client.handle(Message::Reply(end())).unwrap().unwrap();
        assert_eq!(event.kind, kind::CONNECT_RESPONSE);
        assert_eq!(client.stage, Stage::Replied);
        let own = (client.own.responder_resources, client.own.initiator_depth);
        assert_eq!(own, (5, 3));
    }

    #[test]
    fn datagrams_are_ready_with_the_reply_and_have_statuses_of_their_own() {
        let mut client = endpoint(Stage::Requesting, DATAGRAMS);
        let event = client.handle(Message::Reply(end())).unwrap().unwrap();
        assert_eq!(
            (event.kind, client.stage),
            (kind::ESTABLISHED, Stage::Closed)
        );
        let mut client = endpoint(Stage::Requesting, DATAGRAMS);
        let event = client.rejected(INVALID_SERVICE);
        assert_eq!((event.kind, event.status), (kind::UNREACHABLE, 1));
    }

    #[test]
    fn each_end_hears_once_that_the_connection_has_ended() {
        for stage in [Stage::Accepted, Stage::Replied, Stage::Connected] {
            let mut one = endpoint(stage, 0x0106);
            let event = one.handle(Message::Disconnect).unwrap().unwrap();
            assert_eq!(event.kind, kind::DISCONNECTED);
            assert_eq!(one.handle_end(false), None);
        }
    }

    #[test]
    fn a_message_out_of_turn_is_foreign() {
        for stage in [
            Stage::Idle,
            Stage::Requested,
            Stage::Closed,
            Stage::Listening,
        ] {
            for message in [Message::Ready, Message::Disconnect, Message::Reply(end())] {
                assert_eq!(endpoint(stage, 0x0106).handle(message), Err(Foreign));
            }
        }
        let mut client = endpoint(Stage::Requesting, 0x0106);
        assert_eq!(client.handle(Message::Ready), Err(Foreign));
        let event = client.handle_end(true).unwrap();
        assert_eq!((event.kind, event.status), (kind::REJECTED, 5));
    }

    #[test]
    fn a_client_without_a_listener_is_rejected_and_one_without_a_route_hears_why() {
        let mut client = endpoint(Stage::Connecting, 0x0106);
        let refused = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let event = client.not_connected(&refused);
        assert_eq!((event.kind, event.status), (kind::REJECTED, 8));
        let mut client = endpoint(Stage::Connecting, 0x0106);
        let event = client.not_connected(&io::Error::from_raw_os_error(libc::ETIMEDOUT));
        assert_eq!(
            (event.kind, event.status),
            (kind::UNREACHABLE, -libc::ETIMEDOUT)
        );
    }
}
