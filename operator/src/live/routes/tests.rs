use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{body::Body, http::Request as HttpRequest};
use k8s_openapi::{
    api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewStatus},
    jiff::Timestamp,
};
use serde_json::Value;
use tokio::sync::mpsc;
use tower::ServiceExt as _;
use weft_identity::authority::Authority;

use super::*;
use crate::controllers::{job::queue::AdmissionQueue, tests::scenario};

/// An API server that allows what it is told to, and remembers what was asked.
#[derive(Clone, Default)]
struct Roles {
    allowed: Vec<ResourceAttributes>,
    asked: Arc<Mutex<Vec<ResourceAttributes>>>,
}

impl Roles {
    fn new(allowed: impl IntoIterator<Item = ResourceAttributes>) -> Self {
        Self {
            allowed: allowed.into_iter().collect(),
            ..Self::default()
        }
    }

    fn asked(&self) -> Vec<ResourceAttributes> {
        self.asked.lock().unwrap().clone()
    }

    fn client(&self) -> Client {
        let roles = self.clone();
        let review = async move |body: Bytes| {
            let review: SubjectAccessReview = serde_json::from_slice(&body).unwrap();
            // Asked for the caller, and not for the operator.
            assert_eq!(review.spec.user.as_deref(), Some("ada"));
            assert_eq!(
                review.spec.groups.as_deref(),
                Some(&["team-a".to_owned()][..])
            );
            let extra = review.spec.extra.clone().unwrap();
            assert_eq!(extra["scopes"], ["read"]);
            let access = review.spec.resource_attributes.clone().unwrap();
            let status = SubjectAccessReviewStatus {
                allowed: roles.allowed.contains(&access),
                ..SubjectAccessReviewStatus::default()
            };
            roles.asked.lock().unwrap().push(access);
            serde_json::to_string(&SubjectAccessReview {
                status: Some(status),
                ..review
            })
            .unwrap()
        };
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        Client::new(Router::new().route(path, post(review)), "default")
    }
}

fn api(roles: &Roles, leader: OnceLock<Leader>) -> Router {
    let one = |name: &str| vec![name.to_owned()];
    router(LiveApi {
        client: roles.client(),
        headers: Headers {
            user: one("X-Remote-User"),
            group: one("X-Remote-Group"),
            extra: one("X-Remote-Extra-"),
        },
        leader: Arc::new(leader),
    })
}

fn led_by(roles: &Roles, queries: mpsc::Sender<Query>) -> Router {
    let leader = Leader {
        queries,
        pool: ConnectionPool::new(Arc::new(Authority::new("weft").unwrap())),
        epoch: 1,
    };
    api(roles, OnceLock::from(leader))
}

/// A leader that knows one job, team-a/minilm, and no node.
fn leading(roles: &Roles) -> Router {
    let (sender, mut receiver) = mpsc::channel::<Query>(1);
    tokio::spawn(async move {
        let mut cache = scenario::cache(0);
        cache.fabrics = std::iter::empty().collect();
        while let Some(query) = receiver.recv().await {
            query(&QueryView {
                cache: &cache,
                snapshots: &BTreeMap::new(),
                queue: &AdmissionQueue::new(usize::MAX),
                reports: &BTreeMap::new(),
                leader_epoch: 1,
                now: Timestamp::now(),
            });
        }
    });
    led_by(roles, sender)
}

/// What ada gets.
async fn call(router: &Router, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
    let (head, body) = call_as(Some("ada"), router, method, path, body).await;
    (head.status, body)
}

