//! All devices of a node that programs have open.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use weft_device::QUEUE_PAIR_BITS;
use weft_device::completion::Status;
use weft_device::control::{ErrorNumber, Outcome, Request};
use weft_device::objects::Usage;
use weft_device::space::DOORBELL_BYTES;
use weft_engine::{
    AddressSpace, ConnectionId, CopiedBytes, DomainId, DropReason, Egress, EgressReport, Engine,
    EngineConfig, EngineError, Event, Failure, MemfdError, Progress, Region, Secret, SharedFiles,
};

use crate::channel::event_socket;
use crate::context::{Change, Context, Device, OfDevice, set_attributes};
use crate::counters::Counters;
use crate::datagrams::{DATAGRAMS, Datagrams};
use crate::limits::{self, Totals};
use crate::offer::{OFFER_INTERVAL_MIN, OFFER_TIMEOUT, Offer, OfferBackoff, QueuePairName};
use crate::queue_pair::Joining;
use crate::random;
use crate::regions::remote_access;
use crate::under_way::CountOfDevice;

mod datagrams;
mod operations;
mod saved;

use datagrams::is_local;
use operations::OperationLimit;
pub(crate) use saved::SavedDevices;

/// Events looked at in one turn, so that doorbells never wait long.
const EVENTS_PER_TURN: usize = 256;
/// Turns of the engine that may go by before a queue pair ends: one that brings an event acknowledges nothing.
const ACKNOWLEDGING_TURNS_MAX: usize = 8;
/// How often offers of engines of another release are logged, where there are more.
const WARN_INTERVAL: Duration = Duration::from_secs(1);
/// An offer, its answer, and one to spare.
const LOCAL_OFFERS_MAX: usize = 3;
/// One program's use of a device.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct ContextId {
    gid: [u8; 16],
    index: u8,
}

impl ContextId {
    /// Whether it is one of this device.
    pub(crate) fn is_of(&self, gid: &[u8; 16]) -> bool {
        self.gid == *gid
    }

    /// The context of a queue pair.
    fn of(name: QueuePairName) -> Option<Self> {
        let index = u8::try_from(name.number >> QUEUE_PAIR_BITS).ok()?;
        Some(Self {
            gid: name.gid,
            index,
        })
    }
}

