//! A ring: a queue of 64-byte slots in shared memory, with one producer and one consumer.
//!
//! The producer counts the slots that it has filled, the consumer those that it has emptied; both counts run on and
//! wrap around at 2³². Each end keeps its own count and never reads it back from shared memory. An entry takes one
//! slot or several.
//!
//! A consumer that waits for entries asks for a wake-up in a third word; a producer that finds it asked for wakes the
//! consumer by a descriptor that is not part of the ring. Between each side's store and its load stands a sequentially
//! consistent fence, so either the consumer sees the entry or the producer sees the request (Dekker's algorithm, as in
//! virtio's notification suppression: Virtual I/O Device version 1.2, section 2.7.10). A completion queue is armed
//! with the same word (InfiniBand Architecture Specification, volume 1, section 11.4.2.2).

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Words of a slot.
pub const SLOT_WORDS: usize = 8;
/// Bytes of a slot: a cache line.
pub const SLOT_BYTES: usize = 8 * SLOT_WORDS;
/// Slots of the largest ring.
pub const RING_SLOTS_MAX: u32 = 1 << 16;

/// What a slot holds.
pub type Slot = [u64; SLOT_WORDS];

/// The counts of a ring. Each is alone on its cache lines: two, because processors fetch them in pairs.
#[repr(C)]
#[derive(Debug)]
pub struct Counts {
    pub(super) produced: Line,
    pub(super) consumed: Line,
    wakeup: Line,
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
            produced: line(),
            consumed: line(),
            wakeup: line(),
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
pub struct RingMemory<'m> {
    counts: &'m Counts,
    /// [`SLOT_WORDS`] for each slot.
    words: &'m [AtomicU64],
    slots: u32,
}

/// An error in a ring's memory, in an entry, or in the other end's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The memory has another size.
    #[error(
        "a ring has a power of two of slots, at most {RING_SLOTS_MAX}, of {SLOT_WORDS} words each; this has {words} words: map as many as the engine says"
    )]
    Size {
        /// Words that were given.
        words: usize,
    },
    /// No room for the entry now.
    #[error("the ring is full: push again when the consumer has emptied slots")]
    Full,
    /// No room for the entry ever.
    #[error("an entry of {entry} slots does not fit in a ring of {slots}: ask for a larger queue")]
    TooLong {
        /// Slots of the entry.
        entry: usize,
        /// Slots of the ring.
        slots: u32,
    },
    /// The other end counts more slots than the ring has.
    #[error("the other end says that {count} slots of {slots} are in use: create the queue again")]
    Count {
        /// What it says.
        count: u32,
        /// What there is.
        slots: u32,
    },
    /// An entry has more slots than were filled.
    #[error("an entry of {entry} slots, and {produced} are filled: create the queue again")]
    Entry {
        /// Slots of the entry, as it says.
        entry: u32,
        /// Slots that are filled.
        produced: u32,
    },
}

impl RingError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Size { .. } => "RingSize",
            Self::Full => "RingFull",
            Self::TooLong { .. } => "RingEntryTooLong",
            Self::Count { .. } => "RingCount",
            Self::Entry { .. } => "RingEntry",
        }
    }
}

/// Which entries a consumer wants to be woken for. The later request of two never takes one back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// Only those that the peer marked as solicited, and errors.
    Solicited = 1,
    /// All.
    Any = 2,
}

impl<'m> RingMemory<'m> {
    /// # Errors
    /// [`RingError::Size`].
    pub fn new(counts: &'m Counts, words: &'m [AtomicU64]) -> Result<Self, RingError> {
        let slots = words.len() / SLOT_WORDS;
        let fits = words.len().is_multiple_of(SLOT_WORDS)
            && slots.is_power_of_two()
            && slots <= RING_SLOTS_MAX as usize;
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
    memory: RingMemory<'m>,
    produced: u32,
    /// What the consumer has consumed, as far as it was looked at.
    consumed: u32,
}

impl<'m> Producer<'m> {
    /// `produced` is the number of slots that this end has filled so far: 0 in a new ring.
    #[must_use]
    pub fn new(memory: RingMemory<'m>, produced: u32) -> Self {
        Self {
            memory,
            produced,
            consumed: produced.wrapping_sub(memory.slots),
        }
    }

    /// Slots produced so far.
    #[must_use]
    pub fn produced(&self) -> u32 {
        self.produced
    }

