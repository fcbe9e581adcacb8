//! Immediates after their payload, exactly once.

use std::collections::BTreeMap;

use super::Checker;
use crate::observation::{End, Message, Observation, Operation};
use crate::scenario::Scenario;

/// An immediate, or a send, is reported once, at the end that was written to, when every byte of its message has
/// been placed, and with that message's key; and when its message is complete at the writer, with the events of
/// the reader's next turn at the latest. Where immediates go in order, they come in the order of their messages,
/// and may come after the completion.
pub(super) struct ImmediateAfterPayload {
    in_order: bool,
    open: BTreeMap<u32, State>,
    /// Those whose message is complete, by reader.
    due: BTreeMap<End, Vec<u32>>,
    /// The last message whose immediate was reported, by writer.
    last: BTreeMap<End, u64>,
}

impl ImmediateAfterPayload {
    pub(super) fn new(scenario: &Scenario) -> ImmediateAfterPayload {
        ImmediateAfterPayload {
            in_order: scenario.in_order,
            open: BTreeMap::new(),
            due: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }
}

impl ImmediateAfterPayload {
    /// The end of message `value` is told at `reader`, as it was posted if it `fits`.
    fn told(
        &mut self,
        reader: End,
        value: u32,
        fits: impl Fn(&Message) -> bool,
    ) -> Result<(), String> {
        let Some(state) = self.open.get_mut(&value) else {
            return Err(format!(
                "immediate {value} was never sent, or came after its end"
            ));
        };
        let Message { id, writer, .. } = state.message;
        if state.signalled {
            return Err(format!("immediate {value} of message {id} came twice"));
        }
        if state.message.reader() != reader {
            return Err(format!(
                "immediate {value} of message {id} came at {reader:?}"
            ));
        }
        if state.missing > 0 {
            return Err(format!(
                "immediate {value} of message {id} came before {} of its bytes",
                state.missing
            ));
        }
        if !fits(&state.message) {
            return Err(format!("{:?} came as another one", state.message));
        }
        state.signalled = true;
        let last = self.last.insert(writer, id);
        if self.in_order && last.is_some_and(|last| last > id) {
            return Err(format!(
                "immediate {value} of message {id} came after that of {last:?}"
            ));
        }
        Ok(())
    }
}

struct State {
    message: Message,
    missing: u64,
    signalled: bool,
}

impl Checker for ImmediateAfterPayload {
    fn name(&self) -> &'static str {
        "immediates after their payload, once"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        match *what {
            Observation::Posted { message } if message.is_told() => {
                let state = State {
                    message: *message,
                    missing: message.bytes,
                    signalled: false,
                };
                self.open.insert(message.id as u32, state);
            }
            Observation::Placed {
                message: Some(message),
                payload,
                ..
            } => {
                if message.is_told()
                    && let Some(state) = self.open.get_mut(&(message.id as u32))
                {
                    state.missing = state.missing.saturating_sub(payload.len() as u64);
                }
            }
            Observation::Signalled { reader, value, key } => {
                return self.told(reader, value, |message| {
                    message.key == key && message.operation != Operation::Send
                });
            }
            Observation::Delivered {
                reader,
                token,
                bytes,
                immediate,
            } => {
                return self.told(reader, token as u32, |message| {
                    (message.bytes, message.immediate) == (bytes, immediate)
                        && message.operation == Operation::Send
                });
            }
            Observation::Completed { token, writer } if !self.in_order => {
                let value = token as u32;
                match self.open.get(&value) {
                    Some(state) if !state.signalled => {
                        self.due.entry(writer.peer()).or_default().push(value);
                    }
                    _ => {
                        self.open.remove(&value);
                    }
                }
            }
            Observation::Cancelled { token, .. } | Observation::Refused { token, .. } => {
                // A write that the peer must refuse has a token, and an immediate, that no message has.
                if let Ok(value) = u32::try_from(token) {
                    self.open.remove(&value);
                }
            }
            Observation::Turned { end, .. } => {
                let due = self.due.remove(&end).unwrap_or_default();
                let missing = |value: &u32| self.open.get(value).is_some_and(|at| !at.signalled);
                if let Some(value) = due.into_iter().find(missing) {
                    return Err(format!(
                        "message {value} completed at the writer, its immediate never came"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
