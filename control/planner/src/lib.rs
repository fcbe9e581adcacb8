//! Turns a [`Request`] (source, destinations, bytes, strategy) and a [`Topology`] (where bytes can flow)
//! into a [`Plan`]: who sends to whom, what that puts on every link, and how long it will take. A
//! [`Manifest`] is a file that `weft plan` takes the bytes from.
//!
//! The planner is a pure function. It does no I/O, reads no clock, draws no randomness and knows
//! nothing of Kubernetes: the same input gives the same plan, byte for byte, in the operator, in
//! `weft play`, in `weft plan` and in a test.
//!
//! Units are in the names: `_bytes` are bytes, `_bps` bits per second on the wire, `_ns`
//! nanoseconds, and every `seconds` is an `f64` of seconds.

mod error;
mod estimate;
mod manifest;
mod names;
mod plan;
mod request;
mod strategy;
mod topology;

pub use error::PlanError;
pub use estimate::{CHECK_BYTES_PER_SECOND, LinkLoad};
pub use manifest::{DirectoryEntry, FileEntry, Manifest, ManifestError};
pub use plan::{Alternative, Assignment, Plan, Seconds, plan};
pub use request::{BLOCK_BYTES, HOP_LATENCY_NS, PAYLOAD_SHARE, RECEIVERS_MAX, Request};
pub use strategy::{Strategy, UnknownStrategy};
pub use topology::{Node, Topology, TopologyError, Uplink};
