//! `OperatorError`: why a call to the operator failed. `EnrollError`: why an agent that enrols ends.

use std::path::PathBuf;

use tonic::Code;

use crate::agent::AgentError;

/// Why a call to the operator failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// A file that whoever started the agent named.
    #[error("{flag}: {}: {problem}: is the volume mounted, and the file readable?", path.display())]
    File {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The node's own key and certificates.
    #[error("--state: {}: {problem}: the agent needs a directory of its own that it can write", path.display())]
    State {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The operator does not answer.
    #[error(
        "the operator at {address} cannot be reached: {problem}: is it running, is --operator right, and does the network let this node through?"
    )]
    Unreachable {
        /// HOST:PORT.
        address: String,
        /// What happened.
        problem: String,
    },
    /// The certificate of the server that answers is not the operator's.
    #[error(
        "the server at {address} shows no operator's certificate that --operator-ca has signed: {problem}: are address and --operator-ca of one installation, and do both clocks agree?"
    )]
    Untrusted {
        /// HOST:PORT.
        address: String,
        /// What TLS says.
        problem: String,
    },
    /// The operator refuses.
    #[error("the operator refuses ({reason}): {message}")]
    Refused {
        /// The kind of refusal.
        code: Code,
        /// Its reason.
        reason: String,
        /// Its message.
        message: String,
    },
    /// The operator's answer.
    #[error("the operator's answer cannot be used: {field}: {problem}: is it of this release?")]
    BadAnswer {
        /// The field that is wrong.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The stream of reports.
    #[error("the operator has ended the stream of reports: the agent opens another")]
    Ended,
}

impl OperatorError {
    /// Stable and machine-readable; for a refusal, the operator's reason.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            OperatorError::File { .. } => "FileUnusable",
            OperatorError::State { .. } => "StateUnusable",
            OperatorError::Unreachable { .. } => "OperatorUnreachable",
            OperatorError::Untrusted { .. } => "OperatorUntrusted",
            OperatorError::Refused { reason, .. } => reason,
            OperatorError::BadAnswer { .. } => "BadAnswer",
            OperatorError::Ended => "StreamEnded",
        }
    }

    /// Whether the operator may not know this node's certificate. It then ends the connection: with TLS 1.3, after
    /// the client has seen it as made.
    pub(crate) fn is_doubt_of_certificate(&self, connected: bool) -> bool {
        match self {
            OperatorError::Refused { code, .. } => *code == Code::Unauthenticated,
            OperatorError::Unreachable { problem, .. }
            | OperatorError::Untrusted { problem, .. } => {
                connected || problem.contains("fatal alert")
            }
            _ => false,
        }
    }
}

/// Why an agent that enrols ends.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// Its directory.
    #[error(transparent)]
    State(#[from] OperatorError),
    /// Its metrics port.
    #[error(transparent)]
    Metrics(#[from] AgentError),
    /// The engine was started with a configuration that was outdated already.
    #[error(
        "the fabric's configuration for this pod has changed since the agent started: the agent ends, so that Kubernetes starts it with the new one"
    )]
    ConfigurationChanged,
    /// There is another data interface than the engine was started with.
    #[error(
        "the data interface was {before} when the agent started, and is {now} now: the agent ends, so that Kubernetes starts it with that"
    )]
    InterfaceChanged {
        /// Name, address and MTU of each.
        before: String,
        /// The same.
        now: String,
    },
}
