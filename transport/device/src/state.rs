//! The states of a queue pair and the transitions between them: InfiniBand Architecture Specification, volume 1, release 1.6,
//! section 10.3.1 and the table "QP State Transition Properties" of `Modify Queue Pair` in section 11.2.5.2.

use serde::{Deserialize, Serialize};

/// A state of a queue pair. The numbers are those of `enum ibv_qp_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum State {
    /// Created or reset: nothing can be posted.
    Reset = 0,
    /// Receives can be posted; nothing moves.
    Init = 1,
    /// Ready to receive.
    ReadyToReceive = 2,
    /// Ready to receive and to send.
    ReadyToSend = 3,
    /// What was posted to send is finished, and nothing further is begun.
    SendQueueDrained = 4,
    /// A send has failed; receives go on. Of UC and UD only.
    SendQueueError = 5,
    /// All that is posted, and all that will be, is flushed.
    Error = 6,
}

impl State {
    /// All of them, by number.
    pub const ALL: [State; 7] = [
        State::Reset,
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::SendQueueDrained,
        State::SendQueueError,
        State::Error,
    ];

    /// The state with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<State> {
        State::ALL.get(number as usize).copied()
    }

    /// Whether receives may be posted.
    #[must_use]
    pub fn takes_receives(self) -> bool {
        self != State::Reset
    }

    /// Whether sends may be posted.
    #[must_use]
    pub fn takes_sends(self) -> bool {
        !matches!(self, State::Reset | State::Init | State::ReadyToReceive)
    }
}

/// A kind of queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QueuePairType {
    /// RC: reliable connected.
    ReliableConnected,
    /// UC: unreliable connected.
    UnreliableConnected,
    /// UD: unreliable datagram.
    UnreliableDatagram,
}

/// Which attributes a change gives: the bits of `enum ibv_qp_attr_mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes(pub u32);

macro_rules! attributes {
    ($($name:ident = $bit:literal, $text:literal;)*) => {
        impl Attributes {
            $(#[doc = $text] pub const $name: Attributes = Attributes(1 << $bit);)*

            /// Their names, as in verbs, for an error.
            #[must_use]
            pub fn names(self) -> Vec<&'static str> {
                let all = [$((Attributes::$name, concat!("IBV_QP_", stringify!($name)))),*];
                all.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| *name).collect()
            }
        }
    };
}

attributes! {
    STATE = 0, "The next state.";
    CUR_STATE = 1, "The state that the caller takes it to be in.";
    EN_SQD_ASYNC_NOTIFY = 2, "Whether an event says that the send queue is drained.";
    ACCESS_FLAGS = 3, "What the peer may do.";
    PKEY_INDEX = 4, "The partition.";
    PORT = 5, "The port.";
    QKEY = 6, "The key of datagrams.";
    AV = 7, "The primary path.";
    PATH_MTU = 8, "Payload of a packet.";
    TIMEOUT = 9, "Time to wait for an acknowledgement.";
    RETRY_CNT = 10, "How often a packet is sent again.";
    RNR_RETRY = 11, "How often, where the peer has posted no receive.";
    RQ_PSN = 12, "The first packet number to come.";
    MAX_QP_RD_ATOMIC = 13, "Reads and atomics under way from here.";
    ALT_PATH = 14, "The alternate path.";
    MIN_RNR_TIMER = 15, "Time that a peer is told to wait for a receive.";
    SQ_PSN = 16, "The first packet number to go.";
    MAX_DEST_RD_ATOMIC = 17, "Reads and atomics under way from the peer.";
    PATH_MIG_STATE = 18, "Which of the two paths is used.";
    CAP = 19, "Sizes of the queues.";
    DEST_QPN = 20, "The peer's queue pair.";
}

impl Attributes {
    /// Both.
    #[must_use]
    pub const fn union(self, other: Attributes) -> Attributes {
        Attributes(self.0 | other.0)
    }

