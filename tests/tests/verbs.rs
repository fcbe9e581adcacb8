//! The verbs of the Makefile that take minutes say what they are doing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn cluster_up_names_each_of_its_steps_and_builds_no_crate_that_its_program_does_not_need() {
    let mut make = Command::new("make");
    make.args(["--dry-run", "cluster-up"]);
    let output = make
        .current_dir(repository())
        .output()
        .expect("make starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("make"))
        .collect();
    for (at, line) in lines.iter().enumerate() {
        let name = format!("hack/step.sh \"{} of {}: ", at + 1, lines.len());
        assert!(line.starts_with(&name), "{line}");
        assert!(!line.contains("--quiet"), "{line}");
    }
    let built = lines.iter().find(|line| line.contains("cargo build"));
    let (_, what) = built
        .and_then(|line| line.split_once("cargo build "))
        .expect("a build");
    assert_eq!(what.trim(), "--locked -p weft-cluster --bin cluster");
}

#[test]
fn a_step_says_its_name_and_how_long_it_took_and_passes_its_status_on() {
    let step = |code: &str| {
        let mut step = Command::new(repository().join("hack/step.sh"));
        step.args(["3 of 4: the program", "sh", "-c"]);
        step.arg(format!("echo built; exit {code}"));
        step.output().expect("it starts")
    };
    let good = step("0");
    assert_eq!(good.stdout, b"built\n");
    assert!(said(&good).starts_with("== 3 of 4: the program\n"));
    assert!(said(&good).contains("done after 0 s"), "{}", said(&good));
    let bad = step("7");
    assert_eq!(bad.status.code(), Some(7));
    let text = said(&bad);
    assert!(text.contains("failed after 0 s, status 7"), "{text}");
}

/// With a stand-in for Go, and a cache of its own.
#[test]
fn programs_that_are_built_are_counted_by_packages_and_an_error_is_shown() {
    let scratch = tempfile::tempdir().expect("a directory");
    let go = scratch.path().join("go");
    let build = |last: &str| {
        let text = format!(
            r#"#!/bin/sh
case "$1" in
    list) seq 250 ;;
    build)
        seq 250 | sed 's|^|example.org/package/|' >&2
        while [ "$1" != -o ]; do shift; done
        touch "$2/krew"
        {last} ;;
esac
"#
        );
        fs::write(&go, text).expect("a file");
        fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).expect("a mode");
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new(repository().join("hack/cluster-binaries.sh"))
            .arg("krew")
            .env("PATH", format!("{}:{path}", scratch.path().display()))
            .env("XDG_CACHE_HOME", scratch.path())
            .output()
            .expect("it starts")
    };
    let failed = build("echo 'a.go:1:2: undefined: b' >&2; exit 1");
    assert!(!failed.status.success());
    let text = said(&failed);
    assert!(text.contains("a.go:1:2: undefined: b"), "{text}");

    let built = build("exit 0");
    assert!(built.status.success(), "{}", said(&built));
    let text = said(&built);
    for line in [
        "building krew",
        "100 of at most 250 packages, after",
        "200 of at most 250 packages, after",
        "built krew, after",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("example.org"), "{text}");
    let directory = String::from_utf8(built.stdout).expect("text");
    assert!(PathBuf::from(directory.trim()).join("krew").is_file());
    // What is there is not built again.
    assert_eq!(said(&build("exit 1")), "");
}
