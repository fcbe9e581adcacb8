//! rdma-core's own tests, by pyverbs, over a virtual device: those that pass are listed, and go on passing. And ours, of
//! what these leave out.

use std::{collections::BTreeSet, fs, process::Command};

use weft_tests::{stdout_of, verbs::Node};

/// Where Debian's python3-pyverbs has them.
const SOURCE: &str = "/usr/share/doc/rdma-core/tests";
/// What has to pass, a name a line.
const WANTED: &str = include_str!("../pyverbs/wanted.txt");
/// Prints the name of each test that passes.
const PROGRAM: &str = include_str!("../pyverbs/passed.py");

/// Tests of asynchronous events.
const EVENTS: &str = include_str!("../pyverbs/events.py");

#[test]
fn asynchronous_events_come_and_are_acknowledged() {
    let node = Node::default();
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    fs::write(at.join("events.py"), EVENTS).expect("it is ours");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(at, mode).expect("it is ours");
    let line = "python3 -B events.py -v";
    let output = node.command_at(0, line).current_dir(at).output();
    let _ = stdout_of(line, &output.expect("it starts"));
}

#[test]
fn the_tests_of_rdma_core_that_passed_once_pass() {
    let node = Node::default();
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    // Debian compresses the longer ones.
    let copy = format!(
        "cp -r {SOURCE} {0} && gunzip -fr {0}/tests && chmod -R a+rX {0}",
        at.display()
    );
    let copied = Command::new("sh").args(["-c", &copy]).output();
    let copied = copied.expect("a shell");
    assert!(copied.status.success(), "{copied:?}");
    fs::write(at.join("passed.py"), PROGRAM).expect("it is ours");
    let line = "python3 -B passed.py --dev weft0 --gid 0";
    let output = node.command_at(0, line).current_dir(at).output();
    let output = output.expect("it starts");
    let told = String::from_utf8_lossy(&output.stdout);
    let passed: BTreeSet<&str> = told
        .lines()
        .filter_map(|line| line.strip_prefix("passed "))
        .collect();
    let failed: Vec<&str> = WANTED
        .lines()
        .filter(|name| !passed.contains(name))
        .collect();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(failed.is_empty(), "{failed:?} did not pass: {said}");
    // None fails: what the device has not, they skip.
    assert!(output.status.success(), "{said}");
}
