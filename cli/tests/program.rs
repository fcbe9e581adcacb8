//! `weft` as a program: its version, its completion and its help.

// The build script, for its look at a checkout.
#[allow(dead_code, clippy::print_stdout, clippy::disallowed_macros)]
#[path = "../build.rs"]
mod build;

use std::{
    path::Path,
    process::{Command, Output},
};

fn weft(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weft"))
        .args(arguments.split_whitespace())
        .output()
        .expect("weft starts")
}

fn said(arguments: &str) -> String {
    String::from_utf8(weft(arguments).stdout).expect("text")
}

#[test]
fn the_version_names_the_commit_where_the_build_knows_it() {
    let version = said("--version");
    assert!(
        version.starts_with(concat!("weft ", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let commit = build::git(&checkout, &["rev-parse", "--short=12", "HEAD"]);
    if let Some(commit) = commit.filter(|_| std::env::var_os("WEFT_COMMIT").is_none()) {
        assert!(
            version.trim_end().ends_with(&format!(" ({commit})")),
            "{version}"
        );
    }
}

#[test]
fn sources_without_git_have_no_commit_though_a_checkout_lies_around_them() {
    let around = tempfile::tempdir().expect("a directory");
    let sources = around.path().join("weft-0.1.0");
    std::fs::create_dir(&sources).expect("a directory");
    let made = Command::new("git").arg("init").arg(around.path()).output();
    assert!(made.expect("git starts").status.success());
    assert_eq!(build::git(&sources, &["rev-parse", "--git-dir"]), None);
    assert!(build::git(around.path(), &["rev-parse", "--git-dir"]).is_some());
}

#[test]
fn a_shell_learns_every_command_and_flag() {
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&format!("completion {shell}"));
        for word in ["play", "plan", "completion", "fail-spine", "payload-share"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let bash = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(bash.path(), said("completion bash")).expect("a file");
    let parsed = Command::new("bash").arg("-n").arg(bash.path()).output();
    assert!(parsed.expect("bash starts").status.success());
}

#[test]
fn help_documents_the_exit_statuses() {
    for (arguments, words) in [
        ("play --help", "128 + n  ended by signal n"),
        ("play -h", "2        the arguments make no sense"),
        ("plan --help", "2  there is none"),
    ] {
        let help = said(arguments);
        assert!(help.contains("Exit status:"), "{arguments}: {help}");
        assert!(help.contains(words), "{arguments}: {help}");
    }
}
