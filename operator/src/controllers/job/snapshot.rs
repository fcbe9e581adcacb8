//! What this process knows of a transfer that it runs, as plain data. Texts of agents are cut to what a status holds.

use std::{collections::VecDeque, time::Duration};

use weft_crds::{
    DestinationState, DestinationStatus, LinkInUse, ManifestSummary, PlanSummary, Strategy,
};
use weft_proto::agent::v1::{StatResponse, State};

use crate::controllers::condition::truncate;
use weft_transfer::{
    Destination, DestinationPhase, End, Failure, Transfer, TransferPhase, node_of,
};

/// With a sample a second, the rate is that of the last ten: a person looks at it.
const RATE_SAMPLES: usize = 11;

/// Of `status.manifest.notKept`: what the definition takes of it. Agents of today name four, of 18 bytes at most.
const NOT_KEPT_MAX: usize = 8;
const NOT_KEPT_BYTES_MAX: usize = 32;

/// A transfer as it is now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    /// The fabric that it is in.
    pub(crate) fabric: String,
    /// How far it is.
    pub(crate) phase: TransferPhase,
    /// Start was sent at least once.
    pub(crate) start_sent: bool,
    /// The newest attempt that has begun.
    pub(crate) attempt: u32,
    /// The number of the attempt that begins once this number is recorded in the status.
    pub(crate) unrecorded_attempt: Option<u32>,
    /// How it has ended, once it is over.
    pub(crate) end: Option<End>,
    /// The node that sends: the source's, the one that reads from a store, or one with a verified copy in its place.
    pub(crate) sender: String,
    /// Who reads, where the bytes come from a store.
    pub(crate) reader: Option<String>,
    /// What the source holds.
    pub(crate) manifest: Option<ManifestSummary>,
    /// The plan of this transfer's first attempt; before that, one for all destinations. Later attempts have plans of
    /// their own.
    pub(crate) plan: Option<PlanSummary>,
    /// What carries the packets.
    pub(crate) link: Option<LinkInUse>,
    /// All of them.
    pub(crate) destinations: Vec<DestinationStatus>,
    /// Every destination had the files before, and nothing was sent.
    pub(crate) was_there: bool,
    /// Nodes that have not confirmed its end: files of it may be left there.
    pub(crate) unconfirmed: Vec<String>,
    /// Verified bytes of all destinations.
    pub(crate) bytes: i64,
    /// What they will be.
    pub(crate) bytes_total: i64,
    /// Over all destinations.
    pub(crate) bytes_per_second: i64,
}

impl Snapshot {
    /// Of a transfer.
    pub(crate) fn of(transfer: &Transfer, fabric: &str, bytes_per_second: u64) -> Self {
        // A later attempt finds what an earlier one has brought.
        let was_there =
            |destination: &Destination| transfer.attempt() == 1 && destination.was_there();
        let shown = |destination: &Destination| {
            let stalled = transfer.stalled(&destination.location.node);
            destination_status(destination, was_there(destination), stalled.as_ref())
        };
        let destinations: Vec<DestinationStatus> = transfer.destinations().map(shown).collect();
        let count = u64::try_from(destinations.len()).unwrap_or(u64::MAX);
        let was_there = transfer.destinations().all(was_there);
        let (link, reason) = transfer.link();
        let digest = Some(truncate(transfer.digest())).filter(|digest| !digest.is_empty());
        let manifest = transfer.listing().map(|listing| ManifestSummary {
            bytes: signed(transfer.bytes()),
            digest: digest.clone(),
            ..manifest_summary(&listing.stat)
        });
        Self {
            fabric: fabric.to_owned(),
            phase: transfer.phase(),
            start_sent: transfer.started().is_some(),
            attempt: transfer.attempt(),
            unrecorded_attempt: transfer.unrecorded_attempt(),
            end: transfer.end(),
            sender: transfer.spec().source.node.clone(),
            reader: (transfer.spec().object.as_ref()).map(|_| transfer.spec().source.node.clone()),
            manifest,
            plan: transfer.plan().map(|plan| PlanSummary {
                strategy: match plan.strategy {
                    weft_planner::Strategy::Auto => Strategy::Auto,
                    weft_planner::Strategy::Direct => Strategy::Direct,
                    weft_planner::Strategy::Chain => Strategy::Chain,
                    weft_planner::Strategy::Binomial => Strategy::Binomial,
                },
                estimate_seconds: (plan.estimate_seconds * 1000.0).round() / 1000.0,
                bottleneck: Some(format!(
                    "{} at {} Mbit/s",
                    plan.bottleneck.name,
                    plan.bottleneck.rate_bps / 1_000_000
                )),
            }),
            link: (!link.is_empty()).then(|| LinkInUse {
                name: truncate(&link),
                reason: truncate(&reason),
            }),
            destinations,
            was_there,
            unconfirmed: transfer
                .unconfirmed()
                .map(|name| node_of(name).to_owned())
                .collect(),
            bytes: signed(transfer.bytes_verified()),
            bytes_total: signed(transfer.bytes().saturating_mul(count)),
            bytes_per_second: signed(bytes_per_second),
        }
    }
}

/// What a source holds, as its agent says.
pub(crate) fn manifest_summary(stat: &StatResponse) -> ManifestSummary {
    let not_kept = stat.not_kept.iter().take(NOT_KEPT_MAX);
    let known = not_kept.filter(|name| name.len() <= NOT_KEPT_BYTES_MAX);
    ManifestSummary {
        files: u32::try_from(stat.files).unwrap_or(u32::MAX),
        bytes: signed(stat.bytes),
        digest: None,
        not_kept: known.cloned().collect(),
    }
}

