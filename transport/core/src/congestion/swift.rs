//! Swift: "Delay is Simple and Effective for Congestion Control in the Datacenter" (Kumar et al., SIGCOMM
//! 2020); section numbers are that paper's.
//!
//! Each acknowledgement's round trip is compared with a target (section 3.1): below it the window grows by
//! one packet in a round trip; above it the window shrinks by β times the excess, once in a round trip. The target
//! is higher for small windows, so that many flows share a queue (section 3.5, "flow-based scaling"). A window
//! below one packet is kept by pacing (section 3.6). The paper's term for the hops stands for what a path takes by
//! itself; the packets tell no hop count, so the lowest round trip measured on that path takes its place. The paper's second
//! window, for the delay in the hosts, is left out: the round trips here hold none of the peer's waiting before an
//! acknowledgement.

use super::{CongestionControl, Limits, Nanos, PathId, PathSample, Permit, Time};
use crate::path::BASE_PERIOD;
use serde::{Deserialize, Serialize};

/// What a large window may queue. The paper's 25 us suit NIC time stamps; here threads stamp time and wake late, which
/// takes ten times as much.
pub const BASE_TARGET: Nanos = Nanos::from_micros(250);
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
/// The longest pause between chunks, as between the probes of a path that is down: a chunk that was cut in a larger
/// window, sent in the least one, would pause for hundreds of round trips.
const PAUSE_MAX: Nanos = Nanos::from_secs(1);
/// The first window, packets (RFC 6928).
const WINDOW_FIRST: f64 = 10.0;

/// Swift's state for one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Swift {
    limits: Limits,
    base_target: Nanos,
    /// Packets.
    window: f64,
    before_timeout: Option<BeforeTimeout>,
    /// The newest round trip.
    rtt: Nanos,
    base: Base,
    decreased_at: Option<Time>,
    timeouts: u8,
    /// When the next chunk may go.
    next_at: Time,
}

/// What a timeout took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct BeforeTimeout {
    /// Packets.
    window: f64,
    /// It may be given back until then: a round trip after the peer was first heard again.
    until: Option<Time>,
}

impl BeforeTimeout {
    fn is_recent(&self, now: Time) -> bool {
        self.until.is_none_or(|until| now <= until)
    }
}

/// The lowest round trip of each path, of the last one to two periods.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Base {
    since: Time,
    /// Of the period under way and of the one before, ns; 0 where there is none.
    lowest: Vec<[u32; 2]>,
}

impl Base {
    fn new(paths: u16) -> Base {
        Base {
            since: Time::ZERO,
            lowest: vec![[0; 2]; paths.into()],
        }
    }

    /// Takes a round trip in; the lowest of its path, that one included.
    fn update(&mut self, now: Time, path: PathId, rtt: Nanos) -> Nanos {
        if now - self.since > BASE_PERIOD {
            self.since = now;
            for [current, previous] in &mut self.lowest {
                *previous = std::mem::take(current);
            }
        }
        let Some([current, previous]) = self.lowest.get_mut(usize::from(path.0)) else {
            return rtt;
        };
        let least = |a: u32, b: u32| if a == 0 { b } else { a.min(b) };
        let rtt = u32::try_from(rtt.get()).unwrap_or(u32::MAX).max(1);
        *current = least(*current, rtt);
        Nanos::new(least(*previous, *current).into())
    }
}

