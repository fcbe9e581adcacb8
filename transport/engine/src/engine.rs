//! The handle: checks what is asked, names things, and passes commands on.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded, unbounded};
use weft_core::connection::{CancelError, PostError, ReceiveBuffer, Settings, WorkRequest, Write};
use weft_core::endpoint::Local;
use weft_core::units::{ConnectionId, Key};
use weft_core::wire::Secret;
use weft_crypto::part_secret;
use weft_link::{LinkAddress, LinkError, RouteProbe};

use crate::command::{Command, Outgoing, Queue};
use crate::config::{Egress, EgressReport, EngineConfig, Progress};
use crate::ends::{EndPart, LocalEnd, RemoteEnd};
use crate::error::EngineError;
use crate::event::Event;
use crate::identity::{Names, ResetKeys, worker_of_connection};
use crate::parts::{Choice, Parts};
use crate::pinned::Pinned;
use crate::post::{Piece, Pieces, Post};
use crate::saved::{SavedConnection, SavedEngine};
use crate::shared_receives::SharedReceiveQueue;
use crate::snapshot::Snapshot;
use crate::worker::{SENT_BY_CALLER_BYTES_MAX, Worker};
use weft_core::memory::{Access, DomainId};
use weft_memory::{Region, RegionTable, Source};

/// A one-sided write of one piece; [`Post`] is the general form.
#[derive(Debug, Clone)]
pub struct WriteRequest {
    /// On which connection.
    pub connection: ConnectionId,
    /// Where the bytes lie. Shared, so that one block can be on its way to several peers.
    pub source: Source,
    /// Where in the source they begin.
    pub source_offset: u64,
    /// How many of them.
    pub bytes: u64,
    /// The peer's region; [`crate::SIGNAL`] for an immediate without bytes.
    pub key: Key,
    /// Where in it.
    pub offset: u64,
    /// Tells the peer that the message is there.
    pub immediate: Option<u32>,
    /// Comes back in [`Event::Written`].
    pub context: u64,
}

/// What an id that is in use stands for.
enum End {
    /// An end with these parts, itself first.
    Allocated(Vec<ConnectionId>),
    Connected(Arc<Parts>),
    /// A part after the first: its user does not call it by this id.
    Part,
}

type Ends = BTreeMap<ConnectionId, End>;

/// A running engine. Dropping it ends its workers and its connections; peers notice by a Reset
/// from the next engine on these ports, or by silence.
pub struct Engine {
    config: EngineConfig,
    settings: Settings,
    names: Names,
    regions: RegionTable<Region>,
    reset_keys: ResetKeys,
    /// Of each worker.
    queues: Arc<[Queue]>,
    /// The holder of a worker's lock runs it: its thread, a caller that posts, or [`Engine::poll`].
    workers: Vec<Arc<Mutex<Worker>>>,
    /// Of each worker; none where the caller polls.
    threads: Vec<JoinHandle<()>>,
    /// The ends there are, so that a wrong id is refused at once.
    ends: Mutex<Ends>,
    /// Made where the ports were bound, so that it asks about the same network namespace.
    routes: Mutex<RouteProbe>,
}

