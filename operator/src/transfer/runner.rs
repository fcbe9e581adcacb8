//! Carries a job's commands to the agents and brings the answers back.
//!
//! Every call is a task of its own; the job is stepped by whoever calls [`Runner::turn`]. An agent
//! that has vanished is found out by HTTP/2 pings, long before a call's own deadline.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    sync::{
        OnceCell,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        watch,
    },
    task::JoinSet,
    time::{Instant, timeout},
};
use tonic::{
    Code, Status,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};
use weft_planner::Part;
use weft_proto::{
    Message as _,
    agent::v1::{
        CancelRequest, Child, DestinationPart, DiagnoseRequest, DiagnoseResponse, Direction,
        ErrorDetail, JobRef, LocalPart, Location, Manifest, PrepareRequest, ProgressRequest,
        RemoveRequest, SourcePart, StartRequest, StatRequest, Ticket, Verification,
        agent_client::AgentClient, start_request,
    },
};

use super::{
    Answer, CONTACT_TRY, Command, Job, NEVER_REACHED, Place, Refusal, Removal, Roster, Spec,
    UNREACHABLE, is_local, node_of,
};
use crate::authority::{Authority, AuthorityError};

/// How long a ticket holds; an attempt that is not connected by then never will be.
const TICKET_LIFE: Duration = Duration::from_secs(15 * 60);
/// To reach an agent again: a management network answers within milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// With [`PING_TIMEOUT`]: an agent that vanished without a word is missed after 6 s.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Listing 300,000 files on a slow disk.
const STAT_WITHIN: Duration = Duration::from_secs(2 * 60);
/// Hashing what an earlier attempt left: 900 GB at 1 GB/s.
const PREPARE_WITHIN: Duration = Duration::from_secs(15 * 60);
/// Nothing is waited for.
const START_WITHIN: Duration = Duration::from_secs(30);
/// Three rounds of packets to 64 peers.
const DIAGNOSE_WITHIN: Duration = Duration::from_secs(15);
/// Writes that are on their way to a slow disk have to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(60);
/// A manifest has some 200 B per file; 64 MiB are 300,000 files.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// An agent's control API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// The node.
    pub node: String,
    /// `HOST:PORT`.
    pub address: String,
}

/// Why agents cannot even be called.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// No certificate for the operator.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// An address is none, or the certificates cannot be used.
    #[error("node {node} at {address} cannot be called: {source}; check address and certificates")]
    Contact {
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// What the library said.
        source: tonic::transport::Error,
    },
}

impl RunnerError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Authority(error) => error.reason(),
            Self::Contact { .. } => "ContactUnusable",
        }
    }
}

/// What the calls share.
struct Calls {
    spec: Spec,
    authority: Arc<Authority>,
    agents: BTreeMap<String, Agent>,
    answers: UnboundedSender<Answer>,
}

/// An agent and the way to it.
#[derive(Clone)]
struct Agent {
    address: String,
    endpoint: Endpoint,
    /// Once it has been reached; mends itself from then on.
    client: Arc<OnceCell<AgentClient<Channel>>>,
}

/// A job on its way. Dropping it ends all its calls; agents are told nothing.
pub struct Runner {
    job: Job,
    calls: Arc<Calls>,
    answers: UnboundedReceiver<Answer>,
    tasks: JoinSet<()>,
    began: Instant,
    /// Attempts up to this number may begin.
    permits: watch::Receiver<u32>,
}

impl Runner {
    /// Begins a job at agents that were made known to it.
    pub fn begin(
        spec: Spec,
        authority: Arc<Authority>,
        contacts: &[Contact],
    ) -> Result<Self, RunnerError> {
        Self::with(Job::begin(spec), authority, contacts)
    }

    /// Tells the agents of a job that an earlier operator began that nobody wants it any more.
    pub fn withdraw(
        spec: Spec,
        (discard, remove): (bool, Vec<Removal>),
        authority: Arc<Authority>,
        contacts: &[Contact],
    ) -> Result<Self, RunnerError> {
        let begun = Job::withdraw(spec, discard, remove);
        Self::with(begun, authority, contacts)
    }

    /// From now on an attempt begins only once this says that its number may.
    #[must_use]
    pub fn heeding(mut self, permits: watch::Receiver<u32>) -> Self {
        self.permits = permits;
        self
    }

    fn with(
        (job, commands): (Job, Vec<Command>),
        authority: Arc<Authority>,
        contacts: &[Contact],
    ) -> Result<Self, RunnerError> {
        let agents = agents(&authority, contacts)?;
        let (sender, answers) = unbounded_channel();
        let calls = Calls {
            spec: job.spec().clone(),
            authority,
            agents,
            answers: sender,
        };
        let mut runner = Self {
            job,
            calls: Arc::new(calls),
            answers,
            tasks: JoinSet::new(),
            began: Instant::now(),
            // Without a successor there is nothing to write down.
            permits: watch::channel(u32::MAX).1,
        };
        runner.issue(commands);
        Ok(runner)
    }

