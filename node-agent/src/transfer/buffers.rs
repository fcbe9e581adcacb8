//! Buffers of one transfer: so many of slot size, made when first needed, used again and again.
//!
//! How many there may be changes while it is at work: the [`account`](crate::transfer::memory_account) says so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::fault::Fault;
use crate::transfer::memory_account::{Account, Books, Loan, Share};
use crate::transfer::record::SLOT_BYTES;

/// A buffer of [`SLOT_BYTES`].
pub(crate) type Buffer = Box<[u8]>;

/// The buffers of one transfer.
#[derive(Debug)]
pub(crate) struct Pool {
    loan: Loan,
    /// Locked after the account's books.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// None once it is closed.
    free: Vec<Buffer>,
    /// Free, or somebody's: what is booked.
    made: usize,
    /// What others share, by [`Pool::share`]: a connection that ends lets go of its buffers without a word.
    shared: Vec<Weak<Buffer>>,
    closed: bool,
}

/// A buffer that may be taken.
enum Pick {
    Free(Buffer),
    /// It is counted already.
    Make,
}

impl Pick {
    fn take(self) -> Buffer {
        match self {
            Pick::Free(buffer) => buffer,
            Pick::Make => vec![0; SLOT_BYTES].into_boxed_slice(),
        }
    }
}

impl Pool {
    /// A pool of so many buffers at least, and at most.
    pub(crate) fn new(
        account: &Arc<Account>,
        least: usize,
        most: usize,
    ) -> Result<Arc<Self>, Fault> {
        Ok(Arc::new(Self {
            loan: account.lend(least, most)?,
            state: Mutex::default(),
        }))
    }

    /// A pool of as many buffers as the share has.
    pub(crate) fn of(share: Share) -> Arc<Self> {
        Arc::new(Self {
            loan: share.into_loan(),
            state: Mutex::default(),
        })
    }

    /// Buffers that there may be now.
    #[must_use]
    pub(crate) fn allowance(&self) -> usize {
        self.loan.allowance()
    }

    /// A buffer if there is one now; none once the pool is closed.
    #[must_use]
    pub(crate) fn try_take(&self) -> Option<Buffer> {
        let pick = {
            let mut books = self.loan.books();
            let mut state = self.lock();
            if state.closed {
                return None;
            }
            self.pick(&mut books, &mut state)
        };
        pick.map(Pick::take)
    }

    /// A buffer as soon as there is one; none once the pool is closed.
    #[must_use]
    pub(crate) fn take(&self) -> Option<Buffer> {
        let mut books = self.loan.books();
        let pick = loop {
            {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                if let Some(pick) = self.pick(&mut books, &mut state) {
                    break pick;
                }
            }
            books = self.loan.wait(books);
        };
        drop(books);
        Some(pick.take())
    }

    /// Gives a buffer back. One that was never the pool's is dropped: one of another size, or one more
    /// than were made. A closed pool keeps none.
    pub(crate) fn give(&self, buffer: Buffer) {
        if buffer.len() != SLOT_BYTES {
            return;
        }
        let over = {
            let mut books = self.loan.books();
            let mut state = self.lock();
            self.reap(&mut books, &mut state);
            if state.free.len() + state.shared.len() < state.made {
                state.free.push(buffer);
                self.shrink(&mut books, &mut state)
            } else {
                vec![buffer]
            }
        };
        self.loan.notify();
        // Giving memory back takes its time: not while others wait for the books.
        drop(over);
    }

    /// Lets others share a buffer, to come back by [`Pool::release`] or not at all.
    #[must_use]
    pub(crate) fn share(&self, buffer: Buffer) -> Arc<Buffer> {
        let shared = Arc::new(buffer);
        self.lock().shared.push(Arc::downgrade(&shared));
        shared
    }

