//! What can be asked, by path and verb as the API server has them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::TryStreamExt as _;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use kube::Client;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};
use weft_crds::{
    AvailableRoot, AvailableRootList, CopyRemoval, CopyRemovalRequest, Diagnosis, DiagnosisRequest,
    FabricPage, GROUP, LIVE_GROUP, LIVE_VERSION, NodeCopy, NodeCopyList, NodeMetrics, Obstacle,
    PodDevice, TransferJob, TransferPlan, TransferProgress, TransferProgressList, live_api_version,
};
use weft_identity::metrics::OPEN_METRICS;
use weft_page::{EVENTS_CONTENT_TYPE, Fabric, HEADERS, View, render};
use weft_planner::Request;
use weft_proto::agent::v1::ReadMetricsRequest;
use weft_transfer::ConnectionPool;

use super::{
    caller::{self, access_to_jobs, access_to_metrics, access_to_page, access_to_pods},
    copies, devices, diagnosis,
    front::Headers,
    leader::Leader,
    page::{self, Pages, VisibleJobs},
    refused::{Refused, answer},
};
use crate::controllers::{Preflight, Query, QueryView, manifest_summary, query};

/// The controllers answer between two decisions, which take milliseconds; before they have listed
/// everything, they do not.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The API server gives a call up after 60 s. The source may list many files.
const STAT_TIMEOUT: Duration = Duration::from_secs(45);

/// What the routes work with.
#[derive(Clone)]
pub(super) struct LiveApi {
    pub(super) client: Client,
    pub(super) headers: Headers,
    /// Empty on a standby replica.
    pub(super) leader: Arc<OnceLock<Leader>>,
    /// Those that somebody looks at.
    pub(super) pages: Arc<Pages>,
}

/// The routes. Every replica answers the discovery; the rest needs the leader.
pub(super) fn router(api: LiveApi) -> Router {
    let base = format!("/apis/{LIVE_GROUP}/{LIVE_VERSION}");
    let of_all = |resource: &str| format!("{base}/{resource}");
    let of_namespace = |resource: &str| format!("{base}/namespaces/{{namespace}}/{resource}");
    let progress = TransferProgress::RESOURCE;
    let of_job = format!("{}/{{name}}", of_namespace(progress));
    Router::new()
        .route(&base, get(resources))
        .route(&of_all(progress), get(LiveApi::progress))
        .route(&of_namespace(progress), get(LiveApi::progress))
        .route(&of_job, get(LiveApi::progress))
        .route(&of_namespace(TransferPlan::RESOURCE), post(LiveApi::plan))
        .route(&of_all(Diagnosis::RESOURCE), post(LiveApi::diagnose))
        .route(&of_all(NodeCopy::RESOURCE), get(LiveApi::copies))
        .route(&of_namespace(NodeCopy::RESOURCE), get(LiveApi::copies))
        .route(&of_namespace(AvailableRoot::RESOURCE), get(LiveApi::roots))
        .route(&of_all(PodDevice::RESOURCE), get(LiveApi::devices))
        .route(&of_namespace(PodDevice::RESOURCE), get(LiveApi::devices))
        .route(
            &of_namespace(CopyRemoval::RESOURCE),
            post(LiveApi::remove_copies),
        )
        .route(
            &of_all(&NodeMetrics::Agent.path("{name}")),
            get(|api, names, call| LiveApi::metrics(api, names, call, NodeMetrics::Agent)),
        )
        .route(
            &of_all(&NodeMetrics::Paths.path("{name}")),
            get(|api, names, call| LiveApi::metrics(api, names, call, NodeMetrics::Paths)),
        )
        .route(&of_all(FabricPage::RESOURCE), get(LiveApi::page_events))
        .route(&of_all(&FabricPage::path("{name}")), get(LiveApi::page))
        .fallback(|| async { Refused::new(StatusCode::NOT_FOUND, "NotFound", "no such path") })
        .with_state(api)
}

