//! How datagrams go between devices: one connection for each pair of devices that send each other any.
//!
//! The first datagram to a device makes the connection, by the same offers as those of queue pairs; all queue pairs for
//! datagrams of both devices share it. A datagram is a send on it, and lands in a buffer of the server. When a connection
//! fails, what it carried is lost, and the next datagram makes another one: datagrams never say that they were lost.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use weft_engine::{
    Access, ConnectionId, DomainId, Engine, EngineError, Event, Failure, Key, Piece, Post,
    PostError, ReceiveBuffer, Region, Secret, SendMessage, Source,
};

use crate::datagram::{Datagram, Header, MESSAGE_BYTES_MAX};
use crate::kept_bytes::KeptBytes;
use crate::offer::{OFFER_INTERVAL_MIN, OFFER_TIMEOUT, Offer, OfferBackoff, QueuePairName};
use crate::random;

/// In place of a queue pair's number, which has 24 bits: all datagrams of the device.
pub(crate) const DATAGRAMS: u32 = u32::MAX;
/// Datagrams that wait for a connection or are under way on it: 1 MiB. Further ones stay in their rings.
const MESSAGES_MAX: usize = 256;
/// Buffers of a connection, so that all that may be under way finds one: 1 MiB.
const BUFFERS: usize = MESSAGES_MAX;
/// Devices that a device exchanges datagrams with at a time: 1 GiB of buffers.
const PEERS_MAX: usize = 1024;

type Gid = [u8; 16];
/// Between which devices: the one here, and its peer.
type Ends = (Gid, Gid);

/// Datagrams that were dropped here, by the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DatagramDrops {
    /// The peer's server has sent what is no datagram.
    pub malformed: u64,
    /// For a queue pair that is not there, is for no datagrams, or is not ready to receive.
    pub no_queue_pair: u64,
    /// With another Q_Key than that of the queue pair.
    pub q_key: u64,
    /// The queue pair has no receive posted, and keeps as many as it may, or all together do.
    pub no_receive: u64,
    /// The connection to the peer has failed, or was not made.
    pub no_connection: u64,
}

/// A datagram on its way from here.
struct Message {
    source: Source,
    immediate: Option<u32>,
    /// It goes on its second connection: there is no third.
    is_repeated: bool,
}

impl Message {
    fn post(&self, connection: ConnectionId) -> Post {
        let bytes = self.source.len();
        let send = SendMessage {
            token: 0,
            bytes,
            immediate: self.immediate,
        };
        Post {
            connection,
            request: send.into(),
            pieces: vec![Piece {
                source: self.source.clone(),
                offset: 0,
                bytes,
            }],
        }
    }
}

enum Phase {
    /// The offer is sent again and again, since this time.
    Offered {
        since: Duration,
        backoff: OfferBackoff,
    },
    /// Connected. Sends of the peer land in these buffers.
    Joined { buffers: Arc<Region>, key: Key },
}

/// The connection between two devices.
struct Link {
    /// Of this end; once joined it names the peer's.
    offer: Offer,
    domain: DomainId,
    phase: Phase,
    /// Those that wait for the connection, or are under way on it in this order.
    messages: VecDeque<Message>,
    /// Queue pairs whose next entries wait for room, and which of them had room last.
    blocked: BTreeSet<QueuePairName>,
    last_released: Option<QueuePairName>,
}

impl Link {
    /// The next of those that wait for room, in turns.
    fn release(&mut self) -> Option<QueuePairName> {
        let after = self.last_released.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.blocked.range((after, Bound::Unbounded)).next();
        let next = next.or_else(|| self.blocked.first()).copied()?;
        self.last_released = Some(next);
        self.blocked.take(&next)
    }
}

/// A datagram from a device to itself.
struct Loopback {
    gid: Gid,
    message: Box<[u8]>,
    immediate: Option<u32>,
}

/// The queue pairs that datagrams are delivered to.
pub(crate) trait Receivers<'d> {
    /// The engine that carries them.
    fn engine(&self) -> &'d Engine;

    /// Puts a datagram into a receive of the queue pair that it names, has it kept there, or counts it as dropped.
    fn deliver(&mut self, datagram: &Datagram<'_>, kept: &KeptBytes, drops: &mut DatagramDrops);
}

