//! Start: gives this agent its task of an attempt, and makes the threads of that task.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::unbounded;
use tokio::runtime::Handle;
use weft_proto::agent::v1::start_request::Task;
use weft_proto::agent::v1::{
    Child, LocalCopyTask, ObjectSource, Role, SourceTask, StartRequest, StartResponse,
};

use crate::control::attempt_handle::AttemptHandle;
use crate::control::attempt_registry::AttemptRegistry;
use crate::convert;
use crate::fail_fast;
use crate::fault::Fault;
use crate::files::copies::CopyJob;
use crate::files::{Entry, EntryKind, Source};
use crate::transfer::attempt::WorkGuard;
use crate::transfer::block_reader::{self, BlockReader, DestinationBlocksReader, SourceReader};
use crate::transfer::destination_blocks::DestinationBlocks;
use crate::transfer::dial::Dialer;
use crate::transfer::fanout::SendLimits;
use crate::transfer::layout::MessageLayout;
use crate::transfer::local;
use crate::transfer::object_receiver::{self, ObjectReceiver};
use crate::transfer::peer::Peer;
use crate::transfer::recorder::{RecordedFiles, Recorder};
use crate::transfer::sender::{Sender, SenderConfig};
use crate::transfer::state::{Event, State};

/// Children of one agent, at most. A plan asks for no more.
const CHILDREN_MAX: usize = 64;

impl AttemptRegistry {
    /// Gives this agent its task and starts it.
    pub async fn start(&self, request: StartRequest) -> Result<StartResponse, Fault> {
        let attempt_ref = convert::attempt_ref(request.attempt.clone())?;
        let repeatable = repeatable(&request);
        let name = request.job_name;
        let children = request.sends_to;
        let task = convert::required(request.task, "task")?;
        let wrong = match &task {
            _ if children.len() > CHILDREN_MAX => Some("has more than 64 nodes"),
            Task::Source(_) if children.is_empty() => Some("is empty at the source: name a node"),
            Task::Local(_) if !children.is_empty() => {
                Some("names nodes, and a local copy is for this node alone")
            }
            _ => None,
        };
        if let Some(problem) = wrong {
            return Err(Fault::bad("sends_to", problem));
        }
        let recorded_for = match &task {
            Task::Source(task) => task.job_name.clone(),
            Task::Destination(_) | Task::Local(_) => None,
        };
        let recorded_for = recorded_for
            .map(|name| convert::copy_job(&attempt_ref.uid, name))
            .transpose()?;
        let handle = match &task {
            Task::Source(_) => self.find_or_begin(&attempt_ref).await?,
            Task::Destination(_) | Task::Local(_) => self.find(&attempt_ref)?,
        };
        let namespace = name.as_ref().map(|name| name.namespace.clone());
        handle.begin(name);
        handle.attempt.renew();
        if !handle.register_request("Start", &repeatable)? {
            return match handle.attempt.state() {
                State::Failed => Err(handle.not_ready("start the next attempt")),
                _ => Ok(StartResponse {}),
            };
        }
        let started = match task {
            Task::Source(task) => self.start_source(&handle, task, recorded_for, children),
            Task::Destination(task) => match task.object {
                Some(object) => {
                    let namespace = namespace.unwrap_or_default();
                    self.start_object(&handle, &object, &namespace, children)
                }
                // The parent connects; what it sends is passed on.
                None => handle
                    .start_destination()
                    .and_then(|(worker, blocks)| self.pass_on(&handle, &worker, &blocks, children)),
            },
            Task::Local(task) => self.start_local(&handle, task),
        };
        // Otherwise a repeated Start would be answered with OK.
        started.inspect_err(|fault| handle.attempt.fail(fault.clone()))?;
        Ok(StartResponse {})
    }

    fn start_source(
        &self,
        handle: &AttemptHandle,
        task: SourceTask,
        recorded_for: Option<CopyJob>,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let attempt = &handle.attempt;
        let location = convert::required(task.location, "source.location")?;
        let (root, path) = self.resolve(&location)?;
        let (algorithm, _) = convert::verification(task.verification)?;
        let manifest = self
            .manifests
            .listed(&task.manifest_digest, &task.fingerprint)?;
        // Before the state changes: a Cancel that comes now waits for this worker.
        let worker = handle.begin_work()?;
        handle.apply(Event::StartSource)?;
        let layout = Arc::new(MessageLayout::new(&manifest, algorithm));
        let total = &attempt.counters.bytes_total;
        total.store(layout.manifest.bytes(), Ordering::Relaxed);
        let source = Source::new(root, path, manifest);
        if let Some(job) = recorded_for {
            attempt.set_recorder(Recorder {
                files: RecordedFiles::Source(source.clone(), job),
                copies_changed: self.copies_changed.clone(),
            });
        }
        let reader = SourceReader::new(source, layout.clone(), Some(attempt.clone()));
        self.send(handle, &worker, reader, &layout, None, children)
    }

