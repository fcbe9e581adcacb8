//! The users of a worker's connections: where their events go, and the sources of their writes.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crossbeam_channel::Sender;
use weft_core::connection::{self, Chunk, Write};
use weft_core::endpoint::Endpoint;
use weft_core::memory::KeyHasher;
use weft_core::units::ConnectionId;
use weft_memory::Source;

use crate::command::Outgoing;
use crate::event::Event;
use crate::worker::PeerNic;

/// A user who has not taken so many events is not given more until half of them are taken: the peer is told that
/// nothing can be received. A signal has no bytes, so a peer could otherwise fill this end's memory with them.
const EVENTS_MAX: usize = 65_536;

struct User {
    events: Sender<Event>,
    /// The connection refuses what arrives.
    held: bool,
    /// Writes that are not complete.
    writes: usize,
}

/// A write that is not complete; its token is its place in the list.
struct Posted {
    connection: ConnectionId,
    write: Outgoing,
}

/// The users of one worker.
#[derive(Default)]
pub(crate) struct Users {
    by_id: HashMap<ConnectionId, User, BuildHasherDefault<KeyHasher>>,
    posted: Vec<Option<Posted>>,
    free: Vec<usize>,
    /// Connections whose users have too many events to take.
    held: Vec<ConnectionId>,
}

impl Users {
    pub(crate) fn add(&mut self, id: ConnectionId, events: Sender<Event>) {
        let user = User {
            events,
            held: false,
            writes: 0,
        };
        self.by_id.insert(id, user);
    }

    /// Posts a write. A connection that failed meanwhile has told its user.
    pub(crate) fn write(
        &mut self,
        id: ConnectionId,
        write: Outgoing,
        endpoint: &mut Endpoint<PeerNic>,
    ) {
        let Some(user) = self.by_id.get_mut(&id) else {
            return;
        };
        let token = self.free.pop().unwrap_or(self.posted.len());
        let request = Write {
            token: token as u64,
            bytes: write.bytes,
            key: write.key,
            offset: write.offset,
            immediate: write.immediate,
        };
        if endpoint.post(id, request).is_err() {
            self.free.push(token);
            self.posted
                .resize_with(self.posted.len().max(token + 1), || None);
            return;
        }
        user.writes += 1;
        let posted = Some(Posted {
            connection: id,
            write,
        });
        match self.posted.get_mut(token) {
            Some(place) => *place = posted,
            None => self.posted.push(posted),
        }
    }

    /// What a chunk is cut from and where in it its write begins, unless the write has ended.
    pub(crate) fn source(&self, chunk: &Chunk) -> Option<(&Source, u64)> {
        let posted = self.posted.get(chunk.token as usize)?.as_ref()?;
        Some((&posted.write.source, posted.write.source_offset))
    }

    /// Writes of a connection that are not complete.
    pub(crate) fn writes(&self, id: ConnectionId) -> usize {
        self.by_id.get(&id).map_or(0, |user| user.writes)
    }

    fn take(&mut self, token: u64) -> Option<Posted> {
        let posted = self.posted.get_mut(token as usize)?.take()?;
        self.free.push(token as usize);
        Some(posted)
    }

    /// Drops the writes of a connection that is over.
    fn drop_writes(&mut self, id: ConnectionId) {
        for (token, place) in self.posted.iter_mut().enumerate() {
            if place.take_if(|posted| posted.connection == id).is_some() {
                self.free.push(token);
            }
        }
    }

    /// Tells a user what has happened. One who has dropped the receiver does not want to know.
    pub(crate) fn report(
        &mut self,
        id: ConnectionId,
        event: connection::Event,
        endpoint: &mut Endpoint<PeerNic>,
    ) {
        let event = match event {
            connection::Event::Completed { token } => {
                let Some(posted) = self.take(token) else {
                    return;
                };
                Event::Written {
                    connection: id,
                    context: posted.write.context,
                    source: posted.write.source,
                }
            }
            connection::Event::Immediate { value, key } if key == crate::SIGNAL => Event::Signal {
                connection: id,
                immediate: value,
            },
            connection::Event::Immediate { value, key } => Event::Delivered {
                connection: id,
                immediate: value,
                key,
            },
            connection::Event::Failed(failure) => {
                tracing::warn!(connection = %id, reason = failure.reason(), "connection failed");
                self.drop_writes(id);
                Event::Failed {
                    connection: id,
                    failure,
                }
            }
        };
        if let Some(user) = self.by_id.get_mut(&id) {
            match &event {
                Event::Written { .. } => user.writes -= 1,
                Event::Failed { .. } => user.writes = 0,
                _ => {}
            }
            let _ = user.events.send(event);
            if !user.held && user.events.len() >= EVENTS_MAX {
                user.held = true;
                self.held.push(id);
                endpoint.hold(id, true);
            }
        }
    }

    /// Lets connections receive again whose users have taken their events.
    pub(crate) fn release(&mut self, endpoint: &mut Endpoint<PeerNic>) {
        let by_id = &mut self.by_id;
        self.held.retain(|id| {
            let Some(user) = by_id.get_mut(id) else {
                return false;
            };
            user.held = user.events.len() > EVENTS_MAX / 2;
            if !user.held {
                endpoint.hold(*id, false);
            }
            user.held
        });
    }

    /// Ends a connection's use and confirms it.
    pub(crate) fn close(&mut self, id: ConnectionId) {
        self.drop_writes(id);
        if let Some(user) = self.by_id.remove(&id) {
            let _ = user.events.send(Event::Closed { connection: id });
        }
    }
}
