//! What the agent exports for Prometheus: counters of the engine and of jobs, with bounded labels.
//!
//! Computed when asked for, from the engine's snapshot and the attempts that are known. Series are
//! bounded: the latest attempt of each of at most 1,024 jobs, 256 paths of at most 64 peers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use weft_core::path::{PathReport, PathState};
use weft_core::units::Host;
use weft_engine::Snapshot;

use crate::control::jobs::Jobs;
use crate::control::known_attempt::KnownAttempt;
use crate::transfer::buffers::MemoryBudget;
use crate::transfer::state::State;

/// Peers whose paths are exported one by one.
const PEERS_MAX: usize = 64;

/// A registry with everything in it.
#[must_use]
pub(crate) fn registry(jobs: Arc<Jobs>, budget: Arc<MemoryBudget>) -> Registry {
    let mut registry = Registry::with_prefix("weft");
    let labels = vec![
        ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("node".to_owned(), jobs.config.node.to_string()),
        ("wire".to_owned(), weft_core::wire::VERSION.to_string()),
    ];
    registry.register("build", "The agent that answers", Info::new(labels));
    registry.register_collector(Box::new(AgentCollector { jobs, budget }));
    registry
}

#[derive(Debug)]
struct AgentCollector {
    jobs: Arc<Jobs>,
    budget: Arc<MemoryBudget>,
}

impl Collector for AgentCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        encode_jobs(&mut out, &self.jobs.attempts())?;
        let refused = self.jobs.refused().into_iter();
        out.counter(
            "refused",
            "Calls that were refused, by reason: a wrong certificate or ticket among them",
            refused.map(|(reason, count)| ([("reason", reason.to_owned())], count)),
        )?;
        let snapshot = self.jobs.config.engine.snapshot();
        encode_engine(&mut out, &snapshot)?;
        encode_paths(&mut out, &snapshot)?;
        let used = self.budget.used();
        out.gauge(
            "buffer_bytes",
            "Transfer buffers in use by all jobs",
            [([], used)],
        )
    }
}

fn encode_jobs(out: &mut Out<'_>, runs: &[Arc<KnownAttempt>]) -> fmt::Result {
    let of = |value: fn(&KnownAttempt) -> u64| {
        runs.iter()
            .map(move |run| ([("job", run.attempt.job.uid.clone())], value(run)))
            .collect::<Vec<_>>()
    };
    out.gauge(
        "job_attempt",
        "The latest attempt of a job that this node knows",
        of(|run| run.attempt.job.attempt.into()),
    )?;
    out.counter(
        "job_bytes",
        "Bytes of a job that are on this node and checked; at its source, read and hashed",
        of(|run| run.attempt.counters.bytes.load(Ordering::Relaxed)),
    )?;
    out.counter(
        "job_resumed_bytes",
        "Bytes of a job that were on this node before and were not sent again",
        of(|run| run.attempt.counters.bytes_resumed.load(Ordering::Relaxed)),
    )?;
    out.gauge(
        "job_size_bytes",
        "Bytes of all files of a job",
        of(|run| run.attempt.counters.bytes_total.load(Ordering::Relaxed)),
    )?;
    let states = runs.iter().flat_map(|run| {
        let now = run.attempt.state();
        State::ALL.into_iter().map(move |state| {
            let labels = [
                ("job", run.attempt.job.uid.clone()),
                ("state", state.to_string()),
            ];
            (labels, u64::from(state == now))
        })
    });
    out.gauge(
        "job_state",
        "1 for the state that a job is in at this node",
        states,
    )?;
    let failures = runs.iter().filter_map(|run| {
        let reason = run.attempt.status().fault?.reason();
        Some((
            [
                ("job", run.attempt.job.uid.clone()),
                ("reason", reason.to_owned()),
            ],
            1,
        ))
    });
    out.gauge(
        "job_failed",
        "1 for a job that has failed at this node, by reason",
        failures,
    )
}

fn encode_engine(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let stats = snapshot.stats();
    let counters: [(&str, &str, u64); 8] = [
        (
            "chunks_sent",
            "Chunks sent for the first time",
            stats.chunks_sent,
        ),
        (
            "chunks_resent",
            "Chunks of which something was sent again",
            stats.chunks_resent,
        ),
        (
            "packets_sent",
            "Packets sent, again or not",
            stats.packets_sent,
        ),
        (
            "acknowledged_bytes",
            "Payload bytes that peers have acknowledged",
            stats.bytes_acked,
        ),
        (
            "placed_bytes",
            "Payload bytes placed in receive regions",
            stats.bytes_placed,
        ),
        ("timeouts", "Retransmission timeouts", stats.timeouts),
        (
            "spurious_resends",
            "Resends that were not needed",
            stats.spurious,
        ),
        (
            "resets_sent",
            "Resets sent for packets of no connection",
            snapshot.resets_sent,
        ),
    ];
    for (name, help, value) in counters {
        out.counter(name, help, [([], value)])?;
    }
    let drops = snapshot
        .drops
        .iter()
        .map(|(reason, count)| ([("reason", reason.reason().to_owned())], count));
    out.counter(
        "dropped_packets",
        "Arriving packets that were not used, by reason",
        drops,
    )?;
    let connections = snapshot.connections.len() as u64;
    out.gauge(
        "connections",
        "Connections in the engine",
        [([], connections)],
    )?;
    out.gauge(
        "armed_bytes",
        "Receive regions that are ready",
        [([], snapshot.regions.armed_bytes)],
    )
}

fn encode_paths(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let of = |value: fn(&PathReport) -> u64| {
        let peers = snapshot.peers.iter().take(PEERS_MAX);
        peers
            .flat_map(|peer| {
                peer.paths
                    .iter()
                    .map(move |path| (peer.address.host(), path))
            })
            .map(|(peer, path)| (path_labels(peer, path), value(path)))
            .collect::<Vec<_>>()
    };
    out.counter(
        "path_chunks_sent",
        "Chunks sent on a path",
        of(|p| p.sent_chunks),
    )?;
    out.counter(
        "path_chunks_lost",
        "Chunks lost on a path",
        of(|p| p.lost_chunks),
    )?;
    out.counter(
        "path_ce_packets",
        "Packets marked Congestion Experienced",
        of(|p| p.ce_packets),
    )?;
    out.counter(
        "path_timeouts",
        "Timeouts on a path, probes included",
        of(|p| p.timeouts),
    )?;
    out.gauge(
        "path_live",
        "1 for a path that is given data",
        of(|p| u64::from(matches!(p.state, PathState::Live))),
    )?;
    out.gauge(
        "path_rtt_nanoseconds",
        "Smoothed round-trip time of a path; 0 before it is measured",
        of(|p| p.srtt.map_or(0, |srtt| srtt.get())),
    )
}

fn path_labels(peer: Host, path: &PathReport) -> [(&'static str, String); 2] {
    [("peer", peer.to_string()), ("path", path.id.0.to_string())]
}

/// Writes one metric after the other.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn counter<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, String); N], u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, ConstCounter::new, values)
    }

    fn gauge<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, String); N], u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, ConstGauge::new, values)
    }

    fn family<const N: usize, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        metric: fn(u64) -> M,
        values: impl IntoIterator<Item = ([(&'static str, String); N], u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            metric(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
