use weft_crds::{DestinationStatus, RootScope, Symlinks, TransferJob, TransferJobStatus};
use weft_proto::agent::v1 as agent;

use super::*;
use crate::controllers::{cache::Key, job::network::topology, tests::scenario};

fn resolved(cache: &Cache, job: &TransferJob) -> Result<TransferRequest, Obstacle> {
    let resolved = resolve(job, cache, &Membership::of(cache), 3);
    resolved.map_err(|found| found.into_iter().next().unwrap())
}

fn nodes(transfer: &TransferRequest) -> Vec<&str> {
    transfer
        .spec
        .destinations
        .iter()
        .map(|location| location.node.as_str())
        .collect()
}

#[test]
fn a_job_of_a_namespace_sees_its_own_directory_only() {
    let cache = scenario::cache(3);
    let transfer = resolved(&cache, &scenario::job("minilm")).unwrap();
    let location = |node: &str| NodeLocation {
        node: node.into(),
        root: "models".into(),
        path: "team-a/minilm".into(),
    };
    assert_eq!(transfer.spec.source, location("n1"));
    // The source has it already.
    assert_eq!(transfer.spec.destinations, [location("n2"), location("n3")]);
    assert_eq!(transfer.fabric, "default");
    let endpoints: Vec<&str> = transfer
        .endpoints
        .iter()
        .map(|c| c.address.as_str())
        .collect();
    assert_eq!(
        endpoints,
        ["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"]
    );
    assert_eq!(transfer.spec.leader.leader_epoch, 3);
    assert!((transfer.spec.payload_share - 1408.0 / 1538.0).abs() < 1e-9);
    let rates: Vec<u64> = transfer
        .spec
        .topology
        .nodes
        .iter()
        .map(|node| node.rate_bps)
        .collect();
    assert_eq!(rates, [1_000_000_000; 3]);
}

#[test]
fn what_a_job_says_of_symlinks_reaches_the_agent() {
    let cache = scenario::cache(2);
    let mut job = scenario::job("minilm");
    let transfer = resolved(&cache, &job).unwrap();
    assert_eq!(transfer.spec.symlinks, agent::Symlinks::Follow);
    job.spec.source.file.as_mut().unwrap().symlinks = Symlinks::Refuse;
    let transfer = resolved(&cache, &job).unwrap();
    assert_eq!(transfer.spec.symlinks, agent::Symlinks::Refuse);
}

#[test]
fn a_shared_root_has_no_directories_of_namespaces() {
    let cache = scenario::cache(2);
    let mut job = scenario::job("minilm");
    let source = job.spec.source.file.as_mut().unwrap();
    (source.root, source.path) = ("library".into(), "llama/70b/".into());
    source.scope = RootScope::Shared;
    let mut fabric = cache.fabrics.named("default").unwrap().clone();
    assert_eq!(fabric.spec.roots[1].scope, RootScope::Shared);
    fabric.metadata.resource_version = Some("2".into());
    let transfer = resolved(&cache, &job).unwrap();
    assert_eq!(transfer.spec.source.path, "llama/70b");
    assert_eq!(transfer.spec.destinations[0].path, "team-a/minilm");
    // The other location is a copy of its own, which the source makes for itself.
    assert_eq!(nodes(&transfer), ["n1/here", "n2"]);
    assert_eq!(transfer.endpoints.len(), 2);
}

/// Who made the job was asked for no right when it was made, so the job gets none later.
#[test]
fn a_job_that_is_older_than_its_roots_word_shared_is_not_let_in() {
    let mut cache = scenario::cache(2);
    let job = scenario::job("minilm");
    resolved(&cache, &job).unwrap();
    let mut fabric = cache.fabrics.named("default").unwrap().clone();
    fabric.spec.roots[0].scope = RootScope::Shared;
    fabric.metadata.resource_version = Some("2".into());
    cache.fabrics.update(fabric);
    let obstacle = resolved(&cache, &job).unwrap_err();
    assert_eq!(
        (&*obstacle.reason, obstacle.is_final),
        ("ScopeDiffers", false)
    );
    // Neither does one that is under way get further nodes.
    let membership = Membership::of(&cache);
    assert!(destinations_update(&job, &cache, &membership, &BTreeSet::new()).is_none());
}