/// The names in a path; of all namespaces, and of all names, where there is none.
#[derive(Debug, Deserialize)]
struct Names {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

impl Names {
    /// The namespace, if the call is about one.
    fn namespace(&self) -> Option<&str> {
        (!self.namespace.is_empty()).then_some(&*self.namespace)
    }
}

/// The discovery of the group. The API server calls it to see whether this server is there, and needs it
/// whenever a namespace is deleted.
async fn resources() -> Response {
    let metrics = |page: NodeMetrics| format!("{}/{}", NodeMetrics::RESOURCE, page.subresource());
    let list = json!({
        "apiVersion": "v1", "kind": "APIResourceList",
        "groupVersion": live_api_version(),
        "resources": [
            {"name": TransferProgress::RESOURCE, "singularName": TransferProgress::RESOURCE,
             "namespaced": true, "kind": TransferProgress::KIND, "verbs": ["get", "list"]},
            {"name": TransferPlan::RESOURCE, "singularName": "transferplan",
             "namespaced": true, "kind": TransferPlan::KIND, "verbs": ["create"]},
            {"name": Diagnosis::RESOURCE, "singularName": "diagnosis",
             "namespaced": false, "kind": Diagnosis::KIND, "verbs": ["create"]},
            {"name": NodeCopy::RESOURCE, "singularName": "nodecopy",
             "namespaced": true, "kind": "NodeCopy", "verbs": ["list"]},
            {"name": AvailableRoot::RESOURCE, "singularName": "availableroot",
             "namespaced": true, "kind": "AvailableRoot", "verbs": ["list"]},
            {"name": PodDevice::RESOURCE, "singularName": "poddevice",
             "namespaced": true, "kind": "PodDevice", "verbs": ["list"]},
            {"name": CopyRemoval::RESOURCE, "singularName": "copyremoval",
             "namespaced": true, "kind": CopyRemoval::KIND, "verbs": ["create"]},
            {"name": FabricPage::RESOURCE, "singularName": "fabricpage",
             "namespaced": false, "kind": FabricPage::KIND, "verbs": ["get", "watch"]},
            {"name": metrics(NodeMetrics::Agent), "singularName": "",
             "namespaced": false, "kind": NodeMetrics::KIND, "verbs": ["get"]},
            {"name": metrics(NodeMetrics::Paths), "singularName": "",
             "namespaced": false, "kind": NodeMetrics::KIND, "verbs": ["get"]},
        ],
    });
    answer(StatusCode::OK, &list)
}

impl LiveApi {
    /// The leader's part of this process, and the caller, who is allowed this.
    async fn authorize(
        &self,
        call: &HeaderMap,
        access: &ResourceAttributes,
    ) -> Result<(&Leader, SubjectAccessReviewSpec), Refused> {
        let leader = self.leader.get().ok_or_else(Refused::not_leading)?;
        let Some(caller) = caller::caller(call, &self.headers) else {
            let text = "the API server's proxy names no user";
            return Err(Refused::new(StatusCode::UNAUTHORIZED, "Unauthorized", text));
        };
        self.allow(&caller, access).await?;
        Ok((leader, caller))
    }

    async fn allow(
        &self,
        caller: &SubjectAccessReviewSpec,
        access: &ResourceAttributes,
    ) -> Result<(), Refused> {
        match self.may(caller, access).await? {
            true => Ok(()),
            false => {
                let text = |part: &Option<String>| part.clone().unwrap_or_default();
                let place = match text(&access.namespace).as_str() {
                    "" => "in all namespaces".to_owned(),
                    namespace => format!("in namespace {namespace}"),
                };
                let (user, verb) = (text(&caller.user), text(&access.verb));
                let (mut resource, group) = (text(&access.resource), text(&access.group));
                if let Some(part) = &access.subresource {
                    resource = format!("{resource}/{part}");
                }
                let text = format!(
                    "{user} may not {verb} {resource} of the group {group} {place}: a role must allow it"
                );
                Err(Refused::new(StatusCode::FORBIDDEN, "Forbidden", text))
            }
        }
    }

    /// Whether the caller is allowed this.
    async fn may(
        &self,
        caller: &SubjectAccessReviewSpec,
        access: &ResourceAttributes,
    ) -> Result<bool, Refused> {
        let allowed = caller::allows(&self.client, caller, access).await;
        allowed.map_err(|problem| {
            let text = format!("the caller's rights cannot be looked up: {problem}; try again");
            let code = StatusCode::SERVICE_UNAVAILABLE;
            Refused::new(code, "ServiceUnavailable", text)
        })
    }

