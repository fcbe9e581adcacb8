//! What is said of a job.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use weft_crds::{
    Counts, DESTINATIONS_SHOWN, DeletionPolicy, DestinationState, DestinationStatus, Phase,
    TransferJob, TransferJobStatus,
};
use weft_transfer::{End, TransferPhase};

use crate::controllers::{
    cache::uid,
    condition::{self, ConditionUpdate, listed, truncate, whole_seconds},
    fabric::decide::model_label,
    job::{
        job_side::destination_path,
        obstacle::{Obstacle, QUEUE_REASONS},
        snapshot::Snapshot,
    },
    request::Event,
};

/// The status of a job that cannot begin yet.
pub(crate) fn waiting_status(
    job: &TransferJob,
    obstacle: &Obstacle,
    now: Timestamp,
) -> TransferJobStatus {
    let mut status = carry_over(job);
    status.phase = Phase::Waiting;
    clear_rates(&mut status);
    status.message = truncate(&obstacle.message);
    resumed(&mut status, now);
    let planned = ConditionUpdate::new("Planned", false, &obstacle.reason, &status.message);
    set(&mut status, planned, now);
    if QUEUE_REASONS.contains(&&*obstacle.reason) {
        let queued = ConditionUpdate::new("Queued", true, &obstacle.reason, &status.message);
        set(&mut status, queued, now);
    } else {
        leave_queue(&mut status, &obstacle.reason, &obstacle.message, now);
    }
    status
}

/// It waits for no other job any more, if it ever did.
fn leave_queue(status: &mut TransferJobStatus, reason: &str, message: &str, now: Timestamp) {
    if condition::is_true(&status.conditions, "Queued") {
        set(
            status,
            ConditionUpdate::new("Queued", false, reason, &truncate(message)),
            now,
        );
    }
}

/// The status of a job that was stopped on request.
pub(crate) fn suspended_status(job: &TransferJob, now: Timestamp) -> TransferJobStatus {
    let mut status = carry_over(job);
    status.phase = Phase::Suspended;
    status.message =
        "spec.suspend is true: it goes on from where it is when that is false".to_owned();
    // The deadline counts anew when it goes on, as that of a batch Job does.
    status.start_time = None;
    clear_rates(&mut status);
    let message = status.message.clone();
    leave_queue(&mut status, "SpecSuspend", &message, now);
    let suspended = ConditionUpdate::new("Suspended", true, "SpecSuspend", &status.message);
    set(&mut status, suspended, now);
    status
}

/// The status of a job that is given up.
pub(crate) fn failed_status(
    job: &TransferJob,
    obstacle: &Obstacle,
    now: Timestamp,
) -> TransferJobStatus {
    let mut status = carry_over(job);
    fail(&mut status, &obstacle.reason, &obstacle.message, now);
    status
}

/// The status of a job that was not complete so many seconds after its start. `leftover_note` says what may be
/// left at nodes.
pub(crate) fn deadline_status(
    job: &TransferJob,
    snapshot: Option<&Snapshot>,
    seconds: i64,
    leftover_note: &str,
    now: Timestamp,
) -> TransferJobStatus {
    let mut status = carry_over(job);
    // A task that only cancels, after a failover, knows less than the written status.
    let knows =
        |snapshot: &&Snapshot| snapshot.manifest.is_some() && !status.destinations_truncated;
    if let Some(snapshot) = snapshot.filter(knows) {
        apply_snapshot(&mut status, job, snapshot);
    }
    let text = format!(
        "not complete {seconds} s after its start (spec.deadlineSeconds): {} of {} destinations are verified; \
         give it more time, or see why it is slow in status.destinations{leftover_note}",
        status.counts.verified, status.counts.total
    );
    fail(&mut status, "DeadlineExceeded", &text, now);
    status
}

fn fail(status: &mut TransferJobStatus, reason: &str, message: &str, now: Timestamp) {
    leave_queue(status, reason, message, now);
    resumed(status, now);
    status.phase = Phase::Failed;
    status.message = truncate(message);
    status.completion_time = Some(whole_seconds(now));
    clear_rates(status);
    let failed = ConditionUpdate::new("Failed", true, reason, &status.message);
    set(status, failed, now);
}

