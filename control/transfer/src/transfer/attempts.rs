//! A transfer's attempts: destinations are prepared, assignments are started, progress comes in.

use std::{collections::BTreeSet, time::Duration};

use weft_planner::Assignment;
use weft_proto::agent::v1::{ProgressResponse, Role, State as AgentState};

use super::{State, Transfer};
use crate::{
    attempt::{Attempt, ParticipantState},
    command::{Call, Cleanup, Command},
    destinations::DestinationPhase,
    failure::Failure,
    spec::{is_local, node_of},
};

/// How long the last progress messages may take once everything is Verified: they only complete the counts.
const FINAL_REPORTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether an attempt without progress counts towards the backoff limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureCount {
    Count,
    /// Another node can send in the next attempt.
    Skip,
}

impl Transfer {
    /// Queues a call of a node for the present attempt.
    pub(super) fn push_call(&mut self, node: &str, call: Call) {
        self.commands.push(Command::Call {
            node: node.to_owned(),
            attempt: self.attempt,
            call,
        });
    }

    pub(super) fn send_prepares(&mut self) {
        // A report that came late may have said that the last one is Verified.
        if self.destinations.remaining().is_empty() {
            return self.finish();
        }
        self.attempt += 1;
        self.progress_before = self.destinations.progress_mark();
        let waiting = self.destinations.remaining();
        for node in &waiting {
            self.push_call(node, Call::Prepare);
        }
        self.state = State::Preparing {
            waiting,
            ready: Vec::new(),
        };
    }

    pub(super) fn on_prepared(&mut self, node: &str, result: Result<(), Failure>) {
        let State::Preparing { waiting, ready } = &mut self.state else {
            return;
        };
        if !waiting.remove(node) {
            return;
        }
        let all_answered = waiting.is_empty();
        match result {
            Ok(()) => ready.push(node.to_owned()),
            Err(failure) => self.on_not_ready(node, failure),
        }
        if all_answered {
            self.send_starts();
        }
    }

    fn on_not_ready(&mut self, node: &str, mut failure: Failure) {
        let before = self.destinations.retrying(node);
        if self.spec.timing.gives_up_unreached
            && failure.never_connected()
            && before.is_some_and(Failure::never_connected)
        {
            failure.retriable = false;
        }
        // Another agent, or another listing of the source, may send a better manifest.
        failure.retriable |= failure.is_manifest_error();
        self.destinations.record_failure(node, failure);
    }

    pub(super) fn send_starts(&mut self) {
        let State::Preparing { ready, .. } = &mut self.state else {
            return;
        };
        let mut ready = std::mem::take(ready);
        ready.retain(|node| !self.departed.contains(node));
        self.choose_other_holder(&ready);
        if ready.is_empty() {
            return self.wait_or_finish(FailureCount::Count);
        }
        self.choose_reader(&ready);
        let needs_no_sender = |node: &String| is_local(node) || self.is_reader(node);
        let (without_sender, others): (Vec<String>, Vec<String>) =
            ready.iter().cloned().partition(needs_no_sender);
        // The copy that the source's node makes itself uses no link, so it has no assignment in the plan; nor has a
        // reader that sends to no other node.
        let has_others = !others.is_empty();
        let without_sender = without_sender.into_iter();
        let without_sender = without_sender.filter(|node| is_local(node) || !has_others);
        let mut assignments: Vec<Assignment> =
            without_sender.map(assignment_without_links).collect();
        if has_others {
            match self.assignments_for(others) {
                Ok(planned) => assignments.extend(planned),
                Err(error) => {
                    let (reason, message) = (error.reason(), error.to_string());
                    let node = &self.spec.source.node;
                    let failure = Failure::at(node, reason, &message, false);
                    self.destinations.fail_remaining(&failure);
                    return self.finish();
                }
            }
        }
        for node in &ready {
            if let Some(destination) = self.destinations.get_mut(node) {
                destination.phase = DestinationPhase::InProgress;
            }
        }
        let is_reader = self.spec.object.is_some();
        let mut attempt = Attempt::new(&self.spec.source.node, is_reader, &assignments);
        for assignment in attempt.start_destinations() {
            self.push_call(&assignment.node.clone(), Call::Start(assignment));
        }
        self.destinations.source = ProgressResponse::default();
        self.started.get_or_insert(self.now);
        self.state = State::Running(attempt);
        // A reader without others waits for no destination.
        self.proceed();
    }

    /// Where a destination could not use the manifest that it was sent, one that is ready has a good one.
    fn choose_other_holder(&mut self, ready: &[String]) {
        let remaining = self.destinations.remaining();
        let mut failures = remaining
            .iter()
            .filter_map(|node| self.destinations.retrying(node));
        if failures.any(Failure::is_manifest_error) {
            self.other_holder = ready.iter().find(|node| !is_local(node)).cloned();
        }
    }

    pub(super) fn on_started(&mut self, node: &str, result: Result<(), Failure>) {
        let State::Running(attempt) = &mut self.state else {
            return;
        };
        match result {
            Ok(()) => {
                attempt.on_started(node);
                self.push_call(node, Call::WatchProgress);
            }
            Err(failure) => {
                attempt.on_stopped(node, failure);
                attempt.on_stream_ended(node, true);
            }
        }
        self.proceed();
    }