/// The connections for datagrams of all devices of a server.
pub(crate) struct Datagrams {
    sender: Sender<Event>,
    links: BTreeMap<Ends, Link>,
    by_connection: HashMap<ConnectionId, Ends>,
    next_domain: u32,
    offers: Vec<Offer>,
    /// Queue pairs that may go on: there is room for their next datagrams.
    released: Vec<QueuePairName>,
    loopback: VecDeque<Loopback>,
    /// Queue pairs that wait for room there.
    loopback_blocked: BTreeSet<QueuePairName>,
    repeat_at: Duration,
    /// Of all queue pairs.
    kept: KeptBytes,
    pub(crate) drops: DatagramDrops,
}

impl Datagrams {
    /// Events of the connections go to `sender`.
    pub(crate) fn new(sender: Sender<Event>) -> Self {
        Self {
            sender,
            links: BTreeMap::new(),
            by_connection: HashMap::new(),
            // Those of programs count up from 0.
            next_domain: u32::MAX,
            offers: Vec::new(),
            released: Vec::new(),
            loopback: VecDeque::new(),
            loopback_blocked: BTreeSet::new(),
            repeat_at: Duration::ZERO,
            kept: KeptBytes::default(),
            drops: DatagramDrops::default(),
        }
    }

    /// Whether a further datagram may go to this device now. Where not, the queue pair is released once one may.
    pub(crate) fn has_room(&mut self, from: QueuePairName, to: Gid) -> bool {
        if from.gid == to {
            let has_room = self.loopback.len() < MESSAGES_MAX;
            if !has_room {
                self.loopback_blocked.insert(from);
            }
            return has_room;
        }
        let Some(link) = self.links.get_mut(&(from.gid, to)) else {
            return true;
        };
        let has_room = link.messages.len() < MESSAGES_MAX;
        if !has_room {
            link.blocked.insert(from);
        }
        has_room
    }

    /// Sends a datagram, whole with its header, which there must be room for.
    pub(crate) fn send(
        &mut self,
        (here, peer): Ends,
        message: Box<[u8]>,
        immediate: Option<u32>,
        now: Duration,
        engine: &Engine,
    ) {
        if here == peer {
            self.loopback.push_back(Loopback {
                gid: here,
                message,
                immediate,
            });
            return;
        }
        let message = Message {
            source: Source::Bytes(Arc::new(message)),
            immediate,
            is_repeated: false,
        };
        if !self.links.contains_key(&(here, peer)) {
            if !self.open((here, peer), now, engine) {
                self.drops.no_connection += 1;
                return;
            }
            self.offer((here, peer));
        }
        if let Some(link) = self.links.get_mut(&(here, peer)) {
            if let Phase::Joined { .. } = link.phase {
                post(engine, link.offer.end.id, &message);
            }
            link.messages.push_back(message);
        }
    }

    /// Has the peer told of this end.
    fn offer(&mut self, ends: Ends) {
        let link = self.links.get(&ends);
        self.offers.extend(link.map(|link| link.offer.clone()));
    }

    /// Allocates an end. Answers whether there may be one more.
    fn open(&mut self, (here, peer): Ends, now: Duration, engine: &Engine) -> bool {
        let of_device = (here, [0; 16])..=(here, [0xff; 16]);
        if self.links.range(of_device).count() >= PEERS_MAX {
            return false;
        }
        // A peer reaches the buffers of its own connection only.
        let domain = DomainId(self.next_domain);
        self.next_domain = self.next_domain.wrapping_sub(1);
        let secret = Secret(random::draw());
        let name = |gid| QueuePairName {
            gid,
            number: DATAGRAMS,
        };
        let offer = Offer {
            from: name(here),
            to: name(peer),
            end: engine.allocate_in_order(domain, secret.clone()),
            secret,
            key_prefix: 0,
            answers: None,
        };
        self.by_connection.insert(offer.end.id, (here, peer));
        let link = Link {
            offer,
            domain,
            phase: Phase::Offered {
                since: now,
                backoff: OfferBackoff::new(now),
            },
            messages: VecDeque::new(),
            blocked: BTreeSet::new(),
            last_released: None,
        };
        self.links.insert((here, peer), link);
        true
    }

    /// Ends a connection. What it carried is dropped, or given to the caller; who waited for room may go on.
    fn close(&mut self, ends: Ends, engine: &Engine) -> VecDeque<Message> {
        let Some(link) = self.links.remove(&ends) else {
            return VecDeque::new();
        };
        self.by_connection.remove(&link.offer.end.id);
        engine.close(link.offer.end.id);
        if let Phase::Joined { key, .. } = link.phase {
            engine.deregister(key);
        }
        self.released.extend(link.blocked);
        link.messages
    }

