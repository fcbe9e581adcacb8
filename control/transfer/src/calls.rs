//! Carries a job's commands to the agents and brings the answers back: a call each.

mod following;

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{mpsc::UnboundedSender, watch},
    time::timeout,
};
use weft_planner::Part;
use weft_proto::agent::v1::{
    CancelRequest, Child, DestinationPart, Direction, JobName, JobRef, LocalPart, Location,
    ManifestHolder, PrepareRequest, SignedTicket, SourcePart, StartRequest, StatRequest,
    StatResponse, Ticket, Verification, start_request,
};

use super::{
    Answer, Channels, Cleanup, Command, Contact, Listing, Place, Refusal, Spec, UID_HERE,
    agent::Agent, is_local, node_of, refusal::unknown,
};

/// How long a ticket holds; an attempt that is not connected by then never will be.
const TICKET_LIFE: Duration = Duration::from_secs(15 * 60);
/// Listing a million files on a slow disk.
pub(super) const STAT_WITHIN: Duration = Duration::from_secs(2 * 60);
/// Hashing what an earlier attempt left: 900 GB at 1 GB/s.
const PREPARE_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Nothing is waited for.
const START_WITHIN: Duration = Duration::from_secs(30);
/// Writes that are on their way to a slow disk have to end.
pub(super) const CANCEL_WITHIN: Duration = Duration::from_secs(60);

/// Where answers go. Boxed: a channel keeps room for 32 of what it carries, and there is one for each job.
pub(super) type Answers = UnboundedSender<Box<Answer>>;

/// What the calls share.
pub(super) struct Calls {
    spec: Spec,
    channels: Channels,
    /// By node.
    agents: BTreeMap<String, Agent>,
    answers: Answers,
}

impl Calls {
    /// The calls of a job at agents that were made known to it.
    pub(super) fn new(
        spec: Spec,
        channels: Channels,
        contacts: &[Contact],
        answers: Answers,
    ) -> Self {
        let agents = contacts.iter();
        let agents = agents.map(|contact| (contact.node.clone(), channels.agent(contact)));
        Self {
            spec,
            agents: agents.collect(),
            channels,
            answers,
        }
    }

    /// The same while its agents are the same, once the bytes come from another node.
    pub(super) fn moved(&self, spec: &Spec) -> Option<Self> {
        let (old, new) = (&self.spec, spec);
        let is_same = old.source == new.source && old.object.is_some() == new.object.is_some();
        (!is_same).then(|| Self {
            spec: spec.clone(),
            channels: self.channels.clone(),
            agents: self.agents.clone(),
            answers: self.answers.clone(),
        })
    }

    /// The same for what the job has become.
    pub(super) fn with(&self, spec: Spec, contacts: &[Contact]) -> Self {
        let (channels, answers) = (self.channels.clone(), self.answers.clone());
        Self::new(spec, channels, contacts, answers)
    }

    /// The future of each call is boxed: a task is as large as the largest of them.
    pub(super) async fn carry_out(
        &self,
        command: Command,
        listing: Option<Listing>,
        mut permits: watch::Receiver<u32>,
    ) {
        let answer = match command {
            Command::Claim { attempt } => {
                if permits.wait_for(|permit| *permit >= attempt).await.is_err() {
                    // Nobody is left to permit it.
                    return;
                }
                Answer::Claimed { attempt }
            }
            Command::Stat { named } => {
                let call = self.stat(named);
                let call = within(STAT_WITHIN, "Stat", &self.spec.source.node, call);
                Answer::Stat(Box::pin(call).await)
            }
            Command::Prepare { node, attempt } => {
                let call = self.prepare(&node, attempt, listing);
                let result = Box::pin(within(PREPARE_WITHIN, "Prepare", &node, call)).await;
                Answer::Prepared {
                    node,
                    attempt,
                    result,
                }
            }
            Command::Start { attempt, part } => {
                let call = self.start(&part, attempt, listing);
                let result = Box::pin(within(START_WITHIN, "Start", &part.node, call)).await;
                Answer::Started {
                    node: part.node,
                    attempt,
                    result,
                }
            }
            Command::Follow { node, attempt } => {
                return Box::pin(self.follow(node, attempt)).await;
            }
            Command::Cancel {
                node,
                attempt,
                cleanup,
            } => {
                let call = self.cancel(&node, attempt, cleanup);
                let result = Box::pin(within(CANCEL_WITHIN, "Cancel", &node, call)).await;
                if let Err(refusal) = &result {
                    tracing::info!(node, attempt, refusal.message, "a Cancel is not confirmed");
                }
                Answer::Cancelled {
                    node,
                    attempt,
                    result,
                }
            }
        };
        // The runner is gone only when nobody waits for an answer any more.
        let _ = self.answers.send(Box::new(answer));
    }

    /// The agent of a node, or of the source's node as a destination.
    fn agent(&self, name: &str) -> Result<&Agent, Refusal> {
        let node = node_of(name);
        self.agents.get(node).ok_or_else(|| unknown(node))
    }

    fn address(&self, node: &str) -> &str {
        self.agents
            .get(node_of(node))
            .map_or("", |agent| agent.address())
    }

    /// An attempt as a node knows it; a copy that a node makes for itself is one of its own there.
    fn job(&self, node: &str, attempt: u32) -> Option<JobRef> {
        let uid = &self.spec.uid;
        Some(JobRef {
            uid: if is_local(node) {
                format!("{uid}{UID_HERE}")
            } else {
                uid.clone()
            },
            generation: self.spec.mandate.generation,
            attempt,
        })
    }

