//! What is declared lost: overtaken by later packets, overtaken by later chunks, or not answered in time;
//! and the tail-loss probe, which asks where nothing later can overtake.
//!
//! Each chunk has a time of its own by the path that it took, so that a slow path holds nothing up on a
//! fast one. The retransmission timer stands for all of them: it is due no later than the first. An answer
//! does not move it; when it is served for nothing, it is set anew for what is in flight then.

use super::{Acked, SendHalf};
use crate::connection::Stats;
use crate::connection::timer::{Timer, TimerTable};
use crate::path::{PathPolicy, PathSet, Policy};
use crate::recovery::{
    ACK_DELAY, DUPLICATE_THRESHOLD, OVERTAKEN_THRESHOLD, Sent, SentState, full_map,
};
use crate::units::{ChunkNumber, Nanos, PathId, Time};

/// The retransmission timeout doubles at most this often while nothing comes back.
const BACKOFF_MAX: u32 = 6;

/// A tail-loss probe is sent this many smoothed round trips after the newest chunk, if nothing is heard
/// (RFC 8985, section 7.2: PTO = 2 · SRTT); never before what a round trip rarely exceeds (RFC 9002,
/// section 6.2.1).
const TAIL_PROBE_ROUND_TRIPS: u64 = 2;

/// On a reliable link nothing is lost on the way, but a peer drops what comes before it is told of the connection: until
/// the peer has answered, one packet at a time is under way, and sent again after this.
const FIRST_ANSWER: Nanos = Nanos::from_millis(20);

/// What a timeout brought.
#[derive(Default)]
pub(in crate::connection) struct TimedOut {
    pub(in crate::connection) packets_lost: u64,
    /// Nothing at all came back for a whole timeout.
    pub(in crate::connection) silence: bool,
}

/// How the retransmission timer is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Serving {
    #[default]
    OnTime,
    /// It was served so late that it was put off once: what lies in the socket is read first.
    PutOff,
}

/// The tail-loss probe: one packet of the newest chunk in flight, sent again on another path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum TailProbe {
    /// None was sent since an answer brought something new.
    #[default]
    None,
    /// One goes next.
    Due,
    /// One was sent.
    Sent {
        chunk: ChunkNumber,
        /// The packet, as a map.
        packet: u64,
        sent_at: Time,
        /// Its place among all transmissions.
        order: u64,
    },
}

impl SendHalf {
    /// Some packets of a chunk have arrived. Those that enough later ones have overtaken, on the
    /// one path that all took, are lost; what is behind the last arrival is still on its way, and
    /// asked for when its own timer says so. Returns how many are lost.
    pub(super) fn note_partial(
        &mut self,
        now: Time,
        chunk: ChunkNumber,
        packets: u64,
        paths: &PathSet,
        stats: &mut Stats,
    ) -> u64 {
        self.is_tail_probe_answered(now, chunk, packets, paths);
        self.board.note_arrived(chunk, packets);
        let sent = *self.board.get(chunk);
        if sent.state != SentState::InFlight || sent.transmissions > 1 {
            return 0;
        }
        let mut overtaking = sent.arrived;
        for _ in 1..OVERTAKEN_THRESHOLD {
            overtaking &= !highest_bit(overtaking);
        }
        let missing = !sent.arrived & highest_bit(overtaking).saturating_sub(1);
        if missing == 0 {
            return 0;
        }
        stats.chunks_partly_lost += 1;
        self.in_flight.remove(sent.path, sent.in_flight);
        self.board.lose(chunk, missing);
        self.lost.push_back(chunk);
        u64::from(missing.count_ones())
    }

    /// Declares lost what later transmissions have overtaken by more than reordering explains:
    /// [`DUPLICATE_THRESHOLD`] transmissions and the bound of a round trip on its path (RACK,
    /// RFC 8985, with the variation over all paths as its reordering window). Sets the timer for what
    /// was overtaken and may yet be on its way. Returns the packets.
    pub(in crate::connection) fn detect_losses(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        policy: &mut Policy,
        timers: &mut TimerTable,
        stats: &mut Stats,
    ) -> u64 {
        timers.stop(Timer::Loss);
        if paths.is_reliable() {
            // Each path keeps its own order, and they differ in speed.
            return 0;
        }
        let mut packets = 0;
        let mut oldest = self.board.oldest();
        while let Some(chunk) = oldest {
            let sent = *self.board.get(chunk);
            if self.newest_acked < sent.order + DUPLICATE_THRESHOLD {
                break;
            }
            oldest = self.board.newer(chunk);
            let bound = paths.round_trip_bound(sent.path);
            let at = sent.sent_at + bound.unwrap_or_else(|| paths.rto(sent.path, Nanos::ZERO));
            if at <= now {
                packets += self.lose(now, chunk, paths, policy, stats);
            } else {
                timers.set_earlier(Timer::Loss, at);
            }
        }
        packets
    }

