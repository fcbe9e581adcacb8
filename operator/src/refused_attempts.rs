//! Events of pods about what one tried with the RDMA device of the other and may not.
//!
//! Agents report; nothing that a pod writes is asked. An agent is believed about pods of its own node: one of the two must be
//! there. Both pods learn the other's namespace and name, and nothing else of it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{
    Api, Client, Resource as _,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{sync::Semaphore, time::Instant};
use weft_proto::engine::v1::{RefusedAttempt, refused_attempt::Kind};

use crate::{
    NAME,
    api::{CallError, call},
};

/// Two pods have Events once in this time, whatever they try.
const PAIR_INTERVAL: Duration = Duration::from_secs(300);
/// Pairs of pods that have Events in that time by the reports of one node. Further attempts are counted and logged at the node.
const PAIRS_PER_NODE_MAX: usize = 16;
/// And of all nodes: seven Events a second at most.
const PAIRS_MAX: usize = 1024;
/// Reports of which attempts wait for the API server.
const REPORTS_WAITING_MAX: usize = 16;
/// Of a name: what Kubernetes takes for one.
const NAME_BYTES_MAX: usize = 253;

/// A pod, by namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PodName {
    namespace: String,
    name: String,
}

impl PodName {
    /// Of NAMESPACE/NAME. Both become parts of a path at the API server.
    fn of(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let is_letter =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        let is_name = |text: &str| {
            (1..=NAME_BYTES_MAX).contains(&text.len())
                && text.bytes().all(is_letter)
                && !text.starts_with('.')
        };
        (is_name(namespace) && is_name(name)).then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

/// What one pod has tried with the device of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    kind: Kind,
    from: PodName,
    to: PodName,
}

impl Attempt {
    /// None where an agent says what none does.
    fn of(said: &RefusedAttempt) -> Option<Self> {
        let attempt = Self {
            kind: said.kind(),
            from: PodName::of(&said.from)?,
            to: PodName::of(&said.to)?,
        };
        let is_known = attempt.kind != Kind::Unspecified && attempt.from != attempt.to;
        is_known.then_some(attempt)
    }

    /// The pod that is at the node which has refused it.
    fn of_node(&self) -> &PodName {
        match self.kind {
            Kind::MemoryAccess => &self.from,
            Kind::Connection | Kind::Unspecified => &self.to,
        }
    }

    fn pair(&self) -> Pair {
        let mut pair = [self.from.clone(), self.to.clone()];
        pair.sort();
        pair
    }

    fn reason(&self) -> &'static str {
        match self.kind {
            Kind::MemoryAccess => "MemoryAccessRefused",
            Kind::Connection | Kind::Unspecified => "ConnectionRefused",
        }
    }

    /// For the pod that tried, and for the other.
    fn notes(&self) -> [(&PodName, String); 2] {
        let name = |pod: &PodName| format!("pod {}/{}", pod.namespace, pod.name);
        let (from, to) = (name(&self.from), name(&self.to));
        let notes = match self.kind {
            Kind::MemoryAccess => {
                let why =
                    "that its program has not opened to it: refused, and the connection has failed";
                [
                    format!("a program of this pod asked for memory of {to} {why}"),
                    format!("a program of {from} asked for memory of this pod {why}"),
                ]
            }
            Kind::Connection | Kind::Unspecified => {
                let why = "refused, as the pods are of different namespaces and spec.devices.crossNamespace of the RdmaFabric is \
                           false";
                [
                    format!(
                        "a program of this pod tried to connect its RDMA device to that of {to}: {why}"
                    ),
                    format!(
                        "a program of {from} tried to connect its RDMA device to that of this pod: {why}"
                    ),
                ]
            }
        };
        let [of_from, of_to] = notes;
        [(&self.from, of_from), (&self.to, of_to)]
    }
}

/// Two pods, in order.
type Pair = [PodName; 2];

/// Which pairs of pods have Events, and how many attempts each node's reports have had admitted.
#[derive(Debug, Default)]
struct Admitted {
    pairs: BTreeMap<Pair, Instant>,
    /// By node, when.
    nodes: BTreeMap<String, Vec<Instant>>,
}

impl Admitted {
    /// Of the attempts that a node reports, those to make Events of now.
    fn admit(&mut self, node: &str, reported: &[RefusedAttempt], now: Instant) -> Vec<Attempt> {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < PAIR_INTERVAL;
        self.pairs.retain(|_, at| is_recent(at));
        self.nodes.retain(|_, times| {
            times.retain(is_recent);
            !times.is_empty()
        });
        let mut admitted = Vec::new();
        for attempt in reported.iter().filter_map(Attempt::of) {
            let pair = attempt.pair();
            let of_node = self.nodes.get(node).map_or(0, Vec::len);
            let is_full = of_node >= PAIRS_PER_NODE_MAX || self.pairs.len() >= PAIRS_MAX;
            if is_full || self.pairs.contains_key(&pair) {
                continue;
            }
            self.pairs.insert(pair, now);
            self.nodes.entry(node.to_owned()).or_default().push(now);
            admitted.push(attempt);
        }
        admitted
    }
}

