//! Whose turn it is to send: surplus round robin over the connections that may have something.

use std::collections::VecDeque;

use weft_core::units::ConnectionId;

/// Bytes that a connection may send in one turn: a chunk of full size, so that a turn of large
/// chunks is one system call.
pub(crate) const QUANTUM: i64 = 65_536;

/// The queue. A connection that sends more than its share (a chunk is never cut) owes the surplus
/// to the following turns, which gives small and large chunks the same bytes per second.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    queue: VecDeque<ConnectionId>,
}

/// One connection's account.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Account {
    queued: bool,
    credit: i64,
}

impl Turns {
    /// Puts a connection behind the others unless it waits already.
    pub(crate) fn join(&mut self, id: ConnectionId, account: &mut Account) {
        if !account.queued {
            account.queued = true;
            self.queue.push_back(id);
        }
    }

    /// Nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next connection; it has left the queue.
    pub(crate) fn next(&mut self) -> Option<ConnectionId> {
        self.queue.pop_front()
    }
}

impl Account {
    /// Begins a turn.
    pub(crate) fn begin(&mut self) {
        self.queued = false;
        self.credit = (self.credit + QUANTUM).min(QUANTUM);
    }

    /// Whether the turn goes on.
    pub(crate) fn may_send(&self) -> bool {
        self.credit > 0
    }

    /// Charges a chunk.
    pub(crate) fn charge(&mut self, bytes: usize) {
        self.credit -= bytes as i64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_any_size_get_the_same_bytes() {
        let sizes = [64_768usize, 1_472, 30_000];
        let mut accounts = [Account::default(); 3];
        let mut sent = [0usize; 3];
        let mut turns = Turns::default();
        for (i, account) in accounts.iter_mut().enumerate() {
            turns.join(ConnectionId(i as u32), account);
            turns.join(ConnectionId(i as u32), account);
        }
        for _ in 0..3000 {
            let id = turns.next().unwrap();
            let i = id.0 as usize;
            accounts[i].begin();
            while accounts[i].may_send() {
                accounts[i].charge(sizes[i]);
                sent[i] += sizes[i];
            }
            turns.join(id, &mut accounts[i]);
        }
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(most - least <= 2 * QUANTUM as usize, "{sent:?}");
    }
}
