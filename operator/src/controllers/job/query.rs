//! What others ask of what the controllers know. The one task that owns it answers, between two
//! decisions; asking changes nothing.

pub(crate) mod page;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::ResourceExt as _;
use weft_crds::{
    AvailableRoot, CopyJob, NodeCopy, Obstacle, Root, RootScope, TransferJob, TransferProgress,
    live_api_version,
};
use weft_proto::agent::v1::{DiagnosePeer, Ports};

use crate::controllers::{
    cache::{Key, uid},
    fabric::decide::is_ready,
    job::{
        job_side::admits,
        object_source::{self, SecretUnavailable},
        queue::{AdmissionQueue, QueueEntry, SlotRequest},
        resolve::{self, TransferRequest},
        snapshot::Snapshot,
        status,
    },
    kinds::Cache,
    membership::Membership,
};
use crate::reports::NodeState;
use weft_transfer::{AgentEndpoint, End};

/// A query: reads what the operator knows, and sends the answer to the caller.
pub type Query = Box<dyn FnOnce(&QueryView<'_>) + Send>;

/// What answers are made from.
pub struct QueryView<'a> {
    /// The objects.
    pub(crate) cache: &'a Cache,
    /// What this process is doing, by the jobs' UIDs.
    pub(crate) snapshots: &'a BTreeMap<String, Arc<Snapshot>>,
    /// Which jobs may begin.
    pub(crate) queue: &'a AdmissionQueue,
    /// What agents say of their nodes.
    pub(crate) reports: &'a BTreeMap<String, NodeState>,
    /// Of this process.
    pub(crate) leader_epoch: u64,
    /// Now.
    pub(crate) now: Timestamp,
}

/// A verified copy that an agent reports, and how the agent is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedCopy {
    /// The copy.
    pub copy: NodeCopy,
    /// The node's fabric.
    pub fabric: String,
    /// Its agent.
    pub endpoint: AgentEndpoint,
}

/// A node, and what it shall reach.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbours {
    /// Of both.
    pub fabric: String,
    /// HOST:PORT of the node's agent.
    pub control_address: String,
    /// Bytes of an IP packet on its data interface.
    pub mtu: u32,
    /// The data paths of the other nodes of the fabric that are ready, each with its bytes of an IP packet.
    pub peers: Vec<(DiagnosePeer, u32)>,
}

/// What a job would meet.
#[derive(Debug, Clone)]
pub struct Preflight {
    /// Everything in its way that the operator knows without a call to an agent.
    pub obstacles: Vec<Obstacle>,
    /// It says that a root is Shared: its author needs the right to use fabrics.
    pub is_shared: bool,
    /// How it would begin, where nothing is in its way.
    pub(crate) transfer: Option<TransferRequest>,
}

/// How far jobs are: those of this namespace, or of all; only the one of this name. By namespace and name.
///
/// Of one job every destination is told, of several only their counts: a thousand jobs with hundreds of
/// destinations each are a hundred megabytes.
pub(crate) fn progress(
    view: &QueryView<'_>,
    namespace: Option<&str>,
    name: Option<&str>,
) -> Vec<TransferProgress> {
    let all = view.cache.jobs.iter();
    let chosen = all.filter(|(key, _)| {
        namespace.is_none_or(|wanted| key.namespace == wanted)
            && name.is_none_or(|wanted| key.name == wanted)
    });
    chosen
        .map(|(_, job)| progress_of(view, job, name.is_some()))
        .collect()
}

