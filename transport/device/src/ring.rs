//! A ring: a queue of 64-byte slots in shared memory, with one producer and one consumer.
//!
//! The producer counts the slots that it has filled, the consumer those that it has emptied; both counts run on and
//! wrap around at 2³². Each end writes its own count and keeps a copy of it: what the other end might write there
//! changes nothing. An entry takes one slot or several.
//!
//! A consumer that has nothing to do may sleep. Before that it says so in the ring, and looks once more; a producer
//! that finds it asleep wakes it by a descriptor that lies outside of the ring. Between each side's store and its load
//! stands a sequentially consistent fence, so either the consumer sees the entry or the producer sees the sleeper
//! (Dekker's algorithm, as in virtio's notification suppression: Virtual I/O Device version 1.2, section 2.7.10).

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Words of a slot.
pub const SLOT_WORDS: usize = 8;
/// Bytes of a slot: a cache line.
pub const SLOT_BYTES: usize = 8 * SLOT_WORDS;
/// Slots of the largest ring.
pub const SLOTS_MAX: u32 = 1 << 16;

/// What a slot holds.
pub type Slot = [u64; SLOT_WORDS];

/// The counts of a ring. Each is alone on its cache lines: two, because processors fetch them in pairs.
#[repr(C)]
#[derive(Debug)]
pub struct Counts {
    pub(super) filled: Line,
    pub(super) emptied: Line,
    asleep: Line,
}

#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Line(pub(super) AtomicU32);

impl Counts {
    /// Those of an empty ring.
    #[must_use]
    pub fn new() -> Self {
        let line = || Line(AtomicU32::new(0));
        Self {
            filled: line(),
            emptied: line(),
            asleep: line(),
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self::new()
    }
}

/// The memory of a ring, mapped by this process.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'m> {
    counts: &'m Counts,
    /// [`SLOT_WORDS`] for each slot.
    words: &'m [AtomicU64],
    slots: u32,
}

/// Why memory is no ring, or the other end no partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The memory has another size.
    #[error(
        "a ring has a power of two of slots, at most {SLOTS_MAX}, of {SLOT_WORDS} words each; this has {words} words"
    )]
    Size {
        /// Words that were given.
        words: usize,
    },
    /// The other end counts more slots than the ring has.
    #[error("the other end says that {count} slots of {slots} are in use")]
    Count {
        /// What it says.
        count: u32,
        /// What there is.
        slots: u32,
    },
    /// An entry has more slots than were filled.
    #[error("an entry of {entry} slots, and {filled} are filled")]
    Entry {
        /// Slots of the entry, as it says.
        entry: u32,
        /// Slots that are filled.
        filled: u32,
    },
}

/// No room for an entry: the consumer has to empty slots first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ring is full")]
pub struct Full;

impl<'m> Memory<'m> {
    /// # Errors
    /// [`RingError::Size`].
    pub fn new(counts: &'m Counts, words: &'m [AtomicU64]) -> Result<Self, RingError> {
        let slots = words.len() / SLOT_WORDS;
        let fits = words.len().is_multiple_of(SLOT_WORDS)
            && slots.is_power_of_two()
            && slots <= SLOTS_MAX as usize;
        match u32::try_from(slots) {
            Ok(slots) if fits => Ok(Self {
                counts,
                words,
                slots,
            }),
            _ => Err(RingError::Size { words: words.len() }),
        }
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    fn slot(&self, count: u32) -> &'m [AtomicU64] {
        let at = (count & (self.slots - 1)) as usize * SLOT_WORDS;
        &self.words[at..at + SLOT_WORDS]
    }
}

/// The end that fills slots.
#[derive(Debug)]
pub struct Producer<'m> {
    memory: Memory<'m>,
    filled: u32,
    /// What the consumer has emptied, as far as it was looked at.
    emptied: u32,
}

impl<'m> Producer<'m> {
    /// Of a ring in which so many slots were filled before, by this end's own account; 0 of a new one.
    #[must_use]
    pub fn new(memory: Memory<'m>, filled: u32) -> Self {
        Self {
            memory,
            filled,
            emptied: filled.wrapping_sub(memory.slots),
        }
    }

    /// Slots filled so far.
    #[must_use]
    pub fn filled(&self) -> u32 {
        self.filled
    }

