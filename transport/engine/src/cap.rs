//! What a worker may send in a second, where that is limited.
//!
//! A bucket of bytes: it fills at the rate, a chunk is sent when it holds anything, and what the chunk
//! takes beyond that is owed. So the mean is the rate whatever the chunks' sizes, and whose turn it is
//! stays the queue's decision: all connections, and so all jobs, have the same part of it.

use weft_core::units::{Nanos, Time};

/// IPv4 and UDP headers of a packet, which the link's rate has to carry, too.
const IP_UDP_BYTES: u64 = 28;

/// What may be sent at once after a pause: a worker that sleeps wakes a few milliseconds late, and
/// what it could not send meanwhile must not be lost.
const BURST: Nanos = Nanos::from_millis(10);

const NANOS: u128 = 1_000_000_000;

/// The bucket. Owned by one worker.
#[derive(Debug, Clone)]
pub(crate) struct Cap {
    bits_per_second: u64,
    /// Bytes × 8 × 10⁹, so that nothing is lost to rounding; below 0 while something is owed.
    held: i128,
    at: Time,
}

impl Cap {
    /// A full one.
    pub(crate) fn new(bits_per_second: u64, now: Time) -> Self {
        let mut cap = Self {
            bits_per_second,
            held: 0,
            at: now,
        };
        cap.held = cap.most();
        cap
    }

    fn most(&self) -> i128 {
        i128::from(self.bits_per_second) * i128::from(BURST.get())
    }

    /// Whether a chunk may be sent.
    pub(crate) fn may_send(&mut self, now: Time) -> bool {
        let since = (now - self.at).get();
        self.at = now;
        let gained = i128::from(self.bits_per_second) * i128::from(since);
        self.held = (self.held + gained).min(self.most());
        self.held > 0
    }

    /// A chunk was sent: so many bytes above UDP, in so many packets.
    pub(crate) fn charge(&mut self, bytes: u64, packets: u64) {
        let bits = (bytes + packets * IP_UDP_BYTES) * 8;
        self.held -= i128::from(bits) * NANOS as i128;
    }

    /// When the next chunk may be sent, where it may not be now.
    pub(crate) fn next(&self) -> Option<Time> {
        let owed = u128::try_from(-self.held).ok()?;
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

    /// Bits sent in a second by somebody who looks this often.
    fn sent(mbps: u64, look_micros: u64, chunk: u64) -> u64 {
        let mut cap = Cap::new(mbps * 1_000_000, at(0));
        let (mut bits, mut now) = (0, 0);
        while now < 1_000_000 {
            while cap.may_send(at(now)) {
                cap.charge(chunk, 1);
                bits += (chunk + IP_UDP_BYTES) * 8;
            }
            now += look_micros;
        }
        bits
    }

    #[test]
    fn the_rate_is_kept_whatever_the_chunks_and_however_late_the_worker() {
        for mbps in [10, 1_000, 10_000] {
            for look in [10, 1_000, 9_000] {
                for chunk in [1_472, 65_000] {
                    let rate = mbps * 1_000_000;
                    let share = sent(mbps, look, chunk) as f64 / rate as f64;
                    // The burst at the start is a hundredth, and one chunk may be owed.
                    let slack = 0.012 + (chunk * 8) as f64 / rate as f64;
                    assert!(
                        (0.985..1.0 + slack).contains(&share),
                        "{mbps} Mbit/s, every {look} µs, {chunk} B: {share}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_next_chunk_is_due_when_what_is_owed_is_paid() {
        let mut cap = Cap::new(8_000_000, at(0));
        assert_eq!(cap.next(), None);
        assert!(cap.may_send(at(0)));
        // 10 kB were there: 10 ms at 1 MB/s.
        cap.charge(12_000 - IP_UDP_BYTES, 1);
        assert!(!cap.may_send(at(0)));
        let due = cap.next().unwrap();
        assert_eq!(due - Time::ZERO, Nanos::new(2_000_001));
        assert!(!cap.may_send(at(1_999)));
        assert!(cap.may_send(at(2_001)));
    }
}
