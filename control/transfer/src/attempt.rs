//! One attempt: the plan in force and how far each node is with its assignment.

use std::collections::BTreeMap;

use weft_planner::Assignment;

use crate::failure::Failure;

/// How far a node is with its assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ParticipantState {
    /// Start was not sent. A destination was prepared before.
    NotStarted,
    /// Start was sent.
    Starting,
    /// At work.
    Transferring,
    /// Done.
    Verified,
    /// Its sender has lost it; it may not have noticed yet.
    CutOff(Failure),
    /// It reports that it failed, or it does not answer any more.
    Stopped(Failure),
}

/// A node of the plan.
#[derive(Debug, Clone)]
struct Participant {
    assignment: Assignment,
    state: ParticipantState,
    /// Its progress stream has ended: it reports nothing more.
    stream_ended: bool,
    /// The stream broke: the node sends to no other any more.
    stream_broke: bool,
}

impl Participant {
    fn can_go_on(&self) -> bool {
        matches!(
            self.state,
            ParticipantState::NotStarted
                | ParticipantState::Starting
                | ParticipantState::Transferring
        )
    }

    fn can_serve(&self) -> bool {
        self.can_go_on() || (self.state == ParticipantState::Verified && !self.stream_broke)
    }
}

/// The plan in force. Owned and written by the transfer.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    source: String,
    /// The source is a destination, too: it reads from a store.
    is_reader: bool,
    /// Boxed: as destinations are.
    participants: BTreeMap<String, Box<Participant>>,
}

impl Attempt {
    pub(crate) fn new(source: &str, is_reader: bool, assignments: &[Assignment]) -> Self {
        let participant = |assignment: &Assignment| {
            let participant = Participant {
                assignment: assignment.clone(),
                state: ParticipantState::NotStarted,
                stream_ended: false,
                stream_broke: false,
            };
            (assignment.node.clone(), Box::new(participant))
        };
        Self {
            source: source.to_owned(),
            is_reader,
            participants: assignments.iter().map(participant).collect(),
        }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.participants.keys().map(String::as_str)
    }

    pub(crate) fn state(&self, node: &str) -> Option<&ParticipantState> {
        self.participants
            .get(node)
            .map(|participant| &participant.state)
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Destinations to start at once: receivers before their senders.
    pub(crate) fn start_destinations(&mut self) -> Vec<Assignment> {
        let source = self.source.clone();
        let mut assignments = Vec::new();
        for (_, participant) in self
            .participants
            .iter_mut()
            .filter(|(node, _)| **node != source)
        {
            participant.state = ParticipantState::Starting;
            assignments.push(participant.assignment.clone());
        }
        assignments.sort_by_key(|assignment| std::cmp::Reverse(assignment.depth));
        assignments
    }

    /// The source's assignment, once, when every destination has taken or refused its own.
    pub(crate) fn start_source(&mut self) -> Option<Assignment> {
        let waiting = self.participants.iter().any(|(node, participant)| {
            *node != self.source && participant.state == ParticipantState::Starting
        });
        if waiting || !self.can_go_on() {
            return None;
        }
        let source = self.participants.get_mut(&self.source)?;
        if source.state != ParticipantState::NotStarted {
            return None;
        }
        source.state = ParticipantState::Starting;
        Some(source.assignment.clone())
    }

    pub(crate) fn on_started(&mut self, node: &str) {
        if let Some(participant) = self.participants.get_mut(node)
            && matches!(participant.state, ParticipantState::Starting)
        {
            participant.state = ParticipantState::Transferring;
        }
    }

    pub(crate) fn on_verified(&mut self, node: &str) {
        if let Some(participant) = self.participants.get_mut(node) {
            participant.state = ParticipantState::Verified;
        }
    }

    pub(crate) fn on_stopped(&mut self, node: &str, failure: Failure) {
        if let Some(participant) = self.participants.get_mut(node)
            && participant.state != ParticipantState::Verified
        {
            participant.state = ParticipantState::Stopped(failure);
        }
    }

    /// A sender reports that it lost this receiver; what the receiver itself reports replaces that.
    pub(crate) fn on_cut_off(&mut self, node: &str, failure: Failure) {
        if let Some(participant) = self.participants.get_mut(node)
            && participant.can_go_on()
        {
            participant.state = ParticipantState::CutOff(failure);
        }
    }

    pub(crate) fn on_stream_ended(&mut self, node: &str, is_broken: bool) {
        if let Some(participant) = self.participants.get_mut(node) {
            participant.stream_ended = true;
            participant.stream_broke |= is_broken;
        }
    }

    /// No node of this attempt will report again.
    pub(crate) fn all_streams_ended(&self) -> bool {
        self.participants
            .values()
            .all(|participant| participant.stream_ended)
    }

    /// At least one destination can still finish: it and all nodes between it and the source work.
    pub(crate) fn can_go_on(&self) -> bool {
        self.participants.iter().any(|(node, participant)| {
            let is_destination = self.is_reader || *node != self.source;
            is_destination && participant.can_go_on() && self.lost_sender(node).is_none()
        })
    }

    /// The nearest node from which a node gets nothing any more, directly or through others, and its state.
    pub(crate) fn lost_sender(&self, node: &str) -> Option<(&str, &ParticipantState)> {
        let mut at = self.participants.get(node)?;
        // A plan is a tree: as many steps as participants lead to the source at the latest.
        for _ in 0..self.participants.len() {
            let name = at.assignment.receives_from.as_deref()?;
            let sender = self.participants.get(name)?;
            if !sender.can_serve() {
                return Some((name, &sender.state));
            }
            // It has everything, and needs nobody above it.
            if sender.state == ParticipantState::Verified {
                return None;
            }
            at = sender;
        }
        None
    }
}