    /// Fills the next slots with an entry. The consumer sees all of it or nothing.
    ///
    /// # Errors
    /// Of the consumer: [`RingError::Count`]. `Ok(Err(Full))` when there is no room.
    pub fn push(&mut self, entry: &[Slot]) -> Result<Result<(), Full>, RingError> {
        let slots = self.memory.slots;
        let room = |emptied: u32| slots - self.filled.wrapping_sub(emptied).min(slots);
        let wanted = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        if room(self.emptied) < wanted {
            // Pairs with the consumer's store: it has read the slots before they are filled again.
            let emptied = self.memory.counts.emptied.0.load(Ordering::Acquire);
            let count = self.filled.wrapping_sub(emptied);
            if count > slots {
                return Err(RingError::Count { count, slots });
            }
            self.emptied = emptied;
            if room(emptied) < wanted {
                return Ok(Err(Full));
            }
        }
        for (count, slot) in (0..).zip(entry) {
            let words = self.memory.slot(self.filled.wrapping_add(count));
            for (word, value) in words.iter().zip(slot) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.filled = self.filled.wrapping_add(wanted);
        // Pairs with the consumer's load: it sees the slots.
        let filled = &self.memory.counts.filled.0;
        filled.store(self.filled, Ordering::Release);
        Ok(Ok(()))
    }

    /// Whether the consumer sleeps and has to be woken. To be asked after entries were pushed, once for several. Each
    /// sleep is answered once.
    pub fn must_wake(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let asleep = &self.memory.counts.asleep.0;
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }
}

/// The end that empties slots.
#[derive(Debug)]
pub struct Consumer<'m> {
    memory: Memory<'m>,
    /// What the producer has filled, as far as it was looked at.
    filled: u32,
    emptied: u32,
}

impl<'m> Consumer<'m> {
    /// Of a ring in which so many slots were emptied before, by this end's own account; 0 of a new one.
    #[must_use]
    pub fn new(memory: Memory<'m>, emptied: u32) -> Self {
        Self {
            memory,
            filled: emptied,
            emptied,
        }
    }

    /// Slots emptied so far.
    #[must_use]
    pub fn emptied(&self) -> u32 {
        self.emptied
    }

    /// Copies the first slot of the next entry out; nothing where none is filled.
    ///
    /// # Errors
    /// Of the producer: [`RingError::Count`].
    pub fn first(&mut self) -> Result<Option<Slot>, RingError> {
        if self.filled == self.emptied {
            // Pairs with the producer's store.
            let filled = self.memory.counts.filled.0.load(Ordering::Acquire);
            let (count, slots) = (filled.wrapping_sub(self.emptied), self.memory.slots);
            if count > slots {
                return Err(RingError::Count { count, slots });
            }
            self.filled = filled;
        }
        Ok((self.filled != self.emptied).then(|| self.read(0)))
    }

    /// Copies the further slots of an entry out, of which [`Consumer::first`] gave the first, and that many in all.
    ///
    /// # Errors
    /// [`RingError::Entry`]: the producer has not filled them.
    pub fn rest(&self, entry: u32, out: &mut Vec<Slot>) -> Result<(), RingError> {
        let filled = self.filled.wrapping_sub(self.emptied);
        if entry == 0 || entry > filled {
            return Err(RingError::Entry { entry, filled });
        }
        out.clear();
        out.extend((1..entry).map(|count| self.read(count)));
        Ok(())
    }

    /// Gives the slots of an entry back, which was read.
    pub fn release(&mut self, entry: u32) {
        let filled = self.filled.wrapping_sub(self.emptied);
        self.emptied = self.emptied.wrapping_add(entry.min(filled));
        let emptied = &self.memory.counts.emptied.0;
        emptied.store(self.emptied, Ordering::Release);
    }

    /// Says that this end sleeps. Answers whether it may: if not, there is something to read.
    ///
    /// # Errors
    /// As [`Consumer::first`].
    pub fn sleep(&mut self) -> Result<bool, RingError> {
        let asleep = &self.memory.counts.asleep.0;
        asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_empty = self.first()?.is_none();
        if !is_empty {
            asleep.store(0, Ordering::Relaxed);
        }
        Ok(is_empty)
    }

    fn read(&self, count: u32) -> Slot {
        let words = self.memory.slot(self.emptied.wrapping_add(count));
        let mut slot = [0; SLOT_WORDS];
        for (value, word) in slot.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        slot
    }
}
