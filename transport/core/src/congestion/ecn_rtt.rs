//! `ecn_rtt`: our reading of STELLAR's window, "driven by ECN and RTT" (section 7; no formula is
//! published).
//!
//! Once per round (as many bytes acknowledged as the window held at its start):
//! - marks: α ← (1 − g)·α + g·F with F the fraction of marked packets, then w ← w·(1 − α/2), as
//!   DCTCP (RFC 8257, section 3.3, g = 1/16);
//! - else, when the round's *lowest* round trip exceeds the target, every path is queueing:
//!   w ← w·(1 − β·(rtt − target)/rtt), at most halved, as Swift (2020, section 3.1, β = 0.8);
//! - else w grows: doubles per round until the first decrease, then one chunk per round.
//!
//! Loss of more than [`LOSS_TOLERATED`] of a round's packets takes half that share off the window:
//! less is what a failing link does to spraying (STELLAR, Fig. 11), not congestion.

use super::{AckSample, Congestion, Limits, Nanos, Time};

/// DCTCP's gain for α (RFC 8257, section 4.2: g = 1/16).
const ALPHA_GAIN: f64 = 1.0 / 16.0;
/// Swift's multiplicative decrease factor (β = 0.8, section 3.1).
const RTT_BETA: f64 = 0.8;
/// No decrease takes more than half.
const DECREASE_MAX: f64 = 0.5;
/// The share of a round's packets whose loss is no sign of congestion; 3 % on one link is what
/// STELLAR's Fig. 11 tolerates, spread over the paths it is less.
const LOSS_TOLERATED: f64 = 0.02;
/// Queueing allowed on the least loaded path above the base round trip. Ours: a chunk of 62 KB needs
/// 1.7 ms of a link of 300 Mbit/s by itself, and threads that wake late need about this much to keep
/// a link busy. A chain of eight such links took 1.20 of one link's time with 1 ms, 1.12 with 2 ms;
/// four spines' goodput and the worst delay after a failure were the same.
const TARGET_QUEUEING: Nanos = Nanos::from_millis(2);
/// The base round-trip time is the lowest of this long a period (as BBR's min_rtt, 10 s).
const BASE_PERIOD: Nanos = Nanos::from_secs(10);
/// The window starts with this many chunks (RFC 6928 starts with ten packets).
const INITIAL_CHUNKS: u64 = 8;
/// The window never falls below this many packets.
const MIN_PACKETS: u64 = 2;

#[derive(Debug)]
pub(super) struct EcnRtt {
    limits: Limits,
    window: f64,
    /// What the window was before the last timeout.
    before_timeout: Option<f64>,
    alpha: f64,
    slow_start: bool,
    round: Round,
    base: Base,
}

/// What one round has seen.
#[derive(Debug, Default)]
struct Round {
    /// Bytes until the round ends.
    left: u64,
    packets: u64,
    ce: u64,
    lost: u64,
    lowest_rtt: Option<Nanos>,
    /// The most that was in flight.
    in_flight: u64,
}

/// The lowest round-trip time of the last one to two periods.
#[derive(Debug, Default)]
struct Base {
    since: Time,
    current: Option<Nanos>,
    previous: Option<Nanos>,
}

impl Base {
    fn update(&mut self, now: Time, rtt: Nanos) {
        if now - self.since > BASE_PERIOD {
            self.since = now;
            self.previous = self.current.take();
        }
        self.current = Some(self.current.map_or(rtt, |lowest| lowest.min(rtt)));
    }

