//! Buffers: the memory budget of all transfers, reservations of it, and pools that grow and shrink.
//!
//! A transfer is promised the fewest buffers that it can move with, and is refused only where the budget has
//! not even those left. The other buffers are shared evenly by the pools: one transfer alone has all that it
//! can use, and when another one comes, the pools give up buffers as their messages are acknowledged.

use std::sync::{Arc, Mutex};

use crate::fail_fast;
use crate::fault::Fault;
use crate::transfer::frame::SLOT_BYTES;

/// A buffer of [`SLOT_BYTES`].
pub(crate) type Buffer = Box<[u8]>;

/// Kept free for new transfers: the minimum of eight relays, each with two slots and a pool of two. Of a
/// smaller budget, three quarters are kept free.
const BUFFERS_KEPT_FREE: usize = 8 * (2 + 2);

/// Buffers that a pool gives away at once: one that the block reader fills, and one that waits for it. Where the
/// reader hangs on its file system, the others stay with transfers that move.
const TAKEN_MAX: usize = 2;

/// The buffers that all jobs of this agent may use together: `limits.memory`.
#[derive(Debug)]
pub struct MemoryBudget {
    /// Buffers.
    limit: usize,
    counts: Mutex<Counts>,
}

/// In buffers, unless said otherwise.
#[derive(Debug, Default)]
struct Counts {
    /// Of reservations, all that they have; of pools their least.
    promised: usize,
    /// Of reservations, what they have beyond their least.
    grown: usize,
    /// How many pools there are.
    pools: usize,
    /// Of reservations, all that they have; of pools, what they have made.
    used: usize,
}

impl MemoryBudget {
    /// A budget of that many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: usize::try_from(bytes / SLOT_BYTES as u64).unwrap_or(usize::MAX),
            counts: Mutex::default(),
        })
    }

    /// Takes that many buffers, or says what is lacking.
    pub(crate) fn reserve(self: &Arc<Self>, buffers: usize) -> Result<BufferReservation, Fault> {
        let mut counts = fail_fast::lock(&self.counts);
        self.promise(&mut counts, buffers)?;
        counts.used += buffers;
        Ok(BufferReservation {
            budget: self.clone(),
            least: buffers,
            buffers,
        })
    }

    /// Makes a pool that always has `least` buffers, and never more than `most`.
    pub(crate) fn pool(self: &Arc<Self>, least: usize, most: usize) -> Result<BufferPool, Fault> {
        let mut counts = fail_fast::lock(&self.counts);
        self.promise(&mut counts, least)?;
        counts.pools += 1;
        Ok(BufferPool {
            budget: self.clone(),
            least,
            most,
            taken: 0,
            shared: Vec::new(),
        })
    }

    /// Bytes of the buffers that there are.
    #[must_use]
    pub fn used(&self) -> u64 {
        (fail_fast::lock(&self.counts).used * SLOT_BYTES) as u64
    }

    fn promise(&self, counts: &mut Counts, buffers: usize) -> Result<(), Fault> {
        let left = self.limit.saturating_sub(counts.promised);
        if buffers > left {
            return Err(Fault::MemoryLimit {
                needed: (buffers * SLOT_BYTES) as u64,
                left: (left * SLOT_BYTES) as u64,
            });
        }
        counts.promised += buffers;
        Ok(())
    }
}

/// Buffers that an owner keeps until it drops this.
#[derive(Debug)]
pub(crate) struct BufferReservation {
    budget: Arc<MemoryBudget>,
    least: usize,
    buffers: usize,
}

impl BufferReservation {
    /// Buffers that it has.
    pub(crate) fn buffers(&self) -> usize {
        self.buffers
    }

