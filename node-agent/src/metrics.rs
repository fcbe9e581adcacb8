//! The metrics that the agent exports for Prometheus.
//!
//! They are computed for each request, from the engine's snapshot and the attempts that are known. `/metrics` has at
//! most 2,000 series, however many nodes and jobs there are: `JOBS_MAX` jobs, `PEERS_MAX` peers, and no paths; and six for
//! each device of a pod. `/metrics/paths` has each path, and each pair of NICs. What is said of packets, links, peers and paths
//! is of jobs: virtual devices have an engine of their own, of which there is what `DeviceCollector` has.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use weft_core::path::{PathReport, PathState};
use weft_core::units::Host;
use weft_engine::{LinkAddress, LinkKind, Snapshot};
use weft_identity::tls_listener::TlsRefusals;
use weft_metrics::{Out, register, table};
use weft_proto::agent::v1::JobName;
use weft_proto::engine::v1::Device;

use crate::control::attempt_handle::AttemptHandle;
use crate::control::attempt_registry::AttemptRegistry;
use crate::devices::health::NodeDevices;
use crate::nic_state::{EngineNics, NicState};
use crate::root_space::RootSpace;
use crate::transfer::buffers::MemoryBudget;
use crate::transfer::state::State;
use crate::web::Registries;

/// Jobs with metrics, six series each: those under way, and then the newest of the others.
const JOBS_MAX: usize = 64;
/// Peers with metrics, nine series each: those with a connection now. With the default `limits.memory` an agent has
/// buffers for 44 connections at a time.
const PEERS_MAX: usize = 128;
/// Roots with metrics, by their order in the configuration.
const ROOTS_MAX: usize = 16;
/// Nodes of which it is shown that a link does not pass, by name.
const FALLBACKS_MAX: usize = 32;
/// Devices of pods with metrics, six series each, by name.
const DEVICES_MAX: usize = 1000;
/// Peers whose paths `/metrics/paths` has, at most 256 each.
const PATH_PEERS_MAX: usize = 64;

/// The registries of a running agent.
pub(crate) fn registries(
    registry: Arc<AttemptRegistry>,
    budget: Arc<MemoryBudget>,
    nics: EngineNics,
    roots: watch::Receiver<Vec<RootSpace>>,
    tls_refusals: &TlsRefusals,
) -> Registries {
    let mut agent = Registry::default();
    let build = table::BUILD.with([
        env!("CARGO_PKG_VERSION").to_owned(),
        registry.config.node.to_string(),
        weft_core::wire::VERSION.to_string(),
    ]);
    register(&mut agent, &table::BUILD, Info::new(build.to_vec()));
    tls_refusals.register(&mut agent, &table::TLS_REFUSED);
    let mut paths = Registry::default();
    paths.register_collector(Box::new(PathCollector(registry.clone())));
    agent.register_collector(Box::new(AgentCollector {
        registry,
        budget,
        nics,
        roots,
    }));
    Registries { agent, paths }
}

/// The page of an agent that knows these peers and devices, and has nothing else to show: for the benchmark of a scrape.
#[must_use]
pub fn registry_of(engine: Snapshot, devices: Vec<Device>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(PeersCollector(engine)));
    registry.register_collector(Box::new(DeviceCollector {
        node: watch::channel(NodeDevices::default()).1,
        devices: watch::channel(devices).1,
    }));
    registry
}

#[derive(Debug)]
struct PeersCollector(Snapshot);

impl Collector for PeersCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out::from(encoder);
        encode_engine(&mut out, &self.0)?;
        encode_links(&mut out, &self.0)?;
        encode_peers(&mut out, &self.0)
    }
}

#[derive(Debug)]
struct AgentCollector {
    registry: Arc<AttemptRegistry>,
    budget: Arc<MemoryBudget>,
    nics: EngineNics,
    roots: watch::Receiver<Vec<RootSpace>>,
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
            certificate_expires: self.registry.config.tls.borrow().expires(),
            roots: self.roots.borrow().clone(),
            fallbacks: self.registry.config.links.fallbacks(),
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
    /// Unix time.
    certificate_expires: i64,
    roots: Vec<RootSpace>,
    fallbacks: Vec<(String, LinkKind)>,
}

