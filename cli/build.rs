//! Gives the program the commit that it is built from, for `weft --version`: that of the checkout, or what
//! `WEFT_COMMIT` says. Sources without either, as from a tarball, have none.

use std::{path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-env-changed=WEFT_COMMIT");
    // Of this run: where checkouts share a target directory, the script may have been built in another one.
    let directory = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned());
    let checkout = &Path::new(&directory).join("..");
    let moves = git(checkout, &["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = moves
        .map(|log| checkout.join(log))
        .filter(|log| log.exists())
    {
        println!("cargo:rerun-if-changed={}", log.display());
    }
    println!("cargo:rerun-if-changed=build.rs");
    let commit = std::env::var("WEFT_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty());
    let commit = commit.or_else(|| git(checkout, &["rev-parse", "--short=12", "HEAD"]));
    let suffix = commit.map(|commit| format!(" ({commit})"));
    println!(
        "cargo:rustc-env=WEFT_COMMIT_SUFFIX={}",
        suffix.unwrap_or_default()
    );
}

/// What git says of this checkout, if it is one: a repository around it would speak of another commit.
pub(crate) fn git(checkout: &Path, arguments: &[&str]) -> Option<String> {
    if !checkout.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .arg("-C")
        .arg(checkout)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
