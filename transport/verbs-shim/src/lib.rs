//! `libibverbs.so.1` for virtual devices, so that verbs programs use them unmodified.
//!
//! Calls that make, change or destroy objects become messages on the device's control socket; what is posted and polled goes
//! through rings in shared memory. The library decides nothing: the engine checks everything.
//!
//! Devices are the directories in `/dev/weft`, or where the environment variable `WEFT_DEVICES` says.
//!
//! # Invariants of `unsafe`
//! 1. *Pointers of the program.* Each pointer that a program passes is what `verbs.h` says: an object that this library made
//!    and has not destroyed, or memory of the given length. A program that breaks this breaks itself, as with any library
//!    in C.
//! 2. *Heads of blocks.* An object of `verbs.h` is the first field of a block of ours, in C's layout, made by `Box`; so a
//!    pointer to the one is a pointer to the other. Of a context it is the last field of `verbs_context`.
//! 3. *Interior locks.* What calls of several threads change lies behind a `Mutex`, or is an atomic of shared memory.
#![deny(clippy::undocumented_unsafe_blocks)]
#![expect(
    unsafe_code,
    reason = "the interface is C's: pointers of programs, and tables of functions"
)]

mod address_handles;
mod async_events;
mod channels;
mod completion_queue;
mod completion_queues;
mod contexts;
mod data;
mod devices;
mod events;
mod extended_poll;
mod objects;
mod open;
mod outstanding;
mod pair;
mod private;
mod queue_pairs;
mod shared_receives;
mod symbols;
mod text;
mod unacknowledged;
mod work_requests;
