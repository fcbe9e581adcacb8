//! `kubectl weft support-bundle`: what is in the file, and what is not.

use std::{collections::BTreeMap, io::Read as _, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use crate::{BREAKS_OFF, Server, failure};

/// What must not be in a bundle, each at a place of its own.
const SECRETS: [&str; 23] = [
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
    "AKIAPLANTEDEXAMPLE00",
    "planted-in-a-rust-type",
    "planted-in-a-list",
    "planted,after,commas",
    "planted-pwd",
    "planted-passphrase",
    "-planted-after-a-hyphen",
    "planted:without-a-scheme",
    "424242424242",
];

const FORBIDDEN: &str = "daemonsets.apps is forbidden: token=planted-in-a-refusal";

const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.live.weft.dev";

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
                {"name": "HTTP_PROXY", "value": "planted:without-a-scheme@proxy:3128"},
                {"name": "DB_PWD", "value": "planted-pwd"},
                {"name": "TLS_PASSPHRASE", "value": "planted-passphrase"},
            ],
            "args": ["--log=info", "--s3-token=planted-in-an-argument", "--password", "planted-in-the-next-argument",
                     "--password", "-planted-after-a-hyphen"],
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
        {\"client_secret\":\"planted-in-json\"}\n\
        access key AKIAPLANTEDEXAMPLE00\n\
        token=Some(\"planted-in-a-rust-type\") \"token\":[\"a\",\"planted-in-a-list\"]\n\
        password=planted,after,commas \"password\": 424242424242\n\
        INFO agent ends\n";
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
            API_SERVICE,
            200,
            json!({"spec": {"service": {"namespace": "weft-system", "name": "weft-operator-live"}}}),
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
            "/apis/weft.dev/v1alpha1/fabricnodes?&limit=500",
            200,
            list(&json!([{
                "apiVersion": "weft.dev/v1alpha1", "kind": "FabricNode", "metadata": {"name": "n0"},
                "spec": {"fabric": "default"}, "status": {"version": "0.1.0"},
            }])),
        ),
        (
            "/apis/weft.dev/v1alpha1/transferjobs?&limit=500",
            200,
            json!({"metadata": {"continue": "a+b"}, "items": [{"metadata": {"name": "first"}}]}),
        ),
        (
            "/apis/weft.dev/v1alpha1/transferjobs?&limit=500&continue=a%2Bb",
            200,
            list(&json!([{"metadata": {"name": "second"}}])),
        ),
        (
            "/api/v1/events?&fieldSelector=involvedObject.apiVersion%3Dweft.dev%2Fv1alpha1&limit=500",
            200,
            list(&json!([{"message": event}])),
        ),
        (
            "/apis/apps/v1/namespaces/weft-system/daemonsets?&labelSelector=app.kubernetes.io%2Fpart-of%3Dweft&limit=500",
            403,
            failure(403, "Forbidden", FORBIDDEN),
        ),
        (
            "/api/v1/namespaces/weft-system/pods?&labelSelector=app.kubernetes.io%2Fpart-of%3Dweft&limit=500",
            200,
            pods(),
        ),
        (
            "/api/v1/namespaces/weft-system/pods/weft-agent-x/log?container=agent&tailLines=50000&sinceSeconds=1800",
            200,
            log(),
        ),
        (
            "/api/v1/namespaces/weft-system/pods/weft-agent-x/log?container=agent&tailLines=50000&previous=true",
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
    assert_eq!(run.status, Some(0), "{}", run.err);
    assert_eq!(
        run.err,
        "reading objects of Weft\nreading Events and workloads of namespace weft-system\n\
         reading logs of 1 pods\nreading metrics of 1 nodes\n"
    );
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
        "objects/apiservice.json",
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
        "4 values of variables",
        "| events/namespace.json | ",
    ] {
        assert!(index.contains(line), "{line} is not in {index}");
    }
}

/// The files of a bundle of this server.
fn bundle_of(server: &Server) -> BTreeMap<String, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bundle.tar.gz");
    let run = server.run(&format!("support-bundle -o {}", path.display()));
    assert_eq!(run.status, Some(0), "{}", run.err);
    files(&std::fs::read(path).expect("the bundle"))
}

const OF_WEFT: &str = "&labelSelector=app.kubernetes.io%2Fpart-of%3Dweft&limit=500";

