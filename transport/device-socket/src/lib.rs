//! The control socket of a virtual RDMA device.
//!
//! A device is a directory that its programs see, with three files:
//!
//! | file | |
//! |---|---|
//! | `control` | the engine's listening socket, `SOCK_SEQPACKET`; the same for all devices of a node |
//! | `token` | 32 bytes, which tell the engine which device is meant |
//! | `gid` | the device's GID, a line of text: for programs that read of a device in `/sys` without opening it |
//!
//! [`Client`] is the program's end. [`packet`] sends and receives packets, and the descriptors that go with them.
//! [`descriptor_store`] keeps what an engine that ends leaves to the next one. [`shared_mapping`] finds the file behind memory that is registered.

mod client;
pub mod descriptor_store;
mod directory;
pub mod packet;
pub mod shared_mapping;
mod spin;

pub use client::{Client, OpenError};
pub use directory::{DIRECTORY_VARIABLE, devices_in, directory, gid};
pub use spin::spin;

/// The socket in a device's directory.
pub const CONTROL_FILE: &str = "control";
/// The secret in a device's directory.
pub const TOKEN_FILE: &str = "token";
/// The GID in a device's directory.
pub const GID_FILE: &str = "gid";
