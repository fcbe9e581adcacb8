//! Completions in the order of posting, for in-order connections: what completes early waits, and so does the end of a
//! connection by a work request that the peer refuses.

use super::super::chunk::ChunkSource;
use super::super::receives::Requests;
use super::super::{Event, Failure};
use super::SendHalf;
use crate::units::ChunkNumber;
use crate::wire::Opcode;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How far a work request is that is not reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Progress {
    UnderWay,
    Complete,
    /// The peer has refused it for good.
    Refused(Failure),
}

/// The work requests that are not reported, by token.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Completions(VecDeque<(u64, Progress)>);

impl Completions {
    pub(super) fn post(&mut self, token: u64) {
        self.0.push_back((token, Progress::UnderWay));
    }

    /// The oldest work request of this token that is under way is complete now. Reports all that no other one holds up.
    pub(super) fn complete(&mut self, token: u64, events: &mut VecDeque<Event>) {
        self.set(token, Progress::Complete);
        let is_complete = |(_, progress): &mut (u64, Progress)| *progress == Progress::Complete;
        while let Some((token, _)) = self.0.pop_front_if(is_complete) {
            events.push_back(Event::Completed { token });
        }
    }

    /// The peer has refused the oldest work request of this token that is under way.
    pub(super) fn refuse(&mut self, token: u64, failure: Failure) {
        self.set(token, Progress::Refused(failure));
    }

    fn set(&mut self, token: u64, progress: Progress) {
        let is_meant =
            |(of, progress): &&mut (u64, Progress)| *of == token && *progress == Progress::UnderWay;
        if let Some((_, found)) = self.0.iter_mut().find(is_meant) {
            *found = progress;
        }
    }

    /// The oldest that is not reported, and why the peer has refused it, if it has.
    pub(super) fn first(&self) -> Option<(u64, Option<Failure>)> {
        let (token, progress) = self.0.front()?;
        let failure = match progress {
            Progress::Refused(failure) => Some(*failure),
            Progress::UnderWay | Progress::Complete => None,
        };
        Some((*token, failure))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u64, Progress)>()
    }
}

impl SendHalf {
    /// The peer has refused for good a chunk that is under way. Returns why the connection ends by it, at once or once
    /// all that was posted before the chunk's work request is complete.
    #[cold]
    pub(in super::super) fn refuse(
        &mut self,
        chunk: ChunkNumber,
        failure: Failure,
        requests: &Requests,
    ) -> Option<Failure> {
        let message = self.posted[self.board.get(chunk).write as usize].as_ref();
        let token = message.and_then(|message| match &message.source {
            ChunkSource::Posted { token } => Some(*token),
            ChunkSource::Inline(_) if message.opcode == Opcode::Request => {
                requests.token(message.immediate.into())
            }
            _ => None,
        });
        let Some(token) = token.filter(|_| self.in_order) else {
            return Some(failure);
        };
        self.completions.refuse(token, failure);
        self.completions.first()?.1
    }

    /// Whether everything before a chunk is acknowledged.
    pub(in super::super) fn is_first(&self, chunk: ChunkNumber) -> bool {
        self.board.first() == chunk
    }

    /// The oldest work request that is not reported, on a connection that completes in order.
    pub(in super::super) fn first_unreported(&self) -> Option<u64> {
        Some(self.completions.first()?.0)
    }
}
