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
//! A delay counts only if its chunk was sent with at least half of the window in flight, or half of the previous
//! round's maximum where that is less. The first packets of a burst find an empty queue, however long the queue is
//! at its end: a relay sends each block that it has verified in one burst. Where no acknowledgement of a round names
//! such a chunk, as while a receiver's placements end late, all delays of the round count.
//!
//! The delay is the base round trip plus the queueing on the way there. What waits on the way back is the
//! peer's own traffic, which a smaller window here does not shorten: a relay's acknowledgements wait
//! behind all that it forwards. The queueing on the way there is what the one-way delay has above its
//! lowest (LEDBAT, RFC 6817, section 2.4.2), and never more than the round trip has above its own, so that a
//! clock that jumps or drifts (RFC 6817, appendix A.2) makes nothing worse than round trips alone would.
//!
//! Loss tells two things. Where the least loaded path queues about as much as it ever does, and about as much as
//! the others, a full queue on the way of all has dropped: the window is halved, as TCP's (RFC 5681, section
//! 3.1), and for [`LOSS_PERIOD`] grows as TCP's, by one packet per round, so that a TCP flow beside it keeps its share. Otherwise a link is failing, and up to
//! [`LOSS_TOLERATED`] of a round's packets is nothing to react to (STELLAR, Fig. 11); more takes half that share
//! off the window.

use super::{AckSample, CongestionControl, Limits, Nanos, OneWay, Time};
use serde::{Deserialize, Serialize};

/// DCTCP's gain for α (RFC 8257, section 4.2: g = 1/16).
const ALPHA_GAIN: f64 = 1.0 / 16.0;
/// Swift's multiplicative decrease factor (β = 0.8, section 3.1).
const RTT_BETA: f64 = 0.8;
/// No decrease takes more than half.
const DECREASE_MAX: f64 = 0.5;
/// The share of a round's packets whose loss is no sign of congestion; 3 % on one link is what
/// STELLAR's Fig. 11 tolerates, spread over the paths it is less.
const LOSS_TOLERATED: f64 = 0.02;
/// Queueing allowed on the least loaded path above the base round trip, at least. For threads that sleep: woken
/// late, they need about this much to keep a link busy. Where the worker busy-polls or the NIC stamps time,
/// 50 us (the two least retransmission timeouts, 5 ms and 250 us, differ for the same reason).
pub const TARGET_QUEUEING: Nanos = Nanos::from_millis(1);
/// Queueing allowed is also at least this many chunks' time at the rate of the last round, in quarters: a link must
/// have a chunk to send while the next one is on its way. Ours: a chain of eight links of 300 Mbit/s, where a
/// chunk of 62 KB takes 1.7 ms, took 1.20 of one link's time with 1 ms allowed, 1.12 with 2 ms.
const CHUNK_QUARTERS: u64 = 5;
/// Loss is congestion where the least loaded path's queueing reaches this part of the round's highest, and of its
/// own highest of late …
const LOSS_CREST_PART: u64 = 2;
/// … of which this part is forgotten in each round, so that a pause of the receiver is;
const CREST_FORGOTTEN_PART: u64 = 256;
/// … and at least this part of the target: less is noise.
const LOSS_TARGET_PART: u64 = 16;
/// How long after a congestive loss the window grows as TCP's. Above the time between two losses of TCP.
const LOSS_PERIOD: Nanos = Nanos::from_secs(10);
/// The base delays are the lowest of this long a period (as BBR's min_rtt, 10 s).
const BASE_PERIOD: Nanos = Nanos::from_secs(10);
/// The window starts with this many chunks (RFC 6928 starts with ten packets).
const INITIAL_CHUNKS: u64 = 8;
/// The window never falls below this many packets.
const MIN_PACKETS: u64 = 2;

