//! Carries a transfer's commands to the agents and brings the answers back: a call each.

mod progress;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backon::Retryable as _;
use tokio::{sync::mpsc::UnboundedSender, time::timeout};
use weft_planner::Assignment;
use weft_proto::agent::v1::{
    AttemptRef, CancelRequest, Child, DestinationTask, JobName, LocalCopyTask, Location,
    ManifestHolder, Permission, PrepareRequest, SignedTicket, SourceTask, StartRequest,
    StatRequest, StatResponse, Ticket, Verification, start_request,
};

use crate::{
    agent::AgentHandle,
    command::{Call, Cleanup, Command, Input},
    failure::{Failure, node_unknown},
    pool::ConnectionPool,
    spec::{NodeLocation, SourceListing, Spec, is_local, node_of, uid_at},
};

/// How long a ticket holds; an attempt that is not connected by then never will be.
const TICKET_LIFE: Duration = Duration::from_secs(15 * 60);
/// Listing a million files on a slow disk.
pub(crate) const STAT_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Of Prepare, besides the time for hashing all that is there: partial files, and files under their final names.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The slowest disk whose files are waited for: what takes longer than this never becomes ready, for each attempt hashes
/// from the beginning.
const HASHED_PER_SECOND_MIN: u64 = 50_000_000;
/// An earlier attempt at the source may have to end first, and a Secret may have to be read.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Writes that are on their way to a slow disk have to end.
pub(crate) const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a Cancel is repeated that has not reached its node. In a cluster the waits between the tries are 1, 2
/// and 4 s: an agent that was stopped runs again by then, and a node that is down stays so for longer.
const CANCEL_REPEATS: usize = 3;

/// To the runner. Boxed: a channel keeps room for 32 of what it carries, and there is one for each transfer.
pub(crate) type InputSender = UnboundedSender<Box<Input>>;

/// What a call needs: the agents, and the transfer's state when it gave the command.
#[derive(Clone)]
pub(crate) struct CallContext {
    pub(crate) pool: ConnectionPool,
    /// By node.
    pub(crate) agents: Arc<BTreeMap<String, AgentHandle>>,
    pub(crate) inputs: InputSender,
    pub(crate) spec: Arc<Spec>,
    pub(crate) listing: Option<SourceListing>,
}

impl CallContext {
    /// The agent of a node, or of the source's node as a destination.
    fn agent(&self, name: &str) -> Result<&AgentHandle, Failure> {
        let node = node_of(name);
        self.agents.get(node).ok_or_else(|| node_unknown(node))
    }

    fn address(&self, name: &str) -> &str {
        self.agents
            .get(node_of(name))
            .map_or("", |agent| agent.address())
    }

    /// Whether the runner is there to take the input.
    fn send(&self, input: Input) -> bool {
        self.inputs.send(Box::new(input)).is_ok()
    }

    /// The future of each call is boxed: a task is as large as the largest of them.
    pub(crate) async fn run(&self, command: Command) {
        let input = match command {
            // The runner gives the input, once the attempt is recorded.
            Command::RecordAttempt { .. } => return,
            Command::Stat { manifest_digest } => {
                let call = self.stat(manifest_digest);
                let call = with_timeout(STAT_TIMEOUT, "Stat", &self.spec.source.node, call);
                Input::Stat(Box::pin(call).await)
            }
            Command::Call {
                node,
                attempt,
                call,
            } => {
                let result = self.call(&node, attempt, &call).await;
                Input::Called {
                    node,
                    attempt,
                    call,
                    result,
                }
            }
        };
        self.send(input);
    }

