//! Chunks that the receiver was not ready for: they wait, and one of them asks from time to time whether it is
//! ready now. So do chunks that it refused for good, as long as the connection may not fail by them.

use super::SendHalf;
use super::losses::missing;
use crate::connection::timer::{Timer, TimerTable};
use crate::recovery::SentState;
use crate::units::{ChunkNumber, Nanos, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What a receiver was not ready for is sent again after this, about a turn of the program that
/// gives buffers back; each time in a row after twice as long, up to the second value. (InfiniBand's
/// timers for "receiver not ready" range from 10 us to 655 ms.)
const BACKOFF_MIN: Nanos = Nanos::from_millis(1);
const BACKOFF_MAX: Nanos = Nanos::from_millis(64);

/// Whether the receiver takes what is sent.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) enum Readiness {
    /// It took what was sent last, or nothing was sent.
    #[default]
    Ready,
    /// It was not ready; one of what waits goes again after the backoff.
    NotReady(Waiting),
    /// One chunk was sent again; the others wait for its answer.
    Asked {
        chunk: ChunkNumber,
        waiting: Waiting,
    },
}

impl Readiness {
    /// Heap memory, bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        let (Readiness::NotReady(waiting) | Readiness::Asked { waiting, .. }) = self else {
            return 0;
        };
        waiting.chunks.capacity() * size_of::<ChunkNumber>()
    }
}

/// What the receiver was not ready for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Waiting {
    chunks: VecDeque<ChunkNumber>,
    backoff: Nanos,
    pick: Pick,
    /// How many went again when the last one was taken: twice as many go then.
    batch: usize,
}

impl Waiting {
    /// Where the oldest one stands; `first` is the board's first chunk.
    fn oldest(&self, first: ChunkNumber) -> Option<usize> {
        (0..self.chunks.len()).min_by_key(|&at| self.chunks[at].ahead_of(first))
    }
}

/// Which waiting chunk asks next. In turns, for they may be for different regions; and every other time the oldest,
/// for of sends only that one can be taken.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Pick {
    InTurn,
    Oldest,
}

impl Pick {
    fn next(self) -> Pick {
        match self {
            Pick::InTurn => Pick::Oldest,
            Pick::Oldest => Pick::InTurn,
        }
    }
}

impl SendHalf {
    /// The receiver did not take a chunk that is under way: it is sent again after a while. No path and no queue is to
    /// blame, so neither learns of it.
    pub(in crate::connection) fn handle_not_ready(
        &mut self,
        now: Time,
        chunk: ChunkNumber,
        timers: &mut TimerTable,
    ) {
        let sent = *self.board.get(chunk);
        if sent.state != SentState::InFlight {
            return;
        }
        self.in_flight.remove(sent.path, sent.in_flight);
        self.board.lose(chunk, missing(&sent));
        let mut waiting = match std::mem::take(&mut self.readiness) {
            Readiness::Asked {
                chunk: asked,
                mut waiting,
            } if asked != chunk => {
                waiting.chunks.push_back(chunk);
                let chunk = asked;
                self.readiness = Readiness::Asked { chunk, waiting };
                return;
            }
            Readiness::Asked { waiting, .. } => Waiting {
                backoff: waiting.backoff.times(2).min(BACKOFF_MAX),
                pick: waiting.pick.next(),
                batch: 1,
                ..waiting
            },
            Readiness::NotReady(waiting) => waiting,
            Readiness::Ready => Waiting {
                chunks: VecDeque::new(),
                backoff: BACKOFF_MIN,
                pick: Pick::InTurn,
                batch: 1,
            },
        };
        waiting.chunks.push_back(chunk);
        timers.set_earlier(Timer::ReceiverNotReady, now + waiting.backoff);
        self.readiness = Readiness::NotReady(waiting);
    }

    /// Of what has waited for long enough, one is sent again: a window of them, refused time and again,
    /// would fill the network for nothing.
    pub(in crate::connection) fn ask_receiver(&mut self) {
        let Readiness::NotReady(waiting) = &mut self.readiness else {
            return;
        };
        waiting.chunks.retain(|&chunk| self.board.is_lost(chunk));
        let at = match waiting.pick {
            Pick::InTurn => Some(0),
            Pick::Oldest => waiting.oldest(self.board.first()),
        };
        let asked = at.and_then(|at| waiting.chunks.remove(at));
        let before = std::mem::take(&mut self.readiness);
        if let (Some(chunk), Readiness::NotReady(waiting)) = (asked, before) {
            self.lost.push_back(chunk);
            self.readiness = Readiness::Asked { chunk, waiting };
        }
    }

    /// A chunk has arrived. If it was sent to ask, the receiver is ready: the oldest of the others go as well, twice as
    /// many as the time before, for it may have taken one send and have no place for the next.
    pub(super) fn note_ready(&mut self, arrived: ChunkNumber) {
        if let Readiness::Asked { chunk, waiting } = &mut self.readiness
            && *chunk == arrived
        {
            waiting.chunks.retain(|&chunk| self.board.is_lost(chunk));
            waiting.backoff = BACKOFF_MIN;
            waiting.batch *= 2;
            let first = self.board.first();
            let chunks = waiting.chunks.make_contiguous();
            chunks.sort_unstable_by_key(|chunk| chunk.ahead_of(first));
            let count = waiting.batch.min(chunks.len());
            self.lost.extend(waiting.chunks.drain(..count));
            match self.lost.back() {
                Some(&last) if !waiting.chunks.is_empty() => *chunk = last,
                _ => self.readiness = Readiness::Ready,
            }
        }
    }

    /// A message was revoked. If the chunk that was sent to ask was of it, the oldest of those that wait asks in its place:
    /// nothing is known of the receiver.
    pub(super) fn hand_question_on(&mut self) {
        let board = &self.board;
        let Readiness::Asked { chunk, waiting } = &mut self.readiness else {
            return;
        };
        if board.holds(*chunk) && board.get(*chunk).is_under_way() {
            return;
        }
        waiting.chunks.retain(|&chunk| board.is_lost(chunk));
        let oldest = waiting.oldest(board.first());
        match oldest.and_then(|at| waiting.chunks.remove(at)) {
            Some(next) => {
                self.lost.push_back(next);
                *chunk = next;
            }
            None => self.readiness = Readiness::Ready,
        }
    }

    /// Whether the receiver's last word was that it is not ready, and an answer of it can still come.
    pub(in crate::connection) fn is_refused(&self) -> bool {
        match self.readiness {
            Readiness::Ready => false,
            Readiness::NotReady(_) => true,
            Readiness::Asked { .. } => self.backoff == 0,
        }
    }
}