fn progress_of(view: &QueryView<'_>, job: &TransferJob, is_whole: bool) -> TransferProgress {
    let mut status = match running(view, job) {
        None => job.status.clone().unwrap_or_default(),
        Some(snapshot) if is_whole => status::live_status(job, snapshot, view.now),
        Some(snapshot) => status::transfer_status(job, snapshot, view.now),
    };
    if !is_whole {
        status.destinations.clear();
        status.destinations_truncated = status.counts.total > 0;
    }
    let ahead = view.queue.ahead(&uid(job));
    TransferProgress {
        api_version: live_api_version(),
        kind: TransferProgress::KIND.to_owned(),
        metadata: ObjectMeta {
            name: job.metadata.name.clone(),
            namespace: job.metadata.namespace.clone(),
            uid: job.metadata.uid.clone(),
            creation_timestamp: job.metadata.creation_timestamp.clone(),
            ..ObjectMeta::default()
        },
        status,
        ahead: ahead.map(|ahead| u32::try_from(ahead).unwrap_or(u32::MAX)),
    }
}

/// What this process is doing for a job that is not over.
fn running<'a>(view: &QueryView<'a>, job: &TransferJob) -> Option<&'a Arc<Snapshot>> {
    let is_over = job
        .status
        .as_ref()
        .is_some_and(|status| status.phase.is_over());
    let snapshot = view.snapshots.get(&uid(job))?;
    (!is_over && !matches!(snapshot.end, Some(End::Cancelled(_)))).then_some(snapshot)
}

/// What a job would meet if it were made now. The API server need not know it.
pub(crate) fn preflight(view: &QueryView<'_>, job: &TransferJob) -> Preflight {
    let QueryView { cache, .. } = *view;
    let membership = Membership::of(cache);
    let (mut found, transfer) = match resolve::resolve(job, cache, &membership, view.leader_epoch) {
        Ok(transfer) => {
            let waits = queued(job, view, &transfer).into_iter();
            let late = resolve::late_destinations(&transfer, cache);
            (waits.chain(late).collect(), Some(transfer))
        }
        Err(found) => (found, None),
    };
    // Otherwise the store is asked, and the Secret read for that.
    if transfer.is_none()
        && let Err(SecretUnavailable::Unreadable(obstacle)) =
            object_source::check_secret(job, cache)
    {
        found.push(obstacle);
    }
    Preflight {
        obstacles: found,
        is_shared: is_shared(job),
        transfer,
    }
}

/// Why it would have to wait for other jobs: as the youngest.
fn queued(job: &TransferJob, view: &QueryView<'_>, transfer: &TransferRequest) -> Option<Obstacle> {
    let slots = SlotRequest::of(transfer, view.cache);
    let mut entry = QueueEntry::new(job, &transfer.fabric, false, slots);
    entry.created_at = Some(Time(Timestamp::MAX));
    view.queue.preview(&entry).obstacle(&entry)
}

/// A node's fabric, and the others that are ready in it.
pub(crate) fn neighbours(cache: &Cache, node: &str) -> Option<Neighbours> {
    let node_view = cache.fabric_nodes.named(node)?;
    let status = node_view.status.as_ref()?;
    let fabric = &node_view.spec.fabric;
    let others = cache.fabric_nodes.iter().map(|(_, node)| node);
    let peers = others.filter_map(|other| {
        let (name, status) = (other.name_any(), other.status.as_ref()?);
        let is_peer = other.spec.fabric == *fabric && name != node;
        let is_peer = is_peer && is_ready(cache, &name, fabric) && !status.data_address.is_empty();
        is_peer.then(|| {
            let peer = DiagnosePeer {
                node: name,
                address: status.data_address.clone(),
                other_addresses: status
                    .nics
                    .iter()
                    .skip(1)
                    .map(|nic| nic.address.clone())
                    .collect(),
                ports: Some(Ports {
                    first: status.ports.first.into(),
                    count: status.ports.count.into(),
                }),
            };
            (peer, status.mtu)
        })
    });
    (!status.control_address.is_empty()).then(|| Neighbours {
        fabric: fabric.clone(),
        control_address: status.control_address.clone(),
        mtu: status.mtu,
        peers: peers.collect(),
    })
}

