//! How often the operator may write.

use std::time::Duration;

/// Writes at once, by the whole operator, whatever happens.
const BURST: u32 = 20;
/// Writes in a second after that. In any ten seconds it is 20 a second with the burst, which is what
/// the API server is promised.
const RATE: u32 = 18;
/// Left for what matters more than progress.
const RESERVE: u32 = 5;

/// Tokens, of which every write takes one. Times are since some start.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    /// In millionths.
    micros: u64,
    at: Duration,
}

impl Bucket {
    /// A full one.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            micros: u64::from(BURST) * 1_000_000,
            at: now,
        }
    }

    /// Takes a token, if there is one; for progress some are left over.
    pub(super) fn take(&mut self, now: Duration, is_progress: bool) -> bool {
        let since = now.saturating_sub(self.at).as_micros();
        let gained = u64::try_from(since)
            .unwrap_or(u64::MAX)
            .saturating_mul(u64::from(RATE));
        self.micros = self
            .micros
            .saturating_add(gained)
            .min(u64::from(BURST) * 1_000_000);
        self.at = self.at.max(now);
        let left = if is_progress { RESERVE } else { 0 };
        if self.micros < u64::from(left + 1) * 1_000_000 {
            return false;
        }
        self.micros -= 1_000_000;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_a_second_in_any_ten_and_progress_yields() {
        let mut bucket = Bucket::new(Duration::ZERO);
        let progress = (0..100)
            .filter(|_| bucket.take(Duration::ZERO, true))
            .count();
        let rest = (0..100)
            .filter(|_| bucket.take(Duration::ZERO, false))
            .count();
        assert_eq!((progress, rest), (15, 5));
        let mut later = 0;
        for milli in 0..10_000 {
            later += u32::from(bucket.take(Duration::from_millis(milli), false));
        }
        assert!((179..=180).contains(&later), "{later}");
        let mut bucket = Bucket::new(Duration::ZERO);
        let takes = (0..60_000).filter(|milli| bucket.take(Duration::from_millis(*milli), false));
        let takes: Vec<u64> = takes.collect();
        let within = |from: u64| {
            takes
                .iter()
                .filter(|at| (from..from + 10_000).contains(at))
                .count()
        };
        let most = (0..50_000).step_by(100).map(within).max();
        assert!(
            most.is_some_and(|most| (198..=200).contains(&most)),
            "{most:?}"
        );
    }
}
