//! Where arriving payload goes: domains, keys and bounds.
//!
//! The core places nothing itself: it hands each payload with its domain, key and offset to a
//! [`Memory`], which copies the payload now, or has it copied and says so later, or, where a NIC has
//! placed the bytes already, only checks. What [`Memory::place`] refuses is never acknowledged; the
//! writer is told why. What is not placed yet is not acknowledged yet.
//!
//! The table that finds a region by its key (after STELLAR's extended memory translation table) is in
//! the crate `weft-memory`: workers share it, and the core shares nothing.

use crate::drops::DropReason;
use crate::units::{ConnectionId, Key};
use crate::wire::{Atomic, DataHeader};
use core::hash::Hasher;
use serde::{Deserialize, Serialize};

/// The memory regions that peers may reach.
pub trait Memory {
    /// Puts `payload` at `offset` of the region that `key` opens to connections of `domain`. `ticket` names the placement,
    /// for a memory that has another thread copy.
    ///
    /// # Errors
    /// [`DropReason::Key`], [`DropReason::Bounds`] or [`DropReason::NotArmed`]; nothing was written.
    fn place(
        &mut self,
        ticket: Ticket,
        domain: DomainId,
        key: Key,
        offset: u64,
        payload: &[u8],
    ) -> Result<Placed, DropReason>;

    /// Checks that `place` lies in a region that is open to its domain and to `access`.
    ///
    /// # Errors
    /// As [`Memory::place`].
    fn check(&mut self, place: &Place, access: Access) -> Result<(), DropReason>;

    /// Whether a link can write to `place`, which was checked, without a copy.
    fn is_direct(&mut self, place: &Place) -> bool {
        let _ = place;
        true
    }

    /// Changes 8 bytes of a region, little endian, while nothing else changes them. Returns what was there.
    ///
    /// # Errors
    /// As [`Memory::place`]; [`DropReason::Bounds`] also when `offset` is no multiple of 8. Nothing was changed.
    fn atomic(
        &mut self,
        domain: DomainId,
        key: Key,
        offset: u64,
        atomic: Atomic,
    ) -> Result<u64, DropReason>;
}

/// Bytes of a region, named as a peer names them. The name gives no right to the bytes: the key is looked up again for
/// each access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The domain of the connection.
    pub domain: DomainId,
    /// What opens the region.
    pub key: Key,
    /// Where in the region they begin.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
}

/// What peers may do to a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access(u8);

impl Access {
    /// Write to it.
    pub const WRITE: Access = Access(1);
    /// Read it.
    pub const READ: Access = Access(2);
    /// Change words of it.
    pub const ATOMIC: Access = Access(4);

    /// Nothing.
    pub const NONE: Access = Access(0);
    /// All of it.
    pub const ALL: Access = Access(7);

    /// Both.
    #[must_use]
    pub const fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether everything in `other` is allowed.
    pub const fn allows(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

/// How far a placement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// The bytes are there.
    Now,
    /// The [`Memory`] has kept the payload, and another thread copies it.
    /// [`Endpoint::placed`](crate::endpoint::Endpoint::placed) reports the end of the copy; until
    /// then the packet is not acknowledged.
    Pending,
}

/// A placement: the packet whose payload it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The connection that the packet came on.
    pub connection: ConnectionId,
    /// The packet's number.
    pub packet_number: u64,
}

impl Ticket {
    /// The ticket of the packet with this header.
    pub fn of(header: &DataHeader) -> Ticket {
        Ticket {
            connection: header.connection,
            packet_number: header.packet_number,
        }
    }
}

/// A protection domain: a region can be reached by connections of its own domain only. Given
/// by the engine's user, one for each tenant or transfer.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct DomainId(pub u32);

/// Checks that `length` bytes at `offset` lie within a region of `region` bytes.
///
/// # Errors
/// [`DropReason::Bounds`] when they do not; the sum is checked for overflow.
pub fn check_bounds(region: u64, offset: u64, length: u64) -> Result<(), DropReason> {
    match offset.checked_add(length) {
        Some(end) if end <= region => Ok(()),
        _ => Err(DropReason::Bounds),
    }
}

/// Keys are random and ids count up; neither is chosen by a peer. A multiplication spreads both over
/// the whole word: the table takes its buckets from the low bits and its tags from the high ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        // 2^64 divided by the golden ratio (Knuth, TAOCP 6.4), folded to the middle of the product.
        let product = u128::from(word) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_overflows_the_offset_is_out_of_bounds() {
        assert_eq!(check_bounds(10, 4, 6), Ok(()));
        assert_eq!(check_bounds(10, 4, 7), Err(DropReason::Bounds));
        assert_eq!(check_bounds(10, u64::MAX, 2), Err(DropReason::Bounds));
    }

    #[test]
    fn sequential_ids_spread_over_buckets_and_tags() {
        let hashes: Vec<u64> = (0..256u32)
            .map(|id| {
                let mut hasher = KeyHasher::default();
                hasher.write_u32(id);
                hasher.finish()
            })
            .collect();
        let distinct = |part: fn(&u64) -> u64| {
            let parts: std::collections::BTreeSet<u64> = hashes.iter().map(part).collect();
            parts.len()
        };
        assert!(distinct(|hash| hash & 255) > 128);
        assert!(distinct(|hash| hash >> 57) > 64);
    }
}
