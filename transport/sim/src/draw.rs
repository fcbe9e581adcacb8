//! Drawing from a seed: the few shapes of random choice that scenarios and faults need.

use rand_core::{Rng as _, SeedableRng};
use weft_core::units::Rng;

/// A seeded source of choices. Every run owns a few, one per concern, so that a change in how one
/// concern draws does not move all the others.
#[derive(Clone, Debug)]
pub struct Draw(Rng);

impl Draw {
    /// The stream of choices number `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Draw {
        // Seeds of neighbouring runs are neighbours: mix before the generator sees them.
        Draw(Rng::seed_from_u64(
            mix(seed) ^ mix(stream.wrapping_add(0x57_45_46_54)),
        ))
    }

    /// A generator of the type that the core takes.
    pub fn rng(&mut self) -> Rng {
        Rng::seed_from_u64(self.0.next_u64())
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `low..=high`, each as likely.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        let span = high - low;
        if span == u64::MAX {
            return self.0.next_u64();
        }
        low + ((u128::from(self.0.next_u64()) * (u128::from(span) + 1)) >> 64) as u64
    }

    /// A number in `low..=high`, each magnitude as likely: small shapes come as often as large ones.
    pub fn magnitude(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(0 < low && low <= high);
        let (first, last) = (low.ilog2(), high.ilog2());
        let exponent = self.within(u64::from(first), u64::from(last)) as u32;
        let from = (1u64 << exponent).max(low);
        let to = ((1u64 << exponent) - 1 + (1u64 << exponent)).min(high);
        self.within(from, to)
    }

    /// True in `millionths` of a million cases.
    pub fn chance(&mut self, millionths: u32) -> bool {
        millionths > 0 && self.within(0, 999_999) < u64::from(millionths)
    }

    /// True in half of the cases.
    pub fn coin(&mut self) -> bool {
        self.0.next_u64() & 1 == 1
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0, choices.len() as u64 - 1) as usize]
    }

    /// A rate in millionths: zero in half of the cases, else any magnitude up to `most`.
    pub fn rate(&mut self, most: u32) -> u32 {
        if self.coin() {
            0
        } else {
            self.magnitude(10, u64::from(most)) as u32
        }
    }

    /// 32 random bytes.
    pub fn secret(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}

/// SplitMix64's finaliser.
const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_stays_within_its_bounds() {
        let mut draw = Draw::new(1, 0);
        for _ in 0..10_000 {
            assert!((3..=5).contains(&draw.within(3, 5)));
            assert!((3..=1000).contains(&draw.magnitude(3, 1000)));
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_and_streams_differ() {
        let bits = |seed, stream| Draw::new(seed, stream).bits();
        assert_eq!(bits(7, 1), bits(7, 1));
        assert_ne!(bits(7, 1), bits(7, 2));
        assert_ne!(bits(7, 1), bits(8, 1));
    }
}
