//! The states of a queue pair and the ways between them: InfiniBand Architecture Specification, volume 1, release 1.6,
//! section 10.3.1 and the table "QP State Transition Properties" of `Modify Queue Pair` in section 11.2.5.2.

/// A state of a queue pair. The numbers are those of `enum ibv_qp_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum State {
    /// Made, or taken back: nothing can be posted.
    Reset = 0,
    /// Receives can be posted; nothing moves.
    Init = 1,
    /// Ready to receive.
    ReadyToReceive = 2,
    /// Ready to send, too.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
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
                all.iter().filter(|(bit, _)| self.has(*bit)).map(|(_, name)| *name).collect()
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
    AV = 7, "The way to the peer.";
    PATH_MTU = 8, "Payload of a packet.";
    TIMEOUT = 9, "Time to wait for an acknowledgement.";
    RETRY_CNT = 10, "How often a packet is sent again.";
    RNR_RETRY = 11, "How often, where the peer has posted no receive.";
    RQ_PSN = 12, "The first packet number to come.";
    MAX_QP_RD_ATOMIC = 13, "Reads and atomics under way from here.";
    ALT_PATH = 14, "Another way to the peer.";
    MIN_RNR_TIMER = 15, "Time that a peer is told to wait for a receive.";
    SQ_PSN = 16, "The first packet number to go.";
    MAX_DEST_RD_ATOMIC = 17, "Reads and atomics under way from the peer.";
    PATH_MIG_STATE = 18, "Which of the two ways is used.";
    CAP = 19, "Sizes of the queues.";
    DEST_QPN = 20, "The peer's queue pair.";
}

impl Attributes {
    /// Both.
    #[must_use]
    pub const fn with(self, other: Attributes) -> Attributes {
        Attributes(self.0 | other.0)
    }

    /// Whether all of `other` are given.
    #[must_use]
    pub const fn has(self, other: Attributes) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Attributes) -> Attributes {
        Attributes(self.0 & !other.0)
    }
}

/// Why a change is refused; verbs says EINVAL for all of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No such way.
    #[error("a queue pair does not go from {from:?} to {to:?}")]
    NoTransition {
        /// Where it is.
        from: State,
        /// Where it was to go.
        to: State,
    },
    /// The caller takes it to be in another state.
    #[error("the queue pair is {actual:?}, and IBV_QP_CUR_STATE says {given:?}")]
    OtherState {
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
    #[error("between {from:?} and {to:?} cannot change: {}", surplus.names().join(", "))]
    Surplus {
        /// Where it is.
        from: State,
        /// Where it was to go.
        to: State,
        /// What is too much.
        surplus: Attributes,
    },
}

const NONE: Attributes = Attributes(0);
const ACCESS: Attributes = Attributes::ACCESS_FLAGS.with(Attributes::PKEY_INDEX);
const INIT_CONNECTED: Attributes = ACCESS.with(Attributes::PORT);
const INIT_DATAGRAM: Attributes = Attributes::PKEY_INDEX
    .with(Attributes::PORT)
    .with(Attributes::QKEY);
const PEER: Attributes = Attributes::AV
    .with(Attributes::PATH_MTU)
    .with(Attributes::DEST_QPN)
    .with(Attributes::RQ_PSN);
const PEER_RELIABLE: Attributes = PEER
    .with(Attributes::MAX_DEST_RD_ATOMIC)
    .with(Attributes::MIN_RNR_TIMER);
const SEND: Attributes = Attributes::SQ_PSN;
const SEND_RELIABLE: Attributes = SEND
    .with(Attributes::TIMEOUT)
    .with(Attributes::RETRY_CNT)
    .with(Attributes::RNR_RETRY)
    .with(Attributes::MAX_QP_RD_ATOMIC);
/// What may change of a connected one that can send.
const RUNNING: Attributes = Attributes::CUR_STATE
    .with(Attributes::ACCESS_FLAGS)
    .with(Attributes::ALT_PATH)
    .with(Attributes::PATH_MIG_STATE);
const RUNNING_RELIABLE: Attributes = RUNNING.with(Attributes::MIN_RNR_TIMER);
const RUNNING_DATAGRAM: Attributes = Attributes::CUR_STATE.with(Attributes::QKEY);
const DRAINED: Attributes = Attributes::AV
    .with(Attributes::ALT_PATH)
    .with(ACCESS)
    .with(Attributes::PATH_MIG_STATE);
const DRAINED_RELIABLE: Attributes = DRAINED
    .with(Attributes::PORT)
    .with(Attributes::TIMEOUT)
    .with(Attributes::RETRY_CNT)
    .with(Attributes::RNR_RETRY)
    .with(Attributes::MAX_QP_RD_ATOMIC)
    .with(Attributes::MAX_DEST_RD_ATOMIC)
    .with(Attributes::MIN_RNR_TIMER);

