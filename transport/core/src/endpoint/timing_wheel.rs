//! When connections want to be looked at: a hashed timing wheel (Varghese and Lauck, 1987, scheme 5), as Carousel
//! (Saeed et al., 2017) and UCCL (section 3.3) pace with. An entry costs the same however many others there are, but
//! for those of its own slot that are not due.

use crate::units::Time;
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds of a slot, as a power of two: 8 us, some chunks of 64 KiB at 100 Gbit/s.
const SLOT_SHIFT: u32 = 13;

/// Slots: 8 ms, beyond the retransmission timeouts and the round trips of a data centre.
const SLOTS: usize = 1 << 10;

/// Entries there is room for from the start: a few connections' never make it grow.
const CAPACITY: usize = 64;

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
            entries: Vec::with_capacity(CAPACITY),
            free: NONE,
            first: tick(now),
            later: BinaryHeap::with_capacity(CAPACITY),
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

    /// Takes an entry that is due. Of one slot the last that was pushed comes first.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<(Time, u32)> {
        self.turn(now);
        if let Some(slot) = self.first_used() {
            let (mut before, mut at) = (NONE, self.slots[slot]);
            while let Some(&entry) = self.entries.get(at as usize) {
                if entry.due <= now {
                    self.remove(slot, before, at);
                    self.turn(now);
                    return Some((entry.due, entry.connection));
                }
                (before, at) = (at, entry.next);
            }
        }
        let &Reverse(entry) = self.later.peek()?;
        if entry.0 > now {
            return None;
        }
        self.later.pop();
        Some(entry)
    }

    /// When the earliest entry is due that is `live`. Those before it are taken out.
    pub(super) fn next(&mut self, live: impl Fn(Time, u32) -> bool) -> Option<Time> {
        let mut near: Option<Time> = None;
        while let Some(slot) = self.first_used() {
            let (mut before, mut at) = (NONE, self.slots[slot]);
            while let Some(&entry) = self.entries.get(at as usize) {
                if live(entry.due, entry.connection) {
                    near = Some(near.map_or(entry.due, |near| near.min(entry.due)));
                    before = at;
                } else {
                    self.remove(slot, before, at);
                }
                at = entry.next;
            }
            if near.is_some() {
                break;
            }
        }
        while let Some(&Reverse((due, connection))) = self.later.peek()
            && !live(due, connection)
        {
            self.later.pop();
        }
        let later = self.later.peek().map(|Reverse((due, _))| *due);
        near.into_iter().chain(later).min()
    }

    /// Takes out the entry at `at`, which follows the one at `before` in the slot's list.
    fn remove(&mut self, slot: usize, before: u32, at: u32) {
        let next = std::mem::replace(&mut self.entries[at as usize].next, self.free);
        self.free = at;
        match self.entries.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => self.slots[slot] = next,
        }
        if self.slots[slot] == NONE {
            self.used[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// It is `now`: the wheel turns as far as nothing is left behind. Of equal entries one comes nearer: a connection
    /// notes a far moment again whenever a nearer one has passed.
    fn turn(&mut self, now: Time) {
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
            while self.later.peek() == Some(&Reverse((due, connection))) {
                self.later.pop();
            }
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
    fn what_is_due_is_taken_and_nothing_else_near_and_far_and_late() {
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
            let late = next(2) * next(1_000_000).min(ahead);
            let due = Time::from_nanos(now.as_nanos() + ahead - late);
            wheel.push(due, connection);
            expected.insert((due, connection));
            let earliest = expected.first().map(|(due, _)| *due);
            assert_eq!(wheel.next(|_, _| true), earliest);
            now = Time::from_nanos(now.as_nanos() + next(40_000));
            while let Some(entry) = wheel.pop_due(now) {
                assert!(
                    entry.0 <= now && expected.remove(&entry),
                    "{entry:?} at {now:?}"
                );
            }
            assert!(expected.first().is_none_or(|(due, _)| *due > now));
        }
    }

    #[test]
    fn a_wheel_that_slept_for_an_hour_goes_on() {
        let mut wheel = TimingWheel::new(Time::ZERO);
        let hour = Time::from_nanos(3_600_000_000_000);
        let times = [5, 1_000_000_000, hour.as_nanos()].map(Time::from_nanos);
        for (connection, due) in times.into_iter().enumerate() {
            wheel.push(due, connection as u32);
        }
        let due = std::iter::from_fn(|| wheel.pop_due(hour));
        assert_eq!(
            due.map(|(due, _)| due).collect::<BTreeSet<_>>(),
            times.into()
        );
        wheel.push(Time::from_nanos(7), 3);
        assert_eq!(wheel.pop_due(hour), Some((Time::from_nanos(7), 3)));
        assert_eq!((wheel.pop_due(hour), wheel.next(|_, _| true)), (None, None));
    }

    #[test]
    fn entries_that_are_not_live_any_more_are_passed_over_near_and_far() {
        let mut wheel = TimingWheel::new(Time::ZERO);
        for connection in 0..1_000 {
            wheel.push(Time::from_nanos(u64::from(connection) * 20_000), connection);
        }
        let next = wheel.next(|_, connection| connection >= 900);
        assert_eq!(next, Some(Time::from_nanos(900 * 20_000)));
        let next = wheel.next(|_, connection| connection == 2);
        assert_eq!(next, None);
    }

    #[test]
    fn of_many_equal_far_entries_one_comes_near() {
        let mut wheel = TimingWheel::new(Time::ZERO);
        let due = Time::from_nanos(1_000_000_000);
        for _ in 0..10_000 {
            wheel.push(due, 7);
        }
        assert_eq!(wheel.pop_due(Time::from_nanos(999_000_000)), None);
        assert_eq!(wheel.entries.len(), 1);
        assert_eq!(wheel.pop_due(due), Some((due, 7)));
        assert_eq!(wheel.pop_due(due), None);
    }
}
