//! `kubectl weft` as a program against an API server: what it asks, as whom, and what it prints.

mod support_bundle;
mod top;
mod ui;

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

/// The code of an answer 200 that breaks off: it is longer than what comes.
const BREAKS_OFF: u16 = 1200;

/// An API server that has an answer for some paths; it ends with the test.
struct Server {
    kubeconfig: PathBuf,
    asked: Arc<Mutex<Vec<String>>>,
    _directory: tempfile::TempDir,
}

/// What a run of the program left.
struct Run {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Server {
    fn new<const N: usize>(answers: [(&'static str, u16, Value); N]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let kubeconfig = directory.path().join("config");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("a file");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let answers: BTreeMap<&str, (u16, Value)> = answers
            .into_iter()
            .map(|(path, code, body)| (path, (code, body)))
            .collect();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, &answers, &seen);
            }
        });
        Self {
            kubeconfig,
            asked,
            _directory: directory,
        }
    }

    fn run(&self, arguments: &str) -> Run {
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-weft"))
            .args(arguments.split_whitespace())
            .env("KUBECONFIG", &self.kubeconfig)
            .output()
            .expect("kubectl-weft starts");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Run {
            status: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// The requests so far, each with its headers.
    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no thread has panicked").clone()
    }
}

/// Answers one request and closes the connection.
fn answer(
    mut stream: TcpStream,
    answers: &BTreeMap<&str, (u16, Value)>,
    seen: &Mutex<Vec<String>>,
) {
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        if reader.read_line(&mut request).unwrap_or_default() == 0 {
            return;
        }
    }
    let length = request
        .to_lowercase()
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or_default()];
    reader.read_exact(&mut body).expect("a body");
    let target = request.split(' ').nth(1).expect("a target");
    let path = target.trim_end_matches(['?', '&']);
    let unknown = "the server could not find the requested resource";
    let missing = (404, failure(404, "NotFound", unknown));
    let (code, body) = answers.get(path).cloned().unwrap_or(missing);
    seen.lock().expect("no thread has panicked").push(request);
    // A page or a log is no JSON.
    let body = match body {
        Value::String(text) => text,
        object => object.to_string(),
    };
    let (code, bytes) = match code {
        BREAKS_OFF => (200, body.len() + 1),
        code => (code, body.len()),
    };
    let head = format!(
        "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n"
    );
    // A client that has what it wants may be gone.
    let _ = stream.write_all((head + &body).as_bytes());
}

fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
           "reason": reason, "message": message, "code": code})
}

const ROOTS: &str = "/apis/live.weft.dev/v1alpha1/namespaces/team-a/availableroots";

fn roots() -> Value {
    json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "AvailableRootList", "metadata": {}, "items": [
        {"fabric": "default", "name": "models", "access": "ReadWrite", "scope": "PerNamespace",
         "nodes": ["n1", "n2"]},
    ]})
}

#[test]
fn objects_are_printed_as_yaml_and_json_alike_and_wide_is_a_table() {
    let server = Server::new([(ROOTS, 200, roots())]);
    let json: Value =
        serde_json::from_str(&server.run("roots -o json").out).expect("the output is JSON");
    let yaml: Value =
        serde_saphyr::from_str(&server.run("roots -o yaml").out).expect("the output is YAML");
    assert_eq!(json["items"][0]["name"], "models");
    assert_eq!(json, yaml);
    assert_eq!(server.run("roots -o wide").out, server.run("roots").out);
    for command in [
        "status -o xml",
        "plan -f - -o xml",
        "copies list -o xml",
        "doctor -o xml",
    ] {
        let refused = server.run(command);
        assert!(refused.err.contains("[possible values: json, yaml, wide]"));
        assert_eq!(refused.status, Some(2));
    }
}

