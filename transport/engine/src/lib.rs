//! The transfer engine: memory regions, connections and one-sided writes over a link.
//!
//! A program talks to it by messages only: [`Engine`]'s calls put commands into a worker's queue,
//! and what happens comes back as [`Event`]s on a channel. The same calls will travel over a Unix
//! socket when the engine is a program of its own, so nothing here hands out a reference into it.
//!
//! A *worker* is a run-to-completion loop that owns its ports, its connections and its regions;
//! workers share nothing. It receives before it serves timers, sends for its connections in
//! turns, polls while there is work and blocks when there is none. `Progress::Threads` gives each
//! its thread; with `Progress::Inline` the caller's [`Engine::poll`] is the worker.
//!
//! A *region* is one buffer that the worker owns while it is armed. When the immediate of a message
//! into it counts, the buffer is handed out with the event; until it is armed again, packets for it
//! are refused, and the other end sends them again a little later. So no memory is ever shared with a
//! writer, and none of this crate is `unsafe`.
//!
//! The engine knows nothing of files, jobs, certificates or Kubernetes.

mod cap;
mod clock;
mod command;
mod config;
mod connections;
mod doze;
mod engine;
mod error;
mod event;
mod identity;
mod piece;
pub mod rate;
mod regions;
mod resets;
mod snapshot;
mod turns;
mod worker;

pub use config::{EngineConfig, Progress};
pub use engine::{Engine, LocalEnd, RemoteEnd, WriteRequest};
pub use error::EngineError;
pub use event::{Event, Failure};
pub use snapshot::{ConnectionSnapshot, PeerSnapshot, RegionCounts, Snapshot};

// What the engine's own types are made of, so that its user needs no other transport crate.
pub use weft_core::congestion::CongestionKind;
pub use weft_core::connection::{Settings, Stats};
pub use weft_core::drops::{DropReason, Drops};
pub use weft_core::memory::DomainId;
pub use weft_core::path::{PathReport, PathState, PolicyKind};
pub use weft_core::units::{ConnectionId, Key, Nanos};
pub use weft_core::wire::Secret;
pub use weft_link::{Counters as LinkCounters, LinkError, PortRange, SocketBuffers};

/// The key of a write that has no bytes and goes to no region: its immediate arrives as
/// [`Event::Signal`].
pub const SIGNAL: Key = Key(0);
