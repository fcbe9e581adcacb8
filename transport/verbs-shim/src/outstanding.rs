//! Which work requests of a queue are outstanding: those whose completions the program has not polled.
//!
//! A completion names the end of its entry in the ring, by which every work request up to there is over. Who polls writes the
//! end down in a table of the context, by the queue pair's number. Who posts counts, and looks into the table only where the
//! queue seems full. So neither takes a lock of the other.

use std::sync::atomic::{AtomicU32, Ordering};

use weft_device::QUEUE_PAIR_BITS;
use weft_device::completion::Completion;
use weft_device::entry;
use weft_device::ring::Batch;
use weft_memory::Words;

const QUEUE_PAIRS: usize = 1 << QUEUE_PAIR_BITS;

/// Slots of a ring, by the end of the last entry whose completion was polled.
pub(crate) type PolledEnd = AtomicU32;

/// Of all queue pairs of a context, those of the send ring and of the receive ring. Pages of numbers that are not in use take
/// no memory.
pub(crate) struct PolledEnds(Box<[[PolledEnd; 2]; QUEUE_PAIRS]>);

impl PolledEnds {
    pub(crate) fn new() -> Self {
        let ends = Box::<[[PolledEnd; 2]; QUEUE_PAIRS]>::new_zeroed();
        // SAFETY: a number may have any bytes, 0 included.
        Self(unsafe { ends.assume_init() })
    }

    /// A completion is polled.
    #[inline]
    pub(crate) fn polled(&self, completion: &Completion) {
        let of = &self.0[completion.queue_pair as usize % QUEUE_PAIRS];
        // Of a shared receive queue it is the end in another ring, and nobody looks there.
        let of = &of[usize::from(completion.opcode.is_receive())];
        of.store(completion.produced, Ordering::Relaxed);
    }

    pub(crate) fn of_sends(&self, queue_pair: u32) -> &PolledEnd {
        &self.0[queue_pair as usize % QUEUE_PAIRS][0]
    }

    pub(crate) fn of_receives(&self, queue_pair: u32) -> &PolledEnd {
        &self.0[queue_pair as usize % QUEUE_PAIRS][1]
    }

    /// A queue pair is made, whose number another one may have had.
    pub(crate) fn begin(&self, queue_pair: u32) {
        for end in &self.0[queue_pair as usize % QUEUE_PAIRS] {
            end.store(0, Ordering::Relaxed);
        }
    }
}

/// Of one send or receive queue.
pub(crate) struct Outstanding {
    max: u32,
    /// How many more may be posted, as far as it was looked.
    room: u32,
    /// Slots of the ring, by the end of the last entry that is over, as far as it was looked.
    over: u32,
    /// Each entry takes one slot.
    is_by_slots: bool,
}

impl Outstanding {
    /// A new queue for so many work requests, whose ring has so many slots: as many as the longest of them take, so none that
    /// is outstanding is overwritten.
    pub(crate) fn new(max: u32, slots: u32) -> Self {
        Self {
            max,
            room: max,
            over: 0,
            is_by_slots: slots == max.next_power_of_two(),
        }
    }

    /// Whether one more may be posted. `polled` gives that of this queue.
    #[inline]
    pub(crate) fn has_room<'p>(
        &mut self,
        polled: impl FnOnce() -> &'p PolledEnd,
        batch: &Batch<'_, Words>,
    ) -> bool {
        self.room > 0 || self.has_room_now(polled().load(Ordering::Relaxed), batch)
    }

    #[inline(never)]
    fn has_room_now(&mut self, polled: u32, batch: &Batch<'_, Words>) -> bool {
        if self.is_by_slots {
            let slots = self.slots_before(polled);
            self.room += slots;
            self.over = self.over.wrapping_add(slots);
        }
        while self.slots_before(polled) > 0 {
            let slots = entry::slots_at(batch, self.over).max(1);
            self.room += 1;
            self.over = self.over.wrapping_add(slots);
        }
        self.room > 0
    }

    /// Slots of entries that are over and were not counted yet. None where a completion is of before a reset.
    fn slots_before(&self, polled: u32) -> u32 {
        let slots = polled.wrapping_sub(self.over).cast_signed();
        slots.max(0).cast_unsigned()
    }

    /// One is posted, for which there was room.
    #[inline]
    pub(crate) fn add(&mut self) {
        self.room -= 1;
    }

    /// The last ones are not posted after all.
    pub(crate) fn take_back(&mut self, count: u32) {
        self.room += count;
    }

    /// The queue pair is reset: all are over, up to this count of slots.
    pub(crate) fn clear(&mut self, produced: u32) {
        self.room = self.max;
        self.over = produced;
    }
}
