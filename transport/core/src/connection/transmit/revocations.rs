//! Messages that are cancelled: what was not cut is dropped, what was cut is revoked until the receiver confirms.

use super::losses::TailProbe;
use super::{Posted, SendHalf};
use crate::connection::chunk::ChunkSource;
use crate::connection::receives::Requests;
use crate::connection::timer::{Timer, TimerTable};
use crate::connection::{Event, Failure};
use crate::path::PathSet;
use crate::recovery::Sent;
use crate::units::{ChunkNumber, Nanos, PathId, Time};
use crate::wire::{Opcode, REVOCATIONS_MAX, Revoke, Revoked};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A revocation is sent again after the timeout of its path, but no sooner than this: the receiver may wait for a copy.
const ANSWER_MIN: Nanos = Nanos::from_millis(1);
/// Each time in a row it waits twice as long, up to this, or to the timeout of its path.
const ANSWER_MAX: Nanos = Nanos::from_millis(64);
/// Doublings at most: beyond, the wait is [`ANSWER_MAX`] in any case.
const DOUBLINGS_MAX: u32 = 16;

/// Why a message is revoked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::connection) enum RevocationReason {
    /// Its user has cancelled it.
    Cancelled,
    /// The peer has refused a chunk of it, and the connection goes on.
    Refused(Failure),
}

/// A message that the receiver is to place no more of.
#[derive(Debug, Serialize, Deserialize)]
struct Revocation {
    /// Its place among the posted ones.
    message: u32,
    /// As in [`Revoke::first`].
    first: ChunkNumber,
    /// As in [`Revoke::end`].
    end: ChunkNumber,
    /// When it is sent, or sent again. After a restore: at once.
    #[serde(skip)]
    due: Time,
    /// When it was first sent.
    #[serde(skip)]
    since: Time,
    /// How often it was sent.
    #[serde(skip)]
    sent: u32,
}

impl Revocation {
    /// The chunks that it names. Until it is answered the board holds them all, for it does not advance beyond the first.
    fn chunks(&self) -> impl Iterator<Item = ChunkNumber> + use<> {
        let first = self.first;
        (0..self.end.ahead_of(first)).map(move |at| first.plus(at as u32))
    }
}

/// The revocations that the receiver has not answered, by number.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Revocations {
    next: u64,
    unanswered: BTreeMap<u64, Revocation>,
}

impl Revocations {
    pub(super) fn is_empty(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Heap memory, bytes: about, for the nodes of the tree.
    pub(super) fn heap_bytes(&self) -> usize {
        self.unanswered.len() * size_of::<(u64, Revocation)>()
    }
}

impl SendHalf {
    /// The place of what was posted with this token and is not complete, and what it is. Of a read or an atomic the
    /// request has no token here.
    pub(in crate::connection) fn find_posted(&mut self, token: u64) -> Option<(u32, Opcode)> {
        let is_meant = |posted: &Posted| posted.source == ChunkSource::Posted { token };
        self.find(is_meant)
    }

    /// The place of a request by its number, unless it was cut: then the peer may know it.
    pub(in crate::connection) fn find_unsent_request(&mut self, number: u64) -> Option<u32> {
        let is_meant = |posted: &Posted| {
            posted.opcode == Opcode::Request && u64::from(posted.immediate) == number
        };
        let (at, _) = self.find(is_meant)?;
        let posted = self.posted.get(at as usize)?.as_ref()?;
        (posted.chunks == 0).then_some(at)
    }

    /// Looks from the last place on that was found: many are cancelled in the order in which they were posted.
    fn find(&mut self, is_meant: impl Fn(&Posted) -> bool) -> Option<(u32, Opcode)> {
        let count = self.posted.len();
        let from = self.looked_at.min(count);
        let mut places = (from..count).chain(0..from);
        let (at, opcode) = places.find_map(|at| {
            let posted = self.posted[at].as_ref().filter(|posted| is_meant(posted))?;
            Some((at, posted.opcode))
        })?;
        self.looked_at = at;
        Some((at as u32, opcode))
    }

    fn unqueue(&mut self, at: u32) {
        let mut queue = self.queue.iter();
        if let Some(place) = queue.position(|&queued| queued == at) {
            self.queue.remove(place);
        }
    }

    /// Drops a request of which nothing was cut.
    pub(in crate::connection) fn drop_unsent(&mut self, at: u32) {
        self.unqueue(at);
        self.complete(at);
    }

