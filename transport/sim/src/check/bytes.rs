//! Every byte exactly once, where it belongs, as it was written.

use std::collections::{BTreeMap, BTreeSet};

use weft_core::units::Key;

use super::Checker;
use crate::observation::{Message, Observation, Operation, SHORT_PAYLOAD};

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
    /// Other packets, where they start and end: of chunks that were cut anew, shorter; of pages.
    others: BTreeSet<(u64, u64)>,
    /// What the core found in the word that it added to.
    before: Option<u64>,
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
        if length == 0 || start.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(format!("message {id} of {bytes} B: {length} B at {start}"));
        }
        let word = self.before.map(u64::to_le_bytes);
        let content = match self.message.operation {
            Operation::Add => word.as_ref().map_or(&[][..], |word| word),
            _ => self.message.content(start, payload.len()),
        };
        if payload != content {
            return Err(format!(
                "message {id}: other bytes than were written at {start}"
            ));
        }
        let packet = start / packet_payload;
        let due = packet_payload.min(bytes - start);
        let page = match self.message.operation {
            Operation::Pages(page) => page,
            _ => 0,
        };
        if page > 0 || !start.is_multiple_of(packet_payload) || length != due {
            let whole_page = page > 0 && start % page + length <= page;
            let shorter = length <= SHORT_PAYLOAD && packet_payload > SHORT_PAYLOAD;
            return match if page > 0 { whole_page } else { shorter } {
                true if self.others.insert((start, start + length)) => Ok(()),
                true => Err(format!(
                    "message {id}: {length} B at {start} were placed twice"
                )),
                false => Err(format!(
                    "message {id} of {bytes} B: {length} B at {start} are not one of its packets"
                )),
            };
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

impl State {
    /// Packets that are neither placed nor covered by shorter ones.
    fn uncovered(&self) -> usize {
        let Message {
            bytes,
            packet_payload,
            ..
        } = self.message;
        let packets = 0..bytes.div_ceil(packet_payload);
        let open = packets.filter(|packet| {
            let placed = self.placed[(packet / 64) as usize] >> (packet % 64) & 1 == 1;
            let start = packet * packet_payload;
            let end = bytes.min(start + packet_payload);
            let mut reached = start;
            // None is longer than a packet: one that reaches beyond `reached` starts at most so far before it.
            let before = start.saturating_sub(packet_payload);
            for (from, to) in self.others.range((before, 0)..(end, 0)) {
                if *from <= reached {
                    reached = reached.max(*to);
                }
            }
            !placed && reached < end
        });
        open.count()
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
                    others: BTreeSet::new(),
                    before: None,
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
                if message.reader() != reader {
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
                    && state.uncovered() > 0
                {
                    return Err(format!(
                        "message {token} is complete without {} of its packets",
                        state.uncovered()
                    ));
                }
            }
            Observation::Cancelled { token, .. } | Observation::Refused { token, .. } => {
                self.messages.remove(&token);
            }
            Observation::Added { token, before } => {
                let state = self.messages.get_mut(&token);
                if state.is_none_or(|state| state.before.replace(before).is_some()) {
                    return Err(format!("message {token} was added twice, or after its end"));
                }
            }
            Observation::Signalled { .. } | Observation::Delivered { .. } => {
                let value = match *what {
                    Observation::Delivered { token, .. } => token,
                    Observation::Signalled { value, .. } => value.into(),
                    _ => return Ok(()),
                };
                if let Some(state) = self.messages.get_mut(&value) {
                    state.closed = true;
                    if state.missing > 0 && state.uncovered() > 0 {
                        return Err(format!(
                            "message {value} is signalled without {} of its packets",
                            state.uncovered()
                        ));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
