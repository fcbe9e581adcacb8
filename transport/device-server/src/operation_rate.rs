//! How many work requests a device begins per second, and which queue pairs wait for that.

use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

/// One work request, in the unit of [`OperationRate::credit`]: at 1 per second a nanosecond brings one unit.
const OPERATION: u128 = 1_000_000_000;
/// A device that was idle begins what it may begin in a 100th of a second at once: so long may its thread sleep.
const BURSTS_PER_SECOND: u32 = 100;
/// The least that begins at once: with one, a thread that looks late would lose what came meanwhile.
const BURST_MIN: u32 = 2;
/// The most that begins at once, so that packets are moved in between.
const BURST_MAX: u32 = 1024;

/// A token bucket of one device. Time is an argument.
#[derive(Debug)]
pub(crate) struct OperationRate {
    per_second: NonZeroU32,
    credit: u128,
    /// Until when the credit has been given.
    filled_at: Duration,
}

impl OperationRate {
    /// It begins full.
    pub(crate) fn new(per_second: NonZeroU32) -> Self {
        Self {
            per_second,
            credit: Self::credit_max(per_second),
            filled_at: Duration::ZERO,
        }
    }

    pub(crate) fn per_second(&self) -> NonZeroU32 {
        self.per_second
    }

    fn credit_max(per_second: NonZeroU32) -> u128 {
        u128::from((per_second.get() / BURSTS_PER_SECOND).clamp(BURST_MIN, BURST_MAX)) * OPERATION
    }

    /// Gives the credit of the time that has passed. A time before an earlier one gives none.
    pub(crate) fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        let credit = self.credit + passed.as_nanos() * u128::from(self.per_second.get());
        self.credit = credit.min(Self::credit_max(self.per_second));
    }

    /// Whether a work request may begin.
    pub(crate) fn has_one(&self) -> bool {
        self.credit >= OPERATION
    }

    /// One has begun.
    pub(crate) fn spend(&mut self) {
        self.credit = self.credit.saturating_sub(OPERATION);
    }

    /// How long after the last [`Self::fill`] the next one may begin.
    pub(crate) fn wait(&self) -> Duration {
        let missing = OPERATION.saturating_sub(self.credit);
        let nanoseconds = missing.div_ceil(u128::from(self.per_second.get()));
        Duration::from_nanos(nanoseconds as u64)
    }
}

/// What the queue pairs of one context may begin. Without a limit it is always more.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    is_limited: bool,
    /// How many the device has given and nobody has taken.
    given: u32,
    /// Those that found nothing left, the one that has waited longest first.
    waiting: VecDeque<u32>,
    /// The same.
    is_waiting: HashSet<u32>,
    /// How many have begun.
    count: u64,
}

impl Operations {
    /// Those of a context whose engine has ended, of which these wait.
    pub(crate) fn restore(waiting: Vec<u32>) -> Self {
        Self {
            is_limited: !waiting.is_empty(),
            given: 0,
            is_waiting: waiting.iter().copied().collect(),
            waiting: waiting.into(),
            count: 0,
        }
    }

    /// The queue pairs that wait, for the next engine.
    pub(crate) fn save(self) -> Vec<u32> {
        self.waiting.into()
    }

    /// From here on, only what is given.
    pub(crate) fn limit(&mut self) {
        self.is_limited = true;
    }

    /// Whether a queue pair may begin one. It waits otherwise.
    pub(crate) fn may_begin(&mut self, queue_pair: u32) -> bool {
        let may = !self.is_limited || self.given > 0;
        if !may && self.is_waiting.insert(queue_pair) {
            self.waiting.push_back(queue_pair);
        }
        may
    }

    /// One has begun.
    pub(crate) fn begun(&mut self) {
        self.given = self.given.saturating_sub(1);
        self.count += 1;
    }

    /// How many have begun.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether a queue pair waits.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives one, to the queue pair that has waited longest.
    pub(crate) fn give(&mut self) -> Option<u32> {
        let next = self.waiting.pop_front()?;
        self.is_waiting.remove(&next);
        self.given = 1;
        Some(next)
    }

    /// Takes back what was not taken. Answers whether it was.
    pub(crate) fn take_back(&mut self) -> bool {
        std::mem::take(&mut self.given) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32) -> OperationRate {
        OperationRate::new(NonZeroU32::new(per_second).expect("it is not 0"))
    }

    /// Begins all that may begin, and answers how many.
    fn begin_all(rate: &mut OperationRate) -> u32 {
        let mut count = 0;
        while rate.has_one() {
            rate.spend();
            count += 1;
        }
        count
    }

    #[test]
    fn st4_a_rate_gives_so_many_operations_in_a_second_whenever_it_is_asked() {
        for per_second in [1, 3, 999, 20_000, 7_654_321] {
            let mut rate = rate(per_second);
            let at_once = begin_all(&mut rate);
            assert!((2..=1024).contains(&at_once) && at_once <= (per_second / 100).max(2));
            let mut count = 0;
            let mut now = Duration::ZERO;
            while now < Duration::from_secs(1) {
                now = (now + rate.wait()).min(Duration::from_secs(1));
                rate.fill(now);
                count += begin_all(&mut rate);
            }
            assert_eq!(count, per_second);
        }
    }

    #[test]
    fn st4_what_an_idle_device_has_not_begun_is_lost_but_for_a_hundredth_of_a_second() {
        let mut rate = rate(5_000);
        rate.fill(Duration::from_secs(3_600));
        assert_eq!(begin_all(&mut rate), 50);
        // Time that goes back gives nothing twice.
        rate.fill(Duration::from_secs(3_599));
        rate.fill(Duration::from_secs(3_600));
        assert_eq!(begin_all(&mut rate), 0);
        assert_eq!(rate.wait(), Duration::from_micros(200));
    }

    #[test]
    fn st4_of_a_thousand_queue_pairs_the_one_that_waits_longest_is_next() {
        let mut operations = Operations::default();
        assert!(operations.may_begin(7));
        operations.limit();
        for _ in 0..2 {
            assert!((0..1000).all(|number| !operations.may_begin(number)));
        }
        for number in 0..1000 {
            assert_eq!(operations.give(), Some(number));
            assert!(operations.may_begin(number));
            operations.begun();
            assert!(operations.take_back());
            assert!(!operations.may_begin(number));
        }
        assert_eq!(operations.give(), Some(0));
        // It has nothing to begin.
        assert!(!operations.take_back());
        assert_eq!(operations.give(), Some(1));
    }
}