/// How a node's agent is reached, and its fabric; nothing while it has no address.
pub(crate) fn agent(cache: &Cache, node: &str) -> Option<(String, AgentEndpoint)> {
    let node_view = cache.fabric_nodes.named(node)?;
    let address = &node_view.status.as_ref()?.control_address;
    let endpoint = AgentEndpoint {
        node: node.to_owned(),
        address: address.clone(),
    };
    (!address.is_empty()).then(|| (node_view.spec.fabric.clone(), endpoint))
}

/// How the agents are reached of the nodes whose pods can have devices, each with its fabric: by the FabricNodes, which say so
/// also right after a change of leader and while an agent starts. A node whose agent then does not answer is named.
pub(crate) fn nodes_with_devices(view: &QueryView<'_>) -> Vec<(String, AgentEndpoint)> {
    let nodes = view.cache.fabric_nodes.iter().map(|(_, node)| node);
    let nodes = nodes.filter_map(|node| {
        let status = node.status.as_ref()?;
        status.devices.as_ref()?;
        let endpoint = AgentEndpoint {
            node: node.name_any(),
            // Where the agent may be called: what it reports itself may be another's address.
            address: status.control_address.clone(),
        };
        Some((node.spec.fabric.clone(), endpoint))
    });
    nodes.collect()
}

/// The verified copies of the jobs of a namespace, or of all.
pub(crate) fn copies(view: &QueryView<'_>, namespace: Option<&str>) -> Vec<ReportedCopy> {
    let QueryView { cache, reports, .. } = *view;
    let job = |job: &weft_proto::operator::v1::CopyJob| {
        let key = Key {
            namespace: job.namespace.clone(),
            name: job.name.clone(),
        };
        let existing = cache.jobs.get(&key).map(uid);
        CopyJob {
            exists: existing.is_some_and(|uid| uid == weft_transfer::job_uid(&job.uid)),
            namespace: job.namespace.clone(),
            name: job.name.clone(),
            uid: job.uid.clone(),
        }
    };
    let mut copies = Vec::new();
    for (node, state) in reports {
        let node_view = cache.fabric_nodes.named(node);
        let address = node_view
            .and_then(|node_view| Some(node_view.status.as_ref()?.control_address.clone()));
        let endpoint = AgentEndpoint {
            node: node.clone(),
            address: address.unwrap_or_default(),
        };
        let of_namespace = state.report.copies.iter().filter(|copy| {
            let mut jobs = copy.jobs.iter();
            namespace.is_none_or(|namespace| jobs.any(|job| job.namespace == namespace))
        });
        copies.extend(of_namespace.map(|copy| ReportedCopy {
            copy: NodeCopy {
                node: node.clone(),
                root: copy.root.clone(),
                path: copy.path.clone(),
                digest: copy.digest.clone(),
                bytes: copy.bytes,
                files: copy.files,
                jobs: copy.jobs.iter().map(job).collect(),
            },
            fabric: state.fabric.clone(),
            endpoint: endpoint.clone(),
        }));
    }
    let location = |one: &ReportedCopy| {
        let NodeCopy {
            root, path, node, ..
        } = &one.copy;
        (root.clone(), path.clone(), node.clone())
    };
    copies.sort_by_cached_key(location);
    copies
}

/// The roots that the jobs of a namespace may name.
pub(crate) fn available_roots(cache: &Cache, namespace: &str) -> Vec<AvailableRoot> {
    let membership = Membership::of(cache);
    let mut found = Vec::new();
    for (key, fabric) in cache.fabrics.iter() {
        let members = membership.members(&key.name);
        let nodes = members.iter().flat_map(|members| &members.nodes);
        let nodes: Vec<String> = nodes.cloned().collect();
        let roots = fabric.spec.roots.iter();
        let is_for = |root: &&Root| admits(root, namespace, cache).unwrap_or(false);
        found.extend(roots.filter(is_for).map(|root| AvailableRoot {
            fabric: key.name.clone(),
            name: root.name.clone(),
            access: root.access,
            scope: root.scope,
            bytes_per_namespace: root.bytes_per_namespace.clone(),
            nodes: nodes.clone(),
        }));
    }
    found
}

