use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use tokio::{sync::watch, time::Instant};
use weft_crds::{Phase, TransferJobStatus};

use super::*;
use crate::controllers::{
    lead::Lead,
    models,
    scenario::{self, minilm},
};

/// The end of a label's name that a webhook leaves out.
const UNWANTED: &str = ".unwanted";

/// One object, kept as an API server keeps it: whoever names a version or UID that is not its own is
/// refused.
#[derive(Clone)]
struct Kept(Arc<Mutex<Value>>);

impl Kept {
    fn new(object: &impl Serialize) -> Self {
        Self(Arc::new(Mutex::new(json!(object))))
    }

    fn cluster(&self, epoch: u64) -> Cluster {
        let router = Router::new().fallback(serve).with_state(self.clone());
        Cluster::new(Client::new(router, "default"), "weft-system", epoch)
    }

    fn object<K: DeserializeOwned>(&self) -> K {
        serde_json::from_value(self.0.lock().unwrap().clone()).unwrap()
    }
}

async fn serve(State(kept): State<Kept>, method: Method, uri: Uri, body: Bytes) -> Response {
    let said: Value = serde_json::from_slice(&body).unwrap();
    let mut object = kept.0.lock().unwrap();
    let named = match method {
        Method::DELETE => &said["preconditions"],
        _ => &said["metadata"],
    };
    for part in ["uid", "resourceVersion"] {
        if !named[part].is_null() && named[part] != object["metadata"][part] {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": "Conflict", "code": 409,
                "message": format!("{part} is {}", object["metadata"][part]),
            });
            return answer(StatusCode::CONFLICT, &status);
        }
    }
    let version: u64 =
        serde_json::from_value::<String>(object["metadata"]["resourceVersion"].take())
            .unwrap()
            .parse()
            .unwrap();
    object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    if uri.path().ends_with("/status") {
        object["status"] = said["status"].clone();
    } else if method == Method::PATCH {
        object["metadata"]["finalizers"] = said["metadata"]["finalizers"].clone();
        for part in ["labels", "annotations"] {
            let said = said["metadata"][part].as_object().into_iter().flatten();
            for (key, value) in said.filter(|(key, _)| !key.ends_with(UNWANTED)) {
                match object["metadata"][part].as_object_mut() {
                    Some(there) if value.is_null() => drop(there.remove(key)),
                    _ => object["metadata"][part][key] = value.clone(),
                }
            }
        }
    }
    answer(StatusCode::OK, &object)
}

fn answer(code: StatusCode, body: &Value) -> Response {
    let content = [(header::CONTENT_TYPE, "application/json")];
    (code, content, body.to_string()).into_response()
}

fn says(phase: Phase) -> Request {
    let job = scenario::job("minilm");
    Request::JobStatus {
        key: minilm(),
        uid: job.uid().unwrap(),
        status: Box::new(TransferJobStatus {
            phase,
            ..TransferJobStatus::default()
        }),
        news: Vec::new(),
        is_progress: false,
    }
}

/// What a watch tells of it now.
fn told(kept: &Kept) -> Seen {
    Seen::Job(Event::Apply(kept.object()))
}

#[tokio::test]
async fn of_two_that_believe_to_lead_the_deposed_one_overwrites_nothing_of_the_others() {
    let kept = Kept::new(&scenario::job("minilm"));
    let (old, new) = (kept.cluster(5), kept.cluster(6));
    let (mut of_old, mut of_new) = (scenario::world(2), scenario::world(2));
    let led = Instant::now();
    let (_renew, renewals) = watch::channel(led);
    let mut lead = Lead::new(5, renewals);

    new.carry_out(&says(Phase::Complete), &mut of_new)
        .await
        .unwrap();
    // It has not heard of that, and decides by what it knows.
    let stale = old.carry_out(&says(Phase::Transferring), &mut of_old).await;
    let stale = stale.unwrap_err();
    assert!(stale.is_stale(), "{stale}");
    assert_eq!(stale.failure(), Failure::Stale);
    assert!(lead.may_write(led));
    // Once it has heard of it, a write would succeed: it makes none.
    let seen = told(&kept);
    assert_eq!(seen.leader_epoch(), 6);
    lead.sees(seen.leader_epoch(), led);
    seen.enter(&mut of_old);
    assert!(!lead.may_write(led));
    let job: TransferJob = kept.object();
    let status = job.status.unwrap();
    assert_eq!((status.phase, status.leader_epoch), (Phase::Complete, 6));
}

