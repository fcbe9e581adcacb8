//! A context on its way to the next engine.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weft_device::doorbell::{DOORBELL_WORDS, Doorbells};
use weft_device::objects::Objects;
use weft_device::ring::{Consumer, Ring};
use weft_device::space::RingPlace;
use weft_engine::{AddressSpace, Engine, Failure, Region, SavedConnection, SharedFiles, Words};

use super::datagrams::DatagramQueuePairs;
use super::{Context, Domain, Queue};
use crate::channel::{Channel, SavedCompletionQueue};
use crate::datagram_queue_pair::{DatagramQueuePair, SavedDatagramQueuePair};
use crate::operation_rate::Operations;
use crate::queue_pair::{QueuePair, SavedEnd, SavedQueuePair};
use crate::receive_queue::SavedSharedReceiveQueue;
use crate::regions::{KeysByMemory, SavedPiece, SavedRegions};
use crate::saved::{Descriptors, HandOverError};
use crate::under_way::CountOfDevice;

/// A context. With it go descriptors: the memory that both ends share, the program's address space, the eventfd, the
/// event socket, those of the channels, and the files of regions.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedContext {
    objects: Objects,
    shared_bytes: u64,
    domains: BTreeMap<u32, Domain>,
    completion_queues: BTreeMap<u32, SavedCompletionQueue>,
    /// What their programs are still to be told.
    channels: BTreeMap<u32, VecDeque<u32>>,
    queue_pairs: BTreeMap<u32, SavedQueuePair>,
    shared_receive_queues: BTreeMap<u32, SavedSharedReceiveQueue>,
    datagrams: BTreeMap<u32, SavedDatagramQueuePair>,
    regions: SavedRegions,
    /// Queue pairs that wait for the limit of their device.
    waiting: Vec<u32>,
    has_failed: bool,
}

impl Context {
    /// What there is, when the engine has saved its connections.
    pub(crate) fn save(
        self,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<SavedContext, HandOverError> {
        let file = self.shared.file();
        let file = file.ok_or(HandOverError::Damaged("the shared memory has no file"))?;
        descriptors.push(file.try_clone_to_owned()?);
        descriptors.push(self.program.try_clone()?);
        descriptors.extend([self.wake, self.events]);
        let mut channels = BTreeMap::new();
        for (handle, channel) in self.channels {
            let (socket, unsent) = channel.save();
            descriptors.push(socket);
            channels.insert(handle, unsent);
        }
        let completion_queues = self.completion_queues.into_iter();
        let queue_pairs = self.queue_pairs.into_iter();
        let shared_receive_queues = self.shared_receive_queues.into_iter();
        let datagrams = self.datagrams.into_pairs();
        Ok(SavedContext {
            objects: self.objects,
            shared_bytes: self.shared.len(),
            domains: self.domains,
            completion_queues: completion_queues
                .map(|(it, queue)| (it, queue.save()))
                .collect(),
            channels,
            queue_pairs: queue_pairs.map(|(it, pair)| (it, pair.save())).collect(),
            shared_receive_queues: shared_receive_queues
                .map(|(it, queue)| (it, queue.save()))
                .collect(),
            datagrams: datagrams.map(|pair| (pair.number, pair.save())).collect(),
            regions: self.regions.save(descriptors)?,
            waiting: self.operations.save(),
            has_failed: self.has_failed,
        })
    }

    /// What pieces of its connections are saved by.
    pub(crate) fn keys_by_memory(&self) -> KeysByMemory {
        self.regions.keys_by_memory()
    }

    /// The connection that was saved.
    pub(crate) fn restore_pieces(
        &self,
        connection: SavedConnection<SavedPiece>,
    ) -> Option<SavedConnection> {
        connection.map_pieces(|piece| self.regions.restore_piece(piece, &self.program))
    }

    /// A queue pair's end is here again.
    pub(crate) fn restore_end(
        &mut self,
        number: u32,
        end: SavedEnd,
        engine: &Engine,
        now: Duration,
    ) {
        let local = engine.local_end(end.id);
        let Some(pair) = self.queue_pairs.get_mut(&number) else {
            return;
        };
        if end.is_connected()
            && let Some(shared) = pair.made.shared_receive_queue
            && let Some(shared) = self.shared_receive_queues.get(&shared)
        {
            // A connection that has failed says so by an event.
            let _ = engine.share_receives(end.id, Arc::clone(&shared.buffers));
        }
        pair.joining = end.joining(local, now);
    }

    /// The connection of a queue pair was lost with the engine.
    pub(crate) fn lose_end(&mut self, number: u32, engine: &Engine) {
        self.with(number, engine, |pair, _, around| {
            pair.end(Failure::Stalled, around);
            true
        });
    }
}

/// The rings of a context, which are as they were.
struct Rings<'c> {
    shared: &'c Arc<Region>,
    objects: &'c Objects,
    under_way: &'c CountOfDevice,
}

