//! The account over all transfers' buffers, which keeps their sum below `limits.memory`.
//!
//! Every transfer is promised the least that it moves with, and is refused only where not even that is
//! left. What is not promised is lent: one transfer alone has all that it can use, and of several each
//! its part, so that one more takes from those that are there, a buffer at a time, as theirs come back.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::fault::Fault;
use crate::transfer::record::SLOT_BYTES;

/// Buffers that stay for transfers to come when one takes more than its least for good: what eight need,
/// each a relay with two slots and two buffers to pass on from. Of a smaller account three quarters.
const KEPT_BACK: usize = 8 * (2 + 2);
/// How often whoever waits for a buffer looks for ones that came back without a word.
const LOOK: Duration = Duration::from_millis(100);

/// Buffers that all jobs of this agent may use together.
#[derive(Debug)]
pub struct Account {
    /// Buffers.
    limit: usize,
    books: Mutex<Books>,
    changed: Condvar,
}

/// In buffers.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// Of shares, all that they have; of pools their least.
    promised: usize,
    /// Of shares, what they have beyond their least.
    grown: usize,
    /// Of pools, what they could use beyond their least.
    wished: usize,
    /// Of shares, all that they have; of pools what they have made.
    used: usize,
}

/// Buffers that an owner has for good, given back when dropped.
#[derive(Debug)]
pub struct Share {
    account: Arc<Account>,
    least: usize,
    buffers: usize,
}

/// A pool's part: its least for good, and of the rest what the others leave it.
#[derive(Debug)]
pub(crate) struct Loan {
    account: Arc<Account>,
    least: usize,
    most: usize,
    /// Of `least`, what a share had grown by before it was this.
    grown: usize,
}

impl Account {
    /// An account of that many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: usize::try_from(bytes / SLOT_BYTES as u64).unwrap_or(usize::MAX),
            books: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Takes that many buffers, or says what is lacking.
    pub fn take(self: &Arc<Self>, buffers: usize) -> Result<Share, Fault> {
        let mut books = self.lock();
        self.promise(&mut books, buffers)?;
        books.used += buffers;
        Ok(Share {
            account: self.clone(),
            least: buffers,
            buffers,
        })
    }

    /// Takes part with that many buffers at least, and at most.
    pub(crate) fn lend(self: &Arc<Self>, least: usize, most: usize) -> Result<Loan, Fault> {
        let mut books = self.lock();
        self.promise(&mut books, least)?;
        let most = most.max(least);
        books.wished += most - least;
        Ok(Loan {
            account: self.clone(),
            least,
            most,
            grown: 0,
        })
    }

    /// Bytes of the buffers that are there.
    #[must_use]
    pub fn used(&self) -> u64 {
        (self.lock().used * SLOT_BYTES) as u64
    }

