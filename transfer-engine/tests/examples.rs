//! The examples as programs: what they print is what they promise.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The path of an example. `cargo test` builds the examples, but not when it is asked for these tests only: then this does.
fn example(name: &str) -> PathBuf {
    static BUILD: Once = Once::new();
    let test = std::env::current_exe().expect("procfs");
    // target/PROFILE/deps/TEST
    let profile = test.ancestors().nth(2).expect("cargo has built the test");
    let program = profile.join("examples").join(name);
    BUILD.call_once(|| {
        if !program.exists() {
            build(profile);
        }
    });
    program
}

fn build(profile: &Path) {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(name) => name,
        None => panic!("{profile:?} is no directory of a profile"),
    };
    let target = profile.parent().expect("profiles are in it");
    let mut cargo = Command::new(env!("CARGO"));
    // Cargo has set these for the test. Build scripts depend on some: with them everything would be built again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    let built = cargo
        .args(["build", "--locked", "--examples", "--profile", name])
        .args(["--package", env!("CARGO_PKG_NAME"), "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.expect("cargo runs").success());
}

/// An example that runs.
struct Program {
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Program {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut process = Command::new(example(name))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let said = BufReader::new(process.stdout.take().expect("it is piped"));
        Self { process, said }
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        let bytes = self.said.read_line(&mut line).expect("it is text");
        assert!(bytes > 0, "the program has ended");
        line.trim_end().to_owned()
    }

    /// What it prints until it ends, which has to be a success.
    fn rest(mut self) -> Vec<String> {
        let lines: Result<_, _> = self.said.by_ref().lines().collect();
        assert!(self.process.wait().expect("it is a child").success());
        lines.expect("it is text")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a decoder prints of its requests 1 to 3.
const BEFORE_THE_KILL: [&str; 3] = [
    "request 1: 16 layers and the tail are here, and each byte is right",
    "request 2: the prefiller confirms the cancel: no byte lands any more",
    "request 3: the pages of request 2 were used again at once, and each byte is right",
];
/// What it prints of 5 and 6.
const AFTER_THE_KILL: [&str; 2] = [
    "request 5: the other prefiller goes on, and each byte is right",
    "request 6: the pages of request 4 were used again, and each byte of all requests is right",
];

/// The name of the prefiller that is to be killed.
fn name_in(line: &str) -> &str {
    let name = line.strip_prefix("request 4: 3 of 16 layers are here: kill the prefiller ");
    name.unwrap_or_else(|| panic!("{line}"))
}

/// Whether the line says of request 4 which peer is dead, and how far the heartbeat was.
fn names_peer_and_stage(line: &str, name: &str) -> bool {
    let stages = ["Connect", "Post", "Transfer"];
    let mut starts = stages
        .map(|stage| format!("request 4: {name}, stage {stage}"))
        .into_iter();
    starts.any(|start| line.starts_with(&start))
}

#[test]
fn a_kv_cache_is_transferred_by_count_its_pages_are_reused_after_a_cancel_and_a_dead_peer_is_named()
{
    let lines = Program::start("kv_cache", &[]).rest();
    let [first @ .., kill, dead, fifth, sixth] = lines.as_slice() else {
        panic!("{lines:?}");
    };
    assert_eq!(first, BEFORE_THE_KILL);
    assert!(names_peer_and_stage(dead, name_in(kill)), "{dead}");
    assert_eq!([fifth, sixth], AFTER_THE_KILL);
}

/// Starts two prefillers and a decoder that knows their addresses, and sends the first prefiller a signal in the middle.
/// The decoder has to give this cause.
fn go_on_after(signal: Signal, cause: &str) {
    let mut prefillers = [(); 2].map(|()| Program::start("kv_cache", &["prefiller"]));
    let mut decoder = Program::start("kv_cache", &["decoder"]);
    let mut input = decoder.process.stdin.take().expect("it is piped");
    for prefiller in &mut prefillers {
        writeln!(input, "{}", prefiller.next_line()).expect("the decoder reads it");
    }
    for expected in BEFORE_THE_KILL {
        assert_eq!(decoder.next_line(), expected);
    }
    let told = decoder.next_line();
    let id = Pid::from_raw(prefillers[0].process.id() as i32);
    kill(id, signal).expect("it is a child of this process");
    let dead = decoder.next_line();
    assert!(names_peer_and_stage(&dead, name_in(&told)), "{dead}");
    assert!(dead.contains(cause), "{dead}");
    assert_eq!(decoder.rest(), AFTER_THE_KILL);
}

#[test]
fn a_decoder_goes_on_when_a_prefiller_is_killed() {
    // It cannot be reached, or has ended the connection.
    go_on_after(Signal::SIGKILL, ": the peer ");
}

#[test]
fn a_decoder_goes_on_when_a_prefiller_is_silent_until_the_deadline_of_a_heartbeat() {
    go_on_after(Signal::SIGSTOP, ": the deadline passed");
}

#[test]
fn a_role_and_an_address_that_nobody_knows_are_refused() {
    for (arguments, expected) in [
        (
            &["encoder"][..],
            "encoder is no role: prefiller, decoder, or none for all",
        ),
        (
            &["prefiller", "here"],
            "the second argument is the IP address of a NIC",
        ),
    ] {
        let output = Command::new(example("kv_cache")).args(arguments).output();
        let output = output.expect("the example starts");
        assert!(!output.status.success());
        let said = String::from_utf8(output.stderr).expect("it is text");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn experts_on_four_ranks_compute_what_one_thread_computes() {
    let lines = Program::start("moe", &[]).rest();
    let expected = |round| {
        format!("round {round}: the 256 tokens of 4 ranks equal the plain computation, bit by bit")
    };
    for (round, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&expected(round)), "{line}");
    }
    // Where all tokens go to one rank or stay at theirs, the private buffers take 12 rows for each pair of ranks.
    let rows = |line: &String| line.rsplit_once(": ").map(|(_, rows)| rows.to_owned());
    let rows: Option<Vec<_>> = lines.iter().map(rows).collect();
    let rows = rows.expect("each line ends with the rows");
    for round in [1, 2, 5, 6] {
        assert_eq!(rows[round], "48 of 512 rows went ahead of the routes");
    }
    assert_eq!(rows.len(), 8);
    assert_eq!(rows[0], "192 of 512 rows went ahead of the routes");
}

#[test]
fn each_inference_engine_has_the_parameters_of_each_step() {
    let lines = Program::start("broadcast", &[]).rest();
    for step in 1..=3 {
        let sent = format!("step {step}: 18874392 bytes are at 3 engines after ");
        assert!(
            lines.iter().any(|line| line.starts_with(&sent)),
            "{lines:?}"
        );
        for engine in 0..3 {
            let loaded = format!("step {step}: engine {engine} has the parameters, checksum ");
            assert!(
                lines.iter().any(|line| line.starts_with(&loaded)),
                "{lines:?}"
            );
        }
    }
    assert_eq!(lines.len(), 12);
}
