//! An API server in memory, for tests: objects of any kind, watches, server-side apply, merge patches,
//! UIDs, resource versions, finalizers and Events. It can answer late, refuse, or not answer at all.
//!
//! What an object's type would check is not checked: there are no schemas, and every path is served.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Resource, ResourceExt as _, api::DynamicObject};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

use crate::controllers::condition::whole_seconds;

/// Plural, namespace, name.
type Name = (String, String, String);

/// What it does with requests that change objects of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// It answers, after this time.
    Answers(Duration),
    /// It never answers, as behind an admission webhook that hangs.
    Hangs,
    /// It changes the object at once, and answers after this time.
    AnswersLate(Duration),
    /// It refuses with this status code.
    Refuses(u16),
    /// It answers, and leaves out labels and annotations that end so, as an admission webhook may.
    LeavesOut(&'static str),
}

struct Kept {
    version: u64,
    objects: BTreeMap<Name, Value>,
    /// What each manager applied last, by object and subresource.
    applied: BTreeMap<(Name, String, bool), Value>,
    /// By the plural of the kind.
    behaviours: BTreeMap<String, Behaviour>,
    /// Every request that changed something: method and path.
    log: Vec<String>,
    /// Every watch event, with its version.
    history: Vec<(u64, Told)>,
}

/// A watch event of a kind (plural).
type Told = (String, Value);

/// The server. Clones are the same one.
#[derive(Clone)]
pub(crate) struct ApiServer {
    kept: Arc<Mutex<Kept>>,
    watchers: broadcast::Sender<Told>,
}

/// How long a server takes, in the test's own time.
async fn delay(time: Duration) {
    // Nothing else ends it.
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

impl ApiServer {
    /// One without objects.
    pub(crate) fn new() -> Self {
        Self {
            kept: Arc::new(Mutex::new(Kept {
                version: 1,
                objects: BTreeMap::new(),
                applied: BTreeMap::new(),
                behaviours: BTreeMap::new(),
                log: Vec::new(),
                history: Vec::new(),
            })),
            watchers: broadcast::channel(100_000).0,
        }
    }

    /// A client of it.
    pub(crate) fn client(&self) -> Client {
        let router = Router::new().fallback(serve).with_state(self.clone());
        Client::new(router, "default")
    }

    /// From now on requests that change objects of this kind (plural) are treated so.
    pub(crate) fn behave(&self, plural: &str, behaviour: Behaviour) {
        let mut kept = self.kept.lock().unwrap();
        kept.behaviours.insert(plural.to_owned(), behaviour);
    }

    /// Creates or replaces an object, as a user does.
    pub(crate) fn put<K: Resource<DynamicType = ()> + Serialize>(&self, object: &K) {
        let name = name(object);
        let mut value = json!(object);
        value["apiVersion"] = json!(K::api_version(&()));
        value["kind"] = json!(K::kind(&()));
        let mut kept = self.kept.lock().unwrap();
        self.store(&mut kept, name, value);
    }

    /// The same for a kind without a type.
    pub(crate) fn put_dynamic(&self, plural: &str, object: &DynamicObject) {
        let namespace = object.namespace().unwrap_or_default();
        let name = (plural.to_owned(), namespace, object.name_any());
        let mut kept = self.kept.lock().unwrap();
        self.store(&mut kept, name, json!(object));
    }

    /// Deletes an object, as a user does.
    pub(crate) fn delete<K: Resource<DynamicType = ()>>(&self, namespace: &str, name: &str) {
        let plural = K::plural(&()).into_owned();
        let name = (plural, namespace.to_owned(), name.to_owned());
        let response = self.change(&Method::DELETE, name, &json!({}), None, false);
        assert_eq!(response.status(), StatusCode::OK);
    }

    /// The object of this name.
    pub(crate) fn get<K: Resource<DynamicType = ()> + DeserializeOwned>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Option<K> {
        let plural = K::plural(&()).into_owned();
        let kept = self.kept.lock().unwrap();
        let object = kept
            .objects
            .get(&(plural, namespace.to_owned(), name.to_owned()))?;
        Some(serde_json::from_value(object.clone()).unwrap())
    }

    /// All objects of a kind.
    pub(crate) fn all<K: Resource<DynamicType = ()> + DeserializeOwned>(&self) -> Vec<K> {
        let kept = self.kept.lock().unwrap();
        let of_kind = kept.of_kind(&K::plural(&()));
        of_kind
            .map(|object| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    /// Every request that changed something, as method and path.
    pub(crate) fn log(&self) -> Vec<String> {
        self.kept.lock().unwrap().log.clone()
    }

    /// Stores an object under a new version, or removes it if it was deleted and nothing holds it.
    fn store(&self, kept: &mut Kept, name: Name, mut object: Value) -> Value {
        let before = kept.objects.get(&name).cloned();
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}-{}-{}", name.0, name.2, kept.version));
        }
        if let Some(before) = &before {
            let differs = before["spec"] != object["spec"];
            let generation = before["metadata"]["generation"].as_u64().unwrap_or(1);
            object["metadata"]["generation"] = json!(generation + u64::from(differs));
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            if *before == object {
                return object;
            }
        } else {
            object["metadata"]["generation"] = json!(1);
            let created = &mut object["metadata"]["creationTimestamp"];
            if created.is_null() {
                *created = json!(whole_seconds(Timestamp::now()));
            }
        }
        kept.version += 1;
        object["metadata"]["resourceVersion"] = json!(kept.version.to_string());
        let finalizers = object["metadata"]["finalizers"].as_array();
        let is_held = finalizers.is_some_and(|finalizers| !finalizers.is_empty());
        let is_deleted = !object["metadata"]["deletionTimestamp"].is_null() && !is_held;
        let kind = match (&before, is_deleted) {
            (_, true) => "DELETED",
            (None, false) => "ADDED",
            (Some(_), false) => "MODIFIED",
        };
        let told = (name.0.clone(), json!({ "type": kind, "object": object }));
        kept.history.push((kept.version, told.clone()));
        // Nobody may be watching.
        let _ = self.watchers.send(told);
        if is_deleted {
            kept.objects.remove(&name);
        } else {
            kept.objects.insert(name, object.clone());
        }
        object
    }
}

impl Kept {
    fn of_kind(&self, plural: &str) -> impl Iterator<Item = &Value> + use<'_> {
        let first = (plural.to_owned(), String::new(), String::new());
        let plural = plural.to_owned();
        self.objects
            .range(first..)
            .take_while(move |((of, ..), _)| *of == plural)
            .map(|(_, object)| object)
    }
}

