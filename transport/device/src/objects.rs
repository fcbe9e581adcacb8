//! The objects of a device, and what a program may do with them.
//!
//! [`Objects::handle`] takes a request of the program and checks every argument: that each handle is one of this
//! device, that all objects of a queue pair are of one protection domain, that nothing is destroyed that others use, and
//! that the device stays within its [`Limits`]. A request that is refused changes nothing. The engine owns it, asks it
//! first, and then carries out what was allowed: it is a table, and touches neither memory nor connections. Time and
//! randomness are arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use crate::control::{
    Address, Answer, ErrorNumber, Limits, Outcome, QueuePair, QueuePairAttributes, QueueSizes,
    Region, Request,
};
use crate::event::{Event, EventType, ObjectType};
use crate::space::{RingPlace, RingSpace};
use crate::state::{self, Attributes, Change, State};
use crate::work_request::ring_slots;

mod events;
mod foreign;

/// A key of a region that is gone is not given to another one for so long.
const KEY_REST: Duration = Duration::from_secs(60);
/// Keys of a device that rest at one time: 17,000 registrations a second, and 40 MB.
const RESTING_KEYS_MAX: usize = 1 << 20;
/// Bits of a queue pair's number, and of a packet's.
const NUMBER_BITS: u32 = 24;
/// Queue pairs 0 and 1 are those of management.
const FIRST_QUEUE_PAIR: u32 = 2;

/// `enum ibv_access_flags`.
mod access {
    pub(super) const LOCAL_WRITE: u32 = 1;
    pub(super) const REMOTE_WRITE: u32 = 1 << 1;
    pub(super) const REMOTE_READ: u32 = 1 << 2;
    pub(super) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(super) const ZERO_BASED: u32 = 1 << 5;
    pub(super) const HUGE_PAGES: u32 = 1 << 7;
    /// A device that does not know one of these leaves it out of account.
    pub(super) const OPTIONAL: u32 = 0x3ff0_0000;
    pub(super) const REMOTE: u32 = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    pub(super) const KNOWN: u32 = LOCAL_WRITE | REMOTE | ZERO_BASED | HUGE_PAGES | OPTIONAL;
}

/// Objects of one kind, by handle. A handle is not given again before all others have been. It is saved without a name, or
/// tables of several kinds would pass for one where forms of saved records are compared.
#[derive(Debug, Deserialize)]
#[serde(from = "SavedTable<T>")]
struct Table<T> {
    objects: BTreeMap<u32, T>,
    next: u32,
    first: u32,
    end: u32,
}

/// The fields of a [`Table`].
type SavedTable<T> = (BTreeMap<u32, T>, u32, u32, u32);

impl<T> From<SavedTable<T>> for Table<T> {
    fn from((objects, next, first, end): SavedTable<T>) -> Self {
        Self {
            objects,
            next,
            first,
            end,
        }
    }
}

impl<T: Serialize> Serialize for Table<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.objects, self.next, self.first, self.end).serialize(serializer)
    }
}

impl<T> Table<T> {
    fn new(handles: std::ops::Range<u32>) -> Self {
        Self {
            objects: BTreeMap::new(),
            next: handles.start,
            first: handles.start,
            end: handles.end,
        }
    }

    fn len(&self) -> u32 {
        u32::try_from(self.objects.len()).unwrap_or(u32::MAX)
    }

    /// Whether there may be one more.
    fn check_room(&self, limit: u32) -> Result<(), ErrorNumber> {
        match self.len() < limit.min(self.end - self.first) {
            true => Ok(()),
            false => Err(ErrorNumber::OutOfMemory),
        }
    }

    /// Adds an object if there may be one more.
    fn add(&mut self, object: T, limit: u32) -> Result<u32, ErrorNumber> {
        self.check_room(limit)?;
        while self.objects.contains_key(&self.next) {
            self.advance();
        }
        let handle = self.next;
        self.objects.insert(handle, object);
        self.advance();
        Ok(handle)
    }

    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.end {
            self.next = self.first;
        }
    }

    fn get(&self, handle: u32) -> Result<&T, ErrorNumber> {
        self.objects
            .get(&handle)
            .ok_or(ErrorNumber::InvalidArgument)
    }
}

