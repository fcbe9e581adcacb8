//! Chunks that the receiver was not ready for: they wait, and one of them asks from time to time whether it is
//! ready now.

use super::Transmit;
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
    /// It was not ready for these chunks; one of them goes again after `backoff`.
    NotReady {
        waiting: VecDeque<ChunkNumber>,
        backoff: Nanos,
        pick: Pick,
    },
    /// One chunk was sent again; the others wait for its answer.
    Asked {
        chunk: ChunkNumber,
        waiting: VecDeque<ChunkNumber>,
        backoff: Nanos,
        pick: Pick,
    },
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

impl Transmit {
    /// The receiver was not ready for a chunk that is under way: it is sent again after a while. No path
    /// and no queue is to blame, so neither learns of it.
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
        let (mut waiting, backoff, pick) = match std::mem::take(&mut self.readiness) {
            Readiness::Asked {
                chunk: asked,
                mut waiting,
                backoff,
                pick,
            } if asked != chunk => {
                waiting.push_back(chunk);
                self.readiness = Readiness::Asked {
                    chunk: asked,
                    waiting,
                    backoff,
                    pick,
                };
                return;
            }
            Readiness::Asked {
                waiting,
                backoff,
                pick,
                ..
            } => (waiting, backoff.times(2).min(BACKOFF_MAX), pick.next()),
            Readiness::NotReady {
                waiting,
                backoff,
                pick,
            } => (waiting, backoff, pick),
            Readiness::Ready => (VecDeque::new(), BACKOFF_MIN, Pick::InTurn),
        };
        waiting.push_back(chunk);
        self.readiness = Readiness::NotReady {
            waiting,
            backoff,
            pick,
        };
        timers.set_earlier(Timer::ReceiverNotReady, now + backoff);
    }

    /// Of what has waited for long enough, one is sent again: a window of them, refused time and again,
    /// would fill the network for nothing.
    pub(in crate::connection) fn ask_receiver(&mut self) {
        let Readiness::NotReady {
            waiting,
            backoff,
            pick,
        } = &mut self.readiness
        else {
            return;
        };
        let (mut waiting, backoff, pick) = (std::mem::take(waiting), *backoff, *pick);
        self.readiness = Readiness::Ready;
        waiting.retain(|&chunk| self.board.is_lost(chunk));
        let ahead = |chunk: &ChunkNumber| chunk.ahead_of(self.board.first());
        let oldest = (0..waiting.len()).min_by_key(|&at| ahead(&waiting[at]));
        let at = match pick {
            Pick::InTurn => Some(0),
            Pick::Oldest => oldest,
        };
        if let Some(chunk) = at.and_then(|at| waiting.remove(at)) {
            self.lost.push_back(chunk);
            self.readiness = Readiness::Asked {
                chunk,
                waiting,
                backoff,
                pick,
            };
        }
    }

    /// A chunk has arrived. If it was sent to ask, the receiver is ready, and the others go as well.
    pub(super) fn note_ready(&mut self, arrived: ChunkNumber) {
        if let Readiness::Asked { chunk, waiting, .. } = &mut self.readiness
            && *chunk == arrived
        {
            self.lost.append(waiting);
            self.readiness = Readiness::Ready;
        }
    }

    /// Whether the receiver's last word was that it is not ready, and an answer of it can still come.
    pub(in crate::connection) fn is_refused(&self) -> bool {
        match self.readiness {
            Readiness::Ready => false,
            Readiness::NotReady { .. } => true,
            Readiness::Asked { .. } => self.backoff == 0,
        }
    }
}
