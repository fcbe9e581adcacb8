//! The users of a worker's connections: where their events go, and the pieces of what they have posted.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use weft_core::connection::{self, CancelError};
use weft_core::endpoint::Endpoint;
use weft_core::memory::KeyHasher;
use weft_core::units::ConnectionId;

use crate::command::{Command, Outgoing, Queue};
use crate::event::Event;
use crate::identity::worker_of_connection;
use crate::parts::Parts;
use crate::peer::PeerNic;
use crate::post::{Piece, Pieces};
use crate::saved::SavedPost;

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
    /// Work requests that are not complete.
    posts: usize,
    /// Requests that were cancelled, and that the peer has yet to answer.
    cancelled: usize,
    /// The endpoint has yet to say that no placement of it is under way.
    landing: bool,
    /// The user has closed it.
    closing: bool,
}

/// A work request that is not complete; its token is its place in the list.
struct Posted {
    connection: ConnectionId,
    pieces: Pieces,
    context: u64,
    bytes: u64,
    /// It waits for a response.
    request: bool,
}

/// The work requests that are not complete.
#[derive(Default)]
struct Posts {
    places: Vec<Option<Posted>>,
    free: Vec<usize>,
    /// The place of the last one that was looked for.
    looked_at: usize,
}

impl Posts {
    fn take(&mut self, token: u64) -> Option<Posted> {
        let posted = self.places.get_mut(token as usize)?.take()?;
        self.free.push(token as usize);
        Some(posted)
    }

    /// The token of what was posted on a connection with this context. Looks from the last place on that was found: many are
    /// cancelled in the order in which they were posted.
    fn find(&mut self, id: ConnectionId, context: u64) -> Option<u64> {
        let count = self.places.len();
        let from = self.looked_at.min(count);
        let mut tokens = (from..count).chain(0..from);
        let is_meant = |posted: &Posted| posted.connection == id && posted.context == context;
        let found = tokens.find(|&token| self.places[token].as_ref().is_some_and(is_meant))?;
        self.looked_at = found;
        Some(found as u64)
    }

    /// Drops those of a connection that is over.
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
    posted: Posts,
    /// Connections whose users have too many events to take.
    held: Vec<ConnectionId>,
    /// Connections with cancelled requests that the peer has yet to answer.
    unanswered: Vec<ConnectionId>,
    /// Of the engine's workers, which hold other parts.
    queues: Arc<[Queue]>,
}

impl Users {
    pub(crate) fn join(&mut self, queues: Arc<[Queue]>) {
        self.queues = queues;
    }

    /// A part begins. Answers whether it goes on: another part may have been quicker to fail than this one to be
    /// connected.
    pub(crate) fn add(&mut self, id: ConnectionId, parts: Arc<Parts>) -> bool {
        let failed = parts.has_failed();
        let user = User {
            part: parts.index(id),
            parts,
            ended: false,
            held: false,
            posts: 0,
            cancelled: 0,
            landing: false,
            closing: false,
        };
        self.by_id.insert(id, user);
        if failed {
            self.end(id);
        }
        !failed
    }

    /// Posts a work request. A connection that failed meanwhile has told its user.
    pub(crate) fn post(
        &mut self,
        id: ConnectionId,
        post: Outgoing,
        endpoint: &mut Endpoint<PeerNic>,
    ) {
        let Some(user) = self.by_id.get_mut(&id) else {
            return;
        };
        let Posts { places, free, .. } = &mut self.posted;
        // A restored work request may have taken a free place.
        let mut free_places = std::iter::from_fn(|| free.pop());
        let token = free_places.find(|&at| places[at].is_none());
        let token = token.unwrap_or(places.len());
        let request = post.request.with_token(token as u64);
        let posted = Posted {
            connection: id,
            pieces: post.pieces,
            context: post.context,
            bytes: post.bytes,
            request: request.awaits_response(),
        };
        // The handle has checked all that the endpoint refuses, but that the connection goes on.
        if endpoint.post(id, request).is_err() {
            free.push(token);
            places.resize_with(places.len().max(token + 1), || None);
            return;
        }
        user.posts += 1;
        match places.get_mut(token) {
            Some(place) => *place = Some(posted),
            None => places.push(Some(posted)),
        }
    }

    /// Cancels what was posted on a connection with this context.
    pub(crate) fn cancel(
        &mut self,
        id: ConnectionId,
        context: u64,
        endpoint: &mut Endpoint<PeerNic>,
    ) -> Result<(), CancelError> {
        if self.by_id.get(&id).is_none_or(|user| user.ended) {
            return Err(CancelError::Closed);
        }
        let token = self.posted.find(id, context);
        endpoint.cancel(id, token.ok_or(CancelError::NotUnderWay)?)
    }

    /// Takes the work requests that are not complete, for the next engine.
    pub(crate) fn save(&mut self) -> HashMap<ConnectionId, Vec<SavedPost>> {
        let mut saved: HashMap<ConnectionId, Vec<SavedPost>> = HashMap::new();
        for (token, posted) in (0..).zip(self.posted.places.drain(..)) {
            let Some(posted) = posted else {
                continue;
            };
            let is_single = matches!(posted.pieces, Pieces::One(_));
            let post = SavedPost {
                token,
                context: posted.context,
                pieces: posted.pieces.into_vec(),
                is_single,
                bytes: posted.bytes,
                awaits_response: posted.request,
            };
            saved.entry(posted.connection).or_default().push(post);
        }
        self.posted.free.clear();
        saved
    }