/// The status of a job that this process runs, or ran.
pub(crate) fn transfer_status(
    job: &TransferJob,
    snapshot: &Snapshot,
    now: Timestamp,
) -> TransferJobStatus {
    let mut status = carry_over(job);
    status.phase = match snapshot.phase {
        _ if snapshot.start_sent => Phase::Transferring,
        TransferPhase::Listing => Phase::Planning,
        _ if snapshot.manifest.is_some() => Phase::Preparing,
        _ => Phase::Planning,
    };
    status.start_time.get_or_insert_with(|| whole_seconds(now));
    status.fabric.clone_from(&snapshot.fabric);
    status.attempt = status
        .attempt
        .max(snapshot.unrecorded_attempt.unwrap_or(snapshot.attempt));
    apply_snapshot(&mut status, job, snapshot);
    resumed(&mut status, now);
    leave_queue(&mut status, "Begun", "the job has begun", now);
    if let Some(plan) = &snapshot.plan {
        let text = format!(
            "{:?} to {} nodes should take {} s; bottleneck: {}",
            plan.strategy,
            status.counts.total,
            plan.estimate_seconds,
            plan.bottleneck.as_deref().unwrap_or("none")
        );
        set(
            &mut status,
            ConditionUpdate::new("Planned", true, "Planned", &text),
            now,
        );
    }
    match snapshot.end {
        Some(End::Complete) => complete(&mut status, snapshot.was_there, now),
        Some(End::Failed) => {
            let failed = snapshot
                .destinations
                .iter()
                .find(|d| d.state == DestinationState::Failed);
            let (reason, cause) = failed
                .map_or(("TransferFailed", "the source reported a failure"), |d| {
                    (&*d.reason, &*d.message)
                });
            let text = format!(
                "{} of {} destinations failed, {} have a verified copy: {cause}",
                status.counts.failed, status.counts.total, status.counts.verified
            );
            fail(&mut status, reason, &text, now);
        }
        Some(End::Cancelled(_)) | None => {}
    }
    status
}

/// The same for a query, with every destination.
pub(crate) fn live_status(
    job: &TransferJob,
    snapshot: &Snapshot,
    now: Timestamp,
) -> TransferJobStatus {
    let (destinations, _) = merge_with_written(&carry_over(job), snapshot);
    TransferJobStatus {
        destinations,
        destinations_truncated: false,
        ..transfer_status(job, snapshot, now)
    }
}

fn complete(status: &mut TransferJobStatus, was_there: bool, now: Timestamp) {
    status.phase = Phase::Complete;
    status.completion_time = Some(whole_seconds(now));
    status.message = String::new();
    clear_rates(status);
    status.progress = progress(status.bytes, status.bytes_total);
    let digest = status
        .manifest
        .as_ref()
        .and_then(|manifest| manifest.digest.as_deref());
    let text = format!(
        "{} of {} destinations have a verified copy, digest {}{}",
        status.counts.verified,
        status.counts.total,
        digest.unwrap_or("unknown"),
        match was_there {
            true => "; it was there already, and nothing was sent",
            false => "",
        }
    );
    let reason = if was_there {
        "AlreadyThere"
    } else {
        "Verified"
    };
    set(
        status,
        ConditionUpdate::new("Complete", true, reason, &text),
        now,
    );
}

/// Says whether nodes can have the label of a job that is over, if that is another than what is written. Which nodes cannot
/// is written once with each reason, for they change often.
pub(crate) fn update_labelled_condition(
    job: &TransferJob,
    obstacle: Option<&Obstacle>,
    now: Timestamp,
) -> Option<TransferJobStatus> {
    let mut status = carry_over(job);
    let conditions = status.conditions.iter();
    let written =
        conditions.filter(|condition| condition.type_ == "Labelled" && condition.status == "False");
    let written = written.map(|condition| &*condition.reason).next();
    if written == obstacle.map(|obstacle| &*obstacle.reason) {
        return None;
    }
    let update = match obstacle {
        Some(obstacle) => ConditionUpdate::new(
            "Labelled",
            false,
            &obstacle.reason,
            &truncate(&obstacle.message),
        ),
        None => ConditionUpdate::new(
            "Labelled",
            true,
            "LabelsWritten",
            "the nodes with a verified copy have the label status.nodeLabel",
        ),
    };
    set(&mut status, update, now);
    Some(status)
}

