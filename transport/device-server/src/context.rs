//! One program's use of a device: its objects, its memory, its rings.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_device::control::{
    self, Answer, ErrorNumber, Limits, Outcome, QueuePair as Made, Request,
};
use weft_device::doorbell::{DOORBELL_WORDS, DOORBELLS, DeviceState, Doorbells};
use weft_device::objects::{Objects, QueuePairState};
use weft_device::ring::{Consumer, Producer, Ring};
use weft_device::space::RingPlace;
use weft_device::state::{QueuePairType, State};
use weft_device_socket::packet;
use weft_engine::{
    AddressSpace, ConnectionId, CopiedBytes, DomainId, Engine, FileId, Region, SharedFiles, Words,
};

use crate::channel::{Channel, CompletionQueue};
use crate::datagram_queue_pair::DatagramQueuePair;
use crate::operation_rate::Operations;
use crate::queue_pair::{Joining, QueuePair, Surroundings};
use crate::random;
use crate::receive_queue::{ReceiveQueue, SharedReceiveQueue};
use crate::regions::{Regions, remote_access};
use crate::under_way::CountOfDevice;

mod datagrams;
mod saved;

use datagrams::DatagramQueuePairs;
pub(crate) use saved::SavedContext;

/// A device, as it is given to a program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Device {
    /// Its GID.
    pub gid: [u8; 16],
    /// Its queue pairs are connected to those of devices of the same tenant only, and so are its datagrams. A pod's namespace;
    /// empty where all are one tenant's.
    pub tenant: Arc<str>,
    /// The pod that it was made for, as NAMESPACE/NAME, or empty. [`crate::Server::list`] shows it.
    pub owner: Arc<str>,
    /// How much of everything a program may have of it.
    pub limits: Limits,
    /// Most that it sends, bits per second of IP packets, over all its connections, which share it evenly; datagrams to a
    /// device go over one connection. No limit when absent; at least [`CAP_BPS_MIN`].
    pub cap_bps: Option<u64>,
    /// Most work requests that begin per second, of all send queues of all programs that have it open, which take turns:
    /// the programs, and the queue pairs of each. No limit when absent.
    pub ops_per_s: Option<NonZeroU32>,
    /// Its part of what the node's link carries beside other devices that want more than theirs: a weight, 1 to [`SHARE_MAX`].
    pub share: u32,
}

impl Device {
    /// One without limits of what it sends, of no tenant.
    #[must_use]
    pub fn new(gid: [u8; 16], limits: Limits) -> Self {
        Self {
            gid,
            tenant: Arc::from(""),
            owner: Arc::from(""),
            limits,
            cap_bps: None,
            ops_per_s: None,
            share: SHARE_DEFAULT,
        }
    }
}

/// The share of a device of which nothing else is said: as `cpu.weight` of a control group, so that there is room below.
pub const SHARE_DEFAULT: u32 = 100;
/// The largest share, likewise.
pub const SHARE_MAX: u32 = 10_000;

/// The least limit to what a device sends: with less its transfers would stall.
pub const CAP_BPS_MIN: u64 = 1_000_000;

/// Retries of a peer that has no receive posted which never end.
const RETRIES_WITHOUT_END: u8 = 7;

/// Tells the engine what a queue pair's attributes say of its connection.
pub(crate) fn set_attributes(connection: ConnectionId, found: &QueuePairState, engine: &Engine) {
    let attributes = &found.attributes;
    // A connection that has failed meanwhile says so by an event.
    let _ = engine.set_access(connection, remote_access(attributes.access));
    let waits = found.made.kind == QueuePairType::UnreliableConnected
        || attributes.receiver_not_ready_retries == RETRIES_WITHOUT_END;
    let _ = engine.set_waits_for_receiver(connection, waits);
}

/// A protection domain, as the engine knows it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Domain {
    pub(crate) id: DomainId,
    /// The upper half of its keys.
    pub(crate) prefix: u32,
}