/// Writes the Events.
pub(crate) struct RefusedAttempts {
    client: Client,
    recorder: Recorder,
    admitted: Mutex<Admitted>,
    /// One attempt after the other has its Events.
    turn: Semaphore,
    /// Reports whose attempts wait for that. Others are not taken: an agent repeats an attempt for a minute.
    waiting: Arc<Semaphore>,
}

impl RefusedAttempts {
    /// By this client.
    pub(crate) fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: NAME.to_owned(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            admitted: Mutex::default(),
            turn: Semaphore::new(1),
            waiting: Arc::new(Semaphore::new(REPORTS_WAITING_MAX)),
        }
    }

    /// Makes Events of the attempts that a node's agent reports, in a task of its own. A failure is only logged.
    pub(crate) fn report(self: &Arc<Self>, node: &str, reported: &[RefusedAttempt]) {
        let Ok(waiting) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return;
        };
        let attempts = self.admit(node, reported);
        if !attempts.is_empty() {
            let (all, node) = (Arc::clone(self), node.to_owned());
            tokio::spawn(async move {
                all.publish(&node, attempts).await;
                drop(waiting);
            });
        }
    }

    fn admit(&self, node: &str, reported: &[RefusedAttempt]) -> Vec<Attempt> {
        self.admitted().admit(node, reported, Instant::now())
    }

    fn admitted(&self) -> MutexGuard<'_, Admitted> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish(&self, node: &str, attempts: Vec<Attempt>) {
        for attempt in attempts {
            // It is never closed.
            let _turn = self.turn.acquire().await;
            let published = self.publish_attempt(node, &attempt).await;
            if !matches!(published, Ok(true)) {
                // Another report of the pair is taken as if this one had not come.
                self.admitted().pairs.remove(&attempt.pair());
            }
            if let Err(error) = published {
                let reason = attempt.reason();
                tracing::warn!(node, reason, "no Event of a refused attempt: {error}");
            }
        }
    }

    /// False where the node has no say about these pods.
    async fn publish_attempt(&self, node: &str, attempt: &Attempt) -> Result<bool, CallError> {
        let Some((at, _)) = self.pod(attempt.of_node()).await? else {
            return Ok(false);
        };
        if at != node {
            tracing::warn!(
                node,
                "the agent reports an attempt of a pod of another node: there is no Event of it"
            );
            return Ok(false);
        }
        for ((pod, note), other) in attempt
            .notes()
            .into_iter()
            .zip([&attempt.to, &attempt.from])
        {
            let Some((_, reference)) = self.pod(pod).await? else {
                continue;
            };
            let event = Event {
                type_: EventType::Warning,
                reason: attempt.reason().to_owned(),
                note: Some(note),
                action: "Refuse".to_owned(),
                // Events that differ in their notes alone would be counted as one.
                secondary: Some(ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    namespace: Some(other.namespace.clone()),
                    name: Some(other.name.clone()),
                    ..ObjectReference::default()
                }),
            };
            call(self.recorder.publish(&event, &reference)).await?;
        }
        Ok(true)
    }

    /// The node of a pod, and how Events name the pod. None where it is gone.
    async fn pod(&self, pod: &PodName) -> Result<Option<(String, ObjectReference)>, CallError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        match call(pods.get(&pod.name)).await {
            Ok(found) => {
                let reference = found.object_ref(&());
                let node = found.spec.and_then(|spec| spec.node_name);
                Ok(Some((node.unwrap_or_default(), reference)))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        body::Bytes,
        extract::Path,
        http::StatusCode,
        routing::{get, post},
    };
    use serde_json::{Value, json};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    /// An API server with the pods team-a/a at n1 and team-b/d at n2, and the Events that it takes.
    fn api() -> (RefusedAttempts, UnboundedReceiver<Value>) {
        let pod = async |Path((namespace, name)): Path<(String, String)>| {
            let node = match &*format!("{namespace}/{name}") {
                "team-a/a" => "n1",
                "team-b/d" => "n2",
                _ => {
                    let status = json!({
                        "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
                        "message": "there is none", "details": {"name": name, "kind": "pods"},
                    });
                    return (StatusCode::NOT_FOUND, status.to_string());
                }
            };
            let metadata =
                json!({"namespace": namespace, "name": name, "uid": format!("uid of {name}")});
            let spec = json!({"nodeName": node, "containers": []});
            let pod = json!({"metadata": metadata, "spec": spec});
            (StatusCode::OK, pod.to_string())
        };
        let (sender, events) = unbounded_channel();
        let event = async move |body: Bytes| {
            let event: Value = serde_json::from_slice(&body).unwrap();
            let _ = sender.send(event.clone());
            (StatusCode::CREATED, event.to_string())
        };
        let router = Router::new()
            .route("/api/v1/namespaces/{namespace}/pods/{name}", get(pod))
            .route(
                "/apis/events.k8s.io/v1/namespaces/{namespace}/events",
                post(event),
            );
        (RefusedAttempts::new(Client::new(router, "default")), events)
    }

    #[tokio::test]
    async fn a_refused_connection_is_an_event_at_both_pods_in_their_namespaces() {
        let (attempts, mut events) = api();
        let report = async |node: &str, reported: RefusedAttempt| {
            let admitted = attempts.admit(node, &[reported]);
            attempts.publish(node, admitted).await;
        };
        // An agent is believed about pods of its own node, and one that is gone has no Event.
        report("n1", connection("team-a/a", "team-b/d")).await;
        report("n1", connection("team-b/d", "team-a/gone")).await;
        assert!(events.try_recv().is_err());
        // Nor does a wrong report keep back a true one of the same pods.
        let admitted = attempts.admit("n1", &[connection("team-b/d", "team-a/a")]);
        attempts.publish("n1", admitted).await;
        let mut published = Vec::new();
        while let Ok(event) = events.try_recv() {
            let text = |pointer: &str| event.pointer(pointer).unwrap().as_str().unwrap().to_owned();
            published.push([
                text("/metadata/namespace"),
                text("/regarding/uid"),
                text("/type"),
                text("/reason"),
            ]);
        }
        let wanted = [["team-b", "uid of d"], ["team-a", "uid of a"]];
        let wanted =
            wanted.map(|[namespace, uid]| [namespace, uid, "Warning", "ConnectionRefused"]);
        assert_eq!(published, wanted);
    }

    fn said(kind: Kind, from: &str, to: &str) -> RefusedAttempt {
        RefusedAttempt {
            kind: kind.into(),
            from: from.to_owned(),
            to: to.to_owned(),
        }
    }

    fn connection(from: &str, to: &str) -> RefusedAttempt {
        said(Kind::Connection, from, to)
    }

    #[test]
    fn two_pods_have_events_once_in_five_minutes_whichever_of_them_tries() {
        let mut all = Admitted::default();
        let begun = Instant::now();
        let mut count = |node: &str, from: &str, to: &str, after: u64| {
            let now = begun + Duration::from_secs(after);
            all.admit(node, &[connection(from, to)], now).len()
        };
        assert_eq!(count("n1", "team-b/d", "team-a/a", 0), 1);
        assert_eq!(count("n1", "team-b/d", "team-a/a", 10), 0);
        assert_eq!(count("n2", "team-a/a", "team-b/d", 20), 0);
        assert_eq!(count("n1", "team-b/e", "team-a/a", 20), 1);
        assert_eq!(count("n1", "team-b/d", "team-a/a", 299), 0);
        assert_eq!(count("n2", "team-a/a", "team-b/d", 300), 1);
    }

    #[test]
    fn what_one_node_reports_is_bounded_and_takes_no_room_of_another() {
        let mut all = Admitted::default();
        let many = |node: &str| -> Vec<RefusedAttempt> {
            let from = (0..100).map(|i| format!("team-b/{node}-{i}"));
            from.map(|from| connection(&from, "team-a/a")).collect()
        };
        let now = Instant::now();
        for node in ["n1", "n2"] {
            let admitted = all.admit(node, &many(node), now);
            assert_eq!(admitted.len(), PAIRS_PER_NODE_MAX);
        }
        assert!(all.admit("n1", &many("n1-again"), now).is_empty());
        for i in 0..200 {
            let node = format!("node-{i}");
            all.admit(&node, &many(&node), now);
        }
        assert_eq!(all.pairs.len(), PAIRS_MAX);
    }

    #[test]
    fn what_no_agent_reports_causes_no_event() {
        let mut all = Admitted::default();
        let wrong = [
            connection("team-b/d", "a"),
            connection("team-b/../secrets", "team-a/a"),
            connection("team-b/d?x=y", "team-a/a"),
            connection("../d", "team-a/a"),
            connection("team-a/a", "team-a/a"),
            connection(&format!("team-b/{}", "d".repeat(254)), "team-a/a"),
            said(Kind::Unspecified, "team-b/d", "team-a/a"),
        ];
        assert!(all.admit("n1", &wrong, Instant::now()).is_empty());
    }

    #[test]
    fn each_pod_learns_the_name_of_the_other_and_what_allows_it() {
        let attempt = Attempt::of(&connection("team-b/d", "team-a/a")).unwrap();
        let [(from, of_from), (to, of_to)] = attempt.notes();
        assert_eq!((&*from.name, &*to.name), ("d", "a"));
        assert!(of_from.contains("to that of pod team-a/a"), "{of_from}");
        assert!(of_to.contains("a program of pod team-b/d"), "{of_to}");
        assert!(of_to.contains("crossNamespace"), "{of_to}");
        assert_eq!(attempt.of_node().name, "a");
        let attempt = Attempt::of(&said(Kind::MemoryAccess, "team-a/b", "team-a/a")).unwrap();
        let [(_, of_from), (_, of_to)] = attempt.notes();
        assert!(of_from.contains("memory of pod team-a/a"), "{of_from}");
        assert!(
            of_to.contains("pod team-a/b asked for memory of this pod"),
            "{of_to}"
        );
        assert_eq!(attempt.of_node().name, "b");
    }
}
