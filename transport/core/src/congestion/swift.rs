//! Swift: "Delay is Simple and Effective for Congestion Control in the Datacenter" (Kumar et al., SIGCOMM
//! 2020); section numbers are that paper's.
//!
//! Each acknowledgement's round trip is compared with a target (section 3.1): below it the window grows by
//! one packet in a round trip; above it the window shrinks by β times the excess, once in a round trip. The target
//! is higher for small windows, so that many flows share a queue (section 3.5, "flow-based scaling"). A window
//! below one packet is kept by pacing (section 3.6). The paper's term for the hops stands for what a path takes by
//! itself; the packets tell no hop count, so the lowest round trip measured takes its place. The paper's second
//! window, for the delay in the hosts, is left out: the round trips here hold none of the peer's waiting before an
//! acknowledgement.

use super::{CongestionControl, Limits, Nanos, PathId, PathSample, Permit, Time};
use crate::path::LowestRtt;
use serde::{Deserialize, Serialize};

/// What a large window may queue: 25 us suits the 100 Gbit/s fabrics and NIC time stamps of the paper's
/// evaluation. Where threads stamp time and wake late, ten times as much.
pub const BASE_TARGET: Nanos = Nanos::from_micros(25);
/// Additive increase: packets in a round trip (Algorithm 1, ai).
const INCREASE: f64 = 1.0;
/// Multiplicative decrease: of the share by which the delay exceeds its target (Algorithm 1, β).
const BETA: f64 = 0.8;
/// No decrease takes more than this (Algorithm 1, max_mdf).
const DECREASE_MAX: f64 = 0.5;
/// Flow scaling reaches from this window, packets (section 3.5, fs_min_cwnd) …
const SCALING_FROM: f64 = 0.1;
/// … to this one (fs_max_cwnd).
const SCALING_TO: f64 = 100.0;
/// … and raises the target by this many times the base at most (fs_range; the paper tunes it per fabric, five is
/// the value of the authors' and htsim's simulations).
const SCALING_RANGE: f64 = 5.0;
/// Timeouts in a row after which the window is the least one (Algorithm 1, RETX_RESET_THRESHOLD; htsim's value).
const RESET_TIMEOUTS: u8 = 5;
/// The least window, packets: one in a hundred round trips.
const WINDOW_MIN: f64 = 0.01;
/// The first window, packets (RFC 6928).
const WINDOW_FIRST: f64 = 10.0;

/// Swift's state for one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Swift {
    limits: Limits,
    base_target: Nanos,
    /// Packets.
    window: f64,
    /// What it was before the last timeout, until the next acknowledgement in time.
    before_timeout: Option<f64>,
    /// The newest round trip.
    rtt: Nanos,
    base: LowestRtt,
    decreased_at: Option<Time>,
    timeouts: u8,
    /// When the next chunk may go.
    next_at: Time,
}

impl Swift {
    pub(super) fn new(limits: Limits, base_target: Nanos) -> Swift {
        Swift {
            limits,
            base_target,
            window: WINDOW_FIRST.min(limits.max as f64 / limits.packet as f64),
            before_timeout: None,
            rtt: base_target,
            base: LowestRtt::default(),
            decreased_at: None,
            timeouts: 0,
            next_at: Time::ZERO,
        }
    }

    fn set(&mut self, window: f64) {
        let most = self.limits.max as f64 / self.limits.packet as f64;
        self.window = window.clamp(WINDOW_MIN, most.max(1.0));
    }

    /// Takes `share` off the window, unless that was done less than a round trip ago.
    fn decrease(&mut self, now: Time, share: f64) {
        if self.decreased_at.is_some_and(|at| now - at < self.rtt) {
            return;
        }
        self.decreased_at = Some(now);
        self.set(self.window * (1.0 - share.min(DECREASE_MAX)));
    }

    /// Section 3.5: target = base + max(0, min(α/√cwnd + β, fs_range)).
    fn target(&self) -> f64 {
        let base_target = self.base_target.get() as f64;
        let range = SCALING_RANGE * base_target;
        let (most, least) = (SCALING_FROM.sqrt().recip(), SCALING_TO.sqrt().recip());
        let scaled = range * (self.window.sqrt().recip() - least) / (most - least);
        let base = self.base.get().unwrap_or(Nanos::ZERO).get() as f64;
        base + base_target + scaled.clamp(0.0, range)
    }
}

impl CongestionControl for Swift {
    fn window(&self) -> u64 {
        (self.window.max(1.0) * self.limits.packet as f64) as u64
    }

    fn chunk_bytes(&self) -> u64 {
        self.limits.chunk_bytes(self.window())
    }

    fn may_send(&self, _path: PathId, _bytes: u32, now: Time) -> Permit {
        if now < self.next_at {
            Permit::At(self.next_at)
        } else {
            Permit::Yes
        }
    }

    fn on_sent(&mut self, now: Time, _path: PathId, bytes: u32) {
        if self.window < 1.0 {
            let share = f64::from(bytes) / (self.window * self.limits.packet as f64);
            self.next_at = now + Nanos::new((self.rtt.get() as f64 * share) as u64);
        }
    }