const PROGRESS: &str = "/apis/live.weft.dev/v1alpha1/namespaces/team-a/transferprogress";
const ONE: &str = "/apis/live.weft.dev/v1alpha1/namespaces/team-a/transferprogress/minilm";
const JOBS: &str = "/apis/weft.dev/v1alpha1/namespaces/team-a/transferjobs";
const OF_RED: &str =
    "/apis/weft.dev/v1alpha1/namespaces/team-a/transferjobs?&labelSelector=team%3Dred";
const OF_NONE: &str =
    "/apis/weft.dev/v1alpha1/namespaces/team-a/transferjobs?&labelSelector=team%3Dno";
const BAD: &str =
    "/apis/weft.dev/v1alpha1/namespaces/team-a/transferjobs?&labelSelector=a%3D%3D%3Db";

fn progress(name: &str) -> Value {
    json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "TransferProgress",
           "metadata": {"name": name, "namespace": "team-a"}, "status": {"phase": "Transferring"}})
}

fn all_progress() -> Value {
    json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "TransferProgressList", "metadata": {},
           "items": [progress("bert"), progress("minilm")]})
}

fn jobs(names: &[&str]) -> Value {
    let items: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({"apiVersion": "weft.dev/v1alpha1", "kind": "TransferJob",
                   "metadata": {"name": name, "namespace": "team-a", "labels": {"team": "red"}},
                   "spec": {"source": {"file": {"root": "models", "path": "m/", "node": "n1"}},
                            "destinations": {"nodes": ["n2"], "root": "models", "path": "m"}}})
        })
        .collect();
    json!({"apiVersion": "weft.dev/v1alpha1", "kind": "TransferJobList", "metadata": {}, "items": items})
}

#[test]
fn a_job_is_shown_by_its_type_and_its_name_too() {
    let server = Server::new([(ONE, 200, progress("minilm"))]);
    for arguments in ["minilm", "tj/minilm", "tj minilm"] {
        let shown = server.run(&format!("status {arguments}"));
        assert!(
            shown.out.starts_with("job         team-a/minilm"),
            "{arguments}: {}",
            shown.err
        );
    }
}

#[test]
fn a_selector_shows_the_jobs_whose_labels_the_api_server_matches() {
    let server = Server::new([
        (PROGRESS, 200, all_progress()),
        (OF_RED, 200, jobs(&["minilm"])),
        (OF_NONE, 200, jobs(&[])),
        (
            BAD,
            400,
            failure(400, "BadRequest", "unable to parse requirement"),
        ),
    ]);
    let shown = server.run("status");
    assert!(shown.out.contains("bert") && shown.out.contains("minilm"));
    let shown = server.run("status -l team=red");
    assert_eq!(shown.out.lines().count(), 2, "{}{}", shown.out, shown.err);
    assert!(shown.out.contains("minilm"), "{}", shown.out);
    let shown = server.run("status --selector team=no");
    assert!(
        shown
            .err
            .starts_with("no TransferJobs with labels team=no in namespace team-a")
    );
    assert_eq!(shown.status, Some(0));
    let shown = server.run("status -l a===b");
    assert_eq!(
        shown.err,
        "kubectl weft status: --selector: unable to parse requirement\n"
    );
    assert_eq!(shown.status, Some(2));
    let both = server.run("status minilm -l team=red");
    assert!(both.err.contains("cannot be used with"), "{}", both.err);
}

#[test]
fn a_selector_holds_too_where_the_operator_cannot_be_asked() {
    let server = Server::new([
        (OF_RED, 200, jobs(&["minilm"])),
        (JOBS, 200, jobs(&["minilm", "bert"])),
    ]);
    let shown = server.run("status -l team=red");
    assert!(shown.err.starts_with("as last written"), "{}", shown.err);
    assert!(
        shown.out.contains("minilm") && !shown.out.contains("bert"),
        "{}",
        shown.out
    );
}

