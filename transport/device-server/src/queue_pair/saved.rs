//! A queue pair on its way to the next engine.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_device::control::QueuePair as Made;
use weft_device::entry::Entry;
use weft_device::ring::{Consumer, Slot};
use weft_engine::{ConnectionId, LocalEnd, Secret, Words};

use super::{Joining, Outstanding, QueuePair};
use crate::offer::{Offer, OfferBackoff, QueuePairName};
use crate::receive_queue::{ReceiveQueue, SavedReceiveQueue};
use crate::under_way::{CountOfDevice, UnderWay};

/// A queue pair, of which the rings are in the memory that both ends share.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedQueuePair {
    made: Made,
    pub(crate) end: Option<SavedEnd>,
    requests_max: usize,
    consumed: u32,
    receives: Option<SavedReceiveQueue>,
    outstanding: VecDeque<Outstanding>,
    waiting: Option<Vec<Slot>>,
    next_token: u64,
    is_broken: bool,
}

/// Its end of a connection, which may not be connected yet.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SavedEnd {
    pub(crate) id: ConnectionId,
    pub(crate) secret: Secret,
    from: QueuePairName,
    to: QueuePairName,
    key_prefix: u32,
    /// The peer's end and the prefix of its keys, once connected.
    peer: Option<(ConnectionId, u32)>,
}

impl SavedEnd {
    fn of(joining: &Joining) -> Option<Self> {
        let (offer, peer) = match joining {
            Joining::No => return None,
            Joining::Offered { offer, .. } => (offer, None),
            Joining::Joined { offer, peer_prefix } => (offer, Some((offer.answers?, *peer_prefix))),
        };
        Some(Self {
            id: offer.end.id,
            secret: offer.secret.clone(),
            from: offer.from,
            to: offer.to,
            key_prefix: offer.key_prefix,
            peer,
        })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    /// How far its queue pair is, with the end as this engine knows it.
    pub(crate) fn joining(self, end: LocalEnd, now: Duration) -> Joining {
        let offer = Box::new(Offer {
            from: self.from,
            to: self.to,
            end,
            secret: self.secret,
            key_prefix: self.key_prefix,
            answers: self.peer.map(|(peer, _)| peer),
        });
        match self.peer {
            Some((_, peer_prefix)) => Joining::Joined { offer, peer_prefix },
            None => Joining::Offered {
                offer,
                since: now,
                backoff: OfferBackoff::new(now),
            },
        }
    }
}

impl QueuePair {
    pub(crate) fn save(mut self) -> SavedQueuePair {
        SavedQueuePair {
            made: self.made,
            end: SavedEnd::of(&self.joining),
            requests_max: self.requests_max,
            consumed: self.sends.consumed(),
            receives: self.receives.map(ReceiveQueue::save),
            outstanding: self.outstanding.take_all(),
            waiting: self.is_waiting.then(|| self.entry.slots().to_vec()),
            next_token: self.next_token,
            is_broken: self.is_broken,
        }
    }
}

impl SavedQueuePair {
    /// How many slots of the send ring were consumed.
    pub(crate) fn consumed(&self) -> u32 {
        self.consumed
    }

    /// The same of its own receive ring, unless that is broken.
    pub(crate) fn received(&self) -> Option<u32> {
        self.receives.as_ref()?.consumed
    }

    /// The queue pair, without its end of a connection.
    pub(crate) fn restore(
        self,
        number: u32,
        sends: Consumer<Words>,
        receives: Option<Consumer<Words>>,
        of_device: CountOfDevice,
    ) -> QueuePair {
        let waiting = self.waiting.as_deref().and_then(Entry::of_slots);
        let awaited = self.outstanding.iter().filter(|it| it.awaits_response());
        QueuePair {
            responses_awaited: awaited.count(),
            number,
            made: self.made,
            joining: Joining::No,
            requests_max: self.requests_max,
            sends,
            receives: self.receives.map(|queue| queue.restore(receives)),
            outstanding: UnderWay::new(self.outstanding, of_device),
            is_waiting: waiting.is_some(),
            entry: Box::new(waiting.unwrap_or_default()),
            next_token: self.next_token,
            is_broken: self.is_broken,
        }
    }
}
