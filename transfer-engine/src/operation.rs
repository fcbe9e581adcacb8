//! What a program holds of an operation: its options, its outcome, and how it learns of it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::failure::{Cause, Failure};
use crate::operations::PartId;
use crate::shared::{Shared, lock};

/// How an operation ended. It ends once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes of a write or a send are at the other end, or those of a read here; a count is reached; a peer is
    /// connected.
    Done,
    /// It was stopped, and no byte of it lands any more: the memory at both ends may be reused. Some bytes may have landed
    /// before. The cause is [`Cause::Cancelled`] or [`Cause::DeadlinePassed`].
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

/// Who learns of the end of an operation, beside the holders of the [`Operation`].
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

/// How long an operation may take, and who learns of its end.
pub struct Options {
    /// From the call on, at most a century. When it passes, the operation is stopped as by [`Operation::cancel`].
    pub deadline: Duration,
    /// Who learns of the end.
    pub completion: Completion,
}

impl Default for Options {
    /// 30 seconds, more than a connection needs to notice a dead peer; no completion.
    fn default() -> Self {
        Self::within(Duration::from_secs(30))
    }
}

impl Options {
    /// This deadline, no completion.
    pub fn within(deadline: Duration) -> Self {
        Self {
            deadline,
            completion: Completion::None,
        }
    }
}

/// What the program and the engine share of an operation.
pub(crate) struct State {
    inner: Mutex<Inner>,
    ended: Condvar,
}

struct Inner {
    outcome: Option<Outcome>,
    completion: Completion,
    waker: Option<Waker>,
}

impl State {
    pub(crate) fn new(completion: Completion) -> Arc<Self> {
        let inner = Inner {
            outcome: None,
            completion,
            waker: None,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            ended: Condvar::new(),
        })
    }

    /// Ends the operation. Tells everybody but a callback, which the callback thread has to call.
    pub(crate) fn end(&self, outcome: Outcome) -> Option<Box<dyn FnOnce() + Send>> {
        let mut inner = lock(&self.inner);
        let completion = std::mem::take(&mut inner.completion);
        if let Completion::Flag(flag) = &completion {
            // Before anybody wakes: who waits finds it set.
            flag.store(outcome.code(), Ordering::Release);
        }
        inner.outcome = Some(outcome.clone());
        let waker = inner.waker.take();
        drop(inner);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        match completion {
            Completion::Callback(callback) => Some(Box::new(move || callback(outcome))),
            Completion::None | Completion::Flag(_) => None,
        }
    }
}

/// An operation that was submitted. It goes on when this is dropped. As a future it gives the [`Outcome`]; the last clone
/// that was polled is woken.
#[derive(Clone)]
pub struct Operation {
    pub(crate) id: PartId,
    pub(crate) state: Arc<State>,
    pub(crate) shared: Weak<Shared>,
}

impl Operation {
    /// Waits for the end, which comes by the deadline and [`crate::TransferEngineConfig::cancel_timeout`]. A callback must
    /// not call this: it may wait for itself.
    pub fn wait(&self) -> Outcome {
        let mut inner = lock(&self.state.inner);
        loop {
            if let Some(outcome) = &inner.outcome {
                return outcome.clone();
            }
            let waited = self.state.ended.wait(inner);
            inner = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The outcome, if the operation has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        lock(&self.state.inner).outcome.clone()
    }

    /// Stops the operation. It then ends within [`crate::TransferEngineConfig::cancel_timeout`]: as
    /// [`Outcome::Reusable`] when no byte of it lands any more, as [`Outcome::Unconfirmed`] when the peer does not confirm
    /// that in time, or as it would have ended anyway. A send that is under way cannot be stopped: it ends as
    /// [`Outcome::Done`] or [`Outcome::Unconfirmed`].
    pub fn cancel(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.stop(self.id, &Cause::Cancelled);
        }
    }
}

impl Future for Operation {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut inner = lock(&self.state.inner);
        match &inner.outcome {
            Some(outcome) => Poll::Ready(outcome.clone()),
            None => {
                inner.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({:?})", self.outcome())
    }
}