    /// Reads a store into a prepared destination, and passes the messages on.
    fn start_object(
        &self,
        handle: &AttemptHandle,
        source: &ObjectSource,
        namespace: &str,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let (worker, blocks) = handle.start_destination()?;
        let store = self.store(source, namespace)?;
        let manifest = &blocks.layout.manifest;
        let version = |(entry, index): (Entry<'_>, usize)| match entry.kind {
            EntryKind::Directory | EntryKind::Link { .. } => Ok(None),
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
        let mut buffers = handle.resources().take_buffers(&self.config.memory)?;
        buffers.grow(object_receiver::BUFFERS);
        self.pass_on(handle, &worker, &blocks, children)?;
        let (attempt, runtime) = (handle.attempt.clone(), Handle::current());
        worker.spawn("weft-object", move || {
            let receiver = ObjectReceiver::new(
                &attempt,
                blocks,
                Arc::new(store),
                versions,
                buffers,
                runtime,
            );
            if let Err(fault) = receiver.and_then(ObjectReceiver::run) {
                attempt.fail(fault);
            }
        })
    }

    fn start_local(&self, handle: &AttemptHandle, task: LocalCopyTask) -> Result<(), Fault> {
        let location = convert::required(task.source, "local.source")?;
        let (root, path) = self.resolve(&location)?;
        let (worker, blocks) = handle.start_destination()?;
        let digest = blocks.layout.manifest.digest();
        let manifest = self.manifests.listed(digest, &task.fingerprint)?;
        let buffers = handle.resources().take_buffers(&self.config.memory)?;
        let (source, attempt) = (Source::new(root, path, manifest), handle.attempt.clone());
        worker.spawn("weft-local", move || {
            let _buffers = buffers;
            if let Err(fault) = local::copy(source, &blocks, &attempt) {
                attempt.fail(fault);
            }
        })
    }

    /// Passes the messages that arrive on to the children, if there are any.
    fn pass_on(
        &self,
        handle: &AttemptHandle,
        worker: &WorkGuard,
        blocks: &Arc<DestinationBlocks>,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        if children.is_empty() {
            return Ok(());
        }
        let reader = DestinationBlocksReader(blocks.clone());
        self.send(
            handle,
            worker,
            reader,
            &blocks.layout,
            Some(blocks),
            children,
        )
    }

    /// Makes the sender's thread, its block reader's, and a dialer for each child. `blocks` is what a relay
    /// receives; a source has none.
    fn send(
        &self,
        handle: &AttemptHandle,
        worker: &WorkGuard,
        reader: impl BlockReader + 'static,
        layout: &MessageLayout,
        blocks: Option<&Arc<DestinationBlocks>>,
        children: Vec<Child>,
    ) -> Result<(), Fault> {
        let config = &self.config;
        let attempt = &handle.attempt;
        let least = SendLimits::buffers_least(children.len());
        let most = SendLimits::buffers_most(children.len(), usize::from(config.slots));
        let pool = config.memory.pool(least, most)?;
        let (to_sender, sender_events) = unbounded();
        let (from_engine, engine_events) = unbounded();
        let (build_requests_tx, build_requests_rx) = unbounded();
        let readable_until = blocks.map_or(layout.messages(), |blocks| {
            blocks.subscribe_sender(to_sender.clone())
        });
        let peers: Vec<Arc<Peer>> = children
            .iter()
            .map(|child| Arc::new(Peer::new(child.node.clone(), Role::Child)))
            .collect();
        for peer in &peers {
            attempt.add_peer(peer.clone());
        }
        let sender = Sender::new(SenderConfig {
            links: config.links.clone(),
            attempt: attempt.clone(),
            peers: peers.clone(),
            pool,
            messages: layout.messages(),
            readable_until,
            is_source: blocks.is_none(),
            build_requests_tx,
            sender_events,
            engine_events,
        });
        // Threads first: when there are none, no child has been called yet.
        worker.clone().spawn("weft-sender", move || sender.run())?;
        let (of, sender) = (attempt.clone(), to_sender.clone());
        worker.clone().spawn("weft-reader", move || {
            block_reader::serve(reader, &of, &build_requests_rx, &sender);
        })?;
        for (index, (child, peer)) in children.into_iter().zip(peers).enumerate() {
            let dialer = Dialer {
                links: config.links.clone(),
                attempt: attempt.clone(),
                child,
                index,
                peer,
                tls: config.tls.borrow().clone(),
                slots: usize::from(config.slots),
                manifest_digest: *layout.manifest.digest(),
                algorithm: convert::algorithm_to_proto(layout.algorithm),
                domain: handle.domain,
                retry_for: config.retry_for,
                events: from_engine.clone(),
                sender: to_sender.clone(),
            };
            let worker = worker.clone();
            fail_fast::spawn("dialer", async move {
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
    if let Some(Task::Destination(task)) = &mut request.task
        && let Some(source) = task.object.as_mut()
    {
        source.credentials = None;
    }
    request
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_plan_asks_an_agent_for_no_more_children_than_it_takes() {
        assert_eq!(super::CHILDREN_MAX, weft_planner::RECEIVERS_MAX);
    }
}
