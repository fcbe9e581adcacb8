//! The table of regions: whose memory a key opens, and whether it receives now.

use std::fmt;
use std::sync::Arc;

use weft_core::drops::DropReason;
use weft_core::memory::{Access, DomainId, Memory, Place, Placed, Ticket, check_bounds};
use weft_core::units::Key;
use weft_core::wire::Atomic;

use crate::Region;
use crate::published::{Inside, Published, Reader};

/// Parts of the table, chosen by a key's top bits. A change copies one part: registering the 100,000th
/// region copies 400 entries.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 8;

/// What stands behind a key: a [`Region`], or in the simulator a region without its bytes.
pub trait Backing: Send + Sync {
    /// How long it is: the offset at which it ends.
    fn bytes(&self) -> u64;

    /// The offset at which it begins. Who accesses it checks that itself.
    fn first_offset(&self) -> u64 {
        0
    }
}

impl Backing for Region {
    fn bytes(&self) -> u64 {
        self.len()
    }

    fn first_offset(&self) -> u64 {
        Region::first_offset(self)
    }
}

struct Entry<B> {
    key: Key,
    domain: DomainId,
    access: Access,
    /// `None` while the region is with its owner.
    armed: Option<Arc<B>>,
}

impl<B> Clone for Entry<B> {
    fn clone(&self) -> Self {
        Self {
            armed: self.armed.clone(),
            ..*self
        }
    }
}

/// Sorted by key.
type Shard<B> = Vec<Entry<B>>;

/// The regions that peers may reach, of all domains and workers. Cloning shares it.
///
/// Workers look regions up through a [`TableReader`] each, without a lock. Changes take a lock, and wait
/// until no worker is in the middle of a placement that began before: after [`RegionTable::take`] or
/// [`RegionTable::deregister`] has returned, no byte lands in the region.
pub struct RegionTable<B> {
    shards: Arc<Published<Shard<B>>>,
}

/// How many regions there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regions that receive.
    pub armed: usize,
    /// Their bytes.
    pub armed_bytes: u64,
    /// Regions with their owners.
    pub taken: usize,
}

impl<B> Clone for RegionTable<B> {
    fn clone(&self) -> Self {
        Self {
            shards: self.shards.clone(),
        }
    }
}

impl<B: Backing> Default for RegionTable<B> {
    fn default() -> Self {
        Self {
            shards: Arc::new(Published::new((0..SHARDS).map(|_| Vec::new()))),
        }
    }
}

impl<B: Backing> RegionTable<B> {
    /// Opens a region to the connections of `domain` that know the key, for what `access` says. A key is used once.
    pub fn register(&self, key: Key, domain: DomainId, access: Access, region: impl Into<Arc<B>>) {
        let entry = Entry {
            key,
            domain,
            access,
            armed: Some(region.into()),
        };
        self.shards.replace(shard_of(key), |shard| {
            let at = shard.partition_point(|entry| entry.key < key);
            let mut shard = shard.clone();
            shard.insert(at, entry);
            (shard, ())
        });
    }

    /// Lets a region receive again, into the same memory or other. A key that was deregistered stays so.
    pub fn arm(&self, key: Key, region: impl Into<Arc<B>>) {
        let region = region.into();
        self.change(key, |entry| entry.armed = Some(region));
    }

    /// Stops placements into a region until it is armed again, and gives its memory to the owner.
    /// `None` when it is not armed or not registered.
    pub fn take(&self, key: Key) -> Option<Arc<B>> {
        self.change(key, |entry| entry.armed.take()).flatten()
    }

    /// Closes a region. `None` when it was not armed or not registered.
    pub fn deregister(&self, key: Key) -> Option<Arc<B>> {
        self.shards.replace(shard_of(key), |shard| {
            let mut shard = shard.clone();
            let found = shard.binary_search_by_key(&key, |entry| entry.key);
            let removed = found.ok().and_then(|at| shard.remove(at).armed);
            (shard, removed)
        })
    }

