//! A job's attempts: destinations are made ready, parts are started, reports come in.

use std::{collections::BTreeSet, time::Duration};

use weft_planner::Part;
use weft_proto::agent::v1::{PeerProgress, ProgressResponse, Role, State};

use super::{Blame, Job, Phase, SETTLE};
use crate::{
    Cleanup, Command, Refusal, Standing,
    attempt::{Attempt, Run},
    is_local,
    ledger::{cut_off, is_ours, reported},
};

impl Job {
    pub(super) fn begin_attempt(&mut self, now: Duration, commands: &mut Vec<Command>) {
        self.attempt += 1;
        self.mark = self.ledger.destinations.gained();
        let waiting = self.ledger.destinations.remaining();
        let prepare = |node: &String| Command::Prepare {
            node: node.clone(),
            attempt: self.attempt,
        };
        commands.extend(waiting.iter().map(prepare));
        self.cancel_unheard(&waiting, commands);
        for node in &waiting {
            self.contact.asked(node, now);
        }
        self.phase = Phase::Preparing {
            waiting,
            ready: Vec::new(),
        };
    }

    pub(super) fn on_prepared(
        &mut self,
        now: Duration,
        node: &str,
        result: Result<(), Refusal>,
        commands: &mut Vec<Command>,
    ) {
        let Phase::Preparing { waiting, ready } = &mut self.phase else {
            return;
        };
        if !waiting.remove(node) {
            return;
        }
        let all_answered = waiting.is_empty();
        match result {
            Ok(()) => {
                self.contact.reached(node);
                self.unheard.remove(node);
                ready.push(node.to_owned());
            }
            Err(refusal) => {
                let refusal = self.contact.judge(now, refusal);
                self.ledger.destinations.refuse(node, refusal);
            }
        }
        if all_answered {
            self.start_attempt(now, commands);
        }
    }

    pub(super) fn start_attempt(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let Phase::Preparing { ready, .. } = &mut self.phase else {
            return;
        };
        let ready = std::mem::take(ready);
        if ready.is_empty() {
            return self.next_attempt(now, Blame::None, commands);
        }
        let troubled = self.troubled(&ready);
        for node in &ready {
            if let Some(destination) = self.ledger.destinations.get_mut(node) {
                destination.standing = Standing::Waiting;
            }
        }
        self.choose_reader(&ready);
        let is_alone = |node: &String| is_local(node) || self.reads(node);
        let (here, others): (Vec<String>, Vec<String>) = ready.into_iter().partition(is_alone);
        // What a node gets from nobody is on no link: what the source's node copies for itself takes no
        // part in the plan, and what a reader gets itself only where it has nobody to send it to.
        let has_others = !others.is_empty();
        let here = here.into_iter();
        let here = here.filter(|node| is_local(node) || !has_others);
        let mut parts: Vec<Part> = here.map(copied_there).collect();
        if has_others {
            match self.parts_for(others, &troubled) {
                Ok(planned) => parts.extend(planned),
                Err(error) => {
                    self.ledger.destinations.fail_remaining(&Refusal {
                        node: self.spec.source.node.clone(),
                        reason: error.reason().to_owned(),
                        message: error.to_string(),
                        retriable: false,
                    });
                    return self.finish(commands);
                }
            }
        }
        let mut attempt = Attempt::new(&self.spec.source.node, &parts);
        if self.spec.object.is_some() {
            attempt = attempt.reading();
        }
        for part in attempt.start_destinations() {
            commands.push(Command::Start {
                attempt: self.attempt,
                part,
            });
        }
        self.ledger.open();
        self.started.get_or_insert(now);
        self.phase = Phase::Running(attempt);
        // A reader without others waits for nobody.
        self.look(now, commands);
    }

    pub(super) fn on_started(
        &mut self,
        now: Duration,
        node: &str,
        result: Result<(), Refusal>,
        commands: &mut Vec<Command>,
    ) {
        let Phase::Running(attempt) = &mut self.phase else {
            return;
        };
        match result {
            Ok(()) => {
                self.unheard.remove(node);
                attempt.started(node);
                commands.push(Command::Follow {
                    node: node.to_owned(),
                    attempt: self.attempt,
                });
            }
            Err(refusal) => {
                attempt.stopped(node, refusal);
                attempt.silent(node, true);
            }
        }
        self.look(now, commands);
    }

    pub(super) fn on_progress(
        &mut self,
        now: Duration,
        node: &str,
        number: u32,
        report: ProgressResponse,
        commands: &mut Vec<Command>,
    ) {
        self.ledger.count(node, number, &report);
        if number != self.attempt {
            return;
        }
        let since = now.saturating_sub(self.started.unwrap_or(now));
        let state = report.state();
        let refusal = reported(node, &report);
        let of_child = |peer: &&PeerProgress| peer.failed && peer.role() == Role::Child;
        let lost: Vec<Refusal> = report.peers.iter().filter(of_child).map(cut_off).collect();
        self.ledger.book(node, report, since);
        if let Phase::Running(attempt)
        | Phase::Cancelling { attempt, .. }
        | Phase::Settling { attempt, .. } = &mut self.phase
        {
            match state {
                State::Verified => attempt.verified(node),
                State::Failed if !is_ours(&refusal) => attempt.stopped(node, refusal),
                _ => {}
            }
            for refusal in lost {
                let child = refusal.node.clone();
                attempt.cut_off(&child, refusal);
            }
        }
        self.look(now, commands);
    }

    pub(super) fn on_follow_ended(
        &mut self,
        now: Duration,
        node: &str,
        result: Result<(), Refusal>,
        commands: &mut Vec<Command>,
    ) {
        let (Phase::Running(attempt)
        | Phase::Cancelling { attempt, .. }
        | Phase::Settling { attempt, .. }) = &mut self.phase
        else {
            return;
        };
        attempt.silent(node, result.is_err());
        if matches!(
            attempt.run(node),
            Some(Run::Starting | Run::Moving | Run::CutOff(_))
        ) {
            attempt.stopped(
                node,
                result.err().unwrap_or_else(|| Refusal {
                    node: node.to_owned(),
                    reason: "AgentStopped".to_owned(),
                    message: format!("node {node}: its agent was stopped; start it again"),
                    retriable: true,
                }),
            );
        }
        self.look(now, commands);
    }

    /// Goes on where the last answer made that possible.
    pub(super) fn look(&mut self, now: Duration, commands: &mut Vec<Command>) {
        match &mut self.phase {
            Phase::Running(attempt) if attempt.can_go_on() => {
                if let Some(part) = attempt.start_source() {
                    commands.push(Command::Start {
                        attempt: self.attempt,
                        part,
                    });
                }
            }
            Phase::Running(attempt) => {
                let attempt = attempt.clone();
                if self.ledger.destinations.are_verified() {
                    self.phase = Phase::Settling {
                        attempt,
                        until: now + SETTLE,
                    };
                    return self.look(now, commands);
                }
                let waiting: BTreeSet<String> = attempt.nodes().map(str::to_owned).collect();
                commands.extend(waiting.iter().map(|node| Command::Cancel {
                    node: node.clone(),
                    attempt: self.attempt,
                    cleanup: Cleanup::Nothing,
                }));
                self.phase = Phase::Cancelling { attempt, waiting };
            }
            Phase::Settling { attempt, .. } if attempt.all_silent() => self.settled(now, commands),
            _ => {}
        }
    }
}

/// The part of a node that receives from nobody and sends to nobody.
fn copied_there(node: String) -> Part {
    Part {
        node,
        receives_from: None,
        sends_to: Vec::new(),
        depth: 0,
    }
}
