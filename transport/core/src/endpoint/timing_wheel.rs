//! When connections want to be looked at: a hashed timing wheel (Varghese and Lauck, 1987, scheme 5), as Carousel
//! (Saeed et al., 2017) and UCCL (section 3.3) pace with. An entry costs the same however many there are.

use crate::units::Time;
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds of a slot, as a power of two: 8 us, some chunks of 64 KiB at 100 Gbit/s.
const SLOT_SHIFT: u32 = 13;

/// Slots: 8 ms, beyond the retransmission timeouts and the round trips of a data centre.
const SLOTS: usize = 1 << 10;

/// No entry.
const NONE: u32 = u32::MAX;

/// An entry of a slot, or a free place for one.
#[derive(Clone, Copy, Debug)]
struct Entry {
    due: Time,
    connection: u32,
    /// The next one of the slot, or the next free place.
    next: u32,
}

/// Moments, each with the connection's slot that waits for it, earliest first.
#[derive(Debug)]
pub(super) struct TimingWheel {
    /// The first entry of each slot.
    slots: Box<[u32]>,
    /// One bit a slot: it has an entry.
    used: [u64; SLOTS / 64],
    /// A slab.
    entries: Vec<Entry>,
    /// The first free place of the slab.
    free: u32,
    /// The tick of the first slot; what is due before lies there as well.
    first: u64,
    /// What is due after the last slot.
    later: BinaryHeap<Reverse<(Time, u32)>>,
}

fn tick(due: Time) -> u64 {
    due.as_nanos() >> SLOT_SHIFT
}

impl TimingWheel {
    pub(super) fn new(now: Time) -> TimingWheel {
        TimingWheel {
            slots: vec![NONE; SLOTS].into(),
            used: [0; SLOTS / 64],
            entries: Vec::new(),
            free: NONE,
            first: tick(now),
            later: BinaryHeap::new(),
        }
    }

    pub(super) fn push(&mut self, due: Time, connection: u32) {
        let tick = tick(due).max(self.first);
        if tick - self.first >= SLOTS as u64 {
            self.later.push(Reverse((due, connection)));
            return;
        }
        let slot = tick as usize % SLOTS;
        let entry = Entry {
            due,
            connection,
            next: self.slots[slot],
        };
        let at = match self.entries.get_mut(self.free as usize) {
            Some(place) => {
                let at = self.free;
                self.free = std::mem::replace(place, entry).next;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.slots[slot] = at;
        self.used[slot / 64] |= 1 << (slot % 64);
    }

    /// The earliest entry of the first slot that has one: the slot, the place of the entry before it, and its own.
    fn nearest(&self) -> Option<(usize, u32, u32)> {
        let slot = self.first_used()?;
        let (mut before, mut at) = (NONE, self.slots[slot]);
        let mut nearest = (slot, before, at);
        let mut least = (Time::from_nanos(u64::MAX), NONE);
        while let Some(entry) = self.entries.get(at as usize) {
            if (entry.due, entry.connection) < least {
                (nearest, least) = ((slot, before, at), (entry.due, entry.connection));
            }
            (before, at) = (at, entry.next);
        }
        Some(nearest)
    }

    /// The earliest entry.
    pub(super) fn peek(&self) -> Option<(Time, u32)> {
        let near = self.nearest().map(|(.., at)| {
            let entry = &self.entries[at as usize];
            (entry.due, entry.connection)
        });
        let later = self.later.peek().map(|&Reverse(entry)| entry);
        near.into_iter().chain(later).min()
    }

    /// Takes the earliest entry.
    pub(super) fn pop(&mut self) -> Option<(Time, u32)> {
        let earliest = self.peek()?;
        if self.later.peek() == Some(&Reverse(earliest)) {
            self.later.pop();
            return Some(earliest);
        }
        let (slot, before, at) = self.nearest()?;
        let next = std::mem::replace(&mut self.entries[at as usize].next, self.free);
        self.free = at;
        match self.entries.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => self.slots[slot] = next,
        }
        if self.slots[slot] == NONE {
            self.used[slot / 64] &= !(1 << (slot % 64));
        }
        Some(earliest)
    }

    /// It is `now`: the wheel turns as far as nothing is left behind.
    pub(super) fn turn(&mut self, now: Time) {
        let to = tick(now);
        if to <= self.first {
            return;
        }
        let used = self.first_used().map_or(to, |slot| {
            let ahead = slot.wrapping_sub(self.first as usize) % SLOTS;
            self.first + ahead as u64
        });
        self.first = to.min(used);
        while let Some(&Reverse((due, connection))) = self.later.peek()
            && tick(due).saturating_sub(self.first) < SLOTS as u64
        {
            self.later.pop();
            self.push(due, connection);
        }
    }

    /// The first slot that has an entry.
    fn first_used(&self) -> Option<usize> {
        let start = self.first as usize % SLOTS;
        let words = SLOTS / 64;
        // The word of the first slot is looked at twice: its high bits first, its low bits last.
        (0..=words).find_map(|n| {
            let at = (start / 64 + n) % words;
            let mask = match n {
                0 => u64::MAX << (start % 64),
                _ if n == words => !(u64::MAX << (start % 64)),
                _ => u64::MAX,
            };
            let word = self.used[at] & mask;
            (word != 0).then(|| 64 * at + word.trailing_zeros() as usize)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn entries_come_in_the_order_of_their_times_near_and_far_and_late() {
        let mut now = Time::from_nanos(123_456_789);
        let mut wheel = TimingWheel::new(now);
        let mut expected = BTreeSet::new();
        let mut draw = 1u64;
        let mut next = |below: u64| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (draw >> 33) % below
        };
        for connection in 0..20_000u32 {
            // From 1 ms ago to 50 ms ahead, most of them near.
            let ahead = match next(4) {
                0 => next(50_000_000),
                1 => next(2_000_000),
                _ => next(30_000),
            };
            let due =
                Time::from_nanos(now.as_nanos() + ahead - next(2) * next(1_000_000).min(ahead));
            wheel.push(due, connection);
            expected.insert((due, connection));
            assert_eq!(wheel.peek(), expected.first().copied());
            if next(3) > 0 {
                assert_eq!(wheel.pop(), expected.pop_first());
            }
            now = Time::from_nanos(now.as_nanos() + next(40_000));
            wheel.turn(now);
        }
        while let Some(entry) = expected.pop_first() {
            assert_eq!(wheel.pop(), Some(entry));
        }
        assert_eq!((wheel.peek(), wheel.pop()), (None, None));
    }

    #[test]
    fn a_wheel_that_slept_for_an_hour_goes_on() {
        let mut wheel = TimingWheel::new(Time::ZERO);
        let hour = Time::from_nanos(3_600_000_000_000);
        wheel.push(Time::from_nanos(5), 1);
        wheel.push(hour, 2);
        wheel.push(Time::from_nanos(1_000_000_000), 4);
        wheel.turn(hour);
        assert_eq!(wheel.pop(), Some((Time::from_nanos(5), 1)));
        wheel.turn(hour);
        assert_eq!(wheel.pop(), Some((Time::from_nanos(1_000_000_000), 4)));
        assert_eq!(wheel.pop(), Some((hour, 2)));
        wheel.push(Time::from_nanos(7), 3);
        assert_eq!(wheel.peek(), Some((Time::from_nanos(7), 3)));
    }
}