#[test]
fn a_page_of_metrics_that_breaks_off_leaves_those_of_other_nodes_in_the_bundle() {
    let node = |name: &str| {
        json!({"apiVersion": "weft.dev/v1alpha1", "kind": "FabricNode", "metadata": {"name": name},
               "spec": {"fabric": "default"}})
    };
    let server = Server::new([
        (
            "/apis/weft.dev/v1alpha1/fabricnodes?&limit=500",
            200,
            list(&["n0", "n1", "n2"].map(node).to_vec().into()),
        ),
        (
            "/apis/live.weft.dev/v1alpha1/fabricnodes/n0/metrics",
            200,
            "# EOF\n".into(),
        ),
        (
            "/apis/live.weft.dev/v1alpha1/fabricnodes/n1/metrics",
            BREAKS_OFF,
            "weft_connections 3\n".into(),
        ),
        (
            "/apis/live.weft.dev/v1alpha1/fabricnodes/n2/metrics",
            200,
            "# EOF\n".into(),
        ),
    ]);
    let files = bundle_of(&server);
    let metrics = files.keys().filter(|name| name.starts_with("metrics/"));
    let metrics: Vec<&str> = metrics.map(String::as_str).collect();
    assert_eq!(metrics, ["metrics/n0.txt", "metrics/n2.txt"]);
    let index = &files["INDEX.md"];
    assert!(index.contains("| metrics/n1.txt | "), "{index}");
    assert!(index.contains(" ended too early: "), "{index}");
}

#[test]
fn a_deployment_of_a_tenant_does_not_divert_the_bundle() {
    let foreign = format!("/api/v1/namespaces/a-tenant/pods?{OF_WEFT}");
    let own = format!("/api/v1/namespaces/own/pods?{OF_WEFT}");
    let deployments = ["a-tenant", "own"]
        .map(|namespace| json!({"metadata": {"name": "weft-operator", "namespace": namespace}}));
    let pod = |name: &str| json!([{"metadata": {"name": name}, "spec": {"containers": []}}]);
    let server = |code| {
        Server::new([
            (
                "/apis/apps/v1/deployments?labelSelector=app.kubernetes.io%2Fname%3Dweft-operator",
                200,
                list(&deployments.to_vec().into()),
            ),
            (
                API_SERVICE,
                code,
                json!({"spec": {"service": {"namespace": "own"}}}),
            ),
            (foreign.clone().leak(), 200, list(&pod("planted"))),
            (own.clone().leak(), 200, list(&pod("weft-agent-own"))),
        ])
    };
    let files = bundle_of(&server(200));
    assert!(files["workloads/pods.json"].contains("weft-agent-own"));
    // Who may not read it gets the namespace of the guides.
    let files = bundle_of(&server(403));
    let missing = "| namespace of Weft | no APIService says it: weft-system was looked at";
    assert!(files["INDEX.md"].contains(missing), "{}", files["INDEX.md"]);
    assert!(!files.contains_key("workloads/pods.json"));
}

#[test]
fn a_long_log_has_its_last_lines_and_the_list_says_that_earlier_ones_are_missing() {
    // 11 MiB in lines of 1 KiB.
    let line = format!("{}\n", "x".repeat(1023));
    let log = line.repeat(11 << 10) + "the last line\n";
    let pods = format!("/api/v1/namespaces/weft-system/pods?{OF_WEFT}");
    let pod = json!([{"metadata": {"name": "weft-agent-x"}, "spec": {"containers": [{"name": "agent"}]}}]);
    let server = Server::new([
        (pods.leak(), 200, list(&pod)),
        (
            "/api/v1/namespaces/weft-system/pods/weft-agent-x/log?container=agent&tailLines=50000&sinceSeconds=3600",
            200,
            log.into(),
        ),
    ]);
    let files = bundle_of(&server);
    let file = "logs/weft-agent-x/agent.log";
    let log = &files[file];
    assert!(log.ends_with("x\nthe last line\n"));
    assert!(log.starts_with(&line), "it begins with a line");
    assert!((10 << 20) - log.len() < 1024, "{} bytes", log.len());
    let missing = format!("| earlier lines of {file} | a bundle has the last 50000 lines");
    assert!(
        files["INDEX.md"].contains(&missing),
        "{}",
        files["INDEX.md"]
    );
}

#[test]
fn a_bundle_that_is_being_written_has_another_name() {
    let (server, directory) = (server(), tempfile::tempdir().expect("a directory"));
    let path = directory.path().join("bundle.tar.gz");
    // Another one that was interrupted.
    let part = directory.path().join("bundle.tar.gz.part");
    std::fs::write(&part, "half").expect("a file");
    let refused = server.run(&format!("support-bundle -o {}", path.display()));
    assert_eq!(refused.status, Some(2));
    assert!(
        refused.err.contains("bundle.tar.gz.part: "),
        "{}",
        refused.err
    );
    assert!(!path.exists());
    std::fs::remove_file(&part).expect("removed");
    let run = server.run(&format!("support-bundle -o {}", path.display()));
    assert_eq!(run.status, Some(0), "{}", run.err);
    assert!(path.exists() && !part.exists());
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