    fn promise(&self, books: &mut Books, buffers: usize) -> Result<(), Fault> {
        let left = self.limit.saturating_sub(books.promised);
        if buffers > left {
            return Err(Fault::MemoryLimit {
                needed: (buffers * SLOT_BYTES) as u64,
                left: (left * SLOT_BYTES) as u64,
            });
        }
        books.promised += buffers;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        // Nothing in here can panic half-way through a change.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Buffers that it has.
    #[must_use]
    pub(crate) fn buffers(&self) -> usize {
        self.buffers
    }

    /// Makes sure of that many buffers, and takes as many more, up to `most`, as transfers to come do not
    /// need.
    pub(crate) fn grow(&mut self, least: usize, most: usize) -> Result<(), Fault> {
        let mut books = self.account.lock();
        let more = least.saturating_sub(self.buffers);
        self.account.promise(&mut books, more)?;
        books.used += more;
        self.buffers += more;
        self.least += more;
        let limit = self.account.limit;
        let growth = limit - KEPT_BACK.min(limit / 4 * 3);
        let extra = most
            .saturating_sub(self.buffers)
            .min(growth.saturating_sub(books.grown))
            .min(limit - books.promised);
        books.promised += extra;
        books.grown += extra;
        books.used += extra;
        self.buffers += extra;
        Ok(())
    }

    /// The same for a pool that makes them when it needs them.
    pub(crate) fn into_loan(mut self) -> Loan {
        let (least, buffers) = (self.least, self.buffers);
        (self.least, self.buffers) = (0, 0);
        self.account.lock().used -= buffers;
        Loan {
            account: self.account.clone(),
            least: buffers,
            most: buffers,
            grown: buffers - least,
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut books = self.account.lock();
        books.promised -= self.buffers;
        books.grown -= self.buffers - self.least;
        books.used -= self.buffers;
        drop(books);
        self.account.changed.notify_all();
    }
}

impl Loan {
    /// Buffers that the pool may have now: its least, and beyond that a part of what is promised to
    /// nobody, as large as its wishes are among all pools'.
    pub(crate) fn allowance(&self) -> usize {
        self.allowed(&self.account.lock())
    }

    fn allowed(&self, books: &Books) -> usize {
        let rest = self.account.limit - books.promised;
        let wish = self.most - self.least;
        match books.wished {
            0 => self.least,
            wished if rest >= wished => self.most,
            wished => self.least + rest * wish / wished,
        }
    }

    /// Whether a pool that has so many may make one more; then it is counted.
    pub(crate) fn may_make(&self, books: &mut Books, made: usize) -> bool {
        let may = made < self.allowed(books) && books.used < self.account.limit;
        books.used += usize::from(may);
        may
    }

    /// Whether a pool that has so many has more than it may.
    pub(crate) fn is_over(&self, books: &Books, made: usize) -> bool {
        made > self.allowed(books)
    }

    /// So many buffers of a pool are no more.
    pub(crate) fn unmade(&self, books: &mut Books, buffers: usize) {
        books.used -= buffers;
    }

    /// To look and to change. Locked before any pool.
    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.account.lock()
    }

    /// Wakes whoever waits: something is different.
    pub(crate) fn notify(&self) {
        self.account.changed.notify_all();
    }

    /// Until something may be different.
    pub(crate) fn wait<'a>(&self, books: MutexGuard<'a, Books>) -> MutexGuard<'a, Books> {
        let woken = self.account.changed.wait_timeout(books, LOOK);
        woken.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut books = self.account.lock();
        books.promised -= self.least;
        books.grown -= self.grown;
        books.wished -= self.most - self.least;
        drop(books);
        self.account.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u64 = SLOT_BYTES as u64;

    #[test]
    fn an_account_refuses_what_it_does_not_have_and_takes_back_what_is_dropped() {
        let account = Account::new(3 * SLOT);
        let share = account.take(2).unwrap();
        assert_eq!(account.take(2).unwrap_err().reason(), "MemoryLimit");
        drop(share);
        assert!(account.take(3).is_ok());
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn pools_are_refused_only_where_not_even_their_least_is_left() {
        let account = Account::new(10 * SLOT);
        let alone = account.lend(2, 26).unwrap();
        assert_eq!(alone.allowance(), 10);
        let others: Vec<Loan> = (0..4).map(|_| account.lend(2, 26).unwrap()).collect();
        assert_eq!(alone.allowance(), 2);
        assert_eq!(account.lend(1, 1).unwrap_err().reason(), "MemoryLimit");
        drop(others);
        assert_eq!(alone.allowance(), 10);
    }

    #[test]
    fn what_is_lent_is_never_more_than_there_is() {
        for limit in 0..60 {
            let account = Account::new(limit * SLOT);
            let mut loans = Vec::new();
            for children in [1, 2, 3, 1, 2, 7] {
                loans.extend(account.lend(children + 1, 8 + children * 9));
                let all: usize = loans.iter().map(Loan::allowance).sum();
                assert!(all as u64 <= limit, "{all} of {limit}");
            }
        }
    }

    #[test]
    fn shares_grow_by_what_eight_transfers_to_come_do_not_need() {
        // 48 MiB, the default.
        let account = Account::new(48 << 20);
        let mut relays = Vec::new();
        for _ in 0..8 {
            let mut slots = account.take(2).unwrap();
            let loan = account.lend(2, 17).unwrap();
            slots.grow(2, 8).unwrap();
            relays.push((slots, loan));
        }
        let slots: Vec<usize> = relays.iter().map(|(slots, _)| slots.buffers()).collect();
        assert_eq!(slots, [8, 8, 3, 2, 2, 2, 2, 2]);
        // A share that is larger than what was promised at first is so for good.
        drop(relays);
        let mut share = account.take(2).unwrap();
        share.grow(3, 9).unwrap();
        assert_eq!(share.buffers(), 9);
        let loan = share.into_loan();
        assert_eq!((loan.allowance(), account.used()), (9, 0));
        drop(loan);
        assert!(account.take(45).is_ok());
        // 16 MiB, the least.
        let small = Account::new(16 << 20);
        let mut share = small.take(2).unwrap();
        share.grow(2, 8).unwrap();
        assert_eq!(share.buffers(), 8);
    }
}
