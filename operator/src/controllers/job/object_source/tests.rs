use std::collections::BTreeSet;

use weft_crds::{Phase, TransferJobStatus};

use super::*;
use crate::controllers::{
    job::resolve::{TransferRequest, resolve, to_cancel},
    membership::Membership,
    tests::scenario,
};

fn job(name: &str) -> TransferJob {
    let mut job = scenario::job(name);
    job.spec.source = scenario::object("s3://models/minilm/");
    job
}

fn resolved(cache: &Cache, job: &TransferJob) -> Result<TransferRequest, Obstacle> {
    let resolved = resolve(job, cache, &Membership::of(cache), 3);
    resolved.map_err(|found| found.into_iter().next().unwrap())
}

fn readers(cache: &Cache, job: &TransferJob) -> Vec<String> {
    let spec = resolved(cache, job).unwrap().spec;
    let readers = spec.object.unwrap().readers;
    assert_eq!(spec.source.node, readers[0]);
    readers
}

#[test]
fn every_destination_gets_a_copy_and_the_reader_is_one_of_them() {
    let cache = scenario::cache(3);
    let transfer = resolved(&cache, &job("minilm")).unwrap();
    let spec = &transfer.spec;
    let nodes: Vec<&str> = spec.destinations.iter().map(|it| &*it.node).collect();
    assert_eq!(nodes, ["n1", "n2", "n3"]);
    assert!(spec.destinations.contains(&spec.source));
    assert_eq!(spec.source.path, "team-a/minilm");
    assert_eq!(spec.receivers().count(), 2, "the reader is on no link");
    let object = spec.object.as_ref().unwrap();
    assert_eq!(object.url, "s3://models/minilm/");
    let secret = object.secret.as_ref().unwrap();
    // Of the job's own namespace, whatever it says.
    assert_eq!((&*secret.namespace, &*secret.name), ("team-a", "store"));
    assert_eq!(
        (&*transfer.fabric, transfer.endpoints.len()),
        ("default", 3)
    );
}

/// Somebody else's job at which a node reads.
fn reads(cache: &mut Cache, name: &str, node: &str, phase: Phase) {
    let mut other = job(name);
    other.status = Some(TransferJobStatus {
        phase,
        reader: node.into(),
        ..TransferJobStatus::default()
    });
    cache.jobs.update(other);
}

#[test]
fn the_one_that_reads_for_the_fewest_unfinished_jobs_reads() {
    let mut cache = scenario::cache(3);
    reads(&mut cache, "a", "n1", Phase::Transferring);
    reads(&mut cache, "b", "n1", Phase::Transferring);
    reads(&mut cache, "c", "n3", Phase::Waiting);
    reads(&mut cache, "d", "n2", Phase::Complete);
    assert_eq!(readers(&cache, &job("minilm")), ["n2", "n3", "n1"]);
    // The same one again in a later attempt, by whichever operator.
    let mut job = job("minilm");
    job.status = Some(TransferJobStatus {
        phase: Phase::Transferring,
        reader: "n1".into(),
        ..TransferJobStatus::default()
    });
    assert_eq!(readers(&cache, &job), ["n1", "n2", "n3"]);
    // Unless it is away.
    let away = scenario::asleep("n1", "default");
    cache.fabric_nodes.forget(&Key::cluster_scoped("n1"));
    cache.fabric_nodes.update(away);
    assert_eq!(readers(&cache, &job), ["n2", "n3", "n1"]);
}

#[test]
fn jobs_that_begin_at_once_are_not_all_read_by_the_same() {
    let cache = scenario::cache(3);
    let first = |i: usize| readers(&cache, &job(&format!("job{i}"))).remove(0);
    let chosen: BTreeSet<String> = (0..20).map(first).collect();
    assert_eq!(chosen.len(), 3, "{chosen:?}");
}

