//! Messages in order, where a connection promises it.

use std::collections::{BTreeMap, VecDeque};

use weft_core::units::Key;

use super::Checker;
use crate::observation::{End, Message, Observation, Operation};
use crate::scenario::Scenario;

/// On an in-order connection the last bytes of a message are placed when all its others are, and every byte of the
/// messages before it; a word is changed when every byte of the messages before it is placed; and messages complete at
/// the writer in the order in which they were posted. A connection that fails names the oldest that is not complete.
pub(super) struct PlacedInOrder {
    applies: bool,
    /// What each end has posted and not completed, oldest first.
    open: BTreeMap<End, VecDeque<State>>,
}

struct State {
    message: Message,
    /// Where placed bytes begin and end; ranges that touch are one.
    placed: BTreeMap<u64, u64>,
}

impl PlacedInOrder {
    pub(super) fn new(scenario: &Scenario) -> PlacedInOrder {
        PlacedInOrder {
            applies: scenario.in_order,
            open: BTreeMap::new(),
        }
    }

    /// The oldest message of `writer` before `id` that is not placed whole.
    fn missing_before(&self, writer: End, id: u64) -> Option<u64> {
        let open = self.open.get(&writer)?;
        let before = open.iter().take_while(|state| state.message.id != id);
        let goes_there = |state: &&State| state.goes_there() && !state.is_whole();
        before
            .filter(goes_there)
            .map(|state| state.message.id)
            .next()
    }
}

impl State {
    /// Whether it places bytes at the peer.
    fn goes_there(&self) -> bool {
        match self.message.operation {
            Operation::Write | Operation::Pages(_) | Operation::Send => true,
            Operation::Read { .. } | Operation::Add => false,
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        while let Some((&from, &to)) = self.placed.range(..=end).next_back()
            && to >= start
        {
            self.placed.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.placed.insert(start, end);
    }

    fn is_whole(&self) -> bool {
        self.message.bytes == 0 || self.placed.get(&0) == Some(&self.message.bytes)
    }
}

impl Checker for PlacedInOrder {
    fn name(&self) -> &'static str {
        "messages in order"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        if !self.applies {
            return Ok(());
        }
        match *what {
            Observation::Posted { message } => {
                self.open
                    .entry(message.writer)
                    .or_default()
                    .push_back(State {
                        message: *message,
                        placed: BTreeMap::new(),
                    });
            }
            // Never placed, so nothing behind it is placed or complete.
            Observation::Strayed { writer, token } => {
                let message = Message {
                    id: token,
                    writer,
                    operation: Operation::Write,
                    key: Key(0),
                    offset: 0,
                    bytes: 1,
                    immediate: None,
                    packet_payload: 1,
                };
                let placed = BTreeMap::new();
                let open = self.open.entry(writer).or_default();
                open.push_back(State { message, placed });
            }
            Observation::Placed {
                message: Some(message),
                offset,
                payload,
                ..
            } => {
                let Message {
                    id, writer, bytes, ..
                } = *message;
                let open = self.open.get_mut(&writer);
                let mut open = open.into_iter().flatten();
                let Some(state) = open.find(|state| state.message.id == id) else {
                    return Ok(());
                };
                let start = offset.wrapping_sub(message.offset);
                let end = start.saturating_add(payload.len() as u64);
                state.add(start, end);
                // Which page is the last one to be sent is not told here.
                let is_paged = matches!(message.operation, Operation::Pages(_));
                if !state.goes_there() || is_paged || end != bytes {
                    return Ok(());
                }
                if !state.is_whole() {
                    return Err(format!(
                        "the end of message {id} came before its other bytes"
                    ));
                }
                if let Some(before) = self.missing_before(writer, id) {
                    return Err(format!("message {id} was placed before message {before}"));
                }
            }
            Observation::Added { token, .. } => {
                let writers: Vec<End> = self.open.keys().copied().collect();
                for writer in writers {
                    let open = &self.open[&writer];
                    let is_own = open.iter().any(|state| state.message.id == token);
                    if let Some(before) = self.missing_before(writer, token).filter(|_| is_own) {
                        return Err(format!("word {token} was changed before message {before}"));
                    }
                }
            }
            Observation::Completed { writer, token } => {
                let first = self.open.get_mut(&writer).and_then(VecDeque::pop_front);
                let first = first.map(|state| state.message.id);
                if first != Some(token) {
                    return Err(format!("{token} completed before {first:?}"));
                }
            }
            Observation::RequestFailed { writer, token } => {
                let first = self.open.get(&writer).and_then(VecDeque::front);
                let first = first.map(|state| state.message.id);
                if first != Some(token) {
                    return Err(format!(
                        "{token} is named as failed, and {first:?} is the oldest"
                    ));
                }
            }
            Observation::Failed { end, .. } | Observation::Lost { end } => {
                self.open.remove(&end);
            }
            _ => {}
        }
        Ok(())
    }
}
