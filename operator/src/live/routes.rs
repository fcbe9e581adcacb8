//! What can be asked, by path and verb as the API server has them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::{sync::oneshot, time::timeout};
use weft_crds::{
    CopyRemoval, CopyRemovalRequest, Diagnosis, DiagnosisRequest, GROUP, LIVE_GROUP, LIVE_VERSION,
    ManifestSummary, NodeCopy, NodeCopyList, Obstacle, TransferJob, TransferPlan, TransferProgress,
    TransferProgressList, live_api_version,
};
use weft_planner::Request;
use weft_transfer::ConnectionPool;

use super::{
    caller::{Access, Authorizer, Caller},
    copies, diagnosis,
    front::Headers,
    leader::Leader,
};
use crate::controllers::{Preflight, Query};

/// The controllers answer between two decisions, which take milliseconds; before they have listed
/// everything, they do not.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The reason of the answer of a replica that does not lead; `kubectl weft` tries again then.
const NOT_LEADING: &str = "NotLeading";
/// The API server gives a call up after 60 s. The source may list many files.
const STAT_TIMEOUT: Duration = Duration::from_secs(45);

/// What the routes work with.
#[derive(Clone)]
pub(super) struct LiveApi<A> {
    pub(super) authorizer: A,
    pub(super) headers: Headers,
    /// Empty on a standby replica.
    pub(super) leader: Arc<OnceLock<Leader>>,
}

/// The routes. Every replica answers the discovery; the rest needs the leader.
pub(super) fn router<A: Authorizer>(api: LiveApi<A>) -> Router {
    let base = format!("/apis/{LIVE_GROUP}/{LIVE_VERSION}");
    let of_namespace = |resource: &str| format!("{base}/namespaces/{{namespace}}/{resource}");
    let progress = TransferProgress::RESOURCE;
    type Api<A> = State<LiveApi<A>>;
    Router::new()
        .route(&base, get(resources))
        .route(
            &format!("{base}/{progress}"),
            get(|State(api): Api<A>, call: HeaderMap| async move {
                respond(api.progress(&call, None, None).await.map(list))
            }),
        )
        .route(
            &of_namespace(progress),
            get(
                |State(api): Api<A>, Path(namespace), call: HeaderMap| async move {
                    respond(api.progress(&call, Some(namespace), None).await.map(list))
                },
            ),
        )
        .route(
            &format!("{}/{{name}}", of_namespace(progress)),
            get(
                |State(api): Api<A>,
                 Path((namespace, name)): Path<(String, String)>,
                 call: HeaderMap| async move {
                    respond(api.progress_of(&call, namespace, name).await)
                },
            ),
        )
        .route(
            &of_namespace(TransferPlan::RESOURCE),
            post(
                |State(api): Api<A>,
                 Path(namespace): Path<String>,
                 call: HeaderMap,
                 body: Bytes| async move {
                    respond(api.plan(&call, &namespace, &body).await)
                },
            ),
        )
        .route(
            &format!("{base}/{}", Diagnosis::RESOURCE),
            post(
                |State(api): Api<A>, call: HeaderMap, body: Bytes| async move {
                    respond(api.diagnose(&call, &body).await)
                },
            ),
        )
        .route(
            &format!("{base}/{}", NodeCopy::RESOURCE),
            get(|State(api): Api<A>, call: HeaderMap| async move {
                respond(api.copies(&call, None).await)
            }),
        )
        .route(
            &of_namespace(NodeCopy::RESOURCE),
            get(
                |State(api): Api<A>, Path(namespace), call: HeaderMap| async move {
                    respond(api.copies(&call, Some(namespace)).await)
                },
            ),
        )
        .route(
            &of_namespace(CopyRemoval::RESOURCE),
            post(
                |State(api): Api<A>,
                 Path(namespace): Path<String>,
                 call: HeaderMap,
                 body: Bytes| async move {
                    respond(api.remove_copies(&call, &namespace, &body).await)
                },
            ),
        )
        .fallback(|| async { Refused::new(StatusCode::NOT_FOUND, "NotFound", "no such path") })
        .with_state(api)
}