async fn call_as(
    user: Option<&str>,
    router: &Router,
    method: &str,
    path: &str,
    body: &str,
) -> (axum::http::response::Parts, Value) {
    let path = format!("/apis/{LIVE_GROUP}/{LIVE_VERSION}{path}");
    let mut request = HttpRequest::builder().method(method).uri(path);
    if let Some(user) = user {
        request = request
            .header("x-remote-user", user)
            .header("x-remote-group", "team-a")
            .header("x-remote-extra-scopes", "read");
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap()
}

const PROGRESS: &str = "/namespaces/team-a/transferprogress";

#[tokio::test]
async fn who_may_get_a_job_sees_its_progress_and_nobody_else() {
    let router = leading(&Roles::new([
        access_to_jobs("get", "team-a", "minilm"),
        access_to_jobs("get", "team-a", "gone"),
    ]));
    let (code, told) = call(&router, "GET", &format!("{PROGRESS}/minilm"), "").await;
    assert_eq!(
        (code, &told["metadata"]["name"]),
        (StatusCode::OK, &json!("minilm"))
    );
    let (code, status) = call(&router, "GET", &format!("{PROGRESS}/gone"), "").await;
    assert_eq!(code, StatusCode::NOT_FOUND, "{status}");
    let (code, status) = call(&router, "GET", &format!("{PROGRESS}/other"), "").await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(message(&status).contains("in namespace team-a"), "{status}");
    // Neither a list of the namespace, nor one of all.
    for path in [PROGRESS, "/transferprogress"] {
        let (code, _) = call(&router, "GET", path, "").await;
        assert_eq!(code, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn who_may_list_the_jobs_of_a_namespace_gets_these_and_no_others() {
    let allowed = ["team-a", "team-b", ""].map(|of| access_to_jobs("list", of, ""));
    let router = leading(&Roles::new(allowed));
    let other = "/namespaces/team-b/transferprogress";
    for (path, count) in [(PROGRESS, 1), (other, 0), ("/transferprogress", 1)] {
        let (code, list) = call(&router, "GET", path, "").await;
        assert_eq!(
            (code, &list["kind"]),
            (StatusCode::OK, &json!("TransferProgressList"))
        );
        assert_eq!(list["items"].as_array().unwrap().len(), count, "{path}");
    }
}

#[tokio::test]
async fn who_may_list_jobs_sees_copies_and_who_may_delete_jobs_removes_them() {
    let body = r#"{"root": "models", "path": "team-a/minilm"}"#;
    let removals = "/namespaces/team-a/copyremovals";
    let lists = leading(&Roles::new([access_to_jobs("list", "team-a", "")]));
    let (code, list) = call(&lists, "GET", "/namespaces/team-a/nodecopies", "").await;
    assert_eq!((code, &list["items"]), (StatusCode::OK, &json!([])));
    for path in ["/namespaces/team-b/nodecopies", "/nodecopies"] {
        let (code, _) = call(&lists, "GET", path, "").await;
        assert_eq!(code, StatusCode::FORBIDDEN);
    }
    let roots = |of: &str| format!("/namespaces/{of}/availableroots");
    let (code, list) = call(&lists, "GET", &roots("team-a"), "").await;
    assert_eq!((code, &list["items"]), (StatusCode::OK, &json!([])));
    let (code, _) = call(&lists, "GET", &roots("team-b"), "").await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    let (code, _) = call(&lists, "POST", removals, body).await;
    assert_eq!(code, StatusCode::FORBIDDEN);

    let deletes = leading(&Roles::new([access_to_jobs("delete", "team-a", "")]));
    let (code, removal) = call(&deletes, "POST", removals, body).await;
    assert_eq!(code, StatusCode::OK, "{removal}");
    let (code, status) = call(&deletes, "POST", removals, "{}").await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
    assert!(message(&status).contains("root"), "{status}");
}

#[tokio::test]
async fn who_may_list_the_pods_of_a_namespace_sees_their_devices() {
    let router = leading(&Roles::new([access_to_pods("team-a")]));
    let (code, list) = call(&router, "GET", "/namespaces/team-a/poddevices", "").await;
    assert_eq!((code, &list["items"]), (StatusCode::OK, &json!([])));
    for path in ["/namespaces/team-b/poddevices", "/poddevices"] {
        let (code, status) = call(&router, "GET", path, "").await;
        assert_eq!(code, StatusCode::FORBIDDEN);
        assert!(message(&status).contains("may not list pods"), "{status}");
    }
}

#[tokio::test]
async fn a_call_that_names_nobody_is_nobodys() {
    let roles = Roles::default();
    let (head, _) = call_as(None, &leading(&roles), "GET", "/transferprogress", "").await;
    assert_eq!(head.status, StatusCode::UNAUTHORIZED);
    assert!(roles.asked().is_empty());
}

const JOB: &str = r#"{"apiVersion": "weft.dev/v1alpha1", "kind": "TransferJob",
    "metadata": {"name": "minilm", "namespace": "elsewhere"},
    "spec": {"source": {"file": {"node": "n1", "root": "library", "path": "a", "scope": "Shared"}},
             "destinations": {"nodes": ["n2"], "root": "models", "path": "a"}}}"#;

#[tokio::test]
async fn a_plan_needs_the_right_to_make_the_job_and_to_use_its_shared_roots() {
    let path = "/namespaces/team-a/transferplans";
    let make = access_to_jobs("create", "team-a", "");
    let first = Roles::new([make.clone()]);
    let (code, status) = call(&leading(&first), "POST", path, JOB).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(
        message(&status).contains("may not use rdmafabrics"),
        "{status}"
    );
    let shared = first.asked()[1].clone();
    assert_eq!(
        (shared.namespace.as_deref(), &shared.name),
        (Some("team-a"), &None)
    );

    let both = leading(&Roles::new([make.clone(), shared]));
    let (code, plan) = call(&both, "POST", path, JOB).await;
    assert_eq!(
        (code, &plan["plan"]),
        (StatusCode::OK, &Value::Null),
        "{plan}"
    );
    assert_eq!(plan["obstacles"][0]["reason"], "SourceNodeNotInFabric");

    let nonsense = leading(&Roles::new([make]));
    let (code, _) = call(&nonsense, "POST", path, "{}").await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_does_not_know_yet_says_so() {
    let (queries, _kept) = mpsc::channel(1);
    let router = led_by(&Roles::new([access_to_jobs("list", "", "")]), queries);
    let (code, _) = call(&router, "GET", "/transferprogress", "").await;
    assert_eq!(code, StatusCode::GATEWAY_TIMEOUT);
}

#[tokio::test]
async fn a_diagnosis_needs_a_role_of_its_own_and_a_node_that_is_known() {
    let body = r#"{"node": "n9"}"#;
    let nobody = Roles::default();
    let (code, _) = call(&leading(&nobody), "POST", "/diagnoses", body).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    let router = leading(&Roles::new(nobody.asked()));
    let (code, status) = call(&router, "POST", "/diagnoses", body).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert!(message(&status).contains("node n9"), "{status}");
}

#[tokio::test]
async fn the_metrics_of_a_node_need_a_right_to_them_that_the_refusal_names() {
    for page in NodeMetrics::ALL {
        let path = format!("/{}", page.path("n9"));
        let nobody = Roles::default();
        let (code, status) = call(&leading(&nobody), "GET", &path, "").await;
        assert_eq!(code, StatusCode::FORBIDDEN);
        let right = format!(
            "get fabricnodes/{} of the group live.weft.dev",
            page.subresource()
        );
        assert!(message(&status).contains(&right), "{status}");
        let asked = nobody.asked();
        assert_eq!(asked, [access_to_metrics(page, "n9")]);
        let (code, status) = call(&leading(&Roles::new(asked)), "GET", &path, "").await;
        assert_eq!(code, StatusCode::NOT_FOUND);
        assert!(
            message(&status).contains("fabricnodes.weft.dev \"n9\""),
            "{status}"
        );
    }
}

#[tokio::test]
async fn a_replica_that_does_not_lead_serves_the_discovery_and_asks_callers_to_try_again() {
    let router = api(&Roles::default(), OnceLock::new());
    let (code, list) = call(&router, "GET", "", "").await;
    assert_eq!(
        (code, &list["kind"]),
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
            // A subresource is one of an object.
            let path = format!("{place}/{}", name.replace('/', "/n1/"));
            let (head, status) = call_as(Some("ada"), &router, method, &path, "").await;
            assert_eq!(
                head.status,
                StatusCode::SERVICE_UNAVAILABLE,
                "{verb} {name}"
            );
            assert_eq!(head.headers[header::RETRY_AFTER], "0");
            assert_eq!(head.headers[header::CONNECTION], "close");
            assert_eq!(
                (&status["kind"], &status["reason"]),
                (&json!("Status"), &json!(NOT_LEADING))
            );
        }
    }
    assert_eq!(resources.len(), 9);
}
