//! The numbers of the packets that a connection sends, and whether a number that comes back was ever sent.
//!
//! They begin at a drawn number, so that only who receives packets can name one (RFC 9000, section 8.2: a path is
//! valid once what was sent on it comes back), and leave out one now and then, so that a peer that acknowledges
//! what it has not received is found out (RFC 9000, section 21.4).

use crate::units::Rng;
use rand_core::Rng as _;
use serde::{Deserialize, Serialize};

/// Between two numbers that are left out lie as many numbers, and up to as many more.
const SKIP_AFTER: u64 = 256;
/// How many of those that were left out are remembered.
const SKIPPED: usize = 4;
/// A number comes back by its lower half: how far back one is told from one that is yet to be sent, and from one of
/// the other kind of packets. At 100 Gbit/s some seconds.
const RECENT: u64 = 1 << 26;

/// What a number that came back says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NumberState {
    Sent,
    /// Not sent yet, or so long ago that nobody answers any more.
    Unsent,
    /// Left out: whoever names it has not received what it acknowledges.
    Skipped,
}

/// The numbers of one kind of packets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PacketNumbers {
    first: u64,
    next: u64,
    skip_at: u64,
    /// The newest one last.
    skipped: [u64; SKIPPED],
}

impl PacketNumbers {
    pub(super) fn new(first: u64) -> PacketNumbers {
        PacketNumbers {
            first,
            next: first,
            skip_at: first + SKIP_AFTER,
            skipped: [u64::MAX; SKIPPED],
        }
    }

    /// The next number.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// So many packets were sent, numbered from [`PacketNumbers::next`] on.
    #[inline]
    pub(super) fn advance(&mut self, count: u64, rng: &mut Rng) {
        self.next += count;
        if self.next >= self.skip_at {
            self.skipped.rotate_left(1);
            self.skipped[SKIPPED - 1] = self.next;
            self.next += 1;
            self.skip_at = self.next + SKIP_AFTER + rng.next_u64() % SKIP_AFTER;
        }
    }

    /// What the lower half of a number says.
    #[inline]
    pub(super) fn state_of(&self, lower: u32) -> NumberState {
        let ago = u64::from((self.next as u32).wrapping_sub(lower));
        if ago == 0 || ago > (self.next - self.first).min(RECENT) {
            return NumberState::Unsent;
        }
        match self.skipped.contains(&(self.next - ago)) {
            true => NumberState::Skipped,
            false => NumberState::Sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sent_lately_counts_as_sent() {
        let (first, mut rng) = ((7 << 32) - 2, Rng::new(1));
        let mut numbers = PacketNumbers::new(first);
        assert_eq!(numbers.state_of(first as u32), NumberState::Unsent);
        numbers.advance(3, &mut rng);
        let states = (first - 1..first + 4).map(|number| numbers.state_of(number as u32));
        let sent = [NumberState::Sent; 3];
        let expected = [&[NumberState::Unsent], &sent[..], &[NumberState::Unsent]].concat();
        assert_eq!(states.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn numbers_that_are_left_out_are_known_and_never_used() {
        let mut rng = Rng::new(1);
        let mut numbers = PacketNumbers::new(1 << 33);
        let (mut used, mut skipped) = (Vec::new(), 0);
        for _ in 0..500 {
            used.extend(numbers.next()..numbers.next() + 5);
            numbers.advance(5, &mut rng);
            let left_out = *used.last().expect("some were used") + 1;
            if numbers.next() > left_out {
                assert_eq!(numbers.state_of(left_out as u32), NumberState::Skipped);
                skipped += 1;
            }
        }
        assert!((4..=10).contains(&skipped), "{skipped} of 2,500");
        let last = used.iter().rev().take(1_000);
        assert!(
            last.into_iter()
                .all(|number| numbers.state_of(*number as u32) == NumberState::Sent)
        );
    }
}
