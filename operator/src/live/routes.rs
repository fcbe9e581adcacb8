//! What can be asked, by path and verb as the API server has them.

use std::time::Duration;

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Serialize;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
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
};
use crate::controllers::{Question, Survey};

/// The controllers answer between two decisions, which take milliseconds; before they have listed
/// everything, they do not.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The API server gives a call up after 60 s. The source may list many files.
const STAT_WITHIN: Duration = Duration::from_secs(45);

/// What the routes work with.
#[derive(Clone)]
pub(super) struct Asked<A> {
    pub(super) authorizer: A,
    pub(super) headers: Headers,
    pub(super) questions: mpsc::Sender<Question>,
    pub(super) channels: ConnectionPool,
    /// The leader's, with which agents are asked.
    pub(super) epoch: u64,
}

/// The routes.
pub(super) fn router<A: Authorizer>(asked: Asked<A>) -> Router {
    let base = format!("/apis/{LIVE_GROUP}/{LIVE_VERSION}");
    let progress = TransferProgress::RESOURCE;
    let (plans, diagnoses) = (TransferPlan::RESOURCE, Diagnosis::RESOURCE);
    let (copies, removals) = (NodeCopy::RESOURCE, CopyRemoval::RESOURCE);
    Router::new()
        .route(&base, get(resources))
        .route(&format!("{base}/{progress}"), get(every::<A>))
        .route(
            &format!("{base}/namespaces/{{namespace}}/{progress}"),
            get(listed::<A>),
        )
        .route(
            &format!("{base}/namespaces/{{namespace}}/{progress}/{{name}}"),
            get(one::<A>),
        )
        .route(
            &format!("{base}/namespaces/{{namespace}}/{plans}"),
            post(plan::<A>),
        )
        .route(&format!("{base}/{diagnoses}"), post(diagnose::<A>))
        .route(&format!("{base}/{copies}"), get(every_copy::<A>))
        .route(
            &format!("{base}/namespaces/{{namespace}}/{copies}"),
            get(listed_copies::<A>),
        )
        .route(
            &format!("{base}/namespaces/{{namespace}}/{removals}"),
            post(remove_copies::<A>),
        )
        .fallback(|| async { Refused::new(StatusCode::NOT_FOUND, "NotFound", "no such path") })
        .with_state(asked)
}

/// An answer that is none: a `Status`, which Kubernetes clients understand.
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
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "reason": self.reason, "message": self.message, "code": self.code.as_u16(),
        });
        answer(self.code, &status)
    }
}

