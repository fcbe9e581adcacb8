//! Smoothed round-trip time.

use crate::units::Nanos;

/// Smoothed round-trip time and its variation, as in RFC 6298: gains 1/8 and 1/4. 8 B.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RttEstimator {
    /// Smoothed, ns; 0 before the first sample.
    smoothed: u32,
    /// Mean deviation, ns.
    variation: u32,
}

impl RttEstimator {
    /// Takes one sample in; samples above 4.2 s count as that.
    pub fn update(&mut self, sample: Nanos) {
        let sample = u32::try_from(sample.get()).unwrap_or(u32::MAX).max(1);
        if self.smoothed == 0 {
            self.smoothed = sample;
            self.variation = sample / 2;
            return;
        }
        let deviation = self.smoothed.abs_diff(sample);
        self.variation = ewma(self.variation, deviation, 2);
        self.smoothed = ewma(self.smoothed, sample, 3).max(1);
    }

    /// The smoothed round-trip time, when there was a sample.
    pub fn smoothed(&self) -> Option<Nanos> {
        (self.smoothed != 0).then(|| Nanos::new(self.smoothed.into()))
    }

    /// srtt + 4·rttvar: what a round trip rarely exceeds (RFC 6298, 2.3).
    pub fn bound(&self) -> Option<Nanos> {
        self.smoothed()
            .map(|srtt| srtt + Nanos::new(4 * u64::from(self.variation)))
    }
}

fn ewma(old: u32, new: u32, shift: u32) -> u32 {
    let (old, new) = (u64::from(old), u64::from(new));
    ((old * ((1 << shift) - 1) + new) >> shift) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_seeds_and_later_ones_move_it_by_an_eighth() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.smoothed(), None);
        rtt.update(Nanos::from_micros(80));
        assert_eq!(rtt.smoothed(), Some(Nanos::from_micros(80)));
        assert_eq!(rtt.bound(), Some(Nanos::from_micros(240)));
        rtt.update(Nanos::from_micros(160));
        assert_eq!(rtt.smoothed(), Some(Nanos::from_micros(90)));
    }

    #[test]
    fn a_sample_beyond_the_range_does_not_overflow() {
        let mut rtt = RttEstimator::default();
        rtt.update(Nanos::from_secs(100));
        rtt.update(Nanos::from_secs(100));
        assert_eq!(rtt.smoothed(), Some(Nanos::new(u32::MAX.into())));
    }
}
