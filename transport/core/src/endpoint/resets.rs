//! Resets: answers to packets that name no connection of this endpoint.
//!
//! A peer's restart is known to the other end after one round trip. A Reset is no longer than the packet that
//! elicits it, so nothing is amplified; the limits keep a flood from costing this end its time. Each limit is
//! per bucket of source hosts: a sender of made-up packets uses up the budget of its own bucket (or, with
//! made-up sources, little of each), and an honest peer still gets its Reset. Used by the endpoint only.

use crate::units::{ConnectionId, Nanos, PathId, Source, Time};

/// Buckets that the hosts are hashed to. 1,000 packets a second from made-up sources take four a second of
/// each, of the 250 that it has.
const BUCKETS: usize = 256;

/// Resets that one bucket allows at once after a quiet time: a restarted node is asked on several paths and
/// for several connections.
const BURST: u64 = 64;

/// After the burst one bucket allows one Reset in 4 ms. All buckets together: 64,000 Resets of 16 bytes a
/// second, 1 MB/s.
const INTERVAL: Nanos = Nanos::from_millis(4);

/// Resets that wait to be sent at most: what one turn can receive. A packet beyond that is answered when its
/// sender sends it again.
const PENDING_MAX: usize = 256;

/// A Reset to be sent; the caller adds the token, which needs the node's secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingReset {
    /// Where the packet came from.
    pub to: Source,
    /// The path that the packet named.
    pub path: PathId,
    /// The connection that the packet named.
    pub connection: ConnectionId,
}

/// The Resets to be sent, and the budgets.
#[derive(Debug)]
pub(super) struct Resets {
    pending: Vec<PendingReset>,
    /// By bucket: the time up to which its budget is spent, at most a burst ahead.
    spent_until: Box<[Time; BUCKETS]>,
    /// Which bucket a host falls into is not known outside.
    salt: u64,
    sent: u64,
    withheld: u64,
}

impl Resets {
    pub(super) fn new(salt: u64) -> Resets {
        Resets {
            pending: Vec::new(),
            spent_until: Box::new([Time::ZERO; BUCKETS]),
            salt,
            sent: 0,
            withheld: 0,
        }
    }

    /// Queues a Reset, unless its bucket has none left or the same is queued already.
    pub(super) fn answer(&mut self, now: Time, reset: PendingReset) {
        let same = |p: &PendingReset| p.connection == reset.connection && p.to == reset.to;
        if self.pending.iter().any(same) {
            return;
        }
        let bucket = reset.to.host_hash(self.salt) as usize % BUCKETS;
        let spent = &mut self.spent_until[bucket];
        // The budget of a burst lies before `now`: the whole of it is there when the endpoint starts, because
        // then its peers ask.
        let latest = now + INTERVAL.times(BURST);
        let spent_until = (*spent).max(now) + INTERVAL;
        if spent_until > latest + INTERVAL || self.pending.len() >= PENDING_MAX {
            self.withheld += 1;
            return;
        }
        *spent = spent_until;
        self.pending.push(reset);
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next Reset to send, leaving out those that are not needed any more.
    pub(super) fn next(&mut self, is_known: impl Fn(ConnectionId) -> bool) -> Option<PendingReset> {
        while let Some(reset) = self.pending.pop() {
            if !is_known(reset.connection) {
                self.sent += 1;
                return Some(reset);
            }
        }
        None
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn withheld(&self) -> u64 {
        self.withheld
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(host: u32) -> Source {
        let mut bytes = [0; Source::BYTES];
        bytes[12..16].copy_from_slice(&host.to_be_bytes());
        Source(bytes)
    }

    fn reset(from: u32, connection: u32) -> PendingReset {
        PendingReset {
            to: host(from),
            path: PathId(0),
            connection: ConnectionId(connection),
        }
    }

    fn sent(resets: &mut Resets) -> Vec<PendingReset> {
        std::iter::from_fn(|| resets.next(|_| false)).collect()
    }

    fn flood(resets: &mut Resets, now: Time) -> usize {
        for connection in 0..200 {
            resets.answer(now, reset(1, connection));
        }
        sent(resets).len()
    }

    #[test]
    fn a_flood_of_one_host_gets_a_burst_of_answers_and_then_one_in_an_interval() {
        let mut resets = Resets::new(7);
        let start = Time::from_nanos(10_000_000_000);
        assert_eq!(flood(&mut resets, start), BURST as usize + 1);
        assert_eq!(flood(&mut resets, start), 0);
        assert_eq!(flood(&mut resets, start + INTERVAL.times(5)), 5);
        assert_eq!(resets.sent() + resets.withheld(), 600);
    }

    #[test]
    fn an_honest_peer_gets_a_reset_beside_a_flood_from_made_up_hosts() {
        let mut resets = Resets::new(7);
        let mut answered = 0;
        // 1,000 packets a second for ten seconds, each from another host; an honest one each second.
        for milli in 0..10_000u32 {
            let now = Time::from_nanos(1 << 40) + Nanos::from_millis(milli.into());
            resets.answer(now, reset(0x0a00_0000 + milli, milli));
            if milli % 1_000 == 999 {
                resets.answer(now, reset(0xc0a8_0001, 1 << 30 | milli));
            }
            let honest = |r: &&PendingReset| r.to == host(0xc0a8_0001);
            answered += sent(&mut resets).iter().filter(honest).count();
        }
        assert_eq!(answered, 10);
    }

    #[test]
    fn a_run_of_one_connection_is_answered_once() {
        let mut resets = Resets::new(7);
        for _ in 0..44 {
            resets.answer(Time::from_nanos(1 << 40), reset(1, 9));
        }
        assert_eq!(sent(&mut resets), [reset(1, 9)]);
        assert!(resets.is_empty());
    }

    #[test]
    fn a_connection_that_has_become_known_is_not_reset() {
        let mut resets = Resets::new(7);
        resets.answer(Time::from_nanos(1 << 40), reset(1, 9));
        assert_eq!(resets.next(|id| id == ConnectionId(9)), None);
        assert_eq!(resets.sent(), 0);
    }
}