/// As the admission policy asks.
fn is_shared(job: &TransferJob) -> bool {
    let source = job.spec.source.file.iter().map(|file| file.scope);
    let mut scopes = source.chain([job.spec.destinations.scope]);
    scopes.any(|scope| scope == RootScope::Shared)
}

#[cfg(test)]
mod tests {
    use weft_crds::{
        DestinationState, DestinationStatus, ManifestSummary, NodeDevices, Phase, TransferJobStatus,
    };
    use weft_transfer::TransferPhase;

    use super::*;
    use crate::controllers::tests::scenario::{self, asleep, labelled, start};

    fn moving(nodes: usize) -> Snapshot {
        let destination = |i: usize| DestinationStatus {
            node: format!("n{i}"),
            state: DestinationState::Transferring,
            reason: String::new(),
            message: String::new(),
            bytes: 10,
            digest: String::new(),
        };
        Snapshot {
            fabric: "default".into(),
            phase: TransferPhase::Running,
            start_sent: true,
            attempt: 1,
            unrecorded_attempt: None,
            end: None,
            sender: "n0".into(),
            reader: None,
            manifest: Some(ManifestSummary {
                files: 1,
                bytes: 100,
                digest: None,
                not_kept: Vec::new(),
            }),
            plan: None,
            link: None,
            destinations: (0..nodes).map(destination).collect(),
            was_there: false,
            unconfirmed: Vec::new(),
            bytes: 10 * i64::try_from(nodes).unwrap(),
            bytes_total: 100 * i64::try_from(nodes).unwrap(),
            bytes_per_second: 5,
        }
    }

    /// What the controllers know.
    struct Fixture {
        cache: Cache,
        snapshots: BTreeMap<String, Arc<Snapshot>>,
        queue: AdmissionQueue,
        reports: BTreeMap<String, NodeState>,
    }

    impl Fixture {
        fn new(cache: Cache) -> Self {
            Self {
                cache,
                snapshots: BTreeMap::new(),
                queue: AdmissionQueue::new(usize::MAX),
                reports: BTreeMap::new(),
            }
        }

        /// The same while the job minilm has so many destinations.
        fn moving(cache: Cache, nodes: usize) -> Self {
            let snapshot = ("job-minilm".to_owned(), Arc::new(moving(nodes)));
            Self {
                snapshots: [snapshot].into(),
                ..Self::new(cache)
            }
        }

        fn view(&self) -> QueryView<'_> {
            QueryView {
                cache: &self.cache,
                snapshots: &self.snapshots,
                queue: &self.queue,
                reports: &self.reports,
                leader_epoch: 1,
                now: start(),
            }
        }

        fn progress(&self, name: Option<&str>) -> TransferProgress {
            let mut told = progress(&self.view(), Some("team-a"), name);
            assert_eq!(told.len(), 1);
            told.remove(0)
        }

