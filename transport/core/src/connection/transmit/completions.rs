//! Completions in the order of posting, for in-order connections: what completes early waits.

use super::super::Event;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The work requests that are not reported, each with whether it is complete.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Completions(VecDeque<(u64, bool)>);

impl Completions {
    pub(super) fn post(&mut self, token: u64) {
        self.0.push_back((token, false));
    }

    /// The oldest work request of this token that is not complete is complete now. Reports all that no other one holds up.
    pub(super) fn complete(&mut self, token: u64, events: &mut VecDeque<Event>) {
        let mut open = self.0.iter_mut();
        if let Some((_, is_complete)) = open.find(|(of, is_complete)| *of == token && !*is_complete)
        {
            *is_complete = true;
        }
        while let Some((token, _)) = self.0.pop_front_if(|(_, is_complete)| *is_complete) {
            events.push_back(Event::Completed { token });
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u64, bool)>()
    }
}
