//! An engine in a node of a fabric. Every call of the benchmarks to the engine is in this file.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};
use weft_engine::{
    ConnectionId, DomainId, Encryption, Engine, EngineConfig, Event, Key, LinkKind, Nanos,
    NicAddresses, PolicyKind, PortRange, Progress, Region, RemoteEnd, SIGNAL, Secret, WriteRequest,
};
use weft_identity::metrics;

use super::BenchError;

/// The protection domain of all connections and regions.
const DOMAIN: DomainId = DomainId(0);

/// What an engine is started with.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The node's NICs.
    pub nics: NicAddresses,
    /// Its ports.
    pub ports: PortRange,
    /// Bytes of an IP packet.
    pub mtu: u16,
    /// Paths between two engines.
    pub paths: u16,
    /// Who chooses the paths; the engine's default when absent.
    pub policy: Option<PolicyKind>,
    /// Over what.
    pub link: LinkKind,
    /// Who runs the workers.
    pub progress: Progress,
    /// Over how many workers a connection is split.
    pub split: u16,
    /// How long a worker polls before it sleeps; the engine's default when absent.
    pub spin: Option<Duration>,
    /// Whether connections are encrypted.
    pub encryption: Encryption,
    /// Of the path policy.
    pub seed: u64,
}

/// An engine.
pub struct Host {
    engine: Engine,
}

/// One end of a connection. Ends that [`connect_many`] makes at one host share one event queue.
#[derive(Debug, Clone)]
pub struct End {
    id: ConnectionId,
    events: Receiver<Event>,
}

/// Bytes to send, shared with the engine while a write of them is under way.
#[derive(Debug, Clone)]
pub struct Source(Arc<Box<[u8]>>);

/// A region that the peer may write to, as the peer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target(Key);

/// A region at the end that has it.
#[derive(Debug)]
pub struct Landing {
    /// What the peer writes to.
    pub target: Target,
    memory: Arc<Region>,
}

/// A one-sided write of the first `bytes` of `source`.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// What is sent.
    pub source: &'a Source,
    /// How much of it.
    pub bytes: usize,
    /// The peer's region.
    pub target: Target,
    /// Where in it.
    pub offset: u64,
    /// Tells the peer that the message is there.
    pub immediate: Option<u32>,
    /// Comes back in [`Happened::Written`].
    pub context: u64,
}

/// What an end is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A write was acknowledged whole.
    Written {
        /// The write's own word.
        context: u64,
    },
    /// A message with an immediate is in its region whole.
    Arrived {
        /// The immediate.
        immediate: u32,
    },
    /// An immediate without bytes is there.
    Signal {
        /// The immediate.
        immediate: u32,
    },
}

impl Setup {
    fn config(self, node_key: Secret) -> EngineConfig {
        let mut config = EngineConfig::over(self.link, self.nics, self.ports, node_key);
        config.mtu = self.mtu;
        config.paths = self.paths;
        config.progress = self.progress;
        config.split = self.split;
        config.encryption = self.encryption;
        config.seed = Some(self.seed);
        if let Some(policy) = self.policy {
            config.policy = policy;
        }
        if let Some(spin) = self.spin {
            config.spin = Nanos::from_micros(spin.as_micros() as u64);
        }
        config
    }
}

impl Host {
    /// Starts an engine in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn start(setup: Setup) -> Result<Self, BenchError> {
        let engine = Engine::start(setup.config(Secret([9; 32])))?;
        Ok(Self { engine })
    }

    /// The policy in force.
    pub fn policy(&self) -> PolicyKind {
        self.engine.config().policy
    }

    /// Whether its worker runs in [`Host::poll`] only.
    pub fn is_inline(&self) -> bool {
        self.engine.config().progress == Progress::Inline
    }

    /// How long a worker polls before it sleeps.
    pub fn spin(&self) -> Duration {
        Duration::from_nanos(self.engine.config().spin.get())
    }

    /// Bytes of a full datagram.
    pub fn datagram_bytes(&self) -> u16 {
        self.engine.settings().packet_bytes() as u16
    }

    /// Payload bytes of a full chunk.
    pub fn chunk_payload(&self) -> usize {
        let settings = self.engine.settings();
        settings.chunk_packets() as usize * usize::from(settings.packet_payload)
    }

    /// Chunks sent on each path to the only peer.
    pub fn chunks_by_path(&self) -> Vec<u64> {
        let snapshot = self.engine.snapshot();
        let peer = snapshot.peers.first();
        peer.map(|peer| peer.paths.iter().map(|path| path.sent_chunks).collect())
            .unwrap_or_default()
    }

    /// Packets sent by each part of an end's connection.
    pub fn packets_by_part(&self, end: &End) -> Vec<u64> {
        let connections = self.engine.snapshot().connections;
        let parts = connections.iter().filter(|part| part.id == end.id);
        parts.map(|part| part.stats.packets_sent).collect()
    }

    /// Makes a region of these bytes.
    pub fn register(&self, bytes: Vec<u8>) -> Landing {
        let memory = Region::share(bytes);
        Landing {
            target: Target(self.engine.register(DOMAIN, Arc::clone(&memory))),
            memory,
        }
    }

    /// Ends a region.
    pub fn deregister(&self, target: Target) {
        self.engine.deregister(target.0);
    }

    /// Posts a write.
    ///
    /// # Errors
    /// [`BenchError::Engine`].
    pub fn write(&self, end: &End, write: Write<'_>) -> Result<(), BenchError> {
        Ok(self.engine.write(WriteRequest {
            connection: end.id,
            source: Arc::clone(&write.source.0).into(),
            source_offset: 0,
            bytes: write.bytes as u64,
            key: write.target.0,
            offset: write.offset,
            immediate: write.immediate,
            context: write.context,
        })?)
    }

    /// Ends this end's connection.
    pub fn close(&self, end: &End) {
        self.engine.close(end.id);
    }

    /// Runs the worker of an engine without threads once.
    ///
    /// # Errors
    /// [`BenchError::Engine`].
    pub fn poll(&mut self) -> Result<(), BenchError> {
        self.engine.poll(Duration::ZERO)?;
        Ok(())
    }

    /// The length of the page that an agent with this engine gives Prometheus.
    pub fn scrape(&self) -> usize {
        let registry = weft_agent::metrics::registry_of(self.engine.snapshot(), Vec::new());
        metrics::page(&registry).2.len()
    }

    /// CPU time that the worker threads have used.
    pub fn worker_cpu(&self) -> Duration {
        self.engine.snapshot().cpu
    }
}

