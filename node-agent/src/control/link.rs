//! Start and Connect: the commands that make an attempt's threads and connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{bounded, unbounded};
use tokio::runtime::Handle;
use weft_core::wire::VERSION;
use weft_identity::ticket;
use weft_proto::agent::v1::start_request::Part;
use weft_proto::agent::v1::{
    Child, ConnectRequest, ConnectResponse, LocalPart, ObjectSource, Role, Slot, SourcePart,
    StartRequest, StartResponse, Ticket,
};

use crate::abort;
use crate::config::SLOTS_LEAST;
use crate::config::values::NodeName;
use crate::control::jobs::{Jobs, Prepared, Run, fingerprint};
use crate::convert;
use crate::fault::Fault;
use crate::files::copies::CopyJob;
use crate::files::{Algorithm, Entry, EntryKind, RootPath, Source};
use crate::transfer::attempt::Worker;
use crate::transfer::block_reader::{self, ShelfSupply, SourceSupply, Supply};
use crate::transfer::buffers::Pool;
use crate::transfer::dial::{Dial, draw_secret};
use crate::transfer::fanout::Room;
use crate::transfer::layout::Layout;
use crate::transfer::local::LocalCopy;
use crate::transfer::memory_account::Share;
use crate::transfer::object_receiver::{self, Fetch, FetchConfig};
use crate::transfer::peer::Peer;
use crate::transfer::receiver::{Intake, IntakeConfig};
use crate::transfer::record::SLOT_BYTES;
use crate::transfer::recorder::{Files, Recorder};
use crate::transfer::sender::{Outlet, OutletConfig, peers};
use crate::transfer::state::{Event, State, Step};

/// Children of one agent, at most: what a binomial tree of 2⁶⁴ nodes would ask for.
const CHILDREN_MAX: usize = 64;

/// A connection that was agreed on with the parent.
#[derive(Debug)]
pub(crate) struct Connected {
    request: blake3::Hash,
    parent: String,
    response: ConnectResponse,
}

/// What an outlet sends.
struct Cargo<S> {
    supply: S,
    layout: Arc<Layout>,
    ready: u32,
    is_source: bool,
    pool: Arc<Pool>,
    manifest_digest: [u8; 32],
    algorithm: Algorithm,
}

impl Jobs {
    /// Gives this agent its part and starts it.
    pub async fn start(self: &Arc<Self>, request: StartRequest) -> Result<StartResponse, Fault> {
        let job = convert::job(request.job.clone())?;
        let hash = start_fingerprint(&request);
        if request.sends_to.len() > CHILDREN_MAX {
            return Err(Fault::bad(
                "sends_to",
                format!("has more than {CHILDREN_MAX} nodes"),
            ));
        }
        let name = request.job_name;
        match convert::given(request.part, "part")? {
            Part::Source(part) => {
                if request.sends_to.is_empty() {
                    return Err(Fault::bad(
                        "sends_to",
                        "is empty at the source: name a node",
                    ));
                }
                let recorded_for = part.job_name.clone();
                let recorded_for = recorded_for.map(|name| convert::copy_job(&job, name));
                let recorded_for = recorded_for.transpose()?;
                let run = self.admit(&job).await?;
                run.set_name(name);
                if self.is_first_start(&run, hash)? {
                    let started = self.start_source(&run, part, request.sends_to, recorded_for);
                    started.inspect_err(|fault| run.attempt.fail(fault.clone()))?;
                }
            }
            Part::Destination(part) => {
                let run = self.find(&job)?;
                if self.is_first_start(&run, hash)? {
                    let started = match part.object {
                        Some(object) => self.start_fetch(&run, &object, request.sends_to),
                        None => self.start_destination(&run, part.receives_from, request.sends_to),
                    };
                    // Repeated, the same Start would be answered as one that had worked.
                    started.inspect_err(|fault| run.attempt.fail(fault.clone()))?;
                }
            }
            Part::Local(part) => {
                if !request.sends_to.is_empty() {
                    let problem = "names nodes, and a local copy is for this node alone";
                    return Err(Fault::bad("sends_to", problem));
                }
                let run = self.find(&job)?;
                if self.is_first_start(&run, hash)? {
                    let started = self.start_local(&run, part);
                    started.inspect_err(|fault| run.attempt.fail(fault.clone()))?;
                }
            }
        }
        Ok(StartResponse {})
    }

    fn is_first_start(&self, run: &Run, hash: blake3::Hash) -> Result<bool, Fault> {
        run.attempt.renew();
        // Locked once: looked up and written without letting go.
        let mut parts = run.parts();
        match parts.start {
            None => {
                parts.start = Some(hash);
                Ok(true)
            }
            Some(known) if known != hash => Err(run.conflicting("Start")),
            Some(_) if run.attempt.state() == State::Failed => {
                Err(run.not_ready("start the next attempt"))
            }
            Some(_) => Ok(false),
        }
    }

