//! How often the operator may write.

use std::time::Duration;

/// Writes at once, by the whole operator, whatever happens.
const BURST: u32 = 20;
/// Writes in a second after that. In any ten seconds it is 20 a second with the burst, which is what
/// the API server is promised.
const RATE: u32 = 18;
/// How much a write matters: some tokens are left for those that matter more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    /// Others wait for it.
    Change,
    /// People look at it.
    Progress,
    /// A node's word on a model: there may be thousands, one after the other.
    Label,
}

impl Rank {
    fn reserve(self) -> u32 {
        match self {
            Self::Change => 0,
            Self::Progress | Self::Label => 5,
        }
    }
}

/// Tokens, of which every write takes one. Times are since some start.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    burst: u32,
    rate: u32,
    /// In millionths.
    micros: u64,
    at: Duration,
}

impl Bucket {
    /// A full one.
    pub(super) fn new(now: Duration) -> Self {
        Self::with(BURST, RATE, now)
    }

    /// Of labels, which take from the other, too: half of all at most, so that progress goes on beside them.
    pub(super) fn of_labels(now: Duration) -> Self {
        let half = RATE / 2;
        Self::with(half + Rank::Label.reserve(), half, now)
    }

    fn with(burst: u32, rate: u32, now: Duration) -> Self {
        Self {
            burst,
            rate,
            micros: u64::from(burst) * 1_000_000,
            at: now,
        }
    }

    /// Takes a token, if there is one for that.
    pub(super) fn take(&mut self, now: Duration, rank: Rank) -> bool {
        let since = now.saturating_sub(self.at).as_micros();
        let gained = u64::try_from(since)
            .unwrap_or(u64::MAX)
            .saturating_mul(u64::from(self.rate));
        self.micros = self
            .micros
            .saturating_add(gained)
            .min(u64::from(self.burst) * 1_000_000);
        self.at = self.at.max(now);
        if self.micros < u64::from(rank.reserve() + 1) * 1_000_000 {
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
    fn labels_leave_half_to_progress_and_progress_leaves_as_much_to_them() {
        let (mut all, mut labels) = (
            Bucket::new(Duration::ZERO),
            Bucket::of_labels(Duration::ZERO),
        );
        let mut counts = [0, 0];
        // As in a step: there are more of both than there is room for.
        for step in 0..600 {
            let now = step * Duration::from_millis(100);
            let is_labelled = |_: &u32| labels.take(now, Rank::Label) && all.take(now, Rank::Label);
            counts[0] += (0..100).take_while(is_labelled).count();
            let is_shown = |_: &u32| all.take(now, Rank::Progress);
            counts[1] += (0..100).take_while(is_shown).count();
        }
        let total = 60 * 18 + 15;
        assert!(
            counts.iter().all(|count| *count > total * 2 / 5),
            "{counts:?}"
        );
    }

    #[test]
    fn twenty_a_second_in_any_ten_and_what_matters_less_yields() {
        let mut bucket = Bucket::new(Duration::ZERO);
        let mut count = |rank| {
            let takes = (0..100).filter(|_| bucket.take(Duration::ZERO, rank));
            takes.count()
        };
        let counts = [Rank::Label, Rank::Progress, Rank::Change].map(&mut count);
        assert_eq!(counts, [15, 0, 5]);
        let mut later = 0;
        for milli in 0..10_000 {
            later += u32::from(bucket.take(Duration::from_millis(milli), Rank::Change));
        }
        assert!((179..=180).contains(&later), "{later}");
        let mut bucket = Bucket::new(Duration::ZERO);
        let takes =
            (0..60_000).filter(|milli| bucket.take(Duration::from_millis(*milli), Rank::Change));
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
