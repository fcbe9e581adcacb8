//! A job from Stat to its end, as a pure step from an answer to commands.

use std::{collections::BTreeSet, time::Duration};

use weft_planner::{Part, Plan, Request};
use weft_proto::agent::v1::{Manifest, PeerProgress, ProgressResponse, Role, State};

use super::{
    Answer, Command, EncodedManifest, Object, Place, Refusal, Removal, Roster, Spec, Tempo,
    attempt::{Attempt, Run},
    contact::FirstContact,
    destination::{DestinationView, Standing},
    is_local,
    ledger::{Ledger, cut_off, is_ours, reported},
    object::is_of_the_store,
};

/// How long the last reports may take once everything is Verified: they only complete the counts.
const SETTLE: Duration = Duration::from_secs(10);

/// How far a job is, for readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// The source is asked what there is.
    Asking,
    /// Before the next Stat or attempt, or until that may begin.
    Resting,
    /// Destinations are made ready.
    Preparing,
    /// Parts are under way.
    Running,
    /// Agents are told that it ends.
    Ending,
    /// Nothing will change any more.
    Over,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Every destination is Verified, and the source has nothing to object.
    Complete,
    /// Some destination was given up.
    Failed,
    /// It was stopped.
    Withdrawn {
        /// Partial files went, too.
        discard: bool,
    },
}

#[derive(Debug, Clone)]
enum Phase {
    /// Stat was sent.
    Asking,
    /// Before the next Stat or attempt.
    Resting { until: Duration },
    /// The next attempt's number is being written down.
    Claiming,
    /// Prepare was sent to all that are left.
    Preparing {
        waiting: BTreeSet<String>,
        ready: Vec<String>,
    },
    /// An attempt is on its way.
    Running(Attempt),
    /// It is being ended everywhere.
    Cancelling {
        attempt: Attempt,
        waiting: BTreeSet<String>,
    },
    /// All is Verified; the last reports come in.
    Settling { attempt: Attempt, until: Duration },
    /// What failed is being removed.
    Discarding { waiting: BTreeSet<String> },
    /// It was stopped, and everybody is told.
    Withdrawing {
        waiting: BTreeSet<String>,
        discard: bool,
        /// What goes next.
        remove: Vec<Removal>,
    },
    /// Verified copies are being removed.
    Removing {
        waiting: BTreeSet<String>,
        discard: bool,
    },
    /// Nothing will change any more, because it was stopped.
    Withdrawn { discard: bool },
    /// Nothing will change any more.
    Over,
}

/// A job. Owned by whoever plays the operator; see [`super`] for its course.
///
/// [`Job::begin`] gives the first commands; every answer goes into [`Job::step`], in any order, also
/// late and repeated ones. When [`Job::wake_at`] is reached, [`Answer::Woken`] is due. Times are
/// since it began.
#[derive(Debug, Clone)]
pub struct Job {
    spec: Spec,
    phase: Phase,
    manifest: Option<EncodedManifest>,
    /// What a verified copy is sent in place of, in this attempt.
    store: Option<Object>,
    /// Nodes that could not be asked what they have, since the last one that could.
    silent: BTreeSet<String>,
    ledger: Ledger,
    contact: FirstContact,
    /// Counts up from 1.
    attempt: u32,
    /// What the destinations had gained when the attempt began.
    mark: u64,
    /// Attempts in a row that brought nothing.
    vain: u32,
    /// The first attempt's plan: the later ones only mend.
    plan: Option<Plan>,
    /// When the first Start was sent.
    started: Option<Duration>,
}

impl Job {
    /// A new job, and what to do first.
    pub fn begin(spec: Spec) -> (Self, Vec<Command>) {
        let mut job = Self::new(spec);
        job.contact.asked(&job.spec.source.node, Duration::ZERO);
        (job, vec![Command::Stat])
    }

    /// A job that an earlier operator began and that nobody wants any more.
    pub fn withdraw(spec: Spec, discard: bool, remove: Vec<Removal>) -> (Self, Vec<Command>) {
        let mut job = Self::new(spec);
        let mut commands = Vec::new();
        job.on_stop(discard, remove, &mut commands);
        (job, commands)
    }