    pub(super) fn on_progress(&mut self, node: &str, number: u32, progress: ProgressResponse) {
        let is_source = node == self.spec.source.node;
        let only_sends = is_source && self.spec.object.is_none();
        self.destinations.count(node, number, &progress, only_sends);
        if number != self.attempt {
            return;
        }
        if let State::Running(attempt)
        | State::EndingAttempt { attempt, .. }
        | State::AwaitingFinalReports { attempt, .. } = &mut self.state
        {
            let (reason, message) = (&progress.reason, &progress.message);
            let failure = Failure::at(node, reason, message, progress.retriable);
            match progress.state() {
                AgentState::Verified => attempt.on_verified(node),
                AgentState::Failed if !failure.is_cancelled() => attempt.on_stopped(node, failure),
                _ => {}
            }
        }
        // While an attempt ends, a child that is told so before its sender refuses that one's calls: no failure.
        if let State::Running(attempt) = &mut self.state {
            for peer in &progress.peers {
                if peer.failed && peer.role() == Role::Child {
                    let (reason, message) = (&peer.reason, &peer.message);
                    let lost = Failure::at(&peer.node, reason, message, peer.retriable);
                    attempt.on_cut_off(&peer.node, lost);
                }
            }
        }
        if is_source {
            self.destinations.source = progress.clone();
        }
        if !only_sends {
            let since_start = self.now.saturating_sub(self.started.unwrap_or(self.now));
            self.destinations.record(node, progress, since_start);
        }
        self.proceed();
    }

    pub(super) fn on_progress_ended(&mut self, node: &str, result: Result<(), Failure>) {
        // An agent that is told to end its task ends its stream, and is healthy.
        let is_told_to_end = matches!(self.state, State::EndingAttempt { .. }) && result.is_ok();
        let (State::Running(attempt)
        | State::EndingAttempt { attempt, .. }
        | State::AwaitingFinalReports { attempt, .. }) = &mut self.state
        else {
            return;
        };
        attempt.on_stream_ended(node, result.is_err());
        if !is_told_to_end
            && matches!(
                attempt.state(node),
                Some(
                    ParticipantState::Starting
                        | ParticipantState::Transferring
                        | ParticipantState::CutOff(_)
                )
            )
        {
            let stopped = || {
                let of = node_of(node);
                let message = format!("node {of}: its agent was stopped; start it again");
                Failure::at(node, "AgentStopped", &message, true)
            };
            attempt.on_stopped(node, result.err().unwrap_or_else(stopped));
        }
        self.proceed();
    }

    /// Goes on where the last answer made that possible.
    pub(super) fn proceed(&mut self) {
        // Nodes that are destinations no more may still take part.
        let is_done = self.destinations.remaining().is_empty();
        match &mut self.state {
            State::Running(attempt) if attempt.can_go_on() && !is_done => {
                if let Some(assignment) = attempt.start_source() {
                    self.push_call(&assignment.node.clone(), Call::Start(assignment));
                }
            }
            State::Running(attempt) => {
                let attempt = attempt.clone();
                if self.destinations.are_verified() {
                    self.state = State::AwaitingFinalReports {
                        attempt,
                        until: self.now + FINAL_REPORTS_TIMEOUT,
                    };
                    return self.proceed();
                }
                let waiting: BTreeSet<String> = attempt.nodes().map(str::to_owned).collect();
                self.cancel(&waiting, Cleanup::Nothing, false);
                self.state = State::EndingAttempt { attempt, waiting };
            }
            State::AwaitingFinalReports { attempt, .. } if attempt.all_streams_ended() => {
                self.after_final_reports();
            }
            _ => {}
        }
    }

    /// All that were in the attempt are Verified; destinations that came since get the next one.
    pub(super) fn after_final_reports(&mut self) {
        if self.destinations.remaining().is_empty() {
            self.finish();
        } else {
            self.wait_or_finish(FailureCount::Count);
        }
    }

    /// An attempt has ended everywhere: waits for the next one, or ends the transfer.
    pub(super) fn wait_or_finish(&mut self, failure_count: FailureCount) {
        if self.destinations.progress_mark() > self.progress_before {
            (self.failures, self.exempt_failures) = (0, 0);
        } else if failure_count == FailureCount::Count {
            let remaining = self.destinations.remaining();
            let failures = remaining
                .iter()
                .filter_map(|node| self.destinations.retrying(node));
            let mut failures = failures.peekable();
            let is_exempt =
                failures.peek().is_some() && failures.all(|failure| self.is_exempt(failure));
            self.count_failure(is_exempt);
        }
        if self.is_limit_exceeded() {
            self.destinations.give_up();
        }
        if self.destinations.remaining().is_empty() {
            self.finish();
        } else {
            let until = self.now + self.backoff();
            self.state = State::Waiting { until };
        }
    }
}

/// The assignment of a node that receives from no node and sends to none.
fn assignment_without_links(node: String) -> Assignment {
    Assignment {
        node,
        receives_from: None,
        sends_to: Vec::new(),
        depth: 0,
    }
}
