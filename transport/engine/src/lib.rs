//! The transfer engine: memory regions, connections, and writes, reads, atomics and sends over a link.
//!
//! A program talks to it by messages only: [`Engine`]'s calls give commands to a worker, and what happens comes back as
//! [`Event`]s on a channel. The same calls will travel over a Unix socket when the engine is a program of its own, so
//! nothing here hands out a reference into it.
//!
//! A *worker* is a run-to-completion loop that owns its ports and its connections; workers share the table of regions,
//! which they read without a lock, and nothing else. It receives before it serves timers, sends for its connections in
//! turns, polls while there is work and blocks when there is none. `Progress::Threads` gives each its thread; between
//! two of that thread's turns a caller that posts a small message sends it itself
//! (docs/decisions/0036). With `Progress::Inline` the caller's [`Engine::poll`] is the worker.
//!
//! A connection lives on one worker, or is *split* over several ([`EngineConfig::split`]): part by part it is joined
//! to the peer's parts. Each message goes whole over one part, the one with the fewest bytes under way, so messages
//! may overtake each other, as they may on one part. The user sees one connection.
//!
//! A *region* is memory that the user shares with the engine. The immediate of a message into it takes
//! nothing away: any number of messages may land in one region. A user that hands buffers over takes
//! the region when its message is there ([`Engine::take`]) and arms it again; in between, packets for
//! it are refused, and the other end sends them again a little later.
//!
//! The engine knows nothing of files, jobs, certificates or Kubernetes.

mod clock;
mod command;
mod config;
mod doze;
mod ends;
mod engine;
mod error;
mod event;
mod identity;
mod link_measurement;
mod parts;
mod peer;
mod pinned;
mod post;
mod saved;
mod shared_receives;
mod snapshot;
mod users;
mod worker;

pub use config::{Egress, EgressReport, Encryption, EngineConfig, Progress};
pub use ends::{EndPart, LocalEnd, RemoteEnd};
pub use engine::{Engine, WriteRequest};
pub use error::EngineError;
pub use event::Event;
pub use link_measurement::{
    Arrival, LinkInUse, LinkResults, MEASURED_BYTES, MeasuredLink, TOO_SLOW, fastest, passing,
};
pub use post::{Piece, Post};
pub use saved::{SavedConnection, SavedEngine, SavedPost};
pub use shared_receives::SharedReceiveQueue;
pub use snapshot::{ConnectionSnapshot, NicPair, PeerSnapshot, Snapshot};

// What the engine's own types are made of, so that its user needs no other transport crate.
pub use weft_core::congestion::CongestionKind;
pub use weft_core::connection::{
    AtomicChange, CancelError, Failure, Pages, PostError, REQUESTS_MAX, Read, ReceiveBuffer,
    ReportWrite, SendMessage, Settings, Stats, WorkRequest, Write, WritePages,
};
pub use weft_core::drops::{DropReason, Drops};
pub use weft_core::memory::{Access, DomainId};
pub use weft_core::path::{PathReport, PathState, PolicyKind};
pub use weft_core::units::{ConnectionId, Key, Nanos};
pub use weft_core::wire::{Atomic, Integrity, Secret};
pub use weft_link::{
    BadNics, Counters as LinkCounters, LinkAddress, LinkError, LinkKind, LinkToken, LocalSwitch,
    NICS_MAX, NicAddresses, PortRange, SocketBuffers,
};
pub use weft_memory::{
    AddressSpace, AddressSpaceError, CopiedBytes, Counts as RegionCounts, DeviceMemory, FileId,
    MemfdError, Part, Region, SharedFiles, Source, Window, WindowError, Words,
};

/// The key of a write that has no bytes and goes to no region: its immediate arrives as
/// [`Event::Signal`].
pub const SIGNAL: Key = Key(0);
