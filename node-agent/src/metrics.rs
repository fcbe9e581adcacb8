//! The metrics that the agent exports for Prometheus.
//!
//! They are computed for each request, from the engine's snapshot and the attempts that are known. `/metrics` has at
//! most 2,000 series, however many nodes and jobs there are: [`JOBS_MAX`] jobs, [`PEERS_MAX`] peers, and no paths.
//! `/metrics/paths` has each path, and each pair of NICs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use weft_core::path::{PathReport, PathState};
use weft_core::units::Host;
use weft_engine::{LinkAddress, Snapshot};
use weft_identity::tls_listener::TlsRefusals;
use weft_proto::agent::v1::JobName;

use crate::control::attempt_handle::AttemptHandle;
use crate::control::attempt_registry::AttemptRegistry;
use crate::devices::health::NodeDevices;
use crate::nic_state::{EngineNics, NicState};
use crate::transfer::buffers::MemoryBudget;
use crate::transfer::state::State;
use crate::web::Registries;

/// Jobs with metrics, six series each: those under way, and then the newest of the others.
const JOBS_MAX: usize = 64;
/// Peers with metrics, nine series each: those with a connection now. With the default `limits.memory` an agent has
/// buffers for 44 connections at a time.
const PEERS_MAX: usize = 128;
/// Peers whose paths `/metrics/paths` has, at most 256 each.
const PATH_PEERS_MAX: usize = 64;

/// The registries of a running agent.
pub(crate) fn registries(
    registry: Arc<AttemptRegistry>,
    budget: Arc<MemoryBudget>,
    nics: EngineNics,
    tls_refusals: &TlsRefusals,
) -> Registries {
    let mut agent = Registry::with_prefix("weft");
    let labels = vec![
        ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("node".to_owned(), registry.config.node.to_string()),
        ("wire".to_owned(), weft_core::wire::VERSION.to_string()),
    ];
    agent.register("build", "The agent that answers", Info::new(labels));
    tls_refusals.register(&mut agent, "tls_refused");
    let mut paths = Registry::with_prefix("weft");
    paths.register_collector(Box::new(PathCollector(registry.clone())));
    agent.register_collector(Box::new(AgentCollector {
        registry,
        budget,
        nics,
    }));
    Registries { agent, paths }
}

#[derive(Debug)]
struct AgentCollector {
    registry: Arc<AttemptRegistry>,
    budget: Arc<MemoryBudget>,
    nics: EngineNics,
}

impl Collector for AgentCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = Metrics {
            jobs: self
                .registry
                .attempts()
                .iter()
                // The release of a job's copies cancels an attempt of the last number, which never began.
                .filter(|known| known.is_begun())
                .map(|known| sample(known))
                .collect(),
            refused: self.registry.refused(),
            engine: self.registry.config.links.snapshot(),
            buffer_bytes: self.budget.used(),
            nics: self.nics.states(),
        };
        metrics.encode(encoder)
    }
}

/// The state of one attempt.
#[derive(Debug, Clone)]
struct JobSample {
    name: JobName,
    attempt: u32,
    is_open: bool,
    /// A later attempt at this agent has a larger one.
    sequence: u32,
    bytes: u64,
    bytes_resumed: u64,
    bytes_total: u64,
    state: State,
    failure: Option<&'static str>,
}

fn sample(known: &AttemptHandle) -> JobSample {
    let attempt = &known.attempt;
    let status = attempt.status();
    JobSample {
        name: known.name(),
        attempt: attempt.attempt_ref.number,
        is_open: !status.closed,
        sequence: known.domain.0,
        bytes: attempt.counters.bytes.load(Ordering::Relaxed),
        bytes_resumed: attempt.counters.bytes_resumed.load(Ordering::Relaxed),
        bytes_total: attempt.counters.bytes_total.load(Ordering::Relaxed),
        state: status.state,
        failure: status.fault.map(|fault| fault.reason()),
    }
}