#[test]
fn requests_are_made_as_the_user_and_the_groups_that_are_named() {
    let server = Server::new([(ROOTS, 200, roots())]);
    server.run("roots");
    server.run("roots --as jane --as-group team-a --as-group devs");
    let asked = server.asked();
    assert!(
        !asked[0].to_lowercase().contains("impersonate"),
        "{}",
        asked[0]
    );
    let headers: Vec<&str> = asked[1]
        .lines()
        .filter(|line| line.starts_with("impersonate"))
        .collect();
    assert_eq!(
        headers,
        [
            "impersonate-user: jane",
            "impersonate-group: team-a",
            "impersonate-group: devs"
        ]
    );
    let alone = server.run("roots --as-group devs");
    assert!(alone.err.contains("--as <USER>"), "{}", alone.err);
    assert_eq!(alone.status, Some(2));
    let empty = server.run("roots --as=");
    assert!(empty.err.contains("printable ASCII"), "{}", empty.err);
}

const OPERATORS: &str =
    "/apis/apps/v1/deployments?&labelSelector=app.kubernetes.io%2Fname%3Dweft-operator";
const OPERATORS_THERE: &str = "/apis/apps/v1/namespaces/weft-system/deployments?&labelSelector=app.kubernetes.io%2Fname%3Dweft-operator";

fn operators(images: &[&str]) -> Value {
    let items: Vec<Value> = images
        .iter()
        .map(|image| {
            json!({"metadata": {"name": "weft-operator", "namespace": "weft-system",
                                "labels": {"app.kubernetes.io/version": "0.0.9"}},
                   "spec": {"selector": {}, "template": {"spec": {"containers": [
                       {"name": "operator", "image": image}]}}}})
        })
        .collect();
    json!({"apiVersion": "apps/v1", "kind": "DeploymentList", "metadata": {}, "items": items})
}

const OPERATOR_PODS: &str =
    "/api/v1/namespaces/weft-system/pods?&labelSelector=app.kubernetes.io%2Fname%3Dweft-operator";

/// Pods with these images, and whether each is ready.
fn operator_pods(images: &[(&str, bool)]) -> Value {
    let pod = |(image, is_ready): &(&str, bool)| {
        let status = if *is_ready { "True" } else { "False" };
        json!({"metadata": {"name": "weft-operator-1", "namespace": "weft-system"},
               "spec": {"containers": [{"name": "operator", "image": image}]},
               "status": {"conditions": [{"type": "Ready", "status": status}]}})
    };
    let items: Vec<Value> = images.iter().map(pod).collect();
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items})
}

/// What this program calls itself.
fn client() -> String {
    format!("client    {}\n", weft_cli::VERSION)
}

#[test]
fn the_version_of_the_client_has_its_commit_and_needs_no_cluster() {
    let server = Server::new([]);
    let shown = server.run("version --client");
    assert_eq!((shown.out, shown.status), (client(), Some(0)));
    assert!(server.asked().is_empty());
    let flag = server.run("--version").out;
    assert_eq!(flag, format!("kubectl weft {}\n", weft_cli::VERSION));
    let json: Value = serde_json::from_str(&server.run("version --client -o json").out).unwrap();
    assert_eq!(json, json!({"client": weft_cli::VERSION}));
}

#[test]
fn the_version_of_the_operator_is_that_of_its_image_or_else_its_label() {
    for (image, version) in [
        ("r:5000/weft/operator:0.2.0", "0.2.0"),
        ("weft/operator@sha256:0", "0.0.9"),
    ] {
        let server = Server::new([
            (OPERATORS, 200, operators(&[image])),
            (OPERATORS_THERE, 200, operators(&[image])),
            (OPERATOR_PODS, 200, operator_pods(&[(image, true)])),
        ]);
        for arguments in ["version", "version -n weft-system"] {
            let shown = server.run(arguments);
            let expected = format!("{}operator  {version}\n", client());
            assert_eq!(
                (shown.out, shown.status),
                (expected, Some(0)),
                "{}",
                shown.err
            );
        }
    }
}

