//! Tests that need a machine of their own: a small or read-only file system, or no privileges.
//!
//! Such a test runs itself again in a child process in fresh namespaces. Where these cannot be
//! made the test fails: it is never skipped in silence.

use std::path::Path;
use std::process::Command;

/// What the child process gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::files) enum Alone {
    /// Its own mounts.
    Mounts,
    /// No right to pass over permission bits.
    Unprivileged,
}

/// Set in the child process to the test's name.
const MARK: &str = "WEFT_TEST_ALONE";

/// Runs `body` in a child process of its own. `test` is the calling test's full path.
pub(in crate::files) fn alone(test: &str, alone: Alone, body: impl FnOnce()) {
    let (_crate, test) = test.split_once("::").unwrap();
    let root = rustix::process::geteuid().is_root();
    let is_child = std::env::var_os(MARK).is_some_and(|mark| mark == test);
    if is_child || (alone == Alone::Unprivileged && !root) {
        return body();
    }
    let ways: &[&[&str]] = match alone {
        Alone::Mounts => &[&["-m", "--propagation", "private"], &["-Urm"]],
        Alone::Unprivileged => &[&["-U"]],
    };
    let way = ways
        .iter()
        .find(|way| {
            let tried = Command::new("unshare").args(**way).arg("true").output();
            tried.is_ok_and(|output| output.status.success())
        })
        .expect("this test needs unshare(1) and the right to make namespaces (user namespaces for users other than root)");
    let output = Command::new("unshare")
        .args(*way)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(MARK, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{log}");
    assert!(
        text.contains("1 passed"),
        "{test} did not run in the child: {text}"
    );
}

/// Mounts a file system in the child's own namespace.
pub(in crate::files) fn mount(kind: &str, options: &str, at: &Path) {
    let status = Command::new("mount")
        .args(["-t", kind, "-o", options, "weft-test"])
        .arg(at)
        .status();
    assert!(status.unwrap().success(), "mount -t {kind} -o {options}");
}

/// The calling test's full path.
macro_rules! this_test {
    ($name:ident) => {
        concat!(module_path!(), "::", stringify!($name))
    };
}
pub(in crate::files) use this_test;

/// The most memory that this process has had, in KiB, since it was reset.
pub(super) fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let digits = line.unwrap().split_whitespace().nth(1).unwrap();
    digits.parse().unwrap()
}

/// Begins to measure [`peak_kib`] anew; the memory that this process has now.
pub(super) fn reset_peak_kib() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak_kib()
}