impl Metrics {
    fn encode(self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out::from(encoder);
        encode_jobs(&mut out, &exported(self.jobs))?;
        let refused = self.refused.into_iter();
        let refused = refused.map(|(reason, count)| ([reason.to_owned()], count));
        out.put(&table::REFUSED, refused)?;
        encode_engine(&mut out, &self.engine)?;
        encode_links(&mut out, &self.engine)?;
        encode_peers(&mut out, &self.engine)?;
        let nics = self.nics.into_iter().map(|nic| {
            let labels = [nic.interface, nic.address.to_string()];
            (labels, u64::from(nic.is_up))
        });
        out.put(&table::NIC_UP, nics)?;
        out.put(&table::BUFFER_BYTES, [([], self.buffer_bytes)])?;
        let expires = self.certificate_expires as f64;
        out.put(&table::CERTIFICATE_EXPIRES, [([], expires)])?;
        let roots = || self.roots.iter().take(ROOTS_MAX);
        let free = roots().map(|it| ([it.root.clone()], it.free_bytes));
        out.put(&table::ROOT_FREE_BYTES, free)?;
        let min_free = roots().map(|it| ([it.root.clone()], it.min_free_bytes));
        out.put(&table::ROOT_MIN_FREE_BYTES, min_free)?;
        let fallbacks = self.fallbacks.into_iter().take(FALLBACKS_MAX);
        let fallbacks = fallbacks.map(|(node, link)| ([node, link.name().to_owned()], 1u64));
        out.put(&table::LINK_FALLBACK, fallbacks)
    }
}

/// The virtual devices of the node, as its device plugin says.
#[derive(Debug)]
pub(crate) struct DeviceCollector {
    pub(crate) node: watch::Receiver<NodeDevices>,
    /// Each, as the engine of devices says.
    pub(crate) devices: watch::Receiver<Vec<Device>>,
}

impl Collector for DeviceCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out::from(encoder);
        encode_devices(&mut out, &self.node.borrow())?;
        encode_devices_of_pods(&mut out, &self.devices.borrow())
    }
}

fn encode_devices_of_pods(out: &mut Out<'_>, devices: &[Device]) -> fmt::Result {
    let of_pods = devices.iter().filter_map(|device| {
        let (namespace, pod) = device.owner.split_once('/')?;
        Some(([namespace, pod, &*device.name].map(str::to_owned), device))
    });
    let of_pods: Vec<_> = of_pods.take(DEVICES_MAX).collect();
    let of = |value: fn(&Device) -> u64| {
        let labelled = of_pods.iter();
        let labelled = labelled.map(move |(labels, device)| (labels.clone(), value(device)));
        labelled.collect::<Vec<_>>()
    };
    out.put(&table::DEVICE_SENT_BYTES, of(|it| it.bytes_sent))?;
    out.put(&table::DEVICE_RECEIVED_BYTES, of(|it| it.bytes_received))?;
    let refused = of(|it| it.refused + it.refused_offers + it.refused_calls);
    out.put(&table::DEVICE_REFUSED, refused)?;
    out.put(&table::DEVICE_OPERATIONS, of(|it| it.operations))?;
    out.put(&table::DEVICE_SHARE, of(|it| it.share.into()))?;
    out.put(&table::DEVICE_STALLED, of(|it| it.stalled.into()))
}

fn encode_devices(out: &mut Out<'_>, devices: &NodeDevices) -> fmt::Result {
    out.put(&table::DEVICES, [([], u64::from(devices.total))])?;
    let in_use = u64::from(devices.health.in_use);
    out.put(&table::DEVICES_IN_USE, [([], in_use)])?;
    let unhealthy = devices.unhealthy().into_iter();
    let unhealthy = unhealthy.map(|(reason, count)| ([reason.to_owned()], u64::from(count)));
    out.put(&table::DEVICES_UNHEALTHY, unhealthy)?;
    // Where the device plugin says nothing there is no series: one that fell to 0 would look like a restart.
    let refused = devices.health.refused.iter().flat_map(|refused| {
        [
            ("Packet", refused.packets),
            ("Offer", refused.offers),
            ("Call", refused.calls),
            ("Connection", refused.connections),
        ]
    });
    let refused = refused.map(|(what, count)| ([what.to_owned()], count));
    out.put(&table::DEVICES_REFUSED, refused)
}

/// `job` and `namespace` are labels that Prometheus itself gives what it scrapes.
fn job_labels(job: &JobSample) -> [String; 2] {
    [job.name.namespace.clone(), job.name.name.clone()]
}

