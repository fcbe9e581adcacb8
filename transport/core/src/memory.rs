//! Where arriving payload goes: domains, regions, keys and bounds.
//!
//! The core places nothing itself: it hands each payload with its key and offset to a [`Memory`],
//! which copies (or, where a NIC has placed the bytes already, only checks). What [`Memory::place`]
//! refuses is never acknowledged; the writer is told why.
//!
//! Who implements [`Memory`] finds the place in a [`RegionTable`]: one look-up checks key, domain, state
//! and bounds and answers whose memory it is (after STELLAR's extended memory translation table). What
//! that memory is, a buffer of a process or of a device, only the table's owner knows.

use crate::drops::DropReason;
use crate::units::Key;
use core::hash::{BuildHasherDefault, Hasher};

/// The memory regions that one connection may write to: those of its protection domain.
pub trait Memory {
    /// Puts `payload` at `offset` of the region that `key` opens.
    ///
    /// # Errors
    /// [`DropReason::Key`], [`DropReason::Bounds`] or [`DropReason::NotArmed`]; nothing was written.
    fn place(&mut self, key: Key, offset: u64, payload: &[u8]) -> Result<(), DropReason>;
}

/// A protection domain: a region can be written to by connections of its own domain only. Given
/// by the engine's user, one for each tenant or transfer; all of a domain lives on one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DomainId(pub u32);

/// What stands behind a region: one range of one address space, so that registering costs the same
/// whatever its length.
pub trait Backing {
    /// How long it is.
    fn bytes(&self) -> u64;
}

impl Backing for Box<[u8]> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

#[derive(Debug)]
struct Region<B> {
    domain: DomainId,
    /// `None` while it is with its owner.
    backing: Option<B>,
}

#[expect(
    clippy::disallowed_types,
    reason = "looked up by key for every packet; its hasher has no seed, and nothing depends on its order"
)]
type ByKey<T> = std::collections::HashMap<Key, T, BuildHasherDefault<KeyHasher>>;

/// The regions of one worker, of all domains.
#[derive(Debug)]
pub struct RegionTable<B> {
    by_key: ByKey<Region<B>>,
}

impl<B> Default for RegionTable<B> {
    fn default() -> Self {
        RegionTable {
            by_key: ByKey::default(),
        }
    }
}

impl<B: Backing> RegionTable<B> {
    /// Makes a region, armed, open to the connections of `domain` that know the key.
    pub fn register(&mut self, key: Key, domain: DomainId, backing: B) {
        let backing = Some(backing);
        self.by_key.insert(key, Region { domain, backing });
    }

    /// Gives a region memory to receive into, another or the same; one that was deregistered stays so.
    pub fn arm(&mut self, key: Key, backing: B) {
        if let Some(region) = self.by_key.get_mut(&key) {
            region.backing = Some(backing);
        }
    }

    /// Closes a region.
    pub fn deregister(&mut self, key: Key) {
        self.by_key.remove(&key);
    }

    /// Takes a region's memory out for its owner: until it is armed again, nothing is placed.
    ///
    /// # Errors
    /// As [`RegionTable::resolve`].
    pub fn take(&mut self, domain: DomainId, key: Key) -> Result<B, DropReason> {
        self.region(domain, key)?
            .backing
            .take()
            .ok_or(DropReason::NotArmed)
    }

    /// Whose memory `length` bytes at `offset` of a region are; they lie within it.
    ///
    /// # Errors
    /// [`DropReason::Key`] when the key opens nothing for this domain, [`DropReason::NotArmed`] when
    /// the memory is with its owner, else [`DropReason::Bounds`].
    pub fn resolve(
        &mut self,
        domain: DomainId,
        key: Key,
        offset: u64,
        length: u64,
    ) -> Result<&mut B, DropReason> {
        let region = self.region(domain, key)?;
        let backing = region.backing.as_mut().ok_or(DropReason::NotArmed)?;
        check_bounds(backing.bytes(), offset, length)?;
        Ok(backing)
    }

    /// A foreign region looks like none: a peer learns nothing by trying.
    fn region(&mut self, domain: DomainId, key: Key) -> Result<&mut Region<B>, DropReason> {
        match self.by_key.get_mut(&key) {
            Some(region) if region.domain == domain => Ok(region),
            _ => Err(DropReason::Key),
        }
    }

    /// What stands behind each region, `None` where it is with its owner; in no order.
    pub fn backings(&self) -> impl Iterator<Item = Option<&B>> {
        self.by_key.values().map(|region| region.backing.as_ref())
    }
}

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

    const KEY: Key = Key(0x1234_5600);
    const MINE: DomainId = DomainId(1);

    fn table() -> RegionTable<Box<[u8]>> {
        let mut table = RegionTable::default();
        table.register(KEY, MINE, vec![0; 10].into());
        table
    }

    #[test]
    fn a_write_that_overflows_the_offset_is_out_of_bounds() {
        assert_eq!(check_bounds(10, 4, 6), Ok(()));
        assert_eq!(check_bounds(10, 4, 7), Err(DropReason::Bounds));
        assert_eq!(check_bounds(10, u64::MAX, 2), Err(DropReason::Bounds));
    }

    #[test]
    fn a_place_is_found_within_its_region_and_nowhere_else() {
        let mut table = table();
        let mut find = |key, offset, length| {
            let found = table.resolve(MINE, key, offset, length);
            found.map(|backing| backing.len())
        };
        assert_eq!(find(KEY, 4, 6), Ok(10));
        assert_eq!(find(KEY, 10, 0), Ok(10));
        assert_eq!(find(KEY, 8, 3), Err(DropReason::Bounds));
        assert_eq!(find(KEY, u64::MAX, 1), Err(DropReason::Bounds));
        assert_eq!(find(KEY, u64::MAX - 3, 8), Err(DropReason::Bounds));
        assert_eq!(find(Key(1), 0, 1), Err(DropReason::Key));
    }

    #[test]
    fn another_domain_finds_no_region() {
        let mut table = table();
        let other = DomainId(2);
        assert_eq!(table.resolve(other, KEY, 0, 1), Err(DropReason::Key));
        assert_eq!(table.take(other, KEY), Err(DropReason::Key));
        // Where it ends is as little known to a stranger as that there is one.
        assert_eq!(table.resolve(other, KEY, 99, 1), Err(DropReason::Key));
    }

    #[test]
    fn a_taken_region_refuses_until_it_is_armed_again() {
        let mut table = table();
        assert!(table.take(MINE, KEY).is_ok());
        assert_eq!(table.take(MINE, KEY), Err(DropReason::NotArmed));
        assert_eq!(table.resolve(MINE, KEY, 0, 1), Err(DropReason::NotArmed));
        assert!(table.backings().all(|backing| backing.is_none()));
        table.arm(KEY, vec![0; 4].into());
        assert!(table.resolve(MINE, KEY, 0, 4).is_ok());
        assert_eq!(table.resolve(MINE, KEY, 0, 5), Err(DropReason::Bounds));
        table.deregister(KEY);
        table.arm(KEY, vec![0; 4].into());
        assert_eq!(table.resolve(MINE, KEY, 0, 1), Err(DropReason::Key));
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