    async fn call(&self, node: &str, attempt: u32, call: &Call) -> Result<(), Failure> {
        match call {
            Call::Prepare => {
                let call = self.prepare(node, attempt);
                let listing = self.listing.as_ref();
                let limit = prepare_timeout(listing.map_or(0, |listing| listing.stat.bytes));
                Box::pin(with_timeout(limit, "Prepare", node, call)).await
            }
            Call::Start(assignment) => {
                let call = self.start(assignment, attempt);
                Box::pin(with_timeout(START_TIMEOUT, "Start", node, call)).await
            }
            Call::WatchProgress => Box::pin(self.watch_progress(node, attempt)).await,
            Call::Cancel {
                cleanup,
                is_repeated,
            } => {
                let repeats = if *is_repeated { CANCEL_REPEATS } else { 0 };
                let call = || {
                    let call = self.cancel(node, attempt, *cleanup);
                    with_timeout(CANCEL_TIMEOUT, "Cancel", node, call)
                };
                let call = call
                    .retry(self.spec.timing.backoffs(repeats))
                    .when(Failure::is_worth_repeating);
                let result = Box::pin(call.into_future()).await;
                result.inspect_err(|failure| {
                    tracing::info!(node, attempt, failure.message, "a Cancel is not confirmed");
                })
            }
        }
    }

    /// An attempt as a node knows it; a copy that a node makes for itself is one of its own there.
    fn attempt_ref(&self, node: &str, attempt: u32) -> Option<AttemptRef> {
        Some(AttemptRef {
            uid: uid_at(node, &self.spec.uid),
            generation: self.spec.leader.generation,
            number: attempt,
        })
    }

    fn verification(&self) -> Verification {
        Verification {
            algorithm: self.spec.algorithm.into(),
            expect: self.spec.expect.clone(),
        }
    }

    fn location_at(&self, node: &str) -> Option<Location> {
        self.spec
            .destinations
            .iter()
            .find(|location| location.node == node)
            .map(location)
    }

    /// The job's name, where the source is to record its files as a copy: it has them where all destinations
    /// have them.
    fn source_recorded_as(&self) -> Option<JobName> {
        let Spec {
            source,
            destinations,
            ..
        } = &*self.spec;
        let is_there = |to: &NodeLocation| (&to.root, &to.path) == (&source.root, &source.path);
        let is_copy = destinations.iter().all(is_there);
        self.spec.name.clone().filter(|_| is_copy)
    }

    pub(crate) async fn stat(
        &self,
        manifest_digest: Option<Vec<u8>>,
    ) -> Result<StatResponse, Failure> {
        let source = &self.spec.source;
        let object = match &self.spec.object {
            Some(object) => Some(object.source().await?),
            None => None,
        };
        let request = StatRequest {
            leader_epoch: self.spec.leader.leader_epoch,
            location: object.is_none().then(|| location(source)),
            object,
            manifest_digest: manifest_digest.unwrap_or_default(),
            job_name: self.spec.name.clone(),
            symlinks: self.spec.symlinks.into(),
        };
        let agent = self.agent(&source.node)?;
        let call = agent.call(&request, |mut client, request| async move {
            client.stat(request).await
        });
        call.await
    }

    async fn prepare(&self, node: &str, attempt: u32) -> Result<(), Failure> {
        let SourceListing { holder, stat } = self.listing.clone().unwrap_or_default();
        let digest = stat.manifest_digest;
        let manifest_from = match node_of(node) == holder {
            true => None,
            false => Some(ManifestHolder {
                control_address: self.agent(&holder)?.address().to_owned(),
                ticket: Some(self.sign(Ticket {
                    attempt: self.attempt_ref(node, attempt),
                    from_node: node_of(node).to_owned(),
                    to_node: holder.clone(),
                    permission: Permission::FetchManifest.into(),
                    manifest_digest: digest.clone(),
                    ..Ticket::default()
                })),
                node: holder,
            }),
        };
        let request = PrepareRequest {
            attempt: self.attempt_ref(node, attempt),
            leader_epoch: self.spec.leader.leader_epoch,
            location: self.location_at(node),
            manifest_digest: digest,
            manifest_from,
            verification: Some(self.verification()),
            overwrite: self.spec.overwrite.into(),
            job_name: self.spec.name.clone(),
            fingerprint: stat.fingerprint,
        };
        let agent = self.agent(node)?;
        let call = agent.call(&request, |mut client, request| async move {
            client.prepare(request).await
        });
        call.await.map(drop)
    }

