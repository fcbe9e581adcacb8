//! Identity in a fabric: the roles of operator and agents, how they prove them, and tickets for transfers.
//!
//! The operator, the agents and `weft play` use this crate, so that both ends of a connection agree on
//! it. [`authority`] issues certificates and signs tickets, [`role`] reads the role of a certificate,
//! [`ticket`] checks a ticket, [`tls`] makes TLS configurations from certificates, and [`tls_listener`] accepts
//! connections by them. [`cause`],
//! [`metrics`], [`metrics_access`] and [`health_server`] are what every server of Weft needs besides: texts of errors, its
//! metrics page, who may read that, and the HTTP server of the page.
//!
//! It calls nobody, the API server of Kubernetes included.

pub mod authority;
pub mod cause;
mod connection_limit;
pub mod health_server;
pub mod metrics;
pub mod metrics_access;
pub mod role;
pub mod ticket;
pub mod tls;
pub mod tls_listener;

use std::time::Duration;

/// How far apart the clocks of two nodes may be. A clock that is an hour off is found by other means;
/// until then it does not keep a node out.
pub const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

/// The DNS name in the operator's server certificate: what agents ask for, whatever address they dial.
pub const OPERATOR_NAME: &str = "operator.weft";

/// A DNS name in every node's certificate: what Prometheus asks for, which has one name for all agents.
pub const AGENT_NAME: &str = "agent.weft";

/// The DNS name in a node's certificate: what callers of its agent ask for, whatever address they dial.
#[must_use]
pub fn server_name(fabric: &str, node: &str) -> String {
    format!("{node}.{fabric}.weft")
}
