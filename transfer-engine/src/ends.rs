//! The ends here of a session to be: they are allocated, offered to the peer, and joined to those of the peer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weft_engine::{LinkKind, LocalEnd, RemoteEnd, Secret};

use crate::config::{DOMAIN, NICS_MAX, random};
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
    /// Of its NIC.
    speed_bps: u64,
}

/// The ends here of a session to be, all over one link; the last one is for messages. Dropped, they close.
pub(crate) struct Ends<'a> {
    shared: &'a Shared,
    /// Each with its engine.
    ends: Vec<(usize, End)>,
}

impl<'a> Ends<'a> {
    /// Allocates ends for `count` connections over a link, which rotate over the NICs.
    pub(crate) fn allocate(
        shared: &'a Shared,
        link: LinkKind,
        count: usize,
    ) -> Result<Self, String> {
        if count == 0 || count > NICS_MAX {
            return Err(format!(
                "{count} connections are asked for: 1 to {NICS_MAX}"
            ));
        }
        let engines = shared.engines.iter().enumerate();
        let engines: Vec<_> = engines.filter(|(_, it)| it.link == link).collect();
        let Some(first) = engines.first() else {
            return Err(format!(
                "the peer has no link {}: its setting is {}",
                link.name(),
                shared.config.link
            ));
        };
        let mut ends = Self {
            shared,
            ends: Vec::new(),
        };
        for connection in 0..=count {
            let is_for_messages = connection == count;
            let (index, it) = match is_for_messages {
                true => first,
                false => &engines[connection % engines.len()],
            };
            let secret = Secret(random().map_err(|error| error.to_string())?);
            let end = match is_for_messages {
                true => it.engine.allocate_in_order(DOMAIN, secret.clone()),
                false => it.engine.allocate(DOMAIN, secret.clone()),
            };
            let speed_bps = it.speed_bps;
            let end = End {
                end,
                secret,
                speed_bps,
            };
            ends.ends.push((*index, end));
        }
        Ok(ends)
    }

    /// What the peer is told.
    pub(crate) fn offer(&self) -> Vec<End> {
        self.ends.iter().map(|(_, end)| end.clone()).collect()
    }

    /// Joins them to those of the peer.
    ///
    /// # Errors
    /// What both programs are told.
    pub(crate) fn join(&self, remotes: Vec<End>) -> Result<Arc<Session>, String> {
        let shared = self.shared;
        if remotes.len() != self.ends.len() {
            let (here, there) = (self.ends.len(), remotes.len());
            return Err(format!("the peer offers {there} ends for {here}"));
        }
        let connection = |((engine, local), remote): (&(usize, End), &End)| {
            Arc::new(Connection {
                engine: *engine,
                id: local.end.id,
                speed_bps: local.speed_bps.min(remote.speed_bps).max(1),
                path: format!("{} -> {}", local.end.address, remote.end.address),
            })
        };
        let mut connections: Vec<_> = self.ends.iter().zip(&remotes).map(connection).collect();
        let messages = connections.pop().ok_or("there are no ends")?;
        let session = Arc::new(Session::new(connections, messages));
        // No other session has this owner: a peer speaks for its own connections only.
        let owner: Arc<str> = format!("session {:?}", session.messages.id).into();
        for (connection, remote) in session.all_connections().zip(remotes) {
            // Before the first event.
            let key = (connection.engine, connection.id);
            lock(&shared.by_connection).insert(key, Arc::clone(&session));
            let engine = &shared.engines[connection.engine].engine;
            let remote = RemoteEnd::new(Arc::clone(&owner), &remote.end, remote.secret);
            let connected = engine.connect(
                connection.id,
                remote,
                shared.events[connection.engine].clone(),
            );
            connected.map_err(|error| error.to_string())?;
            // One that places in order does not.
            let survives = engine.set_survives_refusals(connection.id, true);
            survives.map_err(|error| error.to_string())?;
        }
        let engine = &shared.engines[session.messages.engine].engine;
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
        for (engine, end) in &self.ends {
            let connection = (*engine, end.end.id);
            lock(&self.shared.by_connection).remove(&connection);
            self.shared.engines[*engine].engine.close(end.end.id);
            // What measures.
            let ended = self
                .shared
                .operations()
                .fail(Some(connection), &Cause::EndedHere);
            self.shared.tell(ended);
        }
    }
}