    fn lose(
        &mut self,
        now: Time,
        chunk: ChunkNumber,
        paths: &mut PathSet,
        policy: &mut Policy,
        stats: &mut Stats,
    ) -> u64 {
        let sent = *self.board.get(chunk);
        let lost = full_map(sent.packets) & !sent.arrived;
        if sent.arrived != 0 {
            stats.chunks_partly_lost += 1;
        }
        self.in_flight.remove(sent.path, sent.in_flight);
        self.board.lose(chunk, missing(&sent));
        self.lost.push_back(chunk);
        paths.on_loss(now, sent.path, sent.sent_at);
        policy.on_loss(now, sent.path, lost.count_ones());
        u64::from(lost.count_ones())
    }

    /// The link says that what was under way on `path` is lost. Returns the packets.
    pub(in crate::connection) fn lose_path(
        &mut self,
        now: Time,
        path: PathId,
        paths: &mut PathSet,
        policy: &mut Policy,
        timers: &mut TimerTable,
        stats: &mut Stats,
    ) -> u64 {
        let mut packets = 0;
        let mut oldest = self.board.oldest();
        while let Some(chunk) = oldest {
            oldest = self.board.newer(chunk);
            if self.board.get(chunk).path == path {
                packets += self.lose(now, chunk, paths, policy, stats);
            }
        }
        self.set_retransmission(paths, timers);
        packets
    }

    /// Whether the link is reliable, and the peer has not acknowledged anything yet.
    pub(super) fn is_unheard(&self, paths: &PathSet) -> bool {
        paths.is_reliable() && self.newest_acked == 0
    }

    /// How long an answer is waited for, as long as answers come.
    #[inline]
    fn single_timeout(&self, sent: &Sent, paths: &PathSet) -> Nanos {
        match self.is_unheard(paths) {
            true => FIRST_ANSWER,
            false => paths.rto(sent.path, put_off(sent)),
        }
    }

    #[inline]
    fn timeout(&self, sent: &Sent, paths: &PathSet) -> Nanos {
        self.single_timeout(sent, paths).times(1 << self.backoff)
    }

    /// Sets the timers of what was just sent.
    #[inline(always)]
    pub(super) fn expect_answer(&self, sent: &Sent, paths: &PathSet, timers: &mut TimerTable) {
        let timeout = sent.sent_at + self.timeout(sent, paths);
        timers.set_earlier(Timer::Retransmission, timeout);
        if sent.ack_now {
            self.set_tail_probe(sent.sent_at, sent, paths, timers);
        }
    }

    /// Starts the tail-loss probe's time: something was sent that asks for its answer, or heard.
    fn set_tail_probe(&self, now: Time, sent: &Sent, paths: &PathSet, timers: &mut TimerTable) {
        let measured = paths.srtt().zip(paths.round_trip_bound(sent.path));
        let may_probe = self.tail_probe == TailProbe::None && !paths.is_reliable();
        let Some((srtt, bound)) = measured.filter(|_| may_probe) else {
            return;
        };
        let round_trips = srtt.times(TAIL_PROBE_ROUND_TRIPS).max(bound);
        timers.set(Timer::TailProbe, now + round_trips + put_off(sent));
    }

    /// An acknowledgement was taken in, and the losses that it tells of. `new`: it brought something new.
    pub(in crate::connection) fn reset_timers(
        &mut self,
        now: Time,
        new: bool,
        paths: &PathSet,
        timers: &mut TimerTable,
    ) {
        if new {
            self.tail_probe = TailProbe::None;
        }
        let Some(newest) = self.board.newest() else {
            for timer in [Timer::Loss, Timer::Retransmission, Timer::TailProbe] {
                timers.stop(timer);
            }
            return;
        };
        if new {
            self.set_tail_probe(now, self.board.get(newest), paths, timers);
        }
    }

    /// The first timeout of what is in flight: when, and how long it is.
    fn next_timeout(&self, paths: &PathSet) -> Option<(Time, Nanos)> {
        let timeouts = self.board.in_flight().map(|sent| {
            let timeout = self.timeout(sent, paths);
            (sent.sent_at + timeout, timeout)
        });
        timeouts.min()
    }

