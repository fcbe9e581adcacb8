//! A transfer from Stat to its end, as a pure step from an input to commands.

mod attempts;
mod ending;
mod planning;
mod sender;
mod state;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use backon::BackoffBuilder as _;
use weft_planner::Plan;
use weft_proto::agent::v1::{ProgressResponse, StatResponse};

use self::{sender::PausedObject, state::State};
use crate::{
    command::{Call, Cleanup, Command, Input},
    destinations::{Destination, DestinationStates},
    failure::Failure,
    object::is_store_error,
    phase::{End, TransferPhase},
    spec::{DestinationsUpdate, NodeLocation, SourceListing, Spec, node_of},
};

/// One transfer: what a TransferJob, or `weft play`, moves. The crate's documentation describes its course.
///
/// [`Transfer::begin`] gives the first commands; every input goes into [`Transfer::step`], in any order, also
/// late and repeated ones. When [`Transfer::wake_at`] is reached, [`Input::Woken`] is due. Times are
/// since the transfer began.
#[derive(Debug, Clone)]
pub struct Transfer {
    spec: Arc<Spec>,
    state: State,
    /// Of the newest Stat that succeeded.
    listing: Option<SourceListing>,
    /// The object, while a verified copy of it is sent instead.
    paused_object: Option<PausedObject>,
    /// Nodes that could not read the object, or send their copy of it, since an attempt last made progress.
    failed_senders: BTreeSet<String>,
    /// The node to fetch the manifest from, after a destination could not use what the source has sent.
    other_holder: Option<String>,
    destinations: DestinationStates,
    /// Nodes whose agents a call of this transfer has reached: they may have its files.
    reached: BTreeSet<String>,
    /// Nodes that were destinations, and are none any more.
    departed: BTreeSet<String>,
    /// Nodes that have not confirmed that the transfer ended.
    unconfirmed: BTreeSet<String>,
    /// The newest attempt of the job; before this transfer's first, that of the last transfer before it (0: none).
    attempt: u32,
    /// The progress_mark of the destinations when the attempt began.
    progress_before: u64,
    /// Attempts, and Stats that failed, in a row without progress.
    failures: u32,
    /// Those of them that do not count towards the backoff limit.
    exempt_failures: u32,
    /// Nodes whose agents work with an earlier configuration.
    configuration_pending: BTreeSet<String>,
    /// The first attempt's plan; before that, one for all destinations.
    plan: Option<Plan>,
    /// When the first Start was sent.
    started: Option<Duration>,
    /// The time of the newest input.
    now: Duration,
    /// The commands that follow from it, until `advance` hands them out.
    commands: Vec<Command>,
}

impl Transfer {
    /// A new transfer, and what to do first.
    pub fn begin(spec: Spec) -> (Self, Vec<Command>) {
        let list = Command::Stat {
            manifest_digest: None,
        };
        (Self::new(spec), vec![list])
    }

    /// A transfer that an earlier operator began and that is cancelled.
    pub fn cancelled(spec: Spec, cleanup: Cleanup) -> (Self, Vec<Command>) {
        let mut transfer = Self::new(spec);
        transfer.on_cancel(cleanup);
        let commands = std::mem::take(&mut transfer.commands);
        (transfer, commands)
    }

    fn new(spec: Spec) -> Self {
        let mut destinations = DestinationStates::default();
        for location in &spec.destinations {
            destinations.add(location);
        }
        Self {
            attempt: spec.leader.attempts_before,
            spec: Arc::new(spec),
            state: State::Listing,
            listing: None,
            paused_object: None,
            failed_senders: BTreeSet::new(),
            other_holder: None,
            destinations,
            reached: BTreeSet::new(),
            departed: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            progress_before: 0,
            failures: 0,
            exempt_failures: 0,
            configuration_pending: BTreeSet::new(),
            plan: None,
            started: None,
            now: Duration::ZERO,
            commands: Vec::new(),
        }
    }

    /// Takes an input; gives the next state and what to do now.
    #[must_use]
    pub fn step(mut self, now: Duration, input: Input) -> (Self, Vec<Command>) {
        let commands = self.advance(now, input);
        (self, commands)
    }

    /// The same in place: a transfer to many nodes takes many inputs a second.
    #[must_use]
    pub(crate) fn advance(&mut self, now: Duration, input: Input) -> Vec<Command> {
        self.now = now;
        self.handle_input(input);
        std::mem::take(&mut self.commands)
    }

