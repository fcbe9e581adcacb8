//! What came of it, for people and for programs.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use serde::Serialize;
use weft_fabric::quantity;
use weft_planner::Seconds;
use weft_proto::agent::v1::Algorithm;
use weft_transfer::{DestinationPhase, Failure, Transfer};

use crate::play::arguments::Fault;

/// The JSON object of `--json`. The order of the fields is the order in which they are printed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Bytes of all files, counted once.
    pub bytes: u64,
    /// From Start to the last Verified; to the end, where nothing was Verified.
    pub seconds: f64,
    /// Bytes that came over the network to one destination, the one with the most, per second of `seconds`; 0 unless
    /// every destination is Verified.
    pub bytes_per_second: u64,
    /// Of the source; "" where it was not read to the end.
    pub digest: String,
    /// In force; "" where there was no plan.
    pub strategy: String,
    /// In use; "" where there was no connection.
    pub link: String,
    /// The destinations.
    pub nodes: Vec<NodeReport>,
    /// Of all nodes and attempts.
    pub chunks: Chunks,
    /// Bytes of the data network that each spine forwarded, headers and acknowledgements included;
    /// empty without a fabric.
    pub spines: Vec<u64>,
    /// As asked for, by time.
    pub faults: Vec<FaultReport>,
}

/// A destination.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeReport {
    /// `node1`, `node2`, …
    pub name: String,
    /// Where its files are; "" where they are gone.
    pub root: String,
    /// `Verified` or `Failed`.
    pub state: String,
    /// Why it failed; "" when it did not.
    pub reason: String,
    /// The same for people, with the remedy.
    pub message: String,
    /// As the node computed it; "" where it did not come to that.
    pub digest: String,
    /// Bytes verified there.
    pub bytes: u64,
    /// Of these: bytes that came over the network; the others were there.
    pub received: u64,
    /// From Start to Verified; 0 where it is not.
    pub seconds: f64,
}

/// Chunks on the data network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// All of them.
    pub sent: u64,
    /// Of these: not for the first time.
    pub resent: u64,
}

/// A fault that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FaultReport {
    /// `fail-spine`, `fail-nic`, `kill-node` or `restart-node`.
    pub fault: &'static str,
    /// `spine2`, `node1`, …
    pub target: String,
    /// Seconds after Start for which it was asked.
    pub asked_seconds: f64,
    /// Seconds after Start at which it happened; null if the transfer was over before.
    pub seconds: Option<f64>,
    /// Bytes that the destinations had verified by then, together; null as above.
    pub bytes: Option<u64>,
}

/// What happened to a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// The transfer was over before its time.
    No,
    /// It did.
    At {
        /// After Start.
        after: Duration,
        /// Bytes verified at the destinations by then.
        bytes: u64,
    },
}

/// The report and what people want to know besides.
#[derive(Debug, Clone)]
pub struct Summary {
    /// What programs get.
    pub report: Report,
    /// What was sent, as people call it.
    pub source: String,
    /// The planner's reasons, and what it took for granted.
    pub strategy_why: String,
    /// What was hashed with.
    pub verification: Algorithm,
    /// The agents' reasons.
    pub link_why: String,
    /// Every attempt that there was.
    pub attempts: u32,
    /// What failed, each cause once; every text names its node.
    pub failures: Vec<String>,
}

