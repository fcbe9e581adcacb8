//! The control API between operator and agents; generated code only.
//!
//! The definitions are in `proto/`; every message and field is documented there. Callers: the agent
//! serves it, the operator and `weft play` call it, agents call each other's `Connect`.
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

pub use prost::Message;
