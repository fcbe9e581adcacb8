//! Membership: how the agent of a cluster's node gets its certificate and configuration, and keeps
//! them.
//!
//! The node's administrator, here a DaemonSet, gives a token and says where the operator is; the
//! operator gives everything else. Which parts there are: the private key and what the operator
//! certified (`keys`), the calls to the operator (`operator`), the data interface (`interface`), the
//! agent's configuration made of both (`assigned`), what the operator is told (`report`), and the loop
//! that keeps the right agent running (`member`). It never speaks to Kubernetes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::agent::AgentError;
use crate::config::values::{FabricName, NodeName};

mod assigned;
mod interface;
mod keys;
mod member;
mod operator;
mod report;
mod trouble;

pub use member::run;
pub use trouble::Trouble;

/// What an agent is told by whoever starts it; the operator tells the rest.
#[derive(Debug, Clone)]
pub struct Settings {
    /// HOST:PORT of the operator.
    pub operator: String,
    /// PEM of the authorities that the operator's certificate may be of.
    pub operator_ca: PathBuf,
    /// The token that says which node this is. Read again for every enrolment.
    pub token: PathBuf,
    /// The fabric to join.
    pub fabric: FabricName,
    /// Names what the agent's pod is made for, as the operator does; reported. Another engine configuration of the
    /// same name ends the agent.
    pub pod_configuration: String,
    /// This node.
    pub node: NodeName,
    /// The node's address: the control API and the metrics are served there.
    pub address: IpAddr,
    /// A directory for the private key and the certificates; nobody else's.
    pub state: PathBuf,
    /// TCP port of the control API.
    pub control_port: u16,
    /// TCP port of `/metrics`, `/healthz` and `/readyz`.
    pub metrics_port: u16,
    /// Where the roots are: root NAME is the directory NAME in it.
    pub roots_dir: PathBuf,
    /// How often things are done and tried.
    pub pace: Pace,
}

/// How often things are done and tried.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Between two reports, and two looks at the node's interfaces.
    pub report: Duration,
    /// Before the second try of what has failed; it doubles.
    pub retry_first: Duration,
    /// The longest wait between tries.
    pub retry_most: Duration,
    /// Between two certificates, at least: an operator whose clock is far off would be asked without
    /// end.
    pub renew_least: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            // The operator counts a node as gone after three of them.
            report: Duration::from_secs(10),
            retry_first: Duration::from_secs(1),
            // 5,000 nodes that come back to a restarted operator are then 170 calls a second.
            retry_most: Duration::from_secs(30),
            renew_least: Duration::from_secs(60),
        }
    }
}

impl Settings {
    fn control_listen(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.control_port)
    }

    fn metrics_listen(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.metrics_port)
    }
}

/// Why a member ends.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// Its directory.
    #[error(transparent)]
    State(#[from] Trouble),
    /// Its metrics port.
    #[error(transparent)]
    Metrics(#[from] AgentError),
    /// The engine was started with a configuration that was outdated already.
    #[error(
        "the fabric's configuration for this pod is another than the agent was started with: the agent ends, so that it is started anew with that one"
    )]
    ConfigurationChanged,
    /// The data interface has changed since the engine started.
    #[error(
        "the data interface was {before} when the agent started, and is {now} now: the agent ends, so that it is started anew with that one"
    )]
    InterfaceChanged {
        /// Its name, address and MTU.
        before: String,
        /// The same.
        now: String,
    },
}
