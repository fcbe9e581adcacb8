//! Receives that several connections share.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_core::connection::{ReceiveBuffer, SharedReceives};

/// Buffers for sends of the peers of several connections, which take the oldest one each
/// ([`crate::Engine::share_receives`]).
#[derive(Debug, Default)]
pub struct SharedReceiveQueue(Mutex<VecDeque<ReceiveBuffer>>);

impl SharedReceiveQueue {
    /// Posts a buffer, in a region that is registered for writes. [`crate::Event::Received`] of whichever connection takes
    /// it brings its token as `context`.
    pub fn post(&self, buffer: ReceiveBuffer) {
        self.lock().push_back(buffer);
    }

    /// Posts a buffer before the others.
    pub fn post_first(&self, buffer: ReceiveBuffer) {
        self.lock().push_front(buffer);
    }

    /// The tokens of the buffers that no connection has taken, the next one first.
    pub fn tokens(&self) -> Vec<u64> {
        self.lock().iter().map(|buffer| buffer.token).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ReceiveBuffer>> {
        // No panic leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedReceives for SharedReceiveQueue {
    fn take(&self) -> Option<ReceiveBuffer> {
        self.lock().pop_front()
    }

    fn give_back(&self, buffers: Vec<ReceiveBuffer>) {
        let mut all = self.lock();
        let newest_first = buffers.into_iter().rev();
        newest_first.for_each(|buffer| all.push_front(buffer));
    }
}