/// The jobs that are exported. Of attempts of the same name, as where a node copies a job's files within itself and
/// sends them, the newest is.
fn exported(mut jobs: Vec<JobSample>) -> Vec<JobSample> {
    jobs.sort_by_key(|job| (!job.is_open, Reverse(job.sequence)));
    let mut names = BTreeSet::new();
    jobs.retain(|job| names.insert((job.name.namespace.clone(), job.name.name.clone())));
    jobs.truncate(JOBS_MAX);
    jobs
}

/// What an agent measures, at one moment.
#[derive(Debug)]
struct Metrics {
    jobs: Vec<JobSample>,
    refused: BTreeMap<&'static str, u64>,
    engine: Snapshot,
    buffer_bytes: u64,
    nics: Vec<NicState>,
}

impl Metrics {
    fn encode(self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        encode_jobs(&mut out, &exported(self.jobs))?;
        let refused = self.refused.into_iter();
        out.counter(
            "refused",
            "Calls that were refused, by reason: a wrong certificate or ticket among them",
            refused.map(|(reason, count)| ([("reason", reason.to_owned())], count)),
        )?;
        encode_engine(&mut out, &self.engine)?;
        encode_links(&mut out, &self.engine)?;
        encode_peers(&mut out, &self.engine)?;
        let nics = self.nics.into_iter();
        out.gauge(
            "nic_up",
            "1 for a NIC of the data path that is up and has a carrier; 0 for another one",
            nics.map(|nic| {
                let address = nic.address.to_string();
                let labels = [("interface", nic.interface), ("address", address)];
                (labels, nic.is_up.into())
            }),
        )?;
        out.gauge(
            "buffer_bytes",
            "Transfer buffers in use by all jobs",
            [([], self.buffer_bytes)],
        )
    }
}

/// The virtual devices of the node, as its device plugin says.
#[derive(Debug)]
pub(crate) struct DeviceCollector(pub(crate) watch::Receiver<NodeDevices>);

impl Collector for DeviceCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encode_devices(&mut Out(encoder), &self.0.borrow())
    }
}

fn encode_devices(out: &mut Out<'_>, devices: &NodeDevices) -> fmt::Result {
    out.gauge(
        "devices",
        "Virtual devices that the pods of this node can have",
        [([], devices.total.into())],
    )?;
    out.gauge(
        "devices_in_use",
        "Virtual devices that pods have",
        [([], devices.health.in_use.into())],
    )?;
    let unhealthy = devices.unhealthy().into_iter();
    out.gauge(
        "devices_unhealthy",
        "Virtual devices that no pod can use, by reason",
        unhealthy.map(|(reason, count)| ([("reason", reason.to_owned())], count.into())),
    )?;
    // Where the device plugin says nothing there is no series: one that fell to 0 would look like a restart.
    let refused = devices.health.refused.iter().flat_map(|refused| {
        [
            ("Packet", refused.packets),
            ("Offer", refused.offers),
            ("Call", refused.calls),
            ("Connection", refused.connections),
        ]
    });
    out.counter(
        "devices_refused",
        "Attempts at this node's virtual devices that were refused, by what they were",
        refused.map(|(what, count)| ([("what", what.to_owned())], count)),
    )
}

