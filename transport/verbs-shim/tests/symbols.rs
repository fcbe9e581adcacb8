//! What the built library exports is what `docs/verbs.md` says, no more and no less.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const DOCUMENT: &str = include_str!("../../../docs/verbs.md");

/// The library, which `cargo build -p weft-verbs-shim` builds: `cargo test` does not, for no test is linked with it.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let programs = test.parent().and_then(Path::parent);
    programs
        .expect("cargo's folders")
        .join("libweft_ibverbs.so")
}

/// Rows are: call, version, what it does.
fn documented() -> BTreeSet<String> {
    let rows = DOCUMENT.lines().filter(|line| line.contains("`IBVERBS_"));
    rows.map(|row| {
        let mut words = row.split('`');
        let (name, version) = (words.nth(1), words.nth(1));
        format!("{}@@{}", name.expect("a name"), version.expect("a version"))
    })
    .collect()
}

#[test]
fn the_document_has_each_exported_name_with_its_version() {
    let library = library();
    let mut readelf = Command::new("readelf");
    let read = readelf.args(["--dyn-syms", "--wide"]).arg(&library);
    let read = read.output().expect("readelf of binutils");
    assert!(read.status.success(), "{}", library.display());
    let read = String::from_utf8(read.stdout).expect("it is text");
    let is_call = |line: &&str| line.contains(" FUNC ") && !line.contains(" UND ");
    let names = read.lines().filter(is_call);
    let names = names.filter_map(|line| line.split_whitespace().nth(7));
    let exported: BTreeSet<String> = names
        .filter(|name| name.contains("@@IBVERBS_"))
        .map(str::to_owned)
        .collect();
    let documented = documented();
    assert!(documented.len() > 60);
    assert_eq!(exported, documented);
}
