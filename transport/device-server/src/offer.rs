//! What the servers of two queue pairs tell each other before they are one connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weft_engine::{ConnectionId, LocalEnd, RemoteEnd, Secret};

/// Offers that wait for the queue pair here, of all nodes.
const WAITING_MAX: usize = 65_536;
/// An offer that is not answered is sent again after this.
pub(crate) const OFFER_INTERVAL: Duration = Duration::from_millis(200);
/// A queue pair that has something to send fails when its peer's end has not come so long after it was made ready to
/// receive. As long as a connection may stall.
pub(crate) const OFFER_TIMEOUT: Duration = Duration::from_secs(10);
/// One that waits longer is outdated: a peer that still makes it has sent it again since.
const WAITING_TIME_MAX: Duration = Duration::from_secs(1);

/// A queue pair anywhere: the GID of its device, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePairName {
    /// The GID of its device.
    pub gid: [u8; 16],
    /// `qp_num`.
    pub number: u32,
}

/// One end of a connection to be. It is a secret between the two servers.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Whose end it is.
    pub from: QueuePairName,
    /// Whom it is for.
    pub to: QueuePairName,
    /// The end.
    pub end: LocalEnd,
    /// Under which secret the other end must send.
    pub secret: Secret,
    /// The upper half of each key of the offering end's protection domain; a program's own key is the lower half.
    pub key_prefix: u32,
    /// The receiver's end that this end is joined to already: then this is the answer to the offer of that one, and means
    /// nothing for another.
    pub answers: Option<ConnectionId>,
}

impl Offer {
    /// The other end of the connection, as the engine wants it. `owner` is the node from which the offer came.
    pub(crate) fn remote_end(&self, owner: Arc<str>) -> RemoteEnd {
        RemoteEnd::new(owner, &self.end, self.secret.clone())
    }
}

/// Offers that have come before the queue pair here was to be connected, by both names: whom it is for, and whose it is.
#[derive(Debug, Default)]
pub(crate) struct WaitingOffers(BTreeMap<(QueuePairName, QueuePairName), WaitingOffer>);

#[derive(Debug)]
struct WaitingOffer {
    owner: Arc<str>,
    offer: Offer,
    since: Duration,
}

impl WaitingOffers {
    /// Keeps an offer in place of an earlier one. Where there is no room it is dropped, and the other end sends it again.
    pub(crate) fn keep(&mut self, owner: Arc<str>, offer: Offer, now: Duration) {
        let names = (offer.to, offer.from);
        if self.0.len() < WAITING_MAX || self.0.contains_key(&names) {
            let since = now;
            let waiting = WaitingOffer {
                owner,
                offer,
                since,
            };
            self.0.insert(names, waiting);
        }
    }

    pub(crate) fn take(
        &mut self,
        here: QueuePairName,
        peer: QueuePairName,
    ) -> Option<(Arc<str>, Offer)> {
        let waiting = self.0.remove(&(here, peer))?;
        Some((waiting.owner, waiting.offer))
    }

    /// Drops those that are outdated.
    pub(crate) fn expire(&mut self, now: Duration) {
        self.0
            .retain(|_, waiting| now.saturating_sub(waiting.since) <= WAITING_TIME_MAX);
    }

    /// Drops those for the queue pairs of a context that is closed.
    pub(crate) fn drop_for(&mut self, is_closed: impl Fn(QueuePairName) -> bool) {
        self.0.retain(|(to, _), _| !is_closed(*to));
    }
}
