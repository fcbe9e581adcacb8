//! Completions in the order of posting, for in-order connections: what completes early waits.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The work requests that were not reported.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Completions(VecDeque<(u64, bool)>);

impl Completions {
    pub(super) fn post(&mut self, token: u64) {
        self.0.push_back((token, false));
    }

    /// The first one of this token that is not done is done.
    pub(super) fn complete(&mut self, token: u64) {
        let mut open = self.0.iter_mut();
        if let Some((_, done)) = open.find(|(of, done)| *of == token && !*done) {
            *done = true;
        }
    }

    /// The token of the oldest one, once it is done.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let (token, _) = self.0.pop_front_if(|(_, done)| *done)?;
        Some(token)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.0.front().is_some_and(|(_, done)| *done)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u64, bool)>()
    }
}
