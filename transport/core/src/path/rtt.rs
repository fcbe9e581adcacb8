//! Smoothed round-trip time.

use super::{Nanos, Time};
use serde::{Deserialize, Serialize};

/// The lowest round trip is that of this long a period and of the one before (as BBR's min_rtt, 10 s).
pub(crate) const BASE_PERIOD: Nanos = Nanos::from_secs(10);

/// The lowest round-trip time of the last 10 to 20 s.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LowestRtt {
    since: Time,
    current: Option<Nanos>,
    previous: Option<Nanos>,
}

impl LowestRtt {
    #[inline]
    pub(crate) fn update(&mut self, now: Time, sample: Nanos) {
        if now - self.since > BASE_PERIOD {
            self.since = now;
            self.previous = self.current.take();
        }
        if self.current.is_none_or(|lowest| sample < lowest) {
            self.current = Some(sample);
        }
    }

    pub(crate) fn get(&self) -> Option<Nanos> {
        match (self.current, self.previous) {
            (Some(current), Some(previous)) => Some(current.min(previous)),
            (current, previous) => current.or(previous),
        }
    }
}

/// Smoothed round-trip time and its variation, as in RFC 6298: gains 1/8 and 1/4. 8 B.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RttEstimator {
    /// Smoothed, ns; 0 before the first sample.
    smoothed: u32,
    /// Mean deviation, ns.
    variation: u32,
}

impl RttEstimator {
    /// Takes one sample in; samples above 4.2 s count as that.
    #[inline]
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
    fn the_lowest_round_trip_is_forgotten_after_two_periods() {
        let mut lowest = LowestRtt::default();
        let at = |secs: u64| Time::from_nanos(secs * 1_000_000_000);
        lowest.update(at(1), Nanos::from_micros(10));
        lowest.update(at(12), Nanos::from_micros(30));
        assert_eq!(lowest.get(), Some(Nanos::from_micros(10)));
        lowest.update(at(24), Nanos::from_micros(40));
        assert_eq!(lowest.get(), Some(Nanos::from_micros(30)));
    }

    #[test]
    fn a_sample_beyond_the_range_does_not_overflow() {
        let mut rtt = RttEstimator::default();
        rtt.update(Nanos::from_secs(100));
        rtt.update(Nanos::from_secs(100));
        assert_eq!(rtt.smoothed(), Some(Nanos::new(u32::MAX.into())));
    }
}