#[test]
fn leaves_come_from_the_label_that_the_fabric_names() {
    let mut cache = scenario::cache(3);
    let mut fabric = cache.fabrics.named("default").unwrap().clone();
    fabric.spec.topology.leaf_label = Some("rack".into());
    fabric.spec.topology.link_mbps = Some(100_000);
    fabric.metadata.resource_version = Some("2".into());
    cache.fabrics.update(fabric);
    let mut node = scenario::node("n3", &["gpu"]);
    node.metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("rack".into(), "r2".into());
    node.metadata.resource_version = Some("2".into());
    cache.nodes.update(node);
    let topology = resolved(&cache, &scenario::job("minilm"))
        .unwrap()
        .spec
        .topology;
    topology.validate().unwrap();
    let leaves: Vec<&str> = topology
        .nodes
        .iter()
        .map(|node| node.leaf.as_str())
        .collect();
    assert_eq!(leaves, ["leaf", "leaf", "r2"]);
    let up: Vec<u64> = topology
        .uplinks
        .iter()
        .map(|uplink| uplink.rate_bps)
        .collect();
    assert_eq!(up, [200_000_000_000, 100_000_000_000]);
}

fn put_to_sleep(cache: &mut Cache, node: &str) {
    cache
        .fabric_nodes
        .forget(&crate::controllers::cache::Key::cluster_scoped(node));
    cache.fabric_nodes.update(scenario::asleep(node, "default"));
}

#[test]
fn a_destination_that_is_not_ready_is_no_obstacle_to_the_others() {
    let mut cache = scenario::cache(3);
    put_to_sleep(&mut cache, "n2");
    let transfer = resolved(&cache, &scenario::job("minilm")).unwrap();
    assert_eq!(nodes(&transfer), ["n2", "n3"]);
}

#[test]
fn a_job_waits_while_some_of_its_agents_and_not_all_have_an_earlier_configuration() {
    let (mut cache, job) = (scenario::cache(3), scenario::job("minilm"));
    let pend = |cache: &mut Cache, node: &str| {
        let mut node = cache.fabric_nodes.named(node).unwrap().clone();
        let status = node.status.as_mut().unwrap();
        status.conditions[0].reason = "ConfigurationPending".into();
        let version: u64 = node.metadata.resource_version.unwrap().parse().unwrap();
        node.metadata.resource_version = Some((version + 1).to_string());
        cache.fabric_nodes.update(node);
    };
    pend(&mut cache, "n2");
    let obstacle = resolved(&cache, &job).unwrap_err();
    assert_eq!(
        (&*obstacle.reason, obstacle.is_final),
        ("ConfigurationPending", false)
    );
    assert_eq!(
        obstacle.message,
        "the agents of 1 of its nodes work with an earlier configuration of fabric default than the others: \
         n2; the job begins when their pods are replaced; see: kubectl get fabricnodes"
    );
    // A plan says the same, once.
    let named = resolve(&job, &cache, &Membership::of(&cache), 3).unwrap_err();
    assert_eq!(named, [obstacle]);
    // All of them understand each other.
    for node in ["n1", "n3"] {
        pend(&mut cache, node);
    }
    resolved(&cache, &job).unwrap();
}

