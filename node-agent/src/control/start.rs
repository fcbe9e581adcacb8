//! Start: gives this agent its part of an attempt, and makes the threads of that part.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::unbounded;
use tokio::runtime::Handle;
use weft_proto::agent::v1::start_request::Part;
use weft_proto::agent::v1::{
    Child, LocalPart, ObjectSource, Role, SourcePart, StartRequest, StartResponse,
};

use crate::control::attempt_handle::AttemptHandle;
use crate::control::attempt_registry::AttemptRegistry;
use crate::convert;
use crate::critical;
use crate::fault::Fault;
use crate::files::copies::CopyJob;
use crate::files::{Entry, EntryKind, Source};
use crate::transfer::attempt::Worker;
use crate::transfer::block_reader::{self, BlockReader, SourceReader, StagedReader};
use crate::transfer::dial::Dialer;
use crate::transfer::fanout::SendLimits;
use crate::transfer::layout::Layout;
use crate::transfer::local;
use crate::transfer::object_receiver::{self, ObjectReceiver};
use crate::transfer::peer::Peer;
use crate::transfer::received_blocks::ReceivedBlocks;
use crate::transfer::recorder::{RecordedFiles, Recorder};
use crate::transfer::sender::{Sender, SenderConfig};
use crate::transfer::state::{Event, State};

/// Children of one agent, at most: what a binomial tree of 2⁶⁴ nodes would ask for.
const CHILDREN_MAX: usize = 64;

impl AttemptRegistry {
    /// Gives this agent its part and starts it.
    pub async fn start(&self, request: StartRequest) -> Result<StartResponse, Fault> {
        let job = convert::job(request.job.clone())?;
        let repeatable = repeatable(&request);
        let name = request.job_name;
        let children = request.sends_to;
        let part = convert::given(request.part, "part")?;
        let wrong = match &part {
            _ if children.len() > CHILDREN_MAX => Some("has more than 64 nodes"),
            Part::Source(_) if children.is_empty() => Some("is empty at the source: name a node"),
            Part::Local(_) if !children.is_empty() => {
                Some("names nodes, and a local copy is for this node alone")
            }
            _ => None,
        };
        if let Some(problem) = wrong {
            return Err(Fault::bad("sends_to", problem));
        }
        let recorded_for = match &part {
            Part::Source(part) => part.job_name.clone(),
            Part::Destination(_) | Part::Local(_) => None,
        };
        let recorded_for = recorded_for
            .map(|name| convert::copy_job(&job.uid, name))
            .transpose()?;
        let known = match &part {
            Part::Source(_) => self.find_or_begin(&job).await?,
            Part::Destination(_) | Part::Local(_) => self.find(&job)?,
        };
        known.set_name(name);
        known.attempt.renew();
        if !known.is_first("Start", &repeatable)? {
            return match known.attempt.state() {
                State::Failed => Err(known.not_ready("start the next attempt")),
                _ => Ok(StartResponse {}),
            };
        }
        let started = match part {
            Part::Source(part) => self.start_source(&known, part, recorded_for, children),
            Part::Destination(part) => match part.object {
                Some(object) => self.start_object(&known, &object, children),
                // The parent connects; what it sends is passed on.
                None => known
                    .start_destination()
                    .and_then(|(worker, staged)| self.pass_on(&known, &worker, &staged, children)),
            },
            Part::Local(part) => self.start_local(&known, part),
        };
        // Otherwise a repeated Start would be answered with OK.
        started.inspect_err(|fault| known.attempt.fail(fault.clone()))?;
        Ok(StartResponse {})
    }

    fn start_source(
        &self,
        known: &AttemptHandle,
        part: SourcePart,
        recorded_for: Option<CopyJob>,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let attempt = &known.attempt;
        let location = convert::given(part.location, "source.location")?;
        let (root, path) = self.place(&location)?;
        let (algorithm, _) = convert::verification(part.verification)?;
        let manifest = self.manifests.listed(&part.manifest_digest, &part.state)?;
        // Before the state changes: a Cancel that comes now waits for this worker.
        let worker = known.worker()?;
        known.apply(Event::StartSource)?;
        let layout = Arc::new(Layout::new(&manifest, algorithm));
        let total = &attempt.counters.bytes_total;
        total.store(layout.manifest.bytes(), Ordering::Relaxed);
        let source = Source::new(root, path, manifest);
        if let Some(job) = recorded_for {
            attempt.set_recorder(Recorder {
                files: RecordedFiles::Source(source.clone(), job),
                records: self.copies_changed.clone(),
            });
        }
        let reader = SourceReader::new(source, layout.clone(), Some(attempt.clone()));
        self.send(known, &worker, reader, &layout, None, children)
    }