impl Table<u32> {
    /// Counts one more, or one less, that uses an object which is there.
    fn count(&mut self, handle: u32, change: i32) {
        if let Some(users) = self.objects.get_mut(&handle) {
            *users = users.saturating_add_signed(change);
        }
    }

    /// Removes an object that nothing uses.
    fn remove_unused(&mut self, handle: u32) -> Outcome {
        match self.get(handle)? {
            0 => {
                self.objects.remove(&handle);
                Ok(Answer::Done)
            }
            _ => Err(ErrorNumber::Busy),
        }
    }
}

/// A shared receive queue.
#[derive(Debug, Serialize, Deserialize)]
struct SharedReceiveQueue {
    domain: u32,
    users: u32,
    ring: RingPlace,
    /// Receives that it may have.
    entries: u32,
    /// With fewer receives the program is told; 0 once it was.
    limit: u32,
}

/// A completion queue.
#[derive(Debug, Serialize, Deserialize)]
struct CompletionQueue {
    /// How many queue pairs use it: one twice where it takes both kinds of completions.
    users: u32,
    ring: RingPlace,
    channel: Option<u32>,
}

/// A queue pair, as it was made and as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairState {
    /// As it was made; its sizes are those that it has.
    pub made: QueuePair,
    /// Its state.
    pub state: State,
    /// Its attributes: those that were given at any time since it was reset.
    pub attributes: QueuePairAttributes,
    /// The ring of its sends.
    pub send_ring: RingPlace,
    /// The ring of its receives; none with a shared queue.
    pub receive_ring: Option<RingPlace>,
    /// The program was told that a message came before it could send.
    is_established: bool,
}

/// How much of everything there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Queue pairs and shared receive queues.
    pub queue_pairs: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Completion channels.
    pub channels: u32,
    /// Memory regions.
    pub regions: u32,
    /// Bytes of shared memory that rings take.
    pub ring_bytes: u64,
}

impl std::ops::Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            queue_pairs: self.queue_pairs + other.queue_pairs,
            completion_queues: self.completion_queues + other.completion_queues,
            channels: self.channels + other.channels,
            regions: self.regions + other.regions,
            ring_bytes: self.ring_bytes + other.ring_bytes,
        }
    }
}

/// The peer of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressHandle {
    /// Its protection domain.
    pub domain: u32,
    /// The peer.
    pub address: Address,
}

/// All objects of one device. Owned and written by the engine's control thread. Those of an engine that ends are saved for
/// the next one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Objects {
    limits: Limits,
    /// How many objects use each.
    domains: Table<u32>,
    /// How many completion queues use each.
    channels: Table<u32>,
    completion_queues: Table<CompletionQueue>,
    shared_receive_queues: Table<SharedReceiveQueue>,
    queue_pairs: Table<QueuePairState>,
    address_handles: Table<AddressHandle>,
    /// By key.
    regions: BTreeMap<u32, Region>,
    /// Keys that rest, with the time when they were given back.
    resting: VecDeque<(Duration, u32)>,
    resting_keys: BTreeSet<u32>,
    space: RingSpace,
    /// What the program was not told yet, each once: one that takes no events has no more of them than objects.
    events: BTreeSet<Event>,
}

impl Objects {
    /// A device without objects, whose queue pairs get these numbers.
    #[must_use]
    pub fn new(limits: Limits, queue_pairs: std::ops::Range<u32>) -> Self {
        let any = 1..u32::MAX;
        let queue_pairs = queue_pairs.start.max(FIRST_QUEUE_PAIR)..queue_pairs.end;
        Self {
            limits,
            domains: Table::new(any.clone()),
            channels: Table::new(any.clone()),
            completion_queues: Table::new(any.clone()),
            shared_receive_queues: Table::new(any.clone()),
            queue_pairs: Table::new(queue_pairs),
            address_handles: Table::new(any),
            regions: BTreeMap::new(),
            resting: VecDeque::new(),
            resting_keys: BTreeSet::new(),
            space: RingSpace::new(limits.ring_bytes),
            events: BTreeSet::new(),
        }
    }