    async fn start(&self, assignment: &Assignment, attempt: u32) -> Result<(), Failure> {
        let source = Some(location(&self.spec.source));
        let StatResponse {
            manifest_digest,
            fingerprint,
            ..
        } = self.listing.clone().unwrap_or_default().stat;
        let task = match (&assignment.receives_from, &self.spec.object) {
            (None, _) if is_local(&assignment.node) => start_request::Task::Local(LocalCopyTask {
                source,
                fingerprint,
            }),
            (Some(_), _) => start_request::Task::Destination(DestinationTask { object: None }),
            (None, Some(object)) => start_request::Task::Destination(DestinationTask {
                object: Some(object.source().await?),
            }),
            (None, None) => start_request::Task::Source(SourceTask {
                location: source,
                manifest_digest,
                fingerprint,
                verification: Some(self.verification()),
                job_name: self.source_recorded_as(),
            }),
        };
        let child = |node: &String| Child {
            node: node.clone(),
            control_address: self.address(node).to_owned(),
            ticket: Some(self.sign(Ticket {
                attempt: self.attempt_ref(node, attempt),
                from_node: assignment.node.clone(),
                to_node: node.clone(),
                source: Some(location(&self.spec.source)),
                destination: self.location_at(node),
                permission: Permission::Write.into(),
                ..Ticket::default()
            })),
        };
        let request = StartRequest {
            attempt: self.attempt_ref(&assignment.node, attempt),
            leader_epoch: self.spec.leader.leader_epoch,
            task: Some(task),
            sends_to: assignment.sends_to.iter().map(child).collect(),
            job_name: self.spec.name.clone(),
        };
        let agent = self.agent(&assignment.node)?;
        let call = agent.call(&request, |mut client, request| async move {
            client.start(request).await
        });
        call.await.map(drop)
    }

    /// A ticket of this fabric that holds from now on.
    fn sign(&self, ticket: Ticket) -> SignedTicket {
        let authority = self.pool.authority();
        authority.sign(&Ticket {
            fabric: authority.fabric().to_owned(),
            expires_unix_s: expiry(),
            ..ticket
        })
    }

    async fn cancel(&self, node: &str, attempt: u32, cleanup: Cleanup) -> Result<(), Failure> {
        let request = CancelRequest {
            attempt: self.attempt_ref(node, attempt),
            leader_epoch: self.spec.leader.leader_epoch,
            remove_partials: cleanup >= Cleanup::Partials,
            release_copies: cleanup >= Cleanup::Copies,
        };
        let agent = self.agent(node)?;
        let call = agent.call(&request, |mut client, request| async move {
            client.cancel(request).await
        });
        call.await.map(drop)
    }
}

/// How long a destination may take to become ready for so many bytes.
fn prepare_timeout(bytes: u64) -> Duration {
    PREPARE_TIMEOUT + Duration::from_secs(bytes / HASHED_PER_SECOND_MIN)
}

/// A call with its deadline.
pub(crate) async fn with_timeout<T>(
    limit: Duration,
    call: &str,
    node: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    timeout(limit, work).await.unwrap_or_else(|_| {
        let message = format!(
            "node {}: its agent has not answered {call} for {} s; see its log, and restart it",
            node_of(node),
            limit.as_secs()
        );
        Err(Failure::at(node, "CallTimedOut", &message, true))
    })
}

fn location(at: &NodeLocation) -> Location {
    Location {
        root: at.root.clone(),
        path: at.path.clone(),
    }
}

fn expiry() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    (now + TICKET_LIFE).as_secs()
}

#[cfg(test)]
mod tests;
