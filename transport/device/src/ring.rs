//! A ring: a queue of 64-byte slots in shared memory, with one producer and one consumer.
//!
//! The producer counts the slots that it has filled, the consumer those that it has emptied; both counts run on and
//! wrap around at 2³². Each end keeps its own count and never reads it back from shared memory. An entry takes one
//! slot or several.
//!
//! | words | |
//! |---|---|
//! | 0 | slots produced |
//! | 16 | slots consumed |
//! | 32 | which entries the consumer wants to be woken for: 0, or a [`Wakeup`] |
//! | 48 … | the slots, a power of two of them |
//!
//! Each count is alone on two cache lines, because processors fetch them in pairs.
//!
//! A consumer that waits for entries arms the ring; a producer that finds it armed wakes the consumer by a descriptor
//! that is not part of the ring. Between each side's store and its load stands a sequentially consistent fence, so
//! either the consumer sees the entry or the producer sees the request (Dekker's algorithm, as in virtio's
//! notification suppression: Virtual I/O Device version 1.2, section 2.7.10). Completion queues are armed (InfiniBand
//! Architecture Specification, volume 1, section 11.4.2.2); the engine, which consumes the other rings, sleeps by the
//! device's [doorbells](crate::doorbell).

use std::ops::Deref;

use super::sync::{AtomicU64, Ordering, fence};

/// Words of a slot.
pub const SLOT_WORDS: usize = 8;
/// Bytes of a slot: a cache line.
pub const SLOT_BYTES: usize = 8 * SLOT_WORDS;
/// Slots of the largest ring: the completions of 1,000 queue pairs with 1,000 entries each.
pub const RING_SLOTS_MAX: u32 = 1 << 20;
/// Words of a ring before its slots.
pub const RING_HEADER_WORDS: usize = 48;

const PRODUCED: usize = 0;
const CONSUMED: usize = 16;
const WAKEUP: usize = 32;

/// What a slot holds.
pub type Slot = [u64; SLOT_WORDS];

/// An error in a ring's memory, in an entry, or in the other end's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The memory has another size.
    #[error(
        "a ring has {RING_HEADER_WORDS} words and a power of two of slots, at most {RING_SLOTS_MAX}, of {SLOT_WORDS} words each; this has {words} words: map as many as the engine says"
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
        entry: usize,
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

/// The memory of a ring, mapped by this process and kept mapped by `M`.
#[derive(Debug, Clone, Copy)]
pub struct Ring<M> {
    words: M,
    slots: u32,
}

impl<M: Deref<Target = [AtomicU64]>> Ring<M> {
    /// A new ring's words are all 0.
    ///
    /// # Errors
    /// [`RingError::Size`].
    pub fn new(words: M) -> Result<Self, RingError> {
        let given = words.len();
        let slot_words = given.saturating_sub(RING_HEADER_WORDS);
        let slots = slot_words / SLOT_WORDS;
        let fits = slot_words.is_multiple_of(SLOT_WORDS)
            && slots.is_power_of_two()
            && slots <= RING_SLOTS_MAX as usize;
        match u32::try_from(slots) {
            Ok(slots) if fits => Ok(Self { words, slots }),
            _ => Err(RingError::Size { words: given }),
        }
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    fn slot(&self, count: u32) -> &[AtomicU64] {
        let at = RING_HEADER_WORDS + (count & (self.slots - 1)) as usize * SLOT_WORDS;
        &self.words[at..at + SLOT_WORDS]
    }

    /// The other end's count. What does not fit in 32 bits is no count, and then refused as one out of range.
    fn load_count(&self, word: usize) -> u32 {
        self.words[word].load(Ordering::Acquire) as u32
    }

    fn store_count(&self, word: usize, count: u32) {
        self.words[word].store(count.into(), Ordering::Release);
    }
}

/// The end that fills slots.
#[derive(Debug)]
pub struct Producer<M> {
    ring: Ring<M>,
    produced: u32,
    /// What the consumer has consumed, as far as it was looked at.
    consumed: u32,
}

impl<M: Deref<Target = [AtomicU64]>> Producer<M> {
    /// `produced` is the number of slots that this end has filled so far: 0 in a new ring.
    #[must_use]
    pub fn new(ring: Ring<M>, produced: u32) -> Self {
        Self {
            produced,
            consumed: produced.wrapping_sub(ring.slots),
            ring,
        }
    }

    /// Slots produced so far.
    #[must_use]
    pub fn produced(&self) -> u32 {
        self.produced
    }

