//! Memory that peers reach: regions, and the table that finds them by key.
//!
//! A [`Region`] is memory that several threads, and with [`Region::memfd`] several processes, hold at
//! once, or memory of another process ([`AddressSpace`]), which may be mapped here as well ([`Window`]), or of a device
//! ([`DeviceMemory`]), which copies for itself. A [`RegionTable`] opens regions to the connections of a domain. All workers read the table without a lock; registering, arming, taking and deregistering wait until no worker still uses what
//! they replaced.
//!
//! The crate sends and receives nothing and knows no connection. The engine and the simulator use it
//! behind [`weft_core::memory::Memory`].
//!
//! # Invariants
//! All `unsafe` code of the transport's memory is in five modules. It rests on these rules:
//!
//! 1. *Shared bytes are atomics.* A region gives out neither `&[u8]` nor `&mut [u8]`. Its bytes are
//!    `AtomicU8`; they are read and written by relaxed atomic copies only. A peer, another thread or
//!    another process may write the same bytes at the same time: the bytes are then mixed, and the
//!    behaviour is still defined.
//! 2. *Slices need ownership.* A caller that wants a slice must own the memory: [`Region::into_box`]
//!    consumes the region, so nothing else in this process can reach the bytes, and it refuses memory
//!    that another process may hold.
//! 3. *A mapping never shrinks.* A memfd is mapped only when its size is sealed, so no process can cut
//!    pages off and make an access fault. A window's file may shrink: each access to it is guarded.
//! 4. *What a reader can see is not freed.* A replaced value is freed only after every reader that was
//!    inside when it was replaced has left (module `published`, checked with loom).

mod address_space;
#[expect(
    unsafe_code,
    reason = "bytes that others, and the kernel for a socket, may write at the same time; invariant 1"
)]
mod copy;
mod device_memory;
mod map_cache;
#[expect(
    unsafe_code,
    reason = "system calls for pages that are missing, and the signal of an access to one; invariant 3"
)]
mod missing_pages;
#[expect(
    unsafe_code,
    reason = "readers follow a pointer that a writer replaces; invariant 4"
)]
mod published;
#[expect(
    unsafe_code,
    reason = "shared memory; invariants 1 to 3 of the crate's text"
)]
mod region;
mod table;
#[expect(
    unsafe_code,
    reason = "another process's shared memory, whose pages may be missing; invariants 1 and 3"
)]
mod window;
mod word;

/// The primitives that `published` synchronizes with. Its model test compiles the same file with loom's.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
    pub(crate) use std::sync::{Arc, Mutex};

    /// Looks at another thread's memory so often before it gives the processor away: about 20 µs,
    /// which is longer than a received run takes. A thread that is not done by then is not running.
    const SPINS: u32 = 1_000;

    /// Waits a moment for another thread; `spins` counts the moments.
    pub(crate) fn relax(spins: &mut u32) {
        *spins += 1;
        if *spins < SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
#[expect(
    unsafe_code,
    clippy::duplicate_mod,
    reason = "the model compiles `published` a second time, with loom's primitives"
)]
mod model;

pub use address_space::{AddressSpace, AddressSpaceError, CopiedBytes, Range};
pub use device_memory::DeviceMemory;
pub use map_cache::{BLOCK_BYTES, MapCache, Mapper};
pub use region::{MemfdError, Part, Region, Source, Words};
pub use table::{Backing, Counts, Placing, RegionTable, TableReader};
pub use window::{FileId, SharedFiles, Window, WindowError};
