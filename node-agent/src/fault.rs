//! `Fault`: everything an agent answers or a job can end with, with its cause and remedy.

use std::sync::Arc;

use tonic::{Code, Status};
use weft_engine::{EngineError, LinkError};
use weft_identity::role::RoleError;
use weft_identity::ticket::TicketFault;
use weft_proto::Message as _;
use weft_proto::agent::v1::ErrorDetail;

use crate::config::ConfigSource;
use crate::files::FileError;
use crate::object::ObjectError;

/// Reasons that another configuration of this agent may take away.
const FIXED_BY_CONFIGURATION: [&str; 5] = [
    "UnknownRoot",
    "RootReadOnly",
    "SettingsDiffer",
    "TicketForged",
    "StoreForbidden",
];
/// Reasons that another attempt takes away: it has a new ticket, a new manifest, and a root that was opened again.
const FIXED_BY_NEXT_ATTEMPT: [&str; 4] = [
    "TicketExpired",
    "RootReplaced",
    "ManifestUnknown",
    "ManifestNotFetched",
];

/// Why a call was refused or an attempt failed. The caller adds the node.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Fault {
    /// A file, a directory or a root.
    #[error("{0}")]
    File(#[source] Arc<FileError>),
    /// An object of a store.
    #[error("{0}")]
    Object(#[source] Arc<ObjectError>),
    /// The caller showed no certificate that names a role in this fabric.
    #[error("the caller's certificate {problem}: use one with a URI SAN of this fabric")]
    WrongCertificate {
        /// What is wrong with it.
        problem: String,
    },
    /// The caller may not make this call.
    #[error("{call} is for {allowed} only and the caller is {caller}: use that certificate")]
    NotAllowed {
        /// The call.
        call: String,
        /// Who may make it.
        allowed: &'static str,
        /// Who made it.
        caller: String,
    },
    /// A command of an operator that no longer leads.
    #[error(
        "leader epoch {given} is stale, the agent has seen {seen}: this operator is no longer the leader and must stop"
    )]
    StaleEpoch {
        /// Of the command.
        given: u64,
        /// Highest seen here.
        seen: u64,
    },
    /// A command about an attempt that a later one, or its own end, has overtaken.
    #[error("attempt {given} of job {uid} is over: start attempt {next}")]
    StaleAttempt {
        /// The job.
        uid: String,
        /// What was asked for.
        given: u32,
        /// What may be started.
        next: u32,
    },
    /// The same attempt was named with other contents.
    #[error(
        "{call} of attempt {attempt} of job {uid} was repeated with other contents: raise the attempt to change anything"
    )]
    Conflicting {
        /// The call.
        call: &'static str,
        /// The job.
        uid: String,
        /// The attempt.
        attempt: u32,
    },
    /// Nothing is known about this attempt.
    #[error(
        "attempt {attempt} of job {uid} is not known here: prepare or start it first (has the agent restarted?)"
    )]
    UnknownAttempt {
        /// The job.
        uid: String,
        /// The attempt.
        attempt: u32,
    },
    /// The attempt is not ready for this call.
    #[error("attempt {attempt} of job {uid} is {state} here: {remedy}")]
    NotReady {
        /// The job.
        uid: String,
        /// The attempt.
        attempt: u32,
        /// What it is.
        state: String,
        /// What to call first.
        remedy: &'static str,
    },
    /// A field of the request is missing or wrong.
    #[error("{field} {problem}")]
    BadRequest {
        /// Dotted name of the field.
        field: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A root that the configuration does not have.
    #[error(
        "there is no root {root:?} here: add it to `roots` in the agent's configuration, or name one of {known}"
    )]
    UnknownRoot {
        /// As asked for.
        root: String,
        /// Those there are.
        known: String,
    },
    /// A ticket that does not hold.
    #[error("the ticket {0}")]
    Ticket(#[from] TicketFault),
    /// The peer speaks another wire format.
    #[error(
        "the peer's wire version is {theirs} and this agent's is {ours}: run the same release of weft-agent on both nodes"
    )]
    WireVersion {
        /// Of the peer.
        theirs: u32,
        /// Of this agent.
        ours: u32,
    },
    /// What both ends must share differs.
    #[error(
        "the transport settings differ: {difference}: give both agents the same `transport`, `data.mtu` and `data.ports.count`"
    )]
    SettingsDiffer {
        /// Which, and how.
        difference: String,
    },
    /// The agent does not have the manifest, or has not listed it itself.
    #[error(
        "the list of the files is not known here any more (has the agent restarted?): the next attempt lists them again"
    )]
    ManifestUnknown,
    /// The agent that has listed the files has sent no usable list.
    #[error(
        "the list of the files was not fetched from node {node}: {problem}: the next attempt fetches it again"
    )]
    ManifestNotFetched {
        /// That agent's node.
        node: String,
        /// What happened.
        problem: String,
    },
    /// The two ends have different manifests, or hash differently.
    #[error(
        "the two ends were given different {what} for the same attempt: the operator must send both the same"
    )]
    ManifestDiffers {
        /// What differs.
        what: &'static str,
    },
    /// Another agent's control API does not answer: that of a child, or of whoever holds the manifest.
    #[error(
        "node {node} at {address} cannot be reached: {problem}: check that its agent runs and that the network lets this port through"
    )]
    PeerUnreachable {
        /// The other node.
        node: String,
        /// Its control address.
        address: String,
        /// What happened.
        problem: String,
    },
    /// A child refused the connection, or another agent the manifest.
    #[error("node {node} refused the call ({reason}): {message}")]
    PeerRefused {
        /// The other node.
        node: String,
        /// Its reason.
        reason: String,
        /// Its words.
        message: String,
        /// Whether it said that trying again may help.
        retriable: bool,
    },
    /// The data connection failed.
    #[error(
        "the connection with node {node} failed {stage}: {problem}: check that node and the paths to it; the next attempt resumes"
    )]
    PeerLost {
        /// The peer.
        node: String,
        /// What it was doing, as "while moving blocks".
        stage: &'static str,
        /// What the transport says.
        problem: String,
        /// The transport's reason: PeerStalled, PeerRestarted, KeyRefused, BoundsRefused or NotArmed.
        reason: &'static str,
    },
    /// A peer has given the attempt up.
    #[error(
        "node {node} has given up this attempt: see that node's own state for the reason; the next attempt resumes"
    )]
    PeerGaveUp {
        /// The peer.
        node: String,
    },
    /// A block does not match its hash.
    #[error(
        "{path} from node {node}: {cause}: nothing of it was written; the next attempt sends it again"
    )]
    BlockRefused {
        /// The peer.
        node: String,
        /// The file.
        path: String,
        /// Which block, and how.
        cause: crate::files::BlockFault,
    },
    /// A peer sent what no agent sends.
    #[error("node {node} sent {problem}: run the same release of weft-agent on both nodes")]
    PeerFaulty {
        /// The peer.
        node: String,
        /// What it sent.
        problem: String,
    },
    /// Too little memory for one more transfer.
    #[error(
        "{needed} bytes of buffers are needed and {left} are left: wait for a job to end, or raise `limits.memory` in the agent's configuration"
    )]
    MemoryLimit {
        /// For this transfer.
        needed: u64,
        /// Of the configured limit.
        left: u64,
    },
    /// The operator cancelled the attempt.
    #[error("the operator cancelled the attempt")]
    Cancelled,
    /// A later attempt has taken its place.
    #[error("attempt {by} of the same job has taken its place")]
    Superseded {
        /// The later attempt.
        by: u32,
    },
    /// No operator has asked about it for too long.
    #[error(
        "no operator has renewed the attempt for {seconds} s: check the operator, and start the next attempt"
    )]
    LeaseExpired {
        /// The lease.
        seconds: u64,
    },
    /// The agent is being stopped.
    #[error("the agent is being stopped: start the next attempt once it is back")]
    ShuttingDown,
    /// The kernel has no route to a peer's data address.
    #[error("{problem}; the next attempt tries again")]
    NoRoute {
        /// From where to where, and what to check.
        problem: String,
    },
    /// The engine of virtual devices gives no answer.
    #[error(
        "the engine of the node's virtual devices does not answer ({problem}): see the weft-engine pod of this node (kubectl get pods -A -o wide \
         -l app.kubernetes.io/name=weft-engine) and its log"
    )]
    EngineAway {
        /// What came instead.
        problem: String,
    },
    /// The engine refused something.
    #[error("the transport refused: {problem}")]
    Engine {
        /// Its words.
        problem: String,
    },
}

