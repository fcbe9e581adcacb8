//! The engine's end of virtual RDMA devices.
//!
//! A program opens a *device* and gets a [*context*](ContextId): objects of its own, and shared memory with a doorbell page
//! and rings (see `weft-device`, which both ends share). [`Devices`] holds the contexts of a node and an engine. It
//! carries out the program's requests, takes work requests out of rings, posts them to connections of the engine, and
//! puts completions into the rings of completion queues. A connected queue pair is one in-order connection of the engine;
//! the datagrams between two devices share one.
//!
//! Two queue pairs that are to be connected are often on two nodes. Each of the two servers sends the other an
//! [`Offer`] over a channel that somebody else provides, which must say truly from whom an offer comes. The programs
//! may connect their ends in any order: the offer of the later one is answered with that of the earlier one.
//!
//! Nothing happens in [`Devices`] but when it is called, and time is an argument. [`Server`] runs one in a thread for each
//! device that is open, and has a thread for each program.

mod channel;
mod command;
mod context;
mod control;
mod counters;
mod datagram;
mod datagram_queue_pair;
mod datagrams;
mod device_table;
mod devices;
mod kept_bytes;
mod limits;
mod link_share;
mod offer;
mod open_devices;
mod opening;
mod operation_rate;
mod queue_pair;
mod random;
mod receive_queue;
mod refused_attempts;
mod regions;
mod saved;
mod server;
mod thread;
mod under_way;
mod work;

pub use context::{CAP_BPS_MIN, Device, SHARE_DEFAULT, SHARE_MAX};
pub use datagrams::DatagramDrops;
pub use devices::{ContextId, Devices, OpenError, Opened};
pub use limits::{DeviceTotals, NodeTotals, OPEN_LIMITS, Totals};
pub use offer::{Offer, QueuePairName, TenantOffer, TooManyOffers};
pub use open_devices::Gid;
pub use refused_attempts::{AttemptKind, RefusedAttempt};
pub use server::{DeviceStatus, Refused, Server, ServerError};
