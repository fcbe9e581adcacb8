//! `weft play` with real agents, as a user runs it: the programs, their output and what they leave.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    path::Path,
    process::{Command, Output, Stdio},
};

use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::Value;
use weft_tests::program;

/// A kernel ends a few processes in milliseconds.
const GONE_WITHIN_MS: u16 = 60_000;

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
        set("bytes seconds bytes_per_second digest strategy link nodes chunks spines faults")
    );
    assert_eq!(
        keys(&report["nodes"][0]),
        set("name root state reason message digest bytes received seconds")
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
fn every_node_gets_the_bytes_over_both_of_its_nics() {
    let (output, report) = output("--nodes 2 --nics 2 --link udp --size 32MiB --node-rate 100mbit");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report:#}\n{said}");
    all_verified(&report);
    // One NIC would take 2.7 s at least (32 MiB at 100 Mbit/s), both take half of it.
    let seconds = report["seconds"].as_f64().expect("a number");
    assert!(seconds < 2.5, "{report:#}");
}

#[test]
fn the_other_nic_carries_on_in_the_same_attempt_when_one_fails() {
    let output =
        play("--nodes 2 --nics 2 --size 32MiB --node-rate 100mbit --fail-nic 1@500ms").output();
    let output = output.expect("weft starts");
    let table = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}{said}");
    assert!(!table.contains("attempts "), "{table}{said}");
    assert!(!said.contains("did not happen"), "{table}{said}");
}

/// A spine that fails breaks connections: what they carried is sent again on others.
#[test]
fn over_tcp_every_node_gets_the_bytes_though_a_spine_fails() {
    let (output, report) =
        output("--size 64MiB --rate 200mbit --link tcp --encryption required --fail-spine 1@300ms");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report:#}\n{said}");
    all_verified(&report);
    assert_eq!(report["link"], "tcp");
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
fn an_interrupted_run_names_its_partial_files_and_the_same_command_goes_on_from_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("out");
    let size: u64 = 24 << 20;
    let arguments = format!("--nodes 2 --size {size} --out {}", out.display());
    let mut child = play(&format!("{arguments} --node-rate 40mbit"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weft starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    // Blocks of 1 MiB have arrived by then.
    lines
        .by_ref()
        .map_while(Result::ok)
        .find(|line| line.contains("MB/s"))
        .expect("a line of progress with a rate");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGINT).expect("it is there");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let partial = rest.iter().find(|line| line.contains("node1/.weft-play-"));
    let partial = partial.unwrap_or_else(|| panic!("no partial file in {rest:#?}"));
    assert!(Path::new(partial.trim()).is_file(), "{partial}");

    let (resumed, report) = output(&arguments);
    let said = String::from_utf8_lossy(&resumed.stderr);
    assert!(resumed.status.success(), "{report:#}\n{said}");
    let received = report["nodes"][0]["received"].as_u64().expect("a number");
    assert!(received < size, "{received} of {size} came again");
    assert!(!said.contains("partial files are left"), "{said}");

    let again = play(&arguments).output().expect("weft starts");
    let table = String::from_utf8_lossy(&again.stdout);
    assert!(
        table.contains("all of it there already; nothing was sent"),
        "{table}"
    );
    let other = play(&format!("{arguments} --seed 2")).output();
    let other = other.expect("weft starts");
    assert_eq!(other.status.code(), Some(2));
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(said.contains("it holds a run of random.bin"), "{said}");
}

#[test]
fn a_disk_that_fills_while_the_sample_is_made_leaves_no_cut_off_file_and_json_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let weft = play("--nodes 2 --size 8MiB --json --out");
    // Files may have 1 MiB (2048 blocks); a write beyond is an error instead of a signal.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\""])
        .arg(weft.get_program())
        .args(weft.get_args())
        .arg(directory.path())
        .output()
        .expect("sh starts");
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["error"]["reason"], "FilesUnusable");
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(message.contains("random.bin: File too large"), "{message}");
    let made = std::fs::read_dir(directory.path().join("node0")).expect("a directory");
    assert_eq!(made.count(), 0);
}

#[test]
fn too_few_namespaces_are_an_error_that_names_the_sysctl() {
    let weft = play("--nodes 2 --size 1KiB --paths 4");
    let limited = "echo 5 > /proc/sys/user/max_net_namespaces && exec \"$0\" \"$@\"";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", limited])
        .arg(weft.get_program())
        .args(weft.get_args())
        .output()
        .expect("unshare starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the sysctl user.max_net_namespaces allows (5): raise it"),
        "{said}"
    );
}