fn name<K: Resource<DynamicType = ()>>(object: &K) -> Name {
    (
        K::plural(&()).into_owned(),
        object.namespace().unwrap_or_default(),
        object.name_any(),
    )
}

/// Plural, namespace, name and subresource of a path.
fn parse(path: &str) -> (String, String, Option<String>, bool) {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let rest = if parts[0] == "api" {
        &parts[2..]
    } else {
        &parts[3..]
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        rest => ("", rest),
    };
    let name = rest.get(1).map(|name| (*name).to_owned());
    let is_status = rest.get(2) == Some(&"status");
    (rest[0].to_owned(), namespace.to_owned(), name, is_status)
}

fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri
        .query()?
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(key, _)| *key == name);
    values.next().map(|(_, value)| {
        let value = value.replace("%2F", "/").replace("%3D", "=");
        value.replace("%2f", "/").replace("%3d", "=")
    })
}

fn not_found(name: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": "NotFound", "code": 404, "message": "there is no such object",
        "details": { "name": name },
    });
    answer(StatusCode::NOT_FOUND, &status)
}

fn refused(code: u16, reason: &str, message: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "code": code, "message": message,
    });
    answer(StatusCode::from_u16(code).unwrap(), &status)
}

fn answer(code: StatusCode, body: &Value) -> Response {
    let content = [(header::CONTENT_TYPE, "application/json")];
    (code, content, body.to_string()).into_response()
}

/// Whether an object has the label that a selector asks for: `KEY` or `KEY=VALUE`.
fn is_selected(object: &Value, selector: Option<&str>) -> bool {
    let Some(selector) = selector else {
        return true;
    };
    let labels = &object["metadata"]["labels"];
    match selector.split_once('=') {
        Some((key, value)) => labels[key] == value,
        None => !labels[selector].is_null(),
    }
}

async fn serve(
    State(server): State<ApiServer>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (plural, namespace, name, is_status) = parse(uri.path());
    if method == Method::GET {
        return server.read(&uri, &plural, &namespace, name);
    }
    let behaviour = {
        let mut kept = server.kept.lock().unwrap();
        kept.log.push(format!("{method} {}", uri.path()));
        kept.behaviours.get(&plural).copied()
    };
    match behaviour {
        Some(Behaviour::Hangs) => std::future::pending().await,
        Some(Behaviour::Refuses(code)) => return refused(code, "Refused", "as the test wants it"),
        Some(Behaviour::Answers(after)) => delay(after).await,
        Some(Behaviour::LeavesOut(_) | Behaviour::AnswersLate(_)) | None => {}
    }
    let mut said: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(Behaviour::LeavesOut(end)) = behaviour {
        for part in ["labels", "annotations"] {
            if let Some(part) = said["metadata"][part].as_object_mut() {
                part.retain(|key, _| !key.ends_with(end));
            }
        }
    }
    let name = name.unwrap_or_else(|| said["metadata"]["name"].as_str().unwrap().to_owned());
    let name = (plural, namespace, name);
    let content = headers.get(header::CONTENT_TYPE);
    let is_apply = content.is_some_and(|content| content.to_str().unwrap().contains("apply"));
    let manager = query(&uri, "fieldManager").unwrap_or_default();
    let answer = server.change(
        &method,
        name,
        &said,
        is_apply.then_some((manager, is_status)),
        is_status,
    );
    if let Some(Behaviour::AnswersLate(after)) = behaviour {
        delay(after).await;
    }
    answer
}