    /// Whether all of `other` are given.
    #[must_use]
    pub const fn contains(self, other: Attributes) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn difference(self, other: Attributes) -> Attributes {
        Attributes(self.0 & !other.0)
    }
}

/// Why a change is refused; verbs says EINVAL for all of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No state has this number.
    #[error("no state of a queue pair has the number {number}: give one of 0 to 6")]
    NoState {
        /// What was given.
        number: u32,
    },
    /// No such transition.
    #[error("a queue pair does not go from {from:?} to {to:?}")]
    NoTransition {
        /// Where it is.
        from: State,
        /// Where it was to go.
        to: State,
    },
    /// The caller takes it to be in another state.
    #[error("the queue pair is {actual:?}, and IBV_QP_CUR_STATE says {given:?}")]
    StateDiffers {
        /// Where it is.
        actual: State,
        /// What the caller says.
        given: State,
    },
    /// The change needs attributes that are not given.
    #[error("to go from {from:?} to {to:?} needs {}", missing.names().join(", "))]
    Missing {
        /// Where it is.
        from: State,
        /// Where it was to go.
        to: State,
        /// What is missing.
        missing: Attributes,
    },
    /// Attributes are given that cannot change there.
    #[error("between {from:?} and {to:?} cannot change: {} (bits {:#x})", not_allowed.names().join(", "), not_allowed.0)]
    NotAllowed {
        /// Where it is.
        from: State,
        /// Where it was to go.
        to: State,
        /// What is too much.
        not_allowed: Attributes,
    },
}

impl StateError {
    /// A short stable name.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoState { .. } => "NoState",
            Self::NoTransition { .. } => "NoTransition",
            Self::StateDiffers { .. } => "StateDiffers",
            Self::Missing { .. } => "AttributesMissing",
            Self::NotAllowed { .. } => "AttributesNotAllowed",
        }
    }
}

const NONE: Attributes = Attributes(0);
const ACCESS: Attributes = Attributes::ACCESS_FLAGS.union(Attributes::PKEY_INDEX);
const INIT_CONNECTED: Attributes = ACCESS.union(Attributes::PORT);
const INIT_DATAGRAM: Attributes = Attributes::PKEY_INDEX
    .union(Attributes::PORT)
    .union(Attributes::QKEY);
const PEER: Attributes = Attributes::AV
    .union(Attributes::PATH_MTU)
    .union(Attributes::DEST_QPN)
    .union(Attributes::RQ_PSN);
const PEER_RELIABLE: Attributes = PEER
    .union(Attributes::MAX_DEST_RD_ATOMIC)
    .union(Attributes::MIN_RNR_TIMER);
const SEND: Attributes = Attributes::SQ_PSN;
const SEND_RELIABLE: Attributes = SEND
    .union(Attributes::TIMEOUT)
    .union(Attributes::RETRY_CNT)
    .union(Attributes::RNR_RETRY)
    .union(Attributes::MAX_QP_RD_ATOMIC);
/// What may change of a connected one that can send.
const RUNNING: Attributes = Attributes::CUR_STATE
    .union(Attributes::ACCESS_FLAGS)
    .union(Attributes::ALT_PATH)
    .union(Attributes::PATH_MIG_STATE);
const RUNNING_RELIABLE: Attributes = RUNNING.union(Attributes::MIN_RNR_TIMER);
const RUNNING_DATAGRAM: Attributes = Attributes::CUR_STATE.union(Attributes::QKEY);
const DRAINED: Attributes = Attributes::AV
    .union(Attributes::ALT_PATH)
    .union(ACCESS)
    .union(Attributes::PATH_MIG_STATE);
const DRAINED_RELIABLE: Attributes = DRAINED
    .union(Attributes::PORT)
    .union(Attributes::TIMEOUT)
    .union(Attributes::RETRY_CNT)
    .union(Attributes::RNR_RETRY)
    .union(Attributes::MAX_QP_RD_ATOMIC)
    .union(Attributes::MAX_DEST_RD_ATOMIC)
    .union(Attributes::MIN_RNR_TIMER);