/// An error: a `Status`, which Kubernetes clients understand.
#[derive(Debug, PartialEq)]
struct Refused {
    code: StatusCode,
    reason: &'static str,
    message: String,
}

impl Refused {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
        }
    }

    fn late(who: &str) -> Self {
        let message = format!("{who} has not answered in time; try again");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
    }

    /// Another replica leads, or none does.
    fn not_leading() -> Self {
        let text = "this replica of weft-operator does not lead, and only the leader answers; try again: \
                    the next call may reach the leader; see: kubectl get lease -A --field-selector \
                    metadata.name=weft-operator";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, NOT_LEADING, text)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "reason": self.reason, "message": self.message, "code": self.code.as_u16(),
        });
        let mut response = answer(self.code, &status);
        if self.reason == NOT_LEADING {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            // The API server keeps connections: the next call would reach this replica again.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

fn answer(code: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (code, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The discovery of the group. The API server calls it to see whether this server is there, and needs it
/// whenever a namespace is deleted.
async fn resources() -> Response {
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
            {"name": CopyRemoval::RESOURCE, "singularName": "copyremoval",
             "namespaced": true, "kind": CopyRemoval::KIND, "verbs": ["create"]},
        ],
    });
    answer(StatusCode::OK, &list)
}

impl<A: Authorizer> LiveApi<A> {
    /// The leader's part of this process, and the caller, who is allowed this.
    async fn authorize(
        &self,
        call: &HeaderMap,
        access: &Access,
    ) -> Result<(&Leader, Caller), Refused> {
        let leader = self.leader.get().ok_or_else(Refused::not_leading)?;
        let Some(caller) = Caller::of(call, &self.headers) else {
            let text = "the API server's proxy names no user";
            return Err(Refused::new(StatusCode::UNAUTHORIZED, "Unauthorized", text));
        };
        self.allow(&caller, access).await?;
        Ok((leader, caller))
    }