    /// A reader, for one worker.
    pub fn reader(&self) -> TableReader<B> {
        TableReader(Reader::new(&self.shards))
    }

    /// Counts the regions.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.shards.each(|shard| {
            for entry in shard {
                match &entry.armed {
                    Some(region) => {
                        counts.armed += 1;
                        counts.armed_bytes += region.bytes() - region.first_offset();
                    }
                    None => counts.taken += 1,
                }
            }
        });
        counts
    }

    fn change<R>(&self, key: Key, change: impl FnOnce(&mut Entry<B>) -> R) -> Option<R> {
        self.shards.replace(shard_of(key), |shard| {
            let mut shard = shard.clone();
            let found = shard.binary_search_by_key(&key, |entry| entry.key);
            let result = found.ok().map(|at| change(&mut shard[at]));
            (shard, result)
        })
    }
}

/// Keys are random, so their top bits spread them evenly.
fn shard_of(key: Key) -> usize {
    (key.0 >> (u64::BITS - SHARD_BITS)) as usize
}

impl<B> fmt::Debug for RegionTable<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable").finish_non_exhaustive()
    }
}

/// One worker's way into the table.
pub struct TableReader<B>(Reader<Shard<B>>);

impl<B> fmt::Debug for TableReader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableReader").finish_non_exhaustive()
    }
}

impl<B: Backing> TableReader<B> {
    /// Begins placements. Changes of the table wait until the guard is dropped: hold it for one
    /// received run, and change the table only after it.
    pub fn enter(&mut self) -> Placing<'_, B> {
        Placing(self.0.enter())
    }
}

/// A worker that is placing.
pub struct Placing<'a, B>(Inside<'a, Shard<B>>);

impl<B: Backing> Placing<'_, B> {
    /// The region that holds the bytes of `place`.
    ///
    /// # Errors
    /// [`DropReason::Key`] when the key opens nothing for this domain and this access: a region of another domain
    /// looks like none. [`DropReason::NotArmed`] while the region is with its owner, else
    /// [`DropReason::Bounds`].
    pub fn resolve(&self, place: &Place, access: Access) -> Result<&B, DropReason> {
        let &Place {
            domain,
            key,
            offset,
            bytes,
        } = place;
        let shard = self.0.get(shard_of(key));
        let found = shard.binary_search_by_key(&key, |entry| entry.key);
        let entry = found.ok().map(|at| &shard[at]);
        let entry = entry.filter(|entry| entry.domain == domain && entry.access.allows(access));
        let entry = entry.ok_or(DropReason::Key)?;
        let region = entry.armed.as_ref().ok_or(DropReason::NotArmed)?;
        check_bounds(region.bytes(), offset, bytes)?;
        Ok(region)
    }
}

impl Memory for Placing<'_, Region> {
    fn place(
        &mut self,
        _: Ticket,
        domain: DomainId,
        key: Key,
        offset: u64,
        payload: &[u8],
    ) -> Result<Placed, DropReason> {
        let place = Place {
            domain,
            key,
            offset,
            bytes: payload.len() as u64,
        };
        self.resolve(&place, Access::WRITE)?
            .write(offset, payload)?;
        Ok(Placed::Now)
    }

    fn check(&mut self, place: &Place, access: Access) -> Result<(), DropReason> {
        self.resolve(place, access).map(|_| ())
    }

    fn is_direct(&mut self, place: &Place) -> bool {
        let region = self.resolve(place, Access::WRITE);
        region.is_ok_and(Region::is_direct)
    }

    fn atomic(
        &mut self,
        domain: DomainId,
        key: Key,
        offset: u64,
        atomic: Atomic,
    ) -> Result<u64, DropReason> {
        let place = Place {
            domain,
            key,
            offset,
            bytes: Atomic::BYTES,
        };
        self.resolve(&place, Access::ATOMIC)?.atomic(offset, atomic)
    }
}

#[cfg(test)]
mod tests;
