use std::sync::{Arc, Mutex};

use axum::body::Body;
use tokio::sync::mpsc;
use weft_identity::authority::Authority;

use tower::ServiceExt as _;

use super::*;

/// Allows what it is told to, and remembers what was asked.
#[derive(Clone, Default)]
struct Roles {
    allowed: Arc<Vec<Access>>,
    asked: Arc<Mutex<Vec<Access>>>,
}

impl Authorizer for Roles {
    async fn allows(&self, caller: &Caller, access: &Access) -> Result<bool, String> {
        assert_eq!(caller.user, "ada");
        self.asked.lock().unwrap().push(access.clone());
        Ok(self.allowed.contains(access))
    }
}

fn api(allowed: Vec<Access>, leader: OnceLock<Leader>) -> LiveApi<Roles> {
    let one = |name: &str| vec![name.to_owned()];
    LiveApi {
        authorizer: Roles {
            allowed: Arc::new(allowed),
            ..Roles::default()
        },
        headers: Headers {
            user: one("X-Remote-User"),
            group: one("X-Remote-Group"),
            extra: one("X-Remote-Extra-"),
        },
        leader: Arc::new(leader),
    }
}

fn leading(allowed: Vec<Access>, queries: mpsc::Sender<Query>) -> LiveApi<Roles> {
    let leader = Leader {
        queries,
        pool: ConnectionPool::new(Arc::new(Authority::new("weft").unwrap())),
        epoch: 1,
    };
    api(allowed, OnceLock::from(leader))
}

fn ada() -> HeaderMap {
    HeaderMap::from_iter([(
        header::HeaderName::from_static("x-remote-user"),
        header::HeaderValue::from_static("ada"),
    )])
}

fn progress(namespace: &str, name: &str) -> TransferProgress {
    TransferProgress {
        api_version: live_api_version(),
        kind: TransferProgress::KIND.to_owned(),
        metadata: kube::core::ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..Default::default()
        },
        status: Default::default(),
        ahead: None,
    }
}

/// Plays the controllers.
fn controllers(answer: Vec<TransferProgress>) -> mpsc::Sender<Query> {
    let (sender, mut receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(query) = receiver.recv().await {
            match query {
                Query::Progress { answer: to, .. } => to.send(answer.clone()).unwrap(),
                Query::Preflight { answer: to, .. } => {
                    let preflight = Preflight {
                        obstacles: Vec::new(),
                        is_shared: true,
                        transfer: None,
                    };
                    to.send(preflight).map_err(drop).unwrap();
                }
                Query::Neighbours { answer: to, .. } => to.send(None).unwrap(),
                Query::Copies { answer: to, .. } => to.send(Vec::new()).unwrap(),
            }
        }
    });
    sender
}

