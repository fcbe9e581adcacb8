//! `kubectl weft support-bundle`: what is in the file, and what is not.

use std::{collections::BTreeMap, io::Read as _, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use crate::{Server, failure};

/// What must not be in a bundle, each at a place of its own.
const SECRETS: [&str; 14] = [
    "planted-in-a-variable",
    "planted-in-an-argument",
    "planted-in-the-next-argument",
    "planted-reference",
    "planted-by-kubectl-apply",
    "planted.in.an.url",
    "PlantedSignature",
    "UGxhbnRlZEtleQ",
    "eyJwbGFudGVkIjoidG9rZW4ifQ",
    "planted-bearer-0123",
    "planted-in-json",
    "planted-in-an-event",
    "planted-in-a-refusal",
    "planted-in-metrics",
];

const FORBIDDEN: &str = "daemonsets.apps is forbidden: token=planted-in-a-refusal";

fn pods() -> Value {
    json!({"items": [{
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "weft-agent-x", "namespace": "weft-system",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "planted-by-kubectl-apply"},
        },
        "spec": {"containers": [{
            "name": "agent", "image": "weft/agent:1",
            "env": [
                {"name": "PROXY_PASSWORD", "value": "planted-in-a-variable"},
                {"name": "OTHER", "valueFrom": {"secretKeyRef": {"name": "planted-reference", "key": "k"}}},
                {"name": "HTTPS_PROXY", "value": "http://ada:planted.in.an.url@proxy:3128"},
            ],
            "args": ["--log=info", "--s3-token=planted-in-an-argument", "--password", "planted-in-the-next-argument"],
        }]},
        "status": {"containerStatuses": [
            {"name": "agent", "ready": true, "restartCount": 1, "image": "", "imageID": ""},
        ]},
    }]})
}

fn log() -> Value {
    let log = "INFO agent started\n\
        GET https://s3/x?X-Amz-Signature=PlantedSignature&partNumber=1\n\
        -----BEGIN PRIVATE KEY-----\nUGxhbnRlZEtleQ\n-----END PRIVATE KEY-----\n\
        jwt eyJhbGciOiJIUzI1NiJ9.eyJwbGFudGVkIjoidG9rZW4ifQ.c2lnbmF0dXJl\n\
        Authorization: Bearer planted-bearer-0123\n\
        {\"client_secret\":\"planted-in-json\"}\nINFO agent ends\n";
    log.into()
}

fn list(items: &Value) -> Value {
    json!({"metadata": {}, "items": items})
}

fn server() -> Server {
    let event = "pull of https://r?sig=planted-in-an-event failed";
    Server::new([
        ("/version", 200, json!({"gitVersion": "v1.33.0"})),
        (
            "/apis/apps/v1/deployments?labelSelector=app.kubernetes.io%2Fname%3Dweft-operator",
            200,
            list(&json!([{"metadata": {"name": "weft-operator", "namespace": "weft-system"}}])),
        ),
        (
            "/apis/weft.dev/v1alpha1",
            200,
            json!({"resources": [
                {"name": "fabricnodes", "verbs": ["list"]},
                {"name": "fabricnodes/status", "verbs": ["patch"]},
                {"name": "transferjobs", "verbs": ["list"]},
            ]}),
        ),
        (
            "/apis/weft.dev/v1alpha1/fabricnodes?limit=500",
            200,
            list(&json!([{
                "apiVersion": "weft.dev/v1alpha1", "kind": "FabricNode", "metadata": {"name": "n0"},
                "spec": {"fabric": "default"}, "status": {"version": "0.1.0"},
            }])),
        ),
        (
            "/apis/weft.dev/v1alpha1/transferjobs?limit=500",
            200,
            json!({"metadata": {"continue": "a+b"}, "items": [{"metadata": {"name": "first"}}]}),
        ),
        (
            "/apis/weft.dev/v1alpha1/transferjobs?limit=500&continue=a%2Bb",
            200,
            list(&json!([{"metadata": {"name": "second"}}])),
        ),
        (
            "/api/v1/events?fieldSelector=involvedObject.apiVersion%3Dweft.dev%2Fv1alpha1&limit=500",
            200,
            list(&json!([{"message": event}])),
        ),
        (
            "/apis/apps/v1/namespaces/weft-system/daemonsets?labelSelector=app.kubernetes.io%2Fpart-of%3Dweft&limit=500",
            403,
            failure(403, "Forbidden", FORBIDDEN),
        ),
        (
            "/api/v1/namespaces/weft-system/pods?labelSelector=app.kubernetes.io%2Fpart-of%3Dweft&limit=500",
            200,
            pods(),
        ),
        (
            "/api/v1/namespaces/weft-system/pods/weft-agent-x/log?container=agent&tailLines=50000&limitBytes=10485760&sinceSeconds=1800",
            200,
            log(),
        ),
        (
            "/api/v1/namespaces/weft-system/pods/weft-agent-x/log?container=agent&tailLines=50000&limitBytes=10485760&previous=true",
            200,
            "before\n".into(),
        ),
        (
            "/apis/live.weft.dev/v1alpha1/fabricnodes/n0/metrics",
            200,
            "weft_connections 3\n# token=planted-in-metrics\n# EOF\n".into(),
        ),
    ])
}

