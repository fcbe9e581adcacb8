//! What an agent, or the way to it, refused.

use tonic::{Code, Status};
use weft_identity::cause::innermost;
use weft_proto::{Message as _, agent::v1::ErrorDetail};

/// The reason of a refusal by silence, of a node that has been reached before.
pub(super) const UNREACHABLE: &str = "NodeUnreachable";
/// The same of a node that no connection of this process has ever been made to.
pub(super) const NEVER_REACHED: &str = "NodeNeverReached";
/// The reason of a refusal by an address that is none.
pub(super) const ADDRESS_UNUSABLE: &str = "AddressUnusable";
/// The reason of a refusal by no address.
pub(super) const UNKNOWN: &str = "NodeUnknown";

/// Something that an agent, or the way to it, refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Who says so, or who could not be asked.
    pub node: String,
    /// Stable, for machines.
    pub reason: String,
    /// For people: cause and remedy.
    pub message: String,
    /// The next attempt may succeed without anybody changing anything.
    pub retriable: bool,
}

impl Refusal {
    /// It says that there is no agent to ask: the node has none, or has left the fabric.
    pub(super) fn is_of_no_agent(&self) -> bool {
        self.reason == UNKNOWN
    }

    /// It says that nothing was ever said to the node: no connection was made, or could be tried.
    pub(super) fn is_before_contact(&self) -> bool {
        [NEVER_REACHED, ADDRESS_UNUSABLE, UNKNOWN].contains(&self.reason.as_str())
    }
}

/// No agent has said where it is.
pub(super) fn unknown(node: &str) -> Refusal {
    Refusal {
        node: node.to_owned(),
        reason: UNKNOWN.to_owned(),
        message: format!("node {node}: no agent has said yet where it is; see that one runs there"),
        retriable: true,
    }
}

/// It is the connection's error, or the call's on it, and no answer of the agent.
pub(super) fn is_of_connection(status: &Status) -> bool {
    // What came from the other end as a status has no source here.
    std::error::Error::source(status).is_some()
}

/// What an error of a call means: the agent's own words where it gave them, else it is out of reach.
pub(super) fn refusal(node: &str, address: &str, status: &Status) -> Refusal {
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

pub(super) fn unreachable(node: &str, address: &str, cause: &str) -> Refusal {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_own_words_are_kept_and_silence_is_retriable() {
        let detail = ErrorDetail {
            reason: "DiskFull".into(),
            ..ErrorDetail::default()
        };
        let status = Status::with_details(
            Code::ResourceExhausted,
            "node node1: the disk is full: free some",
            detail.encode_to_vec().into(),
        );
        let own = refusal("node1", "10.254.0.2:7400", &status);
        assert_eq!((own.reason.as_str(), own.retriable), ("DiskFull", false));
        assert_eq!(own.message, "node node1: the disk is full: free some");

        let silent = refusal("node1", "10.254.0.2:7400", &Status::unavailable("refused"));
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