    /// How it stands.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Time since it began: the job's clock.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Takes the next answer, or wakes the job. Safe to be dropped while it waits.
    ///
    /// # Panics
    /// With a call's own panic.
    pub async fn turn(&mut self) {
        let due = self.job.wake_at().map(|at| self.began + at);
        let answer = tokio::select! {
            answer = self.answers.recv() => answer.unwrap_or(Answer::Woken),
            Some(ended) = self.tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
                return;
            }
            () = at(due) => Answer::Woken,
        };
        self.take(answer);
    }

    /// Nobody wants it any more; it is over once the agents know.
    pub fn stop(&mut self, discard: bool, remove: Vec<Removal>) {
        self.take(Answer::Stop { discard, remove });
    }

    /// Takes up who has come to be a destination, and agents that have another address now.
    pub fn meet(&mut self, roster: Roster, contacts: &[Contact]) -> Result<(), RunnerError> {
        let is_new = |contact: &&Contact| {
            let known = self.calls.agents.get(&contact.node);
            known.is_none_or(|known| known.address != contact.address)
        };
        let new: Vec<Contact> = contacts.iter().filter(is_new).cloned().collect();
        let mut agents = self.calls.agents.clone();
        if !new.is_empty() {
            agents.extend(self::agents(&self.calls.authority, &new)?);
        }
        let commands = self
            .job
            .advance(self.began.elapsed(), Answer::Roster(Box::new(roster)));
        // Calls that are under way end with what they began with.
        self.calls = Arc::new(Calls {
            spec: self.job.spec().clone(),
            authority: Arc::clone(&self.calls.authority),
            agents,
            answers: self.calls.answers.clone(),
        });
        self.issue(commands);
        Ok(())
    }

    fn take(&mut self, answer: Answer) {
        let commands = self.job.advance(self.began.elapsed(), answer);
        self.issue(commands);
    }

    fn issue(&mut self, commands: Vec<Command>) {
        for command in commands {
            tracing::debug!(?command);
            let calls = Arc::clone(&self.calls);
            let manifest = self.job.manifest().cloned();
            let permits = self.permits.clone();
            self.tasks
                .spawn(async move { calls.carry_out(command, manifest, permits).await });
        }
    }
}

/// The ways to agents, by node.
fn agents(
    authority: &Authority,
    contacts: &[Contact],
) -> Result<BTreeMap<String, Agent>, RunnerError> {
    let operator = authority.operator()?;
    let identity = tonic::transport::Identity::from_pem(operator.certificate, operator.key);
    let agent = |Contact { node, address }: &Contact| {
        let failed = |source| RunnerError::Contact {
            node: node.clone(),
            address: address.clone(),
            source,
        };
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority.certificate()))
            .identity(identity.clone())
            .domain_name(Authority::server_name(authority.fabric(), node));
        let endpoint = Endpoint::from_shared(format!("https://{address}"))
            .and_then(|endpoint| endpoint.tls_config(tls))
            .map_err(failed)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let agent = Agent {
            address: address.clone(),
            endpoint,
            client: Arc::default(),
        };
        Ok((node.clone(), agent))
    };
    contacts.iter().map(agent).collect()
}

impl Agent {
    /// A client once it has been reached; the first call reaches it, or says that it does not answer.
    async fn client(&self, node: &str) -> Result<AgentClient<Channel>, Refusal> {
        let failed = |cause: &str| Refusal {
            reason: NEVER_REACHED.to_owned(),
            ..unreachable(node, &self.address, cause)
        };
        let reach = async {
            // TLS included: what answers is the node.
            match timeout(CONTACT_TRY, self.endpoint.connect()).await {
                Ok(Ok(channel)) => Ok(AgentClient::new(channel)
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(MESSAGE_BYTES_MAX)),
                Ok(Err(error)) => Err(failed(&innermost(&error))),
                Err(_) => Err(failed(&format!("no connection within {CONTACT_TRY:?}"))),
            }
        };
        self.client.get_or_try_init(|| reach).await.cloned()
    }
}

/// What the source of a transfer holds, asked outside of any job: nothing is begun.
///
/// # Errors
/// What the agent, or the way to it, refused.
pub(crate) async fn stat(
    spec: Spec,
    authority: Arc<Authority>,
    contacts: &[Contact],
) -> Result<Manifest, Refusal> {
    let node = spec.source.node.clone();
    let agents = agents(&authority, contacts).map_err(|error| uncalled(&node, &error))?;
    let calls = Calls {
        spec,
        authority,
        agents,
        answers: unbounded_channel().0,
    };
    within(STAT_WITHIN, "Stat", &node, calls.stat()).await
}

