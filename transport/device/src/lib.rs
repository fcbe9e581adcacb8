//! What a program and the engine share of a virtual RDMA device.
//!
//! A *device* is a directory that a program finds. Calls that create, change or destroy objects go over a socket; what
//! is posted and polled goes through [rings](ring) and [doorbells](doorbell) in shared memory, without a system call.
//! This crate is the part that both ends must agree on: the layout of these, of a
//! [`WorkRequest`](work_request::WorkRequest) and of a [`Completion`](completion::Completion), the
//! [messages](control) of the socket, and which [states](state) a queue pair may go to. The engine's table of a
//! device's [objects] is here, too, for it is as pure. The crate opens no file, maps no memory and makes no
//! system call.
//!
//! The program trusts the engine. The engine trusts nothing that it reads: each word is read once and then checked.
//! When a check fails, the engine puts that queue pair or device in error, and no other.
//!
//! Words in shared memory are atomics: another process may write them at any time, and what is read is then wrong, and
//! never undefined.

pub mod completion;
pub mod control;
pub mod doorbell;
pub mod entry;
pub mod event;
pub mod node_gid;
pub mod objects;
pub mod ring;
pub mod space;
pub mod state;
pub mod sysfs;
pub mod work_request;

/// The version of everything that both ends share. They agree on it when a device is opened.
pub const VERSION: u32 = 2;

/// Bits of a queue pair's number that count within one open of a device; the others tell the opens apart.
pub const QUEUE_PAIR_BITS: u32 = 16;

/// The primitives of rings and doorbells. Their model test compiles the same file with loom's.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

#[cfg(test)]
#[expect(
    clippy::duplicate_mod,
    reason = "the model compiles `ring` and `doorbell` a second time, with loom's primitives"
)]
mod model;
#[cfg(test)]
mod tests;
