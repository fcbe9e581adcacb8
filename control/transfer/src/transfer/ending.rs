//! How an attempt and a transfer come to their end: agents are told, and partial files are removed.

use std::collections::BTreeSet;

use weft_proto::agent::v1::State as AgentState;

use super::{State, Transfer, attempts::FailureCount};
use crate::{
    attempt::{Attempt, ParticipantState},
    command::{Call, Cleanup},
    failure::{Failure, SENDER_LOST},
    phase::End,
};

impl Transfer {
    pub(super) fn on_cancelled(
        &mut self,
        node: &str,
        cleanup: Cleanup,
        result: &Result<(), Failure>,
    ) {
        let may_have_files = self.may_have_files(node);
        match &mut self.state {
            State::EndingAttempt { attempt, waiting } => {
                waiting.remove(node);
                if waiting.is_empty() {
                    let attempt = attempt.clone();
                    self.end_attempt(&attempt);
                }
            }
            // A Cancel that removes less was sent before the end.
            State::Ending { end, .. } if cleanup < end.cleanup() => {}
            State::Ending { end, waiting } => {
                if let Err(failure) = result
                    && failure.may_leave_files()
                    && may_have_files
                    && waiting.contains(node)
                {
                    self.unconfirmed.insert(node.to_owned());
                }
                waiting.remove(node);
                if waiting.is_empty() {
                    self.state = State::Over(*end);
                }
            }
            _ => {}
        }
    }

    /// Records what the attempt left at its nodes, and decides which node sends in the next one.
    fn end_attempt(&mut self, attempt: &Attempt) {
        let has_failed_to_send = self.record_outcomes(attempt);
        let has_gained = self.destinations.progress_mark() > self.progress_before;
        if has_gained {
            self.failed_senders.clear();
        }
        let mut failure_count = FailureCount::Count;
        if has_failed_to_send && (self.paused_object.is_some() || !has_gained) {
            self.failed_senders.insert(self.spec.source.node.clone());
            let remaining = self.destinations.remaining();
            let takes_part = |node: &str| remaining.contains(node) && attempt.state(node).is_some();
            if self.paused_object.is_some() || self.is_reader_left(takes_part) {
                failure_count = FailureCount::Skip;
            }
            self.use_next_reader();
        }
        self.wait_or_finish(failure_count);
    }

    /// Records what the attempt left at its nodes; whether another node should send in the next one.
    fn record_outcomes(&mut self, attempt: &Attempt) -> bool {
        let mut is_sender_fault = self.has_failed_to_send(attempt);
        let source = match attempt.state(attempt.source()) {
            Some(ParticipantState::Stopped(failure)) => Some(failure),
            _ => None,
        };
        for node in self.destinations.remaining() {
            let sender = attempt.lost_sender(&node);
            let departed = sender.filter(|(sender, _)| self.departed.contains(*sender));
            match attempt.state(&node) {
                Some(ParticipantState::Stopped(failure) | ParticipantState::CutOff(failure))
                    if departed.is_none() || !failure.retriable =>
                {
                    let mut failure = failure.clone();
                    if self.is_sender_error(&node, &failure) {
                        is_sender_fault = true;
                        failure.retriable = true;
                    }
                    self.destinations.record_failure(&node, failure);
                }
                Some(_) => {
                    let cause = match (departed, source, sender) {
                        (Some((sender, _)), ..) => {
                            format!("node {sender} sent to it and is no destination any more")
                        }
                        (_, Some(failure), _)
                        | (.., Some((_, ParticipantState::Stopped(failure)))) => {
                            failure.message.clone()
                        }
                        _ => "a node between it and the source failed".to_owned(),
                    };
                    let lost = sender_lost(&node, &cause);
                    self.destinations.record_failure(&node, lost);
                }
                // It was not ready.
                None => {}
            }
        }
        if let Some(fault) = self.source_fault() {
            self.destinations.fail_remaining(&fault);
        }
        if let Some(failure) = source
            && self.destinations.source.state() != AgentState::Failed
            && self.is_final_for_all(failure)
        {
            self.destinations.fail_remaining(&failure.clone());
        }
        is_sender_fault
    }