    fn start_source(
        &self,
        run: &Arc<Run>,
        part: SourcePart,
        children: Vec<Child>,
        recorded_for: Option<CopyJob>,
    ) -> Result<(), Fault> {
        let location = convert::given(part.location, "source.location")?;
        let root = self.root(&location.root)?;
        let path = RootPath::parse(&location.path)?;
        let (algorithm, _) = convert::verification(part.verification)?;
        let manifest = self.manifests.listed(&part.manifest_digest, &part.state)?;
        let pool = self.pool(children.len())?;
        // Before the state changes: a Cancel that comes now waits for what is made here.
        let worker = run.worker()?;
        if run.attempt.apply(Event::StartSource) == Step::Refuse {
            return Err(run.not_ready("start the next attempt"));
        }
        run.attempt
            .counters
            .bytes_total
            .store(manifest.bytes(), Ordering::Relaxed);
        let layout = Arc::new(Layout::new(&manifest, algorithm));
        let manifest_digest = *manifest.digest();
        let source = Source::new(root, path, manifest);
        if let Some(job) = recorded_for {
            let files = Files::Source(source.clone(), job);
            run.attempt.set_recorder(Recorder::new(self, files));
        }
        let cargo = Cargo {
            supply: SourceSupply::new(source, layout.clone(), algorithm, run.attempt.clone()),
            ready: layout.messages(),
            layout,
            is_source: true,
            pool,
            manifest_digest,
            algorithm,
        };
        self.send(run, &worker, cargo, children)
    }

    fn start_destination(
        &self,
        run: &Arc<Run>,
        receives_from: String,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let worker = run.worker()?;
        let prepared = run.parts().prepared.clone();
        let prepared = prepared.ok_or_else(|| run.not_ready("prepare it first"))?;
        {
            let mut parts = run.parts();
            if parts
                .connected
                .as_ref()
                .is_some_and(|link| link.parent != receives_from)
            {
                let problem = format!("is {receives_from}, and another node has connected");
                return Err(Fault::bad("destination.receives_from", problem));
            }
            parts.receives_from = Some(receives_from);
        }
        if run.attempt.apply(Event::StartDestination) == Step::Refuse {
            return Err(run.not_ready("prepare it first"));
        }
        self.relay(run, &worker, &prepared, children)
    }

    /// Reads a store into a prepared destination, and passes on what it reads.
    fn start_fetch(
        &self,
        run: &Arc<Run>,
        source: &ObjectSource,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let worker = run.worker()?;
        let prepared = run.parts().prepared.clone();
        let prepared = prepared.ok_or_else(|| run.not_ready("prepare it first"))?;
        let store = Arc::new(self.store(source)?);
        let manifest = prepared.shelf.destination.manifest();
        let version = |(entry, index): (Entry<'_>, usize)| match entry.kind {
            EntryKind::Directory => Ok(None),
            EntryKind::File { bytes } => {
                let version = manifest.version(index).ok_or_else(|| {
                    let problem = "is given, and the manifest that was prepared is not a store's";
                    Fault::bad("destination.object", problem)
                })?;
                Ok(Some(store.version(
                    entry.path,
                    bytes,
                    manifest.shape(),
                    version,
                )))
            }
        };
        let versions = manifest.entries().zip(0..).map(version);
        let versions = versions.collect::<Result<_, Fault>>()?;
        // In place of a parent's slots.
        let mut share = self.share(run)?;
        share.grow(object_receiver::BUFFERS_LEAST, object_receiver::BUFFERS)?;
        if run.attempt.apply(Event::StartDestination) == Step::Refuse {
            return Err(run.not_ready("prepare it first"));
        }
        // Before its first message: what comes before the outlet is there is read from disk.
        self.relay(run, &worker, &prepared, children)?;
        let config = FetchConfig {
            attempt: run.attempt.clone(),
            shelf: prepared.shelf.clone(),
            algorithm: prepared.algorithm,
            store,
            versions,
            share,
            runtime: Handle::current(),
        };
        let attempt = run.attempt.clone();
        thread("weft-fetch", move || {
            let _worker = worker;
            match Fetch::new(config) {
                Ok(fetch) => fetch.run(),
                Err(fault) => attempt.fail(fault),
            }
        })
    }