fn answer(code: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (code, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// By this the API server also learns that this server is there.
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

impl<A: Authorizer> Asked<A> {
    async fn admit(&self, call: &HeaderMap, access: &Access) -> Result<Caller, Refused> {
        let Some(caller) = Caller::of(call, &self.headers) else {
            let text = "the API server's proxy names no user";
            return Err(Refused::new(StatusCode::UNAUTHORIZED, "Unauthorized", text));
        };
        self.allow(&caller, access).await?;
        Ok(caller)
    }

    async fn allow(&self, caller: &Caller, access: &Access) -> Result<(), Refused> {
        let failed = |problem: String| {
            let text = format!("the caller's rights cannot be looked up: {problem}; try again");
            Refused::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", text)
        };
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
            Err(problem) => Err(failed(problem)),
        }
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, Refused> {
        let (sender, receiver) = oneshot::channel();
        let asked = async {
            self.questions.send(question(sender)).await.ok()?;
            receiver.await.ok()
        };
        let answer = timeout(ANSWER_WITHIN, asked).await.ok().flatten();
        answer.ok_or_else(|| Refused::late("the operator"))
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
        self.admit(call, &Access::jobs(verb, of, called)).await?;
        self.ask(|answer| Question::Progress {
            namespace,
            name,
            answer,
        })
        .await
    }

    async fn plan(
        &self,
        call: &HeaderMap,
        namespace: &str,
        body: &[u8],
    ) -> Result<TransferPlan, Refused> {
        let access = Access::jobs("create", namespace, "");
        let caller = self.admit(call, &access).await?;
        let mut job: TransferJob = serde_json::from_slice(body).map_err(|error| {
            let text = format!("the body is no TransferJob: {error}");
            Refused::new(StatusCode::BAD_REQUEST, "BadRequest", text)
        })?;
        job.metadata.namespace = Some(namespace.to_owned());
        // It is no object yet, whatever it says of itself.
        job.metadata.uid = None;
        job.status = None;
        let survey = self.ask(|answer| Question::Survey {
            job: Box::new(job),
            answer,
        });
        let survey = survey.await?;
        if survey.is_shared {
            let access = Access {
                verb: "use",
                group: GROUP,
                resource: "rdmafabrics",
                namespace: namespace.to_owned(),
                name: String::new(),
            };
            self.allow(&caller, &access).await?;
        }
        let planned = timeout(STAT_WITHIN, plan_of(survey, &self.channels));
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
        self.admit(call, &Access::jobs("list", of, "")).await?;
        let own = namespace.clone();
        let copies = self.ask(|answer| Question::Copies { namespace, answer });
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
        self.admit(call, &access).await?;
        let request: CopyRemovalRequest = serde_json::from_slice(body).map_err(|error| {
            let text = format!("the body is no CopyRemovalRequest: {error}");
            Refused::new(StatusCode::BAD_REQUEST, "BadRequest", text)
        })?;
        let copies = self.ask(|answer| Question::Copies {
            namespace: Some(namespace.to_owned()),
            answer,
        });
        let copies = copies.await?;
        Ok(copies::remove(&request, namespace, copies, &self.channels, self.epoch).await)
    }

    async fn diagnose(&self, call: &HeaderMap, body: &[u8]) -> Result<Diagnosis, Refused> {
        let access = Access {
            verb: "create",
            group: LIVE_GROUP,
            resource: Diagnosis::RESOURCE,
            namespace: String::new(),
            name: String::new(),
        };
        self.admit(call, &access).await?;
        let DiagnosisRequest { node } = serde_json::from_slice(body).map_err(|error| {
            let text = format!("the body is no DiagnosisRequest: {error}");
            Refused::new(StatusCode::BAD_REQUEST, "BadRequest", text)
        })?;
        let known = self.ask(|answer| Question::Neighbours {
            node: node.clone(),
            answer,
        });
        let Some(neighbours) = known.await? else {
            let text = format!("no agent of node {node} is known; see: kubectl get fabricnodes");
            return Err(Refused::new(StatusCode::NOT_FOUND, "NotFound", text));
        };
        let told = diagnosis::of(&node, &neighbours, &self.channels, self.epoch).await;
        told.map_err(|refusal| {
            let code = StatusCode::BAD_GATEWAY;
            Refused::new(code, "AgentRefused", refusal.message)
        })
    }
}

async fn every<A: Authorizer>(State(asked): State<Asked<A>>, call: HeaderMap) -> Response {
    respond(asked.progress(&call, None, None).await.map(list))
}

async fn listed<A: Authorizer>(
    State(asked): State<Asked<A>>,
    Path(namespace): Path<String>,
    call: HeaderMap,
) -> Response {
    let told = asked.progress(&call, Some(namespace), None).await;
    respond(told.map(list))
}

async fn one<A: Authorizer>(
    State(asked): State<Asked<A>>,
    Path((namespace, name)): Path<(String, String)>,
    call: HeaderMap,
) -> Response {
    let told = asked
        .progress(&call, Some(namespace.clone()), Some(name.clone()))
        .await;
    respond(told.and_then(|mut jobs| {
        jobs.pop().ok_or_else(|| {
            let text = format!(
                "transferjobs.weft.dev \"{name}\" not found in namespace {namespace}; see: kubectl \
                 get transferjobs --namespace {namespace}"
            );
            Refused::new(StatusCode::NOT_FOUND, "NotFound", text)
        })
    }))
}

async fn plan<A: Authorizer>(
    State(asked): State<Asked<A>>,
    Path(namespace): Path<String>,
    call: HeaderMap,
    body: Bytes,
) -> Response {
    respond(asked.plan(&call, &namespace, &body).await)
}

async fn diagnose<A: Authorizer>(
    State(asked): State<Asked<A>>,
    call: HeaderMap,
    body: Bytes,
) -> Response {
    respond(asked.diagnose(&call, &body).await)
}

async fn every_copy<A: Authorizer>(State(asked): State<Asked<A>>, call: HeaderMap) -> Response {
    respond(asked.copies(&call, None).await)
}

async fn listed_copies<A: Authorizer>(
    State(asked): State<Asked<A>>,
    Path(namespace): Path<String>,
    call: HeaderMap,
) -> Response {
    respond(asked.copies(&call, Some(namespace)).await)
}

async fn remove_copies<A: Authorizer>(
    State(asked): State<Asked<A>>,
    Path(namespace): Path<String>,
    call: HeaderMap,
    body: Bytes,
) -> Response {
    respond(asked.remove_copies(&call, &namespace, &body).await)
}

fn respond(told: Result<impl Serialize, Refused>) -> Response {
    match told {
        Ok(told) => answer(StatusCode::OK, &told),
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
async fn plan_of(survey: Survey, channels: &ConnectionPool) -> TransferPlan {
    let mut told = TransferPlan {
        api_version: live_api_version(),
        kind: TransferPlan::KIND.to_owned(),
        obstacles: survey.obstacles,
        manifest: None,
        plan: None,
    };
    let Some(begun) = survey.transfer else {
        return told;
    };
    let mut obstacle = |reason: &str, message: String, is_final| {
        told.obstacles.push(Obstacle {
            reason: reason.to_owned(),
            message,
            is_final,
        });
    };
    let (spec, contacts) = (begun.spec, begun.contacts);
    let channels = channels.of_fabric(&begun.fabric);
    let found = match weft_transfer::stat(&spec, channels, &contacts).await {
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