/// What is in a job's way, by what is changed in a cache where nothing is.
#[test]
fn every_obstacle_names_the_field_and_what_to_do() {
    type Change = fn(&mut Cache, &mut TransferJob);
    let table: [(&str, bool, &str, Change); 17] = [
        (
            "SourceNodeNotInFabric",
            false,
            "spec.source.file.node: n9: there is no such node; `kubectl weft roots` lists nodes",
            |_, job| job.spec.source.file.as_mut().unwrap().node = "n9".into(),
        ),
        (
            "SourceNodeNotInFabric",
            false,
            "spec.source.file.node: cpu1: no RdmaFabric selects it; label the node, or name one \
             that `kubectl weft roots` lists",
            |cache, job| {
                cache.nodes.update(scenario::node("cpu1", &[]));
                job.spec.source.file.as_mut().unwrap().node = "cpu1".into();
            },
        ),
        (
            "RootUnknown",
            false,
            "spec.source.file.root: fabric default has no root modles; it has models, library",
            |_, job| job.spec.source.file.as_mut().unwrap().root = "modles".into(),
        ),
        (
            "RootReadOnly",
            false,
            "spec.destinations.root: root library of fabric default is ReadOnly; name another, or \
             make it ReadWrite",
            |_, job| job.spec.destinations.root = "library".into(),
        ),
        (
            "RootNotAllowed",
            false,
            "spec.source.file.root: root models of fabric default is not for jobs of namespace \
             team-a; label the namespace as the root's namespaces ask, or name another root",
            |cache, _| {
                let mut fabric = cache.fabrics.named("default").unwrap().clone();
                fabric.spec.roots[0].namespaces = Some(scenario::labelled("trusted"));
                fabric.metadata.resource_version = Some("2".into());
                cache.fabrics.update(fabric);
            },
        ),
        (
            "ScopeDiffers",
            false,
            "spec.source.file.scope: root library of fabric default is Shared and the job does not say \
             so; delete the job and make another with scope: Shared, which needs the verb use on \
             rdmafabrics",
            |_, job| job.spec.source.file.as_mut().unwrap().root = "library".into(),
        ),
        (
            "ScopeDiffers",
            false,
            "spec.destinations.scope: root models of fabric default is PerNamespace and the job says \
             Shared; delete the job and make another without scope",
            |_, job| job.spec.destinations.scope = RootScope::Shared,
        ),
        (
            "NodeNotInFabric",
            false,
            "spec.destinations.nodes: node n9 is not of fabric default, which the source is of; label \
             them so that it selects them, or name nodes that `kubectl weft roots` lists",
            |cache, job| {
                cache.nodes.update(scenario::node("n9", &[]));
                job.spec.destinations.node_selector = None;
                job.spec.destinations.nodes = Some(vec!["n2".into(), "n9".into()]);
            },
        ),
        (
            "NodeNotInFabric",
            false,
            "spec.destinations.nodes: there are no nodes n8, n9; `kubectl weft roots` lists the nodes there are",
            |_, job| {
                job.spec.destinations.node_selector = None;
                job.spec.destinations.nodes = Some(vec!["n2".into(), "n8".into(), "n9".into()]);
            },
        ),
        (
            "FabricDeleted",
            false,
            "RdmaFabric default is being deleted; the job begins when another one has its nodes",
            |cache, _| {
                let mut fabric = cache.fabrics.named("default").unwrap().clone();
                fabric.metadata.deletion_timestamp = Some(
                    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(scenario::start()),
                );
                fabric.metadata.resource_version = Some("2".into());
                cache.fabrics.update(fabric);
            },
        ),
        (
            "NoDestinations",
            false,
            "spec.destinations: no node of fabric default besides n1, the source, matches; it begins \
             when one does: label a node",
            |_, job| job.spec.destinations.node_selector = Some(scenario::labelled("none")),
        ),
        (
            "NodesNotReady",
            false,
            "spec.source.file.node: n1 is not ready; see: kubectl get fabricnodes",
            |cache, _| put_to_sleep(cache, "n1"),
        ),
        (
            "NodesNotReady",
            false,
            "spec.destinations: none of the nodes is ready: n2, n3; it begins when one is; see: \
             kubectl get fabricnodes",
            |cache, _| {
                put_to_sleep(cache, "n2");
                put_to_sleep(cache, "n3");
            },
        ),
        (
            "CopyWithinSource",
            true,
            "spec.destinations.path: node n1 is the source, and of team-a/minilm and \
             team-a/minilm/copy in root models one lies within the other: give a path of its own, or \
             leave the node out",
            |_, job| job.spec.destinations.path = "minilm/copy".into(),
        ),
        (
            "NoDestinations",
            true,
            "spec.destinations.nodes: names only n1, which is the source and has it at that path: \
             name another node, root or path",
            |_, job| {
                job.spec.destinations.node_selector = None;
                job.spec.destinations.nodes = Some(vec!["n1".into()]);
            },
        ),
        ("SelectorInvalid", true, "", |_, job| {
            let requirement =
                k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement {
                    key: "gpu".into(),
                    operator: "Equals".into(),
                    values: None,
                };
            let selector = job.spec.destinations.node_selector.as_mut().unwrap();
            selector.match_expressions = Some(vec![requirement]);
        }),
        (
            "PathInvalid",
            true,
            "spec.source.file.root: path team-a/../team-b/secret must be relative to the root and \
             without '..'",
            |_, job| job.spec.source.file.as_mut().unwrap().path = "../team-b/secret".into(),
        ),
    ];
    for (reason, is_final, message, change) in table {
        let (mut cache, mut job) = (scenario::cache(3), scenario::job("minilm"));
        change(&mut cache, &mut job);
        let obstacle = resolved(&cache, &job).unwrap_err();
        assert_eq!(
            (&*obstacle.reason, obstacle.is_final),
            (reason, is_final),
            "{obstacle:?}"
        );
        if !message.is_empty() {
            assert_eq!(obstacle.message, message);
        }
    }
}

