//! The connections with a peer that one set-up makes: their ends here are allocated, offered to the peer, and joined to
//! those of the peer. They begin and end together.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use weft_engine::{Failure, LocalEnd, Post, RemoteEnd, Secret};

use crate::config::{DOMAIN, NICS_MAX, random};
use crate::failure::Cause;
use crate::operations::{Link, PartId};
use crate::receives::MESSAGE_NIC;
use crate::shared::{Shared, lock};

/// A work request costs a NIC as much as this many bytes beside its own.
const REQUEST_BYTES: u64 = 1500;

/// The connections with a peer.
pub(crate) struct Session {
    /// For writes and reads.
    pub(crate) links: Vec<Arc<Link>>,
    /// For sends: in order, on the first NIC.
    pub(crate) messages: Arc<Link>,
    /// The time that the work of each of them takes, picoseconds.
    loads: Mutex<Vec<u128>>,
    /// Why it is over.
    pub(crate) ended: OnceLock<Cause>,
    /// What a connection of it failed by. It may come after the end that the peer made of the session for it.
    pub(crate) failure: OnceLock<Failure>,
    /// Reads that wait until another read is done.
    pub(crate) reads: Mutex<VecDeque<(PartId, Post, Arc<Link>)>>,
    /// Ends the control connection.
    pub(crate) hang_up: Notify,
}

impl Session {
    pub(crate) fn all_links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.links.iter().chain([&self.messages])
    }

    /// The connection whose turn it is: each carries bytes in proportion to its speed.
    pub(crate) fn next_link(&self, bytes: u64) -> &Arc<Link> {
        let speeds = self.links.iter().map(|link| link.speed_bps);
        &self.links[rotate(&mut lock(&self.loads), speeds, bytes)]
    }
}

/// Adds work of `bytes` bytes to the load that is the least with it, and answers which that is.
fn rotate(loads: &mut [u128], speeds: impl Iterator<Item = u64>, bytes: u64) -> usize {
    let bits = u128::from(bytes.saturating_add(REQUEST_BYTES)) * 8;
    let costs = speeds.map(|speed| bits * 1_000_000_000_000 / u128::from(speed));
    let with = loads.iter().zip(costs).map(|(load, cost)| load + cost);
    let least = with.enumerate().min_by_key(|(_, load)| *load);
    let (index, load) = least.unwrap_or_default();
    loads[index] = load;
    index
}

/// One end of a connection, as the peer is told over TLS.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct End {
    end: LocalEnd,
    /// This end receives under it.
    secret: Secret,
    /// Of its NIC.
    speed_bps: u64,
}

/// The ends here of a session to be; the last one is for messages. Dropped, they close.
pub(crate) struct Ends<'a> {
    shared: &'a Shared,
    /// Each with its NIC.
    ends: Vec<(usize, End)>,
}

impl<'a> Ends<'a> {
    /// Allocates ends for `links` connections, which rotate over the NICs.
    pub(crate) fn allocate(shared: &'a Shared, links: usize) -> Result<Self, String> {
        if links == 0 || links > NICS_MAX {
            return Err(format!(
                "{links} connections are asked for: 1 to {NICS_MAX}"
            ));
        }
        let mut ends = Self {
            shared,
            ends: Vec::new(),
        };
        for link in 0..=links {
            let is_for_messages = link == links;
            let index = if is_for_messages {
                MESSAGE_NIC
            } else {
                link % shared.nics.len()
            };
            let nic = &shared.nics[index];
            let secret = Secret(random().map_err(|error| error.to_string())?);
            let end = match is_for_messages {
                true => nic.engine.allocate_in_order(DOMAIN, secret.clone()),
                false => nic.engine.allocate(DOMAIN, secret.clone()),
            };
            let speed_bps = nic.speed_bps;
            let end = End {
                end,
                secret,
                speed_bps,
            };
            ends.ends.push((index, end));
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
        let link = |((nic, local), remote): (&(usize, End), &End)| {
            Arc::new(Link {
                nic: *nic,
                connection: local.end.id,
                speed_bps: local.speed_bps.min(remote.speed_bps).max(1),
                path: format!("{} -> {}", local.end.address, remote.end.address),
            })
        };
        let mut links: Vec<_> = self.ends.iter().zip(&remotes).map(link).collect();
        let messages = links.pop().ok_or("there are no ends")?;
        let session = Arc::new(Session {
            loads: Mutex::new(vec![0; links.len()]),
            links,
            messages,
            ended: OnceLock::new(),
            failure: OnceLock::new(),
            reads: Mutex::default(),
            hang_up: Notify::new(),
        });
        // No other session has this owner: a peer speaks for its own connections only.
        let owner: Arc<str> = format!("session {:?}", session.messages.connection).into();
        for (link, remote) in session.all_links().zip(remotes) {
            // Before the first event.
            let key = (link.nic, link.connection);
            lock(&shared.by_connection).insert(key, Arc::clone(&session));
            let engine = &shared.nics[link.nic].engine;
            let remote = RemoteEnd::new(Arc::clone(&owner), &remote.end, remote.secret);
            let connected =
                engine.connect(link.connection, remote, shared.events[link.nic].clone());
            connected.map_err(|error| error.to_string())?;
        }
        shared
            .receive_messages(session.messages.connection)
            .map_err(|error| error.to_string())?;
        Ok(session)
    }

    /// They have become a session.
    pub(crate) fn keep(mut self) {
        self.ends.clear();
    }
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        for (nic, end) in &self.ends {
            lock(&self.shared.by_connection).remove(&(*nic, end.end.id));
            self.shared.nics[*nic].engine.close(end.end.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns_in_proportion_to_their_speeds() {
        let mut loads = [0; 2];
        let speeds = [100_000_000_000, 300_000_000_000];
        let mut next = |_| rotate(&mut loads, speeds.into_iter(), 64);
        let turns: Vec<usize> = (0..8).map(&mut next).collect();
        assert_eq!(
            turns.iter().filter(|turn| **turn == 0).count(),
            2,
            "{turns:?}"
        );
        assert_eq!(turns[..3], [1, 1, 1]);
    }
}