pub(crate) struct Context {
    objects: Objects,
    program: AddressSpace,
    shared: Arc<Region>,
    doorbells: Doorbells<Words>,
    /// What the program wakes the engine by.
    wake: OwnedFd,
    /// The engine's end of the event socket.
    events: OwnedFd,
    domains: BTreeMap<u32, Domain>,
    completion_queues: BTreeMap<u32, CompletionQueue>,
    channels: BTreeMap<u32, Channel>,
    /// The program's end of a channel that was just made.
    passed: Option<OwnedFd>,
    /// Those that are connected.
    queue_pairs: BTreeMap<u32, QueuePair>,
    shared_receive_queues: BTreeMap<u32, SharedReceiveQueue>,
    datagrams: DatagramQueuePairs,
    by_doorbell: HashMap<u32, Vec<Queue>>,
    pub(crate) operations: Operations,
    under_way: CountOfDevice,
    regions: Regions,
    has_failed: bool,
}

/// What the contexts of a device share.
pub(crate) struct OfDevice<'d> {
    pub(crate) engine: &'d Engine,
    /// Files of programs that are mapped here.
    pub(crate) files: &'d mut SharedFiles,
    /// The engine's next protection domain, taken where one is made.
    pub(crate) domain: DomainId,
}

/// What has a doorbell; several share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Pair(u32),
    SharedReceives(u32),
}

impl Queue {
    fn doorbell(self) -> u32 {
        let (Queue::Pair(number) | Queue::SharedReceives(number)) = self;
        number % DOORBELLS
    }
}

/// What a change of a queue pair's state asks of the server.
pub(crate) enum Change {
    /// Nothing more.
    None,
    /// It is to be joined to its peer.
    Join,
}

impl Context {
    pub(crate) fn new(
        device: &Device,
        numbers: std::ops::Range<u32>,
        program: AddressSpace,
        shared: Arc<Region>,
        wake: OwnedFd,
        events: OwnedFd,
        under_way: CountOfDevice,
    ) -> Option<Self> {
        let page = Words::new(&shared, 0, DOORBELL_WORDS).ok()?;
        Some(Self {
            objects: Objects::new(device.limits, numbers),
            program,
            doorbells: Doorbells::new(page).ok()?,
            shared,
            wake,
            events,
            domains: BTreeMap::new(),
            completion_queues: BTreeMap::new(),
            channels: BTreeMap::new(),
            passed: None,
            queue_pairs: BTreeMap::new(),
            shared_receive_queues: BTreeMap::new(),
            datagrams: DatagramQueuePairs::default(),
            by_doorbell: HashMap::new(),
            operations: Operations::default(),
            under_way,
            regions: Regions::default(),
            has_failed: false,
        })
    }

    /// Carries a request out. `file` came with it.
    pub(crate) fn handle(
        &mut self,
        request: &Request,
        file: Option<OwnedFd>,
        now: Duration,
        of_device: OfDevice<'_>,
    ) -> Outcome {
        let file = file.map(|file| self.check_file(file)).transpose()?;
        if let Request::CreateQueuePair(made) = request
            && made.kind == QueuePairType::UnreliableDatagram
            && made.shared_receive_queue.is_some()
        {
            return Err(ErrorNumber::NotSupported);
        }
        if let Request::ResizeCompletionQueue { queue, entries } = request
            && let Some(found) = self.completion_queues.get(queue)
            && !found.fits(*entries)
        {
            return Err(ErrorNumber::InvalidArgument);
        }
        let answer = self.objects.handle(request, now, &mut random::word)?;
        let carried_out = self.carry_out(request, &answer, file, of_device);
        if let Err(error) = carried_out {
            self.undo(request, &answer, now);
            return Err(error);
        }
        Ok(answer)
    }