/// What a node reaches and has, tried by its agent.
///
/// # Errors
/// What the agent, or the way to it, refused.
pub(crate) async fn diagnose(
    request: DiagnoseRequest,
    authority: &Authority,
    contact: &Contact,
) -> Result<DiagnoseResponse, Refusal> {
    let node = &contact.node;
    let agents = agents(authority, std::slice::from_ref(contact));
    let agents = agents.map_err(|error| uncalled(node, &error))?;
    let call = async {
        let Some(agent) = agents.get(node) else {
            return Err(unreachable(node, &contact.address, "it is not known"));
        };
        match agent.client(node).await?.diagnose(request).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(refusal(node, &contact.address, &status)),
        }
    };
    within(DIAGNOSE_WITHIN, "Diagnose", node, call).await
}

fn uncalled(node: &str, error: &RunnerError) -> Refusal {
    Refusal {
        node: node.to_owned(),
        reason: error.reason().to_owned(),
        message: error.to_string(),
        retriable: true,
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl Calls {
    async fn carry_out(
        &self,
        command: Command,
        manifest: Option<Arc<Manifest>>,
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
            Command::Stat => {
                let call = within(STAT_WITHIN, "Stat", &self.spec.source.node, self.stat());
                Answer::Stat(call.await)
            }
            Command::Prepare { node, attempt } => {
                let call = self.prepare(&node, attempt, manifest);
                let result = within(PREPARE_WITHIN, "Prepare", &node, call).await;
                Answer::Prepared {
                    node,
                    attempt,
                    result,
                }
            }
            Command::Start { attempt, part } => {
                let call = self.start(&part, attempt, manifest);
                let result = within(START_WITHIN, "Start", &part.node, call).await;
                Answer::Started {
                    node: part.node,
                    attempt,
                    result,
                }
            }
            Command::Follow { node, attempt } => {
                let result = self.follow(&node, attempt).await;
                Answer::FollowEnded {
                    node,
                    attempt,
                    result,
                }
            }
            Command::Cancel {
                node,
                attempt,
                discard,
            } => {
                let call = self.cancel(&node, attempt, discard);
                let result = within(CANCEL_WITHIN, "Cancel", &node, call).await;
                if let Err(refusal) = result {
                    tracing::debug!(node, attempt, refusal.message, "not cancelled");
                }
                Answer::Cancelled { node, attempt }
            }
            Command::Remove(removal) => {
                let node = removal.place.node.clone();
                let call = self.remove(&removal);
                match within(CANCEL_WITHIN, "Remove", &node, call).await {
                    Ok(true) => {}
                    Ok(false) => tracing::info!(
                        node,
                        path = removal.place.path,
                        "not removed: something of it has been changed since it was verified"
                    ),
                    Err(refusal) => tracing::warn!(node, refusal.message, "not removed"),
                }
                Answer::Removed { node }
            }
        };
        // The runner is gone only when nobody waits for an answer any more.
        let _ = self.answers.send(answer);
    }

    /// A client of a node that has been reached once; the first call reaches it, or says that it
    /// does not answer.
    async fn client(&self, name: &str) -> Result<AgentClient<Channel>, Refusal> {
        let node = node_of(name);
        let Some(agent) = self.agents.get(node) else {
            return Err(Refusal {
                node: node.to_owned(),
                reason: "NodeUnknown".to_owned(),
                message: format!(
                    "node {node}: no agent has said yet where it is; see that one runs there"
                ),
                retriable: true,
            });
        };
        agent.client(node).await
    }

    fn address(&self, node: &str) -> &str {
        self.agents
            .get(node_of(node))
            .map_or("", |agent| &agent.address)
    }

    /// An attempt as a node knows it; a copy that a node makes for itself is one of its own there.
    fn job(&self, node: &str, attempt: u32) -> Option<JobRef> {
        let uid = &self.spec.uid;
        Some(JobRef {
            uid: if is_local(node) {
                format!("{uid}-here")
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

    fn refusal(&self, node: &str, status: &Status) -> Refusal {
        refusal(node_of(node), self.address(node), status)
    }

    async fn stat(&self) -> Result<Manifest, Refusal> {
        let source = &self.spec.source;
        let request = StatRequest {
            leader_epoch: self.spec.mandate.leader_epoch,
            location: Some(location(source)),
            object: None,
        };
        match self.client(&source.node).await?.stat(request).await {
            Ok(response) => Ok(response.into_inner().manifest.unwrap_or_default()),
            Err(status) => Err(self.refusal(&source.node, &status)),
        }
    }

    async fn prepare(
        &self,
        node: &str,
        attempt: u32,
        manifest: Option<Arc<Manifest>>,
    ) -> Result<(), Refusal> {
        let request = PrepareRequest {
            job: self.job(node, attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            location: self.place(node),
            manifest: manifest.as_deref().cloned(),
            verification: Some(self.verification()),
            overwrite: self.spec.overwrite.into(),
        };
        match self.client(node).await?.prepare(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(self.refusal(node, &status)),
        }
    }

    async fn start(
        &self,
        part: &Part,
        attempt: u32,
        manifest: Option<Arc<Manifest>>,
    ) -> Result<(), Refusal> {
        let role = match &part.receives_from {
            None if is_local(&part.node) => start_request::Part::Local(LocalPart {
                source: Some(location(&self.spec.source)),
                manifest: manifest.as_deref().cloned(),
            }),
            Some(from) => start_request::Part::Destination(DestinationPart {
                receives_from: from.clone(),
                object: None,
            }),
            None => start_request::Part::Source(SourcePart {
                location: Some(location(&self.spec.source)),
                manifest: manifest.as_deref().cloned(),
                verification: Some(self.verification()),
            }),
        };
        let child = |node: &String| Child {
            node: node.clone(),
            control_address: self.address(node).to_owned(),
            ticket: Some(self.authority.sign(&Ticket {
                fabric: self.authority.fabric().to_owned(),
                job: self.job(node, attempt),
                from_node: part.node.clone(),
                to_node: node.clone(),
                source: Some(location(&self.spec.source)),
                destination: self.place(node),
                direction: Direction::Write.into(),
                expires_unix_s: expiry(),
            })),
        };
        let request = StartRequest {
            job: self.job(&part.node, attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            part: Some(role),
            sends_to: part.sends_to.iter().map(child).collect(),
        };
        match self.client(&part.node).await?.start(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(self.refusal(&part.node, &status)),
        }
    }

    async fn follow(&self, node: &str, attempt: u32) -> Result<(), Refusal> {
        let request = ProgressRequest {
            job: self.job(node, attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            interval_ms: u32::try_from(self.spec.tempo.report.as_millis()).unwrap_or(u32::MAX),
        };
        let failed = |status: Status| self.refusal(node, &status);
        let mut stream = self
            .client(node)
            .await?
            .progress(request)
            .await
            .map_err(failed)?
            .into_inner();
        while let Some(report) = stream.message().await.map_err(failed)? {
            let node = node.to_owned();
            let answer = Answer::Progress {
                node,
                attempt,
                report: Box::new(report),
            };
            if self.answers.send(answer).is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn cancel(&self, node: &str, attempt: u32, discard: bool) -> Result<(), Refusal> {
        let request = CancelRequest {
            job: self.job(node, attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            discard,
        };
        match self.client(node).await?.cancel(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(self.refusal(node, &status)),
        }
    }
}

impl Calls {
    async fn remove(&self, removal: &Removal) -> Result<bool, Refusal> {
        let node = &removal.place.node;
        let request = RemoveRequest {
            leader_epoch: self.spec.mandate.leader_epoch,
            location: Some(location(&removal.place)),
            fingerprint: removal.fingerprint.clone(),
        };
        match self.client(node).await?.remove(request).await {
            Ok(response) => Ok(response.into_inner().removed),
            Err(status) => Err(self.refusal(node, &status)),
        }
    }
}

/// A call with its deadline.
async fn within<T>(
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

/// What an error of a call means: the agent's own words where it gave them, else it is out of reach.
fn refusal(node: &str, address: &str, status: &Status) -> Refusal {
    let detail = ErrorDetail::decode(status.details()).unwrap_or_default();
    if !detail.reason.is_empty() {
        return Refusal {
            node: node.to_owned(),
            reason: detail.reason,
            message: status.message().to_owned(),
            retriable: detail.retriable,
        };
    }
    // Without details the answer is the transport's: refused, reset, or silent.
    let retriable = matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    );
    let cause = match std::error::Error::source(status) {
        Some(source) => innermost(source),
        None => status.message().to_owned(),
    };
    Refusal {
        retriable,
        ..unreachable(node, address, &cause)
    }
}

fn unreachable(node: &str, address: &str, cause: &str) -> Refusal {
    Refusal {
        node: node.to_owned(),
        reason: UNREACHABLE.to_owned(),
        message: format!(
            "node {node} at {address} does not answer ({cause}): check that its agent runs and that \
             the management network lets this port through"
        ),
        retriable: true,
    }
}

/// The innermost error, which says what happened.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text = error.to_string();
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
