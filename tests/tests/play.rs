//! `weft play` with real agents, as a user runs it: the programs, their output and what they leave.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::Value;

/// A kernel ends a few processes in milliseconds.
const GONE_WITHIN_MS: u16 = 60_000;

/// A program of this build. Cargo builds a package's programs for its own tests only.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let directory = test
        .parent()
        .and_then(Path::parent)
        .expect("it is in target/PROFILE/deps");
    let program = directory.join(name);
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build -p weft-cli -p weft-agent` first",
        program.display()
    );
    program
}

fn play(arguments: &str) -> Command {
    program("weft-agent");
    let mut command = Command::new(program("weft"));
    command.arg("play").args(arguments.split_whitespace());
    command
}

fn output(arguments: &str) -> (Output, Value) {
    let output = play(arguments).arg("--json").output().expect("weft starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}\n{said}"));
    (output, report)
}

fn states(report: &Value) -> Vec<(&str, &str)> {
    let nodes = report["nodes"].as_array().expect("a list");
    nodes
        .iter()
        .map(|node| {
            (
                node["name"].as_str().expect("a name"),
                node["state"].as_str().expect("a state"),
            )
        })
        .collect()
}

fn all_verified(report: &Value) {
    assert!(
        states(report).iter().all(|(_, state)| *state == "Verified"),
        "{report:#}"
    );
}

#[test]
fn every_node_gets_the_bytes_and_the_json_object_is_all_there_is() {
    let (output, report) = output("--size 16MiB --seed 7");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report:#}\n{said}");
    all_verified(&report);
    let keys = |value: &Value| -> BTreeSet<String> {
        value
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect()
    };
    let set = |keys: &str| -> BTreeSet<String> { keys.split(' ').map(str::to_owned).collect() };
    assert_eq!(
        keys(&report),
        set("bytes seconds gbps digest strategy link nodes chunks spines faults")
    );
    assert_eq!(
        keys(&report["nodes"][0]),
        set("name root state reason digest bytes seconds")
    );
    assert_eq!(keys(&report["chunks"]), set("sent resent"));
    assert_eq!(report["bytes"], 16 << 20);
    for node in report["nodes"].as_array().expect("a list") {
        assert_eq!(node["digest"], report["digest"]);
        assert_eq!(node["bytes"], report["bytes"]);
    }
    assert_eq!(
        output.stdout.iter().filter(|byte| **byte == b'\n').count(),
        1
    );
}

#[test]
fn a_directory_arrives_whole_below_out_and_stays_there() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, out) = (directory.path().join("model"), directory.path().join("out"));
    std::fs::create_dir_all(source.join("empty")).expect("a directory");
    std::fs::write(source.join("weights"), vec![7; 3 << 20]).expect("a file");
    std::fs::write(source.join("none"), []).expect("a file");
    std::os::unix::fs::symlink("weights", source.join("link")).expect("a link");
    let arguments = format!(
        "--nodes 3 --source {} --out {}",
        source.display(),
        out.display()
    );
    let (output, report) = output(&arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report:#}\n{said}");
    for node in ["node1", "node2"] {
        let copy = out.join(node).join("model");
        assert_eq!(
            std::fs::read(copy.join("weights")).expect("a file"),
            vec![7; 3 << 20]
        );
        assert!(std::fs::read(copy.join("none")).expect("a file").is_empty());
        assert!(copy.join("empty").is_dir());
        let link = std::fs::read_link(copy.join("link")).expect("a link");
        assert_eq!(link, Path::new("weights"));
        let names = std::fs::read_dir(&copy).expect("a directory").count();
        assert_eq!(names, 4, "nothing else is left in {}", copy.display());
    }
}

#[test]
fn a_killed_relay_that_comes_back_gets_the_rest() {
    // A tenth of a second of 200 Mbit/s are 2.5 MB of 32 MiB.
    let (output, report) = output(
        "--size 32MiB --strategy chain --node-rate 200mbit \
         --kill-node 2@300ms --restart-node 2@600ms",
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report:#}\n{said}");
    all_verified(&report);
    let faults = report["faults"].as_array().expect("a list");
    assert_eq!(faults.len(), 2);
    for fault in faults {
        assert!(fault["bytes"].as_u64().expect("it happened") < 3 * (32 << 20));
    }
}

#[test]
fn a_fault_that_came_too_late_is_an_error_with_the_remedy() {
    let (output, report) = output("--nodes 2 --size 1MiB --fail-spine 0@1m");
    all_verified(&report);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report["faults"][0]["seconds"], Value::Null);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("--fail-spine of spine0 at 60.0 s did not happen"),
        "{said}"
    );
}

#[test]
fn ctrl_c_ends_everything_and_leaves_nothing() {
    let private = tempfile::tempdir().expect("a directory");
    let mut child = play("--nodes 2 --size 64MiB --node-rate 5mbit")
        .env("TMPDIR", private.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weft starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let first = lines.next().expect("a line of progress").expect("text");
    assert!(first.contains("node1"), "{first}");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGINT).expect("it is there");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    // The end of the pipe: no agent holds it any more.
    assert_eq!(
        lines
            .map_while(Result::ok)
            .filter(|line| line.contains("agent"))
            .count(),
        0
    );
    assert_eq!(
        std::fs::read_dir(private.path())
            .expect("a directory")
            .count(),
        0
    );
}

/// The line of what was said that has these words, without its indent.
fn line<'a>(said: &'a str, words: &str) -> &'a str {
    let line = said.lines().find(|line| line.contains(words));
    line.unwrap_or_else(|| panic!("no {words:?} in {said}"))
        .trim()
}

fn shell(command: &str) -> Output {
    let output = Command::new("sh").args(["-c", command]).output();
    output.expect("sh starts")
}

/// Runs the command that was printed for it, and waits for the end of that process.
fn end_by(command: &str, pid: &str) {
    let raw = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    let process = pidfd_open(raw.expect("a pid"), PidfdFlags::empty());
    let process = process.unwrap_or_else(|error| panic!("{pid} has ended before: {error}"));
    assert!(shell(command).status.success(), "{command}");
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    let ended = poll(&mut ended, GONE_WITHIN_MS).expect("a process can be waited for");
    assert_eq!(ended, 1, "{pid} is still there");
}

#[test]
fn what_is_kept_can_be_entered_and_ended_by_the_printed_commands() {
    let output = play("--nodes 2 --size 1MiB --keep").output();
    let output = output.expect("weft starts, and returns");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let enter = line(&said, "ip netns exec node1 bash");
    let inside = shell(&enter.replace(" bash", " ip -brief address"));
    let addresses = String::from_utf8_lossy(&inside.stdout);
    assert!(addresses.contains("data0"), "{addresses}{said}");
    let (_, log) = line(&said, "node1: ").split_once(", log ").expect("a log");
    let log = std::fs::read_to_string(log).expect("what the agent says");
    assert!(log.contains("agent started"), "{log}");
    let table = String::from_utf8_lossy(&output.stdout);
    let root = line(&table, "node1").split_whitespace();
    let root = root.rev().nth(1).expect("a root before the digest");
    let copy = Path::new(root).join("random.bin");
    assert_eq!(std::fs::metadata(copy).expect("a file").len(), 1 << 20);
    let kill = line(&said, "kill ");
    end_by(kill, kill.trim_start_matches("kill "));
    assert!(!Path::new(root).exists());
}

#[test]
fn without_namespaces_it_plays_over_loopback_and_keeps_agents_until_they_are_killed() {
    // In a user namespace that allows no further one, without capabilities.
    let refusing = "echo 0 > /proc/sys/user/max_user_namespaces && \
                    exec setpriv --bounding-set=-all -- \"$0\" \"$@\"";
    let weft = play("--nodes 2 --size 1MiB --keep --json");
    // A path that takes some care in the printed commands.
    let home = tempfile::Builder::new().prefix("it's a home ").tempdir();
    let home = home.expect("a directory");
    let output = Command::new("unshare")
        .env("TMPDIR", home.path())
        .args(["--user", "--map-root-user", "sh", "-c", refusing])
        .arg(weft.get_program())
        .args(weft.get_args())
        .output()
        .expect("unshare starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("playing over loopback instead"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    all_verified(&report);
    let root = Path::new(report["nodes"][0]["root"].as_str().expect("a path"));
    assert!(root.join("random.bin").is_file());
    let end = line(&said, "kill ");
    let (pids, _) = end.split_once(';').expect("two commands");
    end_by(end, pids.rsplit(' ').next().expect("a pid"));
    assert!(!root.exists());
    let left = std::fs::read_dir(&home).expect("it is still there").count();
    assert_eq!(left, 0, "{end}");
}

#[test]
fn without_out_or_keep_the_summary_names_no_directory() {
    let output = play("--nodes 2 --size 1MiB --verification xxh3").output();
    let output = output.expect("weft starts");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}");
    assert!(!table.contains("/run/"), "{table}");
    assert!(
        line(&table, "roots ").contains("--out DIR keeps them"),
        "{table}"
    );
    assert!(
        line(&table, "digest  ").ends_with("(source, XXH3)"),
        "{table}"
    );
}

#[test]
fn without_an_agent_it_says_how_to_build_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let alone = directory.path().join("weft");
    // A link, not a copy: another test's fork could hold a file open that was just written, and the
    // kernel runs no such file. It starts by its own name all the same, so it looks beside itself.
    if std::fs::hard_link(program("weft"), &alone).is_err() {
        // Another file system: let another program write it.
        let copied = Command::new("cp").arg(program("weft")).arg(&alone).status();
        assert!(copied.expect("cp starts").success());
    }
    let output = Command::new(&alone)
        .arg("play")
        .env("PATH", "")
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("build it with `cargo build --release -p weft-agent`"),
        "{said}"
    );
}