/// A context that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its name.
    pub context: ContextId,
    /// What both ends share: the doorbell page, then the rings. The program gets its file.
    pub shared: Arc<Region>,
    /// The eventfd that the program writes 1 to when a doorbell finds the engine asleep.
    pub wake: OwnedFd,
    /// The program's end of the event socket.
    pub events: OwnedFd,
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// As many devices of the node are open as may be.
    #[error(
        "{0} devices of this node are open, which is the most: end programs first, or start weft-engine with more --open-devices"
    )]
    TooManyDevices(u16),
    /// The device is open as often as it may be.
    #[error("the device is open {0} times, which is the most: close it elsewhere first")]
    TooManyOfDevice(u32),
    /// All devices of the node are open as often as they may be.
    #[error("devices of this node are open {0} times, which is the most: end programs first")]
    TooManyOfNode(u32),
    /// The memory could not be made.
    #[error("the device's memory could not be made: {0}")]
    Memory(#[from] MemfdError),
    /// The eventfd or the event socket could not be made.
    #[error("an eventfd or a socket could not be made: {0}: raise the limit of open files")]
    Descriptor(#[from] std::io::Error),
    /// The engine does not start, or does not wait for the program.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device's thread does not start.
    #[error("a thread could not be started: {0}: raise the limit of threads")]
    Thread(std::io::Error),
    /// The server ends.
    #[error("the engine ends")]
    Ended,
}

impl OpenError {
    /// As verbs says it.
    #[must_use]
    pub fn error_number(&self) -> ErrorNumber {
        ErrorNumber::OutOfMemory
    }
}

/// Most devices in [`Devices::refused_by`], which is emptied each second. Further ones cause no Event.
const REFUSED_BY_MAX: usize = 64;

/// The queue pair that an end of a connection belongs to, or belonged to.
#[derive(Debug, Clone, Copy)]
struct ConnectedPair {
    context: ContextId,
    number: u32,
    /// Where its receives come from, if not from a queue of its own, while its context is open.
    shared_receive_queue: Option<u32>,
    /// The engine says when it is closed.
    is_connected: bool,
}

/// Devices, and the engine that carries their work requests out. A [`Server`](crate::Server) has one of these for each device
/// that is open.
pub struct Devices {
    engine: Engine,
    totals: Totals,
    /// Contexts and queue pairs of the devices of this node that are not here.
    elsewhere: (u32, u32),
    sender: Sender<Event>,
    events: Receiver<Event>,
    contexts: BTreeMap<ContextId, Context>,
    /// Where the search for the index of the next context begins: a program's queue pairs have other numbers than those of
    /// the program before it, to which datagrams may still be under way. It begins anywhere, so that a new engine rarely
    /// repeats the last numbers of the one before it.
    next_index: u8,
    /// Queue pairs by the ends of their connections, until the engine says that these are closed.
    by_connection: HashMap<ConnectionId, ConnectedPair>,
    datagrams: Datagrams,
    /// By GID, of devices that are limited.
    operation_limits: BTreeMap<[u8; 16], OperationLimit>,
    /// Work requests of all queue pairs.
    under_way: CountOfDevice,
    /// Offers that are to be sent.
    offers: Vec<Offer>,
    next_domain: u32,
    /// Files of programs that are mapped here.
    files: SharedFiles,
    /// When it is looked which offers are to be sent again.
    repeat_at: Duration,
    /// What [`Self::limit_rate`] has said last.
    cap_bps: Option<u64>,
    /// Connections that have failed, and when their queue pairs are told.
    failures: Vec<(Duration, Event)>,
    /// Peers' devices whose memory queue pairs have asked for and may not reach.
    refused_by: BTreeSet<[u8; 16]>,
    /// Calls that named what is not their program's, and such work requests of contexts that are closed.
    refused_calls: u64,
    /// Work requests of contexts that are closed.
    operations: u64,
    /// How many bytes of the memory of contexts that are closed were copied.
    copied: CopiedBytes,
    /// When an offer of an engine of another release was logged last.
    warned_at: Option<Duration>,
}

impl Devices {
    /// Starts the engine, which this runs.
    ///
    /// # Errors
    /// Those of [`Engine::start`].
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        let config = EngineConfig {
            progress: Progress::Inline,
            ..config
        };
        Ok(Self::of(Engine::start(config)?))
    }

    fn of(engine: Engine) -> Self {
        let (sender, events) = unbounded();
        Self {
            engine,
            totals: Totals::DEFAULT,
            elsewhere: (0, 0),
            datagrams: Datagrams::new(sender.clone()),
            sender,
            events,
            contexts: BTreeMap::new(),
            next_index: random::draw::<1>()[0],
            by_connection: HashMap::new(),
            operation_limits: BTreeMap::new(),
            under_way: CountOfDevice::default(),
            offers: Vec::new(),
            next_domain: 0,
            files: SharedFiles::default(),
            repeat_at: Duration::ZERO,
            cap_bps: None,
            failures: Vec::new(),
            refused_by: BTreeSet::new(),
            refused_calls: 0,
            operations: 0,
            copied: CopiedBytes::default(),
            warned_at: None,
        }
    }

    /// With other totals than [`Totals::DEFAULT`].
    #[must_use]
    pub fn with_totals(self, totals: Totals) -> Self {
        Self { totals, ..self }
    }

    /// Opens a device for a program, whose memory is `program`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, device: &Device, program: AddressSpace) -> Result<Opened, OpenError> {
        let gid = device.gid;
        let most = self.totals.device.opens;
        if self.contexts_of(gid).count() >= most as usize {
            return Err(OpenError::TooManyOfDevice(most));
        }
        if self.contexts.len() + self.elsewhere.0 as usize >= self.totals.node.opens as usize {
            return Err(OpenError::TooManyOfNode(self.totals.node.opens));
        }
        let mut ids = (0..=u8::MAX).map(|count| ContextId {
            gid,
            index: self.next_index.wrapping_add(count),
        });
        let context = ids.find(|id| !self.contexts.contains_key(id));
        let context = context.ok_or(OpenError::TooManyOfDevice(most))?;
        let bytes = DOORBELL_BYTES + device.limits.ring_bytes;
        let shared = Arc::new(Region::memfd("weft-device", bytes)?);
        let first = u32::from(context.index) << QUEUE_PAIR_BITS;
        let numbers = first..first + (1 << QUEUE_PAIR_BITS);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(std::io::Error::from)?;
        let given = wake.try_clone()?;
        self.engine.add_waker(wake.as_fd())?;
        let (own_events, events) = event_socket().map_err(std::io::Error::from)?;
        let opened = Context::new(
            device,
            numbers,
            program,
            Arc::clone(&shared),
            wake,
            own_events,
            self.under_way.clone(),
        );
        // The doorbell page is its beginning.
        let mut opened = opened.ok_or(OpenError::TooManyOfDevice(most))?;
        self.limit_operations(gid, device.ops_per_s, &mut opened);
        self.next_index = context.index.wrapping_add(1);
        self.contexts.insert(context, opened);
        Ok(Opened {
            context,
            shared,
            wake: given,
            events,
        })
    }

    /// The program has closed the device, or has ended. Peers find that its queue pairs are gone.
    pub fn close(&mut self, id: ContextId) {
        self.acknowledge();
        if let Some(context) = self.contexts.remove(&id) {
            self.refused_calls += context.refused();
            self.operations += context.operations.count();
            self.copied = self.copied + context.copied();
            context.close(&self.engine);
        }
        // The next context may get this name, and has receives of its own.
        let of_it = self.by_connection.values_mut();
        let of_it = of_it.filter(|pair| pair.context == id);
        of_it.for_each(|pair| pair.shared_receive_queue = None);
    }

    fn contexts_of(&self, gid: [u8; 16]) -> impl Iterator<Item = &Context> {
        let id = |index| ContextId { gid, index };
        let contexts = self.contexts.range(id(0)..=id(u8::MAX));
        contexts.map(|(_, context)| context)
    }

    /// Whether a device, and the node, have room for what a request makes.
    fn check_totals(&self, gid: [u8; 16], request: &Request) -> Result<(), ErrorNumber> {
        if !limits::is_counted(request) {
            return Ok(());
        }
        let usage = |context: &Context| context.objects().usage();
        let device = self.contexts_of(gid).map(usage);
        let device = device.fold(Usage::default(), |all, one| all + one);
        let here = self.contexts.values().map(|it| usage(it).queue_pairs);
        let all = here.sum::<u32>() + self.elsewhere.1;
        self.totals.check(request, device, all)
    }

    /// How much there is in other [`Devices`] of the node: its totals are of all.
    pub(crate) fn set_elsewhere(&mut self, contexts: u32, queue_pairs: u32) {
        self.elsewhere = (contexts, queue_pairs);
    }

    /// Whether a program has one open.
    pub(crate) fn is_open(&self) -> bool {
        !self.contexts.is_empty()
    }

    /// How many contexts and queue pairs there are.
    pub(crate) fn count(&self) -> (u32, u32) {
        let queue_pairs = self.contexts.values().map(Context::queue_pair_count);
        (self.contexts.len() as u32, queue_pairs.sum())
    }

    /// How many memory regions there are, and how many of them are mapped here as well.
    pub fn region_count(&self) -> (u32, u32) {
        let counts = self.contexts.values().map(Context::region_count);
        counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// What its engine has counted, and what was refused to programs.
    pub(crate) fn counters(&self) -> Counters {
        let snapshot = self.engine.snapshot();
        let (drops, stats) = (&snapshot.drops, snapshot.stats());
        Counters {
            refused: drops.get(DropReason::Key) + drops.get(DropReason::Bounds),
            refused_offers: 0,
            refused_calls: self.refused_calls
                + self.contexts.values().map(Context::refused).sum::<u64>(),
            operations: self.operations
                + (self.contexts.values())
                    .map(|context| context.operations.count())
                    .sum::<u64>(),
            bytes_sent: stats.bytes_acked,
            bytes_received: stats.bytes_placed,
            copied: self
                .contexts
                .values()
                .fold(self.copied, |all, context| all + context.copied()),
        }
    }

    /// The GIDs of peers' devices whose memory queue pairs have asked for and may not reach, since this was asked last.
    pub(crate) fn take_refused_by(&mut self) -> BTreeSet<[u8; 16]> {
        std::mem::take(&mut self.refused_by)
    }

    /// What it has sent.
    pub(crate) fn take_egress_report(&self) -> Option<EgressReport> {
        self.engine.take_egress_report().ok()
    }

    /// What is sent from now on has at most this rate, bits per second, and the one that the engine was started with.
    pub(crate) fn limit_rate(&mut self, bps: u64) {
        let started = self.engine.config().egress;
        let cap_bps = Some(started.cap_bps.map_or(bps, |cap| cap.min(bps)));
        if std::mem::replace(&mut self.cap_bps, cap_bps) != cap_bps {
            let egress = Egress { cap_bps, ..started };
            // It is no less than CAP_BPS_MIN.
            let _ = self.engine.set_egress(egress);
        }
    }

    /// Sends the acknowledgements of what has come. A program may end a queue pair as soon as it has a message: the peer,
    /// whose send is then done, must not take it for one that was never answered.
    fn acknowledge(&mut self) {
        for _ in 0..ACKNOWLEDGING_TURNS_MAX {
            // An error shows in the next turn.
            if !self.engine.poll(Duration::ZERO).unwrap_or(false) {
                return;
            }
        }
    }

    /// Carries a program's request out. `file`: the descriptor that came with it.
    ///
    /// # Errors
    /// It is refused, and nothing has changed.
    pub fn handle(
        &mut self,
        id: ContextId,
        request: &Request,
        file: Option<OwnedFd>,
        now: Duration,
    ) -> Outcome {
        let outcome = self.carry_out(id, request, file, now);
        if outcome.is_err()
            && let Some(context) = self.contexts.get(&id)
        {
            // What is refused has changed nothing, so the objects are those that it was refused for.
            let is_foreign = context.objects().names_foreign(request);
            self.refused_calls += u64::from(is_foreign);
        }
        outcome
    }

    fn carry_out(
        &mut self,
        id: ContextId,
        request: &Request,
        file: Option<OwnedFd>,
        now: Duration,
    ) -> Outcome {
        if let Request::DestroyQueuePair(_) | Request::ModifyQueuePair { .. } = request {
            self.acknowledge();
        }
        if let Request::ResizeCompletionQueue { .. } | Request::ReregisterRegion { .. } = request
            && let Some(context) = self.contexts.get_mut(&id)
        {
            // What was posted before is taken before: it may complete, and it names regions as they are now.
            context.take_rung(&self.engine);
            self.take_datagrams(now);
        }
        self.check_totals(id.gid, request)?;
        let Some(context) = self.contexts.get_mut(&id) else {
            return Err(ErrorNumber::InvalidArgument);
        };
        let of_device = OfDevice {
            engine: &self.engine,
            files: &mut self.files,
            domain: DomainId(self.next_domain),
        };
        let answer = context.handle(request, file, now, of_device)?;
        match *request {
            Request::CreateDomain => self.next_domain = self.next_domain.wrapping_add(1),
            Request::ModifyQueuePair { queue_pair, .. } => {
                if let Change::Join = context.on_modified(queue_pair, &self.engine) {
                    self.offer(id, queue_pair, now);
                }
                self.take_datagrams(now);
            }
            _ => {}
        }
        Ok(answer)
    }

    /// The descriptor that goes with the answer to the last request of a context: the program's end of a completion
    /// channel.
    pub fn take_passed(&mut self, id: ContextId) -> Option<OwnedFd> {
        self.contexts.get_mut(&id)?.take_passed()
    }

    /// Allocates a queue pair's end, and tells its peer's server.
    fn offer(&mut self, id: ContextId, number: u32, now: Duration) {
        let Some(context) = self.contexts.get_mut(&id) else {
            return;
        };
        let Some(found) = context.objects().queue_pair(number).copied() else {
            return;
        };
        let Ok(domain) = context.domain(found.made.domain) else {
            return;
        };
        let secret = Secret(random::draw());
        let offer = Offer {
            from: QueuePairName {
                gid: id.gid,
                number,
            },
            to: QueuePairName {
                gid: found.attributes.address.gid,
                number: found.attributes.peer_queue_pair,
            },
            end: self.engine.allocate_in_order(domain.id, secret.clone()),
            secret,
            key_prefix: domain.prefix,
            answers: None,
        };
        let pair = ConnectedPair {
            context: id,
            number,
            shared_receive_queue: found.made.shared_receive_queue,
            is_connected: false,
        };
        self.by_connection.insert(offer.end.id, pair);
        if let Some(pair) = context.queue_pair_mut(number) {
            pair.joining = Joining::Offered {
                offer: Box::new(offer.clone()),
                since: now,
                backoff: OfferBackoff::new(now),
            };
        }
        self.offers.push(offer);
    }

    /// The offers that are to be sent, each to the server of the device that [`Offer::to`] names. One that is lost is sent
    /// again.
    pub fn take_offers(&mut self) -> Vec<Offer> {
        std::mem::take(&mut self.offers)
    }

    /// An offer has come from the node `owner`, as authenticated, which has the device that [`Offer::from`] names. Connects
    /// the queue pair that it is for, if that one has offered too, and answers at once. Nothing is kept of an offer that
    /// comes earlier: the queue pair's own offer, once it is ready, is answered in the same way. One of an engine of another
    /// release, which speaks another version of the wire format, is dropped and logged.
    pub fn receive_offer(&mut self, owner: Arc<str>, offer: &Offer, now: Duration) {
        if !self.speaks_with(&owner, offer, now) {
            return;
        }
        if offer.to.number == DATAGRAMS {
            self.receive_datagram_offer(owner, offer, now);
            return;
        }
        let Some(id) = ContextId::of(offer.to) else {
            return;
        };
        let Some(context) = self.contexts.get_mut(&id) else {
            // The device is not open, or is another node's.
            return;
        };
        let number = offer.to.number;
        let Some(found) = context.objects().queue_pair(number).copied() else {
            return;
        };
        let Some(pair) = context.queue_pair_mut(number) else {
            return;
        };
        match &pair.joining {
            Joining::Offered { offer: own, .. } if own.to == offer.from => {
                if offer.answers.is_some_and(|end| end != own.end.id) {
                    // It answers an offer that is no more.
                    return;
                }
                let access = remote_access(found.attributes.access);
                let remote = offer.remote_end(owner, access);
                let connected = self.engine.connect(own.end.id, remote, self.sender.clone());
                if let Err(error) = connected {
                    tracing::debug!(queue_pair = number, "not connected: {error}");
                    return;
                }
                if let Some(pair) = self.by_connection.get_mut(&own.end.id) {
                    pair.is_connected = true;
                }
                set_attributes(own.end.id, &found, &self.engine);
                context.with(number, &self.engine, |pair, state, around| {
                    pair.join(offer, around);
                    pair.take(state, around)
                });
            }
            Joining::Joined { offer: own, .. }
                if own.to == offer.from && own.answers == Some(offer.end.id) => {}
            _ => return,
        }
        if offer.answers.is_none()
            && let Some(pair) = context.queue_pair_mut(number)
            && let Joining::Joined { offer: own, .. } = &pair.joining
        {
            // The peer may not have this end's offer.
            self.offers.push(own.as_ref().clone());
        }
    }

    /// Whether the engine that has sent an offer speaks this one's version of the wire format.
    fn speaks_with(&mut self, owner: &str, offer: &Offer, now: Duration) -> bool {
        let ours = self.engine.settings().wire_version;
        let theirs = offer.end.settings.wire_version;
        if ours == theirs {
            return true;
        }
        let is_due = |at: Duration| now.saturating_sub(at) >= WARN_INTERVAL;
        if self.warned_at.is_none_or(is_due) {
            self.warned_at = Some(now);
            let [device, peer] = [offer.to.gid, offer.from.gid].map(Ipv6Addr::from);
            tracing::warn!(
                %device,
                "queue pairs are not connected to {peer} of {owner}: its engine speaks version {theirs} of the wire format, and this one version {ours}: run weft-engine of the same release at both nodes"
            );
        }
        false
    }

    /// One turn: moves packets, takes work requests out of rings, completes them. Waits for at most `wait` when there is
    /// nothing to do, until a packet comes or a program rings a doorbell. Answers whether anything was done.
    ///
    /// # Errors
    /// Those of [`Engine::poll`].
    pub fn poll(&mut self, now: Duration, wait: Duration) -> Result<bool, EngineError> {
        let mut is_busy = false;
        for context in self.contexts.values_mut() {
            is_busy |= context.take_rung(&self.engine);
        }
        is_busy |= self.take_datagrams(now);
        is_busy |= self.take_operations(now);
        let wait = self.wait_for_operations(wait);
        let until_failures = self.failures.iter().map(|(at, _)| at.saturating_sub(now));
        let wait = until_failures.fold(wait, Duration::min);
        let may_wait = !is_busy && self.events.is_empty() && self.offers.is_empty();
        let wait = match may_wait && !wait.is_zero() && self.prepare_to_sleep() {
            true => wait,
            false => Duration::ZERO,
        };
        is_busy |= self.engine.poll(wait)?;
        if !wait.is_zero() {
            self.contexts.values().for_each(Context::wake);
        }
        for _ in 0..EVENTS_PER_TURN {
            let Ok(event) = self.events.try_recv() else {
                break;
            };
            is_busy = true;
            if !self.on_datagram_event(&event, now) {
                self.on_event(event, now);
            }
        }
        self.take_failures(now);
        for context in self.contexts.values_mut() {
            context.tell_again();
        }
        self.repeat_offers(now);
        self.offer_datagrams(now);
        self.deliver_local_offers(now);
        Ok(is_busy)
    }

    /// Whether nothing is to be done in any context; from here on a doorbell ends the engine's wait.
    fn prepare_to_sleep(&self) -> bool {
        let awake = self.contexts.values().find(|it| !it.prepare_to_sleep());
        if awake.is_some() {
            self.contexts.values().for_each(Context::wake);
        }
        awake.is_none()
    }

    /// What ends the wait of [`Devices::poll`], for another thread of this process.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn waker(&self) -> Result<OwnedFd, OpenError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(std::io::Error::from)?;
        self.engine.add_waker(wake.as_fd())?;
        Ok(wake)
    }

    /// Offers to devices of this server need no other one, nor do the answers to them; an answer has no answer.
    fn deliver_local_offers(&mut self, now: Duration) {
        for _ in 0..LOCAL_OFFERS_MAX {
            let is_local = |offer: &mut Offer| is_local(&self.contexts, offer.to);
            let local: Vec<Offer> = self.offers.extract_if(.., is_local).collect();
            if local.is_empty() {
                return;
            }
            for offer in local {
                self.receive_offer(Arc::from("this node"), &offer, now);
            }
        }
    }

    fn on_event(&mut self, event: Event, now: Duration) {
        match event {
            // Why is said by the event that follows.
            Event::RequestFailed { .. } => self.failures.push((Duration::MAX, event)),
            Event::Failed {
                connection,
                failure,
            } => {
                let at = match failure {
                    Failure::Closed | Failure::PeerRestarted => now + self.retry_time(connection),
                    _ => now,
                };
                for (request_at, request) in &mut self.failures {
                    if request.connection() == connection {
                        *request_at = at;
                    }
                }
                self.failures.push((at, event));
            }
            _ => self.apply(&event),
        }
    }

    /// Ends queue pairs whose connections have failed, where it is time.
    fn take_failures(&mut self, now: Duration) {
        let due = self.failures.extract_if(.., |(at, _)| *at <= now);
        let due: Vec<_> = due.collect();
        for (_, event) in due {
            self.apply(&event);
        }
    }

    /// How long a queue pair whose peer is gone would send again, in vain (InfiniBand 9.7.5.1.3). A program that has all that
    /// it waits for ends its queue pair meanwhile, whatever it has still under way.
    fn retry_time(&self, connection: ConnectionId) -> Duration {
        let longest = Duration::from_nanos(self.engine.config().stall_timeout.get());
        let found = self.by_connection.get(&connection).and_then(|pair| {
            let context = self.contexts.get(&pair.context)?;
            context.objects().queue_pair(pair.number)
        });
        let Some(attributes) = found.map(|it| it.attributes) else {
            return Duration::ZERO;
        };
        // 0 is without end.
        if attributes.timeout == 0 {
            return longest;
        }
        let once = Duration::from_nanos(4096) * (1 << attributes.timeout.min(30));
        longest.min(once * (u32::from(attributes.retries) + 1))
    }

    fn apply(&mut self, event: &Event) {
        let connection = event.connection();
        let Some(&pair) = self.by_connection.get(&connection) else {
            return;
        };
        let (id, number) = (pair.context, pair.number);
        if let Event::Closed { .. } = event {
            self.by_connection.remove(&connection);
            return;
        }
        let Some(context) = self.contexts.get_mut(&id) else {
            return;
        };
        // A queue pair that was reset since has another connection, or none.
        if !context.is_of(number, connection) {
            if let Event::Received { context: token, .. } = event
                && let Some(queue) = pair.shared_receive_queue
            {
                context.give_back(queue, *token);
            }
            return;
        }
        let mut is_refused = false;
        context.with(number, &self.engine, |pair, state, around| {
            match *event {
                Event::Completed { context, .. } => pair.finish(context, Status::Success),
                Event::RequestFailed { context, .. } => {
                    pair.finish(context, Status::General);
                    return false;
                }
                Event::Failed { failure, .. } => {
                    is_refused = pair.end(failure, around);
                    return true;
                }
                Event::Received {
                    context,
                    bytes,
                    immediate,
                    is_write,
                    ..
                } => pair.received(context, (bytes, immediate, is_write), around),
                _ => {}
            }
            pair.settle(around) || pair.take(state, around)
        });
        if let Event::Received { .. } = event {
            context.message_received(number);
        }
        if is_refused
            && self.refused_by.len() < REFUSED_BY_MAX
            && let Some(found) = context.objects().queue_pair(number)
        {
            self.refused_by.insert(found.attributes.address.gid);
        }
    }

    /// Sends offers again that were not answered, and gives up those that nobody answers.
    fn repeat_offers(&mut self, now: Duration) {
        if now < self.repeat_at {
            return;
        }
        self.repeat_at = now + OFFER_INTERVAL_MIN;
        // Of an end that is closed before it was connected no event says so.
        self.by_connection.retain(|connection, pair| {
            let context = self.contexts.get(&pair.context);
            pair.is_connected
                || context.is_some_and(|context| context.is_of(pair.number, *connection))
        });
        for context in self.contexts.values_mut() {
            let mut overdue = Vec::new();
            for pair in context.queue_pairs_mut() {
                let Joining::Offered {
                    offer,
                    since,
                    backoff,
                } = &mut pair.joining
                else {
                    continue;
                };
                if backoff.is_due(now) {
                    self.offers.push(offer.as_ref().clone());
                }
                if now.saturating_sub(*since) >= OFFER_TIMEOUT {
                    overdue.push(pair.number);
                }
            }
            for number in overdue {
                context.with(number, &self.engine, |pair, state, around| {
                    if state == weft_device::state::State::ReadyToSend {
                        pair.give_up();
                    }
                    pair.settle(around)
                });
            }
        }
    }
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices")
            .field("contexts", &self.contexts.len())
            .finish_non_exhaustive()
    }
}