/// What a change from one state to another needs, and what else it may give; `None`: no such transition.
fn transition(kind: QueuePairType, from: State, to: State) -> Option<(Attributes, Attributes)> {
    use QueuePairType::{
        ReliableConnected as Rc, UnreliableConnected as Uc, UnreliableDatagram as Ud,
    };
    use State::{
        Error, Init, ReadyToReceive as Rtr, ReadyToSend as Rts, Reset, SendQueueDrained as Sqd,
        SendQueueError as Sqe,
    };
    let by = |rc, uc, ud| match kind {
        Rc => rc,
        Uc => uc,
        Ud => ud,
    };
    let running = by(RUNNING_RELIABLE, RUNNING, RUNNING_DATAGRAM);
    Some(match (from, to) {
        (_, Reset) => (NONE, NONE),
        (Reset, Error) => return None,
        (_, Error) => (NONE, NONE),
        (Reset, Init) => (by(INIT_CONNECTED, INIT_CONNECTED, INIT_DATAGRAM), NONE),
        (Init, Init) => (NONE, by(INIT_CONNECTED, INIT_CONNECTED, INIT_DATAGRAM)),
        (Init, Rtr) => {
            let connected = ACCESS.union(Attributes::ALT_PATH);
            let datagram = Attributes::PKEY_INDEX.union(Attributes::QKEY);
            (
                by(PEER_RELIABLE, PEER, NONE),
                by(connected, connected, datagram),
            )
        }
        (Rtr, Rts) => (by(SEND_RELIABLE, SEND, SEND), running),
        (Rts, Rts) | (Sqd, Rts) => (NONE, running),
        (Rts, Sqd) => (NONE, Attributes::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let datagram = Attributes::PKEY_INDEX.union(Attributes::QKEY);
            (NONE, by(DRAINED_RELIABLE, DRAINED, datagram))
        }
        (Sqe, Rts) if kind != Rc => {
            let connected = Attributes::CUR_STATE.union(Attributes::ACCESS_FLAGS);
            (NONE, by(NONE, connected, RUNNING_DATAGRAM))
        }
        _ => return None,
    })
}

/// What `ibv_modify_qp` asks for: the attributes given, and the numbers that count if theirs are among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Which attributes are given.
    pub given: Attributes,
    /// `qp_state`: under [`Attributes::STATE`] the next state.
    pub next: u32,
    /// `cur_qp_state`: under [`Attributes::CUR_STATE`] the state that the caller takes it to be in.
    pub current: u32,
}