    /// Revokes a write. Answers how it has ended if that is known now; otherwise the receiver is asked.
    pub(in crate::connection) fn revoke(
        &mut self,
        at: u32,
        reason: RevocationReason,
    ) -> Option<Event> {
        let posted = self.posted.get_mut(at as usize)?.as_mut()?;
        if posted.revoked.is_some() {
            return None;
        }
        posted.revoked = Some(reason);
        let (chunks, is_cut) = (posted.chunks, posted.done);
        if !is_cut {
            self.unqueue(at);
        }
        let of_it = |(_, sent): &(ChunkNumber, &Sent)| sent.write == at;
        let found = match chunks {
            0 => None,
            _ => self.board.under_way().find(of_it),
        };
        let Some((first, index)) = found.map(|(chunk, sent)| (chunk, sent.index)) else {
            // The receiver has all that was cut, and drops what comes of it again.
            let token = self.complete(at)?;
            return Some(Event::Cancelled { token });
        };
        let revocation = Revocation {
            message: at,
            first,
            // Nothing is cut between two chunks of a message.
            end: first.minus(index).plus(chunks),
            due: Time::ZERO,
            since: Time::ZERO,
            sent: 0,
        };
        for chunk in revocation.chunks() {
            self.board.revoke(chunk);
        }
        self.hand_question_on();
        if let TailProbe::Sent { chunk, .. } = self.tail_probe
            && revocation.chunks().any(|revoked| revoked == chunk)
        {
            self.tail_probe = TailProbe::None;
        }
        let Revocations { next, unanswered } = &mut self.revocations;
        unanswered.insert(*next, revocation);
        *next += 1;
        None
    }

    /// The peer has refused for good a chunk that is under way, and the connection goes on: the rest of the chunk's message is
    /// revoked. Answers whether that can be: the peer counts sends, and waits for its responses.
    #[cold]
    pub(in crate::connection) fn end_refused(
        &mut self,
        chunk: ChunkNumber,
        failure: Failure,
    ) -> bool {
        let at = self.board.get(chunk).write;
        let Some(Some(posted)) = self.posted.get(at as usize) else {
            return false;
        };
        if !matches!(posted.opcode, Opcode::Write | Opcode::Request) {
            return false;
        }
        // A chunk of it is under way, so the receiver is asked.
        self.revoke(at, RevocationReason::Refused(failure));
        true
    }

    /// The next revocation to send, and the path for it. Sets the timer for those that are to be sent again.
    #[cold]
    pub(in crate::connection) fn poll_revocation(
        &mut self,
        now: Time,
        paths: &PathSet,
        packet_number: u64,
        timers: &mut TimerTable,
    ) -> Option<(PathId, Revoke)> {
        let (&oldest, _) = self.revocations.unanswered.first_key_value()?;
        // The receiver remembers no more answers.
        let in_turn = oldest..oldest.saturating_add(REVOCATIONS_MAX);
        let in_turn = self.revocations.unanswered.range_mut(in_turn);
        let (&number, revocation) = in_turn.min_by_key(|(_, revocation)| revocation.due)?;
        if revocation.due > now {
            timers.set(Timer::Revocation, revocation.due);
            return None;
        }
        // Each on another path: one that carries nothing does not hold the next up.
        let path = paths.for_control(packet_number);
        let timeout = paths.rto(path, Nanos::ZERO);
        let wait = timeout.max(ANSWER_MIN).times(1 << revocation.sent);
        if revocation.sent == 0 {
            revocation.since = now;
        }
        revocation.due = now + wait.min(timeout.max(ANSWER_MAX));
        revocation.sent = (revocation.sent + 1).min(DOUBLINGS_MAX);
        let revoke = Revoke {
            first: revocation.first,
            end: revocation.end,
            number,
            oldest,
        };
        Some((path, revoke))
    }

    /// Whether the receiver has not answered a revocation for this long.
    pub(in crate::connection) fn lacks_answer(&self, now: Time, timeout: Nanos) -> bool {
        let mut all = self.revocations.unanswered.values();
        all.any(|revocation| revocation.sent > 0 && now - revocation.since >= timeout)
    }

    /// The receiver has answered a revocation: answers how the message has ended. `None` where that was known, or where it
    /// is a request that the receiver has after all.
    pub(in crate::connection) fn handle_revoked(
        &mut self,
        revoked: Revoked,
        requests: &mut Requests,
        timers: &mut TimerTable,
    ) -> Option<Event> {
        let revocation = self.revocations.unanswered.remove(&revoked.number)?;
        if self.revocations.is_empty() {
            timers.stop(Timer::Revocation);
        }
        for chunk in revocation.chunks() {
            if let Some(sent) = self.board.release(chunk) {
                self.in_flight.remove(sent.path, sent.in_flight);
            }
        }
        self.board.advance();
        let posted = self.posted.get(revocation.message as usize)?.as_ref()?;
        let is_here = revoked.whole && posted.done;
        let (reason, number) = (posted.revoked, u64::from(posted.immediate));
        let token = match posted.opcode {
            Opcode::Request => {
                self.complete(revocation.message);
                if is_here {
                    return None;
                }
                // Of one that was cancelled meanwhile that was told.
                let token = requests.complete(number);
                self.awaited = requests.len();
                token?
            }
            _ => self.complete(revocation.message)?,
        };
        Some(match reason {
            _ if is_here => Event::Completed { token },
            Some(RevocationReason::Refused(failure)) => Event::Refused { token, failure },
            Some(RevocationReason::Cancelled) | None => Event::Cancelled { token },
        })
    }

    /// Whether the receiver has yet to confirm that a message is revoked.
    pub(in crate::connection) fn is_revoking(&self) -> bool {
        !self.revocations.is_empty()
    }
}
