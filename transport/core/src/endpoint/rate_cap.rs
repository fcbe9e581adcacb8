//! The most that an endpoint sends per second, where that is limited.
//!
//! A token bucket that may go below zero: it fills at the rate, a chunk is sent while it holds anything, and
//! what the chunk takes beyond that is owed. So the mean is the rate whatever the size of the chunks, and the
//! schedule alone decides whose turn it is. Used by the endpoint only.

use crate::units::{Nanos, Time};

/// What may be sent at once after a pause: a thread that sleeps wakes a few milliseconds late, and what it
/// could not send meanwhile must not be lost.
const BURST: Nanos = Nanos::from_millis(10);

const NANOS: u128 = 1_000_000_000;

/// The bucket.
#[derive(Debug, Clone)]
pub(super) struct RateCap {
    bits_per_second: u64,
    /// Bits × 10⁹, so that nothing is lost to rounding; below 0 while something is owed.
    tokens: i128,
    at: Time,
    /// A chunk has waited.
    has_held_back: bool,
}

impl RateCap {
    /// A full bucket.
    pub(super) fn new(bits_per_second: u64, now: Time) -> Self {
        let bits_per_second = bits_per_second.max(1);
        Self {
            bits_per_second,
            tokens: i128::from(bits_per_second) * i128::from(BURST.get()),
            at: now,
            has_held_back: false,
        }
    }

    /// The same bucket at another rate from now on: it has gained no burst.
    pub(super) fn with_rate(mut self, bits_per_second: u64, now: Time) -> Self {
        self.fill(now);
        self.bits_per_second = bits_per_second.max(1);
        self.tokens = self.tokens.min(self.full());
        self
    }

    fn full(&self) -> i128 {
        i128::from(self.bits_per_second) * i128::from(BURST.get())
    }

    fn fill(&mut self, now: Time) {
        let gained = i128::from(self.bits_per_second) * i128::from((now - self.at).get());
        self.at = now;
        self.tokens = (self.tokens + gained).min(self.full());
    }

    /// Whether a chunk may be sent.
    pub(super) fn may_send(&mut self, now: Time) -> bool {
        self.fill(now);
        let may_send = self.tokens > 0;
        self.has_held_back |= !may_send;
        may_send
    }

    /// Whether a chunk had to wait since the last call.
    pub(super) fn take_held_back(&mut self) -> bool {
        std::mem::take(&mut self.has_held_back)
    }

    /// A chunk of `bytes` was sent, with all headers.
    pub(super) fn charge(&mut self, bytes: u64) {
        self.tokens -= i128::from(bytes * 8) * NANOS as i128;
    }

    /// A control packet of `bytes` was sent, which waits for nothing. It delays chunks, but no more than the bucket
    /// holds: who sends much that has to be answered does not stop them for longer.
    pub(super) fn charge_control(&mut self, bytes: u64) {
        let floor = self.tokens.min(-self.full());
        self.charge(bytes);
        self.tokens = self.tokens.max(floor);
    }

    /// When the next chunk may be sent, where it may not be now.
    pub(super) fn next(&self) -> Option<Time> {
        let owed = u128::try_from(-self.tokens).ok()?;
        let nanos = owed / u128::from(self.bits_per_second) + 1;
        Some(self.at + Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::ZERO + Nanos::from_micros(micros)
    }

    #[test]
    fn the_mean_is_the_rate_whatever_the_size_of_the_chunks() {
        let rate = 80_000_000;
        for chunk in [1_500, 64_768] {
            let mut cap = RateCap::new(rate, at(0));
            let mut sent = 0u64;
            for micros in 0..1_000_000 {
                while cap.may_send(at(micros)) {
                    cap.charge(chunk);
                    sent += chunk;
                }
            }
            let burst = rate / 8 / 100;
            let expected = rate / 8 + burst;
            assert!(sent.abs_diff(expected) <= chunk, "{sent} of {expected}");
        }
    }

    #[test]
    fn control_packets_delay_chunks_by_no_more_than_the_bucket_holds() {
        let mut cap = RateCap::new(8_000_000, at(0));
        for _ in 0..10_000 {
            cap.charge_control(100);
        }
        let due = cap.next().unwrap();
        assert_eq!(due - Time::ZERO, Nanos::new(BURST.get() + 1));
        cap.charge(50_000);
        let due = cap.next().unwrap();
        cap.charge_control(100);
        assert_eq!(cap.next(), Some(due), "what chunks owe stays");
    }

    #[test]
    fn a_rate_that_is_set_often_gives_no_burst_each_time() {
        let mut cap = RateCap::new(80_000_000, at(0));
        let mut sent = 0u64;
        for micros in 0..1_000_000 {
            if micros % 20_000 == 0 {
                let rate = if micros % 40_000 == 0 {
                    40_000_000
                } else {
                    120_000_000
                };
                cap = cap.with_rate(rate, at(micros));
            }
            while cap.may_send(at(micros)) {
                cap.charge(1_500);
                sent += 1_500;
            }
        }
        // The mean rate for a second, and what the bucket held.
        let expected = 10_000_000 + 50_000;
        assert!(sent.abs_diff(expected) < 10_000, "{sent}");
    }

    #[test]
    fn what_was_sent_beyond_the_bucket_is_waited_for() {
        let mut cap = RateCap::new(8_000_000, at(0));
        assert_eq!(cap.next(), None);
        assert!(cap.may_send(at(0)));
        // The bucket held 10 kB: 10 ms at 1 MB/s.
        cap.charge(12_000);
        assert!(!cap.may_send(at(0)));
        let due = cap.next().unwrap();
        assert_eq!(due - Time::ZERO, Nanos::new(2_000_001));
        assert!(!cap.may_send(at(1_999)));
        assert!(cap.may_send(at(2_001)));
    }
}