impl Summary {
    /// Of a transfer that is over, `ended` after it began.
    pub fn new(
        transfer: &Transfer,
        ended: Duration,
        source: String,
        root: impl Fn(&str) -> Option<String>,
        spines: Vec<u64>,
        faults: &[(Fault, Happened)],
        assumed: &str,
    ) -> Self {
        let started = transfer.started().unwrap_or(ended);
        let (mut last, mut received) = (None, 0);
        let mut failures = Vec::new();
        if let Some(fault) = transfer.source_fault() {
            failures.push(cause(&fault));
        }
        let nodes = transfer
            .destinations()
            .map(|destination| {
                let name = destination.location.node.clone();
                let mut seconds = 0.0;
                let (state, reason, message) = match &destination.phase {
                    DestinationPhase::Verified { since_start } => {
                        last = last.max(Some(*since_start));
                        seconds = rounded(*since_start);
                        ("Verified", String::new(), String::new())
                    }
                    DestinationPhase::Failed(failure) | DestinationPhase::Retrying(failure) => {
                        let cause = cause(failure);
                        if !failures.contains(&cause) {
                            failures.push(cause.clone());
                        }
                        ("Failed", failure.reason.clone(), cause)
                    }
                    DestinationPhase::InProgress => {
                        let message =
                            format!("{name}: the transfer was over before it began there");
                        ("Failed", "NotStarted".to_owned(), message)
                    }
                };
                received = received.max(destination.received);
                NodeReport {
                    root: root(&name).unwrap_or_default(),
                    name,
                    state: state.to_owned(),
                    reason,
                    message,
                    digest: destination.progress.digest.clone(),
                    bytes: destination.bytes,
                    received: destination.received,
                    seconds,
                }
            })
            .collect();
        let seconds = last.unwrap_or(ended.saturating_sub(started));
        let bytes = transfer.bytes();
        let bytes_per_second = if transfer.is_complete() && !seconds.is_zero() {
            (received as f64 / seconds.as_secs_f64()) as u64
        } else {
            0
        };
        let (sent, resent) = transfer.chunks();
        let (link, link_why) = transfer.link();
        let report = Report {
            bytes,
            seconds: rounded(seconds),
            bytes_per_second,
            digest: transfer.source_progress().digest.clone(),
            strategy: transfer
                .plan()
                .map(|plan| plan.strategy.to_string())
                .unwrap_or_default(),
            link,
            nodes,
            chunks: Chunks { sent, resent },
            spines,
            faults: faults
                .iter()
                .map(|(fault, happened)| fault_report(fault, *happened))
                .collect(),
        };
        Self {
            report,
            source,
            strategy_why: transfer
                .plan()
                .map(|plan| plan.why.clone())
                .unwrap_or_default()
                + assumed,
            verification: transfer.spec().algorithm,
            link_why,
            attempts: transfer.attempt(),
            failures,
        }
    }

    /// Faults that did not happen, as a complaint with the remedy; empty when all did.
    pub fn missed(&self) -> Vec<String> {
        let missed = self
            .report
            .faults
            .iter()
            .filter(|fault| fault.seconds.is_none());
        missed
            .map(|fault| {
                format!(
                    "--{} of {} at {} did not happen: the transfer was over after {}; make it last \
                     longer, with --rate 200mbit or a larger --size, or ask for an earlier time",
                    fault.fault,
                    fault.target,
                    Seconds(fault.asked_seconds),
                    Seconds(self.report.seconds),
                )
            })
            .collect()
    }
}

/// Agents begin with their node, others name it in the middle, and libraries not at all.
fn cause(failure: &Failure) -> String {
    if failure.message.contains(&failure.node) {
        failure.message.clone()
    } else {
        format!("{}: {}", failure.node, failure.message)
    }
}

fn fault_report(fault: &Fault, happened: Happened) -> FaultReport {
    let (seconds, bytes) = match happened {
        Happened::No => (None, None),
        Happened::At { after, bytes } => (Some(rounded(after)), Some(bytes)),
    };
    FaultReport {
        fault: fault.kind.name(),
        target: fault.kind.target(fault.index),
        asked_seconds: rounded(fault.at),
        seconds,
        bytes,
    }
}

/// Microseconds: what the clocks here are good for.
fn rounded(time: Duration) -> f64 {
    round(time.as_secs_f64(), 6)
}