#[test]
fn the_version_of_the_operator_is_that_of_its_ready_pods() {
    let next = ("r/weft/operator:0.3.0", false);
    let version = |pods: &[(&str, bool)]| {
        let server = Server::new([
            (OPERATORS, 200, operators(&[next.0])),
            (OPERATOR_PODS, 200, operator_pods(pods)),
        ]);
        server.run("version")
    };
    let now = ("r/weft/operator:0.2.0", true);
    let shown = version(&[next, now]);
    let expected = |release: &str| format!("{}operator  {release}\n", client());
    assert_eq!((shown.out, shown.status), (expected("0.2.0"), Some(0)));
    assert_eq!(
        version(&[(next.0, true), now, now]).out,
        expected("0.2.0, 0.3.0")
    );
    let shown = version(&[next]);
    assert_eq!((shown.out, shown.status), (client(), Some(2)));
    assert!(
        shown.err.contains(
            "no pod of Deployment weft-operator is ready; see: kubectl describe pods -n weft-system"
        ),
        "{}",
        shown.err
    );
}

#[test]
fn a_version_that_the_user_may_not_see_or_that_is_not_there_is_said_not_to_be_known() {
    let forbidden = failure(403, "Forbidden", "deployments.apps is forbidden");
    for (code, answer, text) in [
        (
            403,
            forbidden,
            "deployments.apps is forbidden; --namespace asks in one namespace",
        ),
        (
            200,
            operators(&[]),
            "no Deployment in the cluster is labelled",
        ),
    ] {
        let server = Server::new([(OPERATORS, code, answer)]);
        let shown = server.run("version");
        assert!(
            shown.err.contains("the operator's version is not known"),
            "{}",
            shown.err
        );
        assert!(shown.err.contains(text), "{}", shown.err);
        assert_eq!((shown.out, shown.status), (client(), Some(2)));
    }
}

/// What a tenant may put into a name, a path or a file's name, which messages then hold.
const HOSTILE: &str = "a\u{1b}]0;x\u{7}\u{9b}2J\u{202e}\rb\nc";
const COPIES: &str = "/apis/live.weft.dev/v1alpha1/namespaces/team-a/nodecopies";
const REMOVALS: &str = "/apis/live.weft.dev/v1alpha1/namespaces/team-a/copyremovals";

#[test]
fn no_text_that_others_chose_reaches_a_terminal_with_characters_that_it_obeys() {
    let mut one = progress("minilm");
    one["status"] = json!({"phase": "Failed", "message": HOSTILE, "destinations": [
        {"node": "n2", "state": "Failed", "reason": "DiskFull", "message": HOSTILE}]});
    let mut list = all_progress();
    list["items"][0] = one.clone();
    let copies = json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "NodeCopyList", "metadata": {}, "items": [
        {"node": "n2", "root": "models", "path": HOSTILE, "digest": "0", "bytes": 1, "files": 1, "jobs": []}]});
    let removal = json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "CopyRemoval",
        "removed": [HOSTILE], "kept": [{"node": "n2", "message": HOSTILE}]});
    let server = Server::new([
        (ONE, 200, one),
        (PROGRESS, 200, list),
        (COPIES, 200, copies),
        (REMOVALS, 200, removal),
        (ROOTS, 403, failure(403, "Forbidden", HOSTILE)),
    ]);
    for command in [
        "status tj/minilm",
        "status tj/minilm -w",
        "status",
        "copies list",
        "copies delete models x",
        "roots",
    ] {
        let shown = server.run(command);
        let text = shown.out + &shown.err;
        let is_obeyed = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!text.contains(is_obeyed), "{command}: {text:?}");
        assert!(
            text.contains("a\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{202e}\\rb"),
            "{command}: {text}"
        );
        // A line break of theirs makes no line that looks like one of ours.
        let is_own = |line: &str| line.starts_with('c') && line.len() == 1;
        assert!(!text.lines().any(is_own), "{command}: {text}");
    }
    let json: Value = serde_json::from_str(&server.run("copies list -o json").out).expect("JSON");
    assert_eq!(json["items"][0]["path"], HOSTILE);
}

