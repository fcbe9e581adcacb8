//! The users of a worker's connections: where their events go, and the sources of their writes.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use weft_core::connection::{self, Chunk, Write};
use weft_core::endpoint::Endpoint;
use weft_core::memory::KeyHasher;
use weft_core::units::ConnectionId;
use weft_memory::Source;

use crate::command::Outgoing;
use crate::event::Event;
use crate::parts::Parts;
use crate::worker::PeerNic;

/// A user who has not taken so many events is not given more until half of them are taken: the peer is told that
/// nothing can be received. A signal has no bytes, so a peer could otherwise fill this end's memory with them.
const EVENTS_MAX: usize = 65_536;

/// The user of one part of a connection.
struct User {
    parts: Arc<Parts>,
    /// Which of them this is.
    part: usize,
    /// It has failed, or was ended because another part has.
    ended: bool,
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

/// The writes that are not complete.
#[derive(Default)]
struct Writes {
    places: Vec<Option<Posted>>,
    free: Vec<usize>,
}

impl Writes {
    fn take(&mut self, token: u64) -> Option<Posted> {
        let posted = self.places.get_mut(token as usize)?.take()?;
        self.free.push(token as usize);
        Some(posted)
    }

    /// Drops the writes of a connection that is over.
    fn drop_of(&mut self, id: ConnectionId) {
        for (token, place) in self.places.iter_mut().enumerate() {
            if place.take_if(|posted| posted.connection == id).is_some() {
                self.free.push(token);
            }
        }
    }
}

/// The users of one worker.
#[derive(Default)]
pub(crate) struct Users {
    by_id: HashMap<ConnectionId, User, BuildHasherDefault<KeyHasher>>,
    posted: Writes,
    /// Connections whose users have too many events to take.
    held: Vec<ConnectionId>,
}

impl Users {
    pub(crate) fn add(&mut self, id: ConnectionId, parts: Arc<Parts>) {
        let failed = parts.has_failed();
        let user = User {
            part: parts.index(id),
            parts,
            ended: false,
            held: false,
            writes: 0,
        };
        self.by_id.insert(id, user);
        if failed {
            // Another part was quicker to fail than this one to be connected.
            self.end(id);
        }
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
        let Writes { places, free } = &mut self.posted;
        let token = free.pop().unwrap_or(places.len());
        let request = Write {
            token: token as u64,
            bytes: write.bytes,
            key: write.key,
            offset: write.offset,
            immediate: write.immediate,
        };
        if endpoint.post(id, request).is_err() {
            free.push(token);
            places.resize_with(places.len().max(token + 1), || None);
            return;
        }
        user.writes += 1;
        let posted = Some(Posted {
            connection: id,
            write,
        });
        match places.get_mut(token) {
            Some(place) => *place = posted,
            None => places.push(posted),
        }
    }

    /// What a chunk is cut from and where in it its write begins, unless the write has ended.
    pub(crate) fn source(&self, chunk: &Chunk) -> Option<(&Source, u64)> {
        let posted = self.posted.places.get(chunk.token as usize)?.as_ref()?;
        Some((&posted.write.source, posted.write.source_offset))
    }

    /// Writes of a connection that are not complete.
    pub(crate) fn writes(&self, id: ConnectionId) -> usize {
        self.by_id.get(&id).map_or(0, |user| user.writes)
    }

    /// The name that the user has for a connection, and which of its parts this is.
    pub(crate) fn name(&self, id: ConnectionId) -> (ConnectionId, usize) {
        let user = self.by_id.get(&id);
        user.map_or((id, 0), |user| (user.parts.name(), user.part))
    }

    /// Tells a user what has happened.
    pub(crate) fn report(
        &mut self,
        id: ConnectionId,
        event: connection::Event,
        endpoint: &mut Endpoint<PeerNic>,
    ) {
        let Some(user) = self.by_id.get_mut(&id) else {
            return;
        };
        let connection = user.parts.name();
        let event = match event {
            connection::Event::Completed { token } => {
                let Some(Posted { write, .. }) = self.posted.take(token) else {
                    return;
                };
                user.writes -= 1;
                user.parts.complete(user.part, write.bytes);
                Event::Written {
                    connection,
                    context: write.context,
                    source: write.source,
                }
            }
            connection::Event::Immediate { value, key } if key == crate::SIGNAL => Event::Signal {
                connection,
                immediate: value,
            },
            connection::Event::Immediate { value, key } => Event::Delivered {
                connection,
                immediate: value,
                key,
            },
            connection::Event::Failed(failure) => {
                user.parts.fail(id, failure);
                self.end(id);
                return;
            }
        };
        user.parts.tell(event);
        if !user.held && user.parts.untaken() >= EVENTS_MAX {
            user.held = true;
            self.held.push(id);
            endpoint.hold(id, true);
        }
    }

    /// Ends a part of a connection that has failed. The last part tells the user.
    pub(crate) fn end(&mut self, id: ConnectionId) {
        self.posted.drop_of(id);
        let Some(user) = self.by_id.get_mut(&id) else {
            return;
        };
        user.writes = 0;
        if !std::mem::replace(&mut user.ended, true)
            && let Some(failure) = user.parts.ended()
        {
            let connection = user.parts.name();
            user.parts.tell(Event::Failed {
                connection,
                failure,
            });
        }
    }

    /// Lets connections receive again whose users have taken their events.
    pub(crate) fn release(&mut self, endpoint: &mut Endpoint<PeerNic>) {
        let by_id = &mut self.by_id;
        self.held.retain(|id| {
            let Some(user) = by_id.get_mut(id) else {
                return false;
            };
            user.held = user.parts.untaken() > EVENTS_MAX / 2;
            if !user.held {
                endpoint.hold(*id, false);
            }
            user.held
        });
    }

    /// Ends a part's use. The last part confirms that the connection is closed.
    pub(crate) fn close(&mut self, id: ConnectionId) {
        self.posted.drop_of(id);
        if let Some(user) = self.by_id.remove(&id)
            && user.parts.closed()
        {
            let connection = user.parts.name();
            user.parts.tell(Event::Closed { connection });
        }
    }
}