impl Rings<'_> {
    fn ring(&self, place: Option<RingPlace>) -> Result<Ring<Words>, HandOverError> {
        let damaged = HandOverError::Damaged("the place of a ring");
        let place = place.ok_or(damaged)?;
        let words = Words::new(self.shared, place.offset, place.words());
        let words = words.map_err(|_| HandOverError::Damaged("the place of a ring"))?;
        Ring::new(words).map_err(|_| HandOverError::Damaged("the size of a ring"))
    }

    fn consumer(
        &self,
        place: Option<RingPlace>,
        consumed: u32,
    ) -> Result<Consumer<Words>, HandOverError> {
        Ok(Consumer::new(self.ring(place)?, consumed))
    }

    fn queue_pair(&self, number: u32, saved: SavedQueuePair) -> Result<QueuePair, HandOverError> {
        let found = self.objects.queue_pair(number);
        let sends = self.consumer(found.map(|it| it.send_ring), saved.consumed())?;
        let consumed = saved.received();
        let place = found.and_then(|it| it.receive_ring);
        let ring = consumed
            .map(|consumed| self.consumer(place, consumed))
            .transpose()?;
        Ok(saved.restore(number, sends, ring, self.under_way.clone()))
    }

    fn datagrams(
        &self,
        number: u32,
        saved: SavedDatagramQueuePair,
    ) -> Result<DatagramQueuePair, HandOverError> {
        let found = self.objects.queue_pair(number);
        let (sent, received) = saved.consumed();
        let sends = self.consumer(found.map(|it| it.send_ring), sent)?;
        let place = found.and_then(|it| it.receive_ring);
        let receives = received.map(|received| self.consumer(place, received));
        Ok(saved.restore(number, sends, receives.transpose()?))
    }
}

impl SavedContext {
    /// The ends of the queue pairs.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (u32, SavedEnd)> + '_ {
        let pairs = self.queue_pairs.iter();
        pairs.filter_map(|(number, pair)| Some((*number, pair.end.clone()?)))
    }

    pub(crate) fn restore(
        self,
        engine: &Engine,
        files: &mut SharedFiles,
        under_way: CountOfDevice,
        descriptors: &mut Descriptors,
    ) -> Result<Context, HandOverError> {
        let shared = Region::from_memfd(descriptors.next()?, self.shared_bytes)?;
        let program = AddressSpace::new(descriptors.next()?);
        let program = program.map_err(|_| HandOverError::Damaged("the address space"))?;
        let (wake, events) = (descriptors.next()?, descriptors.next()?);
        let mut channels = BTreeMap::new();
        for (handle, unsent) in self.channels {
            channels.insert(handle, Channel::restore(descriptors.next()?, unsent));
        }
        let regions = self
            .regions
            .restore(engine, &self.domains, &program, files, descriptors)?;
        let (shared, objects) = (Arc::new(shared), self.objects);
        let rings = Rings {
            shared: &shared,
            objects: &objects,
            under_way: &under_way,
        };
        let mut completion_queues = BTreeMap::new();
        for (handle, queue) in self.completion_queues {
            let ring = rings.ring(objects.completion_ring(handle))?;
            completion_queues.insert(handle, queue.restore(ring));
        }
        let mut shared_receive_queues = BTreeMap::new();
        for (handle, saved) in self.shared_receive_queues {
            let place = objects.shared_receive_ring(handle);
            let ring = saved.queue.consumed.map(|it| rings.consumer(place, it));
            shared_receive_queues.insert(handle, saved.restore(ring.transpose()?));
        }
        let mut queue_pairs = BTreeMap::new();
        for (number, saved) in self.queue_pairs {
            queue_pairs.insert(number, rings.queue_pair(number, saved)?);
        }
        let mut datagrams = DatagramQueuePairs::default();
        for (number, saved) in self.datagrams {
            datagrams.add(rings.datagrams(number, saved)?);
        }
        let page = Words::new(&shared, 0, DOORBELL_WORDS).ok();
        let doorbells = page.and_then(|page| Doorbells::new(page).ok());
        let mut context = Context {
            doorbells: doorbells.ok_or(HandOverError::Damaged("the doorbell page"))?,
            objects,
            program,
            shared,
            wake,
            events,
            domains: self.domains,
            completion_queues,
            channels,
            passed: None,
            queue_pairs,
            shared_receive_queues,
            datagrams,
            by_doorbell: HashMap::new(),
            operations: Operations::restore(self.waiting),
            under_way,
            regions,
            has_failed: self.has_failed,
        };
        let pairs = context
            .queue_pairs
            .keys()
            .chain(context.datagrams.numbers());
        let pairs = pairs.copied().map(Queue::Pair);
        let shared = context.shared_receive_queues.keys().copied();
        let queues: Vec<Queue> = pairs.chain(shared.map(Queue::SharedReceives)).collect();
        queues
            .into_iter()
            .for_each(|queue| context.add_doorbell(queue));
        Ok(context)
    }
}