    /// Passes on what arrives, to children, if there are any.
    fn relay(
        &self,
        run: &Arc<Run>,
        worker: &Worker,
        prepared: &Prepared,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        if children.is_empty() {
            return Ok(());
        }
        let pool = self.pool(children.len())?;
        let shelf = &prepared.shelf;
        let cargo = Cargo {
            supply: ShelfSupply(shelf.clone()),
            layout: shelf.layout.clone(),
            ready: 0,
            is_source: false,
            pool,
            manifest_digest: *shelf.destination.manifest().digest(),
            algorithm: prepared.algorithm,
        };
        self.send(run, worker, cargo, children)
    }

    fn start_local(&self, run: &Arc<Run>, part: LocalPart) -> Result<(), Fault> {
        let location = convert::given(part.source, "local.source")?;
        let root = self.root(&location.root)?;
        let path = RootPath::parse(&location.path)?;
        let worker = run.worker()?;
        let prepared = run.parts().prepared.clone();
        let prepared = prepared.ok_or_else(|| run.not_ready("prepare it first"))?;
        let digest = prepared.shelf.destination.manifest().digest();
        let manifest = self.manifests.listed(digest, &part.state)?;
        let share = self.share(run)?;
        if run.attempt.apply(Event::StartDestination) == Step::Refuse {
            return Err(run.not_ready("prepare it first"));
        }
        let copy = LocalCopy::new(
            Source::new(root, path, manifest),
            prepared.shelf.clone(),
            prepared.algorithm,
            run.attempt.clone(),
            share,
        );
        thread("weft-copy", move || {
            let _worker = worker;
            copy.run();
        })
    }

    /// What was taken for an attempt when it was prepared.
    fn share(&self, run: &Run) -> Result<Share, Fault> {
        let share = run.parts().share.take();
        share.map_or_else(|| self.config.account.take(usize::from(SLOTS_LEAST)), Ok)
    }

    /// Buffers of an outlet.
    fn pool(&self, children: usize) -> Result<Arc<Pool>, Fault> {
        let least = Room::buffers_least(children);
        let most = Room::buffers_most(children, usize::from(self.config.slots));
        Pool::new(&self.config.account, least, most)
    }