impl Swift {
    pub(super) fn new(limits: Limits, base_target: Nanos) -> Swift {
        Swift {
            limits,
            base_target,
            window: WINDOW_FIRST.min(limits.max as f64 / limits.packet as f64),
            before_timeout: None,
            rtt: base_target,
            base: Base::new(limits.paths),
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

    /// Section 3.5: target = base + max(0, min(α/√cwnd + β, fs_range)), of a path that takes `base` by itself.
    fn target(&self, base: Nanos) -> f64 {
        let base_target = self.base_target.get() as f64;
        let range = SCALING_RANGE * base_target;
        let (most, least) = (SCALING_FROM.sqrt().recip(), SCALING_TO.sqrt().recip());
        let scaled = range * (self.window.sqrt().recip() - least) / (most - least);
        base.get() as f64 + base_target + scaled.clamp(0.0, range)
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
            let round_trips = f64::from(bytes) / (self.window * self.limits.packet as f64);
            let pause = Nanos::new((self.rtt.get() as f64 * round_trips) as u64);
            let next_at = now + pause.min(PAUSE_MAX);
            // A tail-loss probe, which waits for no permit, shortens no pause.
            self.next_at = self.next_at.max(next_at);
        }
    }

    fn on_path_sample(&mut self, now: Time, sample: &PathSample, in_flight: u64) {
        let Some(rtt) = sample.rtt else { return };
        self.rtt = rtt;
        let base = self.base.update(now, sample.path, rtt);
        self.timeouts = 0;
        if let Some(before) = &mut self.before_timeout {
            before.until.get_or_insert(now + rtt);
        }
        let (delay, target) = (rtt.get() as f64, self.target(base));
        if delay > target {
            self.decrease(now, BETA * (delay - target) / delay);
            return;
        }
        // A sender with less to send than the window allows learns nothing. Below one packet it is the pace that allows,
        // however short what is sent is.
        if self.window < 1.0 || in_flight * 2 >= self.window() {
            // By INCREASE in a round trip, more of which no sample can tell; one of a whole chunk that was sent in a
            // larger window leads a window below one packet to one.
            let packets = f64::from(sample.packets);
            self.set(match self.window < 1.0 {
                true => (self.window + INCREASE * packets).min(1.0),
                false => self.window + INCREASE * (packets / self.window).min(1.0),
            });
        }
        if self.window >= 1.0 {
            self.next_at = now;
        }
    }

    fn on_loss(&mut self, now: Time, _packets: u64) {
        self.decrease(now, DECREASE_MAX);
    }

    fn on_timeout(&mut self, now: Time) {
        let before = self.before_timeout.filter(|before| before.is_recent(now));
        self.before_timeout = Some(BeforeTimeout {
            window: before.map_or(self.window, |before| before.window),
            until: None,
        });
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts >= RESET_TIMEOUTS {
            self.set(WINDOW_MIN);
        } else {
            self.decrease(now, DECREASE_MAX);
        }
    }

    fn on_spurious_timeout(&mut self, now: Time) {
        let before = self.before_timeout.take();
        if let Some(before) = before.filter(|before| before.is_recent(now)) {
            self.set(before.window.max(self.window));
            // The pause that the small window asked for.
            self.next_at = now;
        }
    }

    fn rebase(&mut self, now: Time) {
        self.decreased_at = None;
        self.next_at = now;
        self.before_timeout = None;
        self.base = Base::new(self.limits.paths);
    }

    fn heap_bytes(&self) -> usize {
        self.base.lowest.capacity() * size_of::<[u32; 2]>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        packet: 1_500,
        chunk: 64_500,
        max: 64_000_000,
        paths: 4,
    };

    /// The paper's.
    const TARGET: Nanos = Nanos::from_micros(25);

    fn us(n: u64) -> Time {
        Time::from_nanos(n * 1_000)
    }

    fn sample(swift: &mut Swift, at: Time, rtt: u64, packets: u32) {
        sample_on(swift, PathId(0), at, rtt, packets);
    }

    fn sample_on(swift: &mut Swift, path: PathId, at: Time, rtt: u64, packets: u32) {
        let sample = PathSample {
            path,
            rtt: Some(Nanos::from_micros(rtt)),
            packets,
            ce: 0,
            bytes: 0,
        };
        swift.on_path_sample(at, &sample, swift.window());
    }

    const BASE: Nanos = Nanos::from_micros(10);

    fn swift(window: f64) -> Swift {
        let mut swift = Swift::new(LIMITS, TARGET);
        swift.base.update(Time::ZERO, PathId(0), BASE);
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
        assert_eq!(swift(100.0).target(BASE), 35_000.0);
        assert_eq!(swift(1_000.0).target(BASE), 35_000.0);
        assert_eq!(swift(0.1).target(BASE), 160_000.0);
        assert_eq!(swift(0.01).target(BASE), 160_000.0);
        let middle = swift(1.0).target(BASE);
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
        swift.on_sent(us(5_000), PathId(0), 64_500);
        let waits = swift.may_send(PathId(0), 1_500, us(5_100));
        assert!(matches!(waits, Permit::At(at) if at > us(100_000)));
        swift.on_spurious_timeout(us(5_100));
        assert_eq!(swift.window, 50.0);
        let permit = swift.may_send(PathId(0), 1_500, us(5_100));
        assert_eq!(permit, Permit::Yes, "no pause of the least window is left");
    }

    #[test]
    fn uc6_a_timeout_is_given_back_after_an_answer_in_time_but_not_a_round_trip_later() {
        for (spurious_at, window) in [(1_030, 50.0), (1_031, 25.0)] {
            let mut swift = swift(50.0);
            swift.on_timeout(us(500));
            // Of what was sent again; too little is in flight for the window to grow.
            let sample = PathSample {
                path: PathId(0),
                rtt: Some(Nanos::from_micros(30)),
                packets: 1,
                ce: 0,
                bytes: 0,
            };
            swift.on_path_sample(us(1_000), &sample, 0);
            swift.on_spurious_timeout(us(spurious_at));
            assert_eq!(swift.window, window);
        }
    }

    #[test]
    fn uc6_a_path_that_takes_longer_by_itself_queues_nothing() {
        let mut swift = swift(20.0);
        for round in 0..20 {
            sample_on(&mut swift, PathId(1), us(1_000 + round), 210, 1);
        }
        assert!(swift.window > 20.9, "{}", swift.window);
        sample_on(&mut swift, PathId(1), us(2_000), 410, 1);
        assert!(swift.window < 20.0, "200 us more than by itself");
        // Two periods later it has become that long.
        for at in [11, 22] {
            let before = swift.window;
            sample_on(&mut swift, PathId(1), us(at * 1_000_000), 410, 1);
            assert_eq!(swift.window > before, at == 22, "{at} s");
        }
    }

    #[test]
    fn uc6_a_chunk_sent_in_a_larger_window_leads_one_below_a_packet_to_one_and_no_further() {
        let mut swift = swift(0.01);
        sample(&mut swift, us(1_000), 20, 43);
        assert_eq!(swift.window, 1.0);
        sample(&mut swift, us(1_100), 20, 43);
        assert_eq!(swift.window, 2.0);
    }

    #[test]
    fn uc6_short_chunks_lead_a_window_below_a_packet_to_one() {
        let mut swift = swift(0.01);
        let short = PathSample {
            path: PathId(0),
            rtt: Some(Nanos::from_micros(20)),
            packets: 1,
            ce: 0,
            bytes: 72,
        };
        swift.on_path_sample(us(1_000), &short, 72);
        assert_eq!(swift.window, 1.0);
        swift.on_path_sample(us(1_100), &short, 72);
        assert_eq!(swift.window, 1.0, "of a window of a packet they use little");
    }

    #[test]
    fn no_pause_is_longer_than_a_second() {
        let mut swift = swift(0.01);
        sample(&mut swift, us(1_000), 50_000, 0);
        swift.on_sent(us(2_000), PathId(0), 64_500);
        let permit = swift.may_send(PathId(0), 1_500, us(2_000));
        assert_eq!(permit, Permit::At(us(1_002_000)));
    }

    #[test]
    fn uc6_a_tail_probe_of_one_packet_does_not_shorten_the_pause_after_a_chunk() {
        let mut swift = swift(0.01);
        swift.on_sent(us(0), PathId(0), 64_500);
        let pause = swift.may_send(PathId(0), 1_500, us(1));
        swift.on_sent(us(1), PathId(1), 1_500);
        assert_eq!(swift.may_send(PathId(0), 1_500, us(1)), pause);
    }
}