    /// How far jobs are, or the one of this name.
    async fn progress(
        State(api): State<Self>,
        Path(names): Path<Names>,
        call: HeaderMap,
    ) -> Result<Response, Refused> {
        let Names { namespace, name } = &names;
        let verb = if name.is_empty() { "list" } else { "get" };
        let access = access_to_jobs(verb, namespace, name);
        let (leader, _) = api.authorize(&call, &access).await?;
        let missing = || {
            let text = format!(
                "transferjobs.weft.dev \"{name}\" not found in namespace {namespace}; see: kubectl \
                 get transferjobs --namespace {namespace}"
            );
            Refused::new(StatusCode::NOT_FOUND, "NotFound", text)
        };
        let (of_namespace, of_name) = (names.namespace().map(str::to_owned), name.clone());
        let found = leader.ask(move |known| {
            let name = (!of_name.is_empty()).then_some(&*of_name);
            query::progress(known, of_namespace.as_deref(), name)
        });
        let mut items = found.await?;
        if name.is_empty() {
            return Ok(answer(
                StatusCode::OK,
                &TransferProgressList {
                    api_version: live_api_version(),
                    kind: format!("{}List", TransferProgress::KIND),
                    metadata: Default::default(),
                    items,
                },
            ));
        }
        let one = items.pop().ok_or_else(missing)?;
        Ok(answer(StatusCode::OK, &one))
    }

    async fn plan(
        State(api): State<Self>,
        Path(Names { namespace, .. }): Path<Names>,
        call: HeaderMap,
        body: Bytes,
    ) -> Result<Response, Refused> {
        let access = access_to_jobs("create", &namespace, "");
        let (leader, caller) = api.authorize(&call, &access).await?;
        let mut job: TransferJob = parse(&body, "TransferJob")?;
        job.metadata.namespace = Some(namespace.clone());
        // The object does not exist yet, whatever its body says.
        job.metadata.uid = None;
        job.status = None;
        let preflight = leader.ask(move |known| query::preflight(known, &job));
        let preflight = preflight.await?;
        if preflight.is_shared {
            let access = caller::access("use", (GROUP, "rdmafabrics"), &namespace, "");
            api.allow(&caller, &access).await?;
        }
        let planned = timeout(STAT_TIMEOUT, plan_of(preflight, &leader.pool));
        let planned = planned.await;
        let plan = planned.map_err(|_| Refused::late("the source's agent"))?;
        Ok(answer(StatusCode::OK, &plan))
    }

    async fn copies(
        State(api): State<Self>,
        Path(names): Path<Names>,
        call: HeaderMap,
    ) -> Result<Response, Refused> {
        let access = access_to_jobs("list", &names.namespace, "");
        let (leader, _) = api.authorize(&call, &access).await?;
        let namespace = names.namespace().map(str::to_owned);
        let copies = leader.ask(move |known| {
            let copies = query::copies(known, namespace.as_deref()).into_iter();
            let shown = copies.map(|one| copies::shown(one.copy, namespace.as_deref()));
            shown.collect()
        });
        let list = NodeCopyList {
            api_version: live_api_version(),
            kind: NodeCopyList::KIND.to_owned(),
            metadata: Default::default(),
            items: copies.await?,
        };
        Ok(answer(StatusCode::OK, &list))
    }

    /// The roots that are for a namespace, for who may list its jobs.
    async fn roots(
        State(api): State<Self>,
        Path(Names { namespace, .. }): Path<Names>,
        call: HeaderMap,
    ) -> Result<Response, Refused> {
        let access = access_to_jobs("list", &namespace, "");
        let (leader, _) = api.authorize(&call, &access).await?;
        let roots = leader.ask(move |known| query::available_roots(known.cache, &namespace));
        let list = AvailableRootList {
            api_version: live_api_version(),
            kind: AvailableRootList::KIND.to_owned(),
            metadata: Default::default(),
            items: roots.await?,
        };
        Ok(answer(StatusCode::OK, &list))
    }

    /// The virtual devices of pods, for who may list these.
    async fn devices(
        State(api): State<Self>,
        Path(names): Path<Names>,
        call: HeaderMap,
    ) -> Result<Response, Refused> {
        let access = access_to_pods(&names.namespace);
        let (leader, _) = api.authorize(&call, &access).await?;
        let nodes = leader.ask(query::nodes_with_devices).await?;
        let list = devices::list(&names.namespace, nodes, &leader.pool, leader.epoch);
        Ok(answer(StatusCode::OK, &list.await))
    }

