//! What the servers of two queue pairs tell each other before they are one connection.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_engine::{Access, ConnectionId, LocalEnd, RemoteEnd, Secret};

/// An offer that is not answered is sent again after this, and then at twice the interval each time.
pub(crate) const OFFER_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// The longest interval: a queue pair whose peer does not exist costs one message in five seconds. It delays nobody: a peer
/// that comes late sends an offer of its own at once, which is answered at once.
const OFFER_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// A queue pair that has something to send fails when its peer's end has not come so long after it was made ready to
/// receive. As long as a connection may stall.
pub(crate) const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// Offers that wait for a device's thread. More are refused, and the peers' engines send them again.
pub(crate) const OFFERS_WAITING_MAX: usize = 4096;

/// An offer was dropped.
#[derive(Debug, thiserror::Error)]
#[error(
    "{OFFERS_WAITING_MAX} offers wait for the engine: this one is dropped, and the peer's engine sends it again"
)]
pub struct TooManyOffers;

/// A queue pair anywhere: the GID of its device, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueuePairName {
    /// The GID of its device.
    pub gid: [u8; 16],
    /// `qp_num`.
    pub number: u32,
}

/// One end of a connection to be. It is a secret between the two servers.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The queue pair that makes it.
    pub from: QueuePairName,
    /// The queue pair that it is for.
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

/// An offer, and whose it is.
#[derive(Debug, Clone)]
pub struct TenantOffer {
    /// The tenant of the offering device: its node vouches for that.
    pub tenant: Arc<str>,
    /// The pod that the offering device was made for, as NAMESPACE/NAME, or empty; its node vouches for that, too.
    pub pod: Arc<str>,
    /// The offer.
    pub offer: Offer,
}

impl Offer {
    /// The other end of the connection, as the engine wants it. `owner` is the node from which the offer came, and may do
    /// this to regions.
    pub(crate) fn remote_end(&self, owner: Arc<str>, access: Access) -> RemoteEnd {
        RemoteEnd {
            access,
            ..RemoteEnd::new(owner, &self.end, self.secret.clone())
        }
    }
}

/// When the offer of one queue pair is sent again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfferBackoff {
    interval: Duration,
    next: Duration,
}

impl OfferBackoff {
    /// The offer is sent for the first time.
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            interval: OFFER_INTERVAL_MIN,
            next: now + OFFER_INTERVAL_MIN,
        }
    }

    /// Whether the offer is to be sent again now. Then the next interval begins.
    pub(crate) fn is_due(&mut self, now: Duration) -> bool {
        if now < self.next {
            return false;
        }
        self.interval = (self.interval * 2).min(OFFER_INTERVAL_MAX);
        self.next = now + self.interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_between_offers_double_up_to_five_seconds() {
        let begun = Duration::from_secs(100);
        let mut backoff = OfferBackoff::new(begun);
        let milliseconds = (1..=20_000).map(|after| begun + Duration::from_millis(after));
        let sent = milliseconds.filter(|now| backoff.is_due(*now));
        let sent: Vec<u128> = sent.map(|now| (now - begun).as_millis()).collect();
        assert_eq!(sent, [200, 600, 1400, 3000, 6200, 11_200, 16_200]);
    }
}