    /// Gives a shared buffer back if this was its last owner.
    pub(crate) fn release(&self, buffer: Arc<Buffer>) {
        let at = Arc::as_ptr(&buffer);
        let owned = {
            // Locked before it is nobody's: or it would be counted as one that did not come back.
            let mut state = self.lock();
            let owned = Arc::into_inner(buffer);
            if owned.is_some() {
                // Its address is nobody else's while the list has it.
                state.shared.retain(|weak| weak.as_ptr() != at);
            }
            owned
        };
        if let Some(buffer) = owned {
            self.give(buffer);
        }
    }

    /// Lets go of what it may have no longer, as far as it is free, and of what nobody gave back.
    pub(crate) fn settle(&self) {
        let over = {
            let mut books = self.loan.books();
            let mut state = self.lock();
            self.reap(&mut books, &mut state);
            self.shrink(&mut books, &mut state)
        };
        if !over.is_empty() {
            self.loan.notify();
        }
    }

    /// Wakes whoever waits for a buffer; nobody gets one from now on, and only what is somebody's stays
    /// booked.
    pub(crate) fn close(&self) {
        let free = {
            let mut books = self.loan.books();
            let mut state = self.lock();
            state.closed = true;
            self.reap(&mut books, &mut state);
            self.shrink(&mut books, &mut state)
        };
        self.loan.notify();
        drop(free);
    }

    fn pick(&self, books: &mut Books, state: &mut State) -> Option<Pick> {
        if let Some(buffer) = state.free.pop() {
            return Some(Pick::Free(buffer));
        }
        if !self.loan.may_make(books, state.made) {
            self.reap(books, state);
            if !self.loan.may_make(books, state.made) {
                return None;
            }
        }
        state.made += 1;
        Some(Pick::Make)
    }

    /// Strikes out what was shared and is nobody's any more.
    fn reap(&self, books: &mut Books, state: &mut State) {
        let before = state.shared.len();
        state.shared.retain(|weak| weak.strong_count() > 0);
        let gone = before - state.shared.len();
        if gone > 0 {
            self.unmake(books, state, gone);
            // Another pool may wait for them.
            self.loan.notify();
        }
    }

    /// Takes out what is free and more than the pool may have: all of it once it is closed.
    fn shrink(&self, books: &mut Books, state: &mut State) -> Vec<Buffer> {
        let mut over = Vec::new();
        while (state.closed || self.loan.is_over(books, state.made))
            && let Some(buffer) = state.free.pop()
        {
            self.unmake(books, state, 1);
            over.push(buffer);
        }
        over
    }

