//! The engine: how it starts and ends, its memory, its receives, its watchers and its peers. `submit` has its operations.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::unbounded;
use weft_engine::{Access, Key, LinkInUse, LinkKind, NicPair, Region};

use crate::address::{EngineAddress, MrDescriptor};
use crate::callbacks::{Callbacks, WatchHandler, Watcher, join, spawn};
use crate::config::{DOMAIN, Progress, TransferEngineConfig, random};
use crate::control;
use crate::counters::{ImmCounter, ImmCounters};
use crate::error::TransferError;
use crate::events;
use crate::failure::Cause;
use crate::link_choice::place;
use crate::lock::lock;
use crate::measured_links::MeasuredLinks;
use crate::receives::{MessageHandler, Receives};
use crate::region::MemoryRegion;
use crate::shared::{Shared, Wake};
use crate::tls::new_identity;

/// A running engine. Dropping it closes it. A forked process cannot use it: what begins something there fails with
/// [`TransferError::Forked`], and an operation of the parent must not be waited for.
pub struct TransferEngine {
    pub(crate) shared: Arc<Shared>,
    /// Set-up, events, callbacks: joined in this order.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What an engine has: a program that leaks sees it here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Peers that this engine has connected to, or is connecting to.
    pub peers: usize,
    /// Connections of the NICs.
    pub connections: usize,
    /// Operations that have not ended.
    pub operations: usize,
    /// Counters of immediates.
    pub counters: usize,
    /// Registered regions.
    pub regions: usize,
}

