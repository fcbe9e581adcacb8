//! The peers that this engine has called. Work waits for the session, and goes over it while it lasts. The sessions of
//! callers only serve them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_engine::{ConnectionId, WorkRequest};

use crate::address::EngineAddress;
use crate::failure::Cause;
use crate::lock::lock;
use crate::operations::PartEnd;
use crate::session::Session;
use crate::shared::{Dial, Given, Peer, Shared};

impl Shared {
    /// Gives work to the session with a peer, or has it wait for one.
    pub(crate) fn give(&self, address: &EngineAddress, given: Given) {
        let session = {
            let mut peers = lock(&self.peers);
            let peer = peers.entry(address.token).or_insert_with(|| {
                let dial = self.dials.fetch_add(1, Ordering::Relaxed);
                // The thread ends after the engine.
                let _ = self.to_control.send(Some((dial, address.clone())));
                Peer {
                    dial,
                    session: None,
                    waiting: Vec::new(),
                }
            });
            match &peer.session {
                Some(session) => Arc::clone(session),
                None => return peer.waiting.push(given),
            }
        };
        self.give_session(&session, given);
    }

    fn give_session(&self, session: &Session, (part, work): Given) {
        let Some(work) = work else {
            return self.end_part(part, PartEnd::Done);
        };
        let connection = match &work.request {
            WorkRequest::Send(_) => &session.messages,
            _ => &session.unordered,
        };
        self.post(session, part, work, connection);
    }

    /// A peer is connected: what has waited for it is posted.
    pub(crate) fn connected(&self, (dial, address): &Dial, session: &Arc<Session>) {
        // What only connects ends when the peer is connected for all to see.
        let mut connects = Vec::new();
        loop {
            let waiting = {
                let mut peers = lock(&self.peers);
                match peers.get_mut(&address.token).filter(|it| it.dial == *dial) {
                    Some(peer) if peer.waiting.is_empty() => {
                        peer.session = Some(Arc::clone(session));
                        break;
                    }
                    Some(peer) => Some(std::mem::take(&mut peer.waiting)),
                    None => None,
                }
            };
            let Some(waiting) = waiting else {
                // The program has removed the peer since.
                self.end_session(session, &Cause::EndedHere);
                let failed = |part| self.end_part(part, PartEnd::Failed(Cause::EndedHere));
                return connects.into_iter().for_each(failed);
            };
            // What is submitted meanwhile comes after what has waited.
            for (part, work) in waiting {
                match work {
                    Some(_) => self.give_session(session, (part, work)),
                    None => connects.push(part),
                }
            }
        }
        for part in connects {
            self.end_part(part, PartEnd::Done);
        }
        if session.ended.get().is_some() {
            self.forget_session(session);
        }
    }

    /// A peer cannot be connected: what waits fails.
    pub(crate) fn dial_failed(&self, (dial, address): &Dial, cause: &Cause) {
        tracing::warn!(peer = address.name(), "cannot connect: {cause}");
        let peer = {
            let mut peers = lock(&self.peers);
            let peer = peers.get(&address.token);
            let is_waiting = peer.is_some_and(|it| it.dial == *dial);
            is_waiting.then(|| peers.remove(&address.token)).flatten()
        };
        self.end_peer(peer, cause);
    }

    /// Ends a session. What is posted fails when its connection says that it is closed: what was done before is done.
    pub(crate) fn end_session(&self, session: &Arc<Session>, cause: &Cause) {
        if session.ended.set(cause.clone()).is_err() {
            return;
        }
        // Its link may be why.
        if let (Some((_, host)), Cause::Connection(_)) = (session.link.get(), cause) {
            self.measured.results.forget(host);
        }
        self.forget_session(session);
        let reads = std::mem::take(&mut *lock(&session.reads));
        self.waiting_reads.fetch_sub(reads.len(), Ordering::Relaxed);
        for (part, _, _) in reads {
            self.end_part(part, PartEnd::NotPosted(cause.clone()));
        }
        for connection in session.connections() {
            self.engines[connection.engine].engine.close(connection.id);
        }
        session.hang_up.notify_one();
    }

    fn forget_session(&self, session: &Arc<Session>) {
        let is_other = |it: &Arc<Session>| !Arc::ptr_eq(it, session);
        lock(&self.peers).retain(|_, peer| peer.session.as_ref().is_none_or(is_other));
    }

    /// A connection is closed, and reports nothing more.
    pub(crate) fn connection_closed(&self, engine: usize, connection: ConnectionId) {
        let session = lock(&self.by_connection).remove(&(engine, connection));
        if let Some(session) = session {
            let failure = session.failure.get().copied().map(Cause::Connection);
            let cause = failure.or_else(|| session.ended.get().cloned());
            let cause = cause.unwrap_or(Cause::PeerEnded);
            let ended = self.operations().fail(Some((engine, connection)), &cause);
            self.tell(ended);
        }
    }

    pub(crate) fn end_peer(&self, peer: Option<Peer>, cause: &Cause) {
        let Some(Peer {
            session, waiting, ..
        }) = peer
        else {
            return;
        };
        for (part, _) in waiting {
            self.end_part(part, PartEnd::Failed(cause.clone()));
        }
        if let Some(session) = session {
            if let Some((_, host)) = session.link.get() {
                self.measured.results.forget(host);
            }
            self.end_session(&session, cause);
        }
    }

    /// The program closes the engine: everything ends, and nothing begins.
    pub(crate) fn end(&self) {
        self.operations().close();
        let sessions: Vec<_> = lock(&self.by_connection).values().cloned().collect();
        for session in sessions {
            self.end_session(&session, &Cause::EndedHere);
        }
        let ended = self.operations().fail(None, &Cause::EndedHere);
        self.tell(ended);
    }
}