    /// Puts a work request where the connection looks for it. Answers whether that was possible: no two have one place, and
    /// there is memory for so many.
    pub(crate) fn restore(&mut self, id: ConnectionId, saved: SavedPost) -> bool {
        let Some(pieces) = Pieces::of_saved(saved.pieces, saved.is_single) else {
            return false;
        };
        let Posts { places, free, .. } = &mut self.posted;
        let (Ok(at), Some(user)) = (usize::try_from(saved.token), self.by_id.get_mut(&id)) else {
            return false;
        };
        if places.get(at).is_some_and(Option::is_some) {
            return false;
        }
        let places_before = places.len();
        if at >= places_before {
            if places
                .try_reserve(at.saturating_add(1) - places_before)
                .is_err()
            {
                return false;
            }
            places.resize_with(at + 1, || None);
            free.extend(places_before..at);
        }
        user.posts += 1;
        user.parts.restore(saved.bytes, saved.awaits_response);
        places[at] = Some(Posted {
            connection: id,
            pieces,
            context: saved.context,
            bytes: saved.bytes,
            request: saved.awaits_response,
        });
        true
    }

    /// Counts the requests that a restored connection has cancelled.
    pub(crate) fn restore_cancelled(&mut self, id: ConnectionId, cancelled: usize) {
        if let Some(user) = self.by_id.get_mut(&id)
            && cancelled > 0
        {
            user.cancelled = cancelled;
            user.parts.restore_requests(cancelled);
            self.unanswered.push(id);
        }
    }

    /// Counts no longer the cancelled requests that the peer has answered.
    pub(crate) fn count_answered(&mut self, endpoint: &Endpoint<PeerNic>) {
        let by_id = &mut self.by_id;
        self.unanswered.retain(|id| {
            let connection = endpoint.connection(*id);
            let Some((user, connection)) = by_id.get_mut(id).zip(connection) else {
                return false;
            };
            let unanswered = user.cancelled.min(connection.cancelled_reads());
            let answered = std::mem::replace(&mut user.cancelled, unanswered) - unanswered;
            user.parts.answered(user.part, answered);
            unanswered > 0
        });
    }

    /// A connection that could not be restored has no user.
    pub(crate) fn forget(&mut self, id: ConnectionId) {
        self.posted.drop_of(id);
        self.by_id.remove(&id);
    }

    /// The pieces of the message that a chunk is cut from, unless it has ended.
    pub(crate) fn pieces(&self, token: u64) -> Option<&Pieces> {
        let posted = self.posted.places.get(token as usize)?.as_ref()?;
        Some(&posted.pieces)
    }

    /// Work requests of a connection that are not complete.
    pub(crate) fn posts(&self, id: ConnectionId) -> usize {
        self.by_id.get(&id).map_or(0, |user| user.posts)
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
                let Some(posted) = self.posted.take(token) else {
                    return;
                };
                let context = posted.context;
                user.posts -= 1;
                user.parts.complete(user.part, posted.bytes, posted.request);
                match posted.pieces {
                    Pieces::One(Piece { source, .. }) => Event::Written {
                        connection,
                        context,
                        source,
                    },
                    Pieces::Many { pieces, .. } => Event::Completed {
                        connection,
                        context,
                        pieces,
                    },
                }
            }
            connection::Event::Cancelled { token } => {
                let Some(posted) = self.posted.take(token) else {
                    return;
                };
                user.posts -= 1;
                user.parts.complete(user.part, posted.bytes, false);
                if posted.request {
                    if user.cancelled == 0 {
                        self.unanswered.push(id);
                    }
                    user.cancelled += 1;
                }
                Event::Cancelled {
                    connection,
                    context: posted.context,
                    pieces: posted.pieces.into_vec(),
                }
            }
            connection::Event::Refused { token, failure } => {
                let Some(posted) = self.posted.take(token) else {
                    return;
                };
                user.posts -= 1;
                user.parts.complete(user.part, posted.bytes, posted.request);
                Event::Refused {
                    connection,
                    context: posted.context,
                    pieces: posted.pieces.into_vec(),
                    failure,
                }
            }
            connection::Event::Received {
                token,
                bytes,
                immediate,
                is_write,
            } => Event::Received {
                connection,
                context: token,
                bytes,
                immediate,
                is_write,
            },
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
                let request = endpoint.failed_request(id);
                if let Some(posted) = request.and_then(|token| self.posted.take(token)) {
                    user.parts.tell(Event::RequestFailed {
                        connection,
                        context: posted.context,
                    });
                }
                if user.parts.fail(id, failure) {
                    for other in user.parts.ids().filter(|&other| other != id) {
                        if let Some(queue) = self.queues.get(worker_of_connection(other)) {
                            queue.send(Command::End { id: other });
                        }
                    }
                }
                self.end(id);
                return;
            }
            connection::Event::Closed => {
                user.landing = false;
                self.confirm(id);
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
        user.posts = 0;
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

    /// The endpoint ends a part; `landing`: it will say when no placement of it is under way.
    pub(crate) fn landing(&mut self, id: ConnectionId, landing: bool) {
        if let Some(user) = self.by_id.get_mut(&id) {
            user.landing |= landing;
        }
    }

    /// The user closes a part.
    pub(crate) fn close(&mut self, id: ConnectionId) {
        self.posted.drop_of(id);
        if let Some(user) = self.by_id.get_mut(&id) {
            user.closing = true;
            self.confirm(id);
        }
    }

    /// Ends a closed part's use when nothing lands any more. The last part confirms that the connection is closed.
    fn confirm(&mut self, id: ConnectionId) {
        let done = |user: &User| user.closing && !user.landing;
        if !self.by_id.get(&id).is_some_and(done) {
            return;
        }
        if let Some(user) = self.by_id.remove(&id)
            && user.parts.closed()
        {
            let connection = user.parts.name();
            user.parts.tell(Event::Closed { connection });
        }
    }
}