    async fn allow(&self, caller: &Caller, access: &Access) -> Result<(), Refused> {
        match self.authorizer.allows(caller, access).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let place = match access.namespace.as_str() {
                    "" => "in all namespaces".to_owned(),
                    namespace => format!("in namespace {namespace}"),
                };
                let text = format!(
                    "{} may not {} {} of the group {} {place}: a role must allow it",
                    caller.user, access.verb, access.resource, access.group
                );
                Err(Refused::new(StatusCode::FORBIDDEN, "Forbidden", text))
            }
            Err(problem) => {
                let text = format!("the caller's rights cannot be looked up: {problem}; try again");
                let code = StatusCode::SERVICE_UNAVAILABLE;
                Err(Refused::new(code, "ServiceUnavailable", text))
            }
        }
    }

    async fn progress(
        &self,
        call: &HeaderMap,
        namespace: Option<String>,
        name: Option<String>,
    ) -> Result<Vec<TransferProgress>, Refused> {
        let verb = if name.is_some() { "get" } else { "list" };
        let (of, called) = (
            namespace.as_deref().unwrap_or_default(),
            name.as_deref().unwrap_or_default(),
        );
        let access = Access::jobs(verb, of, called);
        let (leader, _) = self.authorize(call, &access).await?;
        leader
            .ask(|answer| Query::Progress {
                namespace,
                name,
                answer,
            })
            .await
    }

    async fn progress_of(
        &self,
        call: &HeaderMap,
        namespace: String,
        name: String,
    ) -> Result<TransferProgress, Refused> {
        let found = self.progress(call, Some(namespace.clone()), Some(name.clone()));
        found.await?.pop().ok_or_else(|| {
            let text = format!(
                "transferjobs.weft.dev \"{name}\" not found in namespace {namespace}; see: kubectl \
                 get transferjobs --namespace {namespace}"
            );
            Refused::new(StatusCode::NOT_FOUND, "NotFound", text)
        })
    }

    async fn plan(
        &self,
        call: &HeaderMap,
        namespace: &str,
        body: &[u8],
    ) -> Result<TransferPlan, Refused> {
        let access = Access::jobs("create", namespace, "");
        let (leader, caller) = self.authorize(call, &access).await?;
        let mut job: TransferJob = parse(body, "TransferJob")?;
        job.metadata.namespace = Some(namespace.to_owned());
        // The object does not exist yet, whatever its body says.
        job.metadata.uid = None;
        job.status = None;
        let preflight = leader.ask(|answer| Query::Preflight {
            job: Box::new(job),
            answer,
        });
        let preflight = preflight.await?;
        if preflight.is_shared {
            let access = Access {
                verb: "use",
                group: GROUP,
                resource: "rdmafabrics",
                namespace: namespace.to_owned(),
                name: String::new(),
            };
            self.allow(&caller, &access).await?;
        }
        let planned = timeout(STAT_TIMEOUT, plan_of(preflight, &leader.pool));
        planned
            .await
            .map_err(|_| Refused::late("the source's agent"))
    }

    async fn copies(
        &self,
        call: &HeaderMap,
        namespace: Option<String>,
    ) -> Result<NodeCopyList, Refused> {
        let of = namespace.as_deref().unwrap_or_default();
        let access = Access::jobs("list", of, "");
        let (leader, _) = self.authorize(call, &access).await?;
        let own = namespace.clone();
        let copies = leader.ask(|answer| Query::Copies { namespace, answer });
        let copies = copies.await?.into_iter();
        let items = copies.map(|reported| copies::shown(reported.copy, own.as_deref()));
        Ok(NodeCopyList {
            api_version: live_api_version(),
            kind: NodeCopyList::KIND.to_owned(),
            metadata: Default::default(),
            items: items.collect(),
        })
    }

    async fn remove_copies(
        &self,
        call: &HeaderMap,
        namespace: &str,
        body: &[u8],
    ) -> Result<CopyRemoval, Refused> {
        let access = Access::jobs("delete", namespace, "");
        let (leader, _) = self.authorize(call, &access).await?;
        let request: CopyRemovalRequest = parse(body, "CopyRemovalRequest")?;
        let copies = leader.ask(|answer| Query::Copies {
            namespace: Some(namespace.to_owned()),
            answer,
        });
        let copies = copies.await?;
        Ok(copies::remove(&request, namespace, copies, &leader.pool, leader.epoch).await)
    }

    async fn diagnose(&self, call: &HeaderMap, body: &[u8]) -> Result<Diagnosis, Refused> {
        let access = Access {
            verb: "create",
            group: LIVE_GROUP,
            resource: Diagnosis::RESOURCE,
            namespace: String::new(),
            name: String::new(),
        };
        let (leader, _) = self.authorize(call, &access).await?;
        let DiagnosisRequest { node } = parse(body, "DiagnosisRequest")?;
        let known = leader.ask(|answer| Query::Neighbours {
            node: node.clone(),
            answer,
        });
        let Some(neighbours) = known.await? else {
            let text = format!("no agent of node {node} is known; see: kubectl get fabricnodes");
            return Err(Refused::new(StatusCode::NOT_FOUND, "NotFound", text));
        };
        let found = diagnosis::of(&node, &neighbours, &leader.pool, leader.epoch).await;
        found.map_err(|refusal| {
            let code = StatusCode::BAD_GATEWAY;
            Refused::new(code, "AgentRefused", refusal.message)
        })
    }
}

impl Leader {
    /// Asks the controllers.
    async fn ask<T>(&self, query: impl FnOnce(oneshot::Sender<T>) -> Query) -> Result<T, Refused> {
        let (sender, receiver) = oneshot::channel();
        let asked = async {
            self.queries.send(query(sender)).await.ok()?;
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

fn respond(result: Result<impl Serialize, Refused>) -> Response {
    match result {
        Ok(body) => answer(StatusCode::OK, &body),
        Err(refused) => refused.into_response(),
    }
}

fn list(items: Vec<TransferProgress>) -> TransferProgressList {
    TransferProgressList {
        api_version: live_api_version(),
        kind: format!("{}List", TransferProgress::KIND),
        metadata: Default::default(),
        items,
    }
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
    told.manifest = Some(ManifestSummary {
        files: u32::try_from(found.files).unwrap_or(u32::MAX),
        bytes: i64::try_from(found.bytes).unwrap_or(i64::MAX),
        digest: None,
    });
    told
}

#[cfg(test)]
mod tests;