    fn carry_out(
        &mut self,
        request: &Request,
        answer: &Answer,
        file: Option<OwnedFd>,
        of_device: OfDevice<'_>,
    ) -> Result<(), ErrorNumber> {
        let OfDevice {
            engine,
            files,
            domain,
        } = of_device;
        match (request, answer) {
            (Request::CreateDomain, Answer::Created(handle)) => {
                let prefix = std::iter::repeat_with(random::word).find(|prefix| *prefix != 0);
                let prefix = prefix.unwrap_or(1);
                let domain = Domain { id: domain, prefix };
                self.domains.insert(*handle, domain);
            }
            (Request::DestroyDomain(handle), _) => {
                self.domains.remove(handle);
            }
            (Request::RegisterRegion(asked), Answer::Created(key)) => {
                // As the table keeps it: a zero-based region begins at 0.
                let asked = self.objects.region(*key).copied().unwrap_or(*asked);
                let memory = Regions::memory(&asked, file, &self.program, files)?;
                self.register(engine, *key, asked, memory)?;
            }
            (Request::ReregisterRegion { key, .. }, _) => {
                if let Some(asked) = self.objects.region(*key).copied() {
                    let memory = Regions::memory(&asked, file, &self.program, files)?;
                    self.regions.remove(engine, *key);
                    self.register(engine, *key, asked, memory)?;
                }
            }
            (Request::DeregisterRegion(key), _) => self.regions.remove(engine, *key),
            (Request::CreateChannel, Answer::Created(handle)) => {
                let (channel, program) = Channel::new().map_err(|_| ErrorNumber::OutOfMemory)?;
                self.channels.insert(*handle, channel);
                self.passed = Some(program);
            }
            (Request::DestroyChannel(handle), _) => {
                self.channels.remove(handle);
            }
            (
                Request::CreateCompletionQueue { channel, .. },
                Answer::CreatedQueue { queue, ring, .. },
            ) => {
                let ring = Producer::new(self.ring(*ring)?, 0);
                let made = CompletionQueue::new(ring, *channel);
                self.completion_queues.insert(*queue, made);
            }
            (Request::ResizeCompletionQueue { queue, .. }, Answer::CreatedQueue { ring, .. }) => {
                let ring = self.ring(*ring);
                let found = self.completion_queues.get_mut(queue);
                let moved = found
                    .zip(ring.ok())
                    .map(|(found, ring)| found.move_to(ring));
                if moved != Some(true) {
                    self.fail(*queue, engine);
                }
            }
            (Request::DestroyCompletionQueue(queue), _) => {
                self.completion_queues.remove(queue);
            }
            (
                Request::CreateSharedReceiveQueue { domain, .. },
                Answer::CreatedQueue {
                    queue,
                    entries,
                    ring,
                },
            ) => {
                let ring = Consumer::new(self.ring(*ring)?, 0);
                let made = ReceiveQueue::new(ring, *domain, *entries);
                let made = SharedReceiveQueue::new(made);
                self.shared_receive_queues.insert(*queue, made);
                self.add_doorbell(Queue::SharedReceives(*queue));
            }
            (Request::ModifySharedReceiveQueue { queue, .. }, _) => {
                self.take_shared(*queue, engine);
            }
            (Request::DestroySharedReceiveQueue(queue), _) => {
                if let Some(mut shared) = self.shared_receive_queues.remove(queue) {
                    shared.queue.flush(&mut self.regions, engine);
                }
                self.remove_doorbell(Queue::SharedReceives(*queue));
            }
            (
                Request::CreateQueuePair(made),
                Answer::CreatedQueuePair {
                    queue_pair,
                    sizes,
                    send_ring,
                    receive_ring,
                },
            ) => {
                let sends = Consumer::new(self.ring(*send_ring)?, 0);
                let receives = receive_ring.map(|place| self.ring(place));
                let receives = receives.transpose()?.map(|ring| Consumer::new(ring, 0));
                let made = Made {
                    sizes: *sizes,
                    ..*made
                };
                if made.kind == QueuePairType::UnreliableDatagram {
                    let pair = DatagramQueuePair::new(*queue_pair, made, sends, receives);
                    self.datagrams.add(pair);
                } else {
                    let receives =
                        receives.map(|ring| ReceiveQueue::new(ring, made.domain, sizes.receives));
                    let under_way = self.under_way.clone();
                    let pair = QueuePair::new(*queue_pair, made, sends, receives, under_way);
                    self.queue_pairs.insert(*queue_pair, pair);
                }
                self.add_doorbell(Queue::Pair(*queue_pair));
            }
            (Request::DestroyQueuePair(number), _) => {
                self.datagrams.remove(*number);
                if let Some(mut pair) = self.queue_pairs.remove(number) {
                    pair.reset(&mut self.regions, engine);
                }
                self.remove_doorbell(Queue::Pair(*number));
            }
            _ => {}
        }
        Ok(())
    }

