use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, runtime::watcher};
use serde_json::json;
use tokio::{sync::watch, time::Instant};
use weft_crds::{
    FabricNode, FabricNodeStatus, FabricStatus, Phase, RdmaFabric, TransferJob, TransferJobStatus,
};

use super::*;
use crate::controllers::{
    cache::Key,
    kinds::{Cache, WatchEvent},
    request::FINALIZER,
    tests::api_server::{ApiServer, Behaviour},
    tests::scenario::{self, minilm},
    write_fence::WriteFence,
};

/// A server with a job, and what a watch of it tells.
fn with_job() -> (ApiServer, Cache) {
    let server = ApiServer::new();
    server.put(&scenario::job("minilm"));
    let mut cache = Cache::default();
    watched(&server).apply_to(&mut cache);
    (server, cache)
}

fn cluster(server: &ApiServer, epoch: u64) -> ApiWriter {
    ApiWriter::new(server.client(), epoch)
}

fn job(server: &ApiServer) -> TransferJob {
    server.get("team-a", "minilm").unwrap()
}

/// What a watch tells of the job now.
fn watched(server: &ApiServer) -> WatchEvent {
    WatchEvent::new(watcher::Event::Apply(job(server)), |cache| &mut cache.jobs)
}

/// A user edits the job.
fn edit(server: &ApiServer) {
    let mut edited = job(server);
    edited.spec.suspend = !edited.spec.suspend;
    server.put(&edited);
}

/// Writes this phase over the version of the job that the cache has.
fn phase(cache: &Cache, phase: Phase) -> Request {
    let status = TransferJobStatus {
        phase,
        ..TransferJobStatus::default()
    };
    Request::status(cache.jobs.get(&minilm()).unwrap(), &status)
}

/// Sends a request, and stores the response in the cache.
async fn send(cluster: &ApiWriter, request: &Request, cache: &mut Cache) -> Result<(), WriteError> {
    let response = cluster.send(request).await?;
    cache.store_response(request, response);
    Ok(())
}

#[tokio::test]
async fn of_two_that_believe_to_lead_the_deposed_one_overwrites_nothing_of_the_others() {
    let (server, mut of_old) = with_job();
    let mut of_new = of_old.clone();
    let (old, new) = (cluster(&server, 5), cluster(&server, 6));
    let led = Instant::now();
    let (_renew, renewals) = watch::channel(led);
    let mut fence = WriteFence::new(5, renewals);

    let request = phase(&of_new, Phase::Complete);
    send(&new, &request, &mut of_new).await.unwrap();
    // It has not heard of that, and decides by what it knows.
    let request = phase(&of_old, Phase::Transferring);
    let conflict = send(&old, &request, &mut of_old).await.unwrap_err();
    assert!(conflict.is_conflict(), "{conflict}");
    assert!(fence.may_write(led));
    // Once it has heard of it, a write would succeed: it makes none.
    let event = watched(&server);
    assert_eq!(event.leader_epoch, 6);
    fence.observe(event.leader_epoch, led);
    event.apply_to(&mut of_old);
    assert!(!fence.may_write(led));
    let status = job(&server).status.unwrap();
    assert_eq!((status.phase, status.leader_epoch), (Phase::Complete, 6));
}

#[tokio::test]
async fn a_request_that_lost_to_a_newer_version_is_made_again_over_that() {
    let (server, mut cache) = with_job();
    let cluster = cluster(&server, 5);
    edit(&server);
    let request = phase(&cache, Phase::Preparing);
    assert!(send(&cluster, &request, &mut cache).await.is_err());
    watched(&server).apply_to(&mut cache);
    let request = phase(&cache, Phase::Preparing);
    send(&cluster, &request, &mut cache).await.unwrap();
    // The cache has learned the answer to its own request.
    let request = phase(&cache, Phase::Transferring);
    send(&cluster, &request, &mut cache).await.unwrap();
    assert_eq!(job(&server).status.unwrap().phase, Phase::Transferring);
}

#[tokio::test]
async fn a_job_that_was_changed_since_is_neither_held_let_go_nor_deleted() {
    let finalizers =
        |finalizers| Change::Apply(json!({ "metadata": { "finalizers": finalizers } }));
    for change in [
        finalizers(json!([FINALIZER])),
        finalizers(json!([])),
        Change::Delete,
    ] {
        let (server, mut cache) = with_job();
        let cluster = cluster(&server, 5);
        edit(&server);
        let request = |cache: &Cache| {
            let job = cache.jobs.get(&minilm()).unwrap();
            Request::unless_changed(job, change.clone())
        };
        let refused = send(&cluster, &request(&cache), &mut cache).await;
        let refused = refused.unwrap_err();
        assert!(refused.is_conflict(), "{change:?}: {refused}");
        watched(&server).apply_to(&mut cache);
        send(&cluster, &request(&cache), &mut cache).await.unwrap();
    }
}

#[tokio::test]
async fn statuses_of_fabrics_and_nodes_are_fenced_too() {
    let server = ApiServer::new();
    server.put(&scenario::fabric("default", 1));
    server.put(&scenario::ready("n1", "default"));
    let fabric: RdmaFabric = server.get("", "default").unwrap();
    let node: FabricNode = server.get("", "n1").unwrap();
    for request in [
        Request::status(&fabric, &FabricStatus::default()),
        Request::status(&node, &FabricNodeStatus::default()),
    ] {
        let mut cache = Cache::default();
        send(&cluster(&server, 5), &request, &mut cache)
            .await
            .unwrap();
        let refused = send(&cluster(&server, 4), &request, &mut cache).await;
        assert!(refused.unwrap_err().is_conflict(), "{request:?}");
    }
    let fabric: RdmaFabric = server.get("", "default").unwrap();
    let node: FabricNode = server.get("", "n1").unwrap();
    assert_eq!(fabric.status.unwrap().leader_epoch, 5);
    assert_eq!(node.status.unwrap().leader_epoch, 5);
}

#[tokio::test]
async fn a_label_that_the_api_server_takes_and_leaves_out_is_refused() {
    let (server, mut cache) = (ApiServer::new(), scenario::cache(2));
    server.put(&scenario::node("n1", &["gpu"]));
    server.behave("nodes", Behaviour::LeavesOut(".unwanted"));
    let cluster = cluster(&server, 5);
    let label = |key: &str, value: Option<&str>| {
        let metadata = json!({ "labels": { key: value } });
        Request::new::<Node>(Key::cluster_scoped("n1"), Change::MergeMetadata(metadata))
    };
    for value in [Some("0123"), None] {
        let request = label(scenario::MODEL, value);
        send(&cluster, &request, &mut cache).await.unwrap();
        let labels = cache.nodes.named("n1").unwrap().labels();
        assert_eq!(labels.get(scenario::MODEL).map(String::as_str), value);
    }
    let request = label("weft.dev/model.team-a.unwanted", Some("0123"));
    let refused = send(&cluster, &request, &mut cache).await.unwrap_err();
    assert!(!refused.is_conflict());
    assert!(refused.to_string().contains("team-a.unwanted"), "{refused}");
}