#[tokio::test]
async fn whoever_was_overtaken_decides_again_by_what_is_there_and_writes_over_that() {
    let kept = Kept::new(&scenario::job("minilm"));
    let cluster = kept.cluster(5);
    let mut world = scenario::world(2);
    // Somebody edits the job in between.
    kept.0.lock().unwrap()["metadata"]["resourceVersion"] = json!("7");
    let request = says(Phase::Preparing);
    assert!(cluster.carry_out(&request, &mut world).await.is_err());
    told(&kept).enter(&mut world);
    cluster.carry_out(&request, &mut world).await.unwrap();
    // Its own answer is what it knows from then on.
    cluster
        .carry_out(&says(Phase::Transferring), &mut world)
        .await
        .unwrap();
    let job: TransferJob = kept.object();
    assert_eq!(job.status.unwrap().phase, Phase::Transferring);
}

#[tokio::test]
async fn a_job_that_was_changed_since_is_neither_held_let_go_nor_deleted() {
    let uid = scenario::job("minilm").uid().unwrap();
    let requests = [true, false].map(|hold| Request::Finalizer {
        key: minilm(),
        uid: uid.clone(),
        hold,
        news: Vec::new(),
    });
    let delete = Request::DeleteJob { key: minilm(), uid };
    for request in requests.into_iter().chain([delete]) {
        let kept = Kept::new(&scenario::job("minilm"));
        let (cluster, mut world) = (kept.cluster(5), scenario::world(2));
        kept.0.lock().unwrap()["metadata"]["resourceVersion"] = json!("7");
        let refused = cluster.carry_out(&request, &mut world).await.unwrap_err();
        assert!(refused.is_stale(), "{request:?}: {refused}");
        told(&kept).enter(&mut world);
        cluster.carry_out(&request, &mut world).await.unwrap();
    }
}

#[tokio::test]
async fn statuses_of_fabrics_and_nodes_are_fenced_too() {
    let (fabric, node) = (
        scenario::fabric("default", 1),
        scenario::ready("n1", "default"),
    );
    let of_fabric = Request::FabricStatus {
        name: "default".to_owned(),
        uid: fabric.uid().unwrap(),
        status: Box::default(),
    };
    let of_node = Request::FabricNodeStatus {
        name: "n1".to_owned(),
        uid: node.uid().unwrap(),
        status: Box::default(),
        news: Vec::new(),
    };
    for (kept, request) in [(Kept::new(&fabric), of_fabric), (Kept::new(&node), of_node)] {
        let mut world = scenario::world(2);
        kept.cluster(5)
            .carry_out(&request, &mut world)
            .await
            .unwrap();
        assert_eq!(kept.object::<Value>()["status"]["leaderEpoch"], 5);
        let mut behind = scenario::world(2);
        let refused = kept.cluster(4).carry_out(&request, &mut behind).await;
        assert!(refused.unwrap_err().is_stale(), "{request:?}");
    }
}

#[tokio::test]
async fn a_label_that_the_api_server_takes_and_leaves_out_is_refused() {
    let kept = Kept::new(&scenario::node("n1", &["gpu"]));
    let (cluster, mut world) = (kept.cluster(5), scenario::world(2));
    let says = |key: &str, note: Option<Note>| Request::NodeModel {
        node: "n1".to_owned(),
        uid: "node-n1".to_owned(),
        version: None,
        key: key.to_owned(),
        note,
    };
    for note in [Some(scenario::note("f1")), None] {
        let request = says(scenario::MODEL, note.clone());
        cluster.carry_out(&request, &mut world).await.unwrap();
        let there = world.nodes.named("n1").unwrap();
        assert_eq!(models::note(there, scenario::MODEL), note);
    }
    let request = says("weft.dev/model.team-a.unwanted", Some(scenario::note("f1")));
    let refused = cluster.carry_out(&request, &mut world).await.unwrap_err();
    let left_out = Consequence::LeaveOut {
        node: "n1".to_owned(),
        key: "weft.dev/model.team-a.unwanted".to_owned(),
    };
    assert_eq!(refused.consequence(&request), left_out);
    // Of what somebody keeps there, or would not have there, something else is to be thought.
    let removal = says("weft.dev/model.team-a.unwanted", None);
    let of_removal = refused.consequence(&removal);
    assert_eq!(of_removal, Consequence::Hold(Failure::Failed));
    let of_fabric = refused.consequence(&Request::NodeFabric {
        node: "n1".to_owned(),
        uid: "node-n1".to_owned(),
        fabric: Some("default".to_owned()),
    });
    assert_eq!(of_fabric, Consequence::Hold(Failure::Refused));
    assert!(refused.to_string().contains("team-a.unwanted"), "{refused}");
}