impl Engine {
    /// Binds the ports and starts the workers.
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        Self::start_with(config, None)
    }

    /// The same for an engine that goes on as one that was saved: peers take it for that one.
    /// [`Engine::restore`] brings the connections.
    ///
    /// # Errors
    /// Those of [`Engine::start`].
    pub fn start_as(config: EngineConfig, incarnation: u64) -> Result<Self, EngineError> {
        Self::start_with(config, Some(incarnation))
    }

    /// Takes a connection over from an engine that was saved, before the first [`Engine::poll`]. Its events go to `events`,
    /// as after [`Engine::connect`]. By then the regions that it names must be registered by the same keys
    /// ([`Engine::register_as`]), and its shared receives given.
    ///
    /// # Errors
    /// [`EngineError::NotInline`]; [`EngineError::AlreadyConnected`]; [`EngineError::NotRestored`] and
    /// [`EngineError::Link`]: this connection is lost, and its peer is told by a Reset. No other one is.
    pub fn restore(
        &self,
        connection: SavedConnection,
        events: Sender<Event>,
    ) -> Result<(), EngineError> {
        let id = connection.id;
        let mut worker = self.inline().ok_or(EngineError::NotInline)?;
        let mut ends = self.ends();
        if ends.contains_key(&id) {
            return Err(EngineError::AlreadyConnected { id });
        }
        let parts = Arc::new(Parts::new(&[id], events));
        worker.restore(connection, Arc::clone(&parts))?;
        ends.insert(id, End::Connected(parts));
        Ok(())
    }

    /// Carries out what was asked of an inline engine, and reports what has happened, without taking a packet: so it comes to an
    /// end. Answers whether there was an event.
    ///
    /// # Errors
    /// [`EngineError::NotInline`].
    pub fn report(&self) -> Result<bool, EngineError> {
        let mut worker = self.inline().ok_or(EngineError::NotInline)?;
        Ok(worker.settle())
    }

    /// Ends an inline engine, whose open connections may go on in another one with the same configuration. What has happened
    /// on them is reported before. Not saved: ends that were not connected; connections that have failed, so that no
    /// [`Event::Closed`] answers their close; counters; wakers; what [`Engine::set_egress`] has changed.
    ///
    /// # Errors
    /// [`EngineError::NotInline`]: the engine has ended, and its connections with it.
    pub fn save(mut self) -> Result<SavedEngine, EngineError> {
        if self.inline().is_none() {
            return Err(EngineError::NotInline);
        }
        // Nobody else holds an inline worker.
        let worker = self.workers.pop().and_then(Arc::into_inner);
        let worker = worker.ok_or(EngineError::NotInline)?;
        let worker = worker.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(SavedEngine {
            incarnation: self.names.incarnation,
            connections: worker.save(),
        })
    }

    fn start_with(config: EngineConfig, incarnation: Option<u64>) -> Result<Self, EngineError> {
        config.check()?;
        let settings = config.settings();
        let names = Names::draw(incarnation)?;
        let seed = config.seed.unwrap_or(names.seed);
        let reset_keys = ResetKeys::new(&config.node_key);
        let regions = RegionTable::default();
        let count = config.workers();
        // All ports are bound before any thread runs: a taken one leaves nothing behind.
        let (mut made, mut queues) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for index in 0..count {
            let (commands, queue) = unbounded();
            let keys = reset_keys.clone();
            let seed = seed.wrapping_add(index as u64);
            let _pinned = config.cpu(index).map(Pinned::to).transpose()?;
            let worker = Worker::new(index, &config, keys, seed, regions.reader(), queue)?;
            queues.push(Queue {
                commands,
                doze: worker.doze(),
            });
            made.push(worker);
        }
        let mut engine = Self {
            settings,
            names,
            regions,
            reset_keys,
            queues: queues.into(),
            threads: Vec::with_capacity(count),
            workers: Vec::with_capacity(count),
            ends: Mutex::new(BTreeMap::new()),
            routes: Mutex::new(RouteProbe::bind(&config.address)?),
            config,
        };
        for (index, mut worker) in made.into_iter().enumerate() {
            worker.join(Arc::clone(&engine.queues));
            let worker = Arc::new(Mutex::new(worker));
            engine.workers.push(Arc::clone(&worker));
            if let Progress::Threads(_) = engine.config.progress {
                let _pinned = engine.config.cpu(index).map(Pinned::to).transpose()?;
                let thread = std::thread::Builder::new()
                    .name(format!("weft-worker-{index}"))
                    .spawn(move || Worker::run(&worker))
                    .map_err(|source| EngineError::System {
                        call: "spawn thread",
                        source,
                    })?;
                engine.threads.push(thread);
            }
        }
        tracing::info!(
            address = %engine.config.address,
            workers = count,
            packet_payload = engine.settings.packet_payload,
            chunk_bytes = engine.settings.chunk_bytes,
            "engine started"
        );
        Ok(engine)
    }

    /// What the engine was started with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What the peer of every connection must share.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Makes one end of a connection. `receive_secret` is drawn by the caller from the operating
    /// system's randomness and told to the peer only. Packets that arrive before `connect` are
    /// dropped, and resent by the peer. The secrets of the parts of a split connection follow from it.
    pub fn allocate(&self, domain: DomainId, receive_secret: Secret) -> LocalEnd {
        let in_order = false;
        self.allocate_parts(
            Local {
                domain,
                receive_secret,
                in_order,
            },
            self.config.split.into(),
        )
    }

    /// As [`Engine::allocate`]; the peer's messages are placed and reported here in the order in which they were posted, as
    /// of a reliable connected queue pair, and this end's complete in the order of posting. The other packets of a message
    /// than its last one are placed as they come. Such a connection is never split.
    pub fn allocate_in_order(&self, domain: DomainId, receive_secret: Secret) -> LocalEnd {
        let in_order = true;
        self.allocate_parts(
            Local {
                domain,
                receive_secret,
                in_order,
            },
            1,
        )
    }

    /// An end of an engine that was saved, allocated and not connected there, allocated here under the same id.
    ///
    /// # Errors
    /// [`EngineError::AlreadyConnected`]: the id is in use.
    pub fn allocate_as(
        &self,
        id: ConnectionId,
        domain: DomainId,
        receive_secret: Secret,
    ) -> Result<LocalEnd, EngineError> {
        let mut ends = self.ends();
        if ends.contains_key(&id) {
            return Err(EngineError::AlreadyConnected { id });
        }
        ends.insert(id, End::Allocated(vec![id]));
        let local = Local {
            domain,
            receive_secret,
            in_order: true,
        };
        self.command(worker_of_connection(id), Command::Allocate { id, local });
        Ok(self.local_end(id))
    }

    /// This end of a connection, as the peer was told of it.
    pub fn local_end(&self, id: ConnectionId) -> LocalEnd {
        LocalEnd {
            id,
            settings: self.settings,
            address: self.address_of_worker(worker_of_connection(id)),
            incarnation: self.names.incarnation,
            reset_key: self.reset_keys.of(id),
            others: Vec::new(),
        }
    }

    fn allocate_parts(&self, local: Local, parts: usize) -> LocalEnd {
        let first = self.worker_of_domain(local.domain);
        let workers = (first..first + parts).map(|w| w % self.queues.len());
        let ids: Vec<ConnectionId> = {
            let mut ends = self.ends();
            let mut draw = |worker| {
                // 24 bits of ids come round again: one that is still in use is passed over.
                let id = std::iter::repeat_with(|| self.names.connection(worker))
                    .find(|id| !ends.contains_key(id))
                    .unwrap_or_default();
                ends.insert(id, End::Part);
                id
            };
            let ids: Vec<_> = workers.map(&mut draw).collect();
            ends.insert(ids[0], End::Allocated(ids.clone()));
            ids
        };
        let mut parts = (0..).zip(ids).map(move |(part, id)| {
            let worker = worker_of_connection(id);
            let local = Local {
                receive_secret: part_secret(&local.receive_secret, part),
                ..local
            };
            self.command(worker, Command::Allocate { id, local });
            EndPart {
                id,
                address: self.address_of_worker(worker),
                reset_key: self.reset_keys.of(id),
            }
        });
        let first = parts.next().expect("there is a part at least");
        LocalEnd {
            id: first.id,
            settings: self.settings,
            address: first.address,
            incarnation: self.names.incarnation,
            reset_key: first.reset_key,
            others: parts.collect(),
        }
    }

    /// Joins an allocated end to the peer's. Events go to `events`, which must be unbounded: a
    /// worker that had to wait for its reader would stop every other connection.
    pub fn connect(
        &self,
        local: ConnectionId,
        remote: RemoteEnd,
        events: Sender<Event>,
    ) -> Result<(), EngineError> {
        if let Some(difference) = self.settings.difference(&remote.settings) {
            return Err(EngineError::SettingsDiffer {
                peer: Box::new(remote.address),
                difference,
            });
        }
        let ids = allocated(&self.ends(), local)?.to_vec();
        let remotes = remote.parts(ids.len());
        for (&id, remote) in ids.iter().zip(&remotes) {
            self.check_reachable(id, &remote.address)?;
        }
        let (joined, left_over) = ids.split_at(remotes.len());
        let parts = Arc::new(Parts::new(joined, events));
        let mut ends = self.ends();
        // Another thread may have connected it since.
        allocated(&ends, local)?;
        ends.insert(local, End::Connected(Arc::clone(&parts)));
        for id in left_over {
            ends.remove(id);
        }
        // Under the lock: no other thread's call on this connection overtakes these.
        for (&id, remote) in joined.iter().zip(remotes) {
            self.command(
                worker_of_connection(id),
                Command::Connect {
                    id,
                    remote: Box::new(remote),
                    parts: Arc::clone(&parts),
                },
            );
        }
        // The peer has no parts for these.
        for &id in left_over {
            self.command(worker_of_connection(id), Command::Close { id });
        }
        Ok(())
    }

    /// Whether the worker of `local` can send to `peer` on as many paths as are wanted, whole packets.
    fn check_reachable(&self, local: ConnectionId, peer: &LinkAddress) -> Result<(), EngineError> {
        peer.check()?;
        let here = self.address_of_worker(worker_of_connection(local));
        let pairs = here.paths_to(peer);
        if pairs == 0 {
            let (address, peer) = (here.to_string(), peer.to_string());
            return Err(LinkError::OtherLink { address, peer }.into());
        }
        if u32::from(self.config.paths) > pairs {
            return Err(EngineError::TooFewPairs {
                local: Box::new(here),
                peer: Box::new(*peer),
                pairs,
                paths: self.config.paths,
            });
        }
        let mut routes = self.routes();
        match peer {
            LinkAddress::Udp { .. } => Ok(routes.check_mtu(peer, self.config.mtu)?),
            // Only that there is a route.
            LinkAddress::Tcp { .. } => Ok(routes.mtu(peer).map(|_| ())?),
            // There is no route.
            LinkAddress::Shm { .. } => Ok(()),
        }
    }

    /// Opens a region to the writes of connections of `domain` that know the key, on every worker.
    pub fn register(&self, domain: DomainId, region: Arc<Region>) -> Key {
        self.register_for(domain, Access::WRITE, region)
    }

    /// The same for what `access` says.
    pub fn register_for(&self, domain: DomainId, access: Access, region: Arc<Region>) -> Key {
        let key = self.names.key();
        self.regions.register(key, domain, access, region);
        key
    }

    /// The same, with a key that the caller has drawn: nobody may guess it, and it is used once.
    pub fn register_as(&self, key: Key, domain: DomainId, access: Access, region: Arc<Region>) {
        self.regions.register(key, domain, access, region);
    }

    /// Stops placements into a region and hands it to its owner: from here on no byte lands, and peers
    /// that write to it try again until [`Engine::arm`]. `None` when it is not armed or not registered.
    pub fn take(&self, key: Key) -> Option<Arc<Region>> {
        self.regions.take(key)
    }

    /// Lets a region receive again, into the same memory or other. A deregistered region stays so.
    pub fn arm(&self, key: Key, region: Arc<Region>) {
        self.regions.arm(key, region);
    }

    /// Closes a region: from here on no byte lands. `None` when it was not armed or not registered.
    pub fn deregister(&self, key: Key) -> Option<Arc<Region>> {
        self.regions.deregister(key)
    }

    /// Posts a write of one piece. The engine queues without limit: the caller bounds what it has under way
    /// (by slots and credits, say). The end is reported by [`Event::Written`] or
    /// [`Event::Failed`].
    pub fn write(&self, request: WriteRequest) -> Result<(), EngineError> {
        let piece = Piece {
            source: request.source,
            offset: request.source_offset,
            bytes: request.bytes,
        };
        piece.check()?;
        let write = Write {
            token: request.context,
            bytes: request.bytes,
            key: request.key,
            offset: request.offset,
            immediate: request.immediate,
        };
        self.post_pieces(request.connection, write.into(), Pieces::One(piece))
    }

    /// Posts a work request, as [`Engine::write`]. The end is reported by [`Event::Completed`] or [`Event::Failed`].
    pub fn post(&self, post: Post) -> Result<(), EngineError> {
        let pieces = Pieces::many(post.pieces)?;
        self.post_pieces(post.connection, post.request, pieces)
    }

    fn post_pieces(
        &self,
        id: ConnectionId,
        request: WorkRequest,
        pieces: Pieces,
    ) -> Result<(), EngineError> {
        let (bytes, pieces_bytes) = (request.bytes(), pieces.bytes());
        if bytes != pieces_bytes {
            return Err(EngineError::PiecesDiffer {
                bytes,
                pieces_bytes,
            });
        }
        if let WorkRequest::Write(write) = &request
            && bytes == 0
            && write.immediate.is_none()
        {
            return Err(EngineError::EmptyWrite);
        }
        request.check(&self.settings)?;
        let bytes = request.load();
        let choice = match &request {
            WorkRequest::Write(_) | WorkRequest::WritePages(_) => Choice::Least,
            WorkRequest::Send(_) | WorkRequest::ReportWrite(_) => Choice::First,
            WorkRequest::Read(_) | WorkRequest::Atomic(_) => Choice::Request,
        };
        let part = self.connected(id, |parts| parts.choose(choice, bytes))?;
        let id = part.ok_or(PostError::TooManyRequests)?;
        let post = Outgoing {
            context: request.token(),
            request,
            pieces,
            bytes,
        };
        self.send_post(id, post);
        Ok(())
    }

    /// Cancels a write or a read that was posted on this connection with `context`, which no other one has that is under
    /// way there. Exactly one event follows: [`Event::Cancelled`], when no byte of it lands any more; or [`Event::Written`] or
    /// [`Event::Completed`], when all of it had arrived before; or the connection's end. The peer answers when the copies of it
    /// that are under way have ended; without an answer for [`EngineConfig::stall_timeout`] the connection fails. The key, and
    /// what else is under way, stay as they are. Once more changes nothing.
    ///
    /// Waits for the workers' answers, some microseconds.
    ///
    /// # Errors
    /// [`EngineError::Cancel`]: the work request goes on, or has ended, and its event is there or on its way.
    pub fn cancel(&self, connection: ConnectionId, context: u64) -> Result<(), EngineError> {
        let ids: Vec<ConnectionId> = self.connected(connection, |parts| parts.ids().collect())?;
        let answers: Vec<Result<(), CancelError>> = match self.inline() {
            Some(mut worker) => ids
                .iter()
                .map(|&id| worker.cancel_now(id, context))
                .collect(),
            None => {
                let (answer, answers) = bounded(ids.len());
                for id in ids {
                    let answer = answer.clone();
                    let command = Command::Cancel {
                        id,
                        context,
                        answer,
                    };
                    self.command(worker_of_connection(id), command);
                }
                drop(answer);
                answers.iter().collect()
            }
        };
        // The part that has it knows; the others say that they have not.
        let knows = |answer: &&Result<(), CancelError>| **answer != Err(CancelError::NotUnderWay);
        match answers
            .iter()
            .find(|answer| answer.is_ok())
            .or(answers.iter().find(knows))
        {
            Some(&answer) => Ok(answer?),
            None => Err(CancelError::NotUnderWay.into()),
        }
    }

    /// Has a small message sent by the calling thread when nobody else runs the worker, or waits to, and no command
    /// waits. What one thread posts is sent in the order in which it was posted.
    fn send_post(&self, id: ConnectionId, post: Outgoing) {
        let worker = worker_of_connection(id);
        if post.bytes <= SENT_BY_CALLER_BYTES_MAX
            && let Some(queue) = self.queues.get(worker)
            && !queue.doze.is_waiting()
            && let Some(worker) = self.workers.get(worker)
            && let Ok(mut worker) = worker.try_lock()
            && worker.takes_posts()
        {
            worker.post_now(id, post);
            return;
        }
        self.command(worker, Command::Post { id, post });
    }

    /// Posts a buffer for a send of the peer, in a region that is registered for writes. [`Event::Received`] brings its
    /// token as `context`.
    pub fn post_receive(
        &self,
        connection: ConnectionId,
        buffer: ReceiveBuffer,
    ) -> Result<(), EngineError> {
        let id = self.connected(connection, Parts::name)?;
        self.command(worker_of_connection(id), Command::Receive { id, buffer });
        Ok(())
    }

    /// Changes what the peer may do to regions, which [`RemoteEnd::access`] said at first. For a connection of
    /// [`Engine::allocate_in_order`].
    pub fn set_access(&self, connection: ConnectionId, access: Access) -> Result<(), EngineError> {
        let id = self.connected(connection, Parts::name)?;
        self.command(worker_of_connection(id), Command::SetAccess { id, access });
        Ok(())
    }

    /// Whether a connection does not fail as long as its peer answers that it has no buffer for a send. At first it fails
    /// after [`EngineConfig::stall_timeout`]. For a connection of [`Engine::allocate_in_order`].
    pub fn set_waits_for_receiver(
        &self,
        connection: ConnectionId,
        waits: bool,
    ) -> Result<(), EngineError> {
        let id = self.connected(connection, Parts::name)?;
        let command = Command::SetWaitsForReceiver { id, waits };
        self.command(worker_of_connection(id), command);
        Ok(())
    }

    /// Whether a connection goes on when its peer refuses a write, a read or an atomic for good, because of its key or its place: then
    /// [`Event::Refused`] is the end of that one alone. At first the connection ends with it, and so does one of
    /// [`Engine::allocate_in_order`] in any case.
    pub fn set_survives_refusals(
        &self,
        connection: ConnectionId,
        survives: bool,
    ) -> Result<(), EngineError> {
        let parts = |parts: &Parts| parts.ids().collect::<Vec<_>>();
        for id in self.connected(connection, parts)? {
            let command = Command::SetSurvivesRefusals { id, survives };
            self.command(worker_of_connection(id), command);
        }
        Ok(())
    }

    /// Sends of the peer of a connection of [`Engine::allocate_in_order`] that find no buffer posted take one of these.
    /// Buffers that it has taken and not filled go back when the connection is closed.
    pub fn share_receives(
        &self,
        connection: ConnectionId,
        shared: Arc<SharedReceiveQueue>,
    ) -> Result<(), EngineError> {
        let id = self.connected(connection, Parts::name)?;
        self.command(
            worker_of_connection(id),
            Command::ShareReceives { id, shared },
        );
        Ok(())
    }

    fn connected<R>(
        &self,
        id: ConnectionId,
        use_parts: impl FnOnce(&Parts) -> R,
    ) -> Result<R, EngineError> {
        match self.ends().get(&id) {
            None | Some(End::Part) => Err(EngineError::UnknownConnection { id }),
            Some(End::Allocated(_)) => Err(EngineError::NotConnected { id }),
            Some(End::Connected(parts)) => Ok(use_parts(parts)),
        }
    }

    /// Ends a connection at once, whatever is under way; [`Event::Closed`] confirms it. An end that
    /// was never connected is forgotten without an event.
    pub fn close(&self, connection: ConnectionId) {
        let ids: Vec<ConnectionId> = {
            let mut ends = self.ends();
            let ids = match ends.get(&connection) {
                None | Some(End::Part) => return,
                Some(End::Allocated(ids)) => ids.clone(),
                Some(End::Connected(parts)) => parts.ids().collect(),
            };
            for id in &ids {
                ends.remove(id);
            }
            ids
        };
        for id in ids {
            self.command(worker_of_connection(id), Command::Close { id });
        }
    }

    /// What was counted. Waits for each worker's answer, some microseconds; an inline worker's
    /// counters are read as they are.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            regions: self.regions.counts(),
            ..self.workers_snapshot()
        }
    }

    /// What an inline engine has sent by its sockets, and whether [`Egress::cap_bps`] has had something wait.
    ///
    /// # Errors
    /// [`EngineError::NotInline`].
    pub fn take_egress_report(&self) -> Result<EgressReport, EngineError> {
        let mut worker = self.inline().ok_or(EngineError::NotInline)?;
        Ok(worker.take_egress_report())
    }

    fn workers_snapshot(&self) -> Snapshot {
        if let Some(worker) = self.inline() {
            return worker.snapshot();
        }
        let mut whole: Option<Snapshot> = None;
        for worker in 0..self.queues.len() {
            let (answer, snapshot) = bounded(1);
            self.command(worker, Command::Snapshot { answer });
            if let Ok(part) = snapshot.recv() {
                match &mut whole {
                    Some(whole) => whole.add(part),
                    None => whole = Some(part),
                }
            }
        }
        whole.unwrap_or_default()
    }

    /// Marks and limits what is sent from now on; connections go on. [`Engine::config`] still answers what the
    /// engine was started with.
    ///
    /// # Errors
    /// [`EngineError::OutOfRange`]: nothing has changed.
    pub fn set_egress(&self, egress: Egress) -> Result<(), EngineError> {
        egress.check()?;
        let Egress { dscp, cap_bps } = egress;
        let workers = self.queues.len();
        let cap_bps = cap_bps.map(|bps| bps / workers as u64);
        for worker in 0..workers {
            self.command(worker, Command::Egress { dscp, cap_bps });
        }
        Ok(())
    }

    /// Runs the worker of a `Progress::Inline` engine: serves what is there, and when that is
    /// nothing, waits at most `wait` for something. Answers whether anything was done.
    ///
    /// A call that brings an event leaves the acknowledgement of what has arrived to the next call, which
    /// sends it behind the caller's answer. A caller that works for long on an event calls once more before
    /// that, or the peer sends again.
    pub fn poll(&self, wait: Duration) -> Result<bool, EngineError> {
        let mut worker = self.inline().ok_or(EngineError::NotInline)?;
        worker.poll(wait).map_err(|source| EngineError::System {
            call: "poll",
            source,
        })
    }

    /// Has each write to an eventfd end the wait of [`Engine::poll`], also by another process that has it. Nobody needs to
    /// read it.
    pub fn add_waker(&self, eventfd: BorrowedFd<'_>) -> Result<(), EngineError> {
        self.set_waker(eventfd, true)
    }

    /// Writes to it end no wait any more.
    pub fn remove_waker(&self, eventfd: BorrowedFd<'_>) -> Result<(), EngineError> {
        self.set_waker(eventfd, false)
    }

    fn set_waker(&self, eventfd: BorrowedFd<'_>, is_added: bool) -> Result<(), EngineError> {
        let worker = self.inline().ok_or(EngineError::NotInline)?;
        let set = worker.set_waker(eventfd, is_added);
        set.map_err(|source| EngineError::System {
            call: "epoll_ctl",
            source,
        })
    }

    /// The worker that the caller runs.
    fn inline(&self) -> Option<MutexGuard<'_, Worker>> {
        let worker = match self.config.progress {
            Progress::Inline => self.workers.first()?,
            Progress::Threads(_) => return None,
        };
        Some(worker.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn address_of_worker(&self, worker: usize) -> LinkAddress {
        let workers = self.queues.len() as u16;
        self.config.address.part(worker as u16, workers)
    }

    fn worker_of_domain(&self, domain: DomainId) -> usize {
        domain.0 as usize % self.queues.len()
    }

    fn command(&self, worker: usize, command: Command) {
        // A key or an id that is not ours may name a worker that there is not.
        if let Some(queue) = self.queues.get(worker) {
            queue.send(command);
        }
    }

    fn routes(&self) -> MutexGuard<'_, RouteProbe> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        // Nothing under this lock can panic half-way.
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of an end that can be connected.
fn allocated(ends: &Ends, id: ConnectionId) -> Result<&[ConnectionId], EngineError> {
    match ends.get(&id) {
        None | Some(End::Part) => Err(EngineError::UnknownConnection { id }),
        Some(End::Connected(_)) => Err(EngineError::AlreadyConnected { id }),
        Some(End::Allocated(ids)) => Ok(ids),
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for queue in self.queues.iter() {
            queue.send(Command::Stop);
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has aborted the process.
            let _ = thread.join();
        }
    }
}

/// Shows what it is, never a secret.
impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("address", &self.config.address)
            .field("workers", &self.queues.len())
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Engine>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::os::unix::process::ExitStatusExt;
    use std::process;

    /// Set in the process that is to die.
    const DIES: &str = "WEFT_TEST_WORKER_PANICS";

    #[test]
    fn a_worker_that_panics_ends_the_process_and_is_named() {
        if std::env::var_os(DIES).is_some() {
            run_a_worker_that_panics();
        }
        let child = process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("engine::tests::a_worker_that_panics_ends_the_process_and_is_named")
            .env(DIES, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        let abort = nix::sys::signal::Signal::SIGABRT as i32;
        assert_eq!(child.status.signal(), Some(abort), "{said}");
        assert!(said.contains("'weft-worker-0'"), "{said}");
        assert!(said.contains("panicked at"), "{said}");
    }

    fn run_a_worker_that_panics() -> ! {
        let node_key = Secret([9; 32]);
        let first = process::id();
        let engine = (first..first + 100).find_map(|step| {
            let ports = weft_link::PortRange {
                first: 19_500 + (step % 400) as u16,
                count: 1,
            };
            let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, node_key.clone());
            Engine::start(config).ok()
        });
        let engine = engine.unwrap();
        let end = engine.allocate(DomainId(1), node_key.clone());
        let remote = RemoteEnd::new("peer".into(), &end, node_key);
        let (events, told) = unbounded();
        engine.connect(end.id, remote, events).unwrap();
        // More than its source has, which `write` would refuse: the worker relies on that.
        let write = Write {
            token: 0,
            bytes: 100,
            key: Key(1),
            offset: 0,
            immediate: None,
        };
        let post = Outgoing {
            request: write.into(),
            pieces: Pieces::One(Piece {
                source: Region::share(vec![0; 1]).into(),
                offset: 0,
                bytes: 100,
            }),
            context: 0,
            bytes: 100,
        };
        engine.command(0, Command::Post { id: end.id, post });
        let event = told.recv();
        panic!("the process outlived its worker: {event:?}");
    }
}