impl From<FileError> for Fault {
    fn from(error: FileError) -> Self {
        Fault::File(Arc::new(error))
    }
}

impl From<ObjectError> for Fault {
    fn from(error: ObjectError) -> Self {
        Fault::Object(Arc::new(error))
    }
}

impl From<RoleError> for Fault {
    fn from(error: RoleError) -> Self {
        Fault::WrongCertificate {
            problem: error.to_string(),
        }
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        let problem = error.to_string();
        match error {
            EngineError::Link(LinkError::NoRoute { .. }) => Fault::NoRoute { problem },
            _ => Fault::Engine { problem },
        }
    }
}

impl Fault {
    /// A failure of a data connection.
    pub(crate) fn lost(node: String, stage: &'static str, failure: &weft_engine::Failure) -> Self {
        let (reason, problem) = match failure.reason() {
            "PeerRestarted" => (
                "PeerRestarted",
                "it does not know the connection any more, so it has restarted or given the attempt up"
                    .to_owned(),
            ),
            reason @ ("KeyRefused" | "BoundsRefused" | "NotArmed") => (reason, failure.to_string()),
            _ => ("PeerStalled", failure.to_string()),
        };
        Fault::PeerLost {
            node,
            stage,
            problem,
            reason,
        }
    }

    pub(crate) fn bad(field: &str, problem: impl Into<String>) -> Self {
        Fault::BadRequest {
            field: field.to_owned(),
            problem: problem.into(),
        }
    }