/// Checks a change of a queue pair that is in state `from`. Answers the state after it.
///
/// # Errors
/// Nothing is changed.
pub fn check(kind: QueuePairType, from: State, change: Change) -> Result<State, StateError> {
    let given = change.given;
    let number = |number| State::from_number(number).ok_or(StateError::NoState { number });
    if given.contains(Attributes::CUR_STATE) && number(change.current)? != from {
        return Err(StateError::StateDiffers {
            actual: from,
            given: number(change.current)?,
        });
    }
    let to = match given.contains(Attributes::STATE) {
        true => number(change.next)?,
        false => from,
    };
    let (needed, optional) =
        transition(kind, from, to).ok_or(StateError::NoTransition { from, to })?;
    let missing = needed.difference(given);
    if missing != NONE {
        return Err(StateError::Missing { from, to, missing });
    }
    let allowed = needed.union(optional).union(Attributes::STATE);
    let not_allowed = given.difference(allowed);
    if not_allowed != NONE {
        return Err(StateError::NotAllowed {
            from,
            to,
            not_allowed,
        });
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [QueuePairType; 3] = [
        QueuePairType::ReliableConnected,
        QueuePairType::UnreliableConnected,
        QueuePairType::UnreliableDatagram,
    ];

    fn go(
        kind: QueuePairType,
        from: State,
        to: State,
        given: Attributes,
    ) -> Result<State, StateError> {
        let change = Change {
            given: given.union(Attributes::STATE),
            next: to as u32,
            current: u32::MAX,
        };
        check(kind, from, change)
    }

    /// What `ibv_rc_pingpong` gives at each step.
    #[test]
    fn a_reliable_connection_is_brought_up_in_three_steps() {
        let rc = QueuePairType::ReliableConnected;
        let steps = [
            (State::Init, INIT_CONNECTED),
            (State::ReadyToReceive, PEER_RELIABLE),
            (State::ReadyToSend, SEND_RELIABLE),
        ];
        let mut state = State::Reset;
        for (to, given) in steps {
            let given = given.union(Attributes::STATE);
            state = go(rc, state, to, given).unwrap();
            assert_eq!(state, to);
            // One attribute less is refused, and named.
            let first = given.difference(Attributes::STATE).names()[0];
            let bit = Attributes(1 << given.difference(Attributes::STATE).0.trailing_zeros());
            let before = State::ALL[to as usize - 1];
            let error = go(rc, before, to, given.difference(bit)).unwrap_err();
            assert!(error.to_string().ends_with(first), "{error}");
        }
    }

    #[test]
    fn every_state_but_reset_goes_to_error_and_every_state_to_reset() {
        for kind in TYPES {
            for from in State::ALL {
                let to = |to| go(kind, from, to, NONE).is_ok();
                assert!(to(State::Reset), "{kind:?} {from:?}");
                assert_eq!(to(State::Error), from != State::Reset, "{kind:?} {from:?}");
            }
        }
    }

    #[test]
    fn no_transition_skips_a_state_or_goes_back() {
        let all = Attributes(u32::MAX).difference(Attributes::CUR_STATE);
        for kind in TYPES {
            for (from, to) in [
                (State::Reset, State::ReadyToReceive),
                (State::Reset, State::ReadyToSend),
                (State::Init, State::ReadyToSend),
                (State::ReadyToReceive, State::Init),
                (State::ReadyToSend, State::ReadyToReceive),
                (State::Error, State::ReadyToSend),
                (State::Error, State::Init),
                (State::ReadyToSend, State::SendQueueError),
            ] {
                let error = go(kind, from, to, all).unwrap_err();
                assert_eq!(error, StateError::NoTransition { from, to });
            }
        }
        let back = |kind| transition(kind, State::SendQueueError, State::ReadyToSend);
        assert_eq!(back(QueuePairType::ReliableConnected), None);
        assert!(back(QueuePairType::UnreliableDatagram).is_some());
    }

    #[test]
    fn an_attribute_that_cannot_change_and_a_wrong_state_are_refused() {
        let rc = QueuePairType::ReliableConnected;
        let error = go(rc, State::Init, State::Init, Attributes::QKEY).unwrap_err();
        assert_eq!(
            error.to_string(),
            "between Init and Init cannot change: IBV_QP_QKEY (bits 0x40)"
        );
        let change = |given, next, current| Change {
            given,
            next,
            current,
        };
        let differs = change(Attributes::CUR_STATE, 0, State::ReadyToSend as u32);
        let error = check(rc, State::Init, differs).unwrap_err();
        assert!(matches!(error, StateError::StateDiffers { .. }));
        for unknown in [
            change(Attributes::STATE, 7, 0),
            change(Attributes::CUR_STATE, 0, 99),
        ] {
            let error = check(rc, State::Init, unknown).unwrap_err();
            assert!(matches!(error, StateError::NoState { .. }), "{error}");
        }
        // Without their bits the numbers mean nothing.
        assert_eq!(check(rc, State::Init, change(NONE, 7, 99)), Ok(State::Init));
    }
}