fn encode_jobs(out: &mut Out<'_>, jobs: &[JobSample]) -> fmt::Result {
    let of = |value: fn(&JobSample) -> u64| {
        let labelled = jobs.iter().map(move |job| (job_labels(job), value(job)));
        labelled.collect::<Vec<_>>()
    };
    out.put(&table::JOB_ATTEMPT, of(|job| job.attempt.into()))?;
    out.put(&table::JOB_BYTES, of(|job| job.bytes))?;
    out.put(&table::JOB_RESUMED_BYTES, of(|job| job.bytes_resumed))?;
    out.put(&table::JOB_SIZE_BYTES, of(|job| job.bytes_total))?;
    let with = |job: &JobSample, value: String| {
        let [namespace, name] = job_labels(job);
        ([namespace, name, value], 1u64)
    };
    let states = jobs.iter().map(|job| with(job, job.state.to_string()));
    out.put(&table::JOB_STATE, states)?;
    let failed = jobs
        .iter()
        .filter_map(|job| Some(with(job, job.failure?.to_owned())));
    out.put(&table::JOB_FAILED, failed)
}

fn encode_engine(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let stats = snapshot.stats();
    for (metric, value) in [
        (&table::CHUNKS_SENT, stats.chunks_sent),
        (&table::CHUNKS_RESENT, stats.chunks_resent),
        (&table::PACKETS_SENT, stats.packets_sent),
        (&table::ACKNOWLEDGED_BYTES, stats.bytes_acked),
        (&table::PLACED_BYTES, stats.bytes_placed),
        (&table::TIMEOUTS, stats.timeouts),
        (&table::SPURIOUS_RESENDS, stats.spurious),
        (&table::RESETS_SENT, snapshot.resets_sent),
        (&table::CONNECTIONS, snapshot.connections.len() as u64),
        (&table::ARMED_BYTES, snapshot.regions.armed_bytes),
    ] {
        out.put(metric, [([], value)])?;
    }
    let drops = snapshot.drops.iter();
    let drops = drops.map(|(reason, count)| ([reason.reason().to_owned()], count));
    out.put(&table::DROPPED_PACKETS, drops)
}

/// How many connections there are with each peer, over each link.
fn encode_links(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let mut links: BTreeMap<(Host, &str), u64> = BTreeMap::new();
    for connection in &snapshot.connections {
        let peer = &connection.peer;
        *links.entry((peer.host(), peer.kind().name())).or_default() += 1;
    }
    let links = links.into_iter().take(PEERS_MAX);
    let links = links.map(|((peer, link), count)| ([peer.to_string(), link.to_owned()], count));
    out.put(&table::PEER_CONNECTIONS, links)
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
        entry.paths_down += peer.down_paths as u64;
        for path in &peer.paths {
            entry.add(path);
        }
    }
    // A link that was only measured has no peers here, and nothing of it stays known.
    let used: HashSet<_> = snapshot.peers.iter().map(|peer| peer.address).collect();
    for connection in &snapshot.connections {
        if used.contains(&connection.peer)
            && let Some(peer) = peers.get_mut(&connection.peer.host())
        {
            peer.acknowledged_bytes += connection.stats.bytes_acked;
        }
    }
    for (address, past) in &snapshot.past_peers {
        if let Some(peer) = peers.get_mut(&address.host()) {
            peer.acknowledged_bytes += past.bytes_acked;
            peer.sent_chunks += past.sent_chunks;
            peer.lost_chunks += past.lost_chunks;
            peer.ce_packets += past.ce_packets;
            peer.timeouts += past.timeouts;
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
        let labelled = peers.iter();
        let labelled = labelled.map(move |(host, peer)| ([host.to_string()], value(peer)));
        labelled.collect::<Vec<_>>()
    };
    let round_trips = peers.iter().flat_map(|(host, peer)| {
        let known = &peer.round_trips_ns;
        let values = [
            ("min", known.first()),
            // The lower one: of two paths the slower is not compared with itself.
            ("median", known.get(known.len().saturating_sub(1) / 2)),
            ("max", known.last()),
        ];
        values.into_iter().filter_map(move |(of, value)| {
            let labels = [host.to_string(), of.to_owned()];
            Some((labels, seconds(*value?)))
        })
    });
    out.put(&table::PEER_RTT, round_trips)?;
    out.put(&table::PEER_PATHS_DOWN, of(|peer| peer.paths_down))?;
    let acknowledged = of(|peer| peer.acknowledged_bytes);
    out.put(&table::PEER_ACKNOWLEDGED_BYTES, acknowledged)?;
    out.put(&table::PEER_CHUNKS_SENT, of(|peer| peer.sent_chunks))?;
    out.put(&table::PEER_CHUNKS_LOST, of(|peer| peer.lost_chunks))?;
    out.put(&table::PEER_CE_PACKETS, of(|peer| peer.ce_packets))?;
    out.put(&table::PEER_TIMEOUTS, of(|peer| peer.timeouts))
}