    /// A region, by its key.
    #[must_use]
    pub fn region(&self, key: u32) -> Option<&Region> {
        self.regions.get(&key)
    }

    /// A queue pair, by its number.
    #[must_use]
    pub fn queue_pair(&self, number: u32) -> Option<&QueuePairState> {
        self.queue_pairs.get(number).ok()
    }

    /// The ring of a completion queue.
    #[must_use]
    pub fn completion_ring(&self, queue: u32) -> Option<RingPlace> {
        let found = self.completion_queues.get(queue).ok()?;
        Some(found.ring)
    }

    /// The ring of a shared receive queue.
    #[must_use]
    pub fn shared_receive_ring(&self, queue: u32) -> Option<RingPlace> {
        let found = self.shared_receive_queues.get(queue).ok()?;
        Some(found.ring)
    }

    /// How much of everything there is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            queue_pairs: self.queue_pairs.len() + self.shared_receive_queues.len(),
            completion_queues: self.completion_queues.len(),
            channels: self.channels.len(),
            regions: u32::try_from(self.regions.len()).unwrap_or(u32::MAX),
            ring_bytes: self.space.taken(),
        }
    }

    /// An address handle.
    #[must_use]
    pub fn address_handle(&self, handle: u32) -> Option<&AddressHandle> {
        self.address_handles.get(handle).ok()
    }

    /// The engine has found an error: the queue pair flushes all that is posted. Where no completion reports the error,
    /// an event does.
    pub fn fail_queue_pair(&mut self, number: u32, is_reported: bool) {
        if !is_reported {
            self.add_event(EventType::QueuePairFatal, number);
        }
        self.put_queue_pair(number, State::Error);
    }

    /// A send of a queue pair of datagrams was bad: it flushes all sends, and receives go on.
    pub fn fail_send_queue(&mut self, number: u32) {
        self.put_queue_pair(number, State::SendQueueError);
    }

    fn put_queue_pair(&mut self, number: u32, state: State) {
        let Some(found) = self.queue_pairs.objects.get_mut(&number) else {
            return;
        };
        let before = std::mem::replace(&mut found.state, state);
        let is_sharing = found.made.shared_receive_queue.is_some();
        if is_sharing && state == State::Error && before != State::Error {
            self.add_event(EventType::LastWorkRequestReached, number);
        }
    }

    /// Carries a request out, if it is allowed. `now` is any time that does not run backwards; `random` draws numbers
    /// that nobody can guess, for keys.
    ///
    /// # Errors
    /// It is refused, and nothing has changed.
    pub fn handle(
        &mut self,
        request: &Request,
        now: Duration,
        random: &mut impl FnMut() -> u32,
    ) -> Outcome {
        let limits = self.limits;
        match *request {
            // The connection is one of this device already.
            Request::Open { .. } => Err(ErrorNumber::InvalidArgument),
            Request::CreateDomain => self.domains.add(0, limits.domains).map(Answer::Created),
            Request::DestroyDomain(domain) => self.domains.remove_unused(domain),
            Request::RegisterRegion(region) => self.register(region, now, random),
            Request::ReregisterRegion { key, given, region } => {
                self.reregister(key, given, &region)
            }
            Request::DeregisterRegion(key) => self.deregister(key, now),
            Request::CreateChannel => {
                let made = self.channels.add(0, limits.completion_queues);
                made.map(Answer::Created)
            }
            Request::DestroyChannel(channel) => self.channels.remove_unused(channel),
            Request::CreateCompletionQueue { entries, channel } => {
                if let Some(channel) = channel {
                    self.channels.get(channel)?;
                }
                let entries = rounded(entries, limits.completions)?;
                self.completion_queues
                    .check_room(limits.completion_queues)?;
                let ring = self.take_ring(entries)?;
                let made = CompletionQueue {
                    users: 0,
                    ring,
                    channel,
                };
                let queue = self.completion_queues.add(made, limits.completion_queues)?;
                if let Some(channel) = channel {
                    self.channels.count(channel, 1);
                }
                Ok(Answer::CreatedQueue {
                    queue,
                    entries,
                    ring,
                })
            }
            Request::ResizeCompletionQueue { queue, entries } => {
                let before = self.completion_queues.get(queue)?.ring;
                let entries = rounded(entries, limits.completions)?;
                let ring = self.take_ring(entries)?;
                if let Some(found) = self.completion_queues.objects.get_mut(&queue) {
                    found.ring = ring;
                }
                // The engine moves what is in it before it takes another request.
                self.space.give_back(before);
                Ok(Answer::CreatedQueue {
                    queue,
                    entries,
                    ring,
                })
            }
            Request::DestroyCompletionQueue(queue) => {
                let found = self.completion_queues.get(queue)?;
                if found.users > 0 {
                    return Err(ErrorNumber::Busy);
                }
                self.space.give_back(found.ring);
                if let Some(channel) = found.channel {
                    self.channels.count(channel, -1);
                }
                self.completion_queues.objects.remove(&queue);
                self.drop_events(ObjectType::CompletionQueue, queue);
                Ok(Answer::Done)
            }
            Request::CreateSharedReceiveQueue {
                domain,
                entries,
                sges,
            } => {
                self.domains.get(domain)?;
                within(sges, limits.sges)?;
                let entries = rounded(entries, limits.work_requests)?;
                let limit = limits.queue_pairs.saturating_sub(self.queue_pairs.len());
                self.shared_receive_queues.check_room(limit)?;
                let ring = self.take_ring(slots_for(entries, sges, 0)?)?;
                let made = SharedReceiveQueue {
                    domain,
                    users: 0,
                    ring,
                    entries,
                    limit: 0,
                };
                let queue = self.shared_receive_queues.add(made, limit)?;
                self.domains.count(domain, 1);
                Ok(Answer::CreatedQueue {
                    queue,
                    entries,
                    ring,
                })
            }
            Request::ModifySharedReceiveQueue { queue, limit } => {
                let found = self.shared_receive_queues.objects.get_mut(&queue);
                let found = found.ok_or(ErrorNumber::InvalidArgument)?;
                within(limit, found.entries)?;
                found.limit = limit;
                Ok(Answer::Done)
            }
            Request::QuerySharedReceiveQueue(queue) => {
                let found = self.shared_receive_queues.get(queue)?;
                Ok(Answer::ReceiveLimit(found.limit))
            }
            Request::DestroySharedReceiveQueue(queue) => {
                let found = self.shared_receive_queues.get(queue)?;
                if found.users > 0 {
                    return Err(ErrorNumber::Busy);
                }
                self.space.give_back(found.ring);
                self.domains.count(found.domain, -1);
                self.shared_receive_queues.objects.remove(&queue);
                self.drop_events(ObjectType::SharedReceiveQueue, queue);
                Ok(Answer::Done)
            }
            Request::CreateQueuePair(wanted) => self.create_queue_pair(wanted),
            Request::ModifyQueuePair {
                queue_pair,
                given,
                attributes,
            } => self.modify_queue_pair(queue_pair, Attributes(given), &attributes),
            Request::QueryQueuePair(queue_pair) => {
                let found = self.queue_pairs.get(queue_pair)?;
                Ok(Answer::Attributes(QueuePairAttributes {
                    state: found.state as u32,
                    current_state: found.state as u32,
                    ..found.attributes
                }))
            }
            Request::DestroyQueuePair(queue_pair) => {
                let found = self.queue_pairs.get(queue_pair)?;
                let made = found.made;
                self.space.give_back(found.send_ring);
                if let Some(ring) = found.receive_ring {
                    self.space.give_back(ring);
                }
                self.count_used_by(&made, -1);
                self.queue_pairs.objects.remove(&queue_pair);
                self.drop_events(ObjectType::QueuePair, queue_pair);
                Ok(Answer::Done)
            }
            Request::CreateAddressHandle { domain, address } => {
                self.domains.get(domain)?;
                check_address(&address)?;
                let made = AddressHandle { domain, address };
                let handle = self.address_handles.add(made, limits.address_handles)?;
                self.domains.count(domain, 1);
                Ok(Answer::Created(handle))
            }
            Request::DestroyAddressHandle(handle) => {
                let domain = self.address_handles.get(handle)?.domain;
                self.domains.count(domain, -1);
                self.address_handles.objects.remove(&handle);
                Ok(Answer::Done)
            }
        }
    }

    /// Takes a region in, by a key that nobody can guess and that no region had of late.
    fn register(
        &mut self,
        region: Region,
        now: Duration,
        random: &mut impl FnMut() -> u32,
    ) -> Outcome {
        self.domains.get(region.domain)?;
        let region = checked(region)?;
        self.end_rests(now);
        if self.regions.len() >= self.limits.regions as usize
            || self.resting.len() >= RESTING_KEYS_MAX
        {
            return Err(ErrorNumber::OutOfMemory);
        }
        let mut key = random();
        while key == 0 || self.regions.contains_key(&key) || self.resting_keys.contains(&key) {
            key = random();
        }
        self.regions.insert(key, region);
        self.domains.count(region.domain, 1);
        Ok(Answer::Created(key))
    }

    /// Changes where a region is, or what may be done with it.
    fn reregister(&mut self, key: u32, given: u32, region: &Region) -> Outcome {
        // `enum ibv_rereg_mr_flags`.
        const TRANSLATION: u32 = 1;
        const ACCESS: u32 = 1 << 2;
        let found = self.regions.get_mut(&key);
        let found = found.ok_or(ErrorNumber::InvalidArgument)?;
        if given & !(TRANSLATION | ACCESS) != 0 {
            return Err(ErrorNumber::NotSupported);
        }
        let mut next = *found;
        next.file_offset = region.file_offset;
        if given & TRANSLATION != 0 {
            next.address = region.address;
            next.bytes = region.bytes;
            next.io_address = region.io_address;
        }
        if given & ACCESS != 0 {
            next.access = region.access;
        }
        *found = checked(next)?;
        Ok(Answer::Done)
    }

    fn deregister(&mut self, key: u32, now: Duration) -> Outcome {
        let region = self
            .regions
            .remove(&key)
            .ok_or(ErrorNumber::InvalidArgument)?;
        self.domains.count(region.domain, -1);
        self.resting.push_back((now, key));
        self.resting_keys.insert(key);
        Ok(Answer::Done)
    }

    fn end_rests(&mut self, now: Duration) {
        let is_over = |rest: &mut (Duration, u32)| now.saturating_sub(rest.0) >= KEY_REST;
        while let Some((_, key)) = self.resting.pop_front_if(is_over) {
            self.resting_keys.remove(&key);
        }
    }

    fn create_queue_pair(&mut self, wanted: QueuePair) -> Outcome {
        let Limits {
            work_requests,
            sges,
            inline_bytes,
            queue_pairs,
            ..
        } = self.limits;
        self.domains.get(wanted.domain)?;
        self.completion_queues.get(wanted.send_completions)?;
        self.completion_queues.get(wanted.receive_completions)?;
        let asked = wanted.sizes;
        within(asked.send_sges, sges)?;
        within(asked.inline_bytes, inline_bytes)?;
        let (receives, receive_sges) = match wanted.shared_receive_queue {
            Some(queue) => {
                if self.shared_receive_queues.get(queue)?.domain != wanted.domain {
                    return Err(ErrorNumber::InvalidArgument);
                }
                (0, 0)
            }
            None => {
                within(asked.receive_sges, sges)?;
                let receives = rounded(asked.receives.max(1), work_requests)?;
                (receives, asked.receive_sges)
            }
        };
        let sizes = QueueSizes {
            sends: rounded(asked.sends.max(1), work_requests)?,
            receives,
            receive_sges,
            ..asked
        };
        let made = QueuePair { sizes, ..wanted };
        let limit = queue_pairs.saturating_sub(self.shared_receive_queues.len());
        self.queue_pairs.check_room(limit)?;
        let send_slots = slots_for(sizes.sends, sizes.send_sges, sizes.inline_bytes)?;
        let receive_slots = match sizes.receives {
            0 => None,
            receives => Some(slots_for(receives, receive_sges, 0)?),
        };
        let send_ring = self.take_ring(send_slots)?;
        let receive_ring = match receive_slots.map(|slots| self.take_ring(slots)) {
            Some(Err(error)) => {
                self.space.give_back(send_ring);
                return Err(error);
            }
            taken => taken.and_then(Result::ok),
        };
        let state = QueuePairState {
            made,
            state: State::Reset,
            attributes: QueuePairAttributes::default(),
            send_ring,
            receive_ring,
            is_established: false,
        };
        let queue_pair = self.queue_pairs.add(state, limit)?;
        self.count_used_by(&made, 1);
        Ok(Answer::CreatedQueuePair {
            queue_pair,
            sizes,
            send_ring,
            receive_ring,
        })
    }

    fn take_ring(&mut self, slots: u32) -> Result<RingPlace, ErrorNumber> {
        self.space.take(slots).ok_or(ErrorNumber::OutOfMemory)
    }

    fn count_used_by(&mut self, made: &QueuePair, change: i32) {
        self.domains.count(made.domain, change);
        for queue in [made.send_completions, made.receive_completions] {
            if let Some(queue) = self.completion_queues.objects.get_mut(&queue) {
                queue.users = queue.users.saturating_add_signed(change);
            }
        }
        let shared = made.shared_receive_queue;
        let shared = shared.and_then(|queue| self.shared_receive_queues.objects.get_mut(&queue));
        if let Some(queue) = shared {
            queue.users = queue.users.saturating_add_signed(change);
        }
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: u32,
        given: Attributes,
        attributes: &QueuePairAttributes,
    ) -> Outcome {
        let limits = self.limits;
        let found = self.queue_pairs.objects.get_mut(&queue_pair);
        let found = found.ok_or(ErrorNumber::InvalidArgument)?;
        let change = Change {
            given,
            next: attributes.state,
            current: attributes.current_state,
        };
        let to = state::check(found.made.kind, found.state, change)
            .map_err(|_| ErrorNumber::InvalidArgument)?;
        let mut next = match to {
            State::Reset => QueuePairAttributes::default(),
            _ => found.attributes,
        };
        if to != found.state {
            next.notifies_drained = false;
        }
        set(&mut next, given, attributes, &limits)?;
        found.attributes = next;
        found.is_established &= to >= State::ReadyToReceive;
        self.put_queue_pair(queue_pair, to);
        Ok(Answer::Done)
    }
}

