//! The tests of data over shared memory: those of the other files, once more, and those of two processes.
#![expect(
    clippy::duplicate_mod,
    reason = "each of these files has the module `pair` for itself"
)]

#[path = "cancel.rs"]
mod cancel;
#[path = "inline.rs"]
mod inline;
#[path = "operations.rs"]
mod operations;
mod pair;
mod reliable;
#[path = "saved.rs"]
mod saved;
#[path = "threads.rs"]
mod threads;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use pair::{PATIENCE, Pair, bytes_of, pattern, region, remote, secret, start};
use weft_engine::{
    Access, ConnectionId, DomainId, Encryption, Engine, EngineConfig, Event, Key, LinkAddress,
    LocalEnd, Nanos, PortRange, Post, Progress, Read, WorkRequest, WriteRequest,
};

const DOMAIN: DomainId = DomainId(1);

/// Bytes of the region of the other process.
const BYTES: usize = 64 << 20;

fn adapt(config: &mut EngineConfig) {
    config.progress = Progress::Threads(1);
    config.stall_timeout = Nanos::from_secs(2);
    if std::env::var_os(ENCRYPTED).is_some() {
        config.encryption = Encryption::Required;
    }
}

/// Has a process be the other one.
const OTHER: &str = "WEFT_TEST_OTHER_PROCESS";

/// Has both processes encrypt.
const ENCRYPTED: &str = "WEFT_TEST_ENCRYPTED";

/// What the other process has to know of an end.
fn describe(end: &LocalEnd, key: Key) -> String {
    let ports = end.address.ports();
    let numbers = [
        u64::from(end.id.0),
        end.incarnation,
        end.reset_key,
        ports.first.into(),
        ports.count.into(),
        key.0,
    ];
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    format!("end {}", numbers.join(" "))
}

/// The end of an engine that is set up as this one, and its region.
fn described(line: &str, own: &LocalEnd) -> (LocalEnd, Key) {
    let numbers = line.split(' ').skip(1);
    let numbers: Vec<u64> = numbers.map(|it| it.trim().parse().expect(line)).collect();
    let [id, incarnation, reset_key, first, count, key] = numbers[..] else {
        panic!("{line}");
    };
    let ports = PortRange {
        first: first as u16,
        count: count as u16,
    };
    let end = LocalEnd {
        id: ConnectionId(id as u32),
        incarnation,
        reset_key,
        address: own.address.with_ports(ports),
        ..own.clone()
    };
    (end, Key(key))
}

/// Has a process that a test has started be the other one, until its input ends. Answers whether it was.
fn is_other_process() -> bool {
    if std::env::var_os(OTHER).is_none() {
        return false;
    }
    let engine = start(adapt);
    let end = engine.allocate(DOMAIN, secret(2));
    let there = region(BYTES, 0);
    let key = engine.register_for(DOMAIN, Access::ALL, there);
    writeln!(std::io::stdout(), "{}", describe(&end, key)).expect("who started it reads");
    let mut lines = std::io::stdin().lines();
    let line = lines.next().expect("the other end").expect("text");
    let (other, _) = described(&line, &end);
    let (sender, _events) = unbounded();
    let connected = engine.connect(end.id, remote(&other, secret(1)), sender);
    connected.expect("it connects");
    assert!(lines.next().is_none(), "its input ends with the test");
    true
}

/// Another process with an engine, and a connection to it.
struct Other {
    child: Child,
    input: Option<ChildStdin>,
    /// Where it says what its test program says.
    _output: BufReader<ChildStdout>,
    engine: Engine,
    id: ConnectionId,
    events: Receiver<Event>,
    key: Key,
}

