//! `librdmacm.so.1` for virtual devices, so that programs which connect by it run unmodified.
//!
//! Two ids connect over one TCP connection to the address and port that the program names: `message` has what they say to
//! each other. The bytes of queue pairs go over the device; this library only moves queue pairs through their states, by the
//! functions of `libibverbs.so.1`.
//!
//! It has no thread. The descriptor of an event channel is an epoll descriptor with the sockets of its ids, and
//! `rdma_get_cm_event` reads them.
//!
//! # Invariants of `unsafe`
//! 1. *Pointers of the program.* Each pointer that a program passes is what `rdma_cma.h` says: an object that this library made
//!    and has not destroyed, or memory of the given length.
//! 2. *Heads of blocks.* An id, an event and an event channel are the first fields of blocks of ours, in C's layout, made by
//!    `Box`; so a pointer to the one is a pointer to the other.
//! 3. *Ids of a channel.* An id is in its channel's table from when it is made until `rdma_destroy_id` takes it out under the
//!    channel's lock. An event that a program has holds up the end of its id.
//! 4. *Functions of verbs.* They have the types that `verbs.h` gives them, and get objects of theirs.
#![deny(clippy::undocumented_unsafe_blocks)]
#![expect(
    unsafe_code,
    reason = "the interface is C's: pointers of programs, and functions of libibverbs"
)]

mod abi;
mod acknowledgement;
mod addresses;
mod addrinfo;
mod channel;
mod connect;
mod devices;
mod endpoint;
mod ep;
mod errno;
mod events;
#[cfg(test)]
mod headers;
mod ids;
mod message;
mod queue_pairs;
mod resolve;
#[cfg(not(test))]
mod symbols;
mod unsupported;
mod verbs;
