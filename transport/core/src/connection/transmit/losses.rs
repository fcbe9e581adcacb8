//! What is taken for lost: overtaken by later packets, overtaken by later chunks, or not answered in time.

use super::Transmit;
use crate::connection::Stats;
use crate::path::PathSet;
use crate::recovery::{
    ACK_DELAY, DUPLICATE_THRESHOLD, OVERTAKEN_THRESHOLD, Sent, SentState, full_map,
};
use crate::units::{ChunkNumber, Nanos, Time};

/// The retransmission timeout doubles at most this often while nothing comes back.
const BACKOFF_MAX: u32 = 6;

/// What a timeout brought.
#[derive(Default)]
pub(in crate::connection) struct TimedOut {
    pub(in crate::connection) packets_lost: u64,
    /// Nothing at all came back for a whole timeout.
    pub(in crate::connection) silence: bool,
}

impl Transmit {
    /// Some packets of a chunk have arrived. Those that enough later ones have overtaken, on the
    /// one path that all took, are lost; what is behind the last arrival is still on its way, and
    /// asked for when its own timer says so. Returns how many are lost.
    pub(super) fn note_partial(
        &mut self,
        chunk: ChunkNumber,
        packets: u64,
        stats: &mut Stats,
    ) -> u64 {
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
        self.in_flight -= u64::from(sent.in_flight);
        self.board.lose(chunk, missing);
        self.lost.push_back(chunk);
        u64::from(missing.count_ones())
    }

    /// Takes for lost what later transmissions have overtaken by more than reordering explains:
    /// [`DUPLICATE_THRESHOLD`] transmissions and the bound of a round trip on its path (RACK,
    /// RFC 8985, with the variation over all paths as its reordering window). Returns the packets.
    pub(in crate::connection) fn detect_losses(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        stats: &mut Stats,
    ) -> u64 {
        let mut packets = 0;
        while let Some((chunk, sent)) = self.board.oldest() {
            match self.overtaken_at(sent, paths) {
                Some(at) if at <= now => packets += self.lose(now, chunk, paths, stats),
                _ => break,
            }
        }
        packets
    }

    fn overtaken_at(&self, sent: &Sent, paths: &PathSet) -> Option<Time> {
        let overtaken = self.newest_acked >= sent.order + DUPLICATE_THRESHOLD;
        let bound = paths.round_trip_bound(sent.path)?;
        overtaken.then(|| sent.sent_at + bound)
    }

    fn lose(
        &mut self,
        now: Time,
        chunk: ChunkNumber,
        paths: &mut PathSet,
        stats: &mut Stats,
    ) -> u64 {
        let sent = *self.board.get(chunk);
        let lost = full_map(sent.packets) & !sent.arrived;
        if sent.arrived != 0 {
            stats.chunks_partly_lost += 1;
        }
        self.in_flight -= u64::from(sent.in_flight);
        self.board.lose(chunk, missing(&sent));
        self.lost.push_back(chunk);
        paths.on_loss(now, sent.path, sent.sent_at);
        u64::from(lost.count_ones())
    }

    fn timeout(&self, sent: &Sent, paths: &PathSet) -> Nanos {
        single_timeout(sent, paths).times(1 << self.backoff)
    }

    /// When the oldest transmission times out or is known to be overtaken, or a parked one is due.
    pub(in crate::connection) fn poll_timeout(&self, paths: &PathSet) -> Option<Time> {
        let waits = self.parked_probe.is_none() && !self.parked.is_empty();
        let parked = waits.then_some(self.parked_until);
        let in_flight = self.board.oldest();
        let oldest = in_flight.map(|(_, sent)| self.oldest_timeout(sent, paths));
        [parked, oldest].into_iter().flatten().min()
    }

    fn oldest_timeout(&self, sent: &Sent, paths: &PathSet) -> Time {
        let timeout = match self.rearmed {
            Some((order, at)) if order == sent.order => at,
            _ => sent.sent_at + self.timeout(sent, paths),
        };
        self.overtaken_at(sent, paths)
            .map_or(timeout, |at| at.min(timeout))
    }

    pub(in crate::connection) fn handle_timeout(
        &mut self,
        now: Time,
        paths: &mut PathSet,
        stats: &mut Stats,
    ) -> TimedOut {
        let mut out = TimedOut::default();
        let Some((_, sent)) = self.board.oldest() else {
            return out;
        };
        let rto = self.timeout(sent, paths);
        let half = Nanos::new(rto.get() / 2);
        match self.rearmed {
            Some((order, at)) if order == sent.order => {
                if at > now {
                    return out;
                }
            }
            _ => {
                let due = sent.sent_at + rto;
                if due > now {
                    return out;
                }
                if now - due > half {
                    // This end slept: give what lies in the socket a chance to be read first.
                    self.rearmed = Some((sent.order, now + half));
                    stats.late_timers += 1;
                    return out;
                }
            }
        }
        self.rearmed = None;
        stats.timeouts += 1;
        out.silence = now - self.heard >= rto;
        while let Some((chunk, sent)) = self.board.oldest() {
            // In silence what was sent with the oldest is as lost (RFC 5681, section 3.1): it would wait twice
            // as long each time, and fill a window that has room for one chunk by then.
            let waits = match out.silence {
                true => single_timeout(sent, paths),
                false => rto.max(self.timeout(sent, paths)),
            };
            if sent.sent_at + waits > now {
                break;
            }
            out.packets_lost += self.lose(now, chunk, paths, stats);
        }
        if out.silence {
            self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        }
        out
    }
}

/// How long an answer is waited for, as long as answers come.
fn single_timeout(sent: &Sent, paths: &PathSet) -> Nanos {
    let put_off = if sent.asks { Nanos::ZERO } else { ACK_DELAY };
    paths.rto(sent.path, put_off)
}

/// The packets of a chunk to send again; all of them when each has arrived, but never the whole.
pub(super) fn missing(sent: &Sent) -> u64 {
    match full_map(sent.packets) & !sent.arrived {
        0 => full_map(sent.packets),
        missing => missing,
    }
}

/// The highest set bit of a map, 0 for an empty one.
fn highest_bit(map: u64) -> u64 {
    if map == 0 {
        0
    } else {
        1 << (63 - map.leading_zeros())
    }
}