    async fn remove_copies(
        State(api): State<Self>,
        Path(Names { namespace, .. }): Path<Names>,
        call: HeaderMap,
        body: Bytes,
    ) -> Result<Response, Refused> {
        let access = access_to_jobs("delete", &namespace, "");
        let (leader, _) = api.authorize(&call, &access).await?;
        let request: CopyRemovalRequest = parse(&body, "CopyRemovalRequest")?;
        let of = namespace.clone();
        let copies = leader.ask(move |known| query::copies(known, Some(&of)));
        let copies = copies.await?;
        let removal = copies::remove(&request, &namespace, copies, &leader.pool, leader.epoch);
        Ok(answer(StatusCode::OK, &removal.await))
    }

    /// What a node's agent exports for Prometheus, as the agent sends it.
    async fn metrics(
        State(api): State<Self>,
        Path(Names { name, .. }): Path<Names>,
        call: HeaderMap,
        page: NodeMetrics,
    ) -> Result<Response, Refused> {
        let (leader, _) = api
            .authorize(&call, &access_to_metrics(page, &name))
            .await?;
        let of = name.clone();
        let agent = leader.ask(move |known| query::agent(known.cache, &of));
        let Some((fabric, endpoint)) = agent.await? else {
            let text = format!(
                "fabricnodes.{GROUP} \"{name}\" not found, or its agent has no address yet; see: kubectl get fabricnodes"
            );
            return Err(Refused::new(StatusCode::NOT_FOUND, "NotFound", text));
        };
        let request = ReadMetricsRequest {
            leader_epoch: leader.epoch,
            paths: page == NodeMetrics::Paths,
        };
        let pool = leader.pool.of_fabric(&fabric);
        let read = weft_transfer::read_metrics(request, &pool, &endpoint).await;
        let parts = read.map_err(Refused::page)?;
        let name = endpoint.node;
        let parts = parts.map_err(move |failure| {
            tracing::warn!(
                "the metrics of node {name} end too early: {}",
                failure.message
            );
            std::io::Error::other(failure.message)
        });
        let body = Body::from_stream(parts);
        Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], body).into_response())
    }

    /// A fabric's page, with the jobs that its viewer may list.
    async fn page(
        State(api): State<Self>,
        Path(Names { name, .. }): Path<Names>,
        call: HeaderMap,
        address: Uri,
    ) -> Result<Response, Refused> {
        let access = access_to_page("get", &name);
        let (leader, caller) = api.authorize(&call, &access).await?;
        let view = View::of_query(address.query().unwrap_or_default());
        let jobs = api.visible_jobs(&caller, &view).await?;
        let fabric = Arc::clone(&api.watched(leader, &name).await?.borrow());
        let html = render(&jobs.of(&fabric), &view);
        Ok(page_response(Body::from(html)))
    }

    /// The events of a fabric's page.
    async fn page_events(
        State(api): State<Self>,
        call: HeaderMap,
        address: Uri,
    ) -> Result<Response, Refused> {
        let query = address.query().unwrap_or_default();
        let name = watched_name(query).unwrap_or_default();
        let access = access_to_page("watch", &name);
        let (leader, caller) = api.authorize(&call, &access).await?;
        if name.is_empty() {
            let text = format!(
                "fabricpages are watched one at a time: {}",
                FabricPage::events_path("NAME")
            );
            return Err(Refused::new(StatusCode::BAD_REQUEST, "BadRequest", text));
        }
        let view = View::of_query(query);
        let jobs = api.visible_jobs(&caller, &view).await?;
        let permit = api.pages.stream_permit()?;
        let fabric = api.watched(leader, &name).await?;
        let events = page::events(fabric, jobs, view, permit);
        let mut response = page_response(Body::from_stream(events));
        let kind = HeaderValue::from_static(EVENTS_CONTENT_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Ok(response)
    }

    async fn watched(
        &self,
        leader: &Leader,
        name: &str,
    ) -> Result<watch::Receiver<Arc<Fabric>>, Refused> {
        let fabric = self.pages.watch(leader, name).await?;
        fabric.ok_or_else(|| {
            let text =
                format!("rdmafabrics.{GROUP} \"{name}\" not found; see: kubectl get rdmafabrics");
            Refused::new(StatusCode::NOT_FOUND, "NotFound", text)
        })
    }

    async fn visible_jobs(
        &self,
        caller: &SubjectAccessReviewSpec,
        view: &View,
    ) -> Result<VisibleJobs, Refused> {
        if self.may(caller, &access_to_jobs("list", "", "")).await? {
            return Ok(VisibleJobs::All);
        }
        Ok(match &view.namespace {
            Some(of) if self.may(caller, &access_to_jobs("list", of, "")).await? => {
                VisibleJobs::OfNamespace(of.clone())
            }
            _ => VisibleJobs::None,
        })
    }

    async fn diagnose(
        State(api): State<Self>,
        call: HeaderMap,
        body: Bytes,
    ) -> Result<Response, Refused> {
        let access = caller::access("create", (LIVE_GROUP, Diagnosis::RESOURCE), "", "");
        let (leader, _) = api.authorize(&call, &access).await?;
        let DiagnosisRequest { node } = parse(&body, "DiagnosisRequest")?;
        let of = node.clone();
        let known = leader.ask(move |known| query::neighbours(known.cache, &of));
        let Some(neighbours) = known.await? else {
            let text = format!("no agent of node {node} is known; see: kubectl get fabricnodes");
            return Err(Refused::new(StatusCode::NOT_FOUND, "NotFound", text));
        };
        let found = diagnosis::of(&node, &neighbours, &leader.pool, leader.epoch).await;
        let found = found.map_err(|refusal| {
            Refused::new(StatusCode::BAD_GATEWAY, "AgentRefused", refusal.message)
        })?;
        Ok(answer(StatusCode::OK, &found))
    }
}