type JobLabels = [(&'static str, String); 2];

fn job_labels(job: &JobSample) -> JobLabels {
    let JobName {
        namespace, name, ..
    } = job.name.clone();
    // `job` and `namespace` are labels that Prometheus itself gives what it scrapes.
    [("job_namespace", namespace), ("job_name", name)]
}

fn encode_jobs(out: &mut Out<'_>, jobs: &[JobSample]) -> fmt::Result {
    let of = |value: fn(&JobSample) -> u64| {
        let labelled = jobs.iter().map(move |job| (job_labels(job), value(job)));
        labelled.collect::<Vec<_>>()
    };
    out.gauge(
        "job_attempt",
        "The latest attempt of a job that this node knows",
        of(|job| job.attempt.into()),
    )?;
    out.counter(
        "job_bytes",
        "Bytes of a job that are on this node and checked; at its source, read and hashed",
        of(|job| job.bytes),
    )?;
    out.counter(
        "job_resumed_bytes",
        "Bytes of a job that were on this node before and were not sent again",
        of(|job| job.bytes_resumed),
    )?;
    out.gauge(
        "job_size_bytes",
        "Bytes of all files of a job",
        of(|job| job.bytes_total),
    )?;
    let with = |job: &JobSample, key, value: String| {
        let [namespace, name] = job_labels(job);
        ([namespace, name, (key, value)], 1)
    };
    out.gauge(
        "job_state",
        "1, with the state of a job's latest attempt at this node",
        jobs.iter()
            .map(|job| with(job, "state", job.state.to_string())),
    )?;
    let failed = jobs.iter().filter_map(|job| {
        let reason = job.failure?;
        Some(with(job, "reason", reason.to_owned()))
    });
    out.gauge(
        "job_failed",
        "1 for a job whose latest attempt has ended at this node without a copy, by reason; Cancelled and Superseded are no faults",
        failed,
    )
}

fn encode_engine(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let stats = snapshot.stats();
    let counters: [(&str, &str, u64); 8] = [
        (
            "chunks_sent",
            "Chunks sent, resends included",
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

/// How many connections there are with each peer, over each link.
fn encode_links(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let mut links: BTreeMap<(Host, &str), u64> = BTreeMap::new();
    for connection in &snapshot.connections {
        let peer = &connection.peer;
        *links.entry((peer.host(), peer.kind().name())).or_default() += 1;
    }
    out.gauge(
        "peer_connections",
        "Connections with a peer, by link, those that measure it included",
        links
            .into_iter()
            .take(PEERS_MAX)
            .map(|((peer, link), count)| {
                let labels = [("peer", peer.to_string()), ("link", link.to_owned())];
                (labels, count)
            }),
    )
}

/// The paths to one machine and the connections there are with it, together.
#[derive(Debug, Default)]
struct Peer {
    /// Of the paths where it is known, the shortest first.
    round_trips_ns: Vec<u64>,
    paths_down: u64,
    acknowledged_bytes: u64,
    sent_chunks: u64,
    lost_chunks: u64,
    ce_packets: u64,
    timeouts: u64,
}

impl Peer {
    fn add(&mut self, path: &PathReport) {
        self.round_trips_ns.extend(path.srtt.map(|srtt| srtt.get()));
        self.paths_down += u64::from(!matches!(path.state, PathState::Live));
        self.sent_chunks += path.sent_chunks;
        self.lost_chunks += path.lost_chunks;
        self.ce_packets += path.ce_packets;
        self.timeouts += path.timeouts;
    }
}

/// The first [`PEERS_MAX`] by address.
fn peers(snapshot: &Snapshot) -> BTreeMap<Host, Peer> {
    let mut peers: BTreeMap<Host, Peer> = BTreeMap::new();
    for peer in &snapshot.peers {
        let entry = peers.entry(peer.address.host()).or_default();
        for path in &peer.paths {
            entry.add(path);
        }
    }
    for connection in &snapshot.connections {
        if let Some(peer) = peers.get_mut(&connection.peer.host()) {
            peer.acknowledged_bytes += connection.stats.bytes_acked;
        }
    }
    let mut exported: BTreeMap<_, _> = peers.into_iter().take(PEERS_MAX).collect();
    for peer in exported.values_mut() {
        peer.round_trips_ns.sort_unstable();
    }
    exported
}

fn encode_peers(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let peers = peers(snapshot);
    let of = |value: fn(&Peer) -> u64| {
        let labelled = peers
            .iter()
            .map(move |(host, peer)| ([("peer", host.to_string())], value(peer)));
        labelled.collect::<Vec<_>>()
    };
    let round_trips = peers.iter().flat_map(|(host, peer)| {
        let known = &peer.round_trips_ns;
        let values = [
            ("min", known.first()),
            ("median", known.get(known.len() / 2)),
            ("max", known.last()),
        ];
        values.into_iter().filter_map(move |(of, value)| {
            let labels = [("peer", host.to_string()), ("of_paths", of.to_owned())];
            Some((labels, seconds(*value?)))
        })
    });
    out.gauge_f64(
        "peer_rtt_seconds",
        "Smoothed round-trip time of the paths to a peer: the smallest, the median and the largest",
        round_trips,
    )?;
    out.gauge(
        "peer_paths_down",
        "Paths to a peer that are not given data",
        of(|peer| peer.paths_down),
    )?;
    out.counter(
        "peer_acknowledged_bytes",
        "Payload bytes that a peer has acknowledged on the connections there are",
        of(|peer| peer.acknowledged_bytes),
    )?;
    out.counter(
        "peer_chunks_sent",
        "Chunks sent to a peer, resends included",
        of(|peer| peer.sent_chunks),
    )?;
    out.counter(
        "peer_chunks_lost",
        "Chunks lost on the way to a peer",
        of(|peer| peer.lost_chunks),
    )?;
    out.counter(
        "peer_ce_packets",
        "Packets to a peer that were marked Congestion Experienced",
        of(|peer| peer.ce_packets),
    )?;
    out.counter(
        "peer_timeouts",
        "Timeouts on the paths to a peer, probes included",
        of(|peer| peer.timeouts),
    )
}

/// Each path by itself.
#[derive(Debug)]
struct PathCollector(Arc<AttemptRegistry>);

impl Collector for PathCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.config.links.snapshot();
        let mut out = Out(encoder);
        encode_paths(&mut out, &snapshot)?;
        encode_nic_pairs(&mut out, &snapshot)
    }
}

fn encode_paths(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let of = |value: fn(&PathReport) -> u64| {
        let peers = snapshot.peers.iter().take(PATH_PEERS_MAX);
        peers
            .flat_map(|peer| {
                peer.paths
                    .iter()
                    .map(move |path| (path_labels(&peer.address, path), value(path)))
            })
            .collect::<Vec<_>>()
    };
    out.counter(
        "path_chunks_sent",
        "Chunks sent on a path, resends included",
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
    let peers = snapshot.peers.iter().take(PATH_PEERS_MAX);
    let round_trips = peers.flat_map(|peer| {
        let known = peer.paths.iter();
        known.filter_map(|path| {
            let labels = path_labels(&peer.address, path);
            Some((labels, seconds(path.srtt?.get())))
        })
    });
    out.gauge_f64(
        "path_rtt_seconds",
        "Smoothed round-trip time of a path, once it is measured",
        round_trips,
    )
}

/// Nothing where every node has one NIC.
fn encode_nic_pairs(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let peers = snapshot.peers.iter().take(PATH_PEERS_MAX);
    let peers = peers.filter(|peer| peer.nic_pairs.len() > 1);
    let mut live: BTreeMap<(IpAddr, IpAddr), u64> = BTreeMap::new();
    for pair in peers.flat_map(|peer| &peer.nic_pairs) {
        *live.entry((pair.here, pair.there)).or_default() += pair.live_paths as u64;
    }
    out.gauge(
        "nic_pair_live_paths",
        "Paths that are given data between a NIC of this node and one of a peer; 0 where the two do not reach each other",
        live.into_iter().map(|((here, there), paths)| {
            let labels = [("here", here.to_string()), ("there", there.to_string())];
            (labels, paths)
        }),
    )
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn path_labels(peer: &LinkAddress, path: &PathReport) -> [(&'static str, String); 3] {
    let link = peer.kind().name().to_owned();
    let host = peer.host().to_string();
    [
        ("peer", host),
        ("path", path.id.0.to_string()),
        ("link", link),
    ]
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

    fn gauge_f64<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, String); N], f64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, ConstGauge::new, values)
    }

    fn family<const N: usize, V, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        metric: fn(V) -> M,
        values: impl IntoIterator<Item = ([(&'static str, String); N], V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            metric(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weft_core::connection::Stats;
    use weft_core::units::{ConnectionId, Nanos, PathId};
    use weft_engine::{ConnectionSnapshot, NicPair, PeerSnapshot, PortRange};

    use super::*;
    use crate::devices::DroppedOffers;

    fn job(number: u32) -> JobSample {
        JobSample {
            name: JobName {
                namespace: "team".to_owned(),
                name: format!("job-{number}"),
                ..JobName::default()
            },
            attempt: 1,
            is_open: false,
            sequence: number,
            bytes: 1,
            bytes_resumed: 0,
            bytes_total: 2,
            state: State::Failed,
            failure: Some("Cancelled"),
        }
    }

    fn path(number: u8, rtt_ns: u64, state: PathState) -> PathReport {
        PathReport {
            id: PathId(number),
            state,
            srtt: Some(Nanos::new(rtt_ns)),
            sent_chunks: 1,
            lost_chunks: 0,
            ce_packets: 0,
            timeouts: 0,
        }
    }

    fn peer(address: [u8; 4], paths: Vec<PathReport>) -> PeerSnapshot {
        PeerSnapshot {
            address: LinkAddress::Udp {
                nics: std::net::Ipv4Addr::from(address).into(),
                ports: PortRange {
                    first: 7500,
                    count: 16,
                },
            },
            live_paths: paths.len(),
            paths,
            nic_pairs: Vec::new(),
        }
    }

    #[derive(Debug)]
    struct Fixed(fn() -> Metrics);

    impl Collector for Fixed {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            (self.0)().encode(encoder)
        }
    }

    fn nic(number: u8) -> NicState {
        NicState {
            interface: format!("rail{number}"),
            address: [192, 168, number, 5].into(),
            is_up: number == 0,
        }
    }

    #[derive(Debug)]
    struct Pairs(Snapshot);

    impl Collector for Pairs {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode_nic_pairs(&mut Out(encoder), &self.0)
        }
    }

    fn page(metrics: fn() -> Metrics) -> String {
        let mut registry = Registry::with_prefix("weft");
        registry.register_collector(Box::new(Fixed(metrics)));
        let refusals = TlsRefusals::default();
        refusals.register(&mut registry, "tls_refused");
        DroppedOffers::default().register(&mut registry);
        let devices = watch::channel(NodeDevices::default()).1;
        registry.register_collector(Box::new(DeviceCollector(devices)));
        registry.register_collector(Box::new(Pairs(Snapshot::default())));
        // All reasons that an agent has.
        for reason in ["Handshake", "Timeout", "TooMany"] {
            refusals.count(reason);
        }
        weft_identity::metrics::page(&registry).2
    }

    #[test]
    fn an_agent_with_5000_peers_and_1024_jobs_exports_at_most_2000_series() {
        let text = page(|| {
            let peers = (0..5000u16).map(|number| {
                let [high, low] = number.to_be_bytes();
                let paths = (0..128).map(|id| path(id, 1000, PathState::Live));
                peer([10, 0, high, low], paths.collect())
            });
            Metrics {
                jobs: (0..1024).map(job).collect(),
                // More than there are reasons.
                refused: (0..150)
                    .map(|number| (&*String::leak(format!("Reason{number}")), 1))
                    .collect(),
                engine: Snapshot {
                    peers: peers.collect(),
                    ..Snapshot::default()
                },
                buffer_bytes: 0,
                nics: (0..16).map(nic).collect(),
            }
        });
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        let peers = 9 * PEERS_MAX;
        let jobs = 6 * JOBS_MAX;
        assert!((peers + jobs..=2000).contains(&series), "{series}");
    }

    #[test]
    fn jobs_under_way_come_first_and_of_one_name_the_newest() {
        let old = JobSample {
            is_open: true,
            ..job(0)
        };
        let again = JobSample {
            attempt: 2,
            sequence: 3000,
            ..job(2)
        };
        let jobs = (1..1024).map(job).chain([old, again]).collect();
        let exported = exported(jobs);
        assert_eq!(exported.len(), JOBS_MAX);
        assert_eq!(exported[0].name.name, "job-0");
        assert_eq!(
            (exported[1].name.name.as_str(), exported[1].attempt),
            ("job-2", 2)
        );
        assert_eq!(exported[2].name.name, "job-1023");
    }

    #[test]
    fn the_paths_to_a_peer_are_one_peers_metrics() {
        let text = page(|| {
            let paths = vec![
                path(0, 30_000_000, PathState::Live),
                path(1, 10_000_000, PathState::Suspended),
                path(2, 20_000_000, PathState::Live),
            ];
            let peer = peer([10, 0, 0, 1], paths);
            let connection = ConnectionSnapshot {
                id: ConnectionId::default(),
                part: 0,
                peer: peer.address,
                stats: Stats {
                    bytes_acked: 77,
                    ..Stats::default()
                },
                drops: Default::default(),
                outstanding_chunks: 0,
                writes: 0,
            };
            Metrics {
                jobs: Vec::new(),
                refused: BTreeMap::new(),
                engine: Snapshot {
                    connections: vec![connection],
                    peers: vec![peer],
                    ..Snapshot::default()
                },
                buffer_bytes: 0,
                nics: Vec::new(),
            }
        });
        for line in [
            r#"weft_peer_rtt_seconds{peer="10.0.0.1",of_paths="min"} 0.01"#,
            r#"weft_peer_rtt_seconds{peer="10.0.0.1",of_paths="median"} 0.02"#,
            r#"weft_peer_rtt_seconds{peer="10.0.0.1",of_paths="max"} 0.03"#,
            r#"weft_peer_paths_down{peer="10.0.0.1"} 1"#,
            r#"weft_peer_chunks_sent_total{peer="10.0.0.1"} 3"#,
            r#"weft_peer_acknowledged_bytes_total{peer="10.0.0.1"} 77"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn each_nic_is_up_or_not_and_each_pair_of_nics_has_its_live_paths() {
        let text = page(|| Metrics {
            jobs: Vec::new(),
            refused: BTreeMap::new(),
            engine: Snapshot::default(),
            buffer_bytes: 0,
            nics: vec![nic(0), nic(1)],
        });
        for line in [
            r#"weft_nic_up{interface="rail0",address="192.168.0.5"} 1"#,
            r#"weft_nic_up{interface="rail1",address="192.168.1.5"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        let pair = |here: u8, live_paths| NicPair {
            here: IpAddr::from([192, 168, here, 5]),
            there: IpAddr::from([192, 168, 0, 6]),
            paths: 8,
            live_paths,
            sent_chunks: 0,
            lost_chunks: 0,
        };
        let mut of_several = peer([192, 168, 0, 6], Vec::new());
        of_several.nic_pairs = vec![pair(0, 8), pair(1, 0)];
        let mut of_one = peer([10, 0, 0, 6], Vec::new());
        of_one.nic_pairs = vec![NicPair {
            there: IpAddr::from([10, 0, 0, 6]),
            ..pair(0, 8)
        }];
        let mut registry = Registry::with_prefix("weft");
        registry.register_collector(Box::new(Pairs(Snapshot {
            peers: vec![of_several, of_one],
            ..Snapshot::default()
        })));
        let text = weft_identity::metrics::page(&registry).2;
        let series = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(
            series.collect::<Vec<_>>(),
            [
                r#"weft_nic_pair_live_paths{here="192.168.0.5",there="192.168.0.6"} 8"#,
                r#"weft_nic_pair_live_paths{here="192.168.1.5",there="192.168.0.6"} 0"#,
            ]
        );
    }

    #[test]
    fn every_metric_that_the_documentation_names_is_exported() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        let text = page(|| Metrics {
            jobs: vec![job(1)],
            refused: BTreeMap::new(),
            engine: Snapshot::default(),
            buffer_bytes: 0,
            nics: Vec::new(),
        });
        let is_of_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = guide.split(|c: char| !is_of_name(c));
        let names = words.filter(|word| word.starts_with("weft_"));
        let names: BTreeSet<&str> = names
            .filter(|name| !name.starts_with("weft_operator_"))
            .map(|name| name.trim_end_matches("_total"))
            .collect();
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            assert!(
                text.contains(&format!("# HELP {name} ")),
                "{name} in\n{text}"
            );
        }
    }
}
