//! The program as it is started: what it says where no cluster is around.
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

/// Exit status and standard error of a start without anything of the caller's environment.
fn start(home: &Path, arguments: &[&str], kubeconfig: Option<&str>) -> (Option<i32>, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_weft-operator"));
    program.env_clear().env("HOME", home).args(arguments);
    if let Some(text) = kubeconfig {
        let file = home.join("kubeconfig");
        std::fs::write(&file, text).unwrap();
        program.env("KUBECONFIG", file);
    }
    let output = program.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn template(home: &Path) -> String {
    let file = home.join("agent.yaml");
    let labels = "{weft.dev/component: agent}";
    let text = format!(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: weft-agent}}\nspec:\n  \
         selector: {{matchLabels: {labels}}}\n  template:\n    metadata: {{labels: {labels}}}\n    \
         spec: {{containers: [{{name: agent}}]}}\n"
    );
    std::fs::write(&file, text).unwrap();
    file.into_os_string().into_string().unwrap()
}

#[test]
fn help_says_what_it_is_and_where_each_setting_may_come_from() {
    let home = tempfile::tempdir().unwrap();
    let (code, text) = start(home.path(), &["--help"], None);
    assert_eq!(code, Some(0), "{text}");
    for word in [
        "--namespace",
        "POD_IP",
        "7410",
        "/etc/weft/agent.yaml",
        "one leads",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn where_no_api_server_is_known_it_ends_and_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let template = template(home.path());
    let with = |template: &str| {
        let arguments = ["--address", "127.0.0.1", "--agent-template", template];
        arguments.map(str::to_owned)
    };
    let table = [
        (
            with(&template),
            None,
            "no API server is known",
            "KUBECONFIG",
        ),
        (
            with(&template),
            Some("nonsense: ["),
            "no API server is known",
            "KUBECONFIG",
        ),
        (
            with("/nowhere.yaml"),
            None,
            "--agent-template: /nowhere.yaml",
            "DaemonSet",
        ),
    ];
    for (arguments, kubeconfig, cause, remedy) in table {
        let arguments = arguments.each_ref().map(String::as_str);
        let (code, text) = start(home.path(), &arguments, kubeconfig);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains(cause) && text.contains(remedy),
            "{cause}: {text}"
        );
    }
}

/// The program while it runs.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn begin(home: &Path, api: u16, metrics: u16) -> Self {
        let kubeconfig = home.join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
             contexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n\
             clusters: [{{name: x, cluster: {{server: 'http://{API}:{api}'}}}}]\n\
             users: [{{name: x, user: {{}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let metrics = metrics.to_string();
        let control = free_port().to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_weft-operator"))
            .env_clear()
            .env("HOME", home)
            .env("KUBECONFIG", kubeconfig)
            .args([
                "--address",
                "127.0.0.1",
                "--agent-template",
                &template(home),
            ])
            .args(["--metrics-port", &metrics, "--control-port", &control])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, lines) = mpsc::channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                // The test may have ended.
                let _ = tell.send(line);
            }
        });
        Self { child, lines }
    }

    /// The lines up to the one that says this.
    fn until(&self, word: &str) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        while lines.last().is_none_or(|line| !line.contains(word)) {
            let line = self.lines.recv_timeout(Duration::from_secs(60));
            lines.push(line.unwrap_or_else(|_| panic!("no `{word}` in {lines:#?}")));
        }
        lines
    }

    fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Free when this returns.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Where the API server is: no connection of another test begins there and takes the port away meanwhile.
const API: &str = "127.0.7.7";

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// An API server that is starting: it says 500 first, then which release it is, and 500 to all else.
fn starting_api_server(port: u16) {
    let listener = TcpListener::bind((API, port)).unwrap();
    std::thread::spawn(move || {
        let mut versions = 0;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut request = String::new();
            reader.read_line(&mut request).unwrap();
            let mut header = String::new();
            while reader.read_line(&mut header).unwrap() > 2 {
                header.clear();
            }
            let is_version = request.starts_with("GET /version ");
            versions += u32::from(is_version);
            let (code, body) = if is_version && versions > 1 {
                let fields = [
                    "major",
                    "minor",
                    "gitCommit",
                    "gitTreeState",
                    "buildDate",
                    "goVersion",
                    "compiler",
                    "platform",
                ];
                let fields = fields.map(|field| format!("\"{field}\":\"\""));
                let body = format!("{{\"gitVersion\":\"v1.30.7\",{}}}", fields.join(","));
                ("200 OK", body)
            } else {
                let status = "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\
                              \"status\":\"Failure\",\"message\":\"not yet\",\
                              \"reason\":\"InternalError\",\"code\":500}";
                ("500 Internal Server Error", status.to_owned())
            };
            let length = body.len();
            // Whoever has asked may have gone.
            let _ = write!(
                stream,
                "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
                 Connection: close\r\n\r\n{body}"
            );
        }
    });
}

#[test]
fn an_api_server_that_is_away_is_waited_for_and_readyz_says_so() {
    let home = tempfile::tempdir().unwrap();
    let (api, metrics) = (free_port(), free_port());
    let mut program = Running::begin(home.path(), api, metrics);
    program.until("no API server answers");
    let ready = get(metrics, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    let cause = format!("no API server answers at http://{API}:{api}/: ");
    assert!(ready.contains(&cause), "{ready}");
    assert!(ready.contains("check that it runs"), "{ready}");
    assert!(get(metrics, "/healthz").starts_with("HTTP/1.1 200"));

    starting_api_server(api);
    let lines = program.until("v1.30.7");
    // The first cause has been said; the second is that the server is not ready.
    let causes = lines
        .iter()
        .filter(|line| line.contains("no API server answers"));
    assert_eq!(causes.count(), 1, "{lines:#?}");
    program.until("the Lease weft-operator cannot be read");
    let ready = get(metrics, "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(ready.contains("has not been read yet"), "{ready}");
    assert_eq!(program.terminate(), Some(0));
}