fn round(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

/// The summary for people.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = &self.report;
        let verified = report
            .nodes
            .iter()
            .filter(|node| node.state == "Verified")
            .count();
        let size = quantity::bytes(report.bytes);
        if verified == report.nodes.len() && self.failures.is_empty() {
            let nodes = if verified == 1 { "node" } else { "nodes" };
            write!(
                f,
                "{} is verified at {verified} {nodes}: {size} ({} bytes)",
                self.source, report.bytes,
            )?;
            if report.bytes > 0 && report.nodes.iter().all(|node| node.received == 0) {
                writeln!(f, ", all of it there already; nothing was sent")?;
            } else {
                let rate = report.bytes_per_second as f64 / 1e9;
                writeln!(f, " in {}, {rate:.3} GB/s", Seconds(report.seconds))?;
            }
        } else {
            writeln!(
                f,
                "{} is verified at {verified} of {} nodes",
                self.source,
                report.nodes.len()
            )?;
        }
        writeln!(f)?;
        self.nodes(f)?;
        writeln!(f)?;
        if report.nodes.iter().all(|node| node.root.is_empty()) {
            writeln!(
                f,
                "roots     were temporary and are gone; --out DIR keeps them"
            )?;
        }
        for cause in &self.failures {
            writeln!(f, "failed    {cause}")?;
        }
        let chunks = report.chunks;
        if !report.digest.is_empty() {
            let algorithm = match self.verification {
                Algorithm::Xxh3 => "XXH3",
                Algorithm::Blake3 | Algorithm::Unspecified => "BLAKE3",
            };
            writeln!(f, "digest    {} (source, {algorithm})", report.digest)?;
        }
        if !report.link.is_empty() {
            writeln!(f, "link      {}: {}", report.link, self.link_why)?;
        }
        if !report.strategy.is_empty() {
            writeln!(f, "strategy  {}", self.strategy_why)?;
        }
        if self.attempts > 1 {
            writeln!(f, "attempts  {}", self.attempts)?;
        }
        let share = share(chunks.resent, chunks.sent);
        writeln!(
            f,
            "chunks    {} sent, {} of them resent ({share})",
            chunks.sent, chunks.resent
        )?;
        self.spines(f)?;
        for fault in &report.faults {
            let (target, asked) = (&fault.target, Seconds(fault.asked_seconds));
            write!(f, "fault     {} {target}: ", fault.fault)?;
            match (fault.seconds, fault.bytes) {
                (Some(at), Some(bytes)) => {
                    writeln!(
                        f,
                        "after {}, {} verified by then",
                        Seconds(at),
                        quantity::bytes(bytes)
                    )?;
                }
                _ => writeln!(f, "asked for after {asked}, did not happen")?,
            }
        }
        Ok(())
    }
}

impl Summary {
    fn nodes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["node", "state", "bytes", "time", "root", "digest"].map(str::to_owned);
        let or_dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        let mut rows = vec![head];
        rows.extend(self.report.nodes.iter().map(|node| {
            let time = if node.seconds > 0.0 {
                Seconds(node.seconds).to_string()
            } else {
                "-".to_owned()
            };
            let was_there = node.received == 0 && node.bytes > 0;
            let state = match &*node.reason {
                "" if was_there => format!("{} (was there)", node.state),
                "" => node.state.clone(),
                reason => format!("{} ({reason})", node.state),
            };
            let bytes = quantity::bytes(node.bytes);
            [
                node.name.clone(),
                state,
                bytes,
                time,
                or_dash(&node.root),
                or_dash(&node.digest),
            ]
        }));
        aligned(f, &rows, &[false, false, true, true, false, false])
    }

    fn spines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.report.spines.iter().sum();
        let mut text = String::new();
        for (k, bytes) in self.report.spines.iter().enumerate() {
            let between = if k == 0 { "" } else { ", " };
            write!(
                text,
                "{between}spine{k} {} ({})",
                quantity::bytes(*bytes),
                share(*bytes, all)
            )?;
        }
        if text.is_empty() {
            Ok(())
        } else {
            writeln!(f, "spines    {text}")
        }
    }
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    format!("{:.1} %", 100.0 * part as f64 / whole as f64)
}

/// Columns as wide as their widest entry, to the right where asked for; the last one ends its line.
fn aligned<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    rows: &[[String; N]],
    right: &[bool; N],
) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = width(column).unwrap_or(0);
            if right[column] {
                write!(line, "{cell:>width$}  ")?;
            } else {
                write!(line, "{cell:<width$}  ")?;
            }
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
