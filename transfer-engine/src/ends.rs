//! The ends here of a session to be: they are allocated, offered to the peer, and joined to those of the peer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weft_engine::{LinkKind, LocalEnd, RemoteEnd, Secret};

use crate::config::{DOMAIN, random};
use crate::failure::Cause;
use crate::lock::lock;
use crate::operations::Connection;
use crate::session::Session;
use crate::shared::Shared;

/// One end of a connection, as the peer is told over TLS.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct End {
    end: LocalEnd,
    /// This end receives under it.
    secret: Secret,
}

/// The ends here of a session to be, all over one link: for writes and reads, and for messages. Dropped, they close.
pub(crate) struct Ends<'a> {
    shared: &'a Shared,
    /// The link's place among [`Shared::engines`].
    engine: usize,
    ends: Vec<End>,
}

impl<'a> Ends<'a> {
    /// Allocates them.
    ///
    /// # Errors
    /// What the peer's program is told.
    pub(crate) fn allocate(shared: &'a Shared, link: LinkKind) -> Result<Self, String> {
        let mut engines = shared.engines.iter();
        let Some(engine) = engines.position(|it| it.link.wire() == link.wire()) else {
            let name = match link.wire() {
                LinkKind::Udp => "udp or xdp",
                link => link.name(),
            };
            let setting = shared.config.link;
            return Err(format!(
                "the peer has no link {name}: its setting is {setting}"
            ));
        };
        let mut ends = Self {
            shared,
            engine,
            ends: Vec::new(),
        };
        let it = &shared.engines[engine].engine;
        for is_for_messages in [false, true] {
            let secret = Secret(random().map_err(|error| error.to_string())?);
            let end = match is_for_messages {
                true => it.allocate_in_order(DOMAIN, secret.clone()),
                false => it.allocate(DOMAIN, secret.clone()),
            };
            ends.ends.push(End { end, secret });
        }
        Ok(ends)
    }

    /// What the peer is told.
    pub(crate) fn offer(&self) -> Vec<End> {
        self.ends.clone()
    }

    /// Joins them to those of the peer.
    ///
    /// # Errors
    /// What both programs are told.
    pub(crate) fn join(&self, remotes: Vec<End>) -> Result<Arc<Session>, String> {
        let shared = self.shared;
        let ends = self.ends.iter().zip(&remotes);
        let connection = |(local, remote): (&End, &End)| {
            Arc::new(Connection {
                engine: self.engine,
                id: local.end.id,
                path: format!("{} -> {}", local.end.address, remote.end.address),
            })
        };
        let connections: Vec<_> = ends.map(connection).collect();
        let connections = <[_; 2]>::try_from(connections).ok();
        let connections = connections.filter(|it| it.len() == remotes.len());
        let connections =
            connections.ok_or_else(|| format!("the peer offers {} ends for 2", remotes.len()))?;
        let mut all = self.ends.iter().chain(&remotes);
        let has_several_nics = all.any(|it| it.end.address.nics().len() > 1);
        let session = Arc::new(Session::new(connections, has_several_nics));
        // No other session has this owner: a peer speaks for its own connections only.
        let owner: Arc<str> = format!("session {:?}", session.messages.id).into();
        let engine = &shared.engines[self.engine].engine;
        for (connection, remote) in session.connections().into_iter().zip(remotes) {
            // Before the first event.
            let key = (connection.engine, connection.id);
            lock(&shared.by_connection).insert(key, Arc::clone(&session));
            let remote = RemoteEnd::new(Arc::clone(&owner), &remote.end, remote.secret);
            let connected =
                engine.connect(connection.id, remote, shared.events[self.engine].clone());
            connected.map_err(|error| error.to_string())?;
            // One that places in order does not.
            let survives = engine.set_survives_refusals(connection.id, true);
            survives.map_err(|error| error.to_string())?;
        }
        let receives = shared.receives.share(engine, session.messages.id);
        receives.map_err(|error| error.to_string())?;
        Ok(session)
    }

    /// They have become a session.
    pub(crate) fn keep(mut self) {
        self.ends.clear();
    }
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        for end in &self.ends {
            let connection = (self.engine, end.end.id);
            lock(&self.shared.by_connection).remove(&connection);
            self.shared.engines[self.engine].engine.close(end.end.id);
            // What measures.
            let ended = self
                .shared
                .operations()
                .fail(Some(connection), &Cause::EndedHere);
            self.shared.tell(ended);
        }
    }
}