/// The files of a bundle, without its directory.
fn files(bundle: &[u8]) -> BTreeMap<String, String> {
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(bundle));
    let files = tar.entries().expect("a tar").map(|entry| {
        let mut entry = entry.expect("a file");
        let path = entry.path().expect("a path").display().to_string();
        let (_, path) = path.split_once('/').expect("a directory");
        let path = path.to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        (path, text)
    });
    files.collect()
}

#[test]
fn a_bundle_has_what_can_be_read_and_no_secret_and_lists_both() {
    let (server, directory) = (server(), tempfile::tempdir().expect("a directory"));
    let path = directory.path().join("bundle.tar.gz");
    let command = format!("support-bundle --since 30m -o {}", path.display());
    let run = server.run(&command);
    assert_eq!((run.status, &*run.err), (Some(0), ""));
    let bundle = std::fs::read(&path).expect("the bundle");

    let mut tar = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(&*bundle);
    unpacked.read_to_end(&mut tar).expect("gzip");
    let tar = String::from_utf8_lossy(&tar);
    for secret in SECRETS {
        assert!(!tar.contains(secret), "{secret} is in the bundle");
        assert!(!run.out.contains(secret), "{secret} is printed");
    }
    for request in server.asked() {
        let (target, _) = request.split_once(" HTTP").expect("a request");
        assert!(
            target.starts_with("GET ") && !target.contains("secret"),
            "{target}"
        );
    }

    let files = files(&bundle);
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    let expected = [
        "INDEX.md",
        "events/weft.json",
        "findings.json",
        "logs/weft-agent-x/agent.log",
        "logs/weft-agent-x/agent.previous.log",
        "metrics/n0.txt",
        "objects/fabricnodes.json",
        "objects/transferjobs.json",
        "versions.json",
        "workloads/pods.json",
    ];
    assert_eq!(names, expected);
    let log = &files["logs/weft-agent-x/agent.log"];
    assert!(
        log.starts_with("INFO agent started\n") && log.ends_with("INFO agent ends\n"),
        "{log}"
    );
    let jobs: Value = serde_json::from_str(&files["objects/transferjobs.json"]).expect("JSON");
    assert_eq!(jobs["items"][1]["metadata"]["name"], "second");
    let versions: Value = serde_json::from_str(&files["versions.json"]).expect("JSON");
    assert_eq!(versions["apiServer"]["gitVersion"], "v1.33.0");
    assert_eq!(versions["images"], json!(["weft/agent:1"]));

    let index = &files["INDEX.md"];
    assert!(run.out.starts_with(&**index), "the list is printed");
    let end = format!("written to {}\n", path.display());
    assert!(run.out.ends_with(&end), "{}", run.out);
    for name in &expected[1..] {
        let bytes = files[*name].len();
        assert!(
            index.contains(&format!("| {name} | {bytes} | ")),
            "{name}: {index}"
        );
    }
    let refused = "| workloads/daemonsets.json | daemonsets.apps is forbidden: token=REMOVED |";
    for line in [
        refused,
        "1 private keys",
        "2 values of variables",
        "| events/namespace.json | ",
    ] {
        assert!(index.contains(line), "{line} is not in {index}");
    }
}

#[test]
fn a_bundle_is_its_users_only_and_replaces_no_file() {
    let (server, directory) = (server(), tempfile::tempdir().expect("a directory"));
    let path = directory.path().join("bundle.tar.gz");
    let command = format!("support-bundle -o {}", path.display());
    assert_eq!(server.run(&command).status, Some(0));
    let mode = std::fs::metadata(&path)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = std::fs::read(&path).expect("the bundle");
    let refused = server.run(&command);
    assert_eq!(refused.status, Some(2));
    assert!(refused.err.contains("--output: "), "{}", refused.err);
    assert_eq!(std::fs::read(&path).expect("the bundle"), before);
}

#[test]
fn without_a_cluster_no_file_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bundle.tar.gz");
    let config = directory.path().join("config");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        // Nobody listens there.
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&config, text.to_string()).expect("a file");
    let (server, config) = (Server::new([]), config.display());
    let run = server.run(&format!(
        "support-bundle --kubeconfig {config} -o {}",
        path.display()
    ));
    assert_eq!(run.status, Some(2));
    assert!(run.err.contains("does not answer"), "{}", run.err);
    assert!(!path.exists());
}