    fn new(spec: Spec) -> Self {
        Self {
            ledger: Ledger::new(&spec),
            contact: FirstContact::new(spec.tempo.first_contact),
            attempt: spec.mandate.attempts_before,
            spec,
            phase: Phase::Asking,
            manifest: None,
            store: None,
            silent: BTreeSet::new(),
            mark: 0,
            vain: 0,
            plan: None,
            started: None,
        }
    }

    /// Takes an answer; gives the next state and what to do now.
    #[must_use]
    pub fn step(mut self, now: Duration, answer: Answer) -> (Self, Vec<Command>) {
        let commands = self.advance(now, answer);
        (self, commands)
    }

    /// The same in place: a job of many nodes takes many answers a second.
    #[must_use]
    pub(crate) fn advance(&mut self, now: Duration, answer: Answer) -> Vec<Command> {
        let mut commands = Vec::new();
        self.take(now, answer, &mut commands);
        commands
    }

    /// When [`Answer::Woken`] is due, if it is.
    pub fn wake_at(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Resting { until } | Phase::Settling { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Nothing will change any more.
    pub fn is_over(&self) -> bool {
        self.end().is_some()
    }

    /// Every destination is Verified, and the source has nothing to object.
    pub fn is_complete(&self) -> bool {
        self.end() == Some(End::Complete)
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<End> {
        match self.phase {
            Phase::Withdrawn { discard } => Some(End::Withdrawn { discard }),
            Phase::Over => Some(
                if self.source_fault().is_none() && self.ledger.destinations.are_verified() {
                    End::Complete
                } else {
                    End::Failed
                },
            ),
            _ => None,
        }
    }

    /// How far it is.
    pub fn course(&self) -> Course {
        match self.phase {
            Phase::Asking => Course::Asking,
            Phase::Resting { .. } | Phase::Claiming => Course::Resting,
            Phase::Preparing { .. } => Course::Preparing,
            Phase::Running(_) | Phase::Settling { .. } => Course::Running,
            Phase::Cancelling { .. }
            | Phase::Discarding { .. }
            | Phase::Withdrawing { .. }
            | Phase::Removing { .. } => Course::Ending,
            Phase::Withdrawn { .. } | Phase::Over => Course::Over,
        }
    }

    /// The number of the attempt that waits until it is written down.
    pub fn claims(&self) -> Option<u32> {
        matches!(self.phase, Phase::Claiming).then_some(self.attempt + 1)
    }

    /// What it was made from.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What the source said there is; empty before it did.
    pub fn manifest(&self) -> Option<&EncodedManifest> {
        self.manifest.as_ref()
    }

    /// Bytes of all files that the source said there are.
    pub fn bytes(&self) -> u64 {
        self.manifest.as_ref().map_or(0, EncodedManifest::bytes)
    }

    /// The plan of the first attempt, once there is one.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The newest attempt that has begun; before this job's first, those that were made before.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the first Start was sent.
    pub fn started(&self) -> Option<Duration> {
        self.started
    }

    /// Of everything, as the source says; where it sends nothing, as its own copy says.
    pub fn digest(&self) -> &str {
        self.ledger.digest()
    }

    /// The source's newest report; all zero before its first of this attempt.
    pub fn source_report(&self) -> &ProgressResponse {
        self.ledger.source()
    }

    /// The link in use and why; empty before an agent has said.
    pub fn link(&self) -> (&str, &str) {
        self.ledger.link()
    }

    /// All destinations, in the order of the spec.
    pub fn destinations(&self) -> impl Iterator<Item = DestinationView<'_>> {
        self.spec.destinations.iter().filter_map(|place| {
            self.ledger
                .destinations
                .get(&place.node)
                .map(|d| DestinationView {
                    place: &d.place,
                    standing: &d.standing,
                    report: &d.report,
                    bytes: d.best,
                })
        })
    }

    /// Chunks sent, resent ones included, and of these the resent ones; all nodes and attempts.
    pub fn chunks(&self) -> (u64, u64) {
        self.ledger.chunks()
    }

    /// Bytes that are verified at the destinations.
    pub fn bytes_moved(&self) -> u64 {
        self.ledger.destinations.bytes()
    }

    /// The source's own failure, where no receiver of it explains it.
    pub fn source_fault(&self) -> Option<Refusal> {
        self.ledger.source_fault()
    }

    fn take(&mut self, now: Duration, answer: Answer, commands: &mut Vec<Command>) {
        match answer {
            Answer::Stat(result) => self.on_stat(now, result, commands),
            Answer::Claimed { attempt } => {
                if self.claims() == Some(attempt) {
                    self.begin_attempt(now, commands);
                }
            }
            Answer::Prepared {
                node,
                attempt,
                result,
            } => {
                if attempt == self.attempt {
                    self.on_prepared(now, &node, result, commands);
                }
            }
            Answer::Started {
                node,
                attempt,
                result,
            } => {
                if attempt == self.attempt {
                    self.on_started(now, &node, result, commands);
                }
            }
            Answer::Progress {
                node,
                attempt,
                report,
            } => {
                self.on_progress(now, &node, attempt, *report, commands);
            }
            Answer::FollowEnded {
                node,
                attempt,
                result,
            } => {
                if attempt == self.attempt {
                    self.on_follow_ended(now, &node, result, commands);
                }
            }
            Answer::Cancelled { node, attempt } => {
                if attempt == self.attempt {
                    self.on_cancelled(now, &node, commands);
                }
            }
            Answer::Woken => self.on_woken(now, commands),
            Answer::Roster(roster) => self.on_roster(now, *roster, commands),
            Answer::Stop { discard, remove } => self.on_stop(discard, remove, commands),
            Answer::Removed { node } => {
                if let Phase::Removing { waiting, discard } = &mut self.phase {
                    waiting.remove(&node);
                    if waiting.is_empty() {
                        self.phase = Phase::Withdrawn { discard: *discard };
                    }
                }
            }
        }
    }

    fn on_stat(
        &mut self,
        now: Duration,
        result: Result<Manifest, Refusal>,
        commands: &mut Vec<Command>,
    ) {
        if !matches!(self.phase, Phase::Asking) {
            return;
        }
        let result = result.map_err(|refusal| self.contact.judge(now, refusal));
        match result {
            Ok(manifest) => {
                self.contact.reached(&self.spec.source.node);
                self.manifest = Some(EncodedManifest::new(&manifest));
                self.silent.clear();
                self.vain = 0;
                self.claim(commands);
            }
            Err(refusal) if refusal.retriable && self.vain < self.spec.backoff_limit => {
                self.vain += 1;
                if !is_of_the_store(&refusal.reason) {
                    self.ask_the_next();
                }
                self.phase = Phase::Resting {
                    until: now + self.backoff(),
                };
            }
            Err(refusal) => {
                self.ledger.destinations.fail_remaining(&refusal);
                self.phase = Phase::Over;
            }
        }
    }

    fn on_woken(&mut self, now: Duration, commands: &mut Vec<Command>) {
        match &self.phase {
            Phase::Resting { until } if now >= *until => {
                self.ask_the_store();
                let copy = self.copy_to_send();
                if self.manifest.is_some() && copy.is_none() {
                    self.claim(commands);
                } else {
                    if let Some(copy) = copy {
                        self.send_files(copy);
                    }
                    self.contact.asked(&self.spec.source.node, now);
                    self.phase = Phase::Asking;
                    commands.push(Command::Stat);
                }
            }
            Phase::Settling { until, .. } if now >= *until => self.settled(now, commands),
            _ => {}
        }
    }

    /// All that were in the attempt are Verified; who has come since gets the next one.
    fn settled(&mut self, now: Duration, commands: &mut Vec<Command>) {
        if self.ledger.destinations.remaining().is_empty() {
            self.finish(commands);
        } else {
            self.next_attempt(now, commands);
        }
    }

    /// Whoever has become a destination since gets a copy, too, unless the end has begun.
    fn on_roster(&mut self, now: Duration, roster: Roster, commands: &mut Vec<Command>) {
        if self.course() == Course::Ending && !matches!(self.phase, Phase::Cancelling { .. })
            || self.is_over()
        {
            return;
        }
        self.spec.topology = roster.topology;
        self.spec.payload_share = roster.payload_share;
        for place in roster.destinations {
            if !self.ledger.destinations.add(&place) {
                continue;
            }
            let node = place.node.clone();
            self.spec.destinations.push(place);
            match &mut self.phase {
                Phase::Preparing { waiting, .. } => {
                    self.contact.asked(&node, now);
                    waiting.insert(node.clone());
                    commands.push(Command::Prepare {
                        node,
                        attempt: self.attempt,
                    });
                }
                // It need not wait for what others have spoilt.
                Phase::Resting { until } if self.manifest.is_some() => *until = now,
                _ => {}
            }
        }
    }

    fn claim(&mut self, commands: &mut Vec<Command>) {
        self.phase = Phase::Claiming;
        commands.push(Command::Claim {
            attempt: self.attempt + 1,
        });
    }

    fn begin_attempt(&mut self, now: Duration, commands: &mut Vec<Command>) {
        self.attempt += 1;
        self.mark = self.ledger.destinations.gained();
        let waiting = self.ledger.destinations.remaining();
        let prepare = |node: &String| Command::Prepare {
            node: node.clone(),
            attempt: self.attempt,
        };
        commands.extend(waiting.iter().map(prepare));
        for node in &waiting {
            self.contact.asked(node, now);
        }
        self.phase = Phase::Preparing {
            waiting,
            ready: Vec::new(),
        };
    }

    fn on_prepared(
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

    fn start_attempt(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let Phase::Preparing { ready, .. } = &mut self.phase else {
            return;
        };
        let ready = std::mem::take(ready);
        if ready.is_empty() {
            return self.next_attempt(now, commands);
        }
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
            match weft_planner::plan(&self.request(others), &self.spec.topology) {
                Ok(plan) => {
                    parts.extend_from_slice(&plan.parts);
                    self.plan.get_or_insert(plan);
                }
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

    fn request(&self, destinations: Vec<String>) -> Request {
        Request {
            strategy: self.spec.strategy,
            payload_share: self.spec.payload_share,
            ..Request::new(&self.spec.source.node, destinations, self.bytes())
        }
    }

    fn on_started(
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

    fn on_progress(
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

    fn on_follow_ended(
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
    fn look(&mut self, now: Duration, commands: &mut Vec<Command>) {
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
                    discard: false,
                }));
                self.phase = Phase::Cancelling { attempt, waiting };
            }
            Phase::Settling { attempt, .. } if attempt.all_silent() => self.settled(now, commands),
            _ => {}
        }
    }

    fn on_cancelled(&mut self, now: Duration, node: &str, commands: &mut Vec<Command>) {
        match &mut self.phase {
            Phase::Cancelling { attempt, waiting } => {
                waiting.remove(node);
                if waiting.is_empty() {
                    let attempt = attempt.clone();
                    self.ledger.close(&attempt);
                    self.next_attempt(now, commands);
                }
            }
            Phase::Discarding { waiting } => {
                waiting.remove(node);
                if waiting.is_empty() {
                    self.phase = Phase::Over;
                }
            }
            Phase::Withdrawing {
                waiting,
                discard,
                remove,
            } => {
                waiting.remove(node);
                if waiting.is_empty() {
                    let (discard, remove) = (*discard, std::mem::take(remove));
                    self.remove(discard, remove, commands);
                }
            }
            _ => {}
        }
    }

    fn next_attempt(&mut self, now: Duration, commands: &mut Vec<Command>) {
        if self.ledger.destinations.gained() > self.mark {
            self.vain = 0;
        } else {
            self.vain += 1;
        }
        if self.vain > self.spec.backoff_limit {
            self.ledger.destinations.give_up();
        }
        if self.ledger.destinations.remaining().is_empty() {
            self.finish(commands);
        } else {
            self.phase = Phase::Resting {
                until: now + self.backoff(),
            };
        }
    }

    fn backoff(&self) -> Duration {
        let Tempo {
            backoff, doublings, ..
        } = self.spec.tempo;
        backoff * 2u32.pow(self.vain.saturating_sub(1).min(doublings))
    }

    /// Everybody who may know of it is told. What is ending by itself goes on to do so.
    fn on_stop(&mut self, discard: bool, remove: Vec<Removal>, commands: &mut Vec<Command>) {
        match self.phase {
            Phase::Asking
            | Phase::Resting { .. }
            | Phase::Claiming
            | Phase::Preparing { .. }
            | Phase::Running(_)
            | Phase::Cancelling { .. } => {}
            Phase::Settling { .. }
            | Phase::Discarding { .. }
            | Phase::Withdrawing { .. }
            | Phase::Removing { .. }
            | Phase::Withdrawn { .. }
            | Phase::Over => return,
        }
        if self.attempt == 0 {
            return self.remove(discard, remove, commands);
        }
        let destinations = self.spec.destinations.iter();
        let waiting: BTreeSet<String> = destinations
            .map(|place| place.node.clone())
            .chain([self.spec.source.node.clone()])
            .collect();
        commands.extend(waiting.iter().map(|node| Command::Cancel {
            node: node.clone(),
            attempt: self.attempt,
            discard,
        }));
        self.phase = Phase::Withdrawing {
            waiting,
            discard,
            remove,
        };
    }

    /// No byte of it lands any more: what shall not stay goes.
    fn remove(&mut self, discard: bool, remove: Vec<Removal>, commands: &mut Vec<Command>) {
        let waiting: BTreeSet<String> = remove.iter().map(|it| it.place.node.clone()).collect();
        commands.extend(remove.into_iter().map(Command::Remove));
        self.phase = if waiting.is_empty() {
            Phase::Withdrawn { discard }
        } else {
            Phase::Removing { waiting, discard }
        };
    }

    /// Ends the job; what failed leaves no partial files.
    fn finish(&mut self, commands: &mut Vec<Command>) {
        self.ledger.compare_digests();
        let mut waiting = self.ledger.destinations.failed();
        // Unless an earlier operator has reached it.
        if self.spec.mandate.attempts_before == 0 {
            waiting.retain(|node| !self.contact.was_never_reached(node));
        }
        commands.extend(waiting.iter().map(|node| Command::Cancel {
            node: node.clone(),
            attempt: self.attempt,
            discard: true,
        }));
        self.phase = if waiting.is_empty() {
            Phase::Over
        } else {
            Phase::Discarding { waiting }
        };
    }
}

/// Which destination reads, where the bytes come from a store.
impl Job {
    /// It reads from a store in this attempt.
    fn reads(&self, node: &str) -> bool {
        self.spec.object.is_some() && self.spec.source.node == node
    }

    /// The one that reads goes on to do so as long as it can; else the next one that is ready does.
    fn choose_reader(&mut self, ready: &[String]) {
        let Some(object) = &self.spec.object else {
            return;
        };
        if ready.contains(&self.spec.source.node) {
            return;
        }
        let is_ready = |reader: &&String| ready.contains(reader);
        // Who has come later stands in no order.
        let chosen = object.readers.iter().find(is_ready).or(ready.first());
        if let Some(node) = chosen.cloned() {
            self.read_at(&node);
        }
    }

    /// Whoever was asked does not answer; another one may.
    fn ask_the_next(&mut self) {
        self.ask_the_store();
        self.silent.insert(self.spec.source.node.clone());
        let object = self.spec.object.as_ref();
        let next = object.and_then(|object| object.after(&self.spec.source.node));
        if let Some(node) = next.map(str::to_owned) {
            self.read_at(&node);
        }
    }

    fn read_at(&mut self, node: &str) {
        let place = self.spec.destinations.iter().find(|it| it.node == node);
        if let Some(place) = place.cloned() {
            self.ledger.comes_from(&place.node, true);
            self.spec.source = place;
        }
    }

    /// Whose copy was sent in the last attempt need not be there in the next.
    fn ask_the_store(&mut self) {
        if let Some(object) = self.store.take() {
            self.ledger.comes_from(&self.spec.source.node, true);
            self.spec.object = Some(object);
            self.manifest = None;
        }
    }

    /// A verified copy of what a store has: while one answers, nobody has to ask the store again.
    fn copy_to_send(&self) -> Option<Place> {
        self.spec.object.as_ref()?;
        let is_verified = |node: &str| {
            let there = self.ledger.destinations.get(node);
            !self.silent.contains(node)
                && there.is_some_and(|there| matches!(there.standing, Standing::Verified { .. }))
        };
        let reader = std::iter::once(&self.spec.source);
        let mut places = reader.chain(&self.spec.destinations);
        places.find(|place| is_verified(&place.node)).cloned()
    }

    /// The next attempt is that of a job whose source is that copy.
    fn send_files(&mut self, copy: Place) {
        // Whatever has become of that copy since: these bytes, or none.
        let digest = self.ledger.destinations.get(&copy.node);
        let digest = digest.map(|there| there.report.digest.clone());
        self.spec.expect = digest.unwrap_or_default();
        self.ledger.comes_from(&copy.node, false);
        self.spec.source = copy;
        self.store = self.spec.object.take();
        self.manifest = None;
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

#[cfg(test)]
mod tests;
