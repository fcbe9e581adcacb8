//! The slots of one entry, copied out of a ring or about to be pushed.
//!
//! All entries begin alike, so an entry is read without knowing what it is:
//!
//! | bytes of the first word | |
//! |---|---|
//! | 0 | opcode |
//! | 1 | flags |
//! | 2 | slots of the entry |
//! | 3 | of a work request: scatter-gather entries; of a completion: status |
//! | 4–7 | immediate |

use std::ops::Deref;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ring::{Batch, Consumer, NewSlots, RingError, SLOT_WORDS, Slot};
use crate::sync::{AtomicU64, Ordering};

/// Slots of the longest entry: a header, and [`INLINE_MAX`](crate::work_request::INLINE_MAX) bytes.
pub const ENTRY_SLOTS_MAX: usize = 17;

/// The first two words of every entry.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Head {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) slots: u8,
    /// Scatter-gather entries, or a status.
    pub(crate) third: u8,
    pub(crate) immediate: u32,
    pub(crate) wr_id: u64,
}

/// The slots of one entry. One is used again and again: nothing is allocated for an operation.
#[derive(Debug, Clone)]
pub struct Entry {
    slots: [Slot; ENTRY_SLOTS_MAX],
    len: usize,
}

/// Why no entry can be taken out of a ring. The ring is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The ring's counts are wrong.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// It says that it has no slots, or more than any has.
    #[error("an entry has 1 to {ENTRY_SLOTS_MAX} slots, this says {0}: create the queue again")]
    Slots(u8),
}

impl EntryError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Ring(error) => error.reason(),
            Self::Slots(_) => "EntrySlots",
        }
    }
}

impl Entry {
    /// An entry of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            slots: [[0; SLOT_WORDS]; ENTRY_SLOTS_MAX],
            len: 0,
        }
    }

    /// An entry that was taken out of a ring by an engine that has ended; none where no entry has so many slots.
    #[must_use]
    pub fn of_slots(slots: &[Slot]) -> Option<Self> {
        let mut entry = Self::new();
        entry.slots.get_mut(..slots.len())?.copy_from_slice(slots);
        entry.len = slots.len();
        Some(entry)
    }

    /// What is to be pushed.
    #[must_use]
    pub fn slots(&self) -> &[Slot] {
        &self.slots[..self.len]
    }

    /// Copies the next entry of a ring out and gives its slots back. Answers whether there was one.
    ///
    /// # Errors
    /// Nothing was taken.
    pub fn take<M>(&mut self, ring: &mut Consumer<M>) -> Result<bool, EntryError>
    where
        M: Deref<Target = [AtomicU64]>,
    {
        let Some(first) = ring.peek()? else {
            return Ok(false);
        };
        let slots = stated_slots(first[0]);
        let len = usize::from(slots);
        if !(1..=ENTRY_SLOTS_MAX).contains(&len) {
            return Err(EntryError::Slots(slots));
        }
        self.slots[0] = first;
        ring.read_rest(&mut self.slots[1..len])?;
        self.len = len;
        ring.consume(slots.into());
        Ok(true)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.slots().as_bytes()
    }

    /// Makes room for an entry of so many slots. What was there before is overwritten by the caller, or means nothing.
    pub(crate) fn resize(&mut self, slots: usize) -> &mut Self {
        self.len = slots.clamp(1, ENTRY_SLOTS_MAX);
        self
    }
}

/// Slots that an entry is written to.
pub(crate) trait Slots {
    /// Puts a word of the entry to its place.
    fn set(&mut self, at: usize, word: u64);
}

impl Slots for Entry {
    fn set(&mut self, at: usize, word: u64) {
        self.slots.as_flattened_mut()[at] = word;
    }
}

impl Slots for &[AtomicU64; SLOT_WORDS] {
    #[inline]
    fn set(&mut self, at: usize, word: u64) {
        self[at].store(word, Ordering::Relaxed);
    }
}

impl Slots for NewSlots<'_> {
    #[inline]
    fn set(&mut self, at: usize, word: u64) {
        NewSlots::set(self, at, word);
    }
}

/// What the first word of an entry says.
fn stated_slots(first_word: u64) -> u8 {
    first_word.to_ne_bytes()[2]
}

/// Slots of an entry that its producer has not overwritten since it was filled. It begins at this count of slots.
#[must_use]
pub fn slots_at<M>(batch: &Batch<'_, M>, begin: u32) -> u32
where
    M: Deref<Target = [AtomicU64]>,
{
    stated_slots(batch.first_word(begin)).into()
}

impl Default for Entry {
    fn default() -> Self {
        Self::new()
    }
}
