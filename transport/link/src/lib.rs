//! How chunks leave the machine and how received runs enter it.
//!
//! A link carries chunks and never decides anything: it holds no window, no timer and no path
//! state, and it never retries by itself. Its caller is a worker of the engine, one worker per link.
//!
//! `udp` is the link of this crate: one socket per port of a range, one GSO system call per chunk,
//! batched receive with GRO. [`blaster`] is its yardstick: the same system calls without a protocol.

pub mod blaster;
mod error;
mod frame;
mod ports;
mod probe;
mod route;
mod udp;

pub use error::{LinkError, Refusal, Unsent};
pub use frame::Frame;
pub use ports::{PortPair, PortRange};
pub use probe::{Offers, ProbeSocket};
pub use route::RouteProbe;
pub use udp::{Batch, Counters, ReceivedRun, SocketBuffers, UdpConfig, UdpLink};