impl Other {
    /// A process that runs the same test.
    fn start(test: &str, encrypted: bool) -> Self {
        let here = std::env::current_exe().expect("it runs");
        let mut command = Command::new(here);
        command
            .args(["--exact", test, "--nocapture"])
            .env(OTHER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if encrypted {
            command.env(ENCRYPTED, "1");
        }
        let mut child = command.spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let engine = start(|config| {
            adapt(config);
            if encrypted {
                config.encryption = Encryption::Required;
            }
        });
        let end = engine.allocate(DOMAIN, secret(1));
        // The test program says something of its own before.
        let (other, key) = loop {
            let mut line = String::new();
            let bytes = output.read_line(&mut line).expect("text");
            assert!(bytes > 0, "it says where it is");
            if let Some(at) = line.find("end ") {
                break described(&line[at..], &end);
            }
        };
        let mut input = child.stdin.take().expect("it is a pipe");
        writeln!(input, "{}", describe(&end, Key(0))).expect("it reads");
        let (sender, events) = unbounded();
        let connected = engine.connect(end.id, remote(&other, secret(2)), sender);
        connected.expect("it connects");
        Self {
            child,
            input: Some(input),
            _output: output,
            engine,
            id: end.id,
            events,
            key,
        }
    }

    fn write(&self, source: &Arc<Box<[u8]>>) {
        let request = WriteRequest {
            connection: self.id,
            source: Arc::clone(source).into(),
            source_offset: 0,
            bytes: source.len() as u64,
            key: self.key,
            offset: 0,
            immediate: None,
            context: 7,
        };
        self.engine.write(request).expect("it is open");
    }

    fn next(&self) -> Event {
        let event = self.events.recv_timeout(PATIENCE);
        event.expect("an event within the patience")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.input.take());
        // It may have ended by a signal.
        let _ = self.child.wait();
    }
}

#[test]
fn two_processes_write_and_read_with_encryption_and_without() {
    if is_other_process() {
        return;
    }
    let test = "two_processes_write_and_read_with_encryption_and_without";
    for encrypted in [false, true] {
        let other = Other::start(test, encrypted);
        let source = pattern(BYTES, 11);
        other.write(&source);
        assert!(matches!(other.next(), Event::Written { context: 7, .. }));
        let here = region(BYTES, 0);
        let read = Read {
            token: 8,
            bytes: BYTES as u64,
            key: other.key,
            offset: 0,
            to_key: other.engine.register(DOMAIN, Arc::clone(&here)),
            to_offset: 0,
        };
        let post = Post {
            connection: other.id,
            request: WorkRequest::Read(read),
            pieces: Vec::new(),
        };
        other.engine.post(post).expect("it is open");
        let event = other.next();
        assert!(matches!(event, Event::Completed { .. }), "{event:?}");
        assert!(bytes_of(&here) == source[..]);
        let link = other.engine.snapshot().link;
        // What is encrypted is opened before it is placed.
        assert_eq!(link.placed_bytes == BYTES as u64, !encrypted, "{link:?}");
        assert_eq!(
            (link.bad_frames, link.strangers, link.broken_paths),
            (0, 0, 0)
        );
    }
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_a_write_is_noticed_at_once_and_fails_it() {
    if is_other_process() {
        return;
    }
    let test = "a_process_that_is_killed_in_the_middle_of_a_write_is_noticed_at_once_and_fails_it";
    let mut other = Other::start(test, false);
    let source = pattern(BYTES, 12);
    other.write(&source);
    assert!(matches!(other.next(), Event::Written { .. }));
    for _ in 0..100 {
        other.write(&source);
    }
    other.child.kill().expect("it runs");
    let begun = Instant::now();
    while other.engine.snapshot().link.broken_paths == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "no path has broken"
        );
        std::thread::yield_now();
    }
    let failure = loop {
        match other.next() {
            Event::Written { .. } => {}
            Event::Failed { failure, .. } => break failure,
            event => panic!("{event:?}"),
        }
    };
    // An engine of another test may have taken its name since, and says that it knows nothing of this.
    let reason = failure.reason();
    assert!(matches!(reason, "Stalled" | "PeerRestarted"), "{reason}");
}

#[test]
fn a_process_that_connects_with_another_token_is_refused() {
    let pair = Pair::through(start(adapt), start(adapt), |address| match address {
        LinkAddress::Shm { address, ports, .. } => LinkAddress::Shm {
            address,
            ports,
            token: weft_engine::LinkToken(5),
        },
        other => panic!("{other}"),
    });
    let key = pair.b.engine.register(DOMAIN, region(8, 0));
    let request = WriteRequest {
        key,
        ..pair.a.write(&pattern(8, 1))
    };
    pair.a.engine.write(request).expect("it is open");
    let event = pair.a.events.recv_timeout(PATIENCE).expect("it ends");
    let Event::Failed { failure, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(failure.reason(), "Stalled");
    let strangers = pair.b.engine.snapshot().link.strangers;
    assert!(strangers > 0);
    assert!(pair.a.engine.snapshot().link.broken_paths >= strangers);
}