#[test]
fn a_dead_source_is_named_and_healthy_nodes_are_not_called_stopped() {
    let (output, report) = output("--nodes 3 --size 8MiB --kill-node 0@1ms --quiet");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{report:#}\n{said}");
    for node in report["nodes"].as_array().expect("a list") {
        assert_ne!(node["reason"], "AgentStopped", "{report:#}");
        let message = node["message"].as_str().expect("a text");
        assert!(message.contains("node0"), "{report:#}");
    }
    // No progress: what is left to say are causes.
    assert!(
        said.lines().all(|line| line.starts_with("weft play: ")),
        "{said}"
    );
}

#[test]
fn what_is_logged_to_a_file_has_no_colours() {
    let mut logging = play("--nodes 2 --size 1KiB");
    let output = logging.env("RUST_LOG", "weft_transfer=debug").output();
    let output = output.expect("weft starts");
    let logged = String::from_utf8_lossy(&output.stderr);
    assert!(logged.contains("DEBUG"), "{logged}");
    assert!(!logged.contains('\x1b'), "{logged}");
}

#[test]
fn fifty_nodes_are_served_in_one_attempt() {
    let output = play("--nodes 50 --size 1KiB")
        .output()
        .expect("weft starts");
    let table = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{table}{said}");
    assert!(!table.contains("attempts "), "{table}{said}");
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
fn a_signal_ends_everything_and_leaves_nothing() {
    for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
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
        kill(pid, signal).expect("it is there");
        let status = child.wait().expect("it ends");
        assert_eq!(status.code(), Some(128 + signal as i32), "{signal}");
        // The end of the pipe: no agent holds it any more.
        let said = lines.map_while(Result::ok);
        let of_agents = said.filter(|line| line.contains("agent"));
        assert_eq!(of_agents.count(), 0, "{signal}");
        let left = std::fs::read_dir(private.path()).expect("a directory");
        assert_eq!(left.count(), 0, "{signal}");
    }
}

/// What the server of the page answers; of a stream, up to the first event's end.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .expect("it reads");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let until_event = lines.scan(false, |had_event, line| {
        let is_over = *had_event && line.is_empty();
        *had_event |= line.starts_with("data: ");
        (!is_over).then_some(line + "\n")
    });
    until_event.collect()
}

/// The page is at the machine's own address though the fabric is in namespaces.
#[test]
fn a_browser_sees_the_fabric_while_it_plays_and_until_ctrl_c() {
    let mut child = play("--nodes 3 --size 16MiB --ui")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weft starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut said = |words: &str| {
        let mut lines = lines.by_ref().map_while(Result::ok);
        lines.find(|line| line.contains(words)).expect(words)
    };
    let url = said("the fabric's page: http://127.0.0.1:");
    let address = url.split("http://").nth(1).expect("an address");
    let address = address.trim_end_matches('/');
    let page = get(address, "/");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains("<h1>Fabric <bdi>play</bdi></h1>"), "{page}");

    said("the fabric's page stays until Ctrl-C");
    let page = get(address, "/");
    for text in [
        "<bdi>random.bin</bdi>",
        "node1</bdi> (Verified)",
        "node2</bdi> (Verified)",
        "0 jobs under way, 1 complete",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    for node in ["node0", "node1", "node2"] {
        assert!(page.contains(&format!("<title>{node}: ")), "{page}");
    }
    assert!(get(address, "/events").contains("data: <section"));
    assert!(get(address, "/other").starts_with("HTTP/1.1 404"));

    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGINT).expect("it is there");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
}

#[test]
fn a_port_of_another_program_is_refused_before_anything_is_made() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let output = play(&format!("--size 1MiB --ui --ui-port {port}")).output();
    let output = output.expect("weft starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("--ui-port {port}: ")), "{said}");
    assert!(said.contains("give another port"), "{said}");
}

#[test]
fn a_terminal_that_hangs_up_ends_it_also_where_it_leads_the_session() {
    let weft = play("--nodes 2 --size 64MiB --node-rate 5mbit");
    let arguments: Vec<&str> = weft.get_args().filter_map(|word| word.to_str()).collect();
    let command = format!(
        "echo $$; exec {} {}",
        Path::new(weft.get_program()).display(),
        arguments.join(" ")
    );
    // What script starts leads the session of its terminal.
    let mut script = Command::new("script")
        .args(["--quiet", "--flush", "--command", &command, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script starts");
    let mut said = BufReader::new(script.stdout.take().expect("a pipe"));
    let mut pid = String::new();
    said.read_line(&mut pid).expect("a line");
    // The bars on a terminal end with a carriage return.
    let mut bars = said.split(b'\r').map_while(Result::ok);
    let begun = bars.find(|bar| String::from_utf8_lossy(bar).contains("node1"));
    assert!(begun.is_some(), "it has begun");
    wait_for_end(pid.trim(), || script.kill().expect("it is there"));
    script.wait().expect("it ends");
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
    wait_for_end(pid, || {
        assert!(shell(command).status.success(), "{command}");
    });
}

/// Waits for the end of a process, after what ends it.
fn wait_for_end(pid: &str, end: impl FnOnce()) {
    let raw = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    let process = pidfd_open(raw.expect("a pid"), PidfdFlags::empty());
    let process = process.unwrap_or_else(|error| panic!("{pid} has ended before: {error}"));
    end();
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
fn a_user_without_threads_is_told_which_limit_to_raise() {
    let weft = play("--nodes 2 --size 1MiB");
    // The limit holds for no process of root, and another user may not get to where the programs are.
    let is_root = nix::unistd::geteuid().is_root();
    let home = tempfile::tempdir().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&home, open).expect("the directory is ours");
    let built = Path::new(weft.get_program());
    for name in ["weft", "weft-agent"] {
        let (from, to) = (built.with_file_name(name), home.path().join(name));
        let linked = std::fs::hard_link(&from, &to);
        linked
            .or_else(|_| std::fs::copy(&from, &to).map(drop))
            .expect("the programs are built");
    }
    let user: &[&str] = match is_root {
        true => &["setpriv", "--reuid=54321", "--clear-groups"],
        false => &["env"],
    };
    // What fails first differs: the runtime, what blocks, a namespace's helper, the agents.
    for threads in [5, 6, 7, 8, 20, 25] {
        let output = Command::new(user[0])
            .args(&user[1..])
            .args(["timeout", "60", "prlimit", &format!("--nproc={threads}")])
            .arg(home.path().join("weft"))
            .args(weft.get_args())
            .output()
            .expect("setpriv starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{threads} threads: {said}");
        assert!(said.contains("ulimit -u"), "{threads} threads: {said}");
    }
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
