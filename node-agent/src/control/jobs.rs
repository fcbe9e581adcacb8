//! The attempts of this node and the commands on them. Idempotent by (UID, generation, attempt).
//!
//! Called by the control API, which has checked who is calling. What a command starts goes on
//! whether or not its caller waits for the answer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use weft_engine::{DomainId, Engine};
use weft_proto::agent::v1::{
    CancelRequest, CancelResponse, JobName, JobRef, Location, ManifestHolder, ObjectSource,
    PrepareRequest, PrepareResponse, StatRequest, StatResponse, State as Told,
};

use crate::abort;
use crate::config::values::{NodeName, PublicKey};
use crate::config::{Author, SLOTS_LEAST};
use crate::control::manifest_fetch;
use crate::control::manifests::Manifests;
use crate::control::misuse::Misuses;
use crate::convert;
use crate::fault::Fault;
use crate::files::{
    Destination, DestinationConfig, Leftover, Manifest, Partials, Root, RootPath, Source,
};
use crate::object::{self, Store, StoreTimeouts};
use crate::tls::Tls;
use crate::transfer::attempt::{Attempt, Worker};
use crate::transfer::layout::Layout;
use crate::transfer::memory_account::{Account, Share};
use crate::transfer::recorder::{Files, Recorder};
use crate::transfer::staged_blocks::Shelf;
use crate::transfer::state::{Event, State, Step};

/// Attempts that are over and still answered for.
const REMEMBERED: usize = 1024;

/// What jobs work with.
#[derive(Debug)]
pub struct JobsConfig {
    /// This node.
    pub node: NodeName,
    /// Whose word the configuration is.
    pub author: Author,
    /// The transport.
    pub engine: Arc<Engine>,
    /// This node's certificate, as it is now.
    pub tls: watch::Receiver<Tls>,
    /// Bytes of buffers for all transfers.
    pub account: Arc<Account>,
    /// Receive slots per connection, at most.
    pub slots: u16,
    /// Time after which an attempt that nobody asks about ends.
    pub lease: Duration,
    /// For how long a child is called.
    pub patience: Duration,
    /// How long stores of objects may take.
    pub(crate) store_timeouts: StoreTimeouts,
}

/// What comes into force while attempts run: each command uses what is in force when it comes.
#[derive(Debug)]
pub struct LiveConfig {
    /// The directories that may be named.
    pub roots: Vec<Arc<Root>>,
    /// Which stores may be read.
    pub objects: object::Access,
    /// Of the operator's tickets.
    pub ticket_key: PublicKey,
}

/// All attempts.
#[derive(Debug)]
pub struct Jobs {
    pub(crate) config: JobsConfig,
    live: Mutex<Arc<LiveConfig>>,
    /// Calls that were refused, by reason: of these there is a fixed number.
    refused: Mutex<BTreeMap<&'static str, u64>>,
    misuses: Mutex<Misuses>,
    state: Mutex<Known>,
    /// How often records of copies have been added or released.
    pub(crate) records: Arc<watch::Sender<u64>>,
    /// What was listed, and what destinations were prepared with.
    pub(crate) manifests: Manifests,
    domains: AtomicU32,
}

#[derive(Debug, Default)]
struct Known {
    /// The latest attempt of each job.
    runs: HashMap<String, Arc<Run>>,
    /// Oldest first.
    order: VecDeque<String>,
    /// What each of them may have left, also where an attempt was refused and there is no run.
    left: HashMap<String, Arc<Mutex<Leftover>>>,
    stopping: bool,
}

/// An attempt with what its commands have made.
#[derive(Debug)]
pub struct Run {
    /// Its state.
    pub attempt: Arc<Attempt>,
    /// The job's name, as a command has given it.
    name: OnceLock<JobName>,
    /// Its regions and connections in the engine.
    pub(crate) domain: DomainId,
    /// What its job may have left, by all its attempts.
    left: Arc<Mutex<Leftover>>,
    pub(crate) parts: Mutex<Parts>,
}

