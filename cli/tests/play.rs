//! `weft play` as a program: what it says to arguments that make no sense, and with which status.
//!
//! Every argument has a row in the unit tests; what takes an agent is tried in the crate `tests`.

use std::process::{Command, Output};

fn weft(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(arguments.split_whitespace())
        .output()
        .expect("weft starts")
}

#[test]
fn bad_arguments_end_with_status_2_and_nothing_on_standard_output() {
    for (arguments, text) in [
        ("play --nodes 1", "give at least --nodes 2"),
        (
            "play --source /nowhere --json",
            "weft play: --source /nowhere: No such file",
        ),
        ("play --fail-spine 9@1s --json", "the spines are 0 to 3"),
        ("play --loss 2", "write 0.1% or 0.001"),
        ("play --out /etc", "it is not empty"),
        (
            "plan --nodes /nowhere --size 1MB --source a",
            "weft plan: --nodes /nowhere: ",
        ),
        ("fly", "unrecognized subcommand"),
    ] {
        let output = weft(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(text), "{arguments}: {said}");
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}

#[test]
fn help_names_every_flag() {
    let help = String::from_utf8(weft("play --help").stdout).expect("text");
    for flag in "nodes nics leaves spines paths source size to strategy path-policy encryption rate node-rate loss \
                 corrupt fail-spine fail-nic kill-node restart-node out keep json mtu seed verification symlinks ui ui-port"
        .split_whitespace()
    {
        assert!(help.contains(&format!("--{flag}")), "{flag}");
    }
}
