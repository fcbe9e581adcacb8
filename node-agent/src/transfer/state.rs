//! An attempt's life as a table: which event leads from which state to which.
//!
//! Pure; [`crate::transfer::attempt`] applies it under its lock and does what a transition asks for.

use std::fmt;

use weft_proto::agent::v1 as proto;

/// The state of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum State {
    /// Known, nothing done yet.
    #[default]
    Pending,
    /// Hashing what is there and reserving space.
    Preparing,
    /// Prepared; waiting for Start or for the parent's Connect.
    Ready,
    /// Moving blocks.
    Transferring,
    /// All blocks are here: digests, fsync, rename.
    Verifying,
    /// Done, and right.
    Verified,
    /// Over without success.
    Failed,
}

/// What can happen to an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// Prepare was called.
    Prepare,
    /// Preparing is done.
    Prepared,
    /// Start was called at a source.
    StartSource,
    /// Start was called at a destination.
    StartDestination,
    /// The parent connected.
    Connect,
    /// The last block is here; at the source: everything is read.
    AllBlocks,
    /// Everything is checked and published.
    Published,
    /// Something failed, Cancel was called, the lease ran out, or the agent stops.
    Fail,
}

/// What an event does in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The attempt enters this state.
    To(State),
    /// A repetition, which is answered like the first time.
    Stay,
    /// Not allowed in this state; the caller is told so.
    Refuse,
}

impl State {
    /// The table.
    #[must_use]
    pub fn on(self, event: Event) -> Transition {
        use Event::{AllBlocks, Connect, Fail, Prepare, Prepared, Published};
        use Event::{StartDestination, StartSource};
        use State::{Failed, Pending, Preparing, Ready, Transferring, Verified, Verifying};
        use Transition::{Refuse, Stay, To};
        match (self, event) {
            (Pending, Prepare) => To(Preparing),
            (Preparing, Prepared) => To(Ready),
            (Pending, StartSource) => To(Transferring),
            (Ready, StartDestination | Connect) => To(Transferring),
            (Transferring, AllBlocks) => To(Verifying),
            (Verifying, Published) => To(Verified),
            (Pending | Preparing | Ready | Transferring | Verifying, Fail) => To(Failed),

            // Commands are repeated by operators that did not hear the answer.
            (Preparing | Ready | Transferring | Verifying | Verified, Prepare) => Stay,
            (Transferring | Verifying | Verified, StartSource | StartDestination) => Stay,
            // The parent may connect after Start, and again when its first answer was lost.
            (Transferring, Connect) => Stay,
            (Verified | Failed, Fail) => Stay,

            _ => Refuse,
        }
    }

    /// Whether no event leads to another state.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, State::Verified | State::Failed)
    }

    /// As the control API names it.
    #[must_use]
    pub fn to_proto(self) -> proto::State {
        match self {
            State::Pending => proto::State::Pending,
            State::Preparing | State::Ready => proto::State::Preparing,
            State::Transferring => proto::State::Transferring,
            State::Verifying => proto::State::Verifying,
            State::Verified => proto::State::Verified,
            State::Failed => proto::State::Failed,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// In the order of an attempt's life.
    const STATES: [State; 7] = [
        State::Pending,
        State::Preparing,
        State::Ready,
        State::Transferring,
        State::Verifying,
        State::Verified,
        State::Failed,
    ];

    const EVENTS: [Event; 8] = [
        Event::Prepare,
        Event::Prepared,
        Event::StartSource,
        Event::StartDestination,
        Event::Connect,
        Event::AllBlocks,
        Event::Published,
        Event::Fail,
    ];

    #[test]
    fn every_state_and_event_is_in_the_table() {
        let mut table = format!("{:<18}", "");
        for state in STATES {
            write!(table, "{state:<16}").unwrap();
        }
        for event in EVENTS {
            let name = format!("{event:?}");
            write!(table, "\n{name:<18}").unwrap();
            for state in STATES {
                let step = match state.on(event) {
                    Transition::To(next) => format!("-> {next}"),
                    Transition::Stay => "stay".to_owned(),
                    Transition::Refuse => ".".to_owned(),
                };
                write!(table, "{step:<16}").unwrap();
            }
        }
        let trimmed: Vec<_> = table.lines().map(str::trim_end).collect();
        insta::assert_snapshot!(trimmed.join("\n"));
    }

    #[test]
    fn nothing_leads_out_of_a_terminal_state() {
        for state in STATES.into_iter().filter(|s| s.is_terminal()) {
            for event in EVENTS {
                assert!(
                    !matches!(state.on(event), Transition::To(_)),
                    "{state} {event:?}"
                );
            }
        }
    }
}
