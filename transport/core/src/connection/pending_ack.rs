//! The acknowledgement that an end owes: on which path it goes, and when it is due.
//!
//! Pending since any packet, due with the [`ACK_RUNS`]th run or [`ACK_DELAY`] after the first packet that it
//! answers, whichever comes first, and at once where the other end waits for it. The receiving half says what
//! has arrived; this counts and keeps the time.

use crate::recovery::{ACK_DELAY, ACK_RUNS};
use crate::units::{PathId, Time};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) enum PendingAck {
    #[default]
    Nothing,
    Answer {
        /// The newest packet's.
        path: PathId,
        /// [`Time::ZERO`] when at once, as after a restore.
        #[serde(skip)]
        due: Time,
        /// Runs that it answers, without the one that is being taken in.
        #[serde(skip)]
        runs: u32,
        /// Whether that one counts.
        #[serde(skip)]
        in_run: bool,
    },
}

impl PendingAck {
    /// A packet has arrived.
    #[inline]
    pub(super) fn arrived(&mut self, now: Time, on: PathId) {
        match self {
            PendingAck::Answer { path, in_run, .. } => (*path, *in_run) = (on, true),
            PendingAck::Nothing => {
                *self = PendingAck::Answer {
                    path: on,
                    due: now + ACK_DELAY,
                    runs: 0,
                    in_run: true,
                }
            }
        }
    }

    /// What was received together is taken in.
    #[inline]
    pub(super) fn run_ended(&mut self) {
        if let PendingAck::Answer {
            due, runs, in_run, ..
        } = self
            && std::mem::take(in_run)
        {
            *runs += 1;
            if *runs >= ACK_RUNS {
                *due = Time::ZERO;
            }
        }
    }

    /// What is owed is due at once.
    pub(super) fn at_once(&mut self) {
        if let PendingAck::Answer { due, .. } = self {
            *due = Time::ZERO;
        }
    }

    /// When it is due.
    pub(super) fn due(&self) -> Option<Time> {
        match self {
            PendingAck::Answer { due, .. } => Some(*due),
            PendingAck::Nothing => None,
        }
    }

    /// The path of an answer that is due now.
    pub(super) fn path_if_due(&self, now: Time) -> Option<PathId> {
        match self {
            PendingAck::Answer { path, due, .. } if *due <= now => Some(*path),
            PendingAck::Answer { .. } | PendingAck::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Nanos;

    const NOW: Time = Time::from_nanos(5_000_000);

    fn pending() -> PendingAck {
        let mut pending = PendingAck::default();
        pending.arrived(NOW, PathId(1));
        pending.run_ended();
        pending
    }

    #[test]
    fn the_first_packet_starts_the_delay_and_later_ones_do_not() {
        let mut pending = pending();
        pending.arrived(NOW + Nanos::from_micros(40), PathId(2));
        assert_eq!(pending.due(), Some(NOW + ACK_DELAY));
        assert_eq!(pending.path_if_due(NOW), None);
        assert_eq!(pending.path_if_due(NOW + ACK_DELAY), Some(PathId(2)));
    }

    #[test]
    fn the_fourth_run_of_any_length_is_answered_at_once() {
        let mut pending = pending();
        for _ in 1..ACK_RUNS {
            assert_eq!(pending.path_if_due(NOW), None);
            // One that held nothing to answer does not count.
            pending.run_ended();
            for _ in 0..44 {
                pending.arrived(NOW, PathId(1));
            }
            pending.run_ended();
        }
        assert_eq!(pending.path_if_due(NOW), Some(PathId(1)));
    }

    #[test]
    fn what_is_not_owed_cannot_be_due() {
        let mut pending = PendingAck::default();
        pending.at_once();
        pending.run_ended();
        assert_eq!((pending.due(), pending.path_if_due(NOW)), (None, None));
    }

    #[test]
    fn what_was_owed_under_another_clock_is_due_at_once() {
        let saved = postcard::to_allocvec(&pending()).expect("plain data");
        let restored: PendingAck = postcard::from_bytes(&saved).expect("as it was written");
        assert_eq!(restored.path_if_due(Time::ZERO), Some(PathId(1)));
    }
}
