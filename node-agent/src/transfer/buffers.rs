//! Buffers: the memory budget of all transfers, fixed shares of it, and pools that grow and shrink.
//!
//! A transfer is promised the fewest buffers that it can move with, and is refused only where the budget has
//! not even those left. The other buffers are shared evenly by the pools: one transfer alone has all that it
//! can use, and when another one comes, the pools give up buffers as their messages are acknowledged.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::fault::Fault;
use crate::transfer::record::SLOT_BYTES;

/// A buffer of [`SLOT_BYTES`].
pub(crate) type Buffer = Box<[u8]>;

/// Shares do not grow into these: the least of eight relays, each with two slots and a pool of two. Of a
/// smaller budget three quarters are kept back.
const RESERVED_BUFFERS: usize = 8 * (2 + 2);
/// A thread that waits for a buffer looks this often for buffers that were dropped and not given back.
const LOOK: Duration = Duration::from_millis(100);

/// The buffers that all jobs of this agent may use together: `limits.memory`.
#[derive(Debug)]
pub struct MemoryBudget {
    /// Buffers.
    limit: usize,
    counts: Mutex<Counts>,
    changed: Condvar,
}

/// In buffers, unless said otherwise.
#[derive(Debug, Default)]
struct Counts {
    /// Of shares, all that they have; of pools their least.
    promised: usize,
    /// Of shares, what they have beyond their least.
    grown: usize,
    /// How many pools there are.
    pools: usize,
    /// Of shares, all that they have; of pools what they have made.
    used: usize,
}

impl MemoryBudget {
    /// A budget of that many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: usize::try_from(bytes / SLOT_BYTES as u64).unwrap_or(usize::MAX),
            counts: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Takes that many buffers, or says what is lacking.
    pub(crate) fn share(self: &Arc<Self>, buffers: usize) -> Result<BufferShare, Fault> {
        let mut counts = self.lock();
        self.promise(&mut counts, buffers)?;
        counts.used += buffers;
        Ok(BufferShare {
            budget: self.clone(),
            least: buffers,
            buffers,
        })
    }

    /// Makes a pool that always has `least` buffers, and never more than `most`.
    pub(crate) fn pool(
        self: &Arc<Self>,
        least: usize,
        most: usize,
    ) -> Result<Arc<BufferPool>, Fault> {
        let mut counts = self.lock();
        self.promise(&mut counts, least)?;
        counts.pools += 1;
        Ok(Arc::new(BufferPool {
            budget: self.clone(),
            least,
            most,
            buffers: Mutex::default(),
        }))
    }

