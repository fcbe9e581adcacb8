//! An event channel: the ids that report by it, their sockets, and the events that a program has not taken yet.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use socket2::Socket;

use crate::acknowledgement::Owner;
use crate::endpoint::{Endpoint, Event, INVALID_SERVICE, Stage, read, take_message};
use crate::message::{End, Message};

/// TCP connections to a listener that no request has come by yet. Of more, the oldest is dropped.
const PENDING_MAX: usize = 64;
/// What [`Channel::advance`] handles at a time.
const EVENTS_AT_ONCE: usize = 32;
/// The token of the descriptor that says that events are ready.
const READY: u64 = 0;
/// The token of the timer of those that are to connect again.
const RETRY: u64 = 1;
/// A connection that is refused is tried again after this. A server may make a new listener in place of one that it has
/// closed, as perftest does, and addresses are resolved at once here, so a client is often earlier than elsewhere.
const RETRY_AFTER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// What the program has not taken yet.
pub(crate) struct Queued {
    /// The id that it is for; a request is for the listener.
    pub(crate) owner: Owner,
    token: u64,
    pub(crate) what: What,
}

pub(crate) enum What {
    Event(Event),
    /// Somebody wants to connect to a listener.
    Request {
        socket: Socket,
        end: End,
    },
}

/// A TCP connection to a listener.
struct Pending {
    listener: u64,
    socket: Socket,
    received: Vec<u8>,
}

#[derive(Default)]
struct State {
    endpoints: BTreeMap<u64, (Owner, Endpoint)>,
    /// By their tokens, so the oldest is first.
    pending: BTreeMap<u64, Pending>,
    events: VecDeque<Queued>,
    /// Those that were refused, and connect again when the timer ends.
    refused: Vec<u64>,
    /// `ready` can be read.
    is_ready: bool,
}

/// An event channel.
pub(crate) struct Channel {
    /// The program's descriptor.
    epoll: OwnedFd,
    ready: OwnedFd,
    timer: OwnedFd,
    state: Mutex<State>,
}