    fn verification(&self) -> Verification {
        Verification {
            algorithm: self.spec.algorithm.into(),
            expect: self.spec.expect.clone(),
        }
    }

    fn place(&self, node: &str) -> Option<Location> {
        self.spec
            .destinations
            .iter()
            .find(|place| place.node == node)
            .map(location)
    }

    /// The job's name, where the source is to record its files as a copy: it has them where all destinations
    /// have them.
    fn source_recorded_as(&self) -> Option<JobName> {
        let Spec {
            source,
            destinations,
            ..
        } = &self.spec;
        let is_there = |to: &Place| (&to.root, &to.path) == (&source.root, &source.path);
        let is_copy = destinations.iter().all(is_there);
        self.spec.name.clone().filter(|_| is_copy)
    }

    pub(super) async fn stat(&self, named: Option<Vec<u8>>) -> Result<StatResponse, Refusal> {
        let source = &self.spec.source;
        let object = match &self.spec.object {
            Some(object) => Some(object.source().await?),
            None => None,
        };
        let request = StatRequest {
            leader_epoch: self.spec.mandate.leader_epoch,
            location: object.is_none().then(|| location(source)),
            object,
            manifest_digest: named.unwrap_or_default(),
        };
        let call = self.agent(&source.node)?.call(|mut client| {
            let request = request.clone();
            async move { client.stat(request).await }
        });
        call.await
    }

    async fn prepare(
        &self,
        node: &str,
        attempt: u32,
        listing: Option<Listing>,
    ) -> Result<(), Refusal> {
        let Listing {
            node: holder,
            found,
        } = listing.unwrap_or_default();
        let digest = found.manifest_digest;
        let manifest_from = match node_of(node) == holder {
            true => None,
            false => Some(ManifestHolder {
                control_address: self.agent(&holder)?.address().to_owned(),
                ticket: Some(self.sign(Ticket {
                    job: self.job(node, attempt),
                    from_node: node_of(node).to_owned(),
                    to_node: holder.clone(),
                    direction: Direction::FetchManifest.into(),
                    manifest_digest: digest.clone(),
                    ..Ticket::default()
                })),
                node: holder,
            }),
        };
        let request = PrepareRequest {
            job: self.job(node, attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            location: self.place(node),
            manifest_digest: digest,
            manifest_from,
            verification: Some(self.verification()),
            overwrite: self.spec.overwrite.into(),
            job_name: self.spec.name.clone(),
            state: found.state,
        };
        let call = self.agent(node)?.call(|mut client| {
            let request = request.clone();
            async move { client.prepare(request).await }
        });
        call.await.map(drop)
    }

    async fn start(
        &self,
        part: &Part,
        attempt: u32,
        listing: Option<Listing>,
    ) -> Result<(), Refusal> {
        let source = Some(location(&self.spec.source));
        let StatResponse {
            manifest_digest,
            state,
            ..
        } = listing.unwrap_or_default().found;
        let role = match (&part.receives_from, &self.spec.object) {
            (None, _) if is_local(&part.node) => {
                start_request::Part::Local(LocalPart { source, state })
            }
            (Some(from), _) => start_request::Part::Destination(DestinationPart {
                receives_from: from.clone(),
                object: None,
            }),
            (None, Some(object)) => start_request::Part::Destination(DestinationPart {
                receives_from: String::new(),
                object: Some(object.source().await?),
            }),
            (None, None) => start_request::Part::Source(SourcePart {
                location: source,
                manifest_digest,
                state,
                verification: Some(self.verification()),
                job_name: self.source_recorded_as(),
            }),
        };
        let child = |node: &String| Child {
            node: node.clone(),
            control_address: self.address(node).to_owned(),
            ticket: Some(self.sign(Ticket {
                job: self.job(node, attempt),
                from_node: part.node.clone(),
                to_node: node.clone(),
                source: Some(location(&self.spec.source)),
                destination: self.place(node),
                direction: Direction::Write.into(),
                ..Ticket::default()
            })),
        };
        let request = StartRequest {
            job: self.job(&part.node, attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            part: Some(role),
            sends_to: part.sends_to.iter().map(child).collect(),
            job_name: self.spec.name.clone(),
        };
        let call = self.agent(&part.node)?.call(|mut client| {
            let request = request.clone();
            async move { client.start(request).await }
        });
        call.await.map(drop)
    }

    /// A ticket of this fabric that holds from now on.
    fn sign(&self, ticket: Ticket) -> SignedTicket {
        let authority = self.channels.authority();
        authority.sign(&Ticket {
            fabric: authority.fabric().to_owned(),
            expires_unix_s: expiry(),
            ..ticket
        })
    }

    async fn cancel(&self, node: &str, attempt: u32, cleanup: Cleanup) -> Result<(), Refusal> {
        let request = CancelRequest {
            job: self.job(node, attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            discard: cleanup >= Cleanup::Partials,
            release: cleanup >= Cleanup::Copies,
        };
        let call = self.agent(node)?.call(|mut client| {
            let request = request.clone();
            async move { client.cancel(request).await }
        });
        call.await.map(drop)
    }
}

/// A call with its deadline.
pub(super) async fn within<T>(
    limit: Duration,
    call: &str,
    node: &str,
    work: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    timeout(limit, work).await.unwrap_or_else(|_| {
        Err(Refusal {
            node: node.to_owned(),
            reason: "CallTimedOut".to_owned(),
            message: format!(
                "node {}: its agent has not answered {call} for {} s; see its log, and restart it",
                node_of(node),
                limit.as_secs()
            ),
            retriable: true,
        })
    })
}

fn location(place: &Place) -> Location {
    Location {
        root: place.root.clone(),
        path: place.path.clone(),
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