impl TransferEngine {
    /// Starts an engine on free ports of its NICs.
    pub fn start(config: TransferEngineConfig) -> Result<Self, TransferError> {
        let devices = config.nics()?.devices();
        let (engines, listeners) = config.start_engines(&devices)?;
        let measured = MeasuredLinks::new(&engines)?;
        let endpoints: io::Result<_> = listeners.iter().map(|it| it.local_addr()).collect();
        let identity = new_identity().map_err(TransferError::system("make a certificate"));
        let (certificate, server) = identity?;
        let address = EngineAddress {
            endpoints: endpoints.map_err(TransferError::system("getsockname"))?,
            certificate: certificate.to_vec().into(),
            token: random()?,
        };
        let runtime = control::runtime()?;
        let (callbacks, callback_thread) = Callbacks::start(config.watch_interval)?;
        let (events, receivers): (Vec<_>, Vec<_>) = engines.iter().map(|_| unbounded()).unzip();
        let (polled, receivers) = match config.progress {
            Progress::Threads => (None, receivers),
            Progress::Inline => (Some(Mutex::new(receivers)), Vec::new()),
        };
        let (to_events, wakes) = unbounded();
        let (to_control, commands) = tokio::sync::mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            config,
            engines,
            events,
            address,
            devices,
            place: place().map_err(TransferError::system("read of /proc"))?,
            started: Instant::now(),
            process: std::process::id(),
            operations: Mutex::default(),
            to_events,
            peers: Mutex::default(),
            by_connection: Mutex::new(HashMap::new()),
            waiting_reads: AtomicUsize::new(0),
            counters: ImmCounters::new(),
            receives: Receives::default(),
            callbacks,
            polled,
            measured,
            dials: AtomicU64::new(0),
            to_control,
        });
        let for_events = Arc::clone(&shared);
        let run = move || events::run(&for_events, &receivers, &wakes);
        let event_thread = spawn("weft-events", run)?;
        let for_control = Arc::clone(&shared);
        let run = move || control::run(&runtime, &for_control, server, listeners, commands);
        let control_thread = spawn("weft-control", run)?;
        let threads = vec![control_thread, event_thread, callback_thread];
        let threads = Mutex::new(threads);
        Ok(Self { shared, threads })
    }

    /// How peers reach this engine. A secret: who has it may connect.
    pub fn main_address(&self) -> &EngineAddress {
        &self.shared.address
    }

    /// Registers memory under one key on all NICs and links. Peers that have the descriptor may use it as `access` says.
    /// Nothing is pinned or copied.
    pub fn reg_mr(
        &self,
        region: Arc<Region>,
        access: Access,
    ) -> Result<(MemoryRegion, MrDescriptor), TransferError> {
        let shared = &self.shared;
        shared.check_process()?;
        TransferError::check_at_least_one("bytes", region.len())?;
        let key = Key(u64::from_le_bytes(random()?));
        for it in &shared.engines {
            let region = Arc::clone(&region);
            it.engine.register_as(key, DOMAIN, access, region);
        }
        let descriptor = MrDescriptor {
            engine: shared.address.clone(),
            key,
            bytes: region.len(),
            access,
        };
        let handle = MemoryRegion::new(region, descriptor.clone(), Arc::downgrade(shared));
        Ok((handle, descriptor))
    }

    /// Allocates zeros, at least 1 byte, and registers them for all access. Other processes may map them.
    pub fn alloc(&self, bytes: u64) -> Result<(MemoryRegion, MrDescriptor), TransferError> {
        TransferError::check_at_least_one("bytes", bytes)?;
        let region = Region::memfd("weft-memory", bytes)?;
        self.reg_mr(Arc::new(region), Access::ALL)
    }

    /// Posts `count` buffers of `bytes` bytes that the messages of all peers share, once for an engine. A message frees its
    /// buffer when its turn to be handled comes.
    pub fn submit_recvs(
        &self,
        bytes: u64,
        count: u64,
        handler: MessageHandler,
    ) -> Result<(), TransferError> {
        let shared = &self.shared;
        shared.check_process()?;
        let engines = &shared.engines;
        shared.receives.submit(engines, bytes, count, handler)
    }

    /// A word of 64 bits, 0 at first, which this or another process or a device increments. `handler` gets its old and new
    /// value within about [`TransferEngineConfig::watch_interval`]; several changes may come as one.
    pub fn alloc_watcher(&self, handler: WatchHandler) -> Result<Watcher, TransferError> {
        self.shared.check_process()?;
        self.shared.callbacks.watch(handler)
    }

    /// Ends what this engine has under way with a peer, and its connections to it. The next operation connects again.
    pub fn remove_peer(&self, peer: &EngineAddress) {
        if self.shared.check_process().is_err() {
            return;
        }
        let peer = lock(&self.shared.peers).remove(&peer.token);
        self.shared.end_peer(peer, &Cause::EndedHere);
    }

    /// Moves what there is to move and ends what has ended, for an engine with [`Progress::Inline`]. Answers at once, and whether
    /// there was anything to do; false as well while another thread polls. [`crate::Operation::wait`] polls, too.
    pub fn poll(&self) -> Result<bool, TransferError> {
        self.shared.check_process()?;
        match &self.shared.polled {
            Some(polled) => Ok(self.shared.poll(polled)?),
            None => Err(TransferError::Invalid {
                field: "progress",
                problem: "is Threads: only an engine that was started with Inline is polled",
            }),
        }
    }

    /// The link to a peer, and why it is that one. `None` while this engine is not connected to it.
    pub fn link(&self, peer: &EngineAddress) -> Option<LinkInUse> {
        self.shared.check_process().ok()?;
        let peers = lock(&self.shared.peers);
        let session = peers.get(&peer.token)?.session.as_ref()?;
        session.link.get().map(|(link, _)| link.clone())
    }

    /// The pairs of NICs of this engine and of its peers, over UDP and TCP, and how many paths of each carry data: those of
    /// a NIC that is down, or that does not reach the other one, carry none. Only pairs of connected peers are there.
    pub fn nic_pairs(&self) -> Result<Vec<NicPair>, TransferError> {
        self.shared.check_process()?;
        let mut pairs = Vec::new();
        let engines = self.shared.engines.iter();
        let engines = engines.filter(|it| it.link != LinkKind::Shm);
        let peers = engines.flat_map(|it| it.engine.snapshot().peers);
        for pair in peers.flat_map(|peer| peer.nic_pairs) {
            pair.add_to(&mut pairs);
        }
        Ok(pairs)
    }

    /// The counter of an immediate, read without a lock. [`TransferEngine::free_imm`] ends it: then take a new one.
    pub fn imm_counter(&self, immediate: u32) -> ImmCounter {
        self.shared.counters.counter(immediate)
    }

    /// Who moves bytes.
    pub fn progress(&self) -> Progress {
        self.shared.config.progress
    }

    /// Ends all that is under way; peers notice at once. When it returns no callback runs, unless a callback has called it,
    /// and calls that begin something fail with [`TransferError::Closed`]. While another thread closes the engine, and in a
    /// forked process, it does nothing.
    pub fn close(&self) {
        let shared = &self.shared;
        if shared.check_process().is_err() {
            return;
        }
        let threads = std::mem::take(&mut *lock(&self.threads));
        if threads.is_empty() {
            return;
        }
        let mut threads = threads.into_iter();
        let _ = shared.to_control.send(None);
        threads.next().into_iter().for_each(join);
        shared.end();
        let _ = shared.to_events.send(Wake::Stop);
        threads.next().into_iter().for_each(join);
        shared.callbacks.end();
        threads.for_each(join);
    }

    /// What the engine has.
    pub fn counts(&self) -> Result<Counts, TransferError> {
        let shared = &self.shared;
        shared.check_process()?;
        let snapshots: Vec<_> = shared
            .engines
            .iter()
            .map(|it| it.engine.snapshot())
            .collect();
        Ok(Counts {
            peers: lock(&shared.peers).len(),
            connections: snapshots.iter().map(|it| it.connections.len()).sum(),
            operations: shared.operations().len(),
            counters: shared.counters.len(),
            // Without the one that links are measured with.
            regions: snapshots.first().map_or(0, |it| it.regions.armed - 1),
        })
    }
}

impl Drop for TransferEngine {
    fn drop(&mut self) {
        if self.shared.check_process().is_err() {
            // The threads are in another process. Files and memory end with this one.
            std::mem::forget(Arc::clone(&self.shared));
            let threads = std::mem::take(&mut *lock(&self.threads));
            return threads.into_iter().for_each(std::mem::forget);
        }
        self.close();
    }
}

impl fmt::Debug for TransferEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransferEngine({})", self.shared.address.name())
    }
}
