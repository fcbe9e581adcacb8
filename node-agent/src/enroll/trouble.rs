//! What keeps a node from its operator, and how long to wait before the next try.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tonic::Code;

use crate::config::values::NodeName;
use crate::enroll::Pace;

/// Why a call to the operator came to nothing, or what it gave cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
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
    /// Nobody answers.
    #[error(
        "the operator at {address} cannot be reached: {problem}: is it running, is --operator right, and does the network let this node through?"
    )]
    Unreachable {
        /// HOST:PORT.
        address: String,
        /// What happened.
        problem: String,
    },
    /// Somebody answers who is not the operator, as far as its certificate shows.
    #[error(
        "who answers at {address} does not show an operator's certificate that --operator-ca vouches for: {problem}: are address and --operator-ca of one installation, and do both clocks agree?"
    )]
    Untrusted {
        /// HOST:PORT.
        address: String,
        /// What TLS says.
        problem: String,
    },
    /// The operator says no.
    #[error("the operator refuses ({reason}): {message}")]
    Refused {
        /// The kind of refusal.
        code: Code,
        /// Its stable word.
        reason: String,
        /// Its words.
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
    #[error("the operator has ended the stream of reports: the next one is begun")]
    Ended,
}

impl Trouble {
    /// A stable word for it; a refusal's is the operator's.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Trouble::File { .. } => "FileUnusable",
            Trouble::State { .. } => "StateUnusable",
            Trouble::Unreachable { .. } => "OperatorUnreachable",
            Trouble::Untrusted { .. } => "OperatorUntrusted",
            Trouble::Refused { reason, .. } => reason,
            Trouble::BadAnswer { .. } => "BadAnswer",
            Trouble::Ended => "StreamEnded",
        }
    }

    /// Whether it may be that the operator does not know this node's certificate. Who is not known is
    /// cut off: with TLS 1.3 that is seen after the connection has been made.
    pub(crate) fn is_doubt_of_certificate(&self, connected: bool) -> bool {
        match self {
            Trouble::Refused { code, .. } => *code == Code::Unauthenticated,
            Trouble::Unreachable { problem, .. } | Trouble::Untrusted { problem, .. } => {
                connected || problem.contains("fatal alert")
            }
            _ => false,
        }
    }
}

/// The tries at one thing: ever longer waits, and one line of the log for each kind of failure.
#[derive(Debug)]
pub(crate) struct Tries {
    what: &'static str,
    node: NodeName,
    pace: Pace,
    failed: u32,
    said: BTreeSet<String>,
}

impl Tries {
    pub(crate) fn new(what: &'static str, node: &NodeName, pace: Pace) -> Self {
        Self {
            what,
            node: node.clone(),
            pace,
            failed: 0,
            said: BTreeSet::new(),
        }
    }

    /// How long to wait before the next try.
    pub(crate) fn failed(&mut self, trouble: &Trouble) -> Duration {
        if self.said.insert(trouble.reason().to_owned()) {
            tracing::warn!(
                reason = trouble.reason(),
                "{}: {trouble} (tried again until it succeeds)",
                self.what
            );
        }
        let wait = wait(self.pace, self.failed, &self.node);
        self.failed = self.failed.saturating_add(1);
        wait
    }

    /// From now on failures are new.
    pub(crate) fn succeeded(&mut self) {
        if self.failed > 0 {
            tracing::info!("{}: succeeded after {} failures", self.what, self.failed);
        }
        self.failed = 0;
        self.said.clear();
    }
}

/// The wait after that many failures: between half and all of what doubling gives, different from
/// node to node so that they do not come all at once.
fn wait(pace: Pace, failed: u32, node: &NodeName) -> Duration {
    let doubled = pace
        .retry_first
        .saturating_mul(1 << failed.min(16))
        .min(pace.retry_most);
    let drawn = blake3::hash(format!("{failed} {node}").as_bytes());
    doubled.mul_f64(0.5 + f64::from(drawn.as_bytes()[0]) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_differ_from_node_to_node() {
        let pace = Pace::default();
        let nodes: Vec<NodeName> = (0..20).map(|n| format!("n{n}").parse().unwrap()).collect();
        for (failed, most_s) in [(0, 1), (1, 2), (2, 4), (4, 16), (5, 30), (40, 30)] {
            let most = Duration::from_secs(most_s);
            let waits: BTreeSet<_> = nodes.iter().map(|node| wait(pace, failed, node)).collect();
            assert!(waits.iter().all(|wait| (most / 2..most).contains(wait)));
            assert!(waits.len() > 15, "{waits:?}");
        }
    }

    #[test]
    fn each_kind_of_failure_is_said_once_until_it_succeeds() {
        let mut tries = Tries::new("enroll", &"n1".parse().unwrap(), Pace::default());
        let refused = |reason: &str| Trouble::Refused {
            code: Code::Internal,
            reason: reason.to_owned(),
            message: String::new(),
        };
        for reason in ["A", "B", "A", "B"] {
            tries.failed(&refused(reason));
        }
        assert_eq!(tries.said.len(), 2);
        tries.succeeded();
        assert!(tries.said.is_empty() && tries.failed == 0);
    }
}