#[tokio::test]
async fn who_may_get_a_job_sees_its_progress_and_nobody_else() {
    let told = vec![progress("team-a", "minilm")];
    let may = vec![Access::jobs("get", "team-a", "minilm")];
    let asked = leading(may, controllers(told.clone()));
    let of = |name: &str| (Some("team-a".to_owned()), Some(name.to_owned()));
    let (namespace, name) = of("minilm");
    assert_eq!(asked.progress(&ada(), namespace, name).await, Ok(told));
    let (namespace, name) = of("other");
    let refused = asked.progress(&ada(), namespace, name).await.unwrap_err();
    assert_eq!(refused.code, StatusCode::FORBIDDEN);
    assert!(
        refused.message.contains("in namespace team-a"),
        "{refused:?}"
    );
    // Neither a list of the namespace, nor one of all.
    for namespace in [Some("team-a".to_owned()), None] {
        let refused = asked.progress(&ada(), namespace, None).await.unwrap_err();
        assert_eq!(refused.code, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn who_may_list_jobs_sees_copies_and_who_may_delete_jobs_removes_them() {
    let body = br#"{"root": "models", "path": "team-a/minilm"}"#;
    let may = vec![Access::jobs("list", "team-a", "")];
    let lists = leading(may, controllers(Vec::new()));
    let of = |namespace: &str| Some(namespace.to_owned());
    assert_eq!(lists.copies(&ada(), of("team-a")).await.unwrap().items, []);
    for namespace in [of("team-b"), None] {
        let refused = lists.copies(&ada(), namespace).await.unwrap_err();
        assert_eq!(refused.code, StatusCode::FORBIDDEN);
    }
    let refused = lists.remove_copies(&ada(), "team-a", body).await;
    assert_eq!(refused.unwrap_err().code, StatusCode::FORBIDDEN);

    let may = vec![Access::jobs("delete", "team-a", "")];
    let deletes = leading(may, controllers(Vec::new()));
    let removal = deletes.remove_copies(&ada(), "team-a", body).await.unwrap();
    assert!(removal.removed.is_empty() && removal.kept.is_empty());
    let refused = deletes.remove_copies(&ada(), "team-a", b"{}").await;
    assert!(refused.unwrap_err().message.contains("root"));
}

#[tokio::test]
async fn a_call_that_names_nobody_is_nobodys() {
    let asked = leading(Vec::new(), controllers(Vec::new()));
    let refused = asked.progress(&HeaderMap::new(), None, None).await;
    assert_eq!(refused.unwrap_err().code, StatusCode::UNAUTHORIZED);
    assert!(asked.authorizer.asked.lock().unwrap().is_empty());
}

const JOB: &str = r#"{"apiVersion": "weft.dev/v1alpha1", "kind": "TransferJob",
    "metadata": {"name": "minilm", "namespace": "elsewhere"},
    "spec": {"source": {"file": {"node": "n1", "root": "library", "path": "a"}},
             "destinations": {"nodes": ["n2"], "root": "models", "path": "a"}}}"#;

#[tokio::test]
async fn a_plan_needs_the_right_to_make_the_job_and_to_use_its_shared_roots() {
    let make = Access::jobs("create", "team-a", "");
    let first = leading(vec![make.clone()], controllers(Vec::new()));
    let refused = first.plan(&ada(), "team-a", JOB.as_bytes()).await;
    let refused = refused.unwrap_err();
    assert!(
        refused.message.contains("may not use rdmafabrics"),
        "{refused:?}"
    );
    let shared = first.authorizer.asked.lock().unwrap()[1].clone();
    assert_eq!((&*shared.namespace, &*shared.name), ("team-a", ""));

    let both = leading(vec![make.clone(), shared], controllers(Vec::new()));
    let plan = both.plan(&ada(), "team-a", JOB.as_bytes()).await.unwrap();
    assert_eq!((plan.plan, plan.manifest), (None, None));

    let nonsense = leading(vec![make], controllers(Vec::new()));
    let refused = nonsense.plan(&ada(), "team-a", b"{}").await.unwrap_err();
    assert_eq!(refused.code, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_does_not_know_yet_says_so() {
    let (queries, _kept) = mpsc::channel(1);
    let may = vec![Access::jobs("list", "", "")];
    let refused = leading(may, queries).progress(&ada(), None, None).await;
    assert_eq!(refused.unwrap_err().code, StatusCode::GATEWAY_TIMEOUT);
}

#[tokio::test]
async fn a_diagnosis_needs_a_role_of_its_own_and_a_node_that_is_known() {
    let body = br#"{"node": "n9"}"#;
    let nobody = leading(Vec::new(), controllers(Vec::new()));
    let refused = nobody.diagnose(&ada(), body).await.unwrap_err();
    assert_eq!(refused.code, StatusCode::FORBIDDEN);
    let may = nobody.authorizer.asked.lock().unwrap().clone();
    let refused = leading(may, controllers(Vec::new()))
        .diagnose(&ada(), body)
        .await;
    assert!(refused.unwrap_err().message.contains("node n9"));
}

#[tokio::test]
async fn a_replica_that_does_not_lead_serves_the_discovery_and_asks_callers_to_try_again() {
    let router = router(api(Vec::new(), OnceLock::new()));
    let call = async |method: &str, path: &str| {
        let path = format!("/apis/{LIVE_GROUP}/{LIVE_VERSION}{path}");
        let request = axum::http::Request::builder().method(method).uri(path);
        let request = request.header("x-remote-user", "ada");
        let request = request.body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        (head, body)
    };
    let (head, list) = call("GET", "").await;
    assert_eq!(
        (head.status, &list["kind"]),
        (StatusCode::OK, &json!("APIResourceList"))
    );
    let resources = list["resources"].as_array().unwrap();
    for resource in resources {
        let name = resource["name"].as_str().unwrap();
        for verb in resource["verbs"].as_array().unwrap() {
            let method = if verb == "create" { "POST" } else { "GET" };
            let place = match resource["namespaced"] == true {
                true => "/namespaces/team-a",
                false => "",
            };
            let (head, status) = call(method, &format!("{place}/{name}")).await;
            assert_eq!(
                head.status,
                StatusCode::SERVICE_UNAVAILABLE,
                "{verb} {name}"
            );
            assert_eq!(head.headers[header::RETRY_AFTER], "1");
            assert_eq!(head.headers[header::CONNECTION], "close");
            assert_eq!(
                (&status["kind"], &status["reason"]),
                (&json!("Status"), &json!(NOT_LEADING))
            );
        }
    }
    assert_eq!(resources.len(), 5);
}
