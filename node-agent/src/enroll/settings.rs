//! `Settings`: what the agent's flags say about enrolling.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::config::Objects;
use crate::config::values::{FabricName, NodeName};

/// The flags of an agent that enrols.
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
    /// The name of the configuration that the pod is made for. The agent reports it, and ends when the operator
    /// orders another engine configuration under the same name.
    pub pod_configuration: String,
    /// This node.
    pub node: NodeName,
    /// The node's address: the control API and the metrics are served there.
    pub address: IpAddr,
    /// A directory for the private key and the certificates of this agent alone.
    pub state: PathBuf,
    /// TCP port of the control API.
    pub control_port: u16,
    /// TCP port of `/metrics`, `/healthz` and `/readyz`.
    pub metrics_port: u16,
    /// Metrics are given over TLS only, to those who may read them.
    pub metrics_auth: bool,
    /// Where the roots are: root NAME is the directory NAME in it.
    pub roots_dir: PathBuf,
    /// The socket of the node's `weft-engine`. Beside it the agent writes the flags of that and of the device plugin. None
    /// where pods have no devices.
    pub engine_socket: Option<PathBuf>,
    /// A directory for the node's driver of volumes: the agent's socket, and a file for each volume that shows a copy. None
    /// where pods have no volumes.
    pub volumes: Option<PathBuf>,
    /// The way to stores, and who the agent is there. Whether stores without TLS are read says the operator.
    pub objects: Objects,
    /// Intervals and retries.
    pub timing: Timing,
}

/// Intervals and retries.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Between two reports; the node's interfaces are read as often.
    pub report: Duration,
    /// The longest delay before the second try of a call that has failed; it doubles.
    pub retry_first: Duration,
    /// The longest delay between tries.
    pub retry_most: Duration,
    /// The shortest time between two certificates: the agent would otherwise ask an operator whose clock is wrong
    /// without end.
    pub renew_least: Duration,
}

impl Default for Timing {
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
    pub(crate) fn control_listen(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.control_port)
    }

    pub(crate) fn metrics_listen(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.metrics_port)
    }
}
