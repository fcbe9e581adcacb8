use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    body::{Body, BodyDataStream},
    http::Request as HttpRequest,
};
use futures::StreamExt as _;
use k8s_openapi::{
    api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewStatus},
    jiff::Timestamp,
};
use serde_json::Value;
use tokio::sync::mpsc;
use tower::ServiceExt as _;
use weft_identity::authority::Authority;
use weft_transfer::{Failure, PAGE_UNDER_WAY};

use super::{super::refused::NOT_LEADING, *};
use crate::controllers::{job::queue::AdmissionQueue, kinds::Cache, tests::scenario};

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
        pages: Arc::default(),
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
    let mut cache = scenario::cache(0);
    cache.fabrics = std::iter::empty().collect();
    leading_with(roles, &Arc::new(Mutex::new(cache)))
}

/// A leader that knows what is in this cache.
fn leading_with(roles: &Roles, cache: &Arc<Mutex<Cache>>) -> Router {
    let (sender, mut receiver) = mpsc::channel::<Query>(1);
    let cache = Arc::clone(cache);
    tokio::spawn(async move {
        while let Some(query) = receiver.recv().await {
            let cache = cache.lock().unwrap();
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
    let response = response(user, router, method, path, body).await;
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}

async fn response(
    user: Option<&str>,
    router: &Router,
    method: &str,
    path: &str,
    body: &str,
) -> Response {
    let path = format!("/apis/{LIVE_GROUP}/{LIVE_VERSION}{path}");
    let mut request = HttpRequest::builder().method(method).uri(path);
    if let Some(user) = user {
        request = request
            .header("x-remote-user", user)
            .header("x-remote-group", "team-a")
            .header("x-remote-extra-scopes", "read");
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    router.clone().oneshot(request).await.unwrap()
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

#[test]
fn who_reads_metrics_while_another_does_is_asked_to_try_again() {
    let refused = |reason: &str| {
        let failure = Failure {
            node: "n1".to_owned(),
            reason: reason.to_owned(),
            message: "node n1: try again".to_owned(),
            retriable: true,
        };
        let response = Refused::page(failure).into_response();
        response.status()
    };
    assert_eq!(refused(PAGE_UNDER_WAY), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused("NodeUnreachable"), StatusCode::BAD_GATEWAY);
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
    assert_eq!(resources.len(), 10);
}

const PAGE: &str = "/fabricpages/default";
const EVENTS: &str = "/fabricpages?watch=true&fieldSelector=metadata.name%3Ddefault";

/// Roles that allow a viewer the page, and these.
fn viewer(others: impl IntoIterator<Item = ResourceAttributes>) -> Roles {
    let page = ["get", "watch"].map(|verb| access_to_page(verb, "default"));
    Roles::new(page.into_iter().chain(others))
}

async fn html(router: &Router, path: &str) -> String {
    let response = response(Some("ada"), router, "GET", path, "").await;
    assert_eq!(response.status(), StatusCode::OK);
    let policy = &response.headers()["content-security-policy"];
    assert!(policy.to_str().unwrap().starts_with("default-src 'none'"));
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
    String::from_utf8(body.unwrap().to_vec()).unwrap()
}

/// Two nodes and the job team-a/minilm.
fn small() -> Arc<Mutex<Cache>> {
    Arc::new(Mutex::new(scenario::cache(2)))
}

#[tokio::test(start_paused = true)]
async fn the_page_of_a_fabric_needs_a_right_to_it_that_the_refusal_names() {
    for (path, verb) in [(PAGE, "get"), (EVENTS, "watch")] {
        let nobody = Roles::default();
        let (code, status) = call(&leading_with(&nobody, &small()), "GET", path, "").await;
        assert_eq!(code, StatusCode::FORBIDDEN);
        let right = format!("ada may not {verb} fabricpages of the group live.weft.dev");
        assert!(message(&status).contains(&right), "{status}");
        assert_eq!(nobody.asked(), [access_to_page(verb, "default")]);
    }
    let gone = Arc::new(Mutex::new(scenario::cache(2)));
    gone.lock().unwrap().fabrics = std::iter::empty().collect();
    let router = leading_with(&viewer([]), &gone);
    for path in [PAGE, EVENTS] {
        let (code, status) = call(&router, "GET", path, "").await;
        assert_eq!(code, StatusCode::NOT_FOUND);
        assert!(message(&status).contains("rdmafabrics.weft.dev \"default\""));
    }
}

#[tokio::test(start_paused = true)]
async fn the_page_shows_nodes_and_the_jobs_that_its_viewer_may_list() {
    let router = leading_with(&viewer([access_to_jobs("list", "", "")]), &small());
    let shown = html(&router, PAGE).await;
    assert!(shown.contains("<bdi>n2</bdi>") && shown.contains("<bdi>team-a/minilm</bdi>"));
    // Nobody has read the agents yet.
    assert!(shown.contains("<dt>Received</dt><dd>–</dd>"), "{shown}");

    let nothing = html(&leading_with(&viewer([]), &small()), PAGE).await;
    assert!(nothing.contains("<bdi>n2</bdi>") && !nothing.contains("minilm"));
    assert!(nothing.contains("0 of 0, 1 job not shown"), "{nothing}");
    assert!(nothing.contains("Jobs are not shown: that takes the right to list transferjobs"));

    let team = viewer(["team-a", "team-b"].map(|of| access_to_jobs("list", of, "")));
    let router = leading_with(&team, &small());
    let own = html(&router, &format!("{PAGE}?namespace=team-a")).await;
    assert!(own.contains("<bdi>team-a/minilm</bdi>"));
    let other = html(&router, &format!("{PAGE}?namespace=team-b")).await;
    assert!(!other.contains("minilm"));
}

#[tokio::test(start_paused = true)]
async fn what_labels_and_agents_say_cannot_become_markup_or_an_event() {
    let hostile = "\"><script>alert(1)</script>\n\nevent: x\r\rdata: y";
    let cache = small();
    {
        let mut cache = cache.lock().unwrap();
        let mut fabric = scenario::fabric("default", 1);
        fabric.spec.topology.leaf_label = Some("leaf".to_owned());
        let mut node = scenario::node("n1", &["gpu"]);
        let labels = node.metadata.labels.as_mut().unwrap();
        labels.insert("leaf".to_owned(), hostile.to_owned());
        let mut agent = scenario::ready("n1", "default");
        agent.status.as_mut().unwrap().findings = vec![weft_crds::Finding {
            reason: hostile.to_owned(),
            message: hostile.to_owned(),
        }];
        let mut job = scenario::job("minilm");
        job.status = Some(weft_crds::TransferJobStatus {
            message: hostile.to_owned(),
            bytes: -1,
            bytes_total: i64::MIN,
            bytes_per_second: i64::MAX,
            ..Default::default()
        });
        cache.fabrics = [fabric].into_iter().collect();
        cache.nodes = [node].into_iter().collect();
        cache.fabric_nodes = [agent].into_iter().collect();
        cache.jobs = [job].into_iter().collect();
    }
    let router = leading_with(&viewer([access_to_jobs("list", "", "")]), &cache);
    let page = html(&router, PAGE).await;
    assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script>alert"));
    let events = response(Some("ada"), &router, "GET", EVENTS, "").await;
    let event = next(&mut events.into_body().into_data_stream())
        .await
        .unwrap();
    let (fields, rest) = event.split_once("\n\n").unwrap();
    assert!(rest.is_empty() && !event.contains('\r'));
    let is_ours = |line: &str| line.starts_with("data: ") || line == "retry: 1000";
    assert!(fields.lines().all(is_ours), "{fields}");
}

/// The next part of a body; nothing at its end.
async fn next(body: &mut BodyDataStream) -> Option<String> {
    let data = body.next().await?.unwrap();
    Some(String::from_utf8(data.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_event_comes_at_once_and_each_second_until_the_viewer_must_ask_again() {
    let cache = small();
    let router = leading_with(&viewer([]), &cache);
    let response = response(Some("ada"), &router, "GET", EVENTS, "").await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (begun, mut body) = (
        tokio::time::Instant::now(),
        response.into_body().into_data_stream(),
    );
    let first = next(&mut body).await.unwrap();
    assert!(first.contains("<bdi>n2</bdi>"), "{first}");
    assert!(begun.elapsed().is_zero());
    let mut nodes = scenario::cache(3).fabric_nodes;
    std::mem::swap(&mut cache.lock().unwrap().fabric_nodes, &mut nodes);
    let mut events = 0;
    while let Some(event) = next(&mut body).await {
        events += 1;
        assert!(event.contains("<bdi>n3</bdi>") || events < 3);
    }
    assert!((290..=301).contains(&events), "{events}");
    assert_eq!(begun.elapsed().as_secs(), 300);
}

#[tokio::test(start_paused = true)]
async fn a_viewer_that_reads_slowly_must_ask_again_as_soon_as_another() {
    let router = leading_with(&viewer([]), &small());
    let response = response(Some("ada"), &router, "GET", EVENTS, "").await;
    let mut body = response.into_body().into_data_stream();
    let begun = tokio::time::Instant::now();
    // The next event waits already whenever it reads.
    while next(&mut body).await.is_some() && begun.elapsed().as_secs() < 400 {
        tokio::time::advance(Duration::from_millis(2_500)).await;
        // Until the page is made anew.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert!(begun.elapsed().as_secs() <= 305, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_events_of_a_fabric_end_with_it() {
    let cache = small();
    let router = leading_with(&viewer([]), &cache);
    let response = response(Some("ada"), &router, "GET", EVENTS, "").await;
    let mut body = response.into_body().into_data_stream();
    assert!(next(&mut body).await.is_some());
    cache.lock().unwrap().fabrics = std::iter::empty().collect();
    let begun = tokio::time::Instant::now();
    while next(&mut body).await.is_some() {}
    assert!(begun.elapsed() <= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_viewer_that_reads_nothing_holds_no_place_for_ever() {
    let router = leading_with(&viewer([]), &small());
    let mut silent = Vec::new();
    for _ in 0..page::STREAMS_MAX {
        silent.push(response(Some("ada"), &router, "GET", EVENTS, "").await);
    }
    for _ in 0..301 {
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let one_more = response(Some("ada"), &router, "GET", EVENTS, "").await;
    assert_eq!(one_more.status(), StatusCode::OK);
    assert_eq!(silent.len(), page::STREAMS_MAX);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_viewers_get_events_and_one_that_leaves_makes_room() {
    let router = leading_with(&viewer([]), &small());
    let mut streams = Vec::new();
    for _ in 0..page::STREAMS_MAX {
        streams.push(response(Some("ada"), &router, "GET", EVENTS, "").await);
    }
    assert!(
        streams
            .iter()
            .all(|stream| stream.status() == StatusCode::OK)
    );
    let (code, status) = call(&router, "GET", EVENTS, "").await;
    assert_eq!(
        (code, &status["reason"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("TooManyRequests"))
    );
    assert!(message(&status).contains("32 viewers"), "{status}");
    // The document needs no stream.
    html(&router, PAGE).await;
    streams.pop();
    let again = response(Some("ada"), &router, "GET", EVENTS, "").await;
    assert_eq!(again.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_watch_of_all_pages_is_refused() {
    let roles = Roles::new([access_to_page("watch", "")]);
    for query in ["", "?watch=true", "?fieldSelector=metadata.name%3Ddefault"] {
        let path = format!("/fabricpages{query}");
        let (code, status) = call(&leading_with(&roles, &small()), "GET", &path, "").await;
        assert_eq!(code, StatusCode::BAD_REQUEST, "{query}");
        assert!(message(&status).contains("fieldSelector=metadata.name"));
    }
}