/// Of a transfer that goes on with a job, after a failover, a suspension or a crash: keeps the written status of a
/// destination until its agent reports.
fn merge_with_written(
    old: &TransferJobStatus,
    snapshot: &Snapshot,
) -> (Vec<DestinationStatus>, i64) {
    let known: BTreeMap<&str, &DestinationStatus> = old
        .destinations
        .iter()
        .map(|destination| (destination.node.as_str(), destination))
        .collect();
    let (mut is_any_unknown, mut unlisted) = (false, 0i64);
    let merged = |destination: &DestinationStatus| {
        let has_no_report = destination.state == DestinationState::Pending
            && destination.bytes == 0
            && destination.reason.is_empty();
        match known.get(destination.node.as_str()) {
            Some(written) if has_no_report && written.state != DestinationState::Failed => {
                (*written).clone()
            }
            written => {
                is_any_unknown |= has_no_report && written.is_none();
                unlisted += if written.is_none() {
                    destination.bytes
                } else {
                    0
                };
                destination.clone()
            }
        }
    };
    let destinations: Vec<DestinationStatus> = snapshot.destinations.iter().map(merged).collect();
    // Of those that the status had no room for, only the sum is known. Some may have reported again.
    let bytes_of = |all: &[DestinationStatus]| all.iter().map(|one| one.bytes).sum::<i64>();
    let unlisted_before = old.bytes.saturating_sub(bytes_of(&old.destinations));
    let missing = match is_any_unknown && old.destinations_truncated {
        true => unlisted_before.saturating_sub(unlisted).max(0),
        false => 0,
    };
    let more = bytes_of(&destinations).saturating_sub(bytes_of(&snapshot.destinations));
    let bytes = snapshot.bytes.saturating_add(more).saturating_add(missing);
    (destinations, bytes)
}

fn apply_snapshot(status: &mut TransferJobStatus, job: &TransferJob, snapshot: &Snapshot) {
    let (destinations, verified_bytes) = merge_with_written(status, snapshot);
    let in_state = |state| {
        let count = destinations.iter().filter(|d| d.state == state).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    };
    status.counts = Counts {
        total: u32::try_from(destinations.len()).unwrap_or(u32::MAX),
        verified: in_state(DestinationState::Verified),
        failed: in_state(DestinationState::Failed),
    };
    // What the source has not been asked yet, it may have said to an earlier operator.
    if snapshot.manifest.is_some() {
        status.bytes_total = snapshot.bytes_total;
    }
    status.bytes = if status.bytes_total > 0 {
        verified_bytes.min(status.bytes_total)
    } else {
        verified_bytes
    };
    status.bytes_per_second = snapshot.bytes_per_second;
    let remaining = status.bytes_total.saturating_sub(status.bytes).max(0);
    let rate = snapshot.bytes_per_second;
    status.eta_seconds = (rate > 0).then(|| remaining / rate + i64::from(remaining % rate != 0));
    status.manifest = snapshot.manifest.clone().or(status.manifest.take());
    status.progress = if status.manifest.is_some() {
        progress(status.bytes, status.bytes_total)
    } else {
        String::new()
    };
    status.rate = if rate > 0 {
        format!("{}/s", bytes(rate))
    } else {
        String::new()
    };
    status.eta = status.eta_seconds.map(duration).unwrap_or_default();
    if let Some(reader) = &snapshot.reader {
        status.reader.clone_from(reader);
    }
    status.plan = snapshot.plan.clone().or(status.plan.take());
    status.link = snapshot.link.clone().or(status.link.take());
    let trouble = snapshot.destinations.iter().find(|d| !d.reason.is_empty());
    let mut digests = destinations.iter().map(|destination| &destination.digest);
    if let Some(digest) = digests.find(|digest| !digest.is_empty()) {
        let (key, value) = model_label(
            &job.namespace().unwrap_or_default(),
            &job.name_any(),
            digest,
        );
        status.node_label = format!("{key}={value}");
    }
    status.message = trouble.map(|d| d.message.clone()).unwrap_or_default();
    let mut order: Vec<&DestinationStatus> = destinations.iter().collect();
    order.sort_by_key(|d| (d.state != DestinationState::Failed, d.bytes, &d.node));
    status.destinations_truncated = order.len() > DESTINATIONS_SHOWN;
    let shown = order.into_iter().take(DESTINATIONS_SHOWN);
    status.destinations = shown.cloned().collect();
}

fn carry_over(job: &TransferJob) -> TransferJobStatus {
    TransferJobStatus {
        observed_generation: job.metadata.generation.unwrap_or_default(),
        ..job.status.clone().unwrap_or_default()
    }
}

/// Nothing moves any more.
fn clear_rates(status: &mut TransferJobStatus) {
    status.bytes_per_second = 0;
    status.rate = String::new();
    status.eta_seconds = None;
    status.eta = String::new();
}

/// It is not suspended, if it ever was.
fn resumed(status: &mut TransferJobStatus, now: Timestamp) {
    if condition::is_true(&status.conditions, "Suspended") {
        set(
            status,
            ConditionUpdate::new("Suspended", false, "Resumed", "spec.suspend is false"),
            now,
        );
    }
}

fn set(status: &mut TransferJobStatus, update: ConditionUpdate, now: Timestamp) {
    condition::set(
        &mut status.conditions,
        update,
        status.observed_generation,
        now,
    );
}

