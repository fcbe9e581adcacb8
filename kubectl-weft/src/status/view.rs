//! Jobs for people.

use std::fmt;

use weft_cli::{columns::columns, printable::line};
use weft_crds::{DestinationState, DestinationStatus, TransferJobStatus, TransferProgress};
use weft_fabric::quantity;
use weft_planner::Seconds;

/// Several jobs, a line each.
pub(super) struct Table<'a> {
    jobs: &'a [TransferProgress],
    namespaces: bool,
    is_wide: bool,
}

impl<'a> Table<'a> {
    pub(super) fn of(jobs: &'a [TransferProgress], namespaces: bool, is_wide: bool) -> Self {
        Self {
            jobs,
            namespaces,
            is_wide,
        }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |job: &TransferProgress| {
            let status = &job.status;
            let verified = format!("{}/{}", status.counts.verified, status.counts.total);
            let mut row = vec![
                name(job),
                format!("{:?}", status.phase),
                verified,
                or_dash(&bytes(status)),
                or_dash(&rate(status)),
                or_dash(&eta(status)),
            ];
            if self.is_wide {
                let link = status.link.as_ref().map(|link| link.name.as_str());
                row.extend([
                    or_dash(&status.fabric),
                    status.attempt.to_string(),
                    or_dash(link.unwrap_or_default()),
                ]);
            }
            row.push(message(job));
            if self.namespaces {
                row.insert(0, namespace(job));
            }
            row
        };
        let mut head = vec!["name", "phase", "verified", "bytes", "rate", "ETA"];
        if self.is_wide {
            head.extend(["fabric", "attempt", "link"]);
        }
        head.push("message");
        if self.namespaces {
            head.insert(0, "namespace");
        }
        columns(f, &head, &self.jobs.iter().map(row).collect::<Vec<_>>())
    }
}

/// One job, with all destinations.
pub(super) struct Detail<'a>(pub(super) &'a TransferProgress);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (job, status) = (self.0, &self.0.status);
        writeln!(f, "job         {}/{}", namespace(job), name(job))?;
        writeln!(f, "phase       {:?}", status.phase)?;
        if !status.fabric.is_empty() {
            writeln!(f, "fabric      {}", status.fabric)?;
        }
        if let Some(place) = place(job) {
            writeln!(f, "queue       place {place}")?;
        }
        if !status.message.is_empty() {
            writeln!(f, "message     {}", line(&status.message))?;
        }
        if let Some(manifest) = &status.manifest {
            let files = if manifest.files == 1 { "file" } else { "files" };
            write!(f, "data        {} {files}, ", manifest.files)?;
            writeln!(f, "{} to each", quantity::bytes(positive(manifest.bytes)))?;
        }
        if let Some(plan) = &status.plan {
            let estimate = Seconds(plan.estimate_seconds);
            writeln!(f, "plan        {:?}, estimate {estimate}", plan.strategy)?;
            if let Some(bottleneck) = &plan.bottleneck {
                writeln!(f, "bottleneck  {}", line(bottleneck))?;
            }
        }
        if let Some(link) = &status.link {
            writeln!(f, "link        {}: {}", link.name, link.reason)?;
        }
        if status.attempt > 1 {
            writeln!(f, "attempt     {}", status.attempt)?;
        }
        let so_far = bytes(status);
        if !so_far.is_empty() {
            write!(f, "progress    {so_far}")?;
            for (word, text) in [("", rate(status)), ("ETA ", eta(status))] {
                if !text.is_empty() {
                    write!(f, ", {word}{text}")?;
                }
            }
            writeln!(f)?;
        }
        if let Some(digest) = status.manifest.as_ref().and_then(|m| m.digest.as_ref()) {
            writeln!(f, "digest      {digest}")?;
        }
        if status.destinations.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        let row = |one: &DestinationStatus| {
            vec![
                one.node.clone(),
                format!("{:?}", one.state),
                quantity::bytes(positive(one.bytes)),
                reason(one),
            ]
        };
        let rows: Vec<_> = status.destinations.iter().map(row).collect();
        columns(f, &["node", "state", "bytes", "reason"], &rows)?;
        if status.destinations_truncated {
            let all = status.counts.total;
            writeln!(f, "and more: {all} in all")?;
        }
        Ok(())
    }
}

fn reason(one: &DestinationStatus) -> String {
    // A verified copy may have a message without a reason.
    let parts = [&*one.reason, &*one.message];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(": ")
}

/// A destination beside its bar.
pub(super) fn destination(one: &DestinationStatus, all: Option<u64>, per_second: u64) -> String {
    let bytes = positive(one.bytes);
    let state = match one.state {
        DestinationState::Verified => "verified".to_owned(),
        DestinationState::Failed => format!("failed: {}", one.reason),
        _ if !one.reason.is_empty() => format!("waiting: {}", one.reason),
        DestinationState::Verifying => "verifying".to_owned(),
        DestinationState::Transferring => moving(bytes, all, per_second),
        DestinationState::Pending => "preparing".to_owned(),
    };
    match all {
        Some(all) => format!(
            "{} of {}, {state}",
            quantity::bytes(bytes),
            quantity::bytes(all)
        ),
        None => state,
    }
}

fn moving(bytes: u64, all: Option<u64>, per_second: u64) -> String {
    if per_second == 0 {
        return if bytes == 0 {
            "waiting for bytes".to_owned()
        } else {
            "stalled".to_owned()
        };
    }
    let rate = quantity::bytes(per_second);
    let left = all.map(|all| all.saturating_sub(bytes) as f64 / per_second as f64);
    let left = left.map(|left| format!(", ETA {}", Seconds(left)));
    format!("{rate}/s{}", left.unwrap_or_default())
}

/// A job beside its bar.
pub(super) fn job(job: &TransferProgress) -> String {
    let status = &job.status;
    let parts = [
        bytes(status),
        rate(status),
        eta(status),
        format!("{:?}", status.phase),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

/// Its place in the queue, from 1, while it waits for its turn.
fn place(job: &TransferProgress) -> Option<u32> {
    job.ahead.map(|ahead| ahead.saturating_add(1))
}

/// What is waited for, or why it failed.
fn message(job: &TransferProgress) -> String {
    let message = &job.status.message;
    match place(job) {
        Some(place) => format!("place {place} in the queue: {message}"),
        None => message.clone(),
    }
}

pub(super) fn name(job: &TransferProgress) -> String {
    job.metadata.name.clone().unwrap_or_default()
}

fn namespace(job: &TransferProgress) -> String {
    job.metadata.namespace.clone().unwrap_or_default()
}

pub(super) fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// `bytes of all`; nothing while the source has not said how many there are.
fn bytes(status: &TransferJobStatus) -> String {
    if status.manifest.is_none() {
        return String::new();
    }
    let (bytes, all) = (positive(status.bytes), positive(status.bytes_total));
    format!("{} of {}", quantity::bytes(bytes), quantity::bytes(all))
}

fn rate(status: &TransferJobStatus) -> String {
    match positive(status.bytes_per_second) {
        0 => String::new(),
        rate => format!("{}/s", quantity::bytes(rate)),
    }
}

fn eta(status: &TransferJobStatus) -> String {
    let eta = status.eta_seconds.map(positive);
    eta.map_or_else(String::new, |left| Seconds(left as f64).to_string())
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

#[cfg(test)]
pub(super) mod tests;