    fn add_doorbell(&mut self, queue: Queue) {
        let sharing = self.by_doorbell.entry(queue.doorbell());
        sharing.or_default().push(queue);
    }

    fn remove_doorbell(&mut self, queue: Queue) {
        if let Some(sharing) = self.by_doorbell.get_mut(&queue.doorbell()) {
            sharing.retain(|other| *other != queue);
        }
    }

    /// Takes back what the table has made.
    fn undo(&mut self, request: &Request, answer: &Answer, now: Duration) {
        let request = match (request, *answer) {
            (Request::CreateChannel, Answer::Created(handle)) => Request::DestroyChannel(handle),
            (Request::RegisterRegion(_), Answer::Created(key)) => Request::DeregisterRegion(key),
            (Request::CreateSharedReceiveQueue { .. }, Answer::CreatedQueue { queue, .. }) => {
                Request::DestroySharedReceiveQueue(queue)
            }
            (_, Answer::CreatedQueue { queue, .. }) => Request::DestroyCompletionQueue(queue),
            (_, Answer::CreatedQueuePair { queue_pair, .. }) => {
                Request::DestroyQueuePair(queue_pair)
            }
            _ => return,
        };
        let _ = self.objects.handle(&request, now, &mut random::word);
    }

    fn register(
        &mut self,
        engine: &Engine,
        key: u32,
        asked: control::Region,
        memory: Arc<Region>,
    ) -> Result<(), ErrorNumber> {
        let Domain { id, prefix } = self.domain(asked.domain)?;
        self.regions
            .add(engine, (id, prefix), key, asked, memory, None);
        Ok(())
    }

    /// A file that the program has mapped. The doorbell page and the rings are no memory of the program's: they lie in a
    /// space of their own ("Alibaba Stellar", section 5, Figure 5).
    fn check_file(&self, file: OwnedFd) -> Result<OwnedFd, ErrorNumber> {
        let id = |file| FileId::of(file).map_err(|_| ErrorNumber::InvalidArgument);
        let own = self.shared.file().map(id).transpose()?;
        match own == Some(id(file.as_fd())?) {
            true => Err(ErrorNumber::InvalidArgument),
            false => Ok(file),
        }
    }

    /// A new ring: the header of one that lay there before is cleared.
    fn ring(&self, place: RingPlace) -> Result<Ring<Words>, ErrorNumber> {
        use std::sync::atomic::Ordering;

        let words = Words::new(&self.shared, place.offset, place.words());
        let words = words.map_err(|_| ErrorNumber::OutOfMemory)?;
        for word in &words[..weft_device::ring::RING_HEADER_WORDS] {
            word.store(0, Ordering::Relaxed);
        }
        Ring::new(words).map_err(|_| ErrorNumber::OutOfMemory)
    }

