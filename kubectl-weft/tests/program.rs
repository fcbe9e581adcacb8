//! `kubectl weft` as a program: what it calls itself, and what it says to arguments that make no sense.

use std::{
    os::unix::fs::symlink,
    process::{Command, Output},
};

fn weft(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-weft"))
        .args(arguments.split_whitespace())
        .output()
        .expect("kubectl-weft starts")
}

#[test]
fn help_shows_the_commands_as_kubectl_runs_them() {
    let help = String::from_utf8(weft("--help").stdout).expect("text");
    assert!(help.contains("Usage: kubectl weft <COMMAND>"), "{help}");
    let help = String::from_utf8(weft("plan --help").stdout).expect("text");
    assert!(help.contains("Usage: kubectl weft plan"), "{help}");
}

#[test]
fn bad_arguments_end_with_status_2_and_nothing_on_standard_output() {
    for (arguments, text) in [
        ("plan", "--filename <JOB>"),
        (
            "plan -f /nowhere.yaml",
            "kubectl weft plan: -f /nowhere.yaml: No such file",
        ),
        (
            "status pod/minilm",
            "kubectl weft status: pod is no TransferJob; write NAME, tj/NAME or tj NAME",
        ),
        ("status tj a b", "unexpected argument 'b'"),
        (
            "doctor --kubeconfig /nowhere",
            "kubectl weft doctor: no cluster is known",
        ),
        (
            "top nodes --sort-by size",
            "kubectl weft top: --sort-by size: there is no such column; write one of node, sent, received",
        ),
        ("top paths", "<NODE>"),
        (
            "support-bundle --since 1w",
            "write a number and s, m, h or d, as in 90s, 30m, 1h or 2d",
        ),
        ("play", "unrecognized subcommand"),
    ] {
        let output = weft(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(text), "{arguments}: {said}");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}

#[test]
fn a_shell_learns_every_command_and_flag() {
    for shell in ["bash", "zsh", "fish"] {
        let script = weft(&format!("completion {shell}"));
        assert!(script.status.success());
        let script = String::from_utf8(script.stdout).expect("text");
        for word in [
            "kubectl-weft",
            "copies",
            "doctor",
            "all-namespaces",
            "unheld",
        ] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

/// kubectl runs `kubectl_complete-weft` with the words after `kubectl weft` (kubectl 1.26 and later).
#[test]
fn the_script_in_the_documents_completes_for_kubectl() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kubectl.md");
    let text = std::fs::read_to_string(path).expect("docs/kubectl.md");
    let (_, script) = text.split_once("#!/usr/bin/env bash\n").expect("a script");
    let (script, _) = script.split_once("```").expect("its end");
    let directory = tempfile::tempdir().expect("a directory");
    let program = env!("CARGO_BIN_EXE_kubectl-weft");
    symlink(program, directory.path().join("kubectl-weft")).expect("a link");
    let inherited = std::env::var("PATH").expect("a PATH");
    for (words, expected) in [
        (&["stat"][..], "status\n:4\n"),
        (&["copies", "del"], "delete\n:4\n"),
        (&["copies", "list", "--unh"], "--unheld\n:4\n"),
        (&["status", "tj/mini"], ":4\n"),
    ] {
        let output = Command::new("bash")
            .args(["-c", script, "kubectl_complete-weft"])
            .args(words)
            .env(
                "PATH",
                format!("{}:{inherited}", directory.path().display()),
            )
            .output()
            .expect("bash starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            expected,
            "{words:?}: {said}"
        );
    }
}

#[test]
fn help_says_that_the_path_of_a_copy_begins_with_its_namespace() {
    let help = String::from_utf8(weft("copies delete --help").stdout).expect("text");
    assert!(help.contains("team-a/minilm"), "{help}");
}

#[test]
fn help_of_top_says_what_agents_export_of_peers_and_jobs() {
    let help = |command: &str| {
        let help = String::from_utf8(weft(&format!("{command} --help")).stdout).expect("text");
        help.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let nodes = help("top nodes");
    let limits = "the first 128 peers by address and 64 jobs";
    assert!(nodes.contains(limits), "{nodes}");
    let paths = help("top paths");
    assert!(paths.contains("the paths of 64 peers"), "{paths}");
}
