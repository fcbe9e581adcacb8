//! A receive queue: of one queue pair, or shared by several.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weft_device::completion::Status;
use weft_device::entry::Entry;
use weft_device::ring::{Consumer, RING_SLOTS_MAX};
use weft_engine::{Engine, ReceiveBuffer, Words};

use crate::regions::Regions;

/// A receive that no message of a peer has filled.
#[derive(Serialize, Deserialize)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// Slots produced by the end of its entry.
    pub(crate) produced: u32,
    /// Where the bytes go.
    buffer: ReceiveBuffer,
}

/// A receive queue on its way to the next engine.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedReceiveQueue {
    /// Slots of its ring that were consumed; none once nothing more is taken.
    pub(crate) consumed: Option<u32>,
    domain: u32,
    receives_max: usize,
    outstanding: VecDeque<Receive>,
    next_token: u64,
}

impl SavedReceiveQueue {
    pub(crate) fn restore(self, ring: Option<Consumer<Words>>) -> ReceiveQueue {
        ReceiveQueue {
            ring,
            domain: self.domain,
            receives_max: self.receives_max,
            outstanding: self.outstanding,
            next_token: self.next_token,
        }
    }
}

/// A shared receive queue on its way to the next engine.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedSharedReceiveQueue {
    pub(crate) queue: SavedReceiveQueue,
    /// The tokens of the receives that no message has begun to fill.
    free: Vec<u64>,
    has_failed: bool,
}

impl SavedSharedReceiveQueue {
    pub(crate) fn restore(self, ring: Option<Consumer<Words>>) -> SharedReceiveQueue {
        let queue = self.queue.restore(ring);
        let shared = SharedReceiveQueue {
            has_failed: self.has_failed,
            ..SharedReceiveQueue::new(queue)
        };
        for buffer in self.free.iter().filter_map(|it| shared.queue.buffer(*it)) {
            shared.buffers.post(buffer);
        }
        shared
    }
}

/// Why no receive was taken.
pub(crate) enum BadReceive {
    /// The ring is broken, and gives nothing more.
    Ring,
    /// The receive is none. Those behind it are still in the ring.
    Entry {
        wr_id: u64,
        produced: u32,
        status: Status,
    },
}

pub(crate) struct ReceiveQueue {
    /// None once it is broken, or a shared queue has failed.
    ring: Option<Consumer<Words>>,
    /// Its protection domain.
    domain: u32,
    /// How many may be outstanding.
    receives_max: usize,
    /// In the order of their tokens.
    outstanding: VecDeque<Receive>,
    next_token: u64,
}

impl ReceiveQueue {
    pub(crate) fn new(ring: Consumer<Words>, domain: u32, receives_max: u32) -> Self {
        Self {
            ring: Some(ring),
            domain,
            receives_max: receives_max as usize,
            outstanding: VecDeque::new(),
            next_token: 0,
        }
    }

