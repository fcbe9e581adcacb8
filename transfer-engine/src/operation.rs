//! What a program holds of an operation: its options, and the handle that waits for it or cancels it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::error::TransferError;
use crate::failure::Cause;
use crate::operations::{Part, PartId};
use crate::outcome::{Completion, Outcome, State};
use crate::shared::{Shared, Wake};

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
        self.poll_until(None);
        self.state.wait()
    }

    /// The outcome, if the operation has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        self.state.outcome()
    }

    /// Waits for the end as [`Operation::wait`], but at most this long: `None` says that the operation goes on.
    pub fn wait_for(&self, at_most: Duration) -> Option<Outcome> {
        let at = Instant::now();
        self.poll_until(at.checked_add(at_most));
        self.state.wait_for(at_most.saturating_sub(at.elapsed()))
    }

    /// Polls the engine until the operation has ended or until `end`, if it is one that the program polls.
    fn poll_until(&self, end: Option<Instant>) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let Some(polled) = shared
            .polled
            .as_ref()
            .filter(|_| shared.check_process().is_ok())
        else {
            return;
        };
        while self.state.outcome().is_none() && end.is_none_or(|end| Instant::now() < end) {
            match shared.poll(polled) {
                Ok(true) => {}
                Ok(false) => std::thread::yield_now(),
                // Its deadline ends the operation.
                Err(_) => return,
            }
        }
    }

    /// Has the callback thread call this at the end, beside the [`Completion`]. If the operation has ended, this answers the
    /// outcome and drops the callback.
    pub fn on_end(&self, callback: Box<dyn FnOnce(Outcome) + Send>) -> Option<Outcome> {
        self.state.on_end(callback)
    }

    /// Stops the operation. It then ends within [`crate::TransferEngineConfig::cancel_timeout`]: as
    /// [`Outcome::Reusable`] when no byte of it lands any more, as [`Outcome::Unconfirmed`] when the peer does not confirm
    /// that in time, or as it would have ended anyway. A send that is under way cannot be stopped: it ends as
    /// [`Outcome::Done`] or [`Outcome::Unconfirmed`].
    pub fn cancel(&self) {
        if let Some(shared) = self.shared.upgrade()
            && shared.check_process().is_ok()
        {
            shared.stop(self.id, &Cause::Cancelled);
        }
    }
}

impl Shared {
    /// Begins an operation, at least 1 part: the ids of its parts follow the one that is answered.
    pub(crate) fn begin(
        self: &Arc<Self>,
        parts: Vec<Part>,
        options: Options,
    ) -> Result<(PartId, Operation), TransferError> {
        self.check_process()?;
        let state = State::new(options.completion);
        let deadline = self.now().saturating_add(options.deadline);
        let mut operations = self.operations();
        let begun = operations.begin(Arc::clone(&state), parts, deadline);
        drop(operations);
        let (id, wakes) = begun.ok_or(TransferError::Closed)?;
        if wakes {
            // The thread ends after the engine.
            let _ = self.to_events.send(Wake::Deadline);
        }
        let shared = Arc::downgrade(self);
        Ok((id, Operation { id, state, shared }))
    }
}

impl Future for Operation {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.state.poll(context.waker())
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({:?})", self.outcome())
    }
}