/// What a change from one state to another needs, and what else it may give; `None` where there is no such change.
fn transition(service: Service, from: State, to: State) -> Option<(Attributes, Attributes)> {
    use Service::{ReliableConnected as Rc, UnreliableConnected as Uc, UnreliableDatagram as Ud};
    use State::{
        Error, Init, ReadyToReceive as Rtr, ReadyToSend as Rts, Reset, SendQueueDrained as Sqd,
        SendQueueError as Sqe,
    };
    let by = |rc, uc, ud| match service {
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
            let connected = ACCESS.with(Attributes::ALT_PATH);
            let datagram = Attributes::PKEY_INDEX.with(Attributes::QKEY);
            (
                by(PEER_RELIABLE, PEER, NONE),
                by(connected, connected, datagram),
            )
        }
        (Rtr, Rts) => (by(SEND_RELIABLE, SEND, SEND), running),
        (Rts, Rts) | (Sqd, Rts) => (NONE, running),
        (Rts, Sqd) => (NONE, Attributes::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let datagram = Attributes::PKEY_INDEX.with(Attributes::QKEY);
            (NONE, by(DRAINED_RELIABLE, DRAINED, datagram))
        }
        (Sqe, Rts) if service != Rc => {
            let connected = Attributes::CUR_STATE.with(Attributes::ACCESS_FLAGS);
            (NONE, by(NONE, connected, RUNNING_DATAGRAM))
        }
        _ => return None,
    })
}

/// Checks a change of a queue pair that is in state `actual`. `to` is the state that it asks for, if it does;
/// `assumed` what it says under [`Attributes::CUR_STATE`]. Answers the state after it.
///
/// # Errors
/// Nothing is changed.
pub fn check(
    service: Service,
    actual: State,
    assumed: Option<State>,
    to: Option<State>,
    given: Attributes,
) -> Result<State, StateError> {
    if let Some(assumed) = assumed
        && assumed != actual
    {
        return Err(StateError::OtherState {
            actual,
            given: assumed,
        });
    }
    let to = to.unwrap_or(actual);
    let from = actual;
    let (needed, optional) =
        transition(service, from, to).ok_or(StateError::NoTransition { from, to })?;
    let missing = needed.without(given);
    if missing != NONE {
        return Err(StateError::Missing { from, to, missing });
    }
    let allowed = needed.with(optional).with(Attributes::STATE);
    let surplus = given.without(allowed);
    if surplus != NONE {
        return Err(StateError::Surplus { from, to, surplus });
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICES: [Service; 3] = [
        Service::ReliableConnected,
        Service::UnreliableConnected,
        Service::UnreliableDatagram,
    ];

    /// What `ibv_rc_pingpong` gives at each step.
    #[test]
    fn a_reliable_connection_is_brought_up_in_three_steps() {
        let rc = Service::ReliableConnected;
        let steps = [
            (State::Init, INIT_CONNECTED),
            (State::ReadyToReceive, PEER_RELIABLE),
            (State::ReadyToSend, SEND_RELIABLE),
        ];
        let mut state = State::Reset;
        for (to, given) in steps {
            let given = given.with(Attributes::STATE);
            state = check(rc, state, None, Some(to), given).unwrap();
            assert_eq!(state, to);
            // One attribute less is refused, and named.
            let first = given.without(Attributes::STATE).names()[0];
            let bit = Attributes(1 << given.without(Attributes::STATE).0.trailing_zeros());
            let before = State::ALL[to as usize - 1];
            let error = check(rc, before, None, Some(to), given.without(bit)).unwrap_err();
            assert!(error.to_string().ends_with(first), "{error}");
        }
    }

    #[test]
    fn every_state_but_reset_goes_to_error_and_every_state_to_reset() {
        for service in SERVICES {
            for from in State::ALL {
                let to = |to| check(service, from, None, Some(to), Attributes::STATE).is_ok();
                assert!(to(State::Reset), "{service:?} {from:?}");
                assert_eq!(
                    to(State::Error),
                    from != State::Reset,
                    "{service:?} {from:?}"
                );
            }
        }
    }

    #[test]
    fn no_state_is_left_out_and_none_is_reached_backwards() {
        let all = Attributes(u32::MAX);
        for service in SERVICES {
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
                let error = check(service, from, None, Some(to), all).unwrap_err();
                assert_eq!(error, StateError::NoTransition { from, to });
            }
        }
        let back = |service| transition(service, State::SendQueueError, State::ReadyToSend);
        assert_eq!(back(Service::ReliableConnected), None);
        assert!(back(Service::UnreliableDatagram).is_some());
    }

    #[test]
    fn what_cannot_change_and_a_wrong_guess_of_the_state_are_refused() {
        let rc = Service::ReliableConnected;
        let given = Attributes::STATE.with(Attributes::QKEY);
        let error = check(rc, State::Init, None, Some(State::Init), given).unwrap_err();
        assert_eq!(
            error.to_string(),
            "between Init and Init cannot change: IBV_QP_QKEY"
        );
        let error = check(rc, State::Init, Some(State::ReadyToSend), None, NONE).unwrap_err();
        assert!(matches!(error, StateError::OtherState { .. }));
    }
}
