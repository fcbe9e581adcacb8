//! A cancel that is confirmed is the end.

use std::collections::{BTreeMap, BTreeSet};

use weft_core::connection::CancelError;
use weft_core::units::Key;

use super::Checker;
use crate::observation::{End, Message, Observation};

/// A message whose end was not told can be cancelled. A message is cancelled only on request, once, at the end that posted it, and not when the reader was told of its end.
/// From then on none of its bytes lands in the place that is used again, it does not complete, and its
/// immediate never counts.
#[derive(Default)]
pub(super) struct ConfirmedCancel {
    open: BTreeMap<u64, State>,
    cancelled: BTreeSet<u64>,
    /// Their places, by region.
    places: BTreeMap<Key, Vec<Message>>,
    /// Ends that have failed or were lost.
    over: BTreeSet<End>,
    /// Writes that the peer must refuse.
    strays: BTreeSet<u64>,
    /// Ends that have deregistered a region.
    deregistered: BTreeSet<End>,
}

struct State {
    message: Message,
    asked: bool,
    /// Its immediate has counted.
    told: bool,
}

impl ConfirmedCancel {
    /// The peer has refused a message that it must refuse, or may since a region of it is gone.
    fn refuse(&mut self, writer: End, token: u64) -> Result<(), String> {
        if self.strays.remove(&token) {
            return Ok(());
        }
        match self.open.get_mut(&token) {
            Some(state) if self.deregistered.contains(&writer.peer()) => {
                state.asked = true;
                self.cancel(writer, token)
            }
            Some(state) => Err(format!("{:?} was refused", state.message)),
            None => Err(format!("{token} was refused after its end")),
        }
    }

    fn cancel(&mut self, writer: End, token: u64) -> Result<(), String> {
        let Some(state) = self.open.remove(&token) else {
            return Err(format!("{token} was cancelled after its end"));
        };
        let State {
            message,
            asked,
            told,
        } = state;
        if self.over.contains(&writer) || message.writer != writer {
            return Err(format!("{message:?} was cancelled at {writer:?}"));
        }
        if !asked {
            return Err(format!("{message:?} was cancelled without a request"));
        }
        if told {
            return Err(format!(
                "{message:?} was cancelled, and its immediate counted"
            ));
        }
        self.cancelled.insert(token);
        self.places.entry(message.key).or_default().push(message);
        Ok(())
    }

    /// A cancelled message that has these bytes at this place, unless they belong to the message that lies there now.
    fn late(
        &self,
        key: Key,
        offset: u64,
        payload: &[u8],
        owner: Option<&Message>,
    ) -> Option<&Message> {
        let has = |message: &Message| {
            let start = offset.checked_sub(message.offset);
            let within = start.filter(|start| start + payload.len() as u64 <= message.bytes);
            within.is_some_and(|start| message.content(start, payload.len()) == payload)
        };
        if payload.is_empty() || owner.is_some_and(has) {
            return None;
        }
        let places = self.places.get(&key)?;
        places.iter().find(|&message| has(message))
    }
}

impl Checker for ConfirmedCancel {
    fn name(&self) -> &'static str {
        "confirmed cancel"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        match *what {
            Observation::Posted { message } => {
                let state = State {
                    message: *message,
                    asked: false,
                    told: false,
                };
                self.open.insert(message.id, state);
            }
            Observation::CancelAsked {
                message,
                result,
                untold,
            } => {
                if let Some(state) = self.open.get_mut(&message.id) {
                    if result == Err(CancelError::NotUnderWay) && !untold {
                        return Err(format!(
                            "{message:?} is not under way, and its end was never told"
                        ));
                    }
                    state.asked |= result.is_ok();
                }
            }
            Observation::Cancelled { writer, token } => return self.cancel(writer, token),
            Observation::Refused { writer, token } => return self.refuse(writer, token),
            Observation::Strayed { token, .. } => {
                self.strays.insert(token);
            }
            Observation::Deregistered { reader, .. } => {
                self.deregistered.insert(reader);
            }
            Observation::Completed { token, .. } => {
                if self.cancelled.contains(&token) {
                    return Err(format!("{token} completed after it was cancelled"));
                }
                self.open.remove(&token);
            }
            Observation::Signalled { .. } | Observation::Delivered { .. } => {
                let token = match *what {
                    Observation::Delivered { token, .. } => token,
                    Observation::Signalled { value, .. } => value.into(),
                    _ => return Ok(()),
                };
                if self.cancelled.contains(&token) {
                    return Err(format!("the immediate of {token} counted after its cancel"));
                }
                if let Some(state) = self.open.get_mut(&token) {
                    state.told = true;
                }
            }
            Observation::Placed {
                message: owner,
                key,
                offset,
                payload,
                ..
            } => {
                if let Some(late) = self.late(key, offset, payload, owner) {
                    return Err(format!(
                        "{} B of {late:?} were placed at {offset} after its cancel, where {owner:?} lies",
                        payload.len()
                    ));
                }
            }
            Observation::Failed { end, .. } | Observation::Lost { end } => {
                self.over.insert(end);
            }
            _ => {}
        }
        Ok(())
    }
}
