//! The control socket of a virtual RDMA device.
//!
//! A device is a directory that its programs see, with two files:
//!
//! | file | |
//! |---|---|
//! | `control` | the engine's listening socket, `SOCK_SEQPACKET`; the same for all devices of a node |
//! | `token` | 32 bytes, which tell the engine which device is meant |
//!
//! [`Client`] is the program's end. [`packet`] sends and receives packets, and the descriptors that go with them.
//! [`shared_mapping`] finds the file behind memory that is registered.

mod client;
pub mod packet;
pub mod shared_mapping;

pub use client::{Client, OpenError, devices_in};

/// The socket in a device's directory.
pub const CONTROL_FILE: &str = "control";
/// The secret in a device's directory.
pub const TOKEN_FILE: &str = "token";