    fn get(&self) -> Option<Nanos> {
        match (self.current, self.previous) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

impl EcnRtt {
    pub(super) fn new(limits: Limits, window: Option<u64>) -> EcnRtt {
        let start = window.unwrap_or(limits.chunk * INITIAL_CHUNKS);
        let mut new = EcnRtt {
            limits,
            window: 0.0,
            before_timeout: None,
            alpha: 0.0,
            slow_start: window.is_none(),
            round: Round::default(),
            base: Base::default(),
        };
        new.set(start as f64);
        new.round.left = new.window();
        new
    }

    fn set(&mut self, window: f64) {
        let floor = (self.limits.packet * MIN_PACKETS) as f64;
        self.window = window.clamp(floor.min(self.limits.max as f64), self.limits.max as f64);
    }

    fn decrease(&mut self, share: f64) {
        self.slow_start = false;
        self.set(self.window * (1.0 - share.min(DECREASE_MAX)));
    }

    fn end_round(&mut self) {
        let round = core::mem::take(&mut self.round);
        let marked = if round.packets == 0 {
            0.0
        } else {
            round.ce as f64 / round.packets as f64
        };
        self.alpha += ALPHA_GAIN * (marked - self.alpha);
        let lost = round.lost as f64 / (round.packets + round.lost).max(1) as f64;
        let excess = self.excess(round.lowest_rtt);
        if round.ce > 0 {
            self.decrease(self.alpha / 2.0);
        } else if excess > 0.0 {
            self.decrease(RTT_BETA * excess);
        } else if lost > LOSS_TOLERATED {
            self.decrease(lost / 2.0);
        } else if round.in_flight * 2 < self.window() {
            // The sender had less to send than the window allows: nothing was learnt.
        } else if self.slow_start {
            self.set(self.window * 2.0);
        } else {
            self.set(self.window + self.limits.chunk as f64);
        }
        self.round.left = self.window();
    }

    /// By what share of itself the round trip exceeds its target.
    fn excess(&self, lowest: Option<Nanos>) -> f64 {
        let (Some(rtt), Some(base)) = (lowest, self.base.get()) else {
            return 0.0;
        };
        let target = base + TARGET_QUEUEING.max(base);
        rtt.get().saturating_sub(target.get()) as f64 / rtt.get().max(1) as f64
    }
}

impl Congestion for EcnRtt {
    fn window(&self) -> u64 {
        self.window as u64
    }

    fn on_ack(&mut self, now: Time, sample: AckSample) {
        if let Some(rtt) = sample.rtt {
            self.base.update(now, rtt);
            let lowest = self.round.lowest_rtt.map_or(rtt, |lowest| lowest.min(rtt));
            self.round.lowest_rtt = Some(lowest);
        }
        self.round.packets += sample.packets;
        self.round.ce += sample.ce;
        self.round.in_flight = self.round.in_flight.max(sample.in_flight);
        self.round.left = self.round.left.saturating_sub(sample.bytes);
        if self.round.left == 0 {
            self.end_round();
        }
    }

    fn on_loss(&mut self, _now: Time, packets: u64) {
        self.round.lost += packets;
    }

    fn on_timeout(&mut self, _now: Time) {
        self.before_timeout.get_or_insert(self.window);
        self.decrease(DECREASE_MAX);
    }

    fn on_spurious_timeout(&mut self) {
        if let Some(before) = self.before_timeout.take() {
            self.set(before.max(self.window));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        packet: 1_500,
        chunk: 64_000,
        max: 64_000_000,
    };

    fn round(cc: &mut EcnRtt, ce: u64, rtt: Nanos) {
        let bytes = cc.window();
        let sample = AckSample {
            bytes,
            in_flight: bytes,
            packets: 100,
            ce,
            rtt: Some(rtt),
        };
        cc.on_ack(Time::ZERO, sample);
    }

    #[test]
    fn the_window_doubles_until_the_first_mark_then_grows_by_a_chunk() {
        let mut cc = EcnRtt::new(LIMITS, None);
        let start = cc.window();
        round(&mut cc, 0, Nanos::from_micros(50));
        assert_eq!(cc.window(), start * 2);
        round(&mut cc, 100, Nanos::from_micros(50));
        assert_eq!(cc.window(), start * 2 - start * 2 / 32, "α = 1/16, halved");
        let before = cc.window();
        round(&mut cc, 0, Nanos::from_micros(50));
        assert_eq!(cc.window(), before + LIMITS.chunk);
    }

    #[test]
    fn a_lowest_round_trip_above_target_shrinks_the_window() {
        let mut cc = EcnRtt::new(LIMITS, Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        round(&mut cc, 0, Nanos::from_micros(4_200));
        assert_eq!(cc.window(), (before as f64 * (1.0 - 0.8 * 0.5)) as u64);
    }

    #[test]
    fn one_percent_of_loss_is_no_congestion() {
        let mut cc = EcnRtt::new(LIMITS, Some(1_000_000));
        cc.on_loss(Time::ZERO, 1);
        round(&mut cc, 0, Nanos::from_micros(100));
        assert_eq!(cc.window(), 1_000_000 + LIMITS.chunk);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut cc = EcnRtt::new(LIMITS, Some(1_000_000));
        let sample = AckSample {
            bytes: 1_000_000,
            in_flight: 9_000,
            ..AckSample::default()
        };
        cc.on_ack(Time::ZERO, sample);
        assert_eq!(cc.window(), 1_000_000);
    }

    #[test]
    fn a_spurious_timeout_gives_the_window_back() {
        let mut cc = EcnRtt::new(LIMITS, Some(1_000_000));
        cc.on_timeout(Time::ZERO);
        assert_eq!(cc.window(), 500_000);
        cc.on_timeout(Time::ZERO);
        cc.on_spurious_timeout();
        assert_eq!(cc.window(), 1_000_000);
    }

    #[test]
    fn the_window_stays_within_its_limits() {
        let mut cc = EcnRtt::new(LIMITS, None);
        for _ in 0..100 {
            cc.on_timeout(Time::ZERO);
        }
        assert_eq!(cc.window(), LIMITS.packet * MIN_PACKETS);
        for _ in 0..10_000 {
            round(&mut cc, 0, Nanos::from_micros(100));
        }
        assert_eq!(cc.window(), LIMITS.max);
    }
}
