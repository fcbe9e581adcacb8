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
}

impl RateCap {
    /// A full bucket.
    pub(super) fn new(bits_per_second: u64, now: Time) -> Self {
        let bits_per_second = bits_per_second.max(1);
        Self {
            bits_per_second,
            tokens: i128::from(bits_per_second) * i128::from(BURST.get()),
            at: now,
        }
    }

    /// Bits per second.
    pub(super) fn rate(&self) -> u64 {
        self.bits_per_second
    }

    /// Whether a chunk may be sent.
    pub(super) fn may_send(&mut self, now: Time) -> bool {
        let since = (now - self.at).get();
        self.at = now;
        let gained = i128::from(self.bits_per_second) * i128::from(since);
        let full = i128::from(self.bits_per_second) * i128::from(BURST.get());
        self.tokens = (self.tokens + gained).min(full);
        self.tokens > 0
    }

    /// A chunk of `bytes` was sent, with all headers.
    pub(super) fn charge(&mut self, bytes: u64) {
        self.tokens -= i128::from(bytes * 8) * NANOS as i128;
    }

    /// A control packet of `bytes` was sent, which waits for nothing. It delays chunks, but no more than the bucket
    /// holds: who sends much that has to be answered does not stop them for longer.
    pub(super) fn charge_control(&mut self, bytes: u64) {
        let full = i128::from(self.bits_per_second) * i128::from(BURST.get());
        let floor = self.tokens.min(-full);
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