/// `was_there`: it had the whole copy before the job. `stalled`: why it gets no more bytes in the attempt under way.
fn destination_status(
    destination: &Destination,
    was_there: bool,
    stalled: Option<&Failure>,
) -> DestinationStatus {
    let (state, failure) = match &destination.phase {
        DestinationPhase::Verified { .. } => (DestinationState::Verified, None),
        DestinationPhase::Failed(failure) => (DestinationState::Failed, Some(failure)),
        DestinationPhase::Retrying(failure) => (DestinationState::Pending, Some(failure)),
        DestinationPhase::InProgress if stalled.is_some() => (DestinationState::Pending, stalled),
        DestinationPhase::InProgress => {
            let state = match destination.progress.state() {
                State::Transferring => DestinationState::Transferring,
                State::Verifying | State::Verified => DestinationState::Verifying,
                State::Unspecified | State::Pending | State::Preparing | State::Failed => {
                    DestinationState::Pending
                }
            };
            (state, None)
        }
    };
    let is_verified = state == DestinationState::Verified;
    DestinationStatus {
        node: node_of(&destination.location.node).to_owned(),
        state,
        reason: failure
            .map(|failure| truncate(&failure.reason))
            .unwrap_or_default(),
        message: match failure {
            Some(failure) => truncate(&failure.message),
            None if was_there && destination.progress.message.is_empty() => {
                "it was there already; nothing was sent".to_owned()
            }
            // How the copy has appeared.
            None if is_verified => truncate(&destination.progress.message),
            None => String::new(),
        },
        bytes: signed(destination.bytes),
        digest: if is_verified {
            truncate(&destination.progress.digest)
        } else {
            String::new()
        },
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// How fast it goes, over the last [`RATE_SAMPLES`] samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct RateMeter {
    samples: VecDeque<(Duration, u64)>,
}

impl RateMeter {
    /// So many bytes are there now; gives bytes per second.
    pub(crate) fn sample(&mut self, now: Duration, bytes: u64) -> u64 {
        self.samples.push_back((now, bytes));
        if self.samples.len() > RATE_SAMPLES {
            self.samples.pop_front();
        }
        let (since, before) = self.samples.front().copied().unwrap_or_default();
        let millis = now.saturating_sub(since).as_millis().max(1);
        let moved = u128::from(bytes.saturating_sub(before)) * 1000;
        u64::try_from(moved / millis).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use weft_proto::agent::v1::ProgressResponse;

    use super::*;

    #[test]
    fn a_verified_destination_has_the_message_that_its_agent_gives() {
        let location = weft_transfer::NodeLocation {
            node: "n1".to_owned(),
            root: "models".to_owned(),
            path: "m".to_owned(),
        };
        let report = ProgressResponse {
            message: "file by file".to_owned(),
            ..ProgressResponse::default()
        };
        let shown = |phase| {
            let destination = Destination {
                location: location.clone(),
                phase,
                progress: report.clone(),
                bytes: 0,
                received: 0,
            };
            let shown = destination_status(&destination, false, None);
            (shown.reason, shown.message)
        };
        let after = Duration::ZERO;
        let verified = shown(DestinationPhase::Verified { since_start: after });
        assert_eq!(verified, (String::new(), "file by file".to_owned()));
        let mut destination = Destination {
            location: location.clone(),
            phase: DestinationPhase::Verified { since_start: after },
            progress: ProgressResponse::default(),
            bytes: 10,
            received: 0,
        };
        let was_there = destination_status(&destination, true, None);
        assert_eq!(was_there.message, "it was there already; nothing was sent");
        assert_eq!(shown(DestinationPhase::InProgress), Default::default());
        // Its agent has died while others go on.
        destination.phase = DestinationPhase::InProgress;
        destination.progress.state = State::Transferring.into();
        let dead = Failure {
            node: "n1".to_owned(),
            reason: "NodeUnreachable".to_owned(),
            message: "no answer".to_owned(),
            retriable: true,
        };
        let stalled = destination_status(&destination, false, Some(&dead));
        assert_eq!(
            (stalled.state, &*stalled.reason, &*stalled.message),
            (DestinationState::Pending, "NodeUnreachable", "no answer")
        );
        // An agent may say anything; the definition takes 2,048 characters.
        let failed = DestinationPhase::Failed(weft_transfer::Failure {
            node: "n1".to_owned(),
            reason: "R".repeat(100_000),
            message: "m".repeat(100_000),
            retriable: false,
        });
        let (reason, message) = shown(failed);
        assert!(reason.len() < 2048 && message.len() < 2048);
    }

    #[test]
    fn what_copies_do_not_have_is_passed_on_as_far_as_the_definition_takes_it() {
        let mut stat = StatResponse {
            files: 3,
            bytes: 7,
            not_kept: vec!["Owner".to_owned(), "N".repeat(100_000)],
            ..StatResponse::default()
        };
        let summary = manifest_summary(&stat);
        assert_eq!((summary.files, summary.bytes), (3, 7));
        assert_eq!(summary.not_kept, ["Owner"]);
        stat.not_kept = vec!["Owner".to_owned(); 100_000];
        assert_eq!(manifest_summary(&stat).not_kept.len(), NOT_KEPT_MAX);
    }

    #[test]
    fn a_rate_is_that_of_the_last_ten_seconds() {
        let mut meter = RateMeter::default();
        let second = Duration::from_secs;
        assert_eq!(meter.sample(second(0), 0), 0);
        let mut bytes = 0;
        for i in 1..=10 {
            bytes += 100;
            assert_eq!(meter.sample(second(i), bytes), 100);
        }
        // It stands still.
        for i in 11..=20 {
            meter.sample(second(i), bytes);
        }
        assert_eq!(meter.sample(second(21), bytes), 0);
    }
}