    /// Ends a connection for ever.
    fn fail(&mut self, ends: Ends, engine: &Engine) {
        let lost = self.close(ends, engine);
        self.drops.no_connection += lost.len() as u64;
    }

    /// The peer does not know the connection any more: what it has not acknowledged goes over another one, once.
    fn begin_anew(&mut self, ends: Ends, now: Duration, engine: &Engine) {
        let mut messages = self.close(ends, engine);
        let before = messages.len();
        messages.retain(|message| !message.is_repeated);
        self.drops.no_connection += (before - messages.len()) as u64;
        messages.iter_mut().for_each(|it| it.is_repeated = true);
        if !messages.is_empty()
            && self.open(ends, now, engine)
            && let Some(link) = self.links.get_mut(&ends)
        {
            link.messages = messages;
        }
    }

    /// An offer for the datagrams of a device has come from the node `owner`. `receives` says whether the device has a
    /// queue pair that receives any: only then an end is made for it.
    pub(crate) fn receive_offer(
        &mut self,
        owner: Arc<str>,
        peer: &Offer,
        receives: bool,
        now: Duration,
        engine: &Engine,
    ) {
        let ends = (peer.to.gid, peer.from.gid);
        if peer.from.number != DATAGRAMS || peer.to.number != DATAGRAMS || ends.0 == ends.1 {
            return;
        }
        match self.links.get(&ends) {
            Some(Link {
                phase: Phase::Offered { .. },
                offer,
                ..
            }) => {
                let is_outdated = peer.answers.is_some_and(|end| end != offer.end.id);
                if is_outdated {
                    return;
                }
            }
            Some(Link { offer, .. }) => {
                if offer.answers == Some(peer.end.id) {
                    if peer.answers.is_none() {
                        // The peer does not have this end's offer.
                        self.offers.push(offer.clone());
                    }
                    return;
                }
                if peer.answers.is_some() {
                    return;
                }
                // The peer has closed its end, and begins anew.
                self.begin_anew(ends, now, engine);
            }
            None if peer.answers.is_some() => return,
            None => {}
        }
        let is_open = self.links.contains_key(&ends) || receives && self.open(ends, now, engine);
        if is_open {
            self.join(ends, owner, peer, engine);
        }
    }

    /// Connects this end to the peer's: what waits begins to move.
    fn join(&mut self, ends: Ends, owner: Arc<str>, peer: &Offer, engine: &Engine) {
        let Some(link) = self.links.get_mut(&ends) else {
            return;
        };
        let connection = link.offer.end.id;
        let remote = peer.remote_end(owner, Access::NONE);
        if let Err(error) = engine.connect(connection, remote, self.sender.clone()) {
            tracing::debug!("no connection for datagrams: {error}");
            return;
        }
        // An offer that does not name this end was sent without knowing it.
        let is_known = peer.answers.is_some();
        link.offer.answers = Some(peer.end.id);
        let buffers = Region::share(vec![0; BUFFERS * MESSAGE_BYTES_MAX]);
        let key = engine.register_for(link.domain, Access::WRITE, Arc::clone(&buffers));
        for buffer in 0..BUFFERS {
            post_buffer(engine, connection, key, buffer as u64);
        }
        for message in &link.messages {
            post(engine, connection, message);
        }
        link.phase = Phase::Joined { buffers, key };
        if !is_known {
            self.offers.push(link.offer.clone());
        }
    }

