//! `ecn_rtt`: our reading of STELLAR's window, "driven by ECN and RTT" (section 7; no formula is
//! published).
//!
//! Once per round (as many bytes acknowledged as the window held at its start):
//! - marks: α ← (1 − g)·α + g·F with F the fraction of marked packets, then w ← w·(1 − α/2), as
//!   DCTCP (RFC 8257, section 3.3, g = 1/16);
//! - else, when the round's *lowest* delay exceeds the target, every path is queueing:
//!   w ← w·(1 − β·(delay − target)/delay), at most halved, as Swift (2020, section 3.1, β = 0.8);
//! - else w grows: doubles per round until the first decrease, then one chunk per round.
//!
//! The delay is the base round trip plus the queueing on the way there. What waits on the way back is the
//! peer's own traffic, which a smaller window here does not shorten: a relay's acknowledgements wait
//! behind all that it forwards. The queueing on the way there is what the one-way delay has above its
//! lowest (LEDBAT, RFC 6817, section 2.4.2), and never more than the round trip has above its own, so that a
//! clock that jumps or drifts (RFC 6817, appendix A.2) makes nothing worse than round trips alone would.
//!
//! Loss of more than [`LOSS_TOLERATED`] of a round's packets takes half that share off the window:
//! less is what a failing link does to spraying (STELLAR, Fig. 11), not congestion.

use super::{AckSample, Congestion, Limits, Nanos, OneWay, Time};

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
/// The base delays are the lowest of this long a period (as BBR's min_rtt, 10 s).
const BASE_PERIOD: Nanos = Nanos::from_secs(10);
/// The window starts with this many chunks (RFC 6928 starts with ten packets).
const INITIAL_CHUNKS: u64 = 8;
/// The window never falls below this many packets.
const MIN_PACKETS: u64 = 2;

#[derive(Debug)]
pub(super) struct EcnRtt {
    limits: Limits,
    window: f64,
    /// What the window was before the last timeout, until a whole round has passed since.
    before_timeout: Option<BeforeTimeout>,
    alpha: f64,
    slow_start: bool,
    round: Round,
    base: Base,
}

/// What a timeout took.
#[derive(Clone, Copy, Debug)]
struct BeforeTimeout {
    window: f64,
    /// The round in which it passed has ended, and the next is under way.
    round_ended: bool,
}

/// What one round has seen.
#[derive(Debug, Default)]
struct Round {
    /// Bytes until the round ends.
    left: u64,
    packets: u64,
    ce: u64,
    lost: u64,
    lowest: Option<Delays>,
    /// The most that was in flight.
    in_flight: u64,
}

/// A round trip and the way there, each the lowest of its time.
#[derive(Clone, Copy, Debug)]
struct Delays {
    rtt: Nanos,
    one_way: OneWay,
}

impl Delays {
    fn min(self, other: Delays) -> Delays {
        Delays {
            rtt: self.rtt.min(other.rtt),
            one_way: self.one_way.min(other.one_way),
        }
    }
}

/// The lowest of `a` and `b`, where there is one.
fn lowest(a: Option<Delays>, b: Option<Delays>) -> Option<Delays> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The lowest delays of the last one to two periods.
#[derive(Debug, Default)]
struct Base {
    since: Time,
    current: Option<Delays>,
    previous: Option<Delays>,
}

impl Base {
    fn update(&mut self, now: Time, delays: Delays) {
        if now - self.since > BASE_PERIOD {
            self.since = now;
            self.previous = self.current.take();
        }
        self.current = lowest(self.current, Some(delays));
    }

    fn get(&self) -> Option<Delays> {
        lowest(self.current, self.previous)
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
        // An answer to what was sent before the timeout comes within a round trip; what the window was
        // longer ago says nothing of the network now.
        self.before_timeout = self
            .before_timeout
            .filter(|before| !before.round_ended)
            .map(|before| BeforeTimeout {
                round_ended: true,
                ..before
            });
        let marked = if round.packets == 0 {
            0.0
        } else {
            round.ce as f64 / round.packets as f64
        };
        self.alpha += ALPHA_GAIN * (marked - self.alpha);
        let lost = round.lost as f64 / (round.packets + round.lost).max(1) as f64;
        let excess = self.excess(round.lowest);
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

    /// By what share of itself the delay exceeds its target.
    fn excess(&self, lowest: Option<Delays>) -> f64 {
        let (Some(lowest), Some(base)) = (lowest, self.base.get()) else {
            return 0.0;
        };
        let there_and_back = Nanos::new(lowest.rtt.get().saturating_sub(base.rtt.get()));
        let queueing = lowest.one_way.beyond(base.one_way).min(there_and_back);
        let delay = base.rtt + queueing;
        let target = base.rtt + TARGET_QUEUEING.max(base.rtt);
        delay.get().saturating_sub(target.get()) as f64 / delay.get().max(1) as f64
    }
}

impl Congestion for EcnRtt {
    fn window(&self) -> u64 {
        self.window as u64
    }

    fn on_ack(&mut self, now: Time, sample: AckSample) {
        if let (Some(rtt), Some(one_way)) = (sample.rtt, sample.one_way) {
            let delays = Delays { rtt, one_way };
            self.base.update(now, delays);
            self.round.lowest = lowest(self.round.lowest, Some(delays));
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
        let window = self.before_timeout.map_or(self.window, |b| b.window);
        self.before_timeout = Some(BeforeTimeout {
            window,
            round_ended: false,
        });
        self.decrease(DECREASE_MAX);
    }

    fn on_spurious_timeout(&mut self) {
        if let Some(before) = self.before_timeout.take() {
            self.set(before.window.max(self.window));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far the receiver's clock is ahead, in ticks: whatever, and near where it wraps.
    const APART: u32 = u32::MAX - 100;

    const LIMITS: Limits = Limits {
        packet: 1_500,
        chunk: 64_000,
        max: 64_000_000,
    };

    /// A round whose lowest round trip is spent on the way there.
    fn round(cc: &mut EcnRtt, ce: u64, rtt: Nanos) {
        round_with(cc, ce, rtt, rtt);
    }

    fn round_with(cc: &mut EcnRtt, ce: u64, rtt: Nanos, there: Nanos) {
        let bytes = cc.window();
        let received = APART.wrapping_add(Time::from_nanos(there.get()).to_wire());
        let sample = AckSample {
            bytes,
            in_flight: bytes,
            packets: 100,
            ce,
            rtt: Some(rtt),
            one_way: Some(OneWay::new(0, received)),
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
    fn queueing_on_the_way_back_does_not_shrink_the_window() {
        let mut cc = EcnRtt::new(LIMITS, Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        round_with(&mut cc, 0, Nanos::from_millis(20), Nanos::from_micros(100));
        assert_eq!(cc.window(), before + LIMITS.chunk);
    }

    #[test]
    fn a_clock_that_jumps_counts_for_no_more_than_the_round_trip() {
        let mut cc = EcnRtt::new(LIMITS, Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        round_with(&mut cc, 0, Nanos::from_micros(100), Nanos::from_secs(5));
        assert_eq!(cc.window(), before + LIMITS.chunk);
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
    fn a_timeout_long_ago_gives_nothing_back() {
        let mut cc = EcnRtt::new(LIMITS, Some(1_000_000));
        cc.on_timeout(Time::ZERO);
        // The round under way was begun with twice the window.
        for _ in 0..3 {
            round(&mut cc, 100, Nanos::from_micros(100));
        }
        let before = cc.window();
        cc.on_spurious_timeout();
        assert_eq!(cc.window(), before);
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
