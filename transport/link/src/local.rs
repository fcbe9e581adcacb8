//! Links of one process, which reach each other through memory.
//!
//! Packets for a link of the same switch are put into the queue of that link, and the kernel is not asked. They are the same
//! packets, and everything above the links is the same. A link that is gone, or of another process, is reached through its
//! sockets.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rustix::event::{EventfdFlags, eventfd};
use weft_core::received::Received;
use weft_core::units::Source;

use crate::address::LinkAddress;
use crate::link::{Counters, Handler};

/// Runs of packets that wait for one link; further ones are lost. Four connections may begin with all that their windows
/// allow.
const RUNS_MAX: usize = 1024;
/// Runs that wait before packets are marked as by a switch that is congested (RFC 3168): so what waits, 1 MiB, stays in the
/// processor's cache.
const MARK_ABOVE: usize = 16;
/// Buffers that are kept for the next chunks: 4 MiB.
const SPARE_MAX: usize = 64;

/// The links that reach each other through memory. Their addresses must be of one network: a link at the same address in
/// another network namespace would be taken for the one that is here.
pub struct LocalSwitch {
    ends: RwLock<HashMap<LinkAddress, LocalEnd>>,
    /// How often the ends have changed.
    changes: AtomicU64,
    /// Buffers of chunks that have been taken in.
    spare: Receiver<Box<[u8]>>,
    returned: Sender<Box<[u8]>>,
}

impl Default for LocalSwitch {
    fn default() -> Self {
        let (returned, spare) = bounded(SPARE_MAX);
        Self {
            ends: RwLock::default(),
            changes: AtomicU64::new(0),
            spare,
            returned,
        }
    }
}

impl fmt::Debug for LocalSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalSwitch").finish_non_exhaustive()
    }
}

impl LocalSwitch {
    fn change(&self, change: impl FnOnce(&mut HashMap<LinkAddress, LocalEnd>)) {
        // A thread that panics ends the process.
        change(&mut self.ends.write().unwrap_or_else(PoisonError::into_inner));
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// Packets of one sender, one behind the other.
pub(crate) struct Run {
    pub(crate) from: Source,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) bytes: usize,
    /// Bytes of each packet but the last.
    pub(crate) segment: usize,
}

/// Where others put what they send to a link.
#[derive(Clone)]
struct LocalEnd {
    runs: Sender<Run>,
    sleep: Arc<Sleep>,
}

/// Whether a link's worker sleeps, and what wakes it.
struct Sleep {
    is_asleep: AtomicBool,
    /// Never read: each write is an event.
    eventfd: OwnedFd,
}

impl Sleep {
    /// Something has been put into the queue.
    fn wake(&self) {
        // The run is in the queue before the flag is read; `LocalLink::prepare_to_sleep` sets the flag before it looks into
        // the queue. So one of the two sees what the other has done.
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            // It fails after 2^64 writes only.
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        }
    }
}

/// A link's place at a switch, until it is dropped.
pub(crate) struct LocalLink {
    switch: Arc<LocalSwitch>,
    address: LinkAddress,
    received: Receiver<Run>,
    sleep: Arc<Sleep>,
    /// What was looked up at the switch; `None`: it is not there.
    known: HashMap<LinkAddress, Option<LocalEnd>>,
    /// How many changes of the switch `known` has seen.
    known_at: u64,
}

impl LocalLink {
    pub(crate) fn open(switch: Arc<LocalSwitch>, address: LinkAddress) -> std::io::Result<Self> {
        let (runs, received) = bounded(RUNS_MAX);
        let sleep = Arc::new(Sleep {
            is_asleep: AtomicBool::new(false),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let end = LocalEnd {
            runs,
            sleep: Arc::clone(&sleep),
        };
        switch.change(|ends| drop(ends.insert(address, end)));
        Ok(Self {
            switch,
            address,
            received,
            sleep,
            known: HashMap::new(),
            known_at: 0,
        })
    }

    /// What is written to when something comes and the link's worker sleeps.
    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.sleep.eventfd.as_fd()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.received.is_empty()
    }

    /// From here on what comes wakes the worker. Answers whether nothing has come so far.
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        self.sleep.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_empty = self.is_empty();
        if !is_empty {
            self.sleep.is_asleep.store(false, Ordering::Relaxed);
        }
        is_empty
    }

    /// Whether a link at this address is at the switch.
    pub(crate) fn reaches(&mut self, to: LinkAddress) -> bool {
        self.end(to).is_some()
    }

    fn end(&mut self, to: LinkAddress) -> Option<&LocalEnd> {
        let changes = self.switch.changes.load(Ordering::Acquire);
        if changes != self.known_at {
            self.known.clear();
            self.known_at = changes;
        }
        let ends = &self.switch.ends;
        let look_up = || {
            let ends = ends.read().unwrap_or_else(PoisonError::into_inner);
            ends.get(&to).cloned()
        };
        self.known.entry(to).or_insert_with(look_up).as_ref()
    }

    /// Puts a run into the queue of a link that [`Self::reaches`]. One that finds no room, or whose link has just gone, is
    /// lost, as on any network. Answers whether it was taken.
    pub(crate) fn send(&mut self, to: LinkAddress, run: Run) -> bool {
        let Some(end) = self.end(to) else {
            return false;
        };
        match end.runs.try_send(run) {
            Ok(()) => {
                end.sleep.wake();
                true
            }
            Err(TrySendError::Full(run) | TrySendError::Disconnected(run)) => {
                self.give_back(run.buffer);
                false
            }
        }
    }

    /// A buffer of `bytes` bytes, whatever is in it.
    pub(crate) fn buffer(&self, bytes: usize) -> Box<[u8]> {
        let spare = self.switch.spare.try_recv();
        let fits = spare.ok().filter(|buffer| buffer.len() == bytes);
        fits.unwrap_or_else(|| vec![0; bytes].into())
    }

    /// Keeps a chunk's buffer for the next one.
    fn give_back(&self, buffer: Box<[u8]>) {
        if buffer.len() > usize::from(u16::MAX) {
            // Of those that find no room the memory goes back.
            let _ = self.switch.returned.try_send(buffer);
        }
    }

    /// Hands over what has come, `most` runs at most. Answers how many.
    pub(crate) fn receive(
        &mut self,
        most: usize,
        counters: &mut Counters,
        handler: &mut impl Handler,
    ) -> usize {
        let mut runs = 0;
        while runs < most {
            let ce = self.received.len() > MARK_ABOVE;
            let Ok(mut run) = self.received.try_recv() else {
                break;
            };
            runs += 1;
            let packets = run.bytes.div_ceil(run.segment.max(1)).max(1) as u64;
            counters.received_runs += 1;
            counters.received_packets += packets;
            counters.received_bytes += run.bytes as u64;
            counters.received_ce += if ce { packets } else { 0 };
            handler.handle(Received::Packets {
                from: run.from,
                ce,
                bytes: &mut run.buffer[..run.bytes],
                segment: run.segment.max(1),
            });
            self.give_back(run.buffer);
        }
        runs
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        self.switch.change(|ends| {
            let is_own = |end: &LocalEnd| Arc::ptr_eq(&end.sleep, &self.sleep);
            if ends.get(&self.address).is_some_and(is_own) {
                ends.remove(&self.address);
            }
        });
    }
}
