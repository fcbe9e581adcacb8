//! Where the rings of a device lie in its shared memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::doorbell::DOORBELL_WORDS;
use crate::ring::{RING_HEADER_WORDS, SLOT_WORDS};

/// Bytes at the beginning of a device's memory that are the doorbell page.
pub const DOORBELL_BYTES: u64 = 8 * DOORBELL_WORDS as u64;

/// A ring begins at a multiple of so many bytes: two cache lines.
const ALIGNMENT: u64 = 128;

/// The place of a ring in its device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RingPlace {
    /// Where it begins, bytes.
    pub offset: u64,
    /// Its slots.
    pub slots: u32,
}

impl RingPlace {
    /// Words of the ring, its header included.
    #[must_use]
    pub fn words(self) -> usize {
        RING_HEADER_WORDS + SLOT_WORDS * self.slots as usize
    }

    pub(crate) fn bytes(self) -> u64 {
        (8 * self.words() as u64).next_multiple_of(ALIGNMENT)
    }
}

/// The memory of a device that no ring takes: the first place that is large enough is given.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RingSpace {
    /// Bytes, by where they begin. No two of them touch.
    free: BTreeMap<u64, u64>,
    taken: u64,
}

impl RingSpace {
    /// So many bytes after the doorbell page.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            free: BTreeMap::from([(DOORBELL_BYTES, bytes)]),
            taken: 0,
        }
    }

    /// Takes the place of a ring; nothing where there is no room.
    pub(crate) fn take(&mut self, slots: u32) -> Option<RingPlace> {
        let wanted = RingPlace { offset: 0, slots }.bytes();
        let (&offset, &bytes) = self.free.iter().find(|(_, bytes)| **bytes >= wanted)?;
        self.free.remove(&offset);
        if bytes > wanted {
            self.free.insert(offset + wanted, bytes - wanted);
        }
        self.taken += wanted;
        Some(RingPlace { offset, slots })
    }

    /// Bytes of all rings.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Gives back what [`RingSpace::take`] gave.
    pub(crate) fn give_back(&mut self, place: RingPlace) {
        let (mut offset, mut bytes) = (place.offset, place.bytes());
        self.taken -= bytes;
        let before = self.free.range(..offset).next_back();
        if let Some((&start, &free)) = before
            && start + free == offset
        {
            self.free.remove(&start);
            (offset, bytes) = (start, bytes + free);
        }
        if let Some(free) = self.free.remove(&(offset + bytes)) {
            bytes += free;
        }
        self.free.insert(offset, bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Rings overlap neither each other nor the doorbell page, and what is given back can be used again whole.
        #[test]
        fn rings_do_not_overlap(steps in prop::collection::vec((any::<bool>(), 0u32..8), 0..60)) {
            let bytes = 64 << 10;
            let mut space = RingSpace::new(bytes);
            let mut taken: Vec<RingPlace> = Vec::new();
            for (is_taken, number) in steps {
                if is_taken {
                    taken.extend(space.take(1 << number));
                } else if !taken.is_empty() {
                    space.give_back(taken.swap_remove(number as usize % taken.len()));
                }
                let mut at = DOORBELL_BYTES;
                taken.sort_by_key(|place| place.offset);
                for place in &taken {
                    prop_assert!(place.offset >= at && place.offset % ALIGNMENT == 0);
                    at = place.offset + 8 * place.words() as u64;
                }
                prop_assert!(at <= DOORBELL_BYTES + bytes);
                prop_assert_eq!(space.taken() + space.free_bytes(), bytes);
            }
            taken.drain(..).for_each(|place| space.give_back(place));
            prop_assert_eq!(space.free, BTreeMap::from([(DOORBELL_BYTES, bytes)]));
        }
    }
}