    /// Slots that the consumer has not emptied.
    ///
    /// # Errors
    /// [`RingError::Count`].
    pub fn pending(&self) -> Result<u32, RingError> {
        let slots = self.ring.slots;
        let count = self.produced.wrapping_sub(self.ring.load_count(CONSUMED));
        match count <= slots {
            true => Ok(count),
            false => Err(RingError::Count { count, slots }),
        }
    }

    /// Goes on in a new ring. The slots that the consumer has not emptied are the first ones there, and it is woken as it
    /// wanted to be here. The consumer must stand still meanwhile, and begin there with nothing consumed.
    ///
    /// # Errors
    /// [`RingError::Full`]: they do not fit; [`RingError::Count`]. It goes on in this ring.
    pub fn move_to(&mut self, ring: Ring<M>) -> Result<(), RingError> {
        let pending = self.pending()?;
        if pending > ring.slots {
            return Err(RingError::Full);
        }
        let first = self.produced.wrapping_sub(pending);
        for count in 0..pending {
            let from = self.ring.slot(first.wrapping_add(count));
            for (to, word) in ring.slot(count).iter().zip(from) {
                to.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        let wakeup = self.ring.words[WAKEUP].load(Ordering::Relaxed);
        ring.words[WAKEUP].store(wakeup, Ordering::Relaxed);
        ring.store_count(PRODUCED, pending);
        *self = Self {
            ring,
            produced: pending,
            consumed: 0,
        };
        Ok(())
    }

    /// Begins to fill slots, of which the consumer sees nothing before [`Batch::commit`].
    pub fn begin(&mut self) -> Batch<'_, M> {
        Batch {
            produced: self.produced,
            producer: self,
        }
    }

    /// Fills the next slots with an entry.
    ///
    /// # Errors
    /// As [`Batch::append`]; nothing was pushed.
    pub fn push(&mut self, entry: &[Slot]) -> Result<(), RingError> {
        let mut batch = self.begin();
        batch.append(entry)?;
        batch.commit();
        Ok(())
    }

    /// Whether the consumer has to be woken. Call it once after a batch of pushes, and say whether a solicited entry
    /// or an error is among them. Each request is answered once.
    pub fn take_wakeup(&mut self, is_solicited: bool) -> bool {
        let least = match is_solicited {
            true => Wakeup::Solicited,
            false => Wakeup::Any,
        };
        fence(Ordering::SeqCst);
        let wakeup = &self.ring.words[WAKEUP];
        wakeup.load(Ordering::Relaxed) >= least as u64 && wakeup.swap(0, Ordering::Relaxed) != 0
    }
}

/// Entries that are being filled. Dropped, it leaves the ring as it was (`ibv_wr_abort`).
#[derive(Debug)]
pub struct Batch<'p, M> {
    producer: &'p mut Producer<M>,
    produced: u32,
}

impl<M: Deref<Target = [AtomicU64]>> Batch<'_, M> {
    /// Slots produced by the end of what was appended.
    #[must_use]
    pub fn produced(&self) -> u32 {
        self.produced
    }

    /// Fills the next slots with an entry.
    ///
    /// # Errors
    /// [`RingError::Full`], [`RingError::TooLong`], and of the consumer [`RingError::Count`]; the batch is as it was.
    pub fn append(&mut self, entry: &[Slot]) -> Result<(), RingError> {
        let slots = self.reserve(entry.len())?;
        for (at, word) in entry.as_flattened().iter().enumerate() {
            slots.set(at, *word);
        }
        Ok(())
    }

    /// The words of the next slot, for an entry of one. The caller fills them.
    ///
    /// # Errors
    /// As [`Batch::append`].
    #[inline(always)]
    pub(crate) fn reserve_slot(&mut self) -> Result<&[AtomicU64; SLOT_WORDS], RingError> {
        if self.room() == 0 {
            self.look_for_room(1)?;
        }
        let produced = self.produced;
        self.produced = produced.wrapping_add(1);
        let slot = self.producer.ring.slot(produced).first_chunk();
        Ok(slot.expect("it has as many words as any slot"))
    }

