//! Every byte exactly once, where it belongs, as it was written.

use std::collections::{BTreeMap, BTreeSet};

use weft_core::units::Key;

use super::Checker;
use crate::observation::{Message, Observation};
use crate::pattern;

/// Placed payload lies within a message under way, is that message's content, comes once per packet,
/// and never after the message was reported complete or signalled at either end, or its region deregistered.
#[derive(Default)]
pub(super) struct EveryByteOnce {
    messages: BTreeMap<u64, State>,
    /// Regions that were deregistered.
    closed: BTreeSet<Key>,
}

struct State {
    message: Message,
    /// One bit a packet.
    placed: Vec<u64>,
    missing: u64,
    closed: bool,
}

impl State {
    fn place(&mut self, offset: u64, payload: &[u8]) -> Result<(), String> {
        let Message {
            id,
            bytes,
            packet_payload,
            ..
        } = self.message;
        let start = offset.wrapping_sub(self.message.offset);
        let length = payload.len() as u64;
        if self.closed {
            return Err(format!("payload of message {id} was placed after its end"));
        }
        if bytes == 0 && length == 0 {
            return Ok(());
        }
        let packet = start / packet_payload;
        let due = packet_payload.min(bytes.saturating_sub(start));
        if !start.is_multiple_of(packet_payload) || length != due || length == 0 {
            return Err(format!(
                "message {id} of {bytes} B: {length} B at {start} are not one of its packets"
            ));
        }
        if payload != pattern::slice(id, start, payload.len()) {
            return Err(format!(
                "message {id}: other bytes than were written at {start}"
            ));
        }
        let (word, bit) = ((packet / 64) as usize, 1u64 << (packet % 64));
        if self.placed[word] & bit != 0 {
            return Err(format!("message {id}: packet at {start} was placed twice"));
        }
        self.placed[word] |= bit;
        self.missing -= 1;
        Ok(())
    }
}

impl Checker for EveryByteOnce {
    fn name(&self) -> &'static str {
        "every byte exactly once"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        match *what {
            Observation::Posted { message } => {
                let packets = message.bytes.div_ceil(message.packet_payload);
                let state = State {
                    message: *message,
                    placed: vec![0; packets.div_ceil(64) as usize],
                    missing: packets,
                    closed: false,
                };
                self.messages.insert(message.id, state);
            }
            Observation::Deregistered { key, .. } => {
                self.closed.insert(key);
            }
            Observation::Placed { key, offset, .. } if self.closed.contains(&key) => {
                return Err(format!(
                    "payload was placed at {offset} of {key:?}, which is closed"
                ));
            }
            // An empty write may name any place.
            Observation::Placed {
                message: None,
                payload: [],
                ..
            } => {}
            Observation::Placed {
                reader,
                message: None,
                key,
                offset,
                payload,
            } => {
                return Err(format!(
                    "{} B were placed at {offset} of {key:?} of {reader:?}, where no message lies",
                    payload.len()
                ));
            }
            Observation::Placed {
                reader,
                message: Some(message),
                offset,
                payload,
                ..
            } => {
                if message.writer != reader.peer() {
                    return Err(format!("message {} was placed at {reader:?}", message.id));
                }
                let Some(state) = self.messages.get_mut(&message.id) else {
                    return Err(format!(
                        "message {} was placed but never posted",
                        message.id
                    ));
                };
                state.place(offset, payload)?;
            }
            Observation::Completed { token, .. } => {
                if let Some(state) = self.messages.remove(&token)
                    && state.missing > 0
                {
                    return Err(format!(
                        "message {token} is complete without {} of its packets",
                        state.missing
                    ));
                }
            }
            Observation::Signalled { value, .. } => {
                if let Some(state) = self.messages.get_mut(&u64::from(value)) {
                    state.closed = true;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