    /// Makes the outlet's thread, its supply's, and a dialer for each child.
    fn send<S: Supply + 'static>(
        &self,
        run: &Arc<Run>,
        worker: &Worker,
        cargo: Cargo<S>,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let attempt = run.attempt.clone();
        let (feed, fed) = unbounded();
        let (events, happened) = unbounded();
        let (wanted, asked) = unbounded();
        let mut ready = cargo.ready;
        if !cargo.is_source
            && let Some(prepared) = &run.parts().prepared
        {
            prepared.shelf.join(feed.clone(), cargo.pool.clone());
            ready = prepared.shelf.ready();
        }
        let peers = peers(children.iter().map(|child| child.node.as_str()));
        // Threads first: where there are none, nobody has been called yet.
        let outlet = Outlet::new(OutletConfig {
            engine: self.config.engine.clone(),
            attempt: attempt.clone(),
            peers: peers.clone(),
            pool: cargo.pool.clone(),
            messages: cargo.layout.messages(),
            ready,
            is_source: cargo.is_source,
            wanted,
            feed: fed,
            events: happened,
        });
        for peer in &peers {
            attempt.add_peer(peer.clone());
        }
        let working = worker.clone();
        thread("weft-outlet", move || {
            let _worker = working;
            outlet.run();
        })?;
        let (working, pool, of, to) = (worker.clone(), cargo.pool, attempt.clone(), feed.clone());
        thread("weft-supply", move || {
            let _worker = working;
            block_reader::run(cargo.supply, &pool, &of, &asked, &to);
        })?;
        for (index, child) in children.into_iter().enumerate() {
            let peer = peers[index].clone();
            let dial = Dial {
                engine: self.config.engine.clone(),
                attempt: attempt.clone(),
                child,
                index,
                peer,
                tls: self.config.tls.borrow().clone(),
                slots: usize::from(self.config.slots),
                manifest_digest: cargo.manifest_digest,
                algorithm: convert::algorithm_to_proto(cargo.algorithm),
                domain: run.domain,
                patience: self.config.patience,
                events: events.clone(),
                feed: feed.clone(),
            };
            let worker = worker.clone();
            abort::task("dialer", async move {
                let _worker = worker;
                dial.run().await;
            });
        }
        Ok(())
    }

    /// Agrees on a connection with the parent.
    pub fn connect(
        &self,
        parent: &NodeName,
        ticket: &Ticket,
        request: ConnectRequest,
    ) -> Result<ConnectResponse, Fault> {
        let job = convert::job(ticket.job.clone())?;
        let run = self.find(&job)?;
        let worker = run.worker()?;
        let prepared = run.parts().prepared.clone();
        let prepared = prepared.ok_or_else(|| run.not_ready("prepare it first"))?;
        ticket::matches_destination(ticket, &run.attempt.job, &prepared.location)?;
        if request.wire_version != u32::from(VERSION) {
            let (theirs, ours) = (request.wire_version, u32::from(VERSION));
            return Err(Fault::WireVersion { theirs, ours });
        }
        if request.manifest_digest != prepared.shelf.destination.manifest().digest() {
            return Err(Fault::ManifestDiffers { what: "manifests" });
        }
        if request.algorithm() != convert::algorithm_to_proto(prepared.algorithm) {
            return Err(Fault::ManifestDiffers {
                what: "hash algorithms",
            });
        }
        let hash = fingerprint(&request);
        let remote = convert::endpoint(
            parent.as_str(),
            request.endpoint,
            self.config.engine.settings(),
        )?;
        // One at a time: a repetition must find what the first has made.
        let mut parts = run.parts();
        if parts
            .receives_from
            .as_ref()
            .is_some_and(|node| node != parent.as_str())
        {
            return Err(run.not_ready("only the node that Start named may connect"));
        }
        match &parts.connected {
            Some(link) if link.request == hash => return Ok(link.response.clone()),
            Some(_) => return Err(run.conflicting("Connect")),
            None => {}
        }
        if run.attempt.apply(Event::Connect) == Step::Refuse {
            return Err(run.not_ready("prepare the next attempt"));
        }
        let mut share = match parts.share.take() {
            Some(share) => share,
            None => self.config.account.take(usize::from(SLOTS_LEAST))?,
        };
        // As many slots as there is room for: what the attempt sends with has had its own.
        share.grow(usize::from(SLOTS_LEAST), usize::from(self.config.slots))?;
        // Nobody can connect to what has failed to receive.
        let response = self
            .receive(&run, worker, &prepared, parent, remote, share)
            .inspect_err(|fault| run.attempt.fail(fault.clone()))?;
        parts.connected = Some(Connected {
            request: hash,
            parent: parent.to_string(),
            response: response.clone(),
        });
        Ok(response)
    }

    /// Makes the regions, the connection's end and the intake's thread.
    fn receive(
        &self,
        run: &Arc<Run>,
        worker: Worker,
        prepared: &Prepared,
        parent: &NodeName,
        remote: weft_engine::RemoteEnd,
        share: Share,
    ) -> Result<ConnectResponse, Fault> {
        // The thread first: where there is none, nothing is left behind.
        let (begin, given) = bounded::<Intake>(1);
        thread("weft-intake", move || {
            let _worker = worker;
            // Nothing where something else has failed.
            if let Ok(intake) = given.recv() {
                intake.run();
            }
        })?;
        let engine = &self.config.engine;
        let secret = draw_secret()?;
        let local = engine.allocate(run.domain, secret.clone());
        let (events, happened) = unbounded();
        let peer = Arc::new(Peer::new(parent.to_string(), Role::Parent));
        let address = remote.address;
        engine.connect(local.id, remote, events).map_err(|error| {
            engine.close(local.id);
            Fault::Engine {
                problem: error.to_string(),
            }
        })?;
        peer.opened(local.id, address);
        run.attempt.add_peer(peer.clone());
        let slots: Vec<_> = (0..share.buffers())
            .map(|_| engine.register(run.domain, weft_engine::Region::share(vec![0; SLOT_BYTES])))
            .collect();
        let response = ConnectResponse {
            endpoint: Some(convert::endpoint_to_proto(&local, &secret)),
            slots: slots
                .iter()
                .map(|key| Slot {
                    key: key.0,
                    bytes: SLOT_BYTES as u32,
                })
                .collect(),
            have: prepared.shelf.have.clone(),
        };
        let intake = Intake::new(IntakeConfig {
            engine: engine.clone(),
            attempt: run.attempt.clone(),
            peer,
            connection: local.id,
            slots,
            share,
            shelf: prepared.shelf.clone(),
            algorithm: prepared.algorithm,
            events: happened,
        });
        begin.send(intake).map_err(|_| Fault::Engine {
            problem: "the intake's thread has ended".to_owned(),
        })?;
        Ok(response)
    }
}

/// What names a Start. Credentials may be new when it is repeated.
fn start_fingerprint(request: &StartRequest) -> blake3::Hash {
    let mut request = StartRequest {
        leader_epoch: 0,
        ..request.clone()
    };
    if let Some(Part::Destination(part)) = &mut request.part
        && let Some(source) = part.object.as_mut()
    {
        source.credentials = None;
    }
    fingerprint(&request)
}

fn thread(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), Fault> {
    abort::thread(name, work)
        .map(drop)
        .map_err(|error| Fault::Engine {
            problem: format!(
                "a thread could not be made: {error}: raise the limit on threads (TasksMax of the \
                 agent's unit, or the limit on pids of its pod)"
            ),
        })
}
