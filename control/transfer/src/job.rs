//! A job from Stat to its end, as a pure step from an answer to commands.

mod attempts;
mod cancels;
mod course;
mod ending;
mod planning;
mod reader;

use std::{collections::BTreeSet, time::Duration};

use weft_planner::Plan;
use weft_proto::agent::v1::{ProgressResponse, StatResponse};

use self::course::Phase;
pub use self::course::{Course, End};
use self::reader::{Blame, Stored};

use super::{
    Answer, Cleanup, Command, Listing, Refusal, Roster, Spec, Tempo, contact::FirstContact,
    destination::DestinationView, ledger::Ledger, object::is_of_the_store,
};

/// How long the last reports may take once everything is Verified: they only complete the counts.
const SETTLE: Duration = Duration::from_secs(10);

/// A job. Owned by whoever plays the operator; see [`super`] for its course.
///
/// [`Job::begin`] gives the first commands; every answer goes into [`Job::step`], in any order, also
/// late and repeated ones. When [`Job::wake_at`] is reached, [`Answer::Woken`] is due. Times are
/// since it began.
#[derive(Debug, Clone)]
pub struct Job {
    spec: Spec,
    phase: Phase,
    /// Of the newest Stat that succeeded.
    listing: Option<Listing>,
    /// What a verified copy is sent in place of, in this attempt.
    store: Option<Stored>,
    /// Nodes whose copies are not sent: they do not answer, or the copy is not what was verified.
    aside: BTreeSet<String>,
    /// Readers that the store has not served, since it last served one.
    passed: BTreeSet<String>,
    ledger: Ledger,
    contact: FirstContact,
    /// Nodes that may be at an earlier attempt still: a Cancel has not reached them.
    unheard: BTreeSet<String>,
    /// Nodes that were given up when the job ended.
    untold: BTreeSet<String>,
    /// Counts up from 1.
    attempt: u32,
    /// What the destinations had gained when the attempt began.
    mark: u64,
    /// Attempts in a row that brought nothing.
    vain: u32,
    /// The first attempt's plan: the later ones only mend. Before that, one for all.
    plan: Option<Plan>,
    /// The plan is one for all: none of them has been asked yet.
    is_sketch: bool,
    /// When the first Start was sent.
    started: Option<Duration>,
}

impl Job {
    /// A new job, and what to do first.
    pub fn begin(spec: Spec) -> (Self, Vec<Command>) {
        let mut job = Self::new(spec);
        job.contact.asked(&job.spec.source.node, Duration::ZERO);
        (job, vec![Command::Stat { named: None }])
    }

    /// A job that an earlier operator began and that nobody wants any more.
    pub fn withdraw(spec: Spec, cleanup: Cleanup) -> (Self, Vec<Command>) {
        let mut job = Self::new(spec);
        let mut commands = Vec::new();
        job.on_stop(cleanup, &mut commands);
        (job, commands)
    }