    /// When [`Input::Woken`] is due, if it is.
    pub fn wake_at(&self) -> Option<Duration> {
        match &self.state {
            State::Waiting { until } | State::AwaitingFinalReports { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Nothing will change any more.
    pub fn is_over(&self) -> bool {
        self.end().is_some()
    }

    /// Every destination is Verified, and the source reports no fault.
    pub fn is_complete(&self) -> bool {
        self.end() == Some(End::Complete)
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<End> {
        match self.state {
            State::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Destinations that have not confirmed its end: partial files may be left there.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &str> {
        let locations = self.spec.destinations.iter();
        let nodes = locations.map(|location| &*location.node);
        let nodes = nodes.chain(self.departed.iter().map(String::as_str));
        nodes.filter(|node| self.unconfirmed.contains(*node))
    }

    /// How far it is.
    pub fn phase(&self) -> TransferPhase {
        match self.state {
            State::Listing => TransferPhase::Listing,
            State::EndingAttempt { .. } | State::Waiting { .. } | State::RecordingAttempt => {
                TransferPhase::BetweenAttempts
            }
            State::Preparing { .. } => TransferPhase::Preparing,
            State::Running(_) | State::AwaitingFinalReports { .. } => TransferPhase::Running,
            State::Ending { .. } => TransferPhase::Ending,
            State::Over(_) => TransferPhase::Over,
        }
    }

    /// The number of the attempt that waits until it is recorded.
    pub fn unrecorded_attempt(&self) -> Option<u32> {
        matches!(self.state, State::RecordingAttempt).then_some(self.attempt + 1)
    }

    /// What the transfer moves now, and from where: for an object, the source changes with the reader.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(crate) fn shared_spec(&self) -> Arc<Spec> {
        Arc::clone(&self.spec)
    }

    /// The answer to the newest Stat that succeeded.
    pub fn listing(&self) -> Option<&SourceListing> {
        self.listing.as_ref()
    }

    /// Bytes of all files that the source said there are.
    pub fn bytes(&self) -> u64 {
        self.listing
            .as_ref()
            .map_or(0, |listing| listing.stat.bytes)
    }

    /// The plan of the first attempt; before that, one for all destinations, once it is known what there is.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The number of the newest attempt that has begun; before this transfer's first, that of the last attempt that an
    /// earlier transfer of the job made.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the first Start was sent.
    pub fn started(&self) -> Option<Duration> {
        self.started
    }

    /// Of everything, as the source says; where it sends nothing, as its own copy says.
    pub fn digest(&self) -> &str {
        self.destinations.digest()
    }

    /// The source's newest progress; all zero before its first of this attempt.
    pub fn source_progress(&self) -> &ProgressResponse {
        &self.destinations.source
    }

    /// The link in use and why; empty before an agent has said. Several where nodes receive over different ones.
    pub fn link(&self) -> (String, String) {
        self.destinations.link()
    }

    /// All destinations, in the order of the spec.
    pub fn destinations(&self) -> impl Iterator<Item = &Destination> {
        let locations = self.spec.destinations.iter();
        locations.filter_map(|location| self.destinations.get(&location.node))
    }

    /// Chunks sent, resent ones included, and of these the resent ones; all nodes and attempts.
    pub fn chunks(&self) -> (u64, u64) {
        self.destinations.chunks()
    }

    /// Bytes that are verified at the destinations.
    pub fn bytes_verified(&self) -> u64 {
        self.destinations.bytes()
    }

    /// Bytes that destinations have got over the network: without those that they had before, and without the copy
    /// that the source's node makes for itself.
    pub fn bytes_received(&self) -> u64 {
        self.destinations.received()
    }

    fn handle_input(&mut self, input: Input) {
        match input {
            Input::Stat(result) => self.on_stat(result),
            Input::AttemptRecorded { attempt } => {
                if self.unrecorded_attempt() == Some(attempt) {
                    self.send_prepares();
                }
            }
            Input::Called {
                node,
                attempt,
                call,
                result,
            } => {
                self.note_reached(&node, &result);
                if attempt != self.attempt {
                    return;
                }
                match call {
                    Call::Prepare => self.on_prepared(&node, result),
                    Call::Start(_) => self.on_started(&node, result),
                    Call::WatchProgress => self.on_progress_ended(&node, result),
                    Call::Cancel { cleanup, .. } => {
                        self.on_cancelled(&node, cleanup, &result);
                    }
                }
            }
            Input::Progress {
                node,
                attempt,
                progress,
            } => {
                self.reached.insert(node.clone());
                self.on_progress(&node, attempt, *progress);
            }
            Input::Woken => self.on_woken(),
            Input::Destinations(update) => self.on_destinations(*update),
            Input::Cancel(cleanup) => self.on_cancel(cleanup),
        }
    }

    /// Notes whether a call has reached the agent of a node. A failure may be of another node.
    fn note_reached(&mut self, node: &str, result: &Result<(), Failure>) {
        let is_reached = match result {
            Ok(()) => true,
            Err(failure) => node_of(&failure.node) == node_of(node) && !failure.never_connected(),
        };
        if is_reached {
            self.reached.insert(node.to_owned());
        }
    }

    /// Whether files of the job may be at a node. Another process may have made the earlier attempts.
    fn may_have_files(&self, node: &str) -> bool {
        self.spec.leader.attempts_before > 0 || self.reached.contains(node)
    }

    fn on_stat(&mut self, result: Result<StatResponse, Failure>) {
        if !matches!(self.state, State::Listing) {
            return;
        }
        match result.and_then(|stat| self.unchanged(stat)) {
            Ok(stat) => {
                // Once an attempt has begun, only its result resets the count of failures, not a Stat.
                if self.attempt == self.spec.leader.attempts_before {
                    (self.failures, self.exempt_failures) = (0, 0);
                }
                let holder = self.other_holder.take();
                self.listing = Some(SourceListing {
                    holder: holder.unwrap_or_else(|| self.spec.source.node.clone()),
                    stat,
                });
                self.plan_for_all();
                self.state = State::RecordingAttempt;
                self.commands.push(Command::RecordAttempt {
                    attempt: self.attempt + 1,
                });
            }
            // Whatever is wrong with this copy, other nodes have copies, and the store has the object.
            Err(failure) if self.paused_object.is_some() => {
                tracing::info!(failure.node, failure.message, "its copy is not sent");
                self.failed_senders.insert(self.spec.source.node.clone());
                self.state = State::Waiting { until: self.now };
            }
            Err(failure) => self.on_no_listing(&failure),
        }
    }

    fn on_no_listing(&mut self, failure: &Failure) {
        let mut is_another_left = false;
        if !is_store_error(&failure.reason) {
            self.failed_senders.insert(self.spec.source.node.clone());
            is_another_left = self.is_reader_left(|_| true);
            self.use_next_reader();
        }
        let is_given_up = self.listing.is_none()
            && self.failures > 0
            && self.spec.timing.gives_up_unreached
            && failure.never_connected();
        let is_retriable = failure.retriable && !is_given_up;
        self.count_failure(self.is_exempt(failure));
        if is_another_left || is_retriable && !self.is_limit_exceeded() {
            // The same node would answer the same; the next one may answer something else.
            let wait = match is_retriable {
                true => self.backoff(),
                false => Duration::ZERO,
            };
            // Those that have no reason of their own wait for this.
            let mut waiting = self.destinations.remaining();
            waiting.retain(|node| self.destinations.retrying(node).is_none());
            for node in waiting {
                let cause = Failure {
                    retriable: true,
                    ..failure.clone()
                };
                self.destinations.record_failure(&node, cause);
            }
            self.state = State::Waiting {
                until: self.now + wait,
            };
        } else {
            self.destinations.fail_remaining(failure);
            self.finish();
        }
    }

    /// All attempts move the same bytes: what the source holds must be what it held before the first.
    fn unchanged(&self, stat: StatResponse) -> Result<StatResponse, Failure> {
        let before = self
            .listing
            .as_ref()
            .map(|listing| &listing.stat.fingerprint);
        if before.is_none_or(|before| *before == stat.fingerprint) {
            return Ok(stat);
        }
        let node = self.spec.source.node.clone();
        let (reason, what) = match &self.spec.object {
            Some(object) => ("ObjectChanged", &object.url),
            None => ("SourceChanged", &self.spec.source.path),
        };
        Err(Failure {
            message: format!(
                "node {node}: {what} is no longer what it was before the first attempt: start a new job"
            ),
            node,
            reason: reason.to_owned(),
            retriable: false,
        })
    }

    fn on_woken(&mut self) {
        match &self.state {
            State::Waiting { until } if self.now >= *until => {
                self.choose_copy();
                self.state = State::Listing;
                let paused = self.paused_object.as_ref();
                self.commands.push(Command::Stat {
                    manifest_digest: paused.map(PausedObject::manifest_digest),
                });
            }
            State::AwaitingFinalReports { until, .. } if self.now >= *until => {
                self.after_final_reports();
            }
            _ => {}
        }
    }

    /// New destinations get a copy, too, and those that are gone are not waited for, unless the end has begun.
    fn on_destinations(&mut self, update: DestinationsUpdate) {
        if matches!(self.state, State::Ending { .. } | State::Over(_)) {
            return;
        }
        let has_departed = self.remove_departed(&update.destinations);
        self.configuration_pending = update.configuration_pending;
        let spec = Arc::make_mut(&mut self.spec);
        let mut is_other = has_departed || spec.topology != update.topology;
        spec.topology = update.topology;
        spec.payload_share = update.payload_share;
        for location in update.destinations {
            if !self.destinations.add(&location) {
                continue;
            }
            is_other = true;
            let node = location.node.clone();
            self.departed.remove(&node);
            spec.destinations.push(location);
            match &mut self.state {
                State::Preparing { waiting, .. } => {
                    waiting.insert(node.clone());
                    self.commands.push(Command::Call {
                        node,
                        attempt: self.attempt,
                        call: Call::Prepare,
                    });
                }
                // Earlier failures were those of other destinations: the new one need not wait for the backoff.
                State::Waiting { until } if self.listing.is_some() => *until = self.now,
                _ => {}
            }
        }
        if is_other && self.listing.is_some() {
            self.plan_for_all();
        }
        if has_departed {
            self.go_on_without_departed();
        }
    }

    /// Takes out destinations that the transfer has no more; whether there are any. A verified copy stays one.
    fn remove_departed(&mut self, wanted: &[NodeLocation]) -> bool {
        let wanted: BTreeSet<&str> = wanted.iter().map(|location| &*location.node).collect();
        let nodes = self
            .destinations()
            .filter(|destination| !destination.is_verified());
        let nodes = nodes.map(|destination| destination.location.node.clone());
        let departed: Vec<String> = nodes.filter(|node| !wanted.contains(&**node)).collect();
        for node in &departed {
            tracing::info!(node, "it is no destination any more");
            let bytes = self.destinations.remove(node);
            self.progress_before = self.progress_before.saturating_sub(bytes);
            let spec = Arc::make_mut(&mut self.spec);
            spec.destinations.retain(|location| location.node != *node);
            let paused_object = self.paused_object.iter_mut().map(PausedObject::object);
            for object in spec.object.iter_mut().chain(paused_object) {
                object.readers.retain(|reader| reader != node);
            }
            self.departed.insert(node.clone());
        }
        !departed.is_empty()
    }

    /// Goes on with what waited for destinations that the transfer has no more.
    fn go_on_without_departed(&mut self) {
        let is_done = self.destinations.remaining().is_empty();
        match &mut self.state {
            State::Preparing { waiting, ready } => {
                waiting.retain(|node| !self.departed.contains(node));
                // One that comes back is prepared again.
                ready.retain(|node| !self.departed.contains(node));
                if waiting.is_empty() {
                    self.send_starts();
                }
            }
            State::Running(_) => self.proceed(),
            State::Listing | State::Waiting { .. } | State::RecordingAttempt if is_done => {
                self.finish();
            }
            _ => {}
        }
    }

    /// An attempt, or a Stat, has made no progress.
    fn count_failure(&mut self, is_exempt: bool) {
        self.failures += 1;
        self.exempt_failures += u32::from(is_exempt);
    }

    /// Another configuration of the agent is on its way, and may take the reason away.
    fn is_exempt(&self, failure: &Failure) -> bool {
        failure.is_configuration_error(&self.configuration_pending)
    }

    fn is_limit_exceeded(&self) -> bool {
        self.failures > self.spec.backoff_limit + self.exempt_failures
    }

    fn backoff(&self) -> Duration {
        let timing = self.spec.timing;
        let times = usize::try_from(self.failures.max(1)).unwrap_or(usize::MAX);
        let last = timing.backoffs(times).build().last();
        last.unwrap_or(timing.backoff_max)
    }
}

#[cfg(test)]
mod tests;