    /// Something has happened on a connection. Answers whether it is one of these.
    pub(crate) fn on_event<'d>(
        &mut self,
        event: &Event,
        now: Duration,
        receivers: &mut impl Receivers<'d>,
    ) -> bool {
        let connection = event.connection();
        let Some(&ends) = self.by_connection.get(&connection) else {
            return false;
        };
        let engine = receivers.engine();
        match *event {
            Event::Completed { .. } => self.completed(ends),
            Event::Received {
                context,
                bytes,
                immediate,
                ..
            } => self.received(ends, (context, bytes), immediate, receivers),
            Event::Failed { failure, .. } => {
                tracing::debug!(?failure, "a connection for datagrams has failed");
                match failure {
                    Failure::PeerRestarted => {
                        self.begin_anew(ends, now, engine);
                        self.offer(ends);
                    }
                    _ => self.fail(ends, engine),
                }
            }
            _ => {}
        }
        true
    }

    /// The oldest datagram that was under way lies in a buffer of the peer.
    fn completed(&mut self, ends: Ends) {
        if let Some(link) = self.links.get_mut(&ends) {
            link.messages.pop_front();
            // Each takes what room there is, and waits behind the others for more. When nothing is under way, nothing more
            // would release those who are left if this one has gone.
            let is_empty = link.messages.is_empty();
            self.released.extend(link.release());
            if is_empty {
                self.released.extend(std::mem::take(&mut link.blocked));
            }
        }
    }

    /// A datagram lies in a buffer.
    fn received<'d>(
        &mut self,
        ends: Ends,
        (buffer, bytes): (u64, u64),
        immediate: Option<u32>,
        receivers: &mut impl Receivers<'d>,
    ) {
        let Some(link) = self.links.get(&ends) else {
            return;
        };
        let Phase::Joined { buffers, key } = &link.phase else {
            return;
        };
        let mut message = vec![0; bytes as usize];
        let is_read = buffers.read(buffer * MESSAGE_BYTES_MAX as u64, &mut message);
        post_buffer(receivers.engine(), link.offer.end.id, *key, buffer);
        match is_read {
            Ok(()) => self.deliver(ends, &message, immediate, receivers),
            Err(_) => self.drops.malformed += 1,
        }
    }

    fn deliver<'d>(
        &mut self,
        (to, from): Ends,
        message: &[u8],
        immediate: Option<u32>,
        receivers: &mut impl Receivers<'d>,
    ) {
        let Some((header, payload)) = Header::parse(message) else {
            self.drops.malformed += 1;
            return;
        };
        let datagram = Datagram {
            from,
            to,
            header,
            payload,
            immediate,
        };
        receivers.deliver(&datagram, &self.kept, &mut self.drops);
    }

    /// Delivers what devices have sent to themselves. Answers whether there was something.
    pub(crate) fn take_loopback<'d>(&mut self, receivers: &mut impl Receivers<'d>) -> bool {
        let is_busy = !self.loopback.is_empty();
        while let Some(sent) = self.loopback.pop_front() {
            let ends = (sent.gid, sent.gid);
            self.deliver(ends, &sent.message, sent.immediate, receivers);
        }
        self.released.append(&mut Vec::from_iter(std::mem::take(
            &mut self.loopback_blocked,
        )));
        is_busy
    }

    /// Sends offers again that were not answered, gives up those that nobody answers, and closes connections that carry
    /// nothing, of devices of which `receives` says that they have no queue pair for it.
    pub(crate) fn repeat_offers(
        &mut self,
        now: Duration,
        engine: &Engine,
        receives: impl Fn(&Gid) -> bool,
    ) {
        if now < self.repeat_at {
            return;
        }
        self.repeat_at = now + OFFER_INTERVAL_MIN;
        let mut over = Vec::new();
        for (ends, link) in &mut self.links {
            let is_idle = link.messages.is_empty() && !receives(&ends.0);
            match &mut link.phase {
                Phase::Offered { since, .. } if now.saturating_sub(*since) >= OFFER_TIMEOUT => {
                    over.push(*ends);
                }
                _ if is_idle => over.push(*ends),
                Phase::Offered { backoff, .. } => {
                    let again = backoff.is_due(now).then(|| link.offer.clone());
                    self.offers.extend(again);
                }
                Phase::Joined { .. } => {}
            }
        }
        over.into_iter().for_each(|ends| self.fail(ends, engine));
    }

    /// The offers that are to be sent.
    pub(crate) fn take_offers(&mut self) -> Vec<Offer> {
        std::mem::take(&mut self.offers)
    }

    /// The queue pairs that may go on.
    pub(crate) fn take_released(&mut self) -> Vec<QueuePairName> {
        std::mem::take(&mut self.released)
    }
}

fn post(engine: &Engine, connection: ConnectionId, message: &Message) {
    match engine.post(message.post(connection)) {
        // A connection that has failed meanwhile says so by an event.
        Ok(()) | Err(EngineError::Post(PostError::Closed)) => {}
        Err(error) => tracing::debug!("a datagram was not posted: {error}"),
    }
}

fn post_buffer(engine: &Engine, connection: ConnectionId, key: Key, buffer: u64) {
    let bytes = MESSAGE_BYTES_MAX as u64;
    let receive = ReceiveBuffer {
        token: buffer,
        key,
        offset: buffer * bytes,
        bytes,
    };
    // A connection that has failed meanwhile says so by an event.
    let _ = engine.post_receive(connection, receive);
}
