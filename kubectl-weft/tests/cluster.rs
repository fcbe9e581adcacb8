//! `kubectl weft` as a program against an API server: what it asks, as whom, and what it prints.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

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
    let missing = (404, failure(404, "NotFound", &format!("{path} not found")));
    let (code, body) = answers.get(path).cloned().unwrap_or(missing);
    seen.lock().expect("no thread has panicked").push(request);
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
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