#[test]
fn what_is_in_the_way_of_reading_names_the_field_and_what_to_do() {
    type Change = fn(&mut Cache, &mut TransferJob);
    let url = |job: &mut TransferJob, url: &str| job.spec.source = scenario::object(url);
    let table: [(&str, &str, Change); 5] = [
        (
            "ObjectInsecure",
            "spec.source.object.url: fabric default lets nothing be read without TLS: name an https \
             URL, or have spec.objects.allowInsecure set in the fabric",
            |_, job| job.spec.source = scenario::object("http://minio:9000/m.bin"),
        ),
        (
            "NoDestinations",
            "spec.destinations: no node of any fabric matches; it begins when one does: label a node",
            |_, job| job.spec.destinations.node_selector = Some(scenario::labelled("none")),
        ),
        (
            "FabricsDiffer",
            "spec.destinations.nodeSelector: the nodes are of several fabrics, default, other; add a \
             label that only one of them has",
            |cache, _| {
                let mut other = scenario::fabric("other", 2);
                other.spec.node_selector = scenario::labelled("rack2");
                cache.fabrics.update(other);
                let mut fabric = cache.fabrics.named("default").unwrap().clone();
                fabric.spec.node_selector = scenario::labelled("rack1");
                fabric.metadata.resource_version = Some("2".into());
                cache.fabrics.update(fabric);
                for (node, rack) in [("n1", "rack1"), ("n2", "rack1"), ("n3", "rack2")] {
                    let mut node = scenario::node(node, &["gpu", rack]);
                    node.metadata.resource_version = Some("2".into());
                    cache.nodes.update(node);
                }
            },
        ),
        (
            "NodeNotInFabric",
            "spec.destinations.nodes: n9: there is no such node; `kubectl weft roots` lists nodes",
            |_, job| {
                job.spec.destinations.node_selector = None;
                job.spec.destinations.nodes = Some(vec!["n9".into(), "n1".into()]);
            },
        ),
        (
            "NodesNotReady",
            "spec.destinations: none of the nodes is ready: n1; it begins when one is; see: kubectl \
             get fabricnodes",
            |cache, job| {
                job.spec.destinations.node_selector = None;
                job.spec.destinations.nodes = Some(vec!["n1".into()]);
                cache.fabric_nodes.forget(&Key::cluster_scoped("n1"));
                cache.fabric_nodes.update(scenario::asleep("n1", "default"));
            },
        ),
    ];
    for (reason, message, change) in table {
        let (mut cache, mut job) = (scenario::cache(3), job("minilm"));
        change(&mut cache, &mut job);
        let obstacle = resolved(&cache, &job).unwrap_err();
        assert_eq!((&*obstacle.reason, &*obstacle.message), (reason, message));
        assert!(!obstacle.is_final, "{obstacle:?}");
    }
    // A fabric that allows it, and a plan that has nothing against it.
    let (mut cache, mut job) = (scenario::cache(3), job("minilm"));
    url(&mut job, "http://minio:9000/m.bin");
    let named = |cache: &Cache, job: &TransferJob| {
        let found = resolve(job, cache, &Membership::of(cache), 3).err();
        found
            .into_iter()
            .flatten()
            .map(|it| it.reason)
            .collect::<Vec<_>>()
    };
    assert_eq!(named(&cache, &job), ["ObjectInsecure"]);
    let mut fabric = cache.fabrics.named("default").unwrap().clone();
    fabric.spec.objects.allow_insecure = true;
    fabric.metadata.resource_version = Some("2".into());
    cache.fabrics.update(fabric);
    resolved(&cache, &job).unwrap();
    assert!(named(&cache, &job).is_empty());
    job.spec.destinations.root = "library".into();
    assert_eq!(named(&cache, &job), ["RootReadOnly"]);
}

#[test]
fn who_may_know_of_a_job_of_an_object_is_told_that_it_is_over() {
    let cache = scenario::cache(3);
    let mut job = job("minilm");
    let told = |job: &TransferJob| {
        to_cancel(
            job,
            &cache,
            &Membership::of(&cache),
            3,
            &std::collections::BTreeSet::new(),
        )
    };
    assert!(told(&job).is_none(), "nobody was ever asked");
    job.status = Some(TransferJobStatus {
        phase: Phase::Transferring,
        reader: "n2".into(),
        attempt: 1,
        ..TransferJobStatus::default()
    });
    let told = told(&job).unwrap();
    assert_eq!(told.spec.source.node, "n2");
    assert_eq!((told.spec.destinations.len(), told.endpoints.len()), (3, 3));
}