    /// Takes more buffers, up to `most`, as far as transfers to come do not need them.
    pub(crate) fn grow(&mut self, most: usize) {
        let mut counts = fail_fast::lock(&self.budget.counts);
        let limit = self.budget.limit;
        let for_growth = limit - BUFFERS_KEPT_FREE.min(limit / 4 * 3);
        let more = most
            .saturating_sub(self.buffers)
            .min(for_growth.saturating_sub(counts.grown))
            .min(limit - counts.promised);
        counts.promised += more;
        counts.grown += more;
        counts.used += more;
        self.buffers += more;
    }
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        let mut counts = fail_fast::lock(&self.budget.counts);
        counts.promised -= self.buffers;
        counts.grown -= self.buffers - self.least;
        counts.used -= self.buffers;
    }
}

/// The buffers of one sender: made when they are needed, and used again.
#[derive(Debug)]
pub(crate) struct BufferPool {
    budget: Arc<MemoryBudget>,
    least: usize,
    most: usize,
    /// Those that were taken and are not shared yet.
    taken: usize,
    /// The others. One that the pool alone owns is free.
    shared: Vec<Arc<Buffer>>,
}

impl BufferPool {
    /// Drops free buffers that the pool may not keep any longer. Returns how many it may have.
    pub(crate) fn shrink(&mut self) -> usize {
        let mut counts = fail_fast::lock(&self.budget.counts);
        let allowed = self.allowed(&counts);
        let mut surplus = self.made().saturating_sub(allowed);
        self.shared.retain(|buffer| {
            let stays = surplus == 0 || !is_free(buffer);
            if !stays {
                surplus -= 1;
                counts.used -= 1;
            }
            stays
        });
        allowed
    }

    /// A buffer, if there is one now.
    #[must_use]
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        if self.taken >= TAKEN_MAX {
            return None;
        }
        let allowed = self.shrink();
        if let Some(free) = self.shared.iter().position(is_free) {
            self.taken += 1;
            return Arc::into_inner(self.shared.swap_remove(free));
        }
        let mut counts = fail_fast::lock(&self.budget.counts);
        if self.made() >= allowed || counts.used >= self.budget.limit {
            return None;
        }
        counts.used += 1;
        self.taken += 1;
        Some(vec![0; SLOT_BYTES].into_boxed_slice())
    }

    /// Shares a buffer that was taken. It is free again once all its owners have dropped it.
    #[must_use]
    pub(crate) fn share(&mut self, buffer: Buffer) -> Arc<Buffer> {
        let shared = Arc::new(buffer);
        self.taken -= 1;
        self.shared.push(shared.clone());
        shared
    }

    /// Whether a taken buffer will come back by [`BufferPool::share`].
    pub(crate) fn has_taken(&self) -> bool {
        self.taken > 0
    }

    fn made(&self) -> usize {
        self.taken + self.shared.len()
    }

    /// Its least, and an even part of the buffers that are not promised.
    fn allowed(&self, counts: &Counts) -> usize {
        let unpromised = self.budget.limit - counts.promised;
        self.most.min(self.least + unpromised / counts.pools)
    }
}