/// Takes over the attributes that are given, each of them checked.
fn set(
    next: &mut QueuePairAttributes,
    given: Attributes,
    from: &QueuePairAttributes,
    limits: &Limits,
) -> Result<(), ErrorNumber> {
    const PSN_MASK: u32 = (1 << NUMBER_BITS) - 1;
    let at_most = |number: u8, most: u8| within(number.into(), most.into());
    if given.contains(Attributes::EN_SQD_ASYNC_NOTIFY) {
        next.notifies_drained = from.notifies_drained;
    }
    if given.contains(Attributes::ACCESS_FLAGS) {
        check_access(from.access | access::LOCAL_WRITE)?;
        next.access = from.access;
    }
    if given.contains(Attributes::PKEY_INDEX) {
        // There is one partition.
        within(from.partition_index.into(), 0)?;
        next.partition_index = from.partition_index;
    }
    if given.contains(Attributes::PORT) {
        check_port(from.port)?;
        next.port = from.port;
    }
    if given.contains(Attributes::QKEY) {
        next.q_key = from.q_key;
    }
    if given.contains(Attributes::AV) {
        check_address(&from.address)?;
        next.address = from.address;
    }
    if given.contains(Attributes::PATH_MTU) {
        within(
            from.path_mtu.wrapping_sub(1),
            limits.path_mtu.saturating_sub(1),
        )?;
        next.path_mtu = from.path_mtu;
    }
    if given.contains(Attributes::TIMEOUT) {
        at_most(from.timeout, 31)?;
        next.timeout = from.timeout;
    }
    if given.contains(Attributes::RETRY_CNT) {
        at_most(from.retries, 7)?;
        next.retries = from.retries;
    }
    if given.contains(Attributes::RNR_RETRY) {
        at_most(from.receiver_not_ready_retries, 7)?;
        next.receiver_not_ready_retries = from.receiver_not_ready_retries;
    }
    if given.contains(Attributes::MIN_RNR_TIMER) {
        at_most(from.receiver_not_ready_timer, 31)?;
        next.receiver_not_ready_timer = from.receiver_not_ready_timer;
    }
    // Verbs takes 24 bits of a packet number, whatever the others are.
    if given.contains(Attributes::RQ_PSN) {
        next.receive_psn = from.receive_psn & PSN_MASK;
    }
    if given.contains(Attributes::SQ_PSN) {
        next.send_psn = from.send_psn & PSN_MASK;
    }
    if given.contains(Attributes::DEST_QPN) {
        within(from.peer_queue_pair, PSN_MASK)?;
        next.peer_queue_pair = from.peer_queue_pair;
    }
    if given.contains(Attributes::MAX_QP_RD_ATOMIC) {
        at_most(from.requests_from_here, limits.requests)?;
        next.requests_from_here = from.requests_from_here;
    }
    if given.contains(Attributes::MAX_DEST_RD_ATOMIC) {
        at_most(from.requests_from_peer, limits.requests)?;
        next.requests_from_peer = from.requests_from_peer;
    }
    Ok(())
}