        fn copies(&self, namespace: Option<&str>) -> Vec<ReportedCopy> {
            copies(&self.view(), namespace)
        }
    }

    #[test]
    fn live_progress_shows_every_destination_and_ends_with_what_is_written() {
        let mut stage = Fixture::moving(scenario::cache(2), 100);
        let told = stage.progress(Some("minilm"));
        assert_eq!(told.status.phase, Phase::Transferring);
        assert_eq!(told.status.destinations.len(), 100);
        assert!(!told.status.destinations_truncated);
        assert_eq!(
            (told.status.bytes, told.status.eta_seconds),
            (1000, Some(1800))
        );

        let mut job = scenario::job("minilm");
        job.metadata.resource_version = Some("9".to_owned());
        job.status = Some(TransferJobStatus {
            phase: Phase::Complete,
            bytes: 77,
            ..TransferJobStatus::default()
        });
        stage.cache.jobs.update(job);
        let told = stage.progress(Some("minilm"));
        assert_eq!(
            (told.status.phase, told.status.bytes),
            (Phase::Complete, 77)
        );
    }

    #[test]
    fn a_page_has_the_leaves_of_the_label_the_findings_of_objects_and_jobs_as_they_run() {
        let mut cache = scenario::cache(2);
        let mut fabric = scenario::fabric("default", 1);
        fabric.spec.topology.leaf_label = Some("rack".to_owned());
        let mut racked = scenario::node("n2", &["gpu"]);
        let labels = racked.metadata.labels.as_mut().unwrap();
        labels.insert("rack".to_owned(), "r2".to_owned());
        let mut devices = scenario::ready("n2", "default");
        let status = devices.status.as_mut().unwrap();
        status.mtu = 9000;
        status.devices = Some(NodeDevices {
            total: 4,
            in_use: 1,
            ..NodeDevices::default()
        });
        cache.fabrics = [fabric].into_iter().collect();
        cache.nodes = [scenario::node("n1", &["gpu"]), racked]
            .into_iter()
            .collect();
        cache.fabric_nodes = [
            scenario::ready("n1", "default"),
            devices,
            asleep("n3", "default"),
            scenario::ready("n4", "other"),
        ]
        .into_iter()
        .collect();
        let mut other = scenario::job("other");
        other.status = Some(TransferJobStatus {
            fabric: "other".to_owned(),
            ..TransferJobStatus::default()
        });
        cache.jobs.update(other);
        let stage = Fixture::moving(cache, 100);
        let shown = page::fabric(&stage.view(), "default").unwrap();
        let names: Vec<(&str, &str)> = shown
            .nodes()
            .map(|(leaf, node)| (&*leaf.name, &*node.name))
            .collect();
        assert_eq!(names, [("leaf", "n1"), ("leaf", "n3"), ("r2", "n2")]);
        let nodes: Vec<_> = shown.nodes().map(|(_, node)| node).collect();
        assert_eq!(nodes[1].state, weft_page::NodeState::NotReady);
        assert!(nodes[1].findings[0].problem.starts_with("is not ready: "));
        assert_eq!(nodes[2].devices.unwrap().total, 4);
        assert_eq!((nodes[2].sends, nodes[2].paths_down), (None, None));
        let [mtu] = &shown.findings[..] else {
            panic!("{:?}", shown.findings)
        };
        assert!(mtu.problem.contains("differ in MTU"), "{mtu:?}");

        let [job] = &shown.jobs[..] else {
            panic!("{:?}", shown.jobs)
        };
        assert_eq!((&*job.namespace, &*job.name), ("team-a", "minilm"));
        assert_eq!((job.phase, job.rate), (weft_page::Phase::Transferring, 5));
        assert_eq!((job.done, job.total), (1_000, Some(10_000)));
        assert_eq!(
            (&*job.from, job.destinations, job.to.len()),
            ("n1", 100, 64)
        );
        assert_eq!(job.to[0].done, Some(0.1));
        assert!(page::fabric(&stage.view(), "gone").is_none());
        let agents = page::agents(&stage.view(), "default");
        assert_eq!(agents.endpoints.len(), 3);
    }

    #[test]
    fn a_list_tells_how_many_destinations_there_are_and_one_job_which() {
        let mut stage = Fixture::moving(scenario::cache(2), 200);
        let (one, listed) = (stage.progress(Some("minilm")), stage.progress(None));
        assert_eq!(one.status.destinations.len(), 200);
        assert_eq!(listed.status.destinations, []);
        assert!(listed.status.destinations_truncated);
        let without_destinations = |told: TransferProgress| TransferProgress {
            status: TransferJobStatus {
                destinations: Vec::new(),
                destinations_truncated: false,
                ..told.status
            },
            ..told
        };
        assert_eq!(without_destinations(one), without_destinations(listed));
        // Also of one that is over, of which only what is written is known.
        let mut job = scenario::job("minilm");
        job.metadata.resource_version = Some("9".to_owned());
        job.status = Some(TransferJobStatus {
            phase: Phase::Complete,
            destinations: moving(1).destinations,
            ..TransferJobStatus::default()
        });
        stage.cache.jobs.update(job);
        assert_eq!(stage.progress(Some("minilm")).status.destinations.len(), 1);
        assert_eq!(stage.progress(None).status.destinations, []);
    }

    #[test]
    fn a_question_about_a_namespace_shows_no_other() {
        let stage = Fixture::new(scenario::cache(2));
        let count = |namespace, name| progress(&stage.view(), namespace, name).len();
        assert_eq!(count(Some("team-a"), None), 1);
        assert_eq!(count(Some("team-b"), None), 0);
        assert_eq!(count(None, Some("minilm")), 1);
        assert_eq!(count(None, Some("other")), 0);
    }

    #[tokio::test]
    async fn copies_are_of_a_namespaces_jobs_and_tell_which_of_these_exist() {
        let mut stage = Fixture::new(scenario::cache(2));
        let mut report = scenario::report("n2", "default");
        report.copies = vec![scenario::copy("d1")];
        let mut before = report.copies[0].jobs[0].clone();
        before.uid = "job-before".to_owned();
        report.copies[0].jobs.push(before);
        let state = NodeState::new("default", report, tokio::time::Instant::now());
        stage.reports.insert("n2".to_owned(), state);
        let found = stage.copies(Some("team-a"));
        let jobs: Vec<bool> = found[0].copy.jobs.iter().map(|job| job.exists).collect();
        assert_eq!(jobs, [true, false]);
        assert!(found[0].copy.is_held());
        assert_eq!(found[0].endpoint.address, "10.0.0.2:7400");
        assert_eq!(stage.copies(None), found);
        assert_eq!(stage.copies(Some("team-b")), []);
    }

    fn reasons(job: &TransferJob, cache: &Cache) -> Vec<String> {
        let stage = Fixture::new(cache.clone());
        let preflight = preflight(&stage.view(), job);
        preflight.obstacles.into_iter().map(|o| o.reason).collect()
    }

    #[test]
    fn a_preflight_names_everything_that_is_in_the_way_at_once() {
        let mut cache = scenario::cache(3);
        let good = scenario::job("minilm");
        assert!(reasons(&good, &cache).is_empty());

        cache.fabric_nodes.update(asleep("n1", "default"));
        let mut bad = good.clone();
        if let Some(file) = &mut bad.spec.source.file {
            file.root = "attic".into();
        }
        bad.spec.destinations.root = "library".into();
        bad.spec.destinations.node_selector = Some(labelled("none"));
        let wanted = [
            "RootUnknown",
            "RootReadOnly",
            "NoDestinations",
            "NodesNotReady",
        ];
        assert_eq!(reasons(&bad, &cache), wanted);

        if let Some(file) = &mut bad.spec.source.file {
            file.node = "n9".into();
        }
        assert_eq!(reasons(&bad, &cache), ["SourceNodeNotInFabric"]);
    }

    #[test]
    fn who_would_wait_for_a_turn_is_told_so_before_and_its_place_while_it_does() {
        let mut cache = scenario::cache(3);
        let mut fabric = scenario::fabric("default", 1);
        fabric.spec.transport.cap_mbps = Some(1000);
        fabric.metadata.resource_version = Some("2".into());
        cache.fabrics.update(fabric);
        let mut stage = Fixture::new(cache.clone());
        let job = scenario::job("minilm");
        let entry = |is_running| {
            let resolved = resolve::resolve(&job, &cache, &Membership::of(&cache), 1);
            let slots = SlotRequest::of(&resolved.unwrap(), &cache);
            QueueEntry::new(&job, "default", is_running, slots)
        };
        // Of another job, which writes elsewhere.
        let other = || QueueEntry {
            key: Key::cluster_scoped("other"),
            path: vec!["other".to_owned()],
            ..entry(true)
        };
        let reasons = |stage: &Fixture| {
            let preflight = preflight(&stage.view(), &job);
            // What it would do is told all the same.
            assert!(preflight.transfer.is_some());
            let reasons = preflight.obstacles.into_iter().map(|o| o.reason);
            reasons.collect::<Vec<_>>()
        };
        stage.queue.update_entry("first", Some(other()));
        assert_eq!(reasons(&stage), Vec::<String>::new());
        stage.queue.update_entry("second", Some(other()));
        assert_eq!(reasons(&stage), ["Queued"]);

        stage.queue.update_entry(&uid(&job), Some(entry(false)));
        stage.queue.recompute_admissions();
        assert_eq!(stage.progress(None).ahead, Some(0));
        stage.queue.update_entry("first", None);
        stage.queue.recompute_admissions();
        assert_eq!(stage.progress(None).ahead, None);
    }

    #[test]
    fn a_node_is_to_reach_the_ready_ones_of_its_fabric_and_not_itself() {
        let mut cache = scenario::cache(3);
        for (i, name) in ["n1", "n2", "n3"].into_iter().enumerate() {
            let mut node = scenario::ready(name, "default");
            if let Some(status) = &mut node.status {
                status.data_address = format!("10.0.0.{i}");
            }
            cache.fabric_nodes.update(node);
        }
        let names = |cache: &Cache| {
            let view = neighbours(cache, "n1").unwrap();
            let peers = view.peers.into_iter().map(|(peer, _)| peer.node);
            peers.collect::<Vec<_>>()
        };
        assert_eq!(names(&cache), ["n2", "n3"]);
        cache.fabric_nodes.update(asleep("n3", "default"));
        assert_eq!(names(&cache), ["n2"]);
        assert_eq!(neighbours(&cache, "n9"), None);
    }

    #[test]
    fn nodes_with_devices_are_asked_before_their_agents_have_reported() {
        let mut cache = scenario::cache(3);
        let mut node = scenario::ready("n2", "default");
        if let Some(status) = &mut node.status {
            status.devices = Some(NodeDevices::default());
        }
        cache.fabric_nodes.update(node);
        let stage = Fixture::new(cache);
        assert!(stage.reports.is_empty());
        let endpoint = AgentEndpoint {
            node: "n2".to_owned(),
            address: "10.0.0.2:7400".to_owned(),
        };
        let found = nodes_with_devices(&stage.view());
        assert_eq!(found, [("default".to_owned(), endpoint)]);
    }

    #[test]
    fn a_tenant_sees_the_roots_that_are_for_its_namespace_and_their_nodes() {
        let mut cache = scenario::cache(2);
        let mut fabric = scenario::fabric("default", 1);
        fabric.spec.roots[1].namespaces = Some(labelled("trusted"));
        fabric.metadata.resource_version = Some("2".into());
        cache.fabrics.update(fabric);
        let names = |cache: &Cache| {
            let roots = available_roots(cache, "team-a").into_iter();
            roots.map(|root| root.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&cache), ["models"]);
        assert_eq!(available_roots(&cache, "team-a")[0].nodes, ["n1", "n2"]);
        let mut trusted = scenario::namespace("team-a", &["trusted"]);
        trusted.metadata.resource_version = Some("2".into());
        cache.namespaces.update(trusted);
        assert_eq!(names(&cache), ["models", "library"]);
    }

    #[test]
    fn the_right_to_shared_roots_is_asked_for_by_the_jobs_own_word() {
        let mut job = scenario::job("minilm");
        assert!(!is_shared(&job));
        job.spec.destinations.scope = RootScope::Shared;
        assert!(is_shared(&job));
        let mut job = scenario::job("minilm");
        if let Some(file) = &mut job.spec.source.file {
            file.scope = RootScope::Shared;
        }
        assert!(is_shared(&job));
    }
}
