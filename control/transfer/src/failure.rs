//! Why a node could not do its task: its agent refused a call, could not be called, or failed later.

use std::collections::BTreeSet;

use tonic::{Code, Status};
use weft_identity::cause::innermost;
use weft_proto::{Message as _, agent::v1::ErrorDetail};

/// The reason where a node that was reached before does not answer.
pub(crate) const UNREACHABLE: &str = "NodeUnreachable";
/// The same where no connection to this address has succeeded since a job or request of this process began to use it.
pub(crate) const NEVER_REACHED: &str = "NodeNeverReached";
/// The reason where the address of an agent cannot be dialled.
pub(crate) const ADDRESS_UNUSABLE: &str = "AddressUnusable";
/// The reason where no agent of the node is known.
pub(crate) const NODE_UNKNOWN: &str = "NodeUnknown";
/// The reason of a destination when a node between it and the source has failed.
pub(crate) const SENDER_LOST: &str = "SenderLost";

/// Reasons that another configuration of the agent may take away.
const OF_CONFIGURATION: [&str; 3] = ["UnknownRoot", "RootReadOnly", "StoreForbidden"];
/// Reasons for which a destination refuses the manifest that it was sent.
const OF_MANIFEST: [&str; 3] = ["PeerFaulty", "BadManifest", "ManifestNotFetched"];

/// Why a node could not do its task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The node that reports it, that could not be called, or that another node reports; it need not be the one at
    /// fault. Empty for a Secret.
    pub node: String,
    /// Stable, for machines.
    pub reason: String,
    /// For people: cause and remedy.
    pub message: String,
    /// The next attempt may succeed without anybody changing anything.
    pub retriable: bool,
}

impl Failure {
    /// A failure at a node, as an agent reports it or as this end sees it.
    pub(crate) fn at(node: &str, reason: &str, message: &str, retriable: bool) -> Self {
        Self {
            node: node.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            retriable,
        }
    }

    /// This call sent nothing to the node: no connection was made, or could be tried. Earlier calls may have reached it.
    pub(crate) fn never_connected(&self) -> bool {
        [NEVER_REACHED, ADDRESS_UNUSABLE, NODE_UNKNOWN].contains(&self.reason.as_str())
    }

    /// It is retriable, and an agent of the node is known.
    pub(crate) fn is_worth_repeating(&self) -> bool {
        self.retriable && self.reason != NODE_UNKNOWN
    }

    /// Of the Cancel of a transfer: files of the job may be left. The agent was not reached, or could not remove them.
    /// A node without an agent has none, and an operator that no longer leads has nothing more to say.
    pub(crate) fn may_leave_files(&self) -> bool {
        ![NODE_UNKNOWN, "StaleEpoch"].contains(&self.reason.as_str())
    }

    /// The configuration that these nodes do not have yet may take the failure away.
    pub(crate) fn is_configuration_error(&self, pending: &BTreeSet<String>) -> bool {
        match self.reason.as_str() {
            // Two agents differ, or the agent and the operator do.
            "SettingsDiffer" | "TicketForged" => !pending.is_empty(),
            reason => OF_CONFIGURATION.contains(&reason) && pending.contains(&self.node),
        }
    }

    /// A destination refuses the manifest that another agent has sent.
    pub(crate) fn is_manifest_error(&self) -> bool {
        OF_MANIFEST.contains(&self.reason.as_str())
    }

    /// The attempt was cancelled, or overtaken by a later one.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self.reason.as_str(), "Cancelled" | "Superseded")
    }
}

/// No agent of the node is known.
pub(crate) fn node_unknown(node: &str) -> Failure {
    Failure {
        node: node.to_owned(),
        reason: NODE_UNKNOWN.to_owned(),
        message: format!(
            "node {node}: no agent has reported its address yet; check that an agent runs there"
        ),
        retriable: true,
    }
}

/// The connection failed, or the call on it: this is no answer of the agent.
pub(crate) fn is_of_connection(status: &Status) -> bool {
    // tonic sets a source only for an error of the transport on this side.
    std::error::Error::source(status).is_some()
}

/// What an error of a call means: what the agent itself says, or else that it cannot be reached.
pub(crate) fn from_status(node: &str, address: &str, status: &Status) -> Failure {
    let detail = ErrorDetail::decode(status.details()).unwrap_or_default();
    if !detail.reason.is_empty() {
        return Failure {
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
    Failure {
        retriable,
        ..node_unreachable(node, address, &cause)
    }
}

/// The agent does not answer.
pub(crate) fn node_unreachable(node: &str, address: &str, cause: &str) -> Failure {
    Failure {
        node: node.to_owned(),
        reason: UNREACHABLE.to_owned(),
        message: format!(
            "node {node} at {address} does not answer ({cause}): check that its agent runs and that \
             the management network lets this port through"
        ),
        retriable: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_that_an_agent_gives_is_kept_and_silence_is_retriable() {
        let detail = ErrorDetail {
            reason: "DiskFull".into(),
            ..ErrorDetail::default()
        };
        let status = Status::with_details(
            Code::ResourceExhausted,
            "node node1: the disk is full: free some",
            detail.encode_to_vec().into(),
        );
        let own = from_status("node1", "10.254.0.2:7400", &status);
        assert_eq!((own.reason.as_str(), own.retriable), ("DiskFull", false));
        assert_eq!(own.message, "node node1: the disk is full: free some");

        let silent = from_status("node1", "10.254.0.2:7400", &Status::unavailable("refused"));
        assert_eq!(
            (silent.reason.as_str(), silent.retriable),
            ("NodeUnreachable", true)
        );
        assert_eq!(
            silent.message,
            "node node1 at 10.254.0.2:7400 does not answer (refused): check that its agent runs and \
             that the management network lets this port through"
        );
    }
}