/// What the commands on an attempt have made.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Hash of the Prepare that made `prepared`.
    prepare: Option<blake3::Hash>,
    /// Hash of the Start that was carried out.
    pub(crate) start: Option<blake3::Hash>,
    /// While the attempt goes on: it holds the destination's lock.
    pub(crate) prepared: Option<Arc<Prepared>>,
    response: Option<PrepareResponse>,
    /// The intake's part of the account, until it is connected.
    pub(crate) share: Option<Share>,
    /// The parent named by Start.
    pub(crate) receives_from: Option<String>,
    pub(crate) connected: Option<crate::control::link::Connected>,
}

/// A prepared destination.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) location: Location,
    pub(crate) algorithm: crate::files::Algorithm,
}

impl Run {
    /// Takes the job's name from a command; a later command changes nothing.
    pub(crate) fn set_name(&self, name: Option<JobName>) {
        if let Some(name) = name {
            let _ = self.name.set(name);
        }
    }

    /// The job's name, or its UID in no namespace.
    pub(crate) fn name(&self) -> JobName {
        let uid = || JobName {
            namespace: String::new(),
            name: self.attempt.job.uid.clone(),
        };
        self.name.get().cloned().unwrap_or_else(uid)
    }

    pub(crate) fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever removes what is left holds it until it is gone: for threads that may block.
    fn left(&self) -> MutexGuard<'_, Leftover> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker of the attempt, as long as its end is not settled.
    pub(crate) fn worker(&self) -> Result<Worker, Fault> {
        let worker = self.attempt.worker();
        worker.ok_or_else(|| self.not_ready("prepare the next attempt"))
    }

    /// Why the attempt is in no state for a call.
    pub(crate) fn not_ready(&self, remedy: &'static str) -> Fault {
        let status = self.attempt.status();
        let job = &self.attempt.job;
        match status.fault {
            Some(fault) => fault,
            None => Fault::NotReady {
                uid: job.uid.clone(),
                attempt: job.attempt,
                state: status.state.to_string(),
                remedy,
            },
        }
    }

    pub(crate) fn conflicting(&self, call: &'static str) -> Fault {
        let job = &self.attempt.job;
        Fault::Conflicting {
            call,
            uid: job.uid.clone(),
            attempt: job.attempt,
        }
    }
}