/// Each path by itself.
#[derive(Debug)]
struct PathCollector(Arc<AttemptRegistry>);

impl Collector for PathCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.config.links.snapshot();
        let mut out = Out::from(encoder);
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
    out.put(&table::PATH_CHUNKS_SENT, of(|path| path.sent_chunks))?;
    out.put(&table::PATH_CHUNKS_LOST, of(|path| path.lost_chunks))?;
    out.put(&table::PATH_CE_PACKETS, of(|path| path.ce_packets))?;
    out.put(&table::PATH_TIMEOUTS, of(|path| path.timeouts))?;
    let is_live = of(|path| u64::from(matches!(path.state, PathState::Live)));
    out.put(&table::PATH_LIVE, is_live)?;
    let peers = snapshot.peers.iter().take(PATH_PEERS_MAX);
    let round_trips = peers.flat_map(|peer| {
        let known = peer.paths.iter();
        known.filter_map(|path| {
            let labels = path_labels(&peer.address, path);
            Some((labels, seconds(path.srtt?.get())))
        })
    });
    out.put(&table::PATH_RTT, round_trips)
}

/// Nothing where every node has one NIC.
fn encode_nic_pairs(out: &mut Out<'_>, snapshot: &Snapshot) -> fmt::Result {
    let peers = snapshot.peers.iter().take(PATH_PEERS_MAX);
    let peers = peers.filter(|peer| peer.nic_pairs.len() > 1);
    let mut live: BTreeMap<(IpAddr, IpAddr), u64> = BTreeMap::new();
    for pair in peers.flat_map(|peer| &peer.nic_pairs) {
        *live.entry((pair.here, pair.there)).or_default() += pair.live_paths as u64;
    }
    let live = live.into_iter();
    let live = live.map(|((here, there), paths)| ([here.to_string(), there.to_string()], paths));
    out.put(&table::NIC_PAIR_LIVE_PATHS, live)
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn path_labels(peer: &LinkAddress, path: &PathReport) -> [String; 3] {
    let link = peer.kind().name().to_owned();
    [peer.host().to_string(), path.id.0.to_string(), link]
}

#[cfg(test)]
mod tests {
    use weft_core::connection::Stats;
    use weft_core::endpoint::PeerTotals;
    use weft_core::units::{ConnectionId, Nanos, PathId};
    use weft_engine::{ConnectionSnapshot, LinkToken, NicPair, PeerSnapshot, PortRange};

    use weft_metrics::{Page, check};

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
            down_paths: paths
                .iter()
                .filter(|path| path.state != PathState::Live)
                .count(),
            paths,
            nic_pairs: Vec::new(),
        }
    }

    fn connection(peer: LinkAddress, bytes_acked: u64) -> ConnectionSnapshot {
        ConnectionSnapshot {
            id: ConnectionId::default(),
            part: 0,
            peer,
            stats: Stats {
                bytes_acked,
                ..Stats::default()
            },
            drops: Default::default(),
            outstanding_chunks: 0,
            writes: 0,
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

    fn root(number: u64) -> RootSpace {
        RootSpace {
            root: format!("root-{number}"),
            free_bytes: 7,
            min_free_bytes: 5,
        }
    }

    #[derive(Debug)]
    struct Paths(Snapshot);

    impl Collector for Paths {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut out = Out::from(encoder);
            encode_paths(&mut out, &self.0)?;
            encode_nic_pairs(&mut out, &self.0)
        }
    }

    fn page(metrics: fn() -> Metrics) -> String {
        let mut registry = Registry::default();
        let build = table::BUILD.with(["1", "n", "1"]).to_vec();
        register(&mut registry, &table::BUILD, Info::new(build));
        registry.register_collector(Box::new(Fixed(metrics)));
        let refusals = TlsRefusals::default();
        refusals.register(&mut registry, &table::TLS_REFUSED);
        DroppedOffers::default().register(&mut registry);
        let devices = (0..1001).map(|number| Device {
            name: format!("vdev-{number:05}"),
            owner: format!("team-a/pod-{number}"),
            refused: 1,
            refused_calls: 2,
            ..Device::default()
        });
        registry.register_collector(Box::new(DeviceCollector {
            node: watch::channel(NodeDevices::default()).1,
            devices: watch::channel(devices.collect()).1,
        }));
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
                certificate_expires: 1,
                roots: (0..20).map(root).collect(),
                fallbacks: (0..40)
                    .map(|number| (format!("n{number}"), LinkKind::Tcp))
                    .collect(),
            }
        });
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        let peers = 9 * PEERS_MAX;
        let jobs = 6 * JOBS_MAX;
        let others = series - 6 * DEVICES_MAX;
        assert!((peers + jobs..=2000).contains(&others), "{others}");
        let refused = r#"weft_device_refused_total{pod_namespace="team-a",pod_name="pod-7",device="vdev-00007"} 3"#;
        assert!(text.contains(refused));
        assert_eq!(check(&text, Page::Agent), Vec::<String>::new());
    }

    #[test]
    fn each_path_is_exported_as_it_is_declared() {
        let peers = (0..70).map(|number| {
            let paths = (0..4).map(|id| path(id, 1000, PathState::Live));
            peer([10, 0, 0, number], paths.collect())
        });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Paths(Snapshot {
            peers: peers.collect(),
            ..Snapshot::default()
        })));
        let text = weft_identity::metrics::page(&registry).2;
        assert_eq!(check(&text, Page::Paths), Vec::<String>::new());
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
            let connection = connection(peer.address, 77);
            Metrics {
                jobs: Vec::new(),
                refused: BTreeMap::new(),
                engine: Snapshot {
                    connections: vec![connection],
                    past_peers: vec![(
                        peer.address,
                        PeerTotals {
                            bytes_acked: 3,
                            sent_chunks: 4,
                            ..PeerTotals::default()
                        },
                    )],
                    peers: vec![peer],
                    ..Snapshot::default()
                },
                buffer_bytes: 0,
                nics: Vec::new(),
                certificate_expires: 1_800_000_000,
                roots: vec![root(0)],
                fallbacks: vec![("n2".to_owned(), LinkKind::Tcp)],
            }
        });
        for line in [
            r#"weft_peer_rtt_seconds{peer="10.0.0.1",of_paths="min"} 0.01"#,
            r#"weft_peer_rtt_seconds{peer="10.0.0.1",of_paths="median"} 0.02"#,
            r#"weft_peer_rtt_seconds{peer="10.0.0.1",of_paths="max"} 0.03"#,
            r#"weft_peer_paths_down{peer="10.0.0.1"} 1"#,
            r#"weft_peer_chunks_sent_total{peer="10.0.0.1"} 7"#,
            r#"weft_peer_acknowledged_bytes_total{peer="10.0.0.1"} 80"#,
            "weft_certificate_expires_timestamp_seconds{} 1800000000.0",
            r#"weft_root_free_bytes{root="root-0"} 7"#,
            r#"weft_root_min_free_bytes{root="root-0"} 5"#,
            r#"weft_link_fallback{to_node="n2",link="tcp"} 1"#,
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn what_a_peer_has_acknowledged_does_not_fall_when_the_measurement_of_an_unused_link_ends() {
        let used = peer([10, 0, 0, 1], vec![path(0, 1000, PathState::Live)]);
        let measured = LinkAddress::Tcp {
            nics: std::net::Ipv4Addr::new(10, 0, 0, 1).into(),
            ports: PortRange {
                first: 7500,
                count: 16,
            },
            token: LinkToken(1),
        };
        let acknowledged = |connections| {
            let peers = peers(&Snapshot {
                connections,
                peers: vec![used.clone()],
                ..Snapshot::default()
            });
            peers[&used.address.host()].acknowledged_bytes
        };
        let of_job = connection(used.address, 77);
        let during = acknowledged(vec![of_job.clone(), connection(measured, 50)]);
        assert_eq!((during, acknowledged(vec![of_job])), (77, 77));
    }

    #[test]
    fn of_two_paths_the_shorter_one_is_the_median() {
        let paths = [10_000_000, 90_000_000].map(|rtt_ns| path(0, rtt_ns, PathState::Live));
        let text = {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(PeersCollector(Snapshot {
                peers: vec![peer([10, 0, 0, 1], paths.to_vec())],
                ..Snapshot::default()
            })));
            weft_identity::metrics::page(&registry).2
        };
        let median = r#"weft_peer_rtt_seconds{peer="10.0.0.1",of_paths="median"} 0.01"#;
        assert!(text.contains(median), "{text}");
    }

    #[test]
    fn each_nic_is_up_or_not_and_each_pair_of_nics_has_its_live_paths() {
        let text = page(|| Metrics {
            jobs: Vec::new(),
            refused: BTreeMap::new(),
            engine: Snapshot::default(),
            buffer_bytes: 0,
            nics: vec![nic(0), nic(1)],
            certificate_expires: 1,
            roots: Vec::new(),
            fallbacks: Vec::new(),
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
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Paths(Snapshot {
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
}