    /// A peer sent what no agent sends.
    pub(crate) fn faulty(node: &str, problem: impl Into<String>) -> Self {
        Fault::PeerFaulty {
            node: node.to_owned(),
            problem: problem.into(),
        }
    }

    /// What the engine of virtual devices answered, or that it did not.
    pub(crate) fn device_engine(status: &Status) -> Self {
        let problem = status.message().to_owned();
        // A source is tonic's own, where there is no connection; an engine's answer has none.
        match std::error::Error::source(status) {
            Some(_) => Fault::EngineAway { problem },
            None => Fault::Engine { problem },
        }
    }

    pub(crate) fn engine(problem: impl Into<String>) -> Self {
        Fault::Engine {
            problem: problem.into(),
        }
    }

    /// Stable and machine-readable: a condition's reason, an event's, a metric's label.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Fault::File(error) => error.reason(),
            Fault::Object(error) => error.reason(),
            Fault::WrongCertificate { .. } => "WrongCertificate",
            Fault::NotAllowed { .. } => "NotAllowed",
            Fault::StaleEpoch { .. } => "StaleEpoch",
            Fault::StaleAttempt { .. } => "StaleAttempt",
            Fault::Conflicting { .. } => "ConflictingRequest",
            Fault::UnknownAttempt { .. } => "UnknownAttempt",
            Fault::NotReady { .. } => "NotReady",
            Fault::BadRequest { .. } => "BadRequest",
            Fault::UnknownRoot { .. } => "UnknownRoot",
            Fault::Ticket(fault) => fault.reason(),
            Fault::WireVersion { .. } => "WireVersionDiffers",
            Fault::SettingsDiffer { .. } => "SettingsDiffer",
            Fault::ManifestUnknown => "ManifestUnknown",
            Fault::ManifestNotFetched { .. } => "ManifestNotFetched",
            Fault::ManifestDiffers { .. } => "ManifestDiffers",
            Fault::PeerUnreachable { .. } => "PeerUnreachable",
            Fault::PeerRefused { .. } => "PeerRefused",
            Fault::PeerLost { reason, .. } => reason,
            Fault::PeerGaveUp { .. } => "PeerGaveUp",
            Fault::BlockRefused { .. } => "BlockRefused",
            Fault::PeerFaulty { .. } => "PeerFaulty",
            Fault::MemoryLimit { .. } => "MemoryLimit",
            Fault::Cancelled => "Cancelled",
            Fault::Superseded { .. } => "Superseded",
            Fault::LeaseExpired { .. } => "LeaseExpired",
            Fault::ShuttingDown => "ShuttingDown",
            Fault::NoRoute { .. } => "NoRoute",
            Fault::EngineAway { .. } | Fault::Engine { .. } => "EngineRefused",
        }
    }

    /// Whether the next attempt may succeed without a person changing anything. An operator may be about to send
    /// another configuration.
    #[must_use]
    pub fn retriable(&self, config_source: ConfigSource) -> bool {
        match self {
            Fault::PeerRefused { retriable, .. } => *retriable,
            _ => {
                let may_change = config_source == ConfigSource::Operator;
                let reason = self.reason();
                self.is_transient()
                    || FIXED_BY_NEXT_ATTEMPT.contains(&reason)
                    || may_change && FIXED_BY_CONFIGURATION.contains(&reason)
            }
        }
    }

    /// Whether the same call may succeed a moment later: a caller repeats it. A call that has ended an attempt gives the
    /// same answer until the next attempt, which may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Fault::File(error) => error.reason() == "DestinationBusy",
            Fault::Object(error) => error.retriable(),
            Fault::PeerRefused {
                retriable, reason, ..
            } => {
                let reason = reason.as_str();
                *retriable
                    && !FIXED_BY_NEXT_ATTEMPT.contains(&reason)
                    && !FIXED_BY_CONFIGURATION.contains(&reason)
            }
            Fault::UnknownAttempt { .. }
            | Fault::PeerUnreachable { .. }
            | Fault::PeerLost { .. }
            | Fault::PeerGaveUp { .. }
            | Fault::BlockRefused { .. }
            | Fault::MemoryLimit { .. }
            | Fault::LeaseExpired { .. }
            | Fault::NoRoute { .. }
            | Fault::ShuttingDown => true,
            _ => false,
        }
    }

    /// The gRPC code. The reason says more, and callers go by that.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Fault::WrongCertificate { .. } => Code::Unauthenticated,
            Fault::NotAllowed { .. } | Fault::Ticket(_) => Code::PermissionDenied,
            Fault::BadRequest { .. } => Code::InvalidArgument,
            Fault::UnknownRoot { .. } | Fault::UnknownAttempt { .. } | Fault::ManifestUnknown => {
                Code::NotFound
            }
            _ if self.is_transient() => Code::Unavailable,
            _ => Code::FailedPrecondition,
        }
    }

    /// As the control API answers it: the message starts with the node.
    #[must_use]
    pub fn to_status(&self, node: &str, config_source: ConfigSource) -> Status {
        let message = format!("node {node}: {self}");
        let remedy = message.rsplit_once(": ").map_or("", |(_, remedy)| remedy);
        let detail = ErrorDetail {
            reason: self.reason().to_owned(),
            node: node.to_owned(),
            remedy: remedy.to_owned(),
            retriable: self.retriable(config_source),
        };
        Status::with_details(self.code(), message, detail.encode_to_vec().into())
    }
}