/// `ecn_rtt`'s state for one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EcnRtt {
    limits: Limits,
    target_queueing: Nanos,
    window: f64,
    /// What the window was before the last timeout, until a whole round has passed since.
    before_timeout: Option<BeforeTimeout>,
    alpha: f64,
    slow_start: bool,
    round: Round,
    base: Base,
    /// The time of a full chunk at the rate of the last round that used the window.
    chunk_time: Nanos,
    /// The highest queueing of late, of the least loaded path.
    crest: Nanos,
    /// Whether the round before queued as if one link bounds all paths.
    was_full: bool,
    congestive_loss: Option<Time>,
    /// The most that was in flight in the round before.
    peak: u64,
}

/// What a timeout took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct BeforeTimeout {
    window: f64,
    /// The round in which it passed has ended, and the next is under way.
    round_ended: bool,
}

/// What one round has seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Round {
    /// When it began; absent once nothing was in flight, since its time tells no rate then.
    since: Option<Time>,
    /// Bytes until the round ends.
    left: u64,
    acked: u64,
    packets: u64,
    ce: u64,
    lost: u64,
    /// The lowest delays of chunks that were sent under load.
    lowest: Option<Delays>,
    /// The same of everything that was echoed.
    lowest_of_all: Option<Delays>,
    /// The highest queueing on the way there of an acknowledgement.
    highest: Nanos,
    /// The most that was in flight.
    in_flight: u64,
}

/// A round trip and the way there, each the lowest of its time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Delays {
    rtt: Nanos,
    one_way: OneWay,
}

impl Delays {
    /// The queueing on the way there, above `base`.
    fn queueing(self, base: Delays) -> Nanos {
        let there_and_back = Nanos::new(self.rtt.get().saturating_sub(base.rtt.get()));
        self.one_way.beyond(base.one_way).min(there_and_back)
    }

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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    pub(super) fn new(limits: Limits, target_queueing: Nanos) -> EcnRtt {
        let mut new = EcnRtt {
            limits,
            target_queueing,
            window: 0.0,
            before_timeout: None,
            alpha: 0.0,
            slow_start: true,
            round: Round::default(),
            base: Base::default(),
            chunk_time: Nanos::ZERO,
            crest: Nanos::ZERO,
            was_full: false,
            congestive_loss: None,
            peak: 0,
        };
        new.set((limits.chunk * INITIAL_CHUNKS) as f64);
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

    fn end_round(&mut self, now: Time) {
        let next = Round {
            since: Some(now),
            ..Round::default()
        };
        let round = core::mem::replace(&mut self.round, next);
        self.peak = round.in_flight;
        // An answer to what was sent before the timeout comes within a round trip; what the window was
        // longer ago says nothing of the network now.
        self.before_timeout = self
            .before_timeout
            .filter(|before| !before.round_ended)
            .map(|before| BeforeTimeout {
                round_ended: true,
                ..before
            });
        // A sender with less to send than the window allows learns nothing of the rate.
        let used = round.in_flight * 2 >= self.window();
        if let Some(since) = round.since.filter(|_| used && round.acked > 0) {
            let chunks_time = (now - since).times(self.limits.chunk);
            self.chunk_time = Nanos::new(chunks_time.get() / round.acked);
        }
        let marked = round.ce as f64 / round.packets.max(1) as f64;
        self.alpha += ALPHA_GAIN * (marked - self.alpha);
        let marks = if round.ce > 0 { self.alpha / 2.0 } else { 0.0 };
        let (queueing, excess) = self.queueing(round.lowest.or(round.lowest_of_all));
        let loss = self.loss(now, &round, queueing);
        let share = marks.max(RTT_BETA * excess).max(loss);
        if share > 0.0 {
            self.decrease(share);
        } else if !used {
            // Nothing was learnt.
        } else if self.slow_start {
            self.set(self.window * 2.0);
        } else if self
            .congestive_loss
            .is_some_and(|at| now - at < LOSS_PERIOD)
        {
            self.set(self.window + self.limits.packet as f64);
        } else {
            self.set(self.window + self.limits.chunk as f64);
        }
        self.round.left = self.window();
    }

    /// The queueing on the way there of a round's least loaded path, and by what share of itself the delay
    /// exceeds its target.
    fn queueing(&self, lowest: Option<Delays>) -> (Nanos, f64) {
        let (Some(lowest), Some(base)) = (lowest, self.base.get()) else {
            return (Nanos::ZERO, 0.0);
        };
        let queueing = lowest.queueing(base);
        let chunks = Nanos::new(self.chunk_time.times(CHUNK_QUARTERS).get() / 4);
        let target = self.target_queueing.max(chunks).max(base.rtt);
        let above = queueing.get().saturating_sub(target.get());
        let delay = (base.rtt + queueing).get().max(1);
        (queueing, above as f64 / delay as f64)
    }

    /// The share of the window that a round's losses take.
    fn loss(&mut self, now: Time, round: &Round, queueing: Nanos) -> f64 {
        let forgotten = self.crest.get() / CREST_FORGOTTEN_PART;
        self.crest = Nanos::new(self.crest.get() - forgotten).max(queueing);
        let target = self.target_queueing.get();
        let noise = target / LOSS_TARGET_PART;
        let threshold = (self.crest.get() / LOSS_CREST_PART).min(target).max(noise);
        let fullest = round.highest.get() / LOSS_CREST_PART;
        let full = queueing.get() >= threshold.max(fullest).max(1);
        // What a loss tells of comes to light a round trip later, when the queue may have drained.
        let was_full = core::mem::replace(&mut self.was_full, full);
        if round.lost == 0 {
            return 0.0;
        }
        let lost = round.lost as f64 / (round.packets + round.lost) as f64;
        if full || was_full {
            // What slow start overshot says nothing of others on the link.
            if !self.slow_start {
                self.congestive_loss = Some(now);
            }
            DECREASE_MAX
        } else if lost > LOSS_TOLERATED {
            lost / 2.0
        } else {
            0.0
        }
    }
}

impl CongestionControl for EcnRtt {
    #[inline]
    fn window(&self) -> u64 {
        self.window as u64
    }

