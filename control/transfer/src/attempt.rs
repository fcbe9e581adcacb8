//! One attempt: the plan in force and how far each node is with its part.

use std::collections::BTreeMap;

use weft_planner::Part;

use crate::failure::Failure;

/// How far a node is with its part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberState {
    /// Ready; Start was not sent.
    Prepared,
    /// Start was sent.
    Starting,
    /// At work.
    Moving,
    /// Done.
    Verified,
    /// Its sender has lost it; it may not have noticed yet.
    CutOff(Failure),
    /// It reports that it failed, or it does not answer any more.
    Stopped(Failure),
}

/// A node of the plan.
#[derive(Debug, Clone)]
struct Member {
    part: Part,
    state: MemberState,
    /// Its progress stream has ended: it reports nothing more.
    stream_ended: bool,
    /// The stream broke: the node sends to no other any more.
    stream_broke: bool,
}

impl Member {
    fn can_go_on(&self) -> bool {
        matches!(
            self.state,
            MemberState::Prepared | MemberState::Starting | MemberState::Moving
        )
    }

    fn can_serve(&self) -> bool {
        self.can_go_on() || (self.state == MemberState::Verified && !self.stream_broke)
    }
}

/// The plan in force. Owned and written by the job.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    source: String,
    /// The source is a destination, too: it reads from a store.
    is_reader: bool,
    /// Boxed: as destinations are.
    members: BTreeMap<String, Box<Member>>,
}

impl Attempt {
    pub(crate) fn new(source: &str, is_reader: bool, parts: &[Part]) -> Self {
        let member = |part: &Part| {
            let member = Member {
                part: part.clone(),
                state: MemberState::Prepared,
                stream_ended: false,
                stream_broke: false,
            };
            (part.node.clone(), Box::new(member))
        };
        Self {
            source: source.to_owned(),
            is_reader,
            members: parts.iter().map(member).collect(),
        }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    pub(crate) fn state(&self, node: &str) -> Option<&MemberState> {
        self.members.get(node).map(|member| &member.state)
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Destinations to start at once: receivers before their senders.
    pub(crate) fn start_destinations(&mut self) -> Vec<Part> {
        let source = self.source.clone();
        let mut parts = Vec::new();
        for (_, member) in self.members.iter_mut().filter(|(node, _)| **node != source) {
            member.state = MemberState::Starting;
            parts.push(member.part.clone());
        }
        parts.sort_by_key(|part| std::cmp::Reverse(part.depth));
        parts
    }

    /// The source's part, once, when every destination has taken or refused its own.
    pub(crate) fn start_source(&mut self) -> Option<Part> {
        let waiting = self
            .members
            .iter()
            .any(|(node, member)| *node != self.source && member.state == MemberState::Starting);
        if waiting || !self.can_go_on() {
            return None;
        }
        let source = self.members.get_mut(&self.source)?;
        if source.state != MemberState::Prepared {
            return None;
        }
        source.state = MemberState::Starting;
        Some(source.part.clone())
    }

    pub(crate) fn started(&mut self, node: &str) {
        if let Some(member) = self.members.get_mut(node)
            && matches!(member.state, MemberState::Starting)
        {
            member.state = MemberState::Moving;
        }
    }

    pub(crate) fn verified(&mut self, node: &str) {
        if let Some(member) = self.members.get_mut(node) {
            member.state = MemberState::Verified;
        }
    }

    pub(crate) fn stopped(&mut self, node: &str, failure: Failure) {
        if let Some(member) = self.members.get_mut(node)
            && member.state != MemberState::Verified
        {
            member.state = MemberState::Stopped(failure);
        }
    }

    /// A sender reports that it lost this receiver; what the receiver itself reports replaces that.
    pub(crate) fn cut_off(&mut self, node: &str, failure: Failure) {
        if let Some(member) = self.members.get_mut(node)
            && member.can_go_on()
        {
            member.state = MemberState::CutOff(failure);
        }
    }

    pub(crate) fn stream_ended(&mut self, node: &str, is_broken: bool) {
        if let Some(member) = self.members.get_mut(node) {
            member.stream_ended = true;
            member.stream_broke |= is_broken;
        }
    }

    /// No node of this attempt will report again.
    pub(crate) fn all_streams_ended(&self) -> bool {
        self.members.values().all(|member| member.stream_ended)
    }

    /// At least one destination can still finish: it and all nodes between it and the source work.
    pub(crate) fn can_go_on(&self) -> bool {
        self.members.iter().any(|(node, member)| {
            let is_destination = self.is_reader || *node != self.source;
            is_destination && member.can_go_on() && self.is_served(member)
        })
    }

    fn is_served(&self, member: &Member) -> bool {
        let mut at = member;
        // A plan is a tree: as many steps as members lead to the source at the latest.
        for _ in 0..self.members.len() {
            let Some(sender) = at
                .part
                .receives_from
                .as_ref()
                .and_then(|s| self.members.get(s))
            else {
                return true;
            };
            if !sender.can_serve() {
                return false;
            }
            at = sender;
        }
        false
    }
}
