//! Buffers of one transfer: so many of slot size, made when first needed, used again and again.
//!
//! And the account over all transfers, which keeps their sum below `limits.memory`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::fault::Fault;
use crate::record::SLOT_BYTES;

/// A buffer of [`SLOT_BYTES`].
pub(crate) type Buffer = Box<[u8]>;

/// Bytes of transfer buffers that all jobs of this agent may use together.
#[derive(Debug)]
pub struct Account {
    limit: u64,
    used: AtomicU64,
}

/// A part of an [`Account`], given back when dropped.
#[derive(Debug)]
pub struct Share {
    account: Arc<Account>,
    bytes: u64,
}

impl Account {
    /// An account of that many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicU64::new(0),
        })
    }

    /// Takes the room for that many buffers, or says what is lacking.
    pub fn take(self: &Arc<Self>, buffers: usize) -> Result<Share, Fault> {
        let needed = (buffers * SLOT_BYTES) as u64;
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(needed).filter(|sum| *sum <= self.limit)
            })
            .map_err(|used| Fault::MemoryLimit {
                needed,
                left: self.limit.saturating_sub(used),
            })?;
        Ok(Share {
            account: self.clone(),
            bytes: needed,
        })
    }

    /// Bytes taken.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The buffers of one transfer.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    freed: Condvar,
    _share: Share,
}

#[derive(Debug)]
struct State {
    free: Vec<Buffer>,
    /// Buffers that may still be made.
    unmade: usize,
    closed: bool,
}

impl Pool {
    /// A pool of that many buffers.
    pub(crate) fn new(account: &Arc<Account>, buffers: usize) -> Result<Arc<Self>, Fault> {
        let share = account.take(buffers)?;
        let state = State {
            free: Vec::new(),
            unmade: buffers,
            closed: false,
        };
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            freed: Condvar::new(),
            _share: share,
        }))
    }

    /// A buffer if there is one now.
    #[must_use]
    pub(crate) fn try_take(&self) -> Option<Buffer> {
        Self::pick(&mut self.lock())
    }

    /// A buffer as soon as there is one; none once the pool is closed.
    #[must_use]
    pub(crate) fn take(&self) -> Option<Buffer> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(buffer) = Self::pick(&mut state) {
                return Some(buffer);
            }
            state = self
                .freed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives a buffer back. One of another size is dropped: it was never the pool's.
    pub(crate) fn give(&self, buffer: Buffer) {
        if buffer.len() == SLOT_BYTES {
            self.lock().free.push(buffer);
            self.freed.notify_one();
        }
    }

    /// Gives a shared buffer back if this was its last owner.
    pub(crate) fn release(&self, buffer: Arc<Buffer>) {
        if let Some(buffer) = Arc::into_inner(buffer) {
            self.give(buffer);
        }
    }

    /// Wakes whoever waits for a buffer; nobody gets one from now on.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.freed.notify_all();
    }

    fn pick(state: &mut State) -> Option<Buffer> {
        state.free.pop().or_else(|| {
            state.unmade = state.unmade.checked_sub(1)?;
            Some(vec![0; SLOT_BYTES].into_boxed_slice())
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_refuses_what_it_does_not_have_and_takes_back_what_is_dropped() {
        let account = Account::new(3 * SLOT_BYTES as u64);
        let share = account.take(2).unwrap();
        assert_eq!(account.take(2).unwrap_err().reason(), "MemoryLimit");
        drop(share);
        assert!(account.take(3).is_ok());
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn a_pool_lends_as_many_as_it_has_and_no_more() {
        let pool = Pool::new(&Account::new(u64::MAX), 2).unwrap();
        let first = pool.try_take().unwrap();
        let _second = pool.try_take().unwrap();
        assert!(pool.try_take().is_none());
        let shared = Arc::new(first);
        pool.release(shared.clone());
        assert!(pool.try_take().is_none());
        pool.release(shared);
        assert!(pool.try_take().is_some());
        pool.close();
        assert!(pool.take().is_none());
    }
}
