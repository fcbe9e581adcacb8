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
        CancelRequest, Child, DestinationPart, Direction, ErrorDetail, JobRef, Location, Manifest,
        PrepareRequest, ProgressRequest, SourcePart, StartRequest, StatRequest, Ticket,
        Verification, agent_client::AgentClient, start_request,
    },
};

use super::{Answer, CONTACT_TRY, Command, Job, NEVER_REACHED, Place, Refusal, Spec, UNREACHABLE};
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
/// Writes that are on their way to a slow disk have to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(60);
/// A manifest has some 200 B per file; 64 MiB are 300,000 files.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// An agent's control API.
#[derive(Debug, Clone)]
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
struct Agent {
    address: String,
    endpoint: Endpoint,
    /// Once it has been reached; mends itself from then on.
    client: OnceCell<AgentClient<Channel>>,
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
        discard: bool,
        authority: Arc<Authority>,
        contacts: &[Contact],
    ) -> Result<Self, RunnerError> {
        Self::with(Job::withdraw(spec, discard), authority, contacts)
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
        let operator = authority.operator()?;
        let identity = tonic::transport::Identity::from_pem(operator.certificate, operator.key);
        let mut agents = BTreeMap::new();
        for Contact { node, address } in contacts {
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
                client: OnceCell::new(),
            };
            agents.insert(node.clone(), agent);
        }
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
    pub fn stop(&mut self, discard: bool) {
        self.take(Answer::Stop { discard });
    }

    fn take(&mut self, answer: Answer) {
        let (job, commands) = self.job.clone().step(self.began.elapsed(), answer);
        self.job = job;
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
        };
        // The runner is gone only when nobody waits for an answer any more.
        let _ = self.answers.send(answer);
    }

    /// A client of a node that has been reached once; the first call reaches it, or says that it
    /// does not answer.
    async fn client(&self, node: &str) -> Result<AgentClient<Channel>, Refusal> {
        let Some(agent) = self.agents.get(node) else {
            return Err(Refusal {
                node: node.to_owned(),
                reason: "NodeUnknown".to_owned(),
                message: format!("node {node} has no known agent: name a node of this fabric"),
                retriable: false,
            });
        };
        let failed = |cause: &str| Refusal {
            reason: NEVER_REACHED.to_owned(),
            ..unreachable(node, &agent.address, cause)
        };
        let reach = async {
            // TLS included: what answers is the node.
            match timeout(CONTACT_TRY, agent.endpoint.connect()).await {
                Ok(Ok(channel)) => Ok(AgentClient::new(channel)
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(MESSAGE_BYTES_MAX)),
                Ok(Err(error)) => Err(failed(&innermost(&error))),
                Err(_) => Err(failed(&format!("no connection within {CONTACT_TRY:?}"))),
            }
        };
        agent.client.get_or_try_init(|| reach).await.cloned()
    }

    fn address(&self, node: &str) -> &str {
        self.agents.get(node).map_or("", |agent| &agent.address)
    }

    fn job(&self, attempt: u32) -> Option<JobRef> {
        Some(JobRef {
            uid: self.spec.uid.clone(),
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
        refusal(node, self.address(node), status)
    }

    async fn stat(&self) -> Result<Manifest, Refusal> {
        let source = &self.spec.source;
        let request = StatRequest {
            leader_epoch: self.spec.mandate.leader_epoch,
            location: Some(location(source)),
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
            job: self.job(attempt),
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
            Some(from) => start_request::Part::Destination(DestinationPart {
                receives_from: from.clone(),
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
                job: self.job(attempt),
                from_node: part.node.clone(),
                to_node: node.clone(),
                source: Some(location(&self.spec.source)),
                destination: self.place(node),
                direction: Direction::Write.into(),
                expires_unix_s: expiry(),
            })),
        };
        let request = StartRequest {
            job: self.job(attempt),
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
            job: self.job(attempt),
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
            job: self.job(attempt),
            leader_epoch: self.spec.mandate.leader_epoch,
            discard,
        };
        match self.client(node).await?.cancel(request).await {
            Ok(_) => Ok(()),
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
                "node {node}: its agent has not answered {call} for {} s; see its log, and restart it",
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