    /// Fills the next slots with an entry. The consumer sees all of it or nothing.
    ///
    /// # Errors
    /// [`RingError::Full`], [`RingError::TooLong`], and of the consumer [`RingError::Count`]; nothing was pushed.
    pub fn push(&mut self, entry: &[Slot]) -> Result<(), RingError> {
        let slots = self.memory.slots;
        let wanted = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        if wanted > slots {
            return Err(RingError::TooLong {
                entry: entry.len(),
                slots,
            });
        }
        if self.room() < wanted {
            // Pairs with the consumer's store: it has read the slots before they are filled again.
            let consumed = self.memory.counts.consumed.0.load(Ordering::Acquire);
            let count = self.produced.wrapping_sub(consumed);
            if count > slots {
                return Err(RingError::Count { count, slots });
            }
            self.consumed = consumed;
            if self.room() < wanted {
                return Err(RingError::Full);
            }
        }
        for (count, slot) in (0..).zip(entry) {
            let words = self.memory.slot(self.produced.wrapping_add(count));
            for (word, value) in words.iter().zip(slot) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.produced = self.produced.wrapping_add(wanted);
        // Pairs with the consumer's load: it sees the slots.
        let produced = &self.memory.counts.produced.0;
        produced.store(self.produced, Ordering::Release);
        Ok(())
    }

    /// Slots that are free, as far as the consumer was looked at.
    fn room(&self) -> u32 {
        let used = self.produced.wrapping_sub(self.consumed);
        self.memory.slots - used.min(self.memory.slots)
    }

    /// Whether the consumer has to be woken. Call it once after a batch of pushes, and say whether a solicited entry
    /// or an error is among them. Each request is answered once.
    pub fn take_wakeup(&mut self, is_solicited: bool) -> bool {
        let least = match is_solicited {
            true => Wakeup::Solicited,
            false => Wakeup::Any,
        };
        fence(Ordering::SeqCst);
        let wakeup = &self.memory.counts.wakeup.0;
        wakeup.load(Ordering::Relaxed) >= least as u32 && wakeup.swap(0, Ordering::Relaxed) != 0
    }
}

/// The end that empties slots.
#[derive(Debug)]
pub struct Consumer<'m> {
    memory: RingMemory<'m>,
    /// What the producer has produced, as far as it was looked at.
    produced: u32,
    consumed: u32,
}

impl<'m> Consumer<'m> {
    /// `consumed` is the number of slots that this end has emptied so far: 0 in a new ring.
    #[must_use]
    pub fn new(memory: RingMemory<'m>, consumed: u32) -> Self {
        Self {
            memory,
            produced: consumed,
            consumed,
        }
    }

    /// Slots consumed so far.
    #[must_use]
    pub fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Copies the first slot of the next entry out; nothing where none is produced.
    ///
    /// # Errors
    /// Of the producer: [`RingError::Count`].
    pub fn peek(&mut self) -> Result<Option<Slot>, RingError> {
        if self.produced == self.consumed {
            // Pairs with the producer's store.
            let produced = self.memory.counts.produced.0.load(Ordering::Acquire);
            let (count, slots) = (produced.wrapping_sub(self.consumed), self.memory.slots);
            if count > slots {
                return Err(RingError::Count { count, slots });
            }
            self.produced = produced;
        }
        Ok((self.produced != self.consumed).then(|| self.read(0)))
    }

    /// Copies the further slots of an entry out, of which [`Consumer::peek`] gave the first, and that many in all.
    ///
    /// # Errors
    /// [`RingError::Entry`]: the producer has not produced them.
    pub fn read_rest(&self, entry: u32, out: &mut Vec<Slot>) -> Result<(), RingError> {
        let produced = self.produced.wrapping_sub(self.consumed);
        if entry == 0 || entry > produced {
            return Err(RingError::Entry { entry, produced });
        }
        out.clear();
        out.extend((1..entry).map(|count| self.read(count)));
        Ok(())
    }

    /// Gives the slots of an entry back that was read.
    pub fn consume(&mut self, entry: u32) {
        let produced = self.produced.wrapping_sub(self.consumed);
        self.consumed = self.consumed.wrapping_add(entry.min(produced));
        let consumed = &self.memory.counts.consumed.0;
        consumed.store(self.consumed, Ordering::Release);
    }

    /// Asks for one wake-up, whatever is in the ring now: a consumer that then empties the ring may wait.
    pub fn arm(&mut self, wakeup: Wakeup) {
        let word = &self.memory.counts.wakeup.0;
        word.fetch_max(wakeup as u32, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Asks for a wake-up unless there is something to read. Answers whether this end may sleep.
    ///
    /// # Errors
    /// As [`Consumer::peek`].
    pub fn prepare_to_sleep(&mut self) -> Result<bool, RingError> {
        self.arm(Wakeup::Any);
        let is_empty = self.peek()?.is_none();
        if !is_empty {
            self.memory.counts.wakeup.0.store(0, Ordering::Relaxed);
        }
        Ok(is_empty)
    }

    fn read(&self, count: u32) -> Slot {
        let words = self.memory.slot(self.consumed.wrapping_add(count));
        let mut slot = [0; SLOT_WORDS];
        for (value, word) in slot.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        slot
    }
}
