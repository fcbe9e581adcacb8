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
        if let Completion::Flag(flag) = &completion {
            // Before anybody wakes: who waits finds it set.
            flag.store(outcome.code(), Ordering::Release);
        }
        inner.outcome = Some(outcome);
        let waker = inner.waker.take();
        drop(inner);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Completion::Callback(callback) = completion {
            callbacks.push(callback);
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

    /// Waits for the end, at most this long.
    pub(crate) fn wait_for(&self, at_most: Duration) -> Option<Outcome> {
        let inner = lock(&self.inner);
        let waited = self
            .ended
            .wait_timeout_while(inner, at_most, |inner| inner.outcome.is_none());
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
