//! Events of pods about what one tried with the RDMA device of the other and may not.
//!
//! Agents report; nothing that a pod writes is asked. An agent is believed about pods of its own node: one of the two must be
//! there. Both pods learn the other's namespace and name, and nothing else of it.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
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

/// Two pods are told once in this time, whatever they try.
const PAIR_INTERVAL: Duration = Duration::from_secs(300);
/// Pairs of pods that are told in that time of what one node reports. The attempts of others are counted and logged at their node.
const PAIRS_PER_NODE_MAX: usize = 16;
/// And of all nodes: seven Events a second at most.
const PAIRS_MAX: usize = 1024;
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

/// What is told of.
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

/// Which pairs of pods were told, by which node's report, and when.
#[derive(Debug, Default)]
struct Told(BTreeMap<[PodName; 2], (String, Instant)>);

impl Told {
    /// Of the attempts that a node reports, those to tell of now.
    fn admit(&mut self, node: &str, said: &[RefusedAttempt], now: Instant) -> Vec<Attempt> {
        let told = &mut self.0;
        told.retain(|_, (_, at)| now.saturating_duration_since(*at) < PAIR_INTERVAL);
        let mut of_node = told.values().filter(|(by, _)| by == node).count();
        let mut admitted = Vec::new();
        for attempt in said.iter().filter_map(Attempt::of) {
            let mut pair = [attempt.from.clone(), attempt.to.clone()];
            pair.sort();
            let is_full = of_node >= PAIRS_PER_NODE_MAX || told.len() >= PAIRS_MAX;
            if is_full || told.contains_key(&pair) {
                continue;
            }
            told.insert(pair, (node.to_owned(), now));
            of_node += 1;
            admitted.push(attempt);
        }
        admitted
    }
}

/// Writes the Events.
pub(crate) struct RefusedAttempts {
    client: Client,
    recorder: Recorder,
    told: Mutex<Told>,
    /// One attempt after the other is told of.
    turn: Semaphore,
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
            told: Mutex::default(),
            turn: Semaphore::new(1),
        }
    }

    /// Of the attempts that a node's agent reports, those that pods are to be told of.
    pub(crate) fn admit(&self, node: &str, said: &[RefusedAttempt]) -> Vec<Attempt> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.admit(node, said, Instant::now())
    }

    /// Tells the pods. A failure is only logged: nothing waits for it.
    pub(crate) async fn tell(&self, node: &str, attempts: Vec<Attempt>) {
        for attempt in attempts {
            // It is never closed.
            let _turn = self.turn.acquire().await;
            if let Err(error) = self.tell_of(node, &attempt).await {
                tracing::warn!(
                    node,
                    reason = attempt.reason(),
                    "pods are not told of a refused attempt: {error}"
                );
            }
        }
    }

    async fn tell_of(&self, node: &str, attempt: &Attempt) -> Result<(), CallError> {
        let Some((at, _)) = self.pod(attempt.of_node()).await? else {
            return Ok(());
        };
        if at != node {
            tracing::warn!(
                node,
                "the agent reports an attempt of a pod of another node: nobody is told"
            );
            return Ok(());
        }
        for (pod, note) in attempt.notes() {
            let Some((_, reference)) = self.pod(pod).await? else {
                continue;
            };
            let event = Event {
                type_: EventType::Warning,
                reason: attempt.reason().to_owned(),
                note: Some(note),
                action: "Refuse".to_owned(),
                secondary: None,
            };
            call(self.recorder.publish(&event, &reference)).await?;
        }
        Ok(())
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
        let tell = async |node: &str, said: RefusedAttempt| {
            let admitted = attempts.admit(node, &[said]);
            attempts.tell(node, admitted).await;
        };
        // An agent is believed about pods of its own node, and one that is gone is told nothing.
        tell("n1", connection("team-a/a", "team-b/d")).await;
        tell("n1", connection("team-b/d", "team-a/gone")).await;
        assert!(events.try_recv().is_err());
        let (attempts, mut events) = api();
        let admitted = attempts.admit("n1", &[connection("team-b/d", "team-a/a")]);
        attempts.tell("n1", admitted).await;
        let mut told = Vec::new();
        while let Ok(event) = events.try_recv() {
            let text = |pointer: &str| event.pointer(pointer).unwrap().as_str().unwrap().to_owned();
            told.push([
                text("/metadata/namespace"),
                text("/regarding/uid"),
                text("/type"),
                text("/reason"),
            ]);
        }
        let wanted = [["team-b", "uid of d"], ["team-a", "uid of a"]];
        let wanted =
            wanted.map(|[namespace, uid]| [namespace, uid, "Warning", "ConnectionRefused"]);
        assert_eq!(told, wanted);
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
    fn two_pods_are_told_once_in_five_minutes_whoever_of_them_tries() {
        let mut told = Told::default();
        let begun = Instant::now();
        let mut count = |node: &str, from: &str, to: &str, after: u64| {
            let now = begun + Duration::from_secs(after);
            told.admit(node, &[connection(from, to)], now).len()
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
        let mut told = Told::default();
        let many = |node: &str| -> Vec<RefusedAttempt> {
            let from = (0..100).map(|i| format!("team-b/{node}-{i}"));
            from.map(|from| connection(&from, "team-a/a")).collect()
        };
        let now = Instant::now();
        for node in ["n1", "n2"] {
            let admitted = told.admit(node, &many(node), now);
            assert_eq!(admitted.len(), PAIRS_PER_NODE_MAX);
        }
        assert!(told.admit("n1", &many("n1-again"), now).is_empty());
        for i in 0..200 {
            let node = format!("node-{i}");
            told.admit(&node, &many(&node), now);
        }
        assert_eq!(told.0.len(), PAIRS_MAX);
    }

    #[test]
    fn what_no_agent_says_is_told_to_nobody() {
        let mut told = Told::default();
        let wrong = [
            connection("team-b/d", "a"),
            connection("team-b/../secrets", "team-a/a"),
            connection("team-b/d?x=y", "team-a/a"),
            connection("../d", "team-a/a"),
            connection("team-a/a", "team-a/a"),
            connection(&format!("team-b/{}", "d".repeat(254)), "team-a/a"),
            said(Kind::Unspecified, "team-b/d", "team-a/a"),
        ];
        assert!(told.admit("n1", &wrong, Instant::now()).is_empty());
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