    /// Reads a store into a prepared destination, and passes the messages on.
    fn start_object(
        &self,
        known: &AttemptHandle,
        source: &ObjectSource,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let (worker, staged) = known.start_destination()?;
        let store = self.store(source)?;
        let manifest = &staged.layout.manifest;
        let version = |(entry, index): (Entry<'_>, usize)| match entry.kind {
            EntryKind::Directory => Ok(None),
            EntryKind::File { bytes } => {
                let version = manifest.version(index).ok_or_else(|| {
                    let problem = "is given, and the manifest that was prepared is not a store's";
                    Fault::bad("destination.object", problem)
                })?;
                let shape = manifest.shape();
                Ok(Some(store.version(entry.path, bytes, shape, version)))
            }
        };
        let versions = manifest.entries().zip(0..).map(version);
        let versions = versions.collect::<Result<_, Fault>>()?;
        let mut share = known.resources().take_share(&self.config.memory)?;
        share.grow(object_receiver::BUFFERS);
        self.pass_on(known, &worker, &staged, children)?;
        let (attempt, runtime) = (known.attempt.clone(), Handle::current());
        worker.spawn("weft-object", move || {
            let receiver =
                ObjectReceiver::new(&attempt, staged, Arc::new(store), versions, share, runtime);
            if let Err(fault) = receiver.and_then(ObjectReceiver::run) {
                attempt.fail(fault);
            }
        })
    }

    fn start_local(&self, known: &AttemptHandle, part: LocalPart) -> Result<(), Fault> {
        let location = convert::given(part.source, "local.source")?;
        let (root, path) = self.place(&location)?;
        let (worker, staged) = known.start_destination()?;
        let digest = staged.layout.manifest.digest();
        let manifest = self.manifests.listed(digest, &part.state)?;
        let share = known.resources().take_share(&self.config.memory)?;
        let (source, attempt) = (Source::new(root, path, manifest), known.attempt.clone());
        worker.spawn("weft-local", move || {
            let _share = share;
            if let Err(fault) = local::copy(source, &staged, &attempt) {
                attempt.fail(fault);
            }
        })
    }

    /// Passes the messages that arrive on to the children, if there are any.
    fn pass_on(
        &self,
        known: &AttemptHandle,
        worker: &Worker,
        staged: &Arc<ReceivedBlocks>,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        if children.is_empty() {
            return Ok(());
        }
        let reader = StagedReader(staged.clone());
        self.send(
            known,
            worker,
            reader,
            &staged.layout,
            Some(staged),
            children,
        )
    }

    /// Makes the sender's thread, its block reader's, and a dialer for each child. `staged` is what a relay
    /// receives; a source has none.
    fn send(
        &self,
        known: &AttemptHandle,
        worker: &Worker,
        reader: impl BlockReader + 'static,
        layout: &Layout,
        staged: Option<&Arc<ReceivedBlocks>>,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let config = &self.config;
        let attempt = &known.attempt;
        let least = SendLimits::buffers_least(children.len());
        let most = SendLimits::buffers_most(children.len(), usize::from(config.slots));
        let pool = config.memory.pool(least, most)?;
        let (to_sender, sender_events) = unbounded();
        let (from_engine, engine_events) = unbounded();
        let (wanted, asked) = unbounded();
        let ready = staged.map_or(layout.messages(), |staged| {
            staged.set_sender(to_sender.clone())
        });
        let peers: Vec<Arc<Peer>> = children
            .iter()
            .map(|child| Arc::new(Peer::new(child.node.clone(), Role::Child)))
            .collect();
        for peer in &peers {
            attempt.add_peer(peer.clone());
        }
        let sender = Sender::new(SenderConfig {
            engine: config.engine.clone(),
            attempt: attempt.clone(),
            peers: peers.clone(),
            pool,
            messages: layout.messages(),
            ready,
            is_source: staged.is_none(),
            wanted,
            sender_events,
            engine_events,
        });
        // Threads first: when there are none, no child has been called yet.
        worker.clone().spawn("weft-sender", move || sender.run())?;
        let (of, sender) = (attempt.clone(), to_sender.clone());
        worker.clone().spawn("weft-reader", move || {
            block_reader::serve(reader, &of, &asked, &sender);
        })?;
        for (index, (child, peer)) in children.into_iter().zip(peers).enumerate() {
            let dialer = Dialer {
                engine: config.engine.clone(),
                attempt: attempt.clone(),
                child,
                index,
                peer,
                tls: config.tls.borrow().clone(),
                slots: usize::from(config.slots),
                manifest_digest: *layout.manifest.digest(),
                algorithm: convert::algorithm_to_proto(layout.algorithm),
                domain: known.domain,
                retry_for: config.retry_for,
                events: from_engine.clone(),
                sender: to_sender.clone(),
            };
            let worker = worker.clone();
            critical::spawn("dialer", async move {
                let _worker = worker;
                dialer.run().await;
            });
        }
        Ok(())
    }
}

/// The request without what may be new when it is repeated.
fn repeatable(request: &StartRequest) -> StartRequest {
    let mut request = StartRequest {
        leader_epoch: 0,
        ..request.clone()
    };
    if let Some(Part::Destination(part)) = &mut request.part
        && let Some(source) = part.object.as_mut()
    {
        source.credentials = None;
    }
    request
}