const PLANS: &str = "/apis/live.weft.dev/v1alpha1/namespaces/team-a/transferplans";
const DEVICES: &str = "/apis/live.weft.dev/v1alpha1/namespaces/team-a/poddevices";
const ALL_DEVICES: &str = "/apis/live.weft.dev/v1alpha1/poddevices";

/// A list of one device of team-a; node n2 did not answer.
fn devices() -> Value {
    json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "PodDeviceList", "metadata": {}, "items": [
        {"namespace": "team-a", "pod": "trainer-0", "node": "n1", "device": "vdev-00003", "open": 1,
         "bytesSent": 7, "bytesReceived": 8, "refusedPackets": 0, "refusedOffers": 3}],
        "silentNodes": [{"node": "n2", "message": "try again"}]})
}

#[test]
fn devices_are_listed_and_a_node_that_does_not_answer_is_named() {
    let mut whole = devices();
    whole["silentNodes"] = json!([]);
    let server = Server::new([(DEVICES, 200, devices()), (ALL_DEVICES, 200, whole)]);
    let shown = server.run("devices");
    assert_eq!(shown.status, Some(1), "{}", shown.err);
    let line = shown.out.lines().last().expect("a line");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..3], ["trainer-0", "n1", "vdev-00003"]);
    assert_eq!(words[words.len() - 2..], ["3", "Healthy"]);
    assert!(shown.err.contains("node n2 are not shown: try again"));
    let all = server.run("devices -A");
    assert_eq!((all.status, all.err.as_str()), (Some(0), ""));
    assert!(all.out.contains("team-a"), "{}", all.out);
}

const NODES: &str = "/apis/weft.dev/v1alpha1/fabricnodes";

/// Nodes of a fabric, of which these have more copies than they report.
fn fabric_nodes(names: &[&str], with_more: &[&str]) -> Value {
    let node = |name: &&str| {
        let findings = match with_more.contains(name) {
            true => json!([{"reason": "CopiesFull", "message": "delete jobs"}]),
            false => json!([]),
        };
        json!({"apiVersion": "weft.dev/v1alpha1", "kind": "FabricNode", "metadata": {"name": name},
               "spec": {"fabric": "default"}, "status": {"findings": findings}})
    };
    let items: Vec<Value> = names.iter().map(node).collect();
    json!({"apiVersion": "weft.dev/v1alpha1", "kind": "FabricNodeList", "metadata": {}, "items": items})
}

fn copies() -> Value {
    json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "NodeCopyList", "metadata": {}, "items": [
        {"node": "n0", "root": "models", "path": "team-a/ttl", "digest": "0", "bytes": 1, "files": 1, "jobs": []}]})
}

#[test]
fn a_list_of_copies_names_the_nodes_that_have_more_than_they_report() {
    let nodes = ["n0", "n1", "n2"];
    let server = Server::new([
        (COPIES, 200, copies()),
        (NODES, 200, fabric_nodes(&nodes, &["n1", "n2"])),
    ]);
    for command in ["copies list", "copies list -o json"] {
        let shown = server.run(command);
        let last = shown.err.lines().last().expect("a line");
        assert!(
            last.contains("48 KiB") && last.contains("n1, n2,"),
            "{last}"
        );
        assert!(!last.contains("n0"), "{last}");
        assert!(shown.out.contains("team-a/ttl"), "{}", shown.out);
    }
    let whole = Server::new([
        (COPIES, 200, copies()),
        (NODES, 200, fabric_nodes(&nodes, &[])),
    ]);
    assert_eq!(whole.run("copies list").err, "");
    let forbidden = failure(403, "Forbidden", "fabricnodes is forbidden");
    let tenants = Server::new([(COPIES, 200, copies()), (NODES, 403, forbidden)]);
    let shown = tenants.run("copies list");
    assert!(shown.err.contains("is not known: fabricnodes is forbidden"));
    assert_eq!(shown.status, Some(0));
}