impl Jobs {
    /// None yet.
    #[must_use]
    pub fn new(config: JobsConfig, live: LiveConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            live: Mutex::new(Arc::new(live)),
            refused: Mutex::default(),
            misuses: Mutex::default(),
            state: Mutex::default(),
            records: Arc::default(),
            manifests: Manifests::default(),
            domains: AtomicU32::new(1),
        })
    }

    /// Counts a call that is refused.
    pub(crate) fn refuse(&self, reason: &'static str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(reason).or_default() += 1;
    }

    /// Somebody with that node's certificate has tried what it is not for.
    pub(crate) fn misused(&self, node: &NodeName, thing: &str) {
        let mut misuses = self.misuses.lock().unwrap_or_else(PoisonError::into_inner);
        misuses.note(Instant::now(), node, thing);
    }

    /// What people shall hear of that.
    pub(crate) fn misuse(&self) -> Option<String> {
        let mut misuses = self.misuses.lock().unwrap_or_else(PoisonError::into_inner);
        misuses.told(Instant::now())
    }

    /// Calls that were refused, by reason.
    pub(crate) fn refused(&self) -> BTreeMap<&'static str, u64> {
        let refused = self.refused.lock();
        refused.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is in force now.
    pub(crate) fn live(&self) -> Arc<LiveConfig> {
        let live = self.live.lock();
        live.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts it in force.
    pub(crate) fn set_live(&self, live: LiveConfig) {
        let mut known = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Arc::new(live);
    }

    /// A root by its name.
    pub fn root(&self, name: &str) -> Result<Arc<Root>, Fault> {
        let live = self.live();
        let roots = live.roots.iter();
        roots
            .clone()
            .find(|root| root.name() == name)
            .cloned()
            .ok_or_else(|| {
                let known: Vec<&str> = roots.map(|root| root.name()).collect();
                Fault::UnknownRoot {
                    root: name.to_owned(),
                    known: known.join(", "),
                }
            })
    }

    /// Lists what is under a root, or in a store.
    pub async fn stat(&self, request: StatRequest) -> Result<StatResponse, Fault> {
        if let Some(source) = &request.object {
            if request.location.is_some() {
                return Err(Fault::bad("location", "is given beside object: give one"));
            }
            let listed = self.store(source)?.list().await?;
            return Ok(self.listed(listed));
        }
        let location = convert::given(request.location, "location")?;
        let root = self.root(&location.root)?;
        let path = RootPath::parse(&location.path)?;
        let named = match request.manifest_digest.as_slice() {
            [] => None,
            digest => Some(self.manifests.get(digest, &[])?),
        };
        let list = move || {
            root.in_place()?;
            match named {
                Some(named) => Source::new(root, path, named).listed(),
                None => Manifest::scan(&root, &path),
            }
        };
        Ok(self.listed(abort::blocking("stat", list).await?))
    }

    fn listed(&self, manifest: Manifest) -> StatResponse {
        let listed = StatResponse {
            manifest_digest: manifest.digest().to_vec(),
            files: manifest.file_count().into(),
            bytes: manifest.bytes(),
            state: manifest.state().to_vec(),
        };
        self.manifests.keep(Arc::new(manifest));
        listed
    }

    /// The manifest that a destination is prepared with.
    async fn manifest(
        &self,
        digest: &[u8],
        state: &[u8],
        holder: Option<&ManifestHolder>,
    ) -> Result<Arc<Manifest>, Fault> {
        let known = self.manifests.get(digest, state);
        let (Err(Fault::ManifestUnknown), Some(holder)) = (&known, holder) else {
            return known;
        };
        let tls = self.config.tls.borrow().clone();
        let fetched = manifest_fetch::fetch(digest, holder, tls, self.config.patience).await?;
        let manifest = Arc::new(fetched);
        self.manifests.keep(manifest.clone());
        Ok(manifest)
    }

    /// The store that a source names.
    pub(crate) fn store(&self, source: &ObjectSource) -> Result<Store, Fault> {
        let access = self.live().objects;
        Ok(Store::open(source, access, self.config.store_timeouts)?)
    }

    /// Makes a destination ready.
    pub async fn prepare(
        self: &Arc<Self>,
        request: PrepareRequest,
    ) -> Result<PrepareResponse, Fault> {
        let job = convert::job(request.job.clone())?;
        let hash = fingerprint(&PrepareRequest {
            leader_epoch: 0,
            // Its ticket may be new when it is repeated.
            manifest_from: None,
            ..request.clone()
        });
        // Before it is refused: what was never begun has left nothing.
        self.left_by(&job, is_first(&job));
        let location = convert::given(request.location.clone(), "location")?;
        let root = self.root(&location.root)?;
        let path = RootPath::parse(&location.path)?;
        let overwrite = convert::overwrite(request.overwrite())?;
        let name = request.job_name;
        let recorded_for = name
            .clone()
            .map(|name| convert::copy_job(&job, name))
            .transpose()?;
        let (algorithm, expect) = convert::verification(request.verification)?;
        let run = self.admit(&job).await?;
        run.set_name(name);
        run.attempt.renew();
        {
            let mut parts = run.parts();
            match parts.prepare {
                None => parts.prepare = Some(hash),
                Some(known) if known == hash => {}
                Some(_) => return Err(run.conflicting("Prepare")),
            }
        }
        // Before the state changes: a Cancel that comes now waits for it. A sealed attempt has none
        // and its state does not change.
        let worker = run.attempt.worker();
        match (run.attempt.apply(Event::Prepare), worker) {
            (Step::To(_), Some(worker)) => {
                let uid = convert::uid(&job)?;
                let (digest, state) = (request.manifest_digest, request.state);
                let holder = request.manifest_from;
                let config = move |manifest| DestinationConfig {
                    root,
                    path,
                    job: uid,
                    recorded_for,
                    manifest,
                    algorithm,
                    overwrite,
                    expect,
                };
                let (jobs, run) = (self.clone(), run.clone());
                abort::task("prepare", async move {
                    let _worker = worker;
                    let mut watch = run.attempt.watch();
                    let manifest = tokio::select! {
                        manifest = jobs.manifest(&digest, &state, holder.as_ref()) => manifest,
                        _ = watch.wait_for(|status| status.state == State::Failed) => return,
                    };
                    let made = match manifest {
                        Ok(manifest) => jobs.make(&run, config(manifest), location).await,
                        Err(fault) => Err(fault),
                    };
                    if let Err(fault) = made {
                        run.attempt.fail(fault);
                    }
                });
            }
            (Step::Stay, _) => {}
            _ => return Err(run.not_ready("cancel it and prepare the next attempt")),
        }
        self.prepared(&run).await
    }

    async fn make(
        self: &Arc<Self>,
        run: &Arc<Run>,
        config: DestinationConfig,
        location: Location,
    ) -> Result<(), Fault> {
        let is_recorded = config.recorded_for.is_some();
        let (work, account) = (run.clone(), self.config.account.clone());
        let (prepared, response) = abort::blocking("prepare", move || {
            work.left().expect(config.clone());
            work.parts().share = Some(account.take(usize::from(SLOTS_LEAST))?);
            prepare(&work, config, location)
        })
        .await?;
        if is_recorded {
            let files = Files::Destination(prepared.shelf.destination.clone());
            run.attempt.set_recorder(Recorder::new(self, files));
        }
        {
            let mut parts = run.parts();
            parts.prepared = Some(Arc::new(prepared));
            parts.response = Some(response);
        }
        run.attempt.apply(Event::Prepared);
        Ok(())
    }

    async fn prepared(&self, run: &Run) -> Result<PrepareResponse, Fault> {
        let mut watch = run.attempt.watch();
        // The sender lives as long as `run`.
        let _ = watch
            .wait_for(|status| !matches!(status.state, State::Pending | State::Preparing))
            .await;
        if run.attempt.state() == State::Failed {
            return Err(run.not_ready("prepare the next attempt"));
        }
        let response = run.parts().response;
        response.ok_or_else(|| run.not_ready("it is a source: only destinations are prepared"))
    }

    /// Ends an attempt; the answer comes when nothing of it lands any more.
    pub async fn cancel(self: &Arc<Self>, request: CancelRequest) -> Result<CancelResponse, Fault> {
        let CancelRequest {
            job,
            discard,
            release,
            ..
        } = request;
        let job = convert::job(job)?;
        // Where nothing is known of it, an earlier process may have made anything.
        self.left_by(&job, false);
        let known = self.lock().runs.get(&job.uid).cloned();
        let (run, told) = match known {
            Some(run) if order(&run.attempt.job) > order(&job) => {
                return Ok(CancelResponse {
                    state: Told::Unspecified.into(),
                });
            }
            Some(run) if order(&run.attempt.job) == order(&job) => (run, true),
            // Remembered, so that a Prepare or Start that is still on its way comes too late.
            _ => (self.admit(&job).await?, false),
        };
        if discard {
            run.attempt.discard();
        }
        run.attempt.fail(Fault::Cancelled);
        run.attempt.closed().await;
        let state = run.attempt.state();
        if discard && state == State::Failed {
            self.discard(run).await?;
        }
        if release {
            self.release(&job).await?;
        }
        let state = if told {
            state.to_proto()
        } else {
            Told::Unspecified
        };
        Ok(CancelResponse {
            state: state.into(),
        })
    }

    /// Removes what the attempts of a job have left, as long as this one, which is over, is the
    /// latest. What cannot be removed now is still owed to the next such command.
    async fn discard(self: &Arc<Self>, run: Arc<Run>) -> Result<(), Fault> {
        let (jobs, job) = (self.clone(), run.attempt.job.clone());
        let uid = convert::uid(&job)?;
        let faults = abort::blocking("discard", move || {
            // One after the other. The next attempt's Prepare waits, too, or has come before.
            let mut left = run.left();
            let latest = jobs.lock().runs.get(uid.as_str()).cloned();
            if latest.is_some_and(|latest| Arc::ptr_eq(&latest, &run)) {
                left.discard(&uid)
            } else {
                Vec::new()
            }
        })
        .await;
        for fault in &faults {
            tracing::warn!(
                job = job.uid,
                reason = fault.reason(),
                "not discarded: {fault}"
            );
        }
        faults
            .into_iter()
            .next()
            .map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// What a job may have left: where nothing is known of it, anything in any root, or nothing.
    fn left_by(&self, job: &JobRef, nothing: bool) {
        let unknown = || match nothing {
            true => Leftover::default(),
            false => Leftover::anywhere(&self.live().roots),
        };
        self.lock().left_by(&job.uid, unknown);
    }

    /// Exactly this attempt.
    pub fn find(&self, job: &JobRef) -> Result<Arc<Run>, Fault> {
        let known = self.lock().runs.get(&job.uid).cloned();
        match known {
            Some(run) if order(&run.attempt.job) == order(job) => Ok(run),
            Some(run) if order(&run.attempt.job) > order(job) => Err(stale(&run, job)),
            _ => Err(Fault::UnknownAttempt {
                uid: job.uid.clone(),
                attempt: job.attempt,
            }),
        }
    }

    /// This attempt, made if it is new. An earlier one of the same job is ended first.
    pub(crate) async fn admit(self: &Arc<Self>, job: &JobRef) -> Result<Arc<Run>, Fault> {
        loop {
            let earlier = {
                let mut known = self.lock();
                if known.stopping {
                    return Err(Fault::ShuttingDown);
                }
                match known.runs.get(&job.uid) {
                    Some(run) if order(&run.attempt.job) == order(job) => return Ok(run.clone()),
                    Some(run) if order(&run.attempt.job) > order(job) => {
                        return Err(stale(run, job));
                    }
                    Some(run) if !run.attempt.status().closed => run.clone(),
                    _ => return Ok(self.insert(&mut known, job)),
                }
            };
            earlier.attempt.fail(Fault::Superseded { by: job.attempt });
            earlier.attempt.closed().await;
        }
    }

    fn insert(self: &Arc<Self>, known: &mut Known, job: &JobRef) -> Arc<Run> {
        let attempt = Attempt::new(job.clone());
        let domain = DomainId(self.domains.fetch_add(1, Ordering::Relaxed));
        let run = Arc::new(Run {
            attempt,
            name: OnceLock::new(),
            domain,
            left: known.left_by(&job.uid, Leftover::default),
            parts: Mutex::default(),
        });
        known.runs.insert(job.uid.clone(), run.clone());
        abort::task("supervisor", supervise(run.clone(), self.config.lease));
        run
    }

    /// All attempts that are known.
    #[must_use]
    pub fn runs(&self) -> Vec<Arc<Run>> {
        self.lock().runs.values().cloned().collect()
    }

    /// Ends all attempts and refuses new ones.
    pub async fn shut_down(&self) {
        self.lock().stopping = true;
        let runs = self.runs();
        for run in &runs {
            run.attempt.fail(Fault::ShuttingDown);
        }
        for run in &runs {
            run.attempt.closed().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// What a job may have left; as it is said here where nothing is known of the job.
    fn left_by(&mut self, uid: &str, or: impl FnOnce() -> Leftover) -> Arc<Mutex<Leftover>> {
        if let Some(left) = self.left.get(uid) {
            return left.clone();
        }
        let left = Arc::new(Mutex::new(or()));
        self.left.insert(uid.to_owned(), left.clone());
        self.order.push_back(uid.to_owned());
        let over = |run: Option<&Arc<Run>>| run.is_none_or(|run| run.attempt.status().closed);
        while self.order.len() > REMEMBERED
            && let Some(uid) = self
                .order
                .pop_front_if(|uid| over(self.runs.get(uid.as_str())))
        {
            self.left.remove(&uid);
            self.runs.remove(&uid);
        }
        left
    }
}

/// There is no attempt that this agent may have forgotten.
fn is_first(job: &JobRef) -> bool {
    order(job) <= (1, 1)
}

fn order(job: &JobRef) -> (u64, u32) {
    (job.generation, job.attempt)
}

fn stale(run: &Run, job: &JobRef) -> Fault {
    let next = run.attempt.job.attempt.saturating_add(1);
    Fault::StaleAttempt {
        uid: job.uid.clone(),
        given: job.attempt,
        next,
    }
}

/// Tells repetitions of a request from other requests.
pub(crate) fn fingerprint(request: &impl weft_proto::Message) -> blake3::Hash {
    blake3::hash(&request.encode_to_vec())
}

fn prepare(
    run: &Run,
    config: DestinationConfig,
    location: Location,
) -> Result<(Prepared, PrepareResponse), Fault> {
    let attempt = &run.attempt;
    if attempt.is_stopping() {
        return Err(Fault::Cancelled);
    }
    let algorithm = config.algorithm;
    let manifest = config.manifest.clone();
    attempt
        .counters
        .bytes_total
        .store(manifest.bytes(), Ordering::Relaxed);
    let destination = Arc::new(Destination::prepare(config)?);
    run.left().add(&destination);
    let layout = Layout::new(&manifest, algorithm);
    let filled = Shelf::fill(destination.clone(), layout, || {
        if attempt.is_stopping() {
            Err(Fault::Cancelled)
        } else {
            Ok(())
        }
    });
    let shelf = match filled {
        Ok(shelf) => shelf,
        Err(fault) => {
            destination.abort(partials(attempt))?;
            return Err(fault);
        }
    };
    let response = PrepareResponse {
        blocks_have: shelf.have_blocks(),
        blocks_total: shelf.layout.blocks(),
        reserved_bytes: shelf.lacking_bytes(),
    };
    let prepared = Prepared {
        shelf: Arc::new(shelf),
        location,
        algorithm,
    };
    Ok((prepared, response))
}

/// What becomes of the partial files of an attempt that has failed.
fn partials(attempt: &Attempt) -> Partials {
    if attempt.is_discarded() {
        Partials::Remove
    } else {
        Partials::Keep
    }
}

/// Ends an attempt when nobody asks about it, and cleans up when it is over.
async fn supervise(run: Arc<Run>, lease: Duration) {
    let attempt = &run.attempt;
    let mut watch = attempt.watch();
    loop {
        let over = watch.wait_for(|status| status.state.is_terminal() && status.workers == 0);
        let left = lease.saturating_sub(attempt.idle());
        let over = tokio::time::timeout(left, over).await.map(drop);
        match over {
            Ok(()) if attempt.seal() => break,
            // Somebody has begun to work since.
            Ok(()) => {}
            Err(_) if attempt.idle() < lease => {}
            Err(_) => {
                // A relay that is verified but still serves ends too: its threads are told to stop.
                attempt.fail(Fault::LeaseExpired {
                    seconds: lease.as_secs(),
                });
                attempt.renew();
            }
        }
    }
    let prepared = {
        let mut parts = run.parts();
        parts.connected = None;
        parts.share = None;
        parts.prepared.take()
    };
    if let Some(prepared) = prepared {
        let failed = attempt.state() == State::Failed;
        let (partials, work) = (partials(attempt), run.clone());
        let result = abort::blocking("abort", move || {
            prepared.shelf.clear();
            let destination = &prepared.shelf.destination;
            let result = if failed {
                destination.abort(partials)
            } else {
                work.left().forget();
                Ok(())
            };
            destination.leave();
            result
        })
        .await;
        if let Err(error) = result {
            tracing::warn!(job = attempt.job.uid, reason = error.reason(), "{error}");
        }
    }
    attempt.close();
}
