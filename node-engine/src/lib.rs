//! A node's virtual RDMA devices as a program, `weft-engine`: it makes and destroys devices, moves their bytes, and tells
//! the node's agent what its queue pairs offer to those of other nodes.
//!
//! It is managed by gRPC calls at a Unix socket that only its owner can open (`weft.engine.v1`). It knows no other node and
//! no certificate: the agent says truly from which node an offer comes. So an agent may be restarted or replaced while
//! programs use their devices.

mod link_state;
mod offer;
mod service;

pub use service::{ServeError, Shutdown, serve};