    /// The next slots, for an entry of so many. The caller fills them.
    ///
    /// # Errors
    /// As [`Batch::append`].
    #[inline]
    pub(crate) fn reserve(&mut self, entry: usize) -> Result<NewSlots<'_>, RingError> {
        let slots = self.producer.ring.slots;
        let wanted = u32::try_from(entry).unwrap_or(u32::MAX);
        if wanted > slots {
            return Err(RingError::TooLong { entry, slots });
        }
        if self.room() < wanted {
            self.look_for_room(wanted)?;
        }
        let first = self.produced as usize * SLOT_WORDS;
        self.produced = self.produced.wrapping_add(wanted);
        Ok(NewSlots {
            words: &self.producer.ring.words[RING_HEADER_WORDS..],
            first,
        })
    }

    /// Looks at what the consumer has emptied meanwhile.
    #[cold]
    #[inline(never)]
    fn look_for_room(&mut self, wanted: u32) -> Result<(), RingError> {
        let slots = self.producer.ring.slots;
        // Pairs with the consumer's store: it has read the slots before they are filled again.
        let consumed = self.producer.ring.load_count(CONSUMED);
        let count = self.producer.produced.wrapping_sub(consumed);
        if count > slots {
            return Err(RingError::Count { count, slots });
        }
        self.producer.consumed = consumed;
        match self.room() < wanted {
            true => Err(RingError::Full),
            false => Ok(()),
        }
    }

    /// Lets the consumer see all entries of the batch.
    #[inline]
    pub fn commit(self) {
        self.producer.produced = self.produced;
        // Pairs with the consumer's load: it sees the slots.
        self.producer.ring.store_count(PRODUCED, self.produced);
    }

    /// The first word of a slot, by its count, as it was filled last.
    pub(crate) fn first_word(&self, count: u32) -> u64 {
        self.producer.ring.slot(count)[0].load(Ordering::Relaxed)
    }

    /// Slots that are free, as far as the consumer was looked at.
    fn room(&self) -> u32 {
        let slots = self.producer.ring.slots;
        let used = self.produced.wrapping_sub(self.producer.consumed);
        slots - used.min(slots)
    }
}

/// Slots of a ring that the next entry takes.
pub(crate) struct NewSlots<'r> {
    /// Those of all slots: a power of two.
    words: &'r [AtomicU64],
    first: usize,
}

impl NewSlots<'_> {
    /// Puts a word of the entry to its place.
    #[inline]
    pub(crate) fn set(&self, at: usize, word: u64) {
        let place = self.first.wrapping_add(at) & (self.words.len() - 1);
        self.words[place].store(word, Ordering::Relaxed);
    }
}

/// The end that empties slots.
#[derive(Debug)]
pub struct Consumer<M> {
    ring: Ring<M>,
    /// What the producer has produced, as far as it was looked at.
    produced: u32,
    consumed: u32,
}

impl<M: Deref<Target = [AtomicU64]>> Consumer<M> {
    /// `consumed` is the number of slots that this end has emptied so far: 0 in a new ring.
    #[must_use]
    pub fn new(ring: Ring<M>, consumed: u32) -> Self {
        Self {
            ring,
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
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Slot>, RingError> {
        self.peek_words()
    }

    /// The same, of the first words of the slot only.
    #[inline]
    pub(crate) fn peek_words<const WORDS: usize>(
        &mut self,
    ) -> Result<Option<[u64; WORDS]>, RingError> {
        if self.produced == self.consumed {
            // Pairs with the producer's store.
            let produced = self.ring.load_count(PRODUCED);
            let (count, slots) = (produced.wrapping_sub(self.consumed), self.ring.slots);
            if count > slots {
                return Err(RingError::Count { count, slots });
            }
            self.produced = produced;
        }
        Ok((self.produced != self.consumed).then(|| self.read(0)))
    }

    /// Copies the further slots of an entry out, of which [`Consumer::peek`] gave the first: as many as `rest` has.
    ///
    /// # Errors
    /// [`RingError::Entry`]: the producer has not produced them.
    pub fn read_rest(&self, rest: &mut [Slot]) -> Result<(), RingError> {
        let produced = self.produced.wrapping_sub(self.consumed);
        if rest.len() >= produced as usize {
            let entry = rest.len() + 1;
            return Err(RingError::Entry { entry, produced });
        }
        for (count, slot) in (1..).zip(rest) {
            *slot = self.read(count);
        }
        Ok(())
    }

    /// Gives the slots of an entry back that was read.
    #[inline]
    pub fn consume(&mut self, entry: u32) {
        let produced = self.produced.wrapping_sub(self.consumed);
        self.consumed = self.consumed.wrapping_add(entry.min(produced));
        self.ring.store_count(CONSUMED, self.consumed);
    }

    /// Asks for one wake-up, whatever is in the ring now: a consumer that then empties the ring may wait.
    pub fn arm(&mut self, wakeup: Wakeup) {
        let word = &self.ring.words[WAKEUP];
        word.fetch_max(wakeup as u64, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn read<const WORDS: usize>(&self, count: u32) -> [u64; WORDS] {
        let slot = self.ring.slot(self.consumed.wrapping_add(count));
        let mut words = [0; WORDS];
        for (value, word) in words.iter_mut().zip(slot) {
            *value = word.load(Ordering::Relaxed);
        }
        words
    }
}
