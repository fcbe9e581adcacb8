//! The control APIs of agents and operator; generated code only.
//!
//! The definitions are in `proto/`; every message and field is documented there. Callers: the agent
//! serves its own, which the operator and `weft play` call, and agents each other's `Connect`; the
//! operator serves its own, which the agents of a cluster call.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    rustdoc::all
)]

/// The agent's control API, version 1.
pub mod agent {
    /// Messages, client and server of `weft.agent.v1`.
    pub mod v1 {
        tonic::include_proto!("weft.agent.v1");
    }
}

/// The operator's control API, version 1.
pub mod operator {
    /// Messages, client and server of `weft.operator.v1`.
    pub mod v1 {
        tonic::include_proto!("weft.operator.v1");
    }
}

pub use prost::Message;