    /// Takes the next receive that the program has posted, if there is one and it may be outstanding.
    ///
    /// # Errors
    /// [`BadReceive`].
    pub(crate) fn take(
        &mut self,
        regions: &mut Regions,
        engine: &Engine,
    ) -> Result<Option<ReceiveBuffer>, BadReceive> {
        let mut entry = Entry::new();
        let Some(ring) = &mut self.ring else {
            return Ok(None);
        };
        if self.outstanding.len() >= self.receives_max {
            return Ok(None);
        }
        let taken = entry.take(ring);
        let produced = ring.consumed();
        match taken {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                tracing::debug!("a receive ring is broken: {error}");
                self.ring = None;
                return Err(BadReceive::Ring);
            }
        }
        let (wr_id, target) = match entry.receive() {
            Ok(receive) => {
                let target = regions.target(engine, self.domain, receive.sges);
                (receive.wr_id, target)
            }
            Err(_) => (0, Err(Status::LocalQueuePairOperation)),
        };
        let target = match target {
            Ok(target) => target,
            Err(status) => {
                return Err(BadReceive::Entry {
                    wr_id,
                    produced,
                    status,
                });
            }
        };
        let buffer = ReceiveBuffer {
            token: self.next_token,
            key: target.key,
            offset: target.offset,
            bytes: target.bytes,
        };
        self.next_token += 1;
        self.outstanding.push_back(Receive {
            wr_id,
            produced,
            buffer,
        });
        Ok(Some(buffer))
    }

    pub(crate) fn save(self) -> SavedReceiveQueue {
        SavedReceiveQueue {
            consumed: self.ring.map(|ring| ring.consumed()),
            domain: self.domain,
            receives_max: self.receives_max,
            outstanding: self.outstanding,
            next_token: self.next_token,
        }
    }

    /// How many are outstanding.
    pub(crate) fn len(&self) -> u32 {
        self.outstanding.len() as u32
    }

    /// The buffers of all that are outstanding, the oldest first.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = ReceiveBuffer> {
        self.outstanding.iter().map(|receive| receive.buffer)
    }

    /// The buffer of one that is outstanding.
    fn buffer(&self, token: u64) -> Option<ReceiveBuffer> {
        let found = self
            .outstanding
            .binary_search_by_key(&token, |receive| receive.buffer.token);
        Some(self.outstanding.get(found.ok()?)?.buffer)
    }

    /// A message of a peer has filled this one.
    pub(crate) fn filled(
        &mut self,
        token: u64,
        regions: &mut Regions,
        engine: &Engine,
    ) -> Option<Receive> {
        let found = self
            .outstanding
            .binary_search_by_key(&token, |receive| receive.buffer.token);
        let receive = self.outstanding.remove(found.ok()?)?;
        regions.forget(engine, receive.buffer.key);
        Some(receive)
    }

    /// Takes everything out of the queue and the ring.
    pub(crate) fn forget(&mut self, regions: &mut Regions, engine: &Engine) {
        for receive in self.outstanding.drain(..) {
            regions.forget(engine, receive.buffer.key);
        }
        let mut entry = Entry::new();
        for _ in 0..RING_SLOTS_MAX {
            let taken = self.ring.as_mut().map(|ring| entry.take(ring));
            if !matches!(taken, Some(Ok(true))) {
                break;
            }
        }
    }

    /// Takes everything out of the queue, and as much out of the ring as may be outstanding: the `wr_id` of each, and the
    /// slots that were produced by its end.
    pub(crate) fn flush(&mut self, regions: &mut Regions, engine: &Engine) -> Vec<(u64, u32)> {
        let mut flushed = Vec::new();
        for receive in self.outstanding.drain(..) {
            regions.forget(engine, receive.buffer.key);
            flushed.push((receive.wr_id, receive.produced));
        }
        let mut entry = Entry::new();
        // The limit: a program that writes without pause is looked at again in the next turn.
        for _ in 0..self.receives_max {
            let Some(ring) = &mut self.ring else {
                break;
            };
            if !matches!(entry.take(ring), Ok(true)) {
                break;
            }
            let wr_id = entry.receive().map_or(0, |receive| receive.wr_id);
            flushed.push((wr_id, ring.consumed()));
        }
        flushed
    }
}

/// A shared receive queue: the buffers of its receives go to whichever connection has a message.
pub(crate) struct SharedReceiveQueue {
    pub(crate) queue: ReceiveQueue,
    pub(crate) buffers: Arc<weft_engine::SharedReceiveQueue>,
    /// No further receive is taken, and the program was not told.
    has_failed: bool,
}

impl SharedReceiveQueue {
    pub(crate) fn new(queue: ReceiveQueue) -> Self {
        Self {
            queue,
            buffers: Arc::default(),
            has_failed: false,
        }
    }

    /// When the engine has saved its connections.
    pub(crate) fn save(self) -> SavedSharedReceiveQueue {
        SavedSharedReceiveQueue {
            queue: self.queue.save(),
            free: self.buffers.tokens(),
            has_failed: self.has_failed,
        }
    }

    /// Gives a receive to the next message again.
    pub(crate) fn give_back(&self, token: u64) {
        if let Some(buffer) = self.queue.buffer(token) {
            self.buffers.post_first(buffer);
        }
    }

    /// Whether the program is to be told that no further receive is taken, once.
    pub(crate) fn take_error(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Takes what is new in the ring. A program whose receive is none gets no further one filled: its peers find no
    /// receive.
    pub(crate) fn take(&mut self, regions: &mut Regions, engine: &Engine) {
        loop {
            match self.queue.take(regions, engine) {
                Ok(Some(buffer)) => self.buffers.post(buffer),
                Ok(None) => return,
                Err(bad) => {
                    if let BadReceive::Entry { wr_id, status, .. } = bad {
                        tracing::debug!(wr_id, ?status, "a shared receive queue is broken");
                    }
                    self.queue.ring = None;
                    self.has_failed = true;
                    return;
                }
            }
        }
    }
}
