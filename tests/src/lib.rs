//! What needs more than one crate: benchmarks and the tests of whole fabrics.

pub mod bench;
pub mod bench_cluster;
pub mod container;
pub mod figures;
pub mod report;
pub mod verbs;

use std::{
    path::{Path, PathBuf},
    process::Output,
};

/// Finds a program beside the integration test that asks. Cargo builds a package's programs for its own tests only,
/// so a program of another package has to be there before.
///
/// # Panics
/// If it is not built.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let directory = test.parent().and_then(Path::parent);
    let directory = directory.expect("it is in target/PROFILE/deps");
    let program = directory.join(name);
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build --workspace --bins` and `cargo build -p weft-verbs-shim -p weft-rdmacm-shim` first",
        program.display()
    );
    program
}

/// What a program has printed to standard output.
///
/// # Panics
/// If it has failed, with all that it has printed. `line` is what was run.
pub fn stdout_of(line: &str, output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        output.status.success(),
        "{line}: {}\n{out}\n{err}",
        output.status
    );
    out.into_owned()
}