/// What may be left at nodes that have not confirmed a job's end.
pub(crate) fn left_behind(job: &TransferJob, nodes: &[String]) -> Option<Event> {
    if nodes.is_empty() {
        return None;
    }
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let (root, path) = destination_path(job);
    let copies = match job.spec.deletion_policy {
        DeletionPolicy::Retain => "",
        DeletionPolicy::Delete => " and its copies",
    };
    let text = format!(
        "{} did not confirm that the job's files are removed: the agent was not reached, or could not remove them (its \
         log says why); what had arrived{copies} may be left: files .weft-{}-* in root {root} at {path}; remove them \
         when no job of that name is under way there",
        listed(&names),
        uid(job),
    );
    Some(Event {
        warning: true,
        reason: "FilesLeft".to_owned(),
        note: truncate(&text),
    })
}

/// More than bytes have moved between the two.
pub(crate) fn is_transition(old: &TransferJobStatus, new: &TransferJobStatus) -> bool {
    let without_progress = |status: &TransferJobStatus| TransferJobStatus {
        bytes: 0,
        bytes_total: 0,
        bytes_per_second: 0,
        eta_seconds: None,
        progress: String::new(),
        rate: String::new(),
        eta: String::new(),
        destinations: Vec::new(),
        ..status.clone()
    };
    without_progress(old) != without_progress(new)
}

/// Destinations that a job has no more, where a status has room for all of them.
fn departed<'a>(old: &'a TransferJobStatus, new: &TransferJobStatus) -> Vec<&'a str> {
    let is_whole = !old.destinations_truncated && !new.destinations_truncated;
    // A job that has just begun again has none yet.
    if !is_whole || new.destinations.is_empty() {
        return Vec::new();
    }
    let remains = |node: &str| new.destinations.iter().any(|one| one.node == node);
    let nodes = old.destinations.iter().map(|one| one.node.as_str());
    nodes.filter(|node| !remains(node)).collect()
}

/// What people shall hear of a transition.
pub(crate) fn events_for(old: &TransferJobStatus, new: &TransferJobStatus) -> Vec<Event> {
    let mut events = Vec::new();
    let mut push_event = |warning, reason: &str, note: &str| {
        events.push(Event {
            warning,
            reason: reason.to_owned(),
            note: truncate(note),
        });
    };
    let find = |status: &TransferJobStatus, kind: &str| {
        let condition = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind);
        condition.map(|c| (c.status == "True", c.reason.clone(), c.message.clone()))
    };
    let changed_condition = |kind: &str| {
        let (holds, reason, message) = find(new, kind)?;
        let before = find(old, kind).filter(|before| before.0 == holds && before.1 == reason);
        before.is_none().then_some((holds, reason, message))
    };
    match changed_condition("Suspended") {
        Some((true, _, message)) => push_event(false, "Suspended", &message),
        Some((false, _, message)) => push_event(false, "Resumed", &message),
        None => {}
    }
    if new.phase == Phase::Waiting
        && let Some((_, reason, message)) = changed_condition("Planned")
    {
        push_event(false, &reason, &message);
    }
    if old.start_time.is_none() && new.start_time.is_some() {
        push_event(false, "Started", "the source lists its files");
    }
    if let Some((true, _, message)) = changed_condition("Planned") {
        push_event(false, "Planned", &message);
    }
    if new.attempt > old.attempt && new.attempt > 1 {
        // What is written of a job that stands still is no trouble of its last attempt.
        let is_trouble = !matches!(old.phase, Phase::Suspended | Phase::Waiting);
        let cause = match old.message.as_str() {
            "" => &new.message,
            _ if is_trouble => &old.message,
            _ => "",
        };
        let note = format!("attempt {}: {cause}", new.attempt);
        push_event(!cause.is_empty(), "Retrying", note.trim_end_matches(": "));
    }
    if new.phase == Phase::Transferring && old.phase != Phase::Transferring {
        push_event(
            false,
            "Transferring",
            "the nodes compare what they have, and send what is missing",
        );
    }
    let departed = departed(old, new);
    if !departed.is_empty() {
        let note = format!(
            "no destinations any more, for spec.destinations or the fabric does not select them: {}",
            listed(&departed)
        );
        push_event(false, "DestinationsLeft", &note);
    }
    if let Some((true, _, message)) = changed_condition("Complete") {
        push_event(false, "Complete", &message);
    }
    if let Some((holds, reason, message)) = changed_condition("Labelled") {
        push_event(!holds, &reason, &message);
    }
    if let Some((true, reason, message)) = changed_condition("Failed") {
        push_event(true, &reason, &message);
    }
    events
}

fn progress(done: i64, total: i64) -> String {
    let percent = if total == 0 {
        100
    } else {
        i128::from(done) * 100 / i128::from(total)
    };
    format!("{percent}% of {}", bytes(total))
}

fn bytes(count: i64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

fn duration(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        _ => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests;