    fn on_path_sample(&mut self, now: Time, sample: &PathSample, in_flight: u64) {
        let Some(rtt) = sample.rtt else { return };
        self.rtt = rtt;
        self.base.update(now, rtt);
        self.timeouts = 0;
        let (delay, target) = (rtt.get() as f64, self.target());
        if delay > target {
            self.decrease(now, BETA * (delay - target) / delay);
            return;
        }
        self.before_timeout = None;
        // A sender with less to send than the window allows learns nothing.
        if in_flight * 2 >= self.window() {
            let packets = f64::from(sample.packets);
            self.set(self.window + INCREASE * packets / self.window.max(1.0));
        }
        if self.window >= 1.0 {
            self.next_at = now;
        }
    }

    fn on_loss(&mut self, now: Time, _packets: u64) {
        self.decrease(now, DECREASE_MAX);
    }

    fn on_timeout(&mut self, now: Time) {
        self.before_timeout = Some(self.before_timeout.unwrap_or(self.window));
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts >= RESET_TIMEOUTS {
            self.set(WINDOW_MIN);
        } else {
            self.decrease(now, DECREASE_MAX);
        }
    }

    fn on_spurious_timeout(&mut self) {
        if let Some(before) = self.before_timeout.take() {
            self.set(before.max(self.window));
        }
    }

    fn rebase(&mut self, now: Time) {
        self.decreased_at = None;
        self.next_at = now;
        self.base = LowestRtt::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        packet: 1_500,
        chunk: 64_500,
        max: 64_000_000,
    };

    fn us(n: u64) -> Time {
        Time::from_nanos(n * 1_000)
    }

    fn sample(swift: &mut Swift, at: Time, rtt: u64, packets: u32) {
        let sample = PathSample {
            path: PathId(0),
            rtt: Some(Nanos::from_micros(rtt)),
            packets,
            ce: 0,
            bytes: 0,
        };
        swift.on_path_sample(at, &sample, swift.window());
    }

    fn swift(window: f64) -> Swift {
        let mut swift = Swift::new(LIMITS, BASE_TARGET);
        swift.base.update(Time::ZERO, Nanos::from_micros(10));
        swift.set(window);
        swift
    }

    #[test]
    fn uc6_a_round_trip_below_target_adds_one_packet_per_window_of_acknowledgements() {
        let mut swift = swift(20.0);
        for _ in 0..20 {
            sample(&mut swift, us(100), 20, 1);
        }
        assert!((20.9..21.0).contains(&swift.window), "{}", swift.window);
    }

    #[test]
    fn uc6_a_round_trip_above_target_takes_beta_of_the_excess_once_in_a_round_trip() {
        let mut swift = swift(100.0);
        // At 100 packets flow scaling adds nothing: the target is 10 + 25 us, and 40 us are 5/40 too much.
        sample(&mut swift, us(100), 40, 1);
        assert_eq!(swift.window, 100.0 * (1.0 - 0.8 * 5.0 / 40.0));
        sample(&mut swift, us(139), 40, 1);
        assert_eq!(swift.window, 90.0, "39 us later it is the same round trip");
        sample(&mut swift, us(500), 400, 1);
        assert_eq!(swift.window, 45.0, "at most half");
    }

    #[test]
    fn uc6_the_target_of_a_small_window_is_higher_by_up_to_five_times_the_base() {
        assert_eq!(swift(100.0).target(), 35_000.0);
        assert_eq!(swift(1_000.0).target(), 35_000.0);
        assert_eq!(swift(0.1).target(), 160_000.0);
        assert_eq!(swift(0.01).target(), 160_000.0);
        let middle = swift(1.0).target();
        assert!((70_000.0..80_000.0).contains(&middle), "{middle}");
    }

    #[test]
    fn uc6_a_window_below_one_packet_is_paced_by_round_trip_over_window() {
        let mut swift = swift(0.25);
        sample(&mut swift, us(1_000), 200, 1);
        assert!(swift.window < 0.25 && swift.window >= 0.125);
        swift.set(0.25);
        assert_eq!(swift.may_send(PathId(0), 1_500, us(1_000)), Permit::Yes);
        swift.on_sent(us(1_000), PathId(0), 1_500);
        let at = us(1_000 + 200 * 4);
        assert_eq!(swift.may_send(PathId(0), 1_500, us(1_799)), Permit::At(at));
        assert_eq!(swift.may_send(PathId(0), 1_500, at), Permit::Yes);
        assert_eq!(swift.window(), LIMITS.packet);
    }

    #[test]
    fn uc6_five_timeouts_in_a_row_leave_the_least_window_and_a_spurious_one_gives_it_back() {
        let mut swift = swift(50.0);
        for timeout in 0..5 {
            swift.on_timeout(us(1_000 * timeout));
        }
        assert_eq!(swift.window, WINDOW_MIN);
        swift.on_spurious_timeout();
        assert_eq!(swift.window, 50.0);
    }
}