    fn new(spec: Spec) -> Self {
        Self {
            ledger: Ledger::new(&spec),
            contact: FirstContact::new(spec.tempo.first_contact),
            attempt: spec.mandate.attempts_before,
            spec,
            phase: Phase::Asking,
            listing: None,
            store: None,
            aside: BTreeSet::new(),
            passed: BTreeSet::new(),
            unheard: BTreeSet::new(),
            untold: BTreeSet::new(),
            mark: 0,
            vain: 0,
            plan: None,
            is_sketch: false,
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
            Phase::Discarding(cancels) | Phase::Withdrawing { cancels, .. } => cancels.until(),
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
            Phase::Withdrawn(cleanup) => Some(End::Withdrawn(cleanup)),
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

    /// Destinations that could not be told of its end: partial files may be left there.
    pub fn untold(&self) -> impl Iterator<Item = &str> {
        let nodes = self.spec.destinations.iter().map(|place| &*place.node);
        nodes.filter(|node| self.untold.contains(*node))
    }

    /// How far it is.
    pub fn course(&self) -> Course {
        match self.phase {
            Phase::Asking => Course::Asking,
            Phase::Resting { .. } | Phase::Claiming => Course::Resting,
            Phase::Preparing { .. } => Course::Preparing,
            Phase::Running(_) | Phase::Settling { .. } => Course::Running,
            Phase::Cancelling { .. } | Phase::Discarding(_) | Phase::Withdrawing { .. } => {
                Course::Ending
            }
            Phase::Withdrawn(_) | Phase::Over => Course::Over,
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

    /// What the source said there is, once it did.
    pub fn listing(&self) -> Option<&Listing> {
        self.listing.as_ref()
    }

    /// Bytes of all files that the source said there are.
    pub fn bytes(&self) -> u64 {
        self.listing
            .as_ref()
            .map_or(0, |listing| listing.found.bytes)
    }

    /// The plan of the first attempt; before that, one for all destinations, once it is known what there is.
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
            Answer::Cancelled {
                node,
                attempt,
                result,
            } => {
                if attempt == self.attempt {
                    self.on_cancelled(now, &node, &result, commands);
                }
            }
            Answer::Woken => self.on_woken(now, commands),
            Answer::Roster(roster) => self.on_roster(now, *roster, commands),
            Answer::Stop(cleanup) => self.on_stop(cleanup, commands),
        }
    }

    fn on_stat(
        &mut self,
        now: Duration,
        result: Result<StatResponse, Refusal>,
        commands: &mut Vec<Command>,
    ) {
        if !matches!(self.phase, Phase::Asking) {
            return;
        }
        let result = result.map_err(|refusal| self.contact.judge(now, refusal));
        match result.and_then(|found| self.unchanged(found)) {
            Ok(found) => {
                let node = self.spec.source.node.clone();
                self.contact.reached(&node);
                self.listing = Some(Listing { node, found });
                if self.attempt == self.spec.mandate.attempts_before {
                    self.vain = 0;
                }
                self.sketch();
                self.claim(commands);
            }
            // Whatever is wrong with that copy, others have it, and the store.
            Err(refusal) if self.store.is_some() => {
                tracing::info!(refusal.node, refusal.message, "its copy is not sent");
                self.put_aside();
                self.phase = Phase::Resting { until: now };
            }
            Err(refusal) => {
                let is_the_stores = is_of_the_store(&refusal.reason);
                if !is_the_stores {
                    self.ask_the_next();
                }
                let may_go_on = refusal.retriable && self.vain < self.spec.backoff_limit;
                if may_go_on || !is_the_stores && self.another_can_ask() {
                    self.vain += 1;
                    self.rest(now);
                    if !refusal.retriable {
                        // That node will not come to another answer; the next one may.
                        self.phase = Phase::Resting { until: now };
                    }
                } else {
                    self.ledger.destinations.fail_remaining(&refusal);
                    self.phase = Phase::Over;
                    if self.attempt > self.spec.mandate.attempts_before {
                        self.finish(commands);
                    }
                }
            }
        }
    }

    /// All attempts move the same bytes: what the source holds must be what it held before the first.
    fn unchanged(&self, found: StatResponse) -> Result<StatResponse, Refusal> {
        let before = self.listing.as_ref().map(|listing| &listing.found.state);
        if before.is_none_or(|before| *before == found.state) {
            return Ok(found);
        }
        let node = self.spec.source.node.clone();
        let (reason, what) = match &self.spec.object {
            Some(object) => ("ObjectChanged", &object.url),
            None => ("SourceChanged", &self.spec.source.path),
        };
        Err(Refusal {
            message: format!(
                "node {node}: {what} is no longer what it was before the first attempt: start a new job"
            ),
            node,
            reason: reason.to_owned(),
            retriable: false,
        })
    }

    fn rest(&mut self, now: Duration) {
        self.phase = Phase::Resting {
            until: now + self.backoff(),
        };
    }

    fn on_woken(&mut self, now: Duration, commands: &mut Vec<Command>) {
        match &self.phase {
            Phase::Resting { until } if now >= *until => {
                self.ask_the_store();
                if let Some(copy) = self.copy_to_send() {
                    self.send_files(copy);
                }
                self.contact.asked(&self.spec.source.node, now);
                self.phase = Phase::Asking;
                let stored = self.store.as_ref();
                let named = stored.map(|stored| stored.listing.found.manifest_digest.clone());
                commands.push(Command::Stat { named });
            }
            Phase::Settling { until, .. } if now >= *until => self.settled(now, commands),
            _ => self.tell_again(now, commands),
        }
    }

    /// All that were in the attempt are Verified; who has come since gets the next one.
    fn settled(&mut self, now: Duration, commands: &mut Vec<Command>) {
        if self.ledger.destinations.remaining().is_empty() {
            self.finish(commands);
        } else {
            self.next_attempt(now, Blame::None, commands);
        }
    }

    /// Whoever has become a destination since gets a copy, too, unless the end has begun.
    fn on_roster(&mut self, now: Duration, roster: Roster, commands: &mut Vec<Command>) {
        if self.course() == Course::Ending && !matches!(self.phase, Phase::Cancelling { .. })
            || self.is_over()
        {
            return;
        }
        let is_other = self.spec.topology != roster.topology;
        self.spec.topology = roster.topology;
        self.spec.payload_share = roster.payload_share;
        if self.is_sketch && is_other {
            // It is of what was known before.
            self.plan = None;
            self.is_sketch = false;
        }
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
                Phase::Resting { until } if self.listing.is_some() => *until = now,
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

    fn next_attempt(&mut self, now: Duration, blame: Blame, commands: &mut Vec<Command>) {
        if self.ledger.destinations.gained() > self.mark {
            self.vain = 0;
        } else if blame != Blame::Copy {
            self.vain += 1;
        }
        if self.vain > self.spec.backoff_limit && blame == Blame::None {
            self.ledger.destinations.give_up();
        }
        if self.ledger.destinations.remaining().is_empty() {
            self.finish(commands);
        } else {
            self.rest(now);
        }
    }

    fn backoff(&self) -> Duration {
        self.rest_of(self.vain)
    }

    /// After so many times in vain.
    fn rest_of(&self, times: u32) -> Duration {
        let Tempo {
            backoff, doublings, ..
        } = self.spec.tempo;
        backoff * 2u32.pow(times.saturating_sub(1).min(doublings))
    }
}

#[cfg(test)]
mod tests;