    /// Counts down, but never below what is free or shared.
    fn unmake(&self, books: &mut Books, state: &mut State, buffers: usize) {
        let there = state.free.len() + state.shared.len();
        let gone = buffers.min(state.made.saturating_sub(there));
        state.made -= gone;
        self.loan.unmade(books, gone);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut books = self.loan.books();
        self.loan.unmade(&mut books, state.made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(buffers: u64) -> Arc<Account> {
        Account::new(buffers * SLOT_BYTES as u64)
    }

    #[test]
    fn a_pool_lends_as_many_as_it_has_and_no_more() {
        let account = account(5);
        let pool = Pool::new(&account, 1, 2).unwrap();
        let first = pool.try_take().unwrap();
        let _second = pool.try_take().unwrap();
        assert!(pool.try_take().is_none());
        let shared = pool.share(first);
        pool.release(shared.clone());
        assert!(pool.try_take().is_none());
        pool.release(shared);
        assert!(pool.try_take().is_some());
        pool.close();
        assert!(pool.take().is_none());
        drop(pool);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn a_shared_buffer_that_nobody_gave_back_is_made_anew() {
        let pool = Pool::new(&account(5), 1, 1).unwrap();
        let shared = pool.share(pool.take().unwrap());
        assert!(pool.try_take().is_none());
        drop(shared);
        assert!(pool.take().is_some());
    }

    #[test]
    fn one_more_pool_gets_its_least_as_soon_as_what_others_have_beyond_theirs_comes_back() {
        let account = account(6);
        let first = Pool::new(&account, 2, 9).unwrap();
        let mut all: Vec<Buffer> = std::iter::from_fn(|| first.try_take()).collect();
        assert_eq!(all.len(), 6);
        let second = Pool::new(&account, 2, 9).unwrap();
        assert!(second.try_take().is_none());
        let waits = std::thread::spawn({
            let second = second.clone();
            move || second.take().is_some()
        });
        first.give(all.pop().unwrap());
        assert!(waits.join().unwrap());
        // Three for each: of five one is too many.
        all.pop().into_iter().for_each(|buffer| first.give(buffer));
        assert!(first.try_take().is_none());
        assert!(second.try_take().is_some());
        // What lies free is let go when its pool looks.
        drop(second);
        let again = first.try_take().unwrap();
        first.give(again);
        let third = Pool::new(&account, 2, 9).unwrap();
        all.drain(..).for_each(|buffer| first.give(buffer));
        first.settle();
        assert_eq!(account.used(), 3 * SLOT_BYTES as u64);
        drop((first, third));
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn an_idle_pool_that_settles_strikes_out_what_others_let_go_of_without_a_word() {
        let account = account(6);
        let idle = Pool::new(&account, 2, 9).unwrap();
        let lent = std::iter::from_fn(|| idle.try_take()).map(|buffer| idle.share(buffer));
        let mut lent: Vec<_> = lent.collect();
        let other = Pool::new(&account, 1, 3).unwrap();
        assert!(other.try_take().is_none());
        lent.truncate(1);
        idle.settle();
        assert_eq!(account.used(), SLOT_BYTES as u64);
        assert!(other.try_take().is_some());
        // Also when a buffer comes back.
        let own = idle.try_take().unwrap();
        lent.clear();
        idle.give(own);
        assert_eq!(account.used(), 2 * SLOT_BYTES as u64);
        drop((idle, other));
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn of_a_closed_pool_only_what_is_somebodys_is_booked() {
        let account = account(6);
        let pool = Pool::new(&account, 2, 9).unwrap();
        let mut all: Vec<Buffer> = std::iter::from_fn(|| pool.try_take()).collect();
        let mut shared = || pool.share(all.pop().unwrap());
        let (lost, late, back) = (shared(), shared(), shared());
        drop(lost);
        pool.give(all.pop().unwrap());
        pool.close();
        assert_eq!(account.used(), 4 * SLOT_BYTES as u64);
        assert!(pool.try_take().is_none());
        let other = Pool::new(&account, 2, 2).unwrap();
        let _taken = [other.try_take().unwrap(), other.try_take().unwrap()];
        // What comes back is not kept, in whatever way it comes.
        pool.give(all.pop().unwrap());
        pool.release(back);
        assert_eq!(account.used(), 4 * SLOT_BYTES as u64);
        drop(late);
        pool.settle();
        assert_eq!(account.used(), 3 * SLOT_BYTES as u64);
        pool.give(all.pop().unwrap());
        assert_eq!(account.used(), 2 * SLOT_BYTES as u64);
        assert!(pool.lock().free.is_empty());
    }

    #[test]
    fn more_buffers_than_were_made_are_neither_kept_nor_counted_down() {
        let account = account(5);
        let pool = Pool::new(&account, 1, 2).unwrap();
        let foreign = || vec![0; SLOT_BYTES].into_boxed_slice();
        pool.give(foreign());
        assert_eq!((account.used(), pool.lock().free.len()), (0, 0));
        let shared = pool.share(pool.take().unwrap());
        pool.give(pool.take().unwrap());
        pool.give(foreign());
        assert_eq!(pool.lock().free.len(), 1);
        pool.close();
        pool.give(foreign());
        assert_eq!(account.used(), SLOT_BYTES as u64);
        pool.release(shared);
        pool.give(foreign());
        assert_eq!(account.used(), 0);
    }
}