    #[inline]
    fn chunk_bytes(&self) -> u64 {
        self.limits.chunk_bytes(self.window())
    }

    fn on_ack(&mut self, now: Time, sample: &AckSample) {
        if let (Some(rtt), Some(one_way)) = (sample.rtt, sample.one_way) {
            let delays = Delays { rtt, one_way };
            self.base.update(now, delays);
            if let Some(base) = self.base.get() {
                self.round.highest = self.round.highest.max(delays.queueing(base));
            }
            self.round.lowest_of_all = lowest(self.round.lowest_of_all, Some(delays));
            let full = self.window().min(self.peak);
            let is_loaded = |bytes: u64| bytes * 2 >= full;
            if sample.tx_in_flight.is_some_and(is_loaded) {
                self.round.lowest = lowest(self.round.lowest, Some(delays));
            }
        }
        self.round.packets += sample.packets;
        self.round.ce += sample.ce;
        self.round.in_flight = self.round.in_flight.max(sample.in_flight);
        self.round.acked += sample.bytes;
        self.round.left = self.round.left.saturating_sub(sample.bytes);
        if self.round.left == 0 {
            self.end_round(now);
        }
        if sample.in_flight <= sample.bytes {
            self.round.since = None;
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

    fn on_spurious_timeout(&mut self, _now: Time) {
        if let Some(before) = self.before_timeout.take() {
            self.set(before.window.max(self.window));
        }
    }

    fn rebase(&mut self, now: Time) {
        self.base = Base::default();
        self.congestive_loss = self.congestive_loss.map(|_| now);
        // Queueing was measured above a base that is no more.
        self.crest = Nanos::ZERO;
        self.was_full = false;
        self.round.since = None;
        self.round.lowest = None;
        self.round.lowest_of_all = None;
        self.round.highest = Nanos::ZERO;
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
        paths: 1,
    };

    /// A round whose lowest round trip is spent on the way there.
    fn round(cc: &mut EcnRtt, ce: u64, rtt: Nanos) {
        round_with(cc, ce, rtt, rtt);
    }

    fn round_with(cc: &mut EcnRtt, ce: u64, rtt: Nanos, there: Nanos) {
        let bytes = cc.window();
        let sample = AckSample {
            in_flight: bytes,
            ce,
            rtt: Some(rtt),
            ..sample(Time::ZERO, bytes, there)
        };
        cc.on_ack(Time::ZERO, &sample);
    }

    /// Of a whole window, sent at `sent_at`, whose round trip was spent on the way there.
    fn sample(sent_at: Time, bytes: u64, rtt: Nanos) -> AckSample {
        let arrived = APART.wrapping_add((sent_at + rtt).to_wire());
        AckSample {
            bytes,
            in_flight: 1 << 40,
            tx_in_flight: Some(1 << 40),
            packets: 100,
            ce: 0,
            rtt: Some(rtt),
            one_way: Some(OneWay::new(sent_at.to_wire(), arrived)),
        }
    }

    fn control(window: Option<u64>) -> EcnRtt {
        let mut cc = EcnRtt::new(LIMITS, Nanos::from_millis(2));
        if let Some(window) = window {
            cc.slow_start = false;
            cc.set(window as f64);
            cc.round.left = window;
        }
        cc
    }

    #[test]
    fn the_window_doubles_until_the_first_mark_then_grows_by_a_chunk() {
        let mut cc = control(None);
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
        let mut cc = control(Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        round(&mut cc, 0, Nanos::from_micros(4_200));
        assert_eq!(cc.window(), (before as f64 * (1.0 - 0.8 * 0.5)) as u64);
    }

    #[test]
    fn queueing_on_the_way_back_does_not_shrink_the_window() {
        let mut cc = control(Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        round_with(&mut cc, 0, Nanos::from_millis(20), Nanos::from_micros(100));
        assert_eq!(cc.window(), before + LIMITS.chunk);
    }

    #[test]
    fn a_burst_whose_end_queues_shrinks_the_window() {
        let mut cc = control(Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        for (quarter, rtt) in [(1, 100), (2, 4_200), (3, 6_000), (4, 8_000)] {
            let rtt = Nanos::from_micros(rtt);
            let sample = AckSample {
                tx_in_flight: Some(before / 4 * quarter),
                ..sample(Time::ZERO, before / 4 + 1, rtt)
            };
            cc.on_ack(Time::ZERO + rtt, &sample);
        }
        assert_eq!(cc.window(), (before as f64 * (1.0 - 0.8 * 0.5)) as u64);
    }

    #[test]
    fn after_a_decrease_half_of_the_new_window_is_load_enough() {
        let mut cc = control(Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        cc.on_timeout(Time::ZERO);
        let before = cc.window();
        let sample = AckSample {
            tx_in_flight: Some(before / 2),
            ..sample(Time::ZERO, LIMITS.max, Nanos::from_micros(4_200))
        };
        cc.on_ack(Time::ZERO, &sample);
        assert!(cc.window() < before, "{} of {before}", cc.window());
    }

    /// The window after a round of one echo that names no chunk and took `echoed`, and of a window under load
    /// that took `named`, if it was measured.
    fn after_an_unnamed_echo(echoed: Nanos, named: Option<Nanos>) -> (u64, u64) {
        let mut cc = control(Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        let echo = AckSample {
            tx_in_flight: None,
            ..sample(Time::ZERO, 0, echoed)
        };
        cc.on_ack(Time::ZERO, &echo);
        let acked = AckSample {
            rtt: named,
            ..sample(Time::ZERO, LIMITS.max, named.unwrap_or(Nanos::ZERO))
        };
        cc.on_ack(Time::ZERO, &acked);
        (before, cc.window())
    }

    #[test]
    fn delays_of_packets_that_no_chunk_is_named_for_count_where_there_are_no_others() {
        let (before, after) = after_an_unnamed_echo(Nanos::from_micros(4_200), None);
        assert!(after < before, "{after} of {before}");
    }

    #[test]
    fn first_packets_of_a_burst_echoed_before_their_chunk_is_whole_hide_no_queue() {
        let queued = Nanos::from_micros(4_200);
        let (before, after) = after_an_unnamed_echo(Nanos::from_micros(100), Some(queued));
        assert!(after < before, "{after} of {before}");
    }

    #[test]
    fn a_clock_that_jumps_counts_for_no_more_than_the_round_trip() {
        let mut cc = control(Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        round_with(&mut cc, 0, Nanos::from_micros(100), Nanos::from_secs(5));
        assert_eq!(cc.window(), before + LIMITS.chunk);
    }

    #[test]
    fn one_percent_of_loss_is_no_congestion() {
        let mut cc = control(Some(1_000_000));
        cc.on_loss(Time::ZERO, 1);
        round(&mut cc, 0, Nanos::from_micros(100));
        assert_eq!(cc.window(), 1_000_000 + LIMITS.chunk);
    }

    #[test]
    fn one_percent_of_loss_from_a_full_queue_halves_the_window_which_then_grows_by_a_packet() {
        let mut cc = control(Some(1_000_000));
        round(&mut cc, 0, Nanos::from_micros(100));
        let before = cc.window();
        cc.on_loss(Time::ZERO, 1);
        // 1 ms of queueing is below the target of 2 ms, and all that there is.
        round(&mut cc, 0, Nanos::from_micros(1_100));
        assert_eq!(cc.window(), before / 2);
        round(&mut cc, 0, Nanos::from_micros(100));
        assert_eq!(cc.window(), before / 2 + LIMITS.packet);
    }

    #[test]
    fn loss_from_an_empty_queue_is_no_congestion_however_full_it_was() {
        let mut cc = control(Some(1_000_000));
        for rtt in [100, 1_100, 100, 100] {
            round(&mut cc, 0, Nanos::from_micros(rtt));
        }
        let before = cc.window();
        cc.on_loss(Time::ZERO, 1);
        round(&mut cc, 0, Nanos::from_micros(150));
        assert_eq!(cc.window(), before + LIMITS.chunk);
    }

    #[test]
    fn a_full_queue_of_before_a_restore_makes_no_loss_after_it_congestive() {
        let mut cc = control(Some(1_000_000));
        for rtt in [100, 1_100] {
            round(&mut cc, 0, Nanos::from_micros(rtt));
        }
        cc.rebase(Time::ZERO);
        let before = cc.window();
        cc.on_loss(Time::ZERO, 1);
        round(&mut cc, 0, Nanos::from_micros(100));
        assert_eq!(cc.window(), before + LIMITS.chunk);
    }

    #[test]
    fn a_slow_link_may_queue_a_chunk_and_a_quarter() {
        let mut cc = EcnRtt::new(LIMITS, Nanos::from_micros(50));
        cc.slow_start = false;
        let mut now = Time::ZERO;
        // 300 Mbit/s: a chunk of 64,000 B takes 1.7 ms.
        for rtt in [100, 2_000, 2_000] {
            let bytes = cc.round.left;
            now = now + Nanos::new(bytes * 8 * 1_000 / 300);
            let rtt = Nanos::from_micros(rtt);
            let before = cc.window();
            cc.on_ack(now, &sample(now, bytes, rtt));
            assert_eq!(cc.window(), before + LIMITS.chunk, "{rtt:?}");
        }
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut cc = control(Some(1_000_000));
        let sample = AckSample {
            bytes: 1_000_000,
            in_flight: 9_000,
            ..AckSample::default()
        };
        cc.on_ack(Time::ZERO, &sample);
        assert_eq!(cc.window(), 1_000_000);
    }

    #[test]
    fn a_spurious_timeout_gives_the_window_back() {
        let mut cc = control(Some(1_000_000));
        cc.on_timeout(Time::ZERO);
        assert_eq!(cc.window(), 500_000);
        cc.on_timeout(Time::ZERO);
        cc.on_spurious_timeout(Time::ZERO);
        assert_eq!(cc.window(), 1_000_000);
    }

    #[test]
    fn a_timeout_long_ago_gives_nothing_back() {
        let mut cc = control(Some(1_000_000));
        cc.on_timeout(Time::ZERO);
        // The round under way was begun with twice the window.
        for _ in 0..3 {
            round(&mut cc, 100, Nanos::from_micros(100));
        }
        let before = cc.window();
        cc.on_spurious_timeout(Time::ZERO);
        assert_eq!(cc.window(), before);
    }

    #[test]
    fn the_window_stays_within_its_limits() {
        let mut cc = control(None);
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
