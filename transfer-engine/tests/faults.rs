//! What goes wrong ends in an error that says where and why, and harms nobody else.

mod start;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write as _};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use start::{PATIENCE, bytes_of, config, done, engine, options, pattern, source, whole};
use weft_transfer_engine::{
    Access, Cause, Completion, EngineAddress, Failure, LinkChoice, LinkKind, MemoryRegion,
    MrDescriptor, Operation, Options, Outcome, PagedWrites, Pages, Region, SingleRead, SingleWrite,
    Stage, TransferEngine, TransferEngineConfig,
};

fn failure(operation: &Operation) -> Failure {
    match operation.wait() {
        Outcome::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn write(engine: &TransferEngine, to: &MrDescriptor, bytes: usize) -> Operation {
    let from = source(engine, vec![5; bytes]);
    engine
        .submit_single_write(&whole(&from, to), options())
        .expect("the write is taken")
}

#[test]
fn a_wrong_key_and_a_place_beyond_the_region_are_refused_by_the_peer_and_others_go_on() {
    let [a, b, c] = [engine(), engine(), engine()];
    let (_to, descriptor) = b.alloc(1_000).unwrap();
    let (_other, other) = c.alloc(1_000).unwrap();
    let mut wrong_key = descriptor.clone();
    wrong_key.key.0 ^= 1;
    let beyond_by_one = MrDescriptor {
        bytes: 1_001,
        ..descriptor.clone()
    };
    let (_long, long) = b.alloc(8 << 20).unwrap();
    let table = [
        (wrong_key, 1_000, "KeyRefused"),
        (beyond_by_one, 1_001, "BoundsRefused"),
    ];
    for (forged, bytes, reason) in table {
        let to_other = write(&a, &other, 1_000);
        let beside = write(&a, &long, 8 << 20);
        let failure = failure(&write(&a, &forged, bytes));
        assert_eq!(failure.cause.reason(), reason);
        assert_eq!(failure.stage, Stage::Transfer);
        assert_eq!(failure.peer, Some(b.main_address().name()));
        let path = failure.path.unwrap();
        assert!(path.contains(" -> 127.0.0.1 "), "{path}");
        done(&to_other);
        // So do others to the same peer, on the same connections.
        done(&beside);
        done(&write(&a, &descriptor, 1_000));
    }
}

#[test]
fn what_cannot_be_done_is_refused_at_once_by_the_name_of_the_field() {
    let [a, b] = [engine(), engine()];
    let (there, descriptor) = b.alloc(1_000).unwrap();
    let from = source(&a, pattern(1_000));
    let write = |from: &MemoryRegion, from_offset, to: &MrDescriptor, to_offset, bytes| {
        let write = SingleWrite {
            source: (from.clone(), from_offset),
            destination: (to.clone(), to_offset),
            bytes,
            immediate: None,
        };
        let scattered = a.submit_scatter(std::slice::from_ref(&write), options());
        let refused = a.submit_single_write(&write, options()).unwrap_err();
        assert_eq!(scattered.unwrap_err().reason(), refused.reason());
        format!("{} {refused}", refused.reason())
    };
    let with = |access| MrDescriptor {
        access,
        ..descriptor.clone()
    };
    let table = [
        (
            write(&from, 1, &descriptor, 0, 1_000),
            "OutOfBounds source: 1000 bytes at offset 1",
        ),
        (
            write(&from, 0, &descriptor, 1, 1_000),
            "OutOfBounds destination: 1000 bytes at offset 1",
        ),
        (
            write(&from, 0, &descriptor, u64::MAX, 1_000),
            "OutOfBounds destination",
        ),
        (
            write(&from, 0, &descriptor, 0, 0),
            "Invalid bytes is 0: it must be at least 1",
        ),
        (write(&there, 0, &descriptor, 0, 1), "NotRegistered source"),
        (
            write(&from, 0, &with(Access::READ), 0, 1),
            "AccessDenied destination",
        ),
    ];
    for (refused, expected) in table {
        assert!(refused.starts_with(expected), "{refused}");
    }
    from.deregister();
    let refused = write(&from, 0, &descriptor, 0, 1);
    assert!(refused.starts_with("NotRegistered source"), "{refused}");

    let (here, _) = a.alloc(100).unwrap();
    let paged = |page_bytes, from: &[u32], to: &[u32]| {
        let pages = |indices: &[u32]| Pages {
            indices: indices.to_vec(),
            stride: 10,
            offset: 0,
        };
        let paged = PagedWrites {
            source: (here.clone(), pages(from)),
            destination: (descriptor.clone(), pages(to)),
            page_bytes,
            immediate: None,
        };
        a.submit_paged_writes(&paged, options()).unwrap_err()
    };
    let read = SingleRead {
        source: (with(Access::WRITE), 0),
        destination: (here.clone(), 0),
        bytes: 1,
    };
    let table = [
        (a.alloc(0).unwrap_err(), "bytes is 0"),
        (
            a.reg_mr(Region::share([]), Access::ALL).unwrap_err(),
            "bytes is 0",
        ),
        (a.add_peer_group(Vec::new()).unwrap_err(), "peers is 0"),
        (a.submit_scatter(&[], options()).unwrap_err(), "writes is 0"),
        (
            a.submit_recvs(0, 1, Box::new(|_, _| ())).unwrap_err(),
            "bytes is 0",
        ),
        (
            a.submit_recvs(1, 0, Box::new(|_, _| ())).unwrap_err(),
            "count is 0",
        ),
        (paged(0, &[0], &[0]), "page_bytes is 0"),
        (paged(10, &[], &[]), "pages is 0"),
        (
            paged(10, &[0], &[0, 1]),
            "destination has another number of pages",
        ),
        (paged(11, &[9], &[0]), "source: 11 bytes at offset 90"),
        (paged(10, &[9], &[u32::MAX]), "destination: 10 bytes"),
        (
            a.submit_read(&read, options()).unwrap_err(),
            "source is registered for",
        ),
        (
            here.read(99, &mut [0; 2]).unwrap_err(),
            "source: 2 bytes at offset 99",
        ),
        (
            here.write(101, &[]).unwrap_err(),
            "destination: 0 bytes at offset 101",
        ),
    ];
    for (refused, expected) in table {
        assert!(refused.to_string().starts_with(expected), "{refused}");
    }
    // Nothing was begun.
    assert_eq!(
        (a.counts().unwrap().operations, b.counts().unwrap().peers),
        (0, 0)
    );
}

#[test]
fn no_byte_lands_in_memory_that_is_deregistered_under_writes() {
    let [a, b] = [engine(), engine()];
    let from = source(&a, vec![7; 8 << 20]);
    for round in 0..5 {
        let (to, descriptor) = b.alloc(8 << 20).unwrap();
        let write = whole(&from, &descriptor);
        let operation = a.submit_single_write(&write, options()).unwrap();
        let mut first = [0];
        while first != [7] {
            to.read(0, &mut first).unwrap();
        }
        to.deregister();
        to.write(0, &vec![0; 8 << 20]).unwrap();
        match operation.wait() {
            Outcome::Done => {}
            Outcome::Failed(failure) => assert_eq!(failure.cause.reason(), "KeyRefused"),
            other => panic!("{other:?}"),
        }
        assert!(bytes_of(&to).iter().all(|byte| *byte == 0), "round {round}");
    }
}

#[test]
fn a_restarted_peer_refuses_what_was_addressed_to_its_last_life() {
    let a = engine();
    // Another process may take the port in between.
    let restarted = (0..20).find_map(|_| {
        let two_ports = |ports| TransferEngineConfig {
            port_count: 1,
            ports,
            ..config()
        };
        let b = TransferEngine::start(two_ports(config().ports)).unwrap();
        let (_memory, descriptor) = b.alloc(10).unwrap();
        let name = b.main_address().name();
        let port: u16 = name.split([':', '#']).nth(1).unwrap().parse().unwrap();
        drop(b);
        let again = TransferEngine::start(two_ports(port..=port + 1)).ok()?;
        Some((again, descriptor))
    });
    let (b, old) = restarted.unwrap();
    let failure = failure(&write(&a, &old, 10));
    assert_eq!(
        (failure.stage, failure.cause.reason()),
        (Stage::Connect, "AnotherGeneration")
    );
    // Another machine has a 127.0.0.1, too, and an engine there may be called here by mistake.
    let text = failure.to_string();
    for part in [
        ": the peer was restarted",
        "runs on another machine",
        "nics",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_ne!(b.main_address(), &old.engine);
}

#[test]
fn a_peer_that_cannot_be_reached_or_does_not_let_in_is_named_with_the_stage() {
    // Nobody else takes a port of `b` when it is gone.
    let alone = TransferEngineConfig {
        ports: 30_000..=31_000,
        ..config()
    };
    let (a, b) = (engine(), TransferEngine::start(alone).unwrap());
    let connect = |address: &EngineAddress| failure(&a.connect(address, options()).unwrap());

    // The token is the end of what is printed.
    let text = b.main_address().to_string();
    let end = text.len() - 4;
    let other = if text.ends_with("AAAA") {
        "BBBB"
    } else {
        "AAAA"
    };
    let other_token: EngineAddress = format!("{}{other}", &text[..end]).parse().unwrap();
    let failure = connect(&other_token);
    assert_eq!(failure.stage, Stage::Connect);
    assert_eq!(failure.cause.reason(), "Refused");
    assert!(failure.to_string().contains("token"), "{failure}");

    let larger = TransferEngineConfig {
        mtu: 9_000,
        link: LinkChoice::Only(LinkKind::Udp),
        ..config()
    };
    let larger = TransferEngine::start(larger).unwrap();
    let failure = connect(larger.main_address());
    assert_eq!(failure.cause.reason(), "Refused");
    assert!(failure.to_string().contains("packet_payload"), "{failure}");

    let gone = b.main_address().clone();
    drop(b);
    let failure = connect(&gone);
    assert_eq!(
        (failure.stage, failure.cause.reason()),
        (Stage::Connect, "Unreachable")
    );
    assert_eq!(failure.peer, Some(gone.name()));
    assert_eq!(a.counts().unwrap().peers, 0);
}

#[test]
fn silent_callers_keep_no_peer_out() {
    let (a, b) = (engine(), engine());
    let name = b.main_address().name();
    let endpoint = name.split('#').next().unwrap();
    // More than may be there at a time.
    let connect = |_| TcpStream::connect(endpoint).unwrap();
    let silent: Vec<TcpStream> = (0..300).map(connect).collect();
    done(&a.connect(b.main_address(), options()).unwrap());
    // The first ones were ended, and no others.
    let is_open = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        matches!((&*stream).read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    assert!(!is_open(&silent[0]));
    assert!(is_open(&silent[299]));
}

#[test]
fn what_waits_for_a_silent_peer_is_cancelled_for_good_or_ends_by_its_deadline() {
    // A process that is stopped accepts connections and says nothing.
    if std::env::var_os(IS_PEER).is_some() {
        return be_peer();
    }
    let a = engine();
    let peer =
        Peer::start("what_waits_for_a_silent_peer_is_cancelled_for_good_or_ends_by_its_deadline");
    peer.signal(Signal::SIGSTOP);
    let address = &peer.descriptor.engine;
    let send = |within| {
        let options = Options::within(within);
        a.submit_send(address, vec![1], None, options).unwrap()
    };
    let cancelled = send(PATIENCE);
    cancelled.cancel();
    let Some(Outcome::Reusable(failure)) = cancelled.outcome() else {
        panic!("{cancelled:?}");
    };
    assert_eq!(
        (failure.stage, failure.cause),
        (Stage::Connect, Cause::Cancelled)
    );
    let Outcome::Reusable(failure) = send(Duration::from_millis(20)).wait() else {
        panic!("nothing was posted");
    };
    assert_eq!(
        (failure.stage, failure.cause),
        (Stage::Connect, Cause::DeadlinePassed)
    );
    assert_eq!(failure.peer, Some(address.name()));
    assert_eq!(a.counts().unwrap().operations, 0);
    // What waits when the engine is dropped ends too.
    let dropped = send(PATIENCE);
    drop(a);
    assert_eq!(self::failure(&dropped).cause, Cause::EndedHere);
}

#[test]
fn an_expected_count_ends_by_its_deadline_or_is_cancelled() {
    let [a, b] = [engine(), engine()];
    let group = a.add_peer_group(vec![b.main_address().clone()]).unwrap();
    done(&a.submit_barrier(&group, 3, options()).unwrap());
    done(&b.expect_imm_count(3, 1, options()).unwrap());
    let short = Options::within(Duration::from_millis(20));
    let late = b.expect_imm_count(3, 2, short).unwrap();
    let cancelled = b.expect_imm_count(3, 2, options()).unwrap();
    cancelled.cancel();
    for (operation, cause) in [(late, Cause::DeadlinePassed), (cancelled, Cause::Cancelled)] {
        let Outcome::Reusable(failure) = operation.wait() else {
            panic!("{operation:?}");
        };
        assert_eq!((failure.stage, failure.cause), (Stage::Count, cause));
    }
    // The count goes on.
    done(&a.submit_barrier(&group, 3, options()).unwrap());
    done(&b.expect_imm_count(3, 2, options()).unwrap());
    assert_eq!(b.free_imm(3), 2);
    let counts = b.counts().unwrap();
    assert_eq!((counts.operations, counts.counters), (0, 0));
}

#[test]
fn a_callback_that_panics_harms_no_other_one() {
    let [a, b] = [engine(), engine()];
    let connect = |callback| {
        let options = Options {
            completion: Completion::Callback(callback),
            ..options()
        };
        a.connect(b.main_address(), options).unwrap()
    };
    let (to_test, told) = unbounded();
    connect(Box::new(|_| panic!("the program's fault")));
    connect(Box::new(move |outcome| to_test.send(outcome).unwrap()));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Outcome::Done);
}

#[test]
fn nothing_begins_in_an_engine_that_is_closed_also_by_a_callback_of_its_last_operations() {
    let a = Arc::new(engine());
    let (told, refused) = crossbeam_channel::bounded(1);
    let engine = Arc::clone(&a);
    let again = Box::new(move |outcome: Outcome| {
        let failure = outcome.into_result().unwrap_err();
        assert_eq!(failure.cause, Cause::EndedHere);
        let begun = engine.expect_imm_count(1, 1, options());
        told.send(begun.unwrap_err().to_string()).unwrap();
    });
    let options = Options {
        completion: Completion::Callback(again),
        ..options()
    };
    let expected = a.expect_imm_count(1, 1, options).unwrap();
    a.close();
    assert_eq!(
        refused.recv_timeout(PATIENCE).unwrap(),
        "the engine is closed: start another one"
    );
    assert!(matches!(expected.outcome(), Some(Outcome::Failed(_))));
    assert!(a.expect_imm_count(1, 1, start::options()).is_err());
    a.close();
}

#[test]
fn a_callback_may_drop_the_engine_that_calls_it() {
    let [a, b] = [engine(), engine()];
    let a = Arc::new(a);
    let (to_test, told) = unbounded();
    let (go, wait) = unbounded::<()>();
    let held = Arc::clone(&a);
    let callback = Box::new(move |_| {
        wait.recv_timeout(PATIENCE).unwrap();
        drop(held);
        to_test.send(()).unwrap();
    });
    let options = Options {
        completion: Completion::Callback(callback),
        ..options()
    };
    a.connect(b.main_address(), options).unwrap();
    drop(a);
    go.send(()).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
}

/// Set in the process that is a peer.
const IS_PEER: &str = "WEFT_TEST_IS_PEER";

/// A peer in another process, and what it has registered.
struct Peer {
    process: Child,
    _said: BufReader<ChildStdout>,
    descriptor: MrDescriptor,
}

impl Peer {
    fn start(test: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("procfs"))
            .args(["--exact", "--nocapture", test])
            .env(IS_PEER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let mut said = BufReader::new(process.stdout.take().expect("it is piped"));
        let descriptor = loop {
            let mut line = String::new();
            assert!(
                said.read_line(&mut line).expect("it is text") > 0,
                "the peer has ended"
            );
            // The test's harness has begun the line.
            if let Some(at) = line.find("weft-region1:") {
                break line[at..].trim().parse().expect("it is a descriptor");
            }
        };
        Self {
            process,
            _said: said,
            descriptor,
        }
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(self.process.id() as i32);
        kill(id, signal).expect("the peer is there");
        if signal == Signal::SIGSTOP {
            // Its threads go on until all have stopped.
            let stopped = waitpid(id, Some(WaitPidFlag::WUNTRACED));
            assert_eq!(stopped, Ok(WaitStatus::Stopped(id, signal)));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.process.kill().expect("it is a child of this process");
        self.process.wait().expect("it is a child of this process");
    }
}

/// What the other process does, until this one is gone.
fn be_peer() {
    let engine = engine();
    let (_memory, descriptor) = engine.alloc(1 << 20).expect("there is memory");
    let mut out = std::io::stdout();
    writeln!(out, "\n{descriptor}").expect("the test reads it");
    out.flush().expect("the test reads it");
    std::io::stdin()
        .read_to_end(&mut Vec::new())
        .expect("it is piped");
}

#[test]
fn a_peer_that_is_killed_in_mid_write_is_named_at_once_and_others_go_on() {
    if std::env::var_os(IS_PEER).is_some() {
        return be_peer();
    }
    let mut peer =
        Peer::start("a_peer_that_is_killed_in_mid_write_is_named_at_once_and_others_go_on");
    // Nothing but the end of the control connection tells so soon.
    let a = TransferEngine::start(TransferEngineConfig {
        stall_timeout: 10 * PATIENCE,
        ..config()
    });
    let (a, b) = (a.unwrap(), engine());
    let (_memory, other) = b.alloc(1 << 20).unwrap();
    let mut writes: Vec<Operation> = (0..500)
        .map(|_| write(&a, &peer.descriptor, 1 << 20))
        .collect();
    let to_other = write(&a, &other, 1 << 20);
    done(&writes[0]);
    // All may be done by now: one is under way for sure to a peer that has been stopped.
    peer.signal(Signal::SIGSTOP);
    writes.push(write(&a, &peer.descriptor, 1 << 20));
    peer.process.kill().unwrap();
    let last = failure(writes.last().unwrap());
    assert_eq!(
        (last.stage, &last.cause),
        (Stage::Transfer, &Cause::PeerEnded),
        "{last}"
    );
    assert_eq!(last.peer, Some(peer.descriptor.engine.name()));
    assert!(last.path.is_some());
    for operation in &writes {
        assert!(matches!(
            operation.wait(),
            Outcome::Done | Outcome::Failed(_)
        ));
    }
    done(&to_other);
    done(&write(&a, &other, 1 << 20));
    // What is submitted later fails to connect.
    assert_eq!(
        failure(&write(&a, &peer.descriptor, 1)).stage,
        Stage::Connect
    );
}

#[test]
fn a_stopped_peer_confirms_nothing_and_others_go_on() {
    if std::env::var_os(IS_PEER).is_some() {
        return be_peer();
    }
    let peer = Peer::start("a_stopped_peer_confirms_nothing_and_others_go_on");
    let soon = TransferEngineConfig {
        cancel_timeout: Duration::from_millis(20),
        ..config()
    };
    let (a, b) = (TransferEngine::start(soon).unwrap(), engine());
    let (_memory, other) = b.alloc(1 << 20).unwrap();
    done(&write(&a, &peer.descriptor, 1));
    // Until then work waits at the thread that connects.
    while a.link(&peer.descriptor.engine).is_none() {
        std::thread::yield_now();
    }
    peer.signal(Signal::SIGSTOP);
    let from = source(&a, pattern(1 << 20));
    let to_peer = whole(&from, &peer.descriptor);
    let short = Options::within(Duration::from_millis(50));
    let late = a.submit_single_write(&to_peer, short).unwrap();
    let Outcome::Unconfirmed(failure) = late.wait() else {
        panic!("{late:?}");
    };
    assert_eq!(
        (failure.stage, failure.cause),
        (Stage::Transfer, Cause::DeadlinePassed)
    );
    assert_eq!(failure.peer, Some(peer.descriptor.engine.name()));
    assert!(failure.path.is_some());
    done(&write(&a, &other, 1 << 20));
    // It was only slow: it goes on where it was.
    peer.signal(Signal::SIGCONT);
    done(&write(&a, &peer.descriptor, 1 << 20));
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let refused = |config| TransferEngine::start(config).unwrap_err();
    let no_nics = TransferEngineConfig {
        nics: Vec::new(),
        ..config()
    };
    assert!(refused(no_nics).to_string().starts_with("nics: "));
    let mut no_address = config();
    no_address.nics[0] = [192, 0, 2, 1].into();
    let error = refused(no_address);
    assert_eq!(error.reason(), "CannotListen");
    for part in ["nics", "192.0.2.1:20000", "`ip address`"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    for wrong in [[0, 0, 0, 0], [224, 0, 0, 1]] {
        let mut no_nic = config();
        no_nic.nics[0] = wrong.into();
        assert_eq!(refused(no_nic).reason(), "BadNics");
    }
    for (ports, problem) in [
        (RangeInclusive::new(30_000, 20_000), "end before"),
        (0..=20_000, "begin with 0"),
    ] {
        let wrong = TransferEngineConfig { ports, ..config() };
        let text = refused(wrong).to_string();
        assert!(text.starts_with(&format!("ports {problem}")), "{text}");
    }
    let few_ports = TransferEngineConfig {
        ports: 20_000..=20_002,
        ..config()
    };
    assert!(refused(few_ports).to_string().starts_with("ports "));
    let uneven = TransferEngineConfig {
        workers: 3,
        ..config()
    };
    assert_eq!(
        refused(uneven).to_string(),
        "workers is 3 and port_count is 4: workers must be a divisor of port_count"
    );
    let mut two_workers = config();
    two_workers.workers = 2;
    let [a, b] = [two_workers.clone(), two_workers].map(|it| TransferEngine::start(it).unwrap());
    let (_memory, descriptor) = b.alloc(10).unwrap();
    done(&write(&a, &descriptor, 10));
}