/// Slots of a ring for so many work requests.
fn slots_for(requests: u32, sges: u32, inline_bytes: u32) -> Result<u32, ErrorNumber> {
    // Every number is within the limits.
    ring_slots(requests, sges as usize, inline_bytes as usize).ok_or(ErrorNumber::InvalidArgument)
}

/// Entries of a ring for so many: a power of two, within the limit.
fn rounded(entries: u32, limit: u32) -> Result<u32, ErrorNumber> {
    if entries == 0 {
        return Err(ErrorNumber::InvalidArgument);
    }
    within(entries, limit)?;
    Ok(entries
        .checked_next_power_of_two()
        .map_or(limit, |rounded| rounded.min(limit)))
}

fn within(number: u32, most: u32) -> Result<(), ErrorNumber> {
    match number <= most {
        true => Ok(()),
        false => Err(ErrorNumber::InvalidArgument),
    }
}

/// A region with its first address as work requests name it.
fn checked(region: Region) -> Result<Region, ErrorNumber> {
    check_access(region.access)?;
    let end = |from: u64| from.checked_add(region.bytes);
    let io_address = match region.access & access::ZERO_BASED {
        0 => region.io_address,
        _ => 0,
    };
    // The file of an address space has no offset beyond this.
    let is_in_space = end(region.address).is_some_and(|end| end <= i64::MAX as u64);
    match is_in_space && end(io_address).is_some() {
        true => Ok(Region {
            io_address,
            ..region
        }),
        false => Err(ErrorNumber::InvalidArgument),
    }
}

/// InfiniBand Architecture Specification, volume 1, section 10.6.3.1: who lets a peer write, or change words, writes
/// itself.
fn check_access(flags: u32) -> Result<(), ErrorNumber> {
    if flags & !access::KNOWN != 0 {
        return Err(ErrorNumber::NotSupported);
    }
    let changes = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    match changes && flags & access::LOCAL_WRITE == 0 {
        true => Err(ErrorNumber::InvalidArgument),
        false => Ok(()),
    }
}

/// A device has one port and one GID, and RoCE has no address without a GID.
fn check_address(address: &Address) -> Result<(), ErrorNumber> {
    check_port(address.port)?;
    match address.is_global && address.gid_index == 0 && address.gid != [0; 16] {
        true => Ok(()),
        false => Err(ErrorNumber::InvalidArgument),
    }
}

fn check_port(port: u8) -> Result<(), ErrorNumber> {
    match port {
        1 => Ok(()),
        _ => Err(ErrorNumber::InvalidArgument),
    }
}

#[cfg(test)]
mod tests;