#[test]
fn a_root_is_for_the_namespaces_that_it_selects() {
    let mut cache = scenario::cache(2);
    let mut fabric = cache.fabrics.named("default").unwrap().clone();
    fabric.spec.roots[0].namespaces = Some(scenario::labelled("models"));
    fabric.metadata.resource_version = Some("2".into());
    cache.fabrics.update(fabric);
    assert_eq!(
        nodes(&resolved(&cache, &scenario::job("minilm")).unwrap()),
        ["n2"]
    );
}

/// After so many attempts, with this one destination.
fn naming(node: &str, attempt: u32) -> TransferJobStatus {
    let shown = DestinationStatus {
        node: node.into(),
        state: Default::default(),
        reason: String::new(),
        message: String::new(),
        bytes: 0,
        digest: String::new(),
    };
    TransferJobStatus {
        attempt,
        destinations: vec![shown],
        ..TransferJobStatus::default()
    }
}

#[test]
fn who_may_know_of_a_job_is_told_even_when_it_is_not_selected_any_more() {
    let cache = scenario::cache(4);
    let mut job = scenario::job("minilm");
    job.spec.destinations.node_selector = Some(scenario::labelled("none"));
    job.status = Some(naming("n4", 7));
    let transfer = to_cancel(&job, &cache, &Membership::of(&cache), 3, &BTreeSet::new()).unwrap();
    assert_eq!(nodes(&transfer), ["n4"]);
    assert_eq!(transfer.endpoints.len(), 2);
    assert_eq!(transfer.spec.leader.attempts_before, 7);
}

#[test]
fn agents_are_told_although_the_sources_node_is_gone() {
    let mut cache = scenario::cache(4);
    let mut job = scenario::job("minilm");
    cache.fabric_nodes.forget(&Key::cluster_scoped("n1"));
    // Nobody but the source is known of a job whose status names nobody yet.
    assert!(to_cancel(&job, &cache, &Membership::of(&cache), 3, &BTreeSet::new()).is_none());
    let n2 = BTreeSet::from(["n2".to_owned()]);
    let by_copy = to_cancel(&job, &cache, &Membership::of(&cache), 3, &n2).unwrap();
    job.status = Some(naming("n2", 1));
    let by_status = to_cancel(&job, &cache, &Membership::of(&cache), 3, &BTreeSet::new()).unwrap();
    for transfer in [by_copy, by_status] {
        assert_eq!(transfer.fabric, "default");
        let told = transfer.endpoints.iter().map(|endpoint| &*endpoint.node);
        assert_eq!(told.collect::<Vec<_>>(), ["n2", "n3", "n4"]);
    }
}

#[test]
fn agents_are_told_although_the_source_is_of_another_fabric_now() {
    let mut cache = scenario::cache(3);
    let mut job = scenario::job("minilm");
    let mut status = naming("n2", 1);
    status.fabric = "default".into();
    job.status = Some(status);
    let mut moved = cache.fabric_nodes.named("n1").unwrap().clone();
    moved.spec.fabric = "other".into();
    moved.metadata.resource_version = Some("2".into());
    cache.fabric_nodes.update(moved);
    let transfer = to_cancel(&job, &cache, &Membership::of(&cache), 3, &BTreeSet::new()).unwrap();
    let told = transfer.endpoints.iter().map(|endpoint| &*endpoint.node);
    assert_eq!(told.collect::<Vec<_>>(), ["n2", "n3"]);
}

#[test]
fn a_plan_counts_with_the_fabrics_cap() {
    let cache = scenario::cache(2);
    let mut fabric = cache.fabrics.named("default").unwrap().clone();
    let names = BTreeSet::from(["n1", "n2"]);
    for (cap, mbps) in [(None, 1000), (Some(400), 400), (Some(40_000), 1000)] {
        fabric.spec.transport.cap_mbps = cap;
        let nodes = topology(&cache, &fabric, &names).nodes;
        assert!(nodes.iter().all(|node| node.rate_bps == mbps * 1_000_000));
    }
}
