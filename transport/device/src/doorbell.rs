//! The doorbell page of a device: which queues have new entries, whether the engine sleeps, and whether the device
//! works.
//!
//! The program sets a bit for a queue after it has pushed entries. So the engine finds what was posted without looking
//! at every ring, and one word of the device says that it sleeps (the virtual doorbell of STELLAR, section 4).
//!
//! | words | | written by |
//! |---|---|---|
//! | 0 | [`DeviceState`] | the engine |
//! | 16 | whether the engine sleeps: 0 or 1 | both |
//! | 32 | a bit for each of the 64 words below: it is not 0 | both |
//! | 64 … 127 | a bit for each of 4,096 queues: it has new entries | both |
//!
//! The page is not part of any memory region, so no transfer can write to it. PVDMA's hazard (STELLAR, Fig. 5) needs
//! doorbells and memory in one address space.

use std::ops::Deref;

use super::sync::{AtomicU64, Ordering, fence};

/// Words of the page: 4 KiB.
pub const DOORBELL_WORDS: usize = 512;
/// Doorbells of a page. Queues whose numbers differ by a multiple of it share one.
pub const DOORBELLS: u32 = 64 * 64;

const STATE: usize = 0;
const ASLEEP: usize = 16;
const GROUPS: usize = 32;
const BITS: usize = 64;

/// Whether a device works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceState {
    /// It works.
    Running = 0,
    /// The engine has put it in error: everything posted is flushed.
    Failed = 1,
    /// The engine has ended without saving the device: nothing more will be completed.
    EngineGone = 2,
}

/// Why memory is no doorbell page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a doorbell page has {DOORBELL_WORDS} words, this has {words}: map the page as the engine gave it"
)]
pub struct DoorbellError {
    /// Words that were given.
    pub words: usize,
}

impl DoorbellError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        "DoorbellPageSize"
    }
}

/// A doorbell page, mapped by this process and kept mapped by `M`.
#[derive(Debug, Clone, Copy)]
pub struct Doorbells<M> {
    words: M,
}

impl<M: Deref<Target = [AtomicU64]>> Doorbells<M> {
    /// A new page's words are all 0.
    ///
    /// # Errors
    /// The memory has another size.
    pub fn new(words: M) -> Result<Self, DoorbellError> {
        match words.len() {
            DOORBELL_WORDS => Ok(Self { words }),
            words => Err(DoorbellError { words }),
        }
    }

    /// For the program: says that a queue, by its number, has new entries, which were committed before. Answers whether
    /// the engine has to be woken.
    pub fn ring(&self, queue: u32) -> bool {
        let doorbell = queue % DOORBELLS;
        let (group, bit) = (doorbell / 64, doorbell % 64);
        // The queue first: an engine that sees the group finds it. Both also when they are set already, for the engine
        // may just have looked at the ring.
        self.words[BITS + group as usize].fetch_or(1 << bit, Ordering::Release);
        self.words[GROUPS].fetch_or(1 << group, Ordering::Release);
        fence(Ordering::SeqCst);
        let asleep = &self.words[ASLEEP];
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// For the engine: the doorbells that were rung since it was last asked. The rings of their queues are read to the end
    /// after this.
    pub fn take(&self) -> impl Iterator<Item = u32> + '_ {
        let groups = self.words[GROUPS].swap(0, Ordering::Acquire);
        set_bits(groups).flat_map(|group| {
            let bits = self.words[BITS + group as usize].swap(0, Ordering::Acquire);
            set_bits(bits).map(move |bit| group * 64 + bit)
        })
    }

    /// For the engine: asks for a wake-up unless a doorbell was rung. Answers whether it may sleep.
    pub fn prepare_to_sleep(&self) -> bool {
        self.words[ASLEEP].store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_quiet = self.words[GROUPS].load(Ordering::Relaxed) == 0;
        if !is_quiet {
            self.words[ASLEEP].store(0, Ordering::Relaxed);
        }
        is_quiet
    }

    /// For the engine: it is awake, and no doorbell needs to wake it.
    pub fn wake(&self) {
        self.words[ASLEEP].store(0, Ordering::Relaxed);
    }

    /// For the program: whether the device works. It looks before it posts, and where it finds no completion.
    #[must_use]
    pub fn state(&self) -> DeviceState {
        match self.words[STATE].load(Ordering::Acquire) {
            0 => DeviceState::Running,
            1 => DeviceState::Failed,
            _ => DeviceState::EngineGone,
        }
    }

    /// For the engine, and for who finds that it has ended.
    pub fn set_state(&self, state: DeviceState) {
        self.words[STATE].store(state as u64, Ordering::Release);
    }
}

fn set_bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}
