//! Where the devices meet datagrams: they are taken from the rings of all contexts, and delivered to any of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weft_engine::{Engine, Event};

use super::{ContextId, Devices};
use crate::context::Context;
use crate::datagram::Datagram;
use crate::datagrams::{DATAGRAMS, DatagramDrops, Receivers};
use crate::kept_bytes::KeptBytes;
use crate::offer::{Offer, QueuePairName};

/// The contexts of a device.
pub(super) fn of_device(gid: [u8; 16]) -> std::ops::RangeInclusive<ContextId> {
    let id = |index| ContextId { gid, index };
    id(0)..=id(u8::MAX)
}

/// Whether an offer to this queue pair, or to the datagrams of this device, goes to a program of this server.
pub(super) fn is_local(contexts: &BTreeMap<ContextId, Context>, to: QueuePairName) -> bool {
    if to.number == DATAGRAMS {
        return contexts.range(of_device(to.gid)).next().is_some();
    }
    ContextId::of(to).is_some_and(|id| contexts.contains_key(&id))
}

/// Whether a device has a queue pair that receives datagrams.
fn receives(contexts: &BTreeMap<ContextId, Context>, gid: [u8; 16]) -> bool {
    let mut contexts = contexts.range(of_device(gid));
    contexts.any(|(_, context)| context.receives_datagrams())
}

/// The contexts of all devices.
struct Contexts<'d> {
    engine: &'d Engine,
    contexts: &'d mut BTreeMap<ContextId, Context>,
}

impl<'d> Receivers<'d> for Contexts<'d> {
    fn engine(&self) -> &'d Engine {
        self.engine
    }

    fn deliver(&mut self, datagram: &Datagram<'_>, kept: &KeptBytes, drops: &mut DatagramDrops) {
        let name = QueuePairName {
            gid: datagram.to,
            number: datagram.header.destination,
        };
        let id = ContextId::of(name);
        match id.and_then(|id| self.contexts.get_mut(&id)) {
            Some(context) => context.deliver(datagram, kept, drops, self.engine),
            None => drops.no_queue_pair += 1,
        }
    }
}

impl Devices {
    /// Datagrams that were dropped here, by the reason.
    #[must_use]
    pub fn datagram_drops(&self) -> DatagramDrops {
        self.datagrams.drops
    }

    /// Takes what is new in the rings of queue pairs for datagrams. Answers whether there was something.
    pub(super) fn take_datagrams(&mut self, now: Duration) -> bool {
        let mut is_busy = false;
        for name in self.datagrams.take_released() {
            let id = ContextId::of(name);
            if let Some(context) = id.and_then(|id| self.contexts.get_mut(&id)) {
                context.take(name.number, &self.engine);
            }
        }
        for (id, context) in &mut self.contexts {
            is_busy |= context.take_datagrams(id.gid, now, &self.engine, &mut self.datagrams);
        }
        let mut receivers = Contexts {
            engine: &self.engine,
            contexts: &mut self.contexts,
        };
        is_busy |= self.datagrams.take_loopback(&mut receivers);
        self.offers.append(&mut self.datagrams.take_offers());
        is_busy
    }

    /// Answers whether the event is of a connection for datagrams.
    pub(super) fn on_datagram_event(&mut self, event: &Event, now: Duration) -> bool {
        let mut receivers = Contexts {
            engine: &self.engine,
            contexts: &mut self.contexts,
        };
        self.datagrams.on_event(event, now, &mut receivers)
    }

    pub(super) fn receive_datagram_offer(&mut self, owner: Arc<str>, offer: &Offer, now: Duration) {
        let receives = receives(&self.contexts, offer.to.gid);
        self.datagrams
            .receive_offer(owner, offer, receives, now, &self.engine);
        self.offers.append(&mut self.datagrams.take_offers());
    }

    /// Sends offers again, and closes what nobody uses.
    pub(super) fn offer_datagrams(&mut self, now: Duration) {
        let contexts = &self.contexts;
        let receives = |gid: &[u8; 16]| receives(contexts, *gid);
        self.datagrams.repeat_offers(now, &self.engine, receives);
        self.offers.append(&mut self.datagrams.take_offers());
    }
}
