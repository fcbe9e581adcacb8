//! `kubectl weft` as a program: what it calls itself, and what it says to arguments that make no sense.

use std::process::{Command, Output};

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
        ("play", "unrecognized subcommand"),
    ] {
        let output = weft(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(text), "{arguments}: {said}");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}
