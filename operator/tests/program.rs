//! The program as it is started: what it says where no cluster is around.
#![allow(clippy::unwrap_used)]

use std::{path::Path, process::Command};

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
fn without_an_api_server_it_ends_and_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let template = template(home.path());
    let with = |template: &str| {
        let arguments = ["--address", "127.0.0.1", "--agent-template", template];
        arguments.map(str::to_owned)
    };
    let nobody = "apiVersion: v1\nkind: Config\ncurrent-context: x\n\
                  contexts: [{name: x, context: {cluster: x, user: x}}]\n\
                  clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]\n\
                  users: [{name: x, user: {}}]\n";
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
            with(&template),
            Some(nobody),
            "http://127.0.0.1:1",
            "check that it runs",
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