fn is_free(buffer: &Arc<Buffer>) -> bool {
    Arc::strong_count(buffer) == 1
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        let mut counts = fail_fast::lock(&self.budget.counts);
        counts.promised -= self.least;
        counts.pools -= 1;
        counts.used -= self.made();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u64 = SLOT_BYTES as u64;

    fn budget(buffers: u64) -> Arc<MemoryBudget> {
        MemoryBudget::new(buffers * SLOT)
    }

    #[test]
    fn a_pool_whose_reader_hangs_keeps_two_buffers_from_the_others() {
        let budget = budget(10);
        let mut hung = budget.pool(2, 10).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| hung.take()).collect();
        assert_eq!(taken.len(), TAKEN_MAX);
        let mut other = budget.pool(2, 10).unwrap();
        assert_eq!(take_all(&mut other).len(), 2 + (10 - 4) / 2);
    }

    /// All that a pool gives now, shared.
    fn take_all(pool: &mut BufferPool) -> Vec<Arc<Buffer>> {
        let mut all = Vec::new();
        while let Some(buffer) = pool.take() {
            all.push(pool.share(buffer));
        }
        all
    }

    #[test]
    fn a_budget_refuses_what_it_does_not_have_and_takes_back_what_is_dropped() {
        let budget = budget(3);
        let buffers = budget.reserve(2).unwrap();
        assert_eq!(budget.reserve(2).unwrap_err().reason(), "MemoryLimit");
        drop(buffers);
        assert!(budget.reserve(3).is_ok());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn pools_are_refused_only_where_not_even_their_least_is_left() {
        let budget = budget(10);
        let mut alone = budget.pool(2, 26).unwrap();
        assert_eq!(alone.shrink(), 10);
        let others: Vec<_> = (0..4).map(|_| budget.pool(2, 26).unwrap()).collect();
        assert_eq!(alone.shrink(), 2);
        assert_eq!(budget.pool(1, 1).unwrap_err().reason(), "MemoryLimit");
        drop(others);
        assert_eq!(alone.shrink(), 10);
    }

    #[test]
    fn pools_together_may_never_have_more_than_there_is() {
        for limit in 0..60 {
            let budget = budget(limit);
            let mut pools: Vec<BufferPool> = Vec::new();
            for children in [1, 2, 3, 1, 2, 7] {
                pools.extend(budget.pool(children + 1, 8 + children * 9));
                let all: usize = pools.iter_mut().map(BufferPool::shrink).sum();
                assert!(all as u64 <= limit, "{all} of {limit}");
            }
        }
    }

    #[test]
    fn shares_grow_by_what_eight_transfers_to_come_do_not_need() {
        // 48 MiB, the default.
        let default = MemoryBudget::new(48 << 20);
        let mut relays = Vec::new();
        for _ in 0..8 {
            let mut slots = default.reserve(2).unwrap();
            let pool = default.pool(2, 17).unwrap();
            slots.grow(8);
            relays.push((slots, pool));
        }
        let slots: Vec<usize> = relays.iter().map(|(slots, _)| slots.buffers()).collect();
        assert_eq!(slots, [8, 8, 3, 2, 2, 2, 2, 2]);
        drop(relays);
        assert!(default.reserve(45).is_ok());
        // 16 MiB, the least.
        let small = MemoryBudget::new(16 << 20);
        let mut buffers = small.reserve(2).unwrap();
        buffers.grow(8);
        assert_eq!(buffers.buffers(), 8);
    }

    #[test]
    fn a_pool_gives_as_many_as_it_may_have_and_no_more() {
        let budget = budget(5);
        let mut pool = budget.pool(1, 2).unwrap();
        let first = pool.take().unwrap();
        let second = pool.take().unwrap();
        assert!(pool.take().is_none());
        let shared = pool.share(first);
        let other = shared.clone();
        drop(shared);
        assert!(pool.take().is_none(), "it has another owner");
        drop(other);
        assert!(pool.take().is_some());
        assert_eq!(budget.used(), 2 * SLOT);
        drop((pool, second));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn one_more_pool_gets_its_least_as_soon_as_others_release_what_they_have_beyond_theirs() {
        let budget = budget(6);
        let mut first = budget.pool(2, 9).unwrap();
        let mut all = take_all(&mut first);
        assert_eq!(all.len(), 6);
        let mut second = budget.pool(2, 9).unwrap();
        assert!(second.take().is_none());
        drop(all.pop());
        first.shrink();
        assert!(second.take().is_some());
        // Three for each: of five one is too many.
        drop(all.pop());
        assert!(first.take().is_none());
        assert!(second.take().is_some());
        drop(second);
        let again = first.take().unwrap();
        all.push(first.share(again));
        let third = budget.pool(2, 9).unwrap();
        all.clear();
        first.shrink();
        assert_eq!(budget.used(), 3 * SLOT);
        drop((first, third));
        assert_eq!(budget.used(), 0);
    }
}
