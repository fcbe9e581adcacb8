//! How an operation ends, and who learns of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::failure::Failure;
use crate::lock::lock;

/// How an operation ended. It ends once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes of a write or a send are at the other end, or those of a read here; a count is reached; a peer is
    /// connected.
    Done,
    /// It was stopped, and no byte of it lands any more: the memory at both ends may be reused. Some bytes may have landed
    /// before. The cause is [`crate::Cause::Cancelled`] or [`crate::Cause::DeadlinePassed`].
    Reusable(Failure),
    /// It was stopped, and the peer has not confirmed that: bytes may still land.
    Unconfirmed(Failure),
    /// It failed. Bytes may still land, unless the stage is [`crate::Stage::Connect`] or [`crate::Stage::Post`].
    Failed(Failure),
}

impl Outcome {
    /// `Ok` when the work is done. For a program that goes on only then, with `?`; whether memory may be reused, the variants
    /// say.
    pub fn into_result(self) -> Result<(), Failure> {
        match self {
            Self::Done => Ok(()),
            Self::Reusable(failure) | Self::Unconfirmed(failure) | Self::Failed(failure) => {
                Err(failure)
            }
        }
    }

    /// The value of a [`Completion::Flag`]: 1, 2, 3, 4 in the order of the variants.
    pub fn code(&self) -> u64 {
        match self {
            Self::Done => 1,
            Self::Reusable(_) => 2,
            Self::Unconfirmed(_) => 3,
            Self::Failed(_) => 4,
        }
    }
}

/// Who learns of the end of an operation, beside the holders of the [`crate::Operation`].
#[derive(Default)]
pub enum Completion {
    /// Nobody.
    #[default]
    None,
    /// The callback thread calls this. A panic is counted and logged, and the engine goes on.
    Callback(Box<dyn FnOnce(Outcome) + Send>),
    /// This is set to [`Outcome::code`] with release ordering. Set it to 0 before.
    Flag(Arc<AtomicU64>),
    /// This is called with [`Outcome::code`]. It stores the code where a program in another language polls, with release
    /// ordering, and does nothing else: transfers wait for it.
    Store(Box<dyn FnOnce(u64) + Send>),
}

/// Gets the outcome of an operation.
pub(crate) type Callback = Box<dyn FnOnce(Outcome) + Send>;

/// What the program and the engine share of an operation.
pub(crate) struct State {
    inner: Mutex<Inner>,
    ended: Condvar,
}

struct Inner {
    outcome: Option<Outcome>,
    completion: Completion,
    callbacks: Vec<Callback>,
    waker: Option<Waker>,
}

impl State {
    pub(crate) fn new(completion: Completion) -> Arc<Self> {
        let inner = Inner {
            outcome: None,
            completion,
            callbacks: Vec::new(),
            waker: None,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            ended: Condvar::new(),
        })
    }

    /// Ends the operation. Tells everybody but the callbacks, which the callback thread has to call.
    pub(crate) fn end(&self, outcome: Outcome) -> Vec<Callback> {
        let mut inner = lock(&self.inner);
        let completion = std::mem::take(&mut inner.completion);
        let mut callbacks = std::mem::take(&mut inner.callbacks);
        // Before anybody wakes: who waits finds it set.
        match completion {
            Completion::None => {}
            Completion::Callback(callback) => callbacks.push(callback),
            Completion::Flag(flag) => flag.store(outcome.code(), Ordering::Release),
            Completion::Store(store) => store(outcome.code()),
        }
        inner.outcome = Some(outcome);
        let waker = inner.waker.take();
        drop(inner);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        callbacks
    }

    /// Waits for the end.
    pub(crate) fn wait(&self) -> Outcome {
        let mut inner = lock(&self.inner);
        loop {
            if let Some(outcome) = &inner.outcome {
                return outcome.clone();
            }
            let waited = self.ended.wait(inner);
            inner = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the end, but no longer than `time`.
    pub(crate) fn wait_for(&self, time: Duration) -> Option<Outcome> {
        let inner = lock(&self.inner);
        let is_open = |inner: &mut Inner| inner.outcome.is_none();
        let waited = self.ended.wait_timeout_while(inner, time, is_open);
        let (inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inner.outcome.clone()
    }

    /// Adds a callback, or answers the outcome.
    pub(crate) fn on_end(&self, callback: Callback) -> Option<Outcome> {
        let mut inner = lock(&self.inner);
        if inner.outcome.is_none() {
            inner.callbacks.push(callback);
        }
        inner.outcome.clone()
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        lock(&self.inner).outcome.clone()
    }

    /// The outcome; before the end, has it wake this task and no other.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        let mut inner = lock(&self.inner);
        match &inner.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                inner.waker = Some(waker.clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Cause, Stage};

    #[test]
    fn only_work_that_is_done_is_a_success() {
        let failure = Failure {
            peer: Some("127.0.0.1:20000#00000001".to_owned()),
            path: None,
            stage: Stage::Transfer,
            cause: Cause::Cancelled,
        };
        assert_eq!(Outcome::Done.into_result(), Ok(()));
        for ended in [Outcome::Reusable, Outcome::Unconfirmed, Outcome::Failed] {
            assert_eq!(ended(failure.clone()).into_result(), Err(failure.clone()));
        }
    }
}
