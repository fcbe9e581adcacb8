//! Answers to packets of connections that this engine does not know.

use std::net::SocketAddrV4;

use weft_core::units::{ConnectionId, Nanos, PathId, Time};

/// Resets sent at once after a quiet time: as many as a node has peers and connections to tell.
const BURST: u64 = 64;

/// After the burst, one Reset in 1 ms: a flood of foreign packets costs at most 16 kB/s of answers.
const INTERVAL: Nanos = Nanos::from_millis(1);

/// A Reset to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingReset {
    /// Index of the local port that the packet came to.
    pub(crate) local: usize,
    /// Where the packet came from.
    pub(crate) to: SocketAddrV4,
    pub(crate) path: PathId,
    pub(crate) connection: ConnectionId,
}

/// Those to be sent, and the budget for them.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    pending: Vec<PendingReset>,
    /// The time up to which the budget is spent.
    spent_until: Time,
    sent: u64,
    withheld: u64,
}

impl Resets {
    /// Queues a Reset unless too many were sent of late or the same is queued already.
    pub(crate) fn answer(&mut self, now: Time, reset: PendingReset) {
        if self
            .pending
            .iter()
            .any(|p| p.connection == reset.connection && p.to == reset.to)
        {
            return;
        }
        let earliest = Time::from_nanos(now.as_nanos().saturating_sub(INTERVAL.get() * BURST));
        let spent_until = self.spent_until.max(earliest) + INTERVAL;
        if spent_until > now + INTERVAL {
            self.withheld += 1;
            return;
        }
        self.spent_until = spent_until;
        self.pending.push(reset);
    }

    /// Whether there is none to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The next Reset to send, but for those that are not needed any more.
    pub(crate) fn next(
        &mut self,
        is_needless: impl Fn(&PendingReset) -> bool,
    ) -> Option<PendingReset> {
        while let Some(reset) = self.pending.pop() {
            if !is_needless(&reset) {
                self.sent += 1;
                return Some(reset);
            }
        }
        None
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn withheld(&self) -> u64 {
        self.withheld
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn reset(connection: u32) -> PendingReset {
        PendingReset {
            local: 0,
            to: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1),
            path: PathId(0),
            connection: ConnectionId(connection),
        }
    }

    fn flood(resets: &mut Resets, now: Time) -> usize {
        for connection in 0..1000 {
            resets.answer(now, reset(connection));
        }
        std::iter::from_fn(|| resets.next(|_| false)).count()
    }

    #[test]
    fn a_flood_gets_a_burst_of_answers_and_then_one_in_a_millisecond() {
        let mut resets = Resets::default();
        let start = Time::from_nanos(10_000_000_000);
        assert_eq!(flood(&mut resets, start), BURST as usize + 1);
        assert_eq!(flood(&mut resets, start), 0);
        assert_eq!(flood(&mut resets, start + Nanos::from_millis(5)), 5);
        assert_eq!(
            flood(&mut resets, start + Nanos::from_secs(60)),
            BURST as usize + 1
        );
        assert_eq!(resets.sent() + resets.withheld(), 4000);
    }

    #[test]
    fn a_run_of_one_connection_is_answered_once() {
        let mut resets = Resets::default();
        for _ in 0..44 {
            resets.answer(Time::from_nanos(1 << 40), reset(9));
        }
        assert_eq!(resets.next(|_| false), Some(reset(9)));
        assert_eq!(resets.next(|_| false), None);
    }
}