/// A number that no other endpoint and no other connection of this process has.
pub(crate) fn token() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(RETRY + 1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn watch(epoll: &OwnedFd, socket: impl AsFd, token: u64, flags: EventFlags) -> io::Result<()> {
    Ok(epoll::add(epoll, socket, EventData::new_u64(token), flags)?)
}

impl Channel {
    pub(crate) fn new() -> io::Result<Self> {
        let made = Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            ready: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            timer: timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
            state: Mutex::default(),
        };
        watch(&made.epoll, &made.ready, READY, EventFlags::IN)?;
        watch(&made.epoll, &made.timer, RETRY, EventFlags::IN)?;
        Ok(made)
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.epoll.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says by `ready` whether there are events.
    fn settle(&self, state: &mut State) {
        let is_ready = !state.events.is_empty();
        if is_ready != state.is_ready {
            state.is_ready = is_ready;
            let mut count = 1u64.to_ne_bytes();
            // It never blocks: it is written when it is 0, and read when it is 1.
            let _ = match is_ready {
                true => rustix::io::write(&self.ready, &count),
                false => rustix::io::read(&self.ready, &mut count),
            };
        }
    }

    /// Takes up an id. The socket of its endpoint is not read yet.
    pub(crate) fn insert(&self, token: u64, owner: Owner, endpoint: Endpoint) {
        self.lock().endpoints.insert(token, (owner, endpoint));
    }

    /// Forgets an id, with its events and those who have connected to it.
    pub(crate) fn remove(&self, token: u64) {
        let mut state = self.lock();
        state.endpoints.remove(&token);
        state.pending.retain(|_, pending| pending.listener != token);
        state.events.retain(|queued| queued.token != token);
        self.settle(&mut state);
    }

    /// Gives an id and its events to another channel.
    pub(crate) fn move_to(&self, other: &Channel, token: u64) -> io::Result<()> {
        let (entry, pending, events, is_refused) = {
            let mut state = self.lock();
            let entry = state.endpoints.remove(&token);
            let of_it = |_: &u64, pending: &mut Pending| pending.listener == token;
            let pending: BTreeMap<u64, Pending> = state.pending.extract_if(.., of_it).collect();
            let (moved, left) = state.events.drain(..).partition(|it| it.token == token);
            state.events = left;
            self.settle(&mut state);
            let moved: VecDeque<Queued> = moved;
            let is_refused = state.refused.contains(&token);
            state.refused.retain(|other| *other != token);
            (entry, pending, moved, is_refused)
        };
        let mut state = other.lock();
        for (token, pending) in pending {
            let _ = epoll::delete(&self.epoll, &pending.socket);
            watch(&other.epoll, &pending.socket, token, EventFlags::IN)?;
            state.pending.insert(token, pending);
        }
        if let Some((id, endpoint)) = entry {
            if let Some(socket) = &endpoint.socket
                && epoll::delete(&self.epoll, socket).is_ok()
            {
                watch(&other.epoll, socket, token, flags(endpoint.stage))?;
            }
            state.endpoints.insert(token, (id, endpoint));
        }
        state.events.extend(events);
        if is_refused {
            other.retry_later(&mut state, token);
        }
        other.settle(&mut state);
        Ok(())
    }

    /// Uses an endpoint. `None`: the id is gone.
    pub(crate) fn with<T>(&self, token: u64, use_it: impl FnOnce(&mut Endpoint) -> T) -> Option<T> {
        let mut state = self.lock();
        let (_, endpoint) = state.endpoints.get_mut(&token)?;
        Some(use_it(endpoint))
    }

    /// Begins to read the socket of an endpoint.
    pub(crate) fn watch(&self, token: u64, endpoint: &Endpoint) -> io::Result<()> {
        match &endpoint.socket {
            Some(socket) => watch(&self.epoll, socket, token, flags(endpoint.stage)),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Adds an event for the program.
    pub(crate) fn push(&self, token: u64, event: Event) {
        let mut state = self.lock();
        if let Some((id, _)) = state.endpoints.get(&token) {
            let owner = id.clone();
            let what = What::Event(event);
            state.events.push_back(Queued { owner, token, what });
            self.settle(&mut state);
        }
    }

    /// Whether an event of this id waits to be taken.
    pub(crate) fn has_event(&self, token: u64) -> bool {
        let state = self.lock();
        state.events.iter().any(|queued| queued.token == token)
    }

    /// The next event; waits for it, unless the program has made the descriptor non-blocking.
    pub(crate) fn next(&self) -> Result<Queued, c_int> {
        loop {
            {
                let mut state = self.lock();
                if state.events.is_empty() {
                    self.advance(&mut state);
                }
                let next = state.events.pop_front();
                self.settle(&mut state);
                if let Some(queued) = next {
                    queued.owner.events.begin();
                    return Ok(queued);
                }
            }
            let flags = fcntl_getfl(&self.epoll).map_err(Errno::raw_os_error)?;
            if flags.contains(OFlags::NONBLOCK) {
                return Err(libc::EAGAIN);
            }
            let mut descriptors = [PollFd::new(&self.epoll, PollFlags::IN)];
            match poll(&mut descriptors, None) {
                // As with SA_RESTART: a signal that a program handles does not end the wait.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.raw_os_error()),
            }
        }
    }

    /// Handles what the sockets have.
    fn advance(&self, state: &mut State) {
        let none = epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(READY),
        };
        let mut found = [none; EVENTS_AT_ONCE];
        let now = Timespec::default();
        let count = epoll::wait(&self.epoll, &mut found[..], Some(&now)).unwrap_or(0);
        for event in &found[..count] {
            let token = event.data.u64();
            if token == RETRY {
                self.connect_again(state);
                continue;
            }
            let stage = state.endpoints.get(&token).map(|(_, it)| it.stage);
            match stage {
                Some(Stage::Listening) => self.accept(state, token),
                Some(_) => self.receive(state, token),
                None => self.receive_request(state, token),
            }
        }
    }

    /// Has an endpoint connect again in a while.
    fn retry_later(&self, state: &mut State, token: u64) {
        state.refused.push(token);
        let value = Itimerspec {
            it_interval: Timespec::default(),
            it_value: RETRY_AFTER,
        };
        // It fails only for a time that is none.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
    }

    /// The timer has ended: those that were refused connect again.
    fn connect_again(&self, state: &mut State) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        for token in std::mem::take(&mut state.refused) {
            let Some((owner, endpoint)) = state.endpoints.get_mut(&token) else {
                continue;
            };
            let begun = endpoint.connect_again();
            let watched = begun.and_then(|()| self.watch(token, endpoint));
            if let Err(error) = watched {
                let event = endpoint.not_connected(&error);
                state.events.push_back(Queued {
                    owner: owner.clone(),
                    token,
                    what: What::Event(event),
                });
            }
        }
    }

    fn receive(&self, state: &mut State, token: u64) {
        let Some((id, endpoint)) = state.endpoints.get_mut(&token) else {
            return;
        };
        let events = match endpoint.stage {
            Stage::Connecting => {
                let outcome = endpoint.connected();
                if endpoint.may_retry(&outcome) {
                    if let Some(socket) = &endpoint.socket {
                        // It is looked at again when it connects again.
                        let _ = epoll::delete(&self.epoll, socket);
                    }
                    self.retry_later(state, token);
                    return;
                }
                let event = endpoint.handle_connected(outcome);
                if let Some(socket) = &endpoint.socket {
                    // It is watched already; should this fail, the socket is only looked at too often.
                    let data = EventData::new_u64(token);
                    let _ = epoll::modify(&self.epoll, socket, data, flags(endpoint.stage));
                }
                event.into_iter().collect()
            }
            _ => endpoint.receive(),
        };
        let queued = events.into_iter().map(|event| Queued {
            owner: id.clone(),
            token,
            what: What::Event(event),
        });
        state.events.extend(queued);
    }

    fn accept(&self, state: &mut State, listener: u64) {
        for _ in 0..PENDING_MAX {
            let endpoint = state.endpoints.get(&listener);
            let socket = endpoint.and_then(|(_, endpoint)| endpoint.socket.as_ref());
            let Some(Ok((socket, _))) = socket.map(Socket::accept) else {
                return;
            };
            let token = token();
            let is_watched = socket.set_nonblocking(true).is_ok()
                && watch(&self.epoll, &socket, token, EventFlags::IN).is_ok();
            if !is_watched {
                continue;
            }
            let of_it = |it: &&u64| state.pending[*it].listener == listener;
            let mut others = state.pending.keys().filter(of_it).copied();
            if let Some(oldest) = others.next()
                && others.count() + 1 >= PENDING_MAX
            {
                state.pending.remove(&oldest);
            }
            let pending = Pending {
                listener,
                socket,
                received: Vec::new(),
            };
            state.pending.insert(token, pending);
        }
    }

    /// A connection to a listener has something to read.
    fn receive_request(&self, state: &mut State, token: u64) {
        let Some(pending) = state.pending.get_mut(&token) else {
            return;
        };
        let has_ended = read(&pending.socket, &mut pending.received);
        let request = match take_message(&mut pending.received) {
            Ok(None) if !has_ended => return,
            Ok(Some(Message::Request { port_space, end })) => Some((port_space, end)),
            _ => None,
        };
        // What is no request of ours is dropped.
        let (Some(pending), Some((port_space, end))) = (state.pending.remove(&token), request)
        else {
            return;
        };
        let Some((id, endpoint)) = state.endpoints.get(&pending.listener) else {
            return;
        };
        if port_space != endpoint.port_space {
            let mut refused = Endpoint::requested(port_space, pending.socket, end);
            let message = Message::Reject {
                status: INVALID_SERVICE,
                private_data: Vec::new(),
            };
            // Whether it hears of it or not: its connection ends.
            let _ = refused.send_last(&message);
            return;
        }
        // The id that the program gets for it watches it again.
        let _ = epoll::delete(&self.epoll, &pending.socket);
        let what = What::Request {
            socket: pending.socket,
            end,
        };
        state.events.push_back(Queued {
            owner: id.clone(),
            token: pending.listener,
            what,
        });
    }
}

/// What a socket is watched for.
fn flags(stage: Stage) -> EventFlags {
    match stage {
        Stage::Connecting => EventFlags::OUT,
        _ => EventFlags::IN,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    const STREAMS: u16 = 0x0106;

    /// A channel that does not wait, with a listener; where it listens, and its token.
    fn listening() -> (Channel, SocketAddr, u64) {
        let channel = Channel::new().unwrap();
        rustix::fs::fcntl_setfl(&channel.epoll, OFlags::NONBLOCK).unwrap();
        let owner = Owner {
            id: std::ptr::null_mut(),
            events: Default::default(),
        };
        let mut endpoint = Endpoint::new(STREAMS);
        let address = endpoint.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        endpoint.socket.as_ref().unwrap().listen(128).unwrap();
        endpoint.stage = Stage::Listening;
        let token = token();
        channel.watch(token, &endpoint).unwrap();
        channel.insert(token, owner, endpoint);
        (channel, address, token)
    }

    fn request(port_space: u16) -> Vec<u8> {
        let end = End {
            path_mtu: 5,
            queue_pair: 7,
            ..End::default()
        };
        Message::Request { port_space, end }.to_bytes()
    }

    fn next(channel: &Channel) -> Queued {
        let begun = Instant::now();
        loop {
            match channel.next() {
                Ok(queued) => return queued,
                Err(number) => assert_eq!(number, libc::EAGAIN),
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn a_request_in_two_pieces_reaches_the_listener_once() {
        let (channel, address, _) = listening();
        assert_eq!(channel.next().err(), Some(libc::EAGAIN));
        let mut client = TcpStream::connect(address).unwrap();
        let bytes = request(STREAMS);
        client.write_all(&bytes[..20]).unwrap();
        assert_eq!(channel.next().err(), Some(libc::EAGAIN));
        client.write_all(&bytes[20..]).unwrap();
        let What::Request { end, .. } = next(&channel).what else {
            panic!("no request");
        };
        assert_eq!(end.queue_pair, 7);
        assert_eq!(channel.next().err(), Some(libc::EAGAIN));
    }

    #[test]
    fn a_request_of_another_port_space_is_refused() {
        let (channel, address, _) = listening();
        let mut client = TcpStream::connect(address).unwrap();
        client
            .write_all(&request(crate::endpoint::DATAGRAMS))
            .unwrap();
        client.set_nonblocking(true).unwrap();
        let mut bytes = Vec::new();
        let begun = Instant::now();
        while client.read_to_end(&mut bytes).is_err() {
            assert_eq!(channel.next().err(), Some(libc::EAGAIN));
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        let status = INVALID_SERVICE;
        let private_data = Vec::new();
        let reject = Message::Reject {
            status,
            private_data,
        };
        assert_eq!(bytes, reject.to_bytes());
    }

    #[test]
    fn of_connections_without_a_request_the_oldest_are_dropped() {
        let (channel, address, _) = listening();
        let strangers: Vec<TcpStream> = (0..3 * PENDING_MAX)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"wft").unwrap();
                while channel.next().is_ok() {}
                stream
            })
            .collect();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(&request(STREAMS)).unwrap();
        assert!(matches!(next(&channel).what, What::Request { .. }));
        assert!(channel.lock().pending.len() <= PENDING_MAX);
        drop(strangers);
    }

    #[test]
    fn an_id_takes_its_events_to_another_channel() {
        let (one, _, token) = listening();
        let other = Channel::new().unwrap();
        one.push(token, Event::new(3, 4));
        one.move_to(&other, token).unwrap();
        assert_eq!(one.next().err(), Some(libc::EAGAIN));
        let What::Event(event) = other.next().ok().unwrap().what else {
            panic!("no event");
        };
        assert_eq!(event, Event::new(3, 4));
        other.remove(token);
        assert!(!other.has_event(token));
    }
}