    /// Bytes of the buffers that there are.
    #[must_use]
    pub fn used(&self) -> u64 {
        (self.lock().used * SLOT_BYTES) as u64
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

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Nothing in here can panic half-way through a change.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Buffers that an owner keeps until it drops this.
#[derive(Debug)]
pub(crate) struct BufferShare {
    budget: Arc<MemoryBudget>,
    least: usize,
    buffers: usize,
}

impl BufferShare {
    /// Buffers that it has.
    #[must_use]
    pub(crate) fn buffers(&self) -> usize {
        self.buffers
    }

    /// Takes more buffers, up to `most`, as far as transfers to come do not need them.
    pub(crate) fn grow(&mut self, most: usize) {
        let mut counts = self.budget.lock();
        let limit = self.budget.limit;
        let for_growth = limit - RESERVED_BUFFERS.min(limit / 4 * 3);
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

impl Drop for BufferShare {
    fn drop(&mut self) {
        let mut counts = self.budget.lock();
        counts.promised -= self.buffers;
        counts.grown -= self.buffers - self.least;
        counts.used -= self.buffers;
        self.budget.changed.notify_all();
    }
}

/// The buffers of one sender: made when they are needed, and used again.
#[derive(Debug)]
pub(crate) struct BufferPool {
    budget: Arc<MemoryBudget>,
    least: usize,
    most: usize,
    /// Locked after the budget.
    buffers: Mutex<PoolBuffers>,
}

#[derive(Debug, Default)]
struct PoolBuffers {
    free: Vec<Buffer>,
    /// Those that were taken and are not shared yet.
    taken: usize,
    /// A connection that ends drops its buffers and does not release them.
    shared: Vec<Weak<Buffer>>,
    closed: bool,
}

impl PoolBuffers {
    fn made(&self) -> usize {
        self.free.len() + self.taken + self.shared.len()
    }
}

impl BufferPool {
    /// How many buffers the pool may have now.
    #[must_use]
    pub(crate) fn allowance(&self) -> usize {
        self.allowed(&self.budget.lock())
    }

    /// Waits for a buffer; none once the pool is closed.
    #[must_use]
    pub(crate) fn take(&self) -> Option<Buffer> {
        let mut counts = self.budget.lock();
        loop {
            {
                let mut buffers = self.lock();
                let taken = self.take_from(&mut counts, &mut buffers);
                if taken.is_some() || buffers.closed {
                    return taken;
                }
            }
            let woken = self.budget.changed.wait_timeout(counts, LOOK);
            counts = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Shares a buffer that was taken. Its owners [release](Self::release) it or drop it.
    #[must_use]
    pub(crate) fn share(&self, buffer: Buffer) -> Arc<Buffer> {
        let shared = Arc::new(buffer);
        let mut buffers = self.lock();
        buffers.taken -= 1;
        buffers.shared.push(Arc::downgrade(&shared));
        shared
    }

    /// Takes a shared buffer back if this was its last owner. Another pool's buffer is dropped.
    pub(crate) fn release(&self, buffer: Arc<Buffer>) {
        let mut counts = self.budget.lock();
        let mut buffers = self.lock();
        let at = Arc::as_ptr(&buffer);
        let known = buffers.shared.iter().position(|weak| weak.as_ptr() == at);
        // Under the lock: otherwise it would count as one that was dropped.
        if let (Some(buffer), Some(place)) = (Arc::into_inner(buffer), known) {
            buffers.shared.swap_remove(place);
            buffers.free.push(buffer);
        }
        self.shrink(&mut counts, &mut buffers);
        self.budget.changed.notify_all();
    }

    /// Gives back what the pool may not have any longer, as far as it is free.
    pub(crate) fn settle(&self) {
        self.shrink(&mut self.budget.lock(), &mut self.lock());
    }

    /// From now on the pool gives no buffer and keeps none; a thread that waits for one goes on.
    pub(crate) fn close(&self) {
        let mut counts = self.budget.lock();
        let mut buffers = self.lock();
        buffers.closed = true;
        self.shrink(&mut counts, &mut buffers);
        self.budget.changed.notify_all();
    }

    /// Its least, and an even part of the buffers that are not promised.
    fn allowed(&self, counts: &Counts) -> usize {
        let unpromised = self.budget.limit - counts.promised;
        self.most.min(self.least + unpromised / counts.pools)
    }

    fn take_from(&self, counts: &mut Counts, buffers: &mut PoolBuffers) -> Option<Buffer> {
        self.shrink(counts, buffers);
        if buffers.closed {
            return None;
        }
        let free = buffers.free.pop();
        let may_make = buffers.made() < self.allowed(counts) && counts.used < self.budget.limit;
        let buffer = match free {
            Some(buffer) => buffer,
            None if may_make => {
                counts.used += 1;
                vec![0; SLOT_BYTES].into_boxed_slice()
            }
            None => return None,
        };
        buffers.taken += 1;
        Some(buffer)
    }

    /// Forgets the shared buffers that were dropped, and drops the free ones that the pool may not keep.
    fn shrink(&self, counts: &mut Counts, buffers: &mut PoolBuffers) {
        let before = buffers.made();
        buffers.shared.retain(|weak| weak.strong_count() > 0);
        let allowed = match buffers.closed {
            true => 0,
            false => self.allowed(counts),
        };
        let surplus = buffers.made().saturating_sub(allowed);
        let kept = buffers.free.len().saturating_sub(surplus);
        buffers.free.truncate(kept);
        let gone = before - buffers.made();
        if gone > 0 {
            counts.used -= gone;
            self.budget.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, PoolBuffers> {
        // Nothing in here can panic half-way through a change.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        let mut counts = self.budget.lock();
        counts.promised -= self.least;
        counts.pools -= 1;
        counts.used -= self.lock().made();
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u64 = SLOT_BYTES as u64;

    fn budget(buffers: u64) -> Arc<MemoryBudget> {
        MemoryBudget::new(buffers * SLOT)
    }

    /// A buffer if there is one now.
    fn try_take(pool: &BufferPool) -> Option<Buffer> {
        let mut counts = pool.budget.lock();
        let mut buffers = pool.lock();
        pool.take_from(&mut counts, &mut buffers)
    }

    /// All that a pool gives now, shared.
    fn take_all(pool: &BufferPool) -> Vec<Arc<Buffer>> {
        let taken = std::iter::from_fn(|| try_take(pool));
        taken.map(|buffer| pool.share(buffer)).collect()
    }

    #[test]
    fn a_budget_refuses_what_it_does_not_have_and_takes_back_what_is_dropped() {
        let budget = budget(3);
        let share = budget.share(2).unwrap();
        assert_eq!(budget.share(2).unwrap_err().reason(), "MemoryLimit");
        drop(share);
        assert!(budget.share(3).is_ok());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn pools_are_refused_only_where_not_even_their_least_is_left() {
        let budget = budget(10);
        let alone = budget.pool(2, 26).unwrap();
        assert_eq!(alone.allowance(), 10);
        let others: Vec<_> = (0..4).map(|_| budget.pool(2, 26).unwrap()).collect();
        assert_eq!(alone.allowance(), 2);
        assert_eq!(budget.pool(1, 1).unwrap_err().reason(), "MemoryLimit");
        drop(others);
        assert_eq!(alone.allowance(), 10);
    }

    #[test]
    fn pools_together_may_never_have_more_than_there_is() {
        for limit in 0..60 {
            let budget = budget(limit);
            let mut pools = Vec::new();
            for children in [1, 2, 3, 1, 2, 7] {
                pools.extend(budget.pool(children + 1, 8 + children * 9));
                let all: usize = pools.iter().map(|pool| pool.allowance()).sum();
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
            let mut slots = default.share(2).unwrap();
            let pool = default.pool(2, 17).unwrap();
            slots.grow(8);
            relays.push((slots, pool));
        }
        let slots: Vec<usize> = relays.iter().map(|(slots, _)| slots.buffers()).collect();
        assert_eq!(slots, [8, 8, 3, 2, 2, 2, 2, 2]);
        drop(relays);
        assert!(default.share(45).is_ok());
        // 16 MiB, the least.
        let small = MemoryBudget::new(16 << 20);
        let mut share = small.share(2).unwrap();
        share.grow(8);
        assert_eq!(share.buffers(), 8);
    }

    #[test]
    fn a_pool_gives_as_many_as_it_may_have_and_no_more() {
        let budget = budget(5);
        let pool = budget.pool(1, 2).unwrap();
        let first = try_take(&pool).unwrap();
        let _second = try_take(&pool).unwrap();
        assert!(try_take(&pool).is_none());
        let shared = pool.share(first);
        pool.release(shared.clone());
        assert!(try_take(&pool).is_none());
        pool.release(shared);
        assert!(try_take(&pool).is_some());
        pool.close();
        assert!(pool.take().is_none());
        drop(pool);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_shared_buffer_that_was_dropped_is_made_anew() {
        let pool = budget(5).pool(1, 1).unwrap();
        let shared = pool.share(pool.take().unwrap());
        assert!(try_take(&pool).is_none());
        drop(shared);
        assert!(pool.take().is_some());
    }

    #[test]
    fn one_more_pool_gets_its_least_as_soon_as_others_release_what_they_have_beyond_theirs() {
        let budget = budget(6);
        let first = budget.pool(2, 9).unwrap();
        let mut all = take_all(&first);
        assert_eq!(all.len(), 6);
        let second = budget.pool(2, 9).unwrap();
        assert!(try_take(&second).is_none());
        let waits = std::thread::spawn({
            let second = second.clone();
            move || second.take().is_some()
        });
        first.release(all.pop().unwrap());
        assert!(waits.join().unwrap());
        // Three for each: of five one is too many.
        first.release(all.pop().unwrap());
        assert!(try_take(&first).is_none());
        assert!(try_take(&second).is_some());
        // A free buffer goes when its pool settles.
        drop(second);
        let again = first.share(try_take(&first).unwrap());
        first.release(again);
        let third = budget.pool(2, 9).unwrap();
        all.drain(..).for_each(|buffer| first.release(buffer));
        first.settle();
        assert_eq!(budget.used(), 3 * SLOT);
        drop((first, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_idle_pool_that_settles_forgets_the_buffers_that_were_dropped() {
        let budget = budget(6);
        let idle = budget.pool(2, 9).unwrap();
        let mut lent = take_all(&idle);
        let other = budget.pool(1, 3).unwrap();
        assert!(try_take(&other).is_none());
        lent.truncate(1);
        idle.settle();
        assert_eq!(budget.used(), SLOT);
        assert!(try_take(&other).is_some());
        // Also when a buffer is released.
        let own = idle.share(try_take(&idle).unwrap());
        lent.clear();
        idle.release(own);
        assert_eq!(budget.used(), 2 * SLOT);
        drop((idle, other));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_closed_pool_counts_only_the_buffers_that_are_still_shared() {
        let budget = budget(6);
        let pool = budget.pool(2, 9).unwrap();
        let mut all = take_all(&pool);
        drop(all.pop());
        pool.release(all.pop().unwrap());
        pool.close();
        assert_eq!(budget.used(), 4 * SLOT);
        assert!(try_take(&pool).is_none());
        let other = budget.pool(2, 2).unwrap();
        let _taken = take_all(&other);
        assert_eq!(budget.used(), 6 * SLOT);
        // The pool keeps nothing of what comes back, however it comes.
        pool.release(all.pop().unwrap());
        drop(all.pop());
        pool.settle();
        assert_eq!(budget.used(), 4 * SLOT);
        assert!(pool.lock().free.is_empty());
    }

    #[test]
    fn a_buffer_of_another_pool_is_neither_kept_nor_counted() {
        let budget = budget(5);
        let pool = budget.pool(1, 2).unwrap();
        pool.release(Arc::new(vec![0; SLOT_BYTES].into_boxed_slice()));
        assert_eq!((budget.used(), pool.lock().made()), (0, 0));
    }
}
