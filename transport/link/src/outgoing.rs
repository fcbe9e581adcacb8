//! The paths of this end, over TCP or shared memory: each has a connection, made by what is sent, and not soon again when
//! it breaks.

use std::collections::{HashMap, VecDeque};

use weft_core::units::{Nanos, PathId, Time};

use crate::address::LinkAddress;
use crate::link::{PathChange, PathCondition};

/// A path to or from another link: the address of the other end, and the number of the path at the end that sends data.
pub(crate) type Way = (LinkAddress, PathId);

/// A path whose connection broke takes chunks again after this, doubled with each attempt that brought nothing.
const BACKOFF_MIN: Nanos = Nanos::from_millis(10);
const BACKOFF_DOUBLED_MAX: u32 = 7;

/// How often was tried in vain is forgotten after this.
const FORGET_AFTER: Nanos = Nanos::from_secs(10);

/// What is known of a path.
#[derive(Debug, Clone, Copy)]
enum State {
    /// It has this connection.
    Open(usize),
    /// So many attempts were in vain. It takes nothing until it is ready again.
    Broken {
        failures: u32,
        ready_at: Time,
        is_ready: bool,
    },
}

/// What a path that is to be sent on has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// The connection in this slot.
    Open(usize),
    /// None: one may be made, after so many attempts in vain.
    ToMake(u32),
    /// None, and it is too early for another attempt.
    Broken,
}

/// The paths of this end that were sent on. Owned by a link, which has their connections in slots.
#[derive(Debug, Default)]
pub(crate) struct OutgoingPaths(HashMap<Way, State>);

impl OutgoingPaths {
    pub(crate) fn get(&self, way: &Way) -> Outgoing {
        match self.0.get(way) {
            Some(&State::Open(slot)) => Outgoing::Open(slot),
            Some(&State::Broken {
                failures,
                is_ready: true,
                ..
            }) => Outgoing::ToMake(failures),
            Some(_) => Outgoing::Broken,
            None => Outgoing::ToMake(0),
        }
    }

    /// A path has a connection.
    pub(crate) fn open(&mut self, way: Way, slot: usize) {
        self.0.insert(way, State::Open(slot));
    }

    /// A path has none any more, and nothing was lost by that.
    pub(crate) fn forget(&mut self, way: &Way) {
        self.0.remove(way);
    }

    /// A path's connection has broken, or could not be made, for the `failures`-th time in vain. Answers when it takes chunks
    /// again: then [`OutgoingPaths::check`] is due.
    pub(crate) fn set_broken(&mut self, now: Time, way: Way, failures: u32) -> Time {
        let doubled = (failures.saturating_sub(1)).min(BACKOFF_DOUBLED_MAX);
        let ready_at = now + BACKOFF_MIN.times(1 << doubled);
        let state = State::Broken {
            failures,
            ready_at,
            is_ready: false,
        };
        self.0.insert(way, state);
        ready_at
    }

    /// Says which paths take chunks again, and forgets those that broke long ago. `due` answers whether a time has come, and
    /// takes note of it otherwise.
    pub(crate) fn check(
        &mut self,
        mut due: impl FnMut(Time) -> bool,
        changes: &mut VecDeque<PathChange>,
    ) {
        self.0.retain(|&way, state| match state {
            State::Open(_) => true,
            State::Broken {
                ready_at, is_ready, ..
            } => {
                if !*is_ready && due(*ready_at) {
                    *is_ready = true;
                    changes.push_back(PathChange::new(way, PathCondition::Ready));
                }
                !*is_ready || !due(*ready_at + FORGET_AFTER)
            }
        });
    }
}