    /// Why a destination that is in the attempt under way gets no more bytes in it, if that is so.
    pub fn stalled(&self, node: &str) -> Option<Failure> {
        let (State::Running(attempt) | State::EndingAttempt { attempt, .. }) = &self.state else {
            return None;
        };
        if let Some(ParticipantState::Stopped(failure) | ParticipantState::CutOff(failure)) =
            attempt.state(node)
        {
            return Some(failure.clone());
        }
        let (sender, state) = attempt.lost_sender(node)?;
        let cause = match state {
            ParticipantState::Stopped(failure) => failure.message.clone(),
            _ => format!("node {sender}, from which it gets its bytes, stopped"),
        };
        Some(sender_lost(node, &cause))
    }

    /// The source's own failure, where no receiver of it explains it.
    pub fn source_fault(&self) -> Option<Failure> {
        let source = &self.destinations.source;
        let is_explained = source.peers.iter().any(|peer| peer.failed);
        let node = &self.spec.source.node;
        let fault = Failure::at(node, &source.reason, &source.message, source.retriable);
        let has_failed = source.state() == AgentState::Failed;
        (has_failed && !is_explained && self.is_final_for_all(&fault)).then_some(fault)
    }

    pub(super) fn cancel(&mut self, nodes: &BTreeSet<String>, cleanup: Cleanup, is_repeated: bool) {
        for node in nodes {
            let is_repeated = is_repeated && self.may_have_files(node);
            let cancel = Call::Cancel {
                cleanup,
                is_repeated,
            };
            self.push_call(node, cancel);
        }
    }

    /// All nodes that may know of the transfer are told. A transfer that is already ending ignores the cancel.
    pub(super) fn on_cancel(&mut self, cleanup: Cleanup) {
        let ends_by_itself = matches!(
            self.state,
            State::AwaitingFinalReports { .. } | State::Ending { .. } | State::Over(_)
        );
        if ends_by_itself {
            return;
        }
        let mut nodes = BTreeSet::new();
        if self.attempt > 0 {
            let locations = self.spec.destinations.iter().chain([&self.spec.source]);
            nodes = locations.map(|location| location.node.clone()).collect();
            nodes.extend(self.departed.iter().cloned());
        }
        self.cancel(&nodes, cleanup, true);
        self.end_as(End::Cancelled(cleanup), nodes);
    }

    /// Ends the transfer; destinations that failed keep no partial files.
    pub(super) fn finish(&mut self) {
        self.destinations.compare_digests();
        let mut nodes = BTreeSet::new();
        if self.attempt > 0 {
            let failed = self.destinations.failed().map(|(node, _)| node);
            let failed = failed.filter(|node| self.may_have_files(node));
            nodes = failed.map(str::to_owned).collect();
        }
        // A node that did not answer in all these attempts is not asked again and again.
        let is_repeated = !self.is_limit_exceeded();
        self.cancel(&nodes, Cleanup::Partials, is_repeated);
        // The agent of such a node is gone, or answers at once.
        let departed = self.departed.intersection(&self.reached);
        let departed: BTreeSet<String> = departed.cloned().collect();
        self.cancel(&departed, Cleanup::Partials, false);
        nodes.extend(departed);
        let is_complete = self.source_fault().is_none()
            && !self.spec.destinations.is_empty()
            && self.destinations.are_verified();
        let end = match is_complete {
            true => End::Complete,
            false => End::Failed,
        };
        self.end_as(end, nodes);
    }

    fn end_as(&mut self, end: End, waiting: BTreeSet<String>) {
        self.state = match waiting.is_empty() {
            true => State::Over(end),
            false => State::Ending { end, waiting },
        };
    }
}

/// The failure of a destination that nobody sends to any more.
fn sender_lost(node: &str, cause: &str) -> Failure {
    let message = format!("node {node} has no sender any more: {cause}");
    Failure::at(node, SENDER_LOST, &message, true)
}