/// With the headers that a fabric's page needs.
fn page_response(body: Body) -> Response {
    let mut response = body.into_response();
    for (name, value) in HEADERS {
        let name = HeaderName::from_static(name);
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// The fabric that a query watches, read as the API server reads it.
fn watched_name(query: &str) -> Option<String> {
    let (mut is_watch, mut name) = (false, None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "watch" => is_watch = matches!(&*value, "true" | "1"),
            "fieldSelector" => {
                name = value.strip_prefix("metadata.name=").map(str::to_owned);
            }
            _ => {}
        }
    }
    name.filter(|_| is_watch)
}

impl Leader {
    /// Asks the controllers.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        query: impl FnOnce(&QueryView<'_>) -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let (sender, receiver) = oneshot::channel();
        // A caller that has gone needs no answer.
        let query: Query = Box::new(move |known| drop(sender.send(query(known))));
        let asked = async {
            self.queries.send(query).await.ok()?;
            receiver.await.ok()
        };
        let answer = timeout(ANSWER_WITHIN, asked).await.ok().flatten();
        answer.ok_or_else(|| Refused::late("the operator"))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8], kind: &str) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| {
        let text = format!("the body is no {kind}: {error}");
        Refused::new(StatusCode::BAD_REQUEST, "BadRequest", text)
    })
}

/// The plan of what would begin: asks the source's agent what there is, and nobody for anything else.
async fn plan_of(preflight: Preflight, pool: &ConnectionPool) -> TransferPlan {
    let mut told = TransferPlan {
        api_version: live_api_version(),
        kind: TransferPlan::KIND.to_owned(),
        obstacles: preflight.obstacles,
        manifest: None,
        plan: None,
    };
    let Some(begun) = preflight.transfer else {
        return told;
    };
    let mut obstacle = |reason: &str, message: String, is_final| {
        told.obstacles.push(Obstacle {
            reason: reason.to_owned(),
            message,
            is_final,
        });
    };
    let (spec, endpoints) = (begun.spec, begun.endpoints);
    let pool = pool.of_fabric(&begun.fabric);
    let found = match weft_transfer::stat(&spec, pool, &endpoints).await {
        Ok(found) => found,
        Err(refusal) => {
            obstacle(&refusal.reason, refusal.message, !refusal.retriable);
            return told;
        }
    };
    let names: Vec<String> = spec.receivers().map(str::to_owned).collect();
    let request = Request {
        strategy: spec.strategy,
        payload_share: spec.payload_share,
        ..Request::new(&spec.source.node, names, found.bytes)
    };
    if !request.destinations.is_empty() {
        match weft_planner::plan(&request, &spec.topology) {
            Ok(plan) => told.plan = Some(plan),
            Err(error) => obstacle(error.reason(), error.to_string(), true),
        }
    }
    told.manifest = Some(manifest_summary(&found));
    told
}

#[cfg(test)]
mod tests;