    pub(crate) fn domain(&self, handle: u32) -> Result<Domain, ErrorNumber> {
        let domain = self.domains.get(&handle).copied();
        domain.ok_or(ErrorNumber::InvalidArgument)
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    pub(crate) fn queue_pair_mut(&mut self, number: u32) -> Option<&mut QueuePair> {
        self.queue_pairs.get_mut(&number)
    }

    pub(crate) fn queue_pairs_mut(&mut self) -> impl Iterator<Item = &mut QueuePair> {
        self.queue_pairs.values_mut()
    }

    /// How many memory regions there are, and how many of them are mapped here as well.
    pub(crate) fn region_count(&self) -> (u32, u32) {
        self.regions.count()
    }

    /// How many work requests were for memory, or for a peer, that is not their queue pair's to use.
    pub(crate) fn refused(&self) -> u64 {
        self.regions.refused()
    }

    /// How many bytes of its program's memory were copied each way.
    pub(crate) fn copied(&self) -> CopiedBytes {
        self.program.copied()
    }

    pub(crate) fn queue_pair_count(&self) -> u32 {
        (self.queue_pairs.len() + self.datagrams.len()) as u32
    }

    /// The program has changed a queue pair: what follows from its new state.
    pub(crate) fn on_modified(&mut self, number: u32, engine: &Engine) -> Change {
        let Some(found) = self.objects.queue_pair(number).copied() else {
            return Change::None;
        };
        if self.datagrams.modified(number, found.state) {
            return Change::None;
        }
        let Some(pair) = self.queue_pairs.get_mut(&number) else {
            return Change::None;
        };
        pair.requests_max = found.attributes.requests_from_here.into();
        if let Joining::Joined { offer, .. } = &pair.joining {
            set_attributes(offer.end.id, &found, engine);
        }
        match found.state {
            State::Reset => pair.reset(&mut self.regions, engine),
            State::Error => {
                pair.disconnect(engine);
                self.take(number, engine);
            }
            State::ReadyToReceive if matches!(pair.joining, Joining::No) => return Change::Join,
            _ => self.take(number, engine),
        }
        Change::None
    }

    /// Looks at the rings of all queue pairs whose doorbells were rung. Answers whether there was one.
    pub(crate) fn take_rung(&mut self, engine: &Engine) -> bool {
        if self.has_failed {
            return false;
        }
        let rung: Vec<u32> = self.doorbells.take().collect();
        for doorbell in &rung {
            let queues = self.by_doorbell.get(doorbell).cloned().unwrap_or_default();
            for queue in queues {
                match queue {
                    Queue::Pair(number) => self.take(number, engine),
                    Queue::SharedReceives(queue) => self.take_shared(queue, engine),
                }
            }
        }
        !rung.is_empty()
    }

    /// Looks at the ring of a shared receive queue.
    fn take_shared(&mut self, queue: u32, engine: &Engine) {
        if let Some(shared) = self.shared_receive_queues.get_mut(&queue) {
            shared.take(&mut self.regions, engine);
        }
        self.look_at_shared(queue);
    }

    /// What the program is to be told of a shared receive queue.
    fn look_at_shared(&mut self, queue: u32) {
        if let Some(shared) = self.shared_receive_queues.get_mut(&queue) {
            if shared.take_error() {
                self.objects.fail_shared_receive_queue(queue);
            }
            self.objects.set_receives_left(queue, shared.queue.len());
            self.send_events();
        }
    }

    /// A message of the peer has taken a receive of a queue pair.
    pub(crate) fn message_received(&mut self, number: u32) {
        self.objects.message_received(number);
        let pair = self.queue_pairs.get(&number);
        match pair.and_then(|pair| pair.made.shared_receive_queue) {
            Some(shared) => self.look_at_shared(shared),
            None => self.send_events(),
        }
    }

    /// A message has taken a shared receive for a queue pair that is no more, and is lost; the receive is not.
    pub(crate) fn give_back(&mut self, queue: u32, token: u64) {
        if let Some(shared) = self.shared_receive_queues.get_mut(&queue) {
            shared.give_back(token);
        }
    }

    /// Looks at the rings of a queue pair, and reports what is finished.
    pub(crate) fn take(&mut self, number: u32, engine: &Engine) {
        if self.datagrams.set_due(number) {
            return;
        }
        self.with(number, engine, |pair, state, around| {
            pair.take(state, around)
        });
    }

    /// Does something with a queue pair, which may fail by it.
    pub(crate) fn with(
        &mut self,
        number: u32,
        engine: &Engine,
        act: impl FnOnce(&mut QueuePair, State, &mut Surroundings<'_>) -> bool,
    ) {
        let Some(found) = self.objects.queue_pair(number) else {
            return;
        };
        let Some(pair) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        let mut around = Surroundings {
            engine,
            regions: &mut self.regions,
            shared_receive_queues: &mut self.shared_receive_queues,
            completion_queues: &mut self.completion_queues,
            operations: &mut self.operations,
            overflowed: None,
            is_unreported: false,
        };
        if act(pair, found.state, &mut around) {
            self.objects.fail_queue_pair(number, !around.is_unreported);
            pair.disconnect(engine);
            pair.flush(&mut around);
        } else if pair.has_sent_all() {
            self.objects.sends_complete(number);
        }
        if let Some(queue) = around.overflowed {
            self.fail(queue, engine);
        }
        self.tell_program();
    }

    /// Tells of events, and tells the channels of completion queues that were armed and have completions now.
    fn tell_program(&mut self) {
        self.send_events();
        for (handle, queue) in &mut self.completion_queues {
            if let Some(channel) = queue.channel
                && queue.take_due()
                && let Some(channel) = self.channels.get_mut(&channel)
            {
                channel.tell(*handle);
            }
        }
    }

    /// Sends events. The program may have to take earlier ones first; one that has closed its end wants to hear nothing.
    fn send_events(&mut self) {
        let socket = self.events.as_fd();
        self.objects.send_events(|event| {
            let sent = packet::send(socket, &event.to_bytes(), &[]);
            !sent.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
    }

    /// Tells channels again, and of events, where the program had not taken earlier packets. Answers whether something
    /// for a channel is left.
    pub(crate) fn tell_again(&mut self) -> bool {
        self.send_events();
        let left = self.channels.values_mut().map(Channel::send);
        left.fold(false, |any, left| any | left)
    }

    /// The descriptor that goes with the last answer.
    pub(crate) fn take_passed(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }

    /// The context is of no use any more: a completion could not be delivered into this queue.
    fn fail(&mut self, queue: u32, engine: &Engine) {
        if !std::mem::replace(&mut self.has_failed, true) {
            self.objects.fail_completion_queue(queue);
            self.send_events();
        }
        self.doorbells.set_state(DeviceState::Failed);
        for pair in self.queue_pairs.values_mut() {
            pair.disconnect(engine);
        }
    }

    /// Whether the engine may sleep: no doorbell was rung, and the next one that is wakes it.
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        self.has_failed || self.doorbells.prepare_to_sleep()
    }

    /// What the program wakes the engine by.
    pub(crate) fn waker(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn wake(&self) {
        self.doorbells.wake();
    }

    /// The program has closed it, or has ended.
    pub(crate) fn close(mut self, engine: &Engine) {
        // It was added when the context was opened.
        let _ = engine.remove_waker(self.wake.as_fd());
        for pair in self.queue_pairs.values_mut() {
            pair.disconnect(engine);
        }
        self.regions.remove_all(engine);
    }

    /// Whether this is the end of that queue pair's connection, and of none before.
    pub(crate) fn is_of(&self, number: u32, connection: ConnectionId) -> bool {
        let pair = self.queue_pairs.get(&number);
        pair.is_some_and(|pair| pair.connection() == Some(connection))
    }
}