/// Connects two hosts `count` times. The ends of a host share one event queue.
///
/// # Errors
/// [`BenchError::Engine`].
pub fn connect_many(
    sender: &Host,
    receiver: &Host,
    count: usize,
) -> Result<Vec<(End, End)>, BenchError> {
    // Both ends are in this process, so the secrets protect nothing.
    let secrets = [Secret([1; 32]), Secret([2; 32])];
    let (to_near, near_events): (Sender<Event>, _) = unbounded();
    let (to_far, far_events): (Sender<Event>, _) = unbounded();
    (0..count)
        .map(|_| {
            let near = sender.engine.allocate(DOMAIN, secrets[0].clone());
            let far = receiver.engine.allocate(DOMAIN, secrets[1].clone());
            let (near_id, far_id) = (near.id, far.id);
            receiver.engine.connect(
                far_id,
                RemoteEnd::new("peer".into(), &near, secrets[0].clone()),
                to_far.clone(),
            )?;
            sender.engine.connect(
                near_id,
                RemoteEnd::new("peer".into(), &far, secrets[1].clone()),
                to_near.clone(),
            )?;
            let end = |id, events: &Receiver<Event>| End {
                id,
                events: events.clone(),
            };
            Ok((end(near_id, &near_events), end(far_id, &far_events)))
        })
        .collect()
}

impl End {
    /// The next thing that happens, if it does within `limit`.
    ///
    /// # Errors
    /// [`BenchError::Failed`]: the connection is over.
    pub fn wait(&self, limit: Duration) -> Result<Option<Happened>, BenchError> {
        match self.events.recv_timeout(limit) {
            Ok(event) => happened(&event),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }

    /// What has happened already, if anything has.
    ///
    /// # Errors
    /// [`BenchError::Failed`]: the connection is over.
    pub fn take(&self) -> Result<Option<Happened>, BenchError> {
        match self.events.try_recv() {
            Ok(event) => happened(&event),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
        }
    }
}

fn happened(event: &Event) -> Result<Option<Happened>, BenchError> {
    match *event {
        Event::Written { context, .. } => Ok(Some(Happened::Written { context })),
        Event::Delivered { immediate, .. } => Ok(Some(Happened::Arrived { immediate })),
        Event::Signal { immediate, .. } => Ok(Some(Happened::Signal { immediate })),
        Event::Failed { failure, .. } => Err(BenchError::Failed(failure)),
        Event::Completed { .. }
        | Event::Cancelled { .. }
        | Event::Refused { .. }
        | Event::Received { .. }
        | Event::RequestFailed { .. }
        | Event::Closed { .. } => Ok(None),
    }
}

fn gone() -> BenchError {
    BenchError::Panicked("an engine's worker")
}

impl Source {
    /// These bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(bytes.into()))
    }

    /// No bytes: for an immediate alone.
    pub fn empty() -> Self {
        Self::new(Vec::new())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Writes `head` over the first bytes. Call it only when no write of them is under way.
    pub fn set_head(&mut self, head: &[u8]) {
        if let Some(bytes) = Arc::get_mut(&mut self.0) {
            bytes[..head.len()].copy_from_slice(head);
        }
    }
}

impl Target {
    /// For an immediate without bytes, which goes to no region.
    pub const NONE: Self = Self(SIGNAL);
}

impl Landing {
    /// Copies what lies at `offset` of the region; it has to be all inside.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.memory
            .read(offset, out)
            .expect("the caller asks for what it registered");
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.memory.len()
    }
}