    pub(in crate::connection) fn set_retransmission(
        &self,
        paths: &PathSet,
        timers: &mut TimerTable,
    ) {
        match self.next_timeout(paths) {
            Some((at, _)) => timers.set(Timer::Retransmission, at),
            None => timers.stop(Timer::Retransmission),
        }
    }

    pub(in crate::connection) fn handle_retransmission(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        policy: &mut Policy,
        timers: &mut TimerTable,
        stats: &mut Stats,
    ) -> TimedOut {
        let mut out = TimedOut::default();
        let Some((due, rto)) = self.next_timeout(paths) else {
            return out;
        };
        if due > now {
            timers.set(Timer::Retransmission, due);
            return out;
        }
        let half = Nanos::new(rto.get() / 2);
        if self.serving == Serving::OnTime && now - due > half {
            // This end slept: give what lies in the socket a chance to be read first.
            self.serving = Serving::PutOff;
            timers.set(Timer::Retransmission, now + half);
            stats.late_timers += 1;
            return out;
        }
        self.serving = Serving::OnTime;
        stats.timeouts += 1;
        out.silence = now - self.heard >= rto;
        let mut oldest = self.board.oldest();
        while let Some(chunk) = oldest {
            oldest = self.board.newer(chunk);
            let sent = self.board.get(chunk);
            // In silence what was sent with the oldest is as lost (RFC 5681, section 3.1): it would wait twice
            // as long each time, and fill a window that has room for one chunk by then.
            let waits = match out.silence {
                true => self.single_timeout(sent, paths),
                false => self.timeout(sent, paths),
            };
            if sent.sent_at + waits <= now {
                out.packets_lost += self.lose(now, chunk, paths, policy, stats);
            }
        }
        if out.silence {
            self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        }
        self.set_retransmission(paths, timers);
        out
    }

    /// Nothing was heard for long enough: the newest chunk may be lost, with no later one to tell. Where
    /// losses are known they are mended first.
    pub(in crate::connection) fn handle_tail_probe(&mut self) {
        if self.lost.is_empty() && self.tail_probe == TailProbe::None {
            self.tail_probe = TailProbe::Due;
        }
    }

    /// Whether the tail-loss probe has arrived, when these packets of a chunk have. If so, what was sent
    /// before it is overtaken by it, however few were sent since (RFC 8985, section 7.4). An answer that
    /// came too soon was to the chunk's first transmission.
    fn is_tail_probe_answered(
        &mut self,
        now: Time,
        chunk: ChunkNumber,
        packets: u64,
        paths: &PathSet,
    ) -> bool {
        let TailProbe::Sent {
            chunk: probed,
            packet,
            sent_at,
            order,
        } = self.tail_probe
        else {
            return false;
        };
        let answered =
            probed == chunk && packets & packet != 0 && !answered_too_soon(now, sent_at, paths);
        if answered {
            self.newest_acked = self.newest_acked.max(order + DUPLICATE_THRESHOLD - 1);
        }
        answered
    }

    /// A chunk has arrived whole, after a tail-loss probe was due.
    pub(super) fn end_tail_probe(
        &mut self,
        now: Time,
        chunk: ChunkNumber,
        paths: &mut PathSet,
        acked: &mut Acked,
    ) {
        let sent = *self.board.get(chunk);
        let all = full_map(sent.packets);
        let alone = (all & !sent.arrived).count_ones() == 1;
        if self.is_tail_probe_answered(now, chunk, all, paths) && alone {
            // The probe has mended a loss, and hidden it thereby (RFC 8985, section 7.4.2).
            acked.packets_lost += 1;
            paths.on_loss(now, sent.path, sent.sent_at);
        }
    }
}

/// Whether the answer to something sent at `sent_at` came before it can have arrived (after Eifel, RFC 3522).
pub(super) fn answered_too_soon(now: Time, sent_at: Time, paths: &PathSet) -> bool {
    let half = paths.srtt().unwrap_or(Nanos::ZERO).get() / 2;
    (now - sent_at).get() < half
}

/// How long the peer may put its answer off.
fn put_off(sent: &Sent) -> Nanos {
    if sent.ack_now { Nanos::ZERO } else { ACK_DELAY }
}

/// The packets of a chunk to send again; all of them when each has arrived, but never the whole.
pub(super) fn missing(sent: &Sent) -> u64 {
    match full_map(sent.packets) & !sent.arrived {
        0 => full_map(sent.packets),
        missing => missing,
    }
}

/// The highest set bit of a map, 0 for an empty one.
pub(super) fn highest_bit(map: u64) -> u64 {
    if map == 0 {
        0
    } else {
        1 << (63 - map.leading_zeros())
    }
}