impl ApiServer {
    fn read(&self, uri: &Uri, plural: &str, namespace: &str, name: Option<String>) -> Response {
        let kept = self.kept.lock().unwrap();
        if let Some(name) = name {
            let name = (plural.to_owned(), namespace.to_owned(), name);
            return match kept.objects.get(&name) {
                Some(object) => answer(StatusCode::OK, object),
                None => not_found(&name.2),
            };
        }
        let selector = query(uri, "labelSelector");
        if query(uri, "watch").as_deref() == Some("true") {
            let (plural, namespace) = (plural.to_owned(), namespace.to_owned());
            let from = query(uri, "resourceVersion").and_then(|version| version.parse().ok());
            let from: u64 = from.unwrap_or(0);
            let missed = kept.history.iter().filter(|(version, _)| *version > from);
            let missed: Vec<Told> = missed.map(|(_, told)| told.clone()).collect();
            let live = BroadcastStream::new(self.watchers.subscribe()).map(Result::unwrap);
            let events = futures::stream::iter(missed).chain(live);
            let lines = events.filter_map(move |(of, event)| {
                let object = &event["object"];
                let is_there = namespace.is_empty() || object["metadata"]["namespace"] == namespace;
                let is_told = of == plural && is_there && is_selected(object, selector.as_deref());
                let line = is_told.then(|| Ok::<_, std::io::Error>(format!("{event}\n")));
                std::future::ready(line)
            });
            let content = [(header::CONTENT_TYPE, "application/json")];
            return (content, Body::from_stream(lines)).into_response();
        }
        let items = kept.of_kind(plural);
        let items = items.filter(|object| {
            let is_there = namespace.is_empty() || object["metadata"]["namespace"] == namespace;
            is_there && is_selected(object, selector.as_deref())
        });
        let list = json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": { "resourceVersion": kept.version.to_string() },
            "items": items.collect::<Vec<_>>(),
        });
        answer(StatusCode::OK, &list)
    }

    fn change(
        &self,
        method: &Method,
        name: Name,
        said: &Value,
        apply: Option<(String, bool)>,
        is_status: bool,
    ) -> Response {
        let mut kept = self.kept.lock().unwrap();
        let existing = kept.objects.get(&name).cloned();
        let asked = match *method {
            Method::DELETE => &said["preconditions"],
            _ => &said["metadata"],
        };
        if let Some(existing) = &existing {
            if *method == Method::POST {
                return refused(409, "AlreadyExists", "there is such an object");
            }
            for part in ["uid", "resourceVersion"] {
                if !asked[part].is_null() && asked[part] != existing["metadata"][part] {
                    let is = &existing["metadata"][part];
                    return refused(409, "Conflict", &format!("{part} is {is}"));
                }
            }
        } else if apply.is_some() && !asked["uid"].is_null() && !is_status {
            return refused(409, "Conflict", "there is no object with this uid");
        } else if *method == Method::DELETE
            || is_status
            || (apply.is_none() && *method == Method::PATCH)
        {
            return not_found(&name.2);
        }
        let mut object = existing.unwrap_or_else(|| json!({ "metadata": {} }));
        match *method {
            Method::DELETE => {
                object["metadata"]["deletionTimestamp"] = json!("2027-01-15T08:00:00Z");
            }
            Method::POST | Method::PUT => object = said.clone(),
            _ => {
                let part = |said: &Value| match is_status {
                    true => json!({ "status": said["status"] }),
                    false => without(said, "status"),
                };
                let mut said = part(said);
                if let Some(Value::Object(metadata)) = said.get_mut("metadata") {
                    metadata.remove("resourceVersion");
                }
                if let Some((manager, is_status)) = apply {
                    let of = (name.clone(), manager, is_status);
                    if let Some(before) = kept.applied.insert(of, said.clone()) {
                        remove(&mut object, &before, &said);
                    }
                }
                merge(&mut object, &said);
            }
        }
        if *method != Method::DELETE {
            object["metadata"]["name"] = json!(name.2);
            if !name.1.is_empty() {
                object["metadata"]["namespace"] = json!(name.1);
            }
        }
        let stored = self.store(&mut kept, name, object);
        answer(StatusCode::OK, &stored)
    }
}

fn without(said: &Value, part: &str) -> Value {
    let mut said = said.clone();
    if let Some(said) = said.as_object_mut() {
        said.remove(part);
    }
    said
}

/// Removes what a manager applied before and does not any more.
fn remove(object: &mut Value, before: &Value, now: &Value) {
    let (Some(fields), Some(before)) = (object.as_object_mut(), before.as_object()) else {
        return;
    };
    for (name, value) in before {
        match now.get(name) {
            None => drop(fields.remove(name)),
            Some(now) => {
                if let Some(field) = fields.get_mut(name) {
                    remove(field, value, now);
                }
            }
        }
    }
}

/// RFC 7396: `null` removes a field.
pub(crate) fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in patch {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut object[name], value);
        }
    }
}