#[test]
fn a_removal_names_the_nodes_that_may_have_the_copy_and_do_not_report_it() {
    let removal = |removed: &[&str]| json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "CopyRemoval", "removed": removed, "kept": []});
    let nodes = ["n0", "n1", "n2"];
    let server = |removed: &[&str], with_more: &[&str]| {
        Server::new([
            (REMOVALS, 200, removal(removed)),
            (NODES, 200, fabric_nodes(&nodes, with_more)),
        ])
    };
    let delete = "copies delete models team-a/ttl";
    let done = server(&["n0"], &["n0"]).run(delete);
    assert_eq!((done.status, &*done.err), (Some(0), ""));
    // A source's own files stay, and no report says which those are.
    assert!(!done.out.contains("removed"), "{}", done.out);
    assert!(
        done.out.contains("a source's own files stay"),
        "{}",
        done.out
    );
    for removed in [&["n0"][..], &[]] {
        let part = server(removed, &["n0", "n1"]).run(delete);
        assert_eq!(part.status, Some(1), "{}", part.err);
        assert!(part.err.contains("node n1: its agent has more copies"));
        assert!(
            part.err
                .contains("kubectl weft copies list --all-namespaces")
        );
        assert_eq!(part.err.contains("node n0"), removed.is_empty());
    }
    let named = server(&["n0"], &["n0", "n1"]).run(&format!("{delete} --node n0"));
    assert_eq!((named.status, &*named.err), (Some(0), ""));
}

#[test]
fn every_command_ends_quietly_when_nobody_reads_its_output() {
    let job = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(job.path(), jobs(&["minilm"])["items"][0].to_string()).expect("written");
    let server = Server::new([
        (ROOTS, 200, roots()),
        (PROGRESS, 200, all_progress()),
        (ONE, 200, progress("minilm")),
        (COPIES, 200, copies()),
        (
            REMOVALS,
            200,
            json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "CopyRemoval", "removed": ["n0"], "kept": []}),
        ),
        (DEVICES, 200, devices()),
        (NODES, 200, fabric_nodes(&[], &[])),
        (
            "/apis/weft.dev/v1alpha1/rdmafabrics",
            200,
            json!({"apiVersion": "weft.dev/v1alpha1", "kind": "RdmaFabricList", "metadata": {}, "items": []}),
        ),
        (OPERATORS, 200, operators(&["weft/operator:1"])),
        (
            OPERATOR_PODS,
            200,
            operator_pods(&[("weft/operator:1", true)]),
        ),
        (
            "/apis/weft.dev/v1alpha1/namespaces/team-a/transferjobs?&dryRun=All",
            201,
            jobs(&["minilm"])["items"][0].clone(),
        ),
        (
            PLANS,
            201,
            json!({"apiVersion": "live.weft.dev/v1alpha1", "kind": "TransferPlan", "obstacles": []}),
        ),
    ]);
    for command in [
        "roots",
        "status",
        "status minilm",
        "status minilm -o json",
        "status minilm -w -o json",
        "copies list",
        "copies list -o yaml",
        "copies delete models team-a/ttl",
        "devices",
        "top jobs",
        "doctor",
        "version",
        "version --client",
        "completion bash",
        &format!("plan -f {}", job.path().display()),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-weft"))
            .args(command.split_whitespace())
            .env("KUBECONFIG", &server.kubeconfig)
            .stdout(writer)
            .output()
            .expect("kubectl-weft starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "", "{command}");
        assert_eq!(output.status.code(), Some(141), "{command}");
    }
}
