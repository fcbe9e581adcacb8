//! The TransferEngine: a program links this crate and moves memory between processes. It needs no agent, no root and no
//! configuration file.
//!
//! ```
//! use weft_transfer_engine::{Access, Options, Outcome, SingleWrite, TransferEngine, TransferEngineConfig};
//! use weft_transfer_engine::{MrDescriptor, Region};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let receiver = TransferEngine::start(TransferEngineConfig::default())?;
//! let sender = TransferEngine::start(TransferEngineConfig::default())?;
//!
//! // The receiver opens 4 KiB to its peers. It sends the descriptor to them by any channel, as a string.
//! let (there, descriptor) = receiver.alloc(4096)?;
//! let text: String = descriptor.to_string();
//!
//! // The sender writes 11 bytes to offset 100. The write carries the immediate 7.
//! let (here, _) = sender.reg_mr(Region::share(*b"hello, weft"), Access::NONE)?;
//! let write = SingleWrite {
//!     source: (here, 0),
//!     destination: (text.parse::<MrDescriptor>()?, 100),
//!     bytes: 11,
//!     immediate: Some(7),
//! };
//! let written = sender.submit_single_write(&write, Options::default())?;
//!
//! // The receiver waits until one message with the immediate 7 has arrived: its bytes are there by then.
//! let arrived = receiver.expect_imm_count(7, 1, Options::default())?;
//! assert_eq!((arrived.wait(), written.wait()), (Outcome::Done, Outcome::Done));
//! let mut bytes = [0; 11];
//! there.read(100, &mut bytes)?;
//! assert_eq!(&bytes, b"hello, weft");
//! # Ok(())
//! # }
//! ```
//!
//! Each operation has a deadline and ends once, with an [`Outcome`]. There is no order among operations. An engine
//! connects to a peer when the first operation needs it.
//!
//! Data moves over `weft-engine`, one engine for each link (`measurement`). Set-up runs over TLS (`control`). `operations`
//! and `counters` know no socket, thread or clock. An engine has these threads: the workers of its links, unless the
//! program polls; `weft-control`, which connects peers; `weft-events`, which ends operations; `weft-callbacks`, which calls the program and reads watchers.
//!
//! The crate knows nothing of files, jobs, agents or Kubernetes.

mod address;
mod callbacks;
mod config;
mod control;
mod counters;
mod ends;
mod engine;
mod error;
mod events;
mod failure;
mod link_choice;
mod lock;
mod measured_links;
mod measurement;
mod operation;
mod operations;
mod outcome;
mod peers;
mod receives;
mod region;
mod session;
mod shared;
mod submit;
mod tls;
mod work_request;

/// The primitives of `counters`. The model compiles the same file with loom's.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
}

#[cfg(test)]
mod arrivals;
#[cfg(test)]
#[expect(
    clippy::duplicate_mod,
    reason = "the model compiles `counters` a second time, with loom's primitives"
)]
mod model;

pub use address::{AddressError, EngineAddress, MrDescriptor};
pub use callbacks::{WatchHandler, Watcher};
pub use config::{Progress, TransferEngineConfig};
pub use counters::ImmCounter;
pub use engine::{Counts, TransferEngine};
pub use error::TransferError;
pub use failure::{Cause, Failure, Stage};
pub use link_choice::LinkChoice;
pub use operation::{Operation, Options};
pub use outcome::{Completion, Outcome};
pub use receives::MessageHandler;
pub use region::MemoryRegion;
pub use submit::{PagedWrites, Pages, PeerGroup, SingleRead, SingleWrite};

// What the public types are made of, so that a program needs no other crate of Weft.
pub use weft_engine::{
    Access, DeviceMemory, DropReason, Encryption, Key, LinkInUse, LinkKind, MemfdError, NicPair,
    Region,
};
