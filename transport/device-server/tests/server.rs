//! Programs that open devices by their directories, over the control socket.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};
use weft_device::VERSION;
use weft_device::completion::{self, Completion, Status};
use weft_device::control::{
    self, Address, Answer, ErrorNumber, Limits, MESSAGE_BYTES_MAX, Outcome, QueuePair,
    QueuePairAttributes, QueueSizes, Region, Request,
};
use weft_device::doorbell::DeviceState;
use weft_device::entry::Entry;
use weft_device::ring::{Consumer, Producer};
use weft_device::state::{Attributes, QueuePairType, State};
use weft_device::work_request::{
    Operation, Payload, ReceiveRequest, RemoteAddress, Sge, WorkRequest,
};
use weft_device_server::{
    AttemptKind, Device, Offer, QueuePairName, RefusedAttempt, Server, ServerError, TenantOffer,
    Totals,
};
use weft_device_socket::{Client, OpenError, devices_in, gid, packet};
use weft_engine::{EngineConfig, Nanos, PortRange, Secret, Words};

mod hand_over;
mod hanging;
mod log;

use hanging::Hanging;
use log::Warnings;

/// Nothing here takes a tenth of this on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn device(last: u8) -> Device {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
    let limits = Limits {
        domains: 4,
        regions: 16,
        completion_queues: 4,
        queue_pairs: 8,
        address_handles: 4,
        completions: 1024,
        work_requests: 256,
        sges: 8,
        inline_bytes: 256,
        requests: 16,
        path_mtu: 5,
        ring_bytes: 4 << 20,
    };
    Device::new(gid, limits)
}

fn start(directory: &Path) -> Server {
    start_with(directory, drop)
}

fn start_with(
    directory: &Path,
    send_offer: impl Fn(TenantOffer) + Send + Sync + 'static,
) -> Server {
    // Of each server of each process that runs at the same time.
    static SERVERS: AtomicU32 = AtomicU32::new(0);
    let server = std::process::id() * 16 + SERVERS.fetch_add(1, Ordering::Relaxed);
    let ports = PortRange {
        // Below those that the kernel gives to sockets without one.
        first: 19_000 + (server % 200) as u16 * 64,
        count: 16,
    };
    let mut config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
    config.stall_timeout = Nanos::from_secs(2);
    Server::start(directory, config, 4, send_offer).expect("these ports are free")
}

/// A program with one queue pair, which sends and receives without memory.
struct Program {
    client: Client,
    domain: u32,
    number: u32,
    /// What its receives are of: the queue pair, or a shared queue.
    receive_queue: u32,
    completions: Consumer<Words>,
    sends: Producer<Words>,
    receives: Producer<Words>,
}

impl Program {
    fn open(directory: &Path) -> Self {
        Self::with(Client::open(directory).expect("it opens"))
    }

    fn with(client: Client) -> Self {
        Self::of(client, QueuePairType::ReliableConnected, false)
    }

    /// With a queue pair of this kind, which takes its receives from a shared queue or from its own.
    fn of(client: Client, kind: QueuePairType, is_sharing: bool) -> Self {
        let Ok(Answer::Created(domain)) = client.ask(&Request::CreateDomain) else {
            panic!("a domain");
        };
        let asked = client.ask(&Request::CreateCompletionQueue {
            entries: 64,
            channel: None,
        });
        let Ok(Answer::CreatedQueue { queue, ring, .. }) = asked else {
            panic!("{asked:?}");
        };
        let completions = client.ring(ring).expect("it lies in the memory");
        let shared = is_sharing.then(|| {
            let asked = client.ask(&Request::CreateSharedReceiveQueue {
                domain,
                entries: 16,
                sges: 4,
            });
            match asked {
                Ok(Answer::CreatedQueue { queue, ring, .. }) => (queue, ring),
                other => panic!("{other:?}"),
            }
        });
        let wanted = QueuePair {
            domain,
            kind,
            send_completions: queue,
            receive_completions: queue,
            shared_receive_queue: shared.map(|(queue, _)| queue),
            sizes: QueueSizes {
                sends: 16,
                receives: 16,
                send_sges: 1,
                receive_sges: 4,
                inline_bytes: 64,
            },
        };
        let asked = client.ask(&Request::CreateQueuePair(wanted));
        let Ok(Answer::CreatedQueuePair {
            queue_pair,
            send_ring,
            receive_ring,
            ..
        }) = asked
        else {
            panic!("{asked:?}");
        };
        let receive_ring = shared.map_or(receive_ring, |(_, ring)| Some(ring));
        let receive_ring = receive_ring.expect("there is one");
        let ring = |place| client.ring(place).expect("it lies in the memory");
        Self {
            domain,
            number: queue_pair,
            receive_queue: shared.map_or(queue_pair, |(queue, _)| queue),
            completions: Consumer::new(completions, 0),
            sends: Producer::new(ring(send_ring), 0),
            receives: Producer::new(ring(receive_ring), 0),
            client,
        }
    }

    fn connect(&self, peer: &Program) {
        self.connect_to(peer.client.gid(), peer.number);
    }

    fn modify(&self, given: &[Attributes], attributes: QueuePairAttributes) {
        let state = Attributes::STATE;
        let given = given.iter().fold(state, |all, one| all.union(*one));
        let asked = self.client.ask(&Request::ModifyQueuePair {
            queue_pair: self.number,
            given: given.0,
            attributes,
        });
        assert_eq!(asked, Ok(Answer::Done));
    }

    fn connect_to(&self, gid: [u8; 16], number: u32) {
        use Attributes as A;
        let mut attributes = QueuePairAttributes {
            state: State::Init as u32,
            port: 1,
            path_mtu: 5,
            peer_queue_pair: number,
            requests_from_here: 4,
            requests_from_peer: 4,
            // 8 µs.
            timeout: 1,
            access: 0b1111,
            address: Address {
                gid,
                is_global: true,
                port: 1,
                ..Address::default()
            },
            ..QueuePairAttributes::default()
        };
        self.modify(&[A::ACCESS_FLAGS, A::PKEY_INDEX, A::PORT], attributes);
        attributes.state = State::ReadyToReceive as u32;
        let given = [
            A::AV,
            A::PATH_MTU,
            A::DEST_QPN,
            A::RQ_PSN,
            A::MAX_DEST_RD_ATOMIC,
            A::MIN_RNR_TIMER,
        ];
        self.modify(&given, attributes);
        attributes.state = State::ReadyToSend as u32;
        let given = [
            A::TIMEOUT,
            A::RETRY_CNT,
            A::RNR_RETRY,
            A::SQ_PSN,
            A::MAX_QP_RD_ATOMIC,
        ];
        self.modify(&given, attributes);
    }

    fn ring_doorbell(&self, queue: u32) {
        let doorbells = self.client.doorbells().expect("there is a page");
        if doorbells.ring(queue) {
            self.client.wake();
        }
    }

    /// Registers memory for everything. Answers its key.
    fn register(&self, memory: &[u8]) -> u32 {
        self.register_at(memory.as_ptr() as u64, memory.len() as u64)
    }

    fn register_at(&self, address: u64, bytes: u64) -> u32 {
        let region = Region {
            domain: self.domain,
            address,
            bytes,
            io_address: address,
            access: 0b1111,
            file_offset: None,
        };
        match self.client.ask(&Request::RegisterRegion(region)) {
            Ok(Answer::Created(key)) => key,
            other => panic!("a region: {other:?}"),
        }
    }

    fn send(&mut self, wr_id: u64) {
        self.post(wr_id, Operation::Send, Payload::Inline(&[]));
    }

    fn post(&mut self, wr_id: u64, operation: Operation, payload: Payload<'_>) {
        self.post_with(wr_id, operation, None, payload);
    }

    fn post_with(
        &mut self,
        wr_id: u64,
        operation: Operation,
        immediate: Option<u32>,
        payload: Payload<'_>,
    ) {
        let mut entry = Entry::new();
        let request = WorkRequest {
            wr_id,
            operation,
            immediate,
            signaled: true,
            fence: false,
            solicited: false,
            payload,
        };
        entry.set_work_request(&request).expect("it is small");
        self.sends.push(entry.slots()).expect("there is room");
        self.ring_doorbell(self.number);
    }

    /// Writes from memory that holds up the copy, to a key that opens nothing.
    fn write_held_up(&mut self, wr_id: u64, address: u64) {
        let sge = Sge {
            address,
            bytes: 8,
            local_key: self.register_at(address, Hanging::BYTES as u64),
        };
        let remote = RemoteAddress { address: 0, key: 7 };
        self.post(wr_id, Operation::Write(remote), Payload::Sges(&[sge]));
    }

    fn receive(&mut self, wr_id: u64) {
        self.receive_into(wr_id, &[]);
    }

    fn receive_into(&mut self, wr_id: u64, sges: &[Sge]) {
        let mut entry = Entry::new();
        let request = ReceiveRequest { wr_id, sges };
        entry.set_receive(&request).expect("it is small");
        self.receives.push(entry.slots()).expect("there is room");
        self.ring_doorbell(self.receive_queue);
    }

    fn next(&mut self) -> (u64, Status) {
        let begun = Instant::now();
        loop {
            if let Some(done) = self.poll() {
                return done;
            }
            assert!(begun.elapsed() < PATIENCE, "no completion");
            std::thread::yield_now();
        }
    }

    fn poll(&mut self) -> Option<(u64, Status)> {
        let taken = Completion::take(&mut self.completions).expect("the ring is sound");
        let completion = taken?;
        let status = match completion.outcome {
            completion::Outcome::Success { .. } => Status::Success,
            completion::Outcome::Failure { status, .. } => status,
        };
        Some((completion.wr_id, status))
    }
}

#[test]
fn two_programs_play_ping_pong_and_one_that_ends_is_missed() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path().join("devices");
    let server = start(&directory);
    let paths = [1, 2].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    assert_eq!(devices_in(&directory), ["weft1", "weft2"]);
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(&paths[0])), (0o700, 0o755));
    let told = gid(&paths[1]).expect("it has one");
    assert_eq!(told.octets(), device(2).gid);
    let [mut a, mut b] = paths.each_ref().map(|path| Program::open(path));
    a.connect(&b);
    b.connect(&a);
    for round in 0..1000 {
        a.receive(round);
        b.receive(round);
        a.send(round);
        assert_eq!(b.next(), (round, Status::Success));
        b.send(round);
        let mut done = [a.next(), a.next()];
        done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(done, [(round, Status::Success); 2]);
        assert_eq!(b.next(), (round, Status::Success));
    }
    drop(b);
    a.send(7777);
    assert_eq!(a.next(), (7777, Status::RetryExceeded));
    // The server is no worse for it, and the device can be opened again.
    Program::open(&paths[1]);
    server.destroy("weft2").expect("it goes");
    assert_eq!(devices_in(&directory), ["weft1"]);
    drop(server);
    assert!(!directory.exists());
    let events = a.client.take_events().expect("nobody has taken it");
    let mut buffer = [0; 8];
    let (end, _) = packet::receive(&events, &mut buffer).expect("it ends");
    assert!(end.is_empty());
    let gone = a.client.ask(&Request::CreateDomain);
    assert_eq!(gone, Err(ErrorNumber::EngineGone));
}

/// Open files, mappings and pages of this process.
fn held() -> [usize; 3] {
    let files = std::fs::read_dir("/proc/self/fd").expect("it is there");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it is text");
    let pages = std::fs::read_to_string("/proc/self/statm").expect("it is text");
    let resident = pages.split(' ').nth(1).and_then(|it| it.parse().ok());
    [
        files.count(),
        maps.lines().count(),
        resident.expect("a number"),
    ]
}

/// Set in a process that runs one test alone.
const ALONE: &str = "WEFT_TEST_ALONE";
/// Set in a program that writes until it is killed: the device, and what it writes to.
const WRITES_TO: &str = "WEFT_TEST_WRITES_TO";
/// How many programs are killed; `make soak` kills more.
const DEATHS: &str = "WEFT_TEST_DEATHS";
const WRITTEN_BYTES: usize = 1 << 20;

/// This program again, with one test.
fn again(test: &str, variable: &str, value: &str) -> std::process::Command {
    let program = std::env::current_exe().expect("it is this program");
    let mut command = std::process::Command::new(program);
    command
        .args(["--exact", "--nocapture", test])
        .env(variable, value);
    command
}

/// Says its number, and writes until it is killed.
fn write_for_ever(target: &str) -> ! {
    let mut words = target.split(' ');
    let path = words.next().expect("a path");
    let mut program = Program::open(Path::new(path));
    let mut number = || {
        words
            .next()
            .and_then(|it| it.parse().ok())
            .expect("a number")
    };
    let (last, peer, address, key): (u64, u64, u64, u64) = (number(), number(), number(), number());
    program.connect_to(device(last as u8).gid, peer as u32);
    // The runner has begun a line.
    let said = writeln!(std::io::stdout(), "writer {}", program.number);
    said.expect("who has started it reads");
    let memory = vec![1; WRITTEN_BYTES];
    let sge = Sge {
        address: memory.as_ptr() as u64,
        bytes: WRITTEN_BYTES as u32,
        local_key: program.register(&memory),
    };
    let key = key as u32;
    let to = RemoteAddress { address, key };
    for wr_id in 0.. {
        program.post(wr_id, Operation::Write(to), Payload::Sges(&[sge]));
        if wr_id >= 8 {
            program.next();
        }
    }
    unreachable!("it is killed");
}

#[test]
fn five_hundred_programs_that_are_killed_in_mid_write_leave_nothing() {
    const NAME: &str = "five_hundred_programs_that_are_killed_in_mid_write_leave_nothing";

    if let Ok(target) = std::env::var(WRITES_TO) {
        write_for_ever(&target);
    }
    if std::env::var_os(ALONE).is_none() {
        // It counts the files of its process, and other tests open some at the same time.
        let output = again(NAME, ALONE, "1").output().expect("it runs again");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    let deaths = std::env::var(DEATHS).map_or(500, |it| it.parse().expect("a number"));
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let paths = [1, 2].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let memory: Vec<AtomicU8> = (0..WRITTEN_BYTES).map(|_| AtomicU8::new(0)).collect();
    let last = &memory[WRITTEN_BYTES - 1];
    let mut before = None;
    for death in 0..deaths {
        let mut peer = Program::open(&paths[1]);
        let address = memory.as_ptr() as u64;
        let key = peer.register_at(address, WRITTEN_BYTES as u64);
        let target = format!("{} 2 {} {address} {key}", paths[0].display(), peer.number);
        let mut writer = again(NAME, WRITES_TO, &target);
        let mut writer = writer.stdout(Stdio::piped()).spawn().expect("it runs");
        let said = BufReader::new(writer.stdout.take().expect("it is piped")).lines();
        let mut numbers = said.map_while(Result::ok).filter_map(|line| {
            let (_, number) = line.split_once("writer ")?;
            number.parse().ok()
        });
        peer.connect_to(device(1).gid, numbers.next().expect("it says its number"));
        peer.receive(1);
        // The end of the first write.
        while last.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        writer.kill().expect("it runs");
        writer.wait().expect("it was killed");
        let begun = Instant::now();
        // Who only receives hears of it by what it sends.
        peer.send(2);
        let mut ends = [peer.next(), peer.next()];
        ends.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(ends[0], (1, Status::Flushed));
        let ends_of_send = [Status::RetryExceeded, Status::Flushed];
        assert!(ends_of_send.contains(&ends[1].1), "{ends:?}");
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "within its timeout"
        );
        drop(peer);
        last.store(0, Ordering::Relaxed);
        let begun = Instant::now();
        while server.list().iter().any(|it| it.contexts > 0) {
            assert!(begun.elapsed() < PATIENCE, "a context stays");
        }
        if death == 20 {
            before = Some(held());
        }
    }
    let [files, maps, pages] = held();
    let [files_before, maps_before, pages_before] = before.expect("there were more");
    assert!(files <= files_before + 4, "{files_before} to {files} files");
    // The allocator has some for each thread that there was at a time.
    assert!(maps <= maps_before + 60, "{maps_before} to {maps} mappings");
    // 8 MiB.
    assert!(
        pages <= pages_before + 2048,
        "{pages_before} to {pages} pages"
    );
}

#[test]
fn a_program_whose_memory_holds_up_a_copy_holds_up_no_other_device() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let paths = [1, 2, 3].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let (sender, reads) = crossbeam_channel::unbounded();
    let mount = tempfile::tempdir().expect("a directory");
    let (mounted, mut program, address) = Hanging(sender).map(mount.path());
    let memory = format!("/proc/{}/mem", program.id());
    let client = Client::open_for(&paths[0], Path::new(&memory));
    let mut a = Program::with(client.expect("it opens"));
    let [b, mut c] = [&paths[1], &paths[2]].map(|path| Program::open(path));
    a.connect(&b);
    b.connect(&a);
    a.write_held_up(1, address);
    let stalled = || {
        let stalled = server.list().into_iter().filter(|it| it.is_stalled);
        stalled.map(|it| it.name).collect::<Vec<String>>()
    };
    let begun = Instant::now();
    while stalled().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "the copy does not hang");
        std::thread::yield_now();
    }
    assert_eq!(stalled(), ["weft1"]);
    // The others go on, by calls and by data; a program in a call of the one that hangs holds up no other.
    let waits = std::thread::spawn(move || {
        let made = a.client.ask(&Request::CreateDomain);
        (a, made)
    });
    let mut d = Program::open(&paths[1]);
    c.connect(&d);
    d.connect(&c);
    d.receive(2);
    c.send(2);
    assert_eq!(d.next(), (2, Status::Success));
    assert_eq!(c.next(), (2, Status::Success));
    let waiting = open_all(&paths[0], &paths[1]);
    drop(reads);
    let (mut a, made) = waits.join().expect("its call is answered");
    assert!(matches!(made, Ok(Answer::Created(_))), "{made:?}");
    let (wr_id, status) = a.next();
    assert_eq!((wr_id, status), (1, Status::LocalProtection));
    assert!(stalled().is_empty());
    // Those that have waited have it open now.
    drop(waiting);
    program.kill().expect("it runs");
    program.wait().expect("it ends");
    mounted.umount_and_join().expect("it ends");
}

/// Opens a device that stands still and that one program has open, once more than may be. One is refused at once; the others,
/// which this gives, wait; and another device is opened all the while.
fn open_all(device: &Path, other: &Path) -> Vec<OwnedFd> {
    let memory = File::open("/proc/self/mem").expect("it is ours");
    let most = Totals::DEFAULT.device.opens as usize;
    let mut waiting: Vec<OwnedFd> = Vec::new();
    for _ in 0..most {
        let socket = connected(device);
        packet::send(&socket, &opening(device, VERSION), &[memory.as_fd()]).expect("it is sent");
        waiting.push(socket);
        drop(Client::open(other).expect("it opens"));
    }
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let begun = Instant::now();
    let (refused, bytes) = loop {
        let answered = waiting.iter().enumerate().find_map(|(at, socket)| {
            let received = recv(socket, &mut buffer, RecvFlags::DONTWAIT);
            received.ok().map(|(bytes, _)| (at, bytes))
        });
        if let Some(answered) = answered {
            break answered;
        }
        assert!(begun.elapsed() < PATIENCE, "none is refused");
        std::thread::yield_now();
    };
    let refused_with = control::parse::<Outcome>(&buffer[..bytes]).expect("an answer");
    assert_eq!(refused_with, Err(ErrorNumber::OutOfMemory));
    drop(waiting.remove(refused));
    waiting
}

#[test]
fn a_program_that_never_polls_fails_itself_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let paths = [1, 2].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let open = || {
        let [one, other] = paths.each_ref().map(|path| Program::open(path));
        one.connect(&other);
        other.connect(&one);
        [one, other]
    };
    let ([mut silent, mut peer], [mut a, mut b]) = (open(), open());
    let mut goes_on = || {
        for wr_id in 0..20 {
            b.receive(wr_id);
            a.send(wr_id);
            assert_eq!([a.next(), b.next()], [(wr_id, Status::Success); 2]);
        }
    };
    let state = |program: &Program| program.client.doorbells().expect("a page").state();
    // Its queue has room for 64 completions.
    for wr_id in 0..60 {
        peer.receive(wr_id);
        silent.send(wr_id);
        assert_eq!(peer.next(), (wr_id, Status::Success));
    }
    goes_on();
    assert_ne!(state(&silent), DeviceState::Failed);
    let begun = Instant::now();
    for wr_id in 60.. {
        peer.receive(wr_id);
        silent.send(wr_id);
        while peer.poll().is_none() && state(&silent) != DeviceState::Failed {
            assert!(
                begun.elapsed() < PATIENCE,
                "{wr_id}: it neither goes on nor fails"
            );
            std::thread::yield_now();
        }
        if state(&silent) == DeviceState::Failed {
            break;
        }
        assert!(wr_id < 80, "64 completions are all that there is room for");
    }
    goes_on();
    // The next program that opens the device finds one that works.
    drop(silent);
    let [mut next, mut of_next] = open();
    of_next.receive(1);
    next.send(1);
    assert_eq!([next.next(), of_next.next()], [(1, Status::Success); 2]);
}

#[test]
fn attempts_on_memory_that_they_may_not_reach_are_counted_by_device() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let paths = [(1, "team-a/a"), (2, "team-a/b")].map(|(last, pod)| {
        let device = Device {
            owner: pod.into(),
            ..device(last)
        };
        let path = server.create(&format!("weft{last}"), device);
        path.expect("it is made")
    });
    let [mut a, b] = paths.each_ref().map(|path| Program::open(path));
    a.connect(&b);
    b.connect(&a);
    let remote = RemoteAddress { address: 0, key: 7 };
    a.post(1, Operation::Write(remote), Payload::Inline(&[1; 8]));
    assert_eq!(a.next(), (1, Status::RemoteAccess));
    let begun = Instant::now();
    let refused = || {
        server
            .list()
            .iter()
            .map(|it| it.refused)
            .collect::<Vec<u64>>()
    };
    while refused()[1] == 0 {
        assert!(begun.elapsed() < PATIENCE, "nothing is counted");
        std::thread::yield_now();
    }
    assert_eq!(refused()[0], 0);
    let attempt = RefusedAttempt {
        kind: AttemptKind::MemoryAccess,
        from: "team-a/a".into(),
        to: "team-a/b".into(),
    };
    assert_eq!(taken(&server), [attempt].into());
    assert!(server.take_refused_attempts().is_empty());
}

/// What pods are told of, as soon as there is something.
fn taken(server: &Server) -> BTreeSet<RefusedAttempt> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let taken = server.take_refused_attempts();
        if !taken.is_empty() {
            return taken;
        }
        assert!(Instant::now() < deadline, "no refused attempt is kept");
        std::thread::yield_now();
    }
}

#[test]
fn the_operations_and_bytes_of_devices_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let paths = [1, 2].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let [mut a, b] = paths.each_ref().map(|path| Program::open(path));
    a.connect(&b);
    b.connect(&a);
    let memory = [0; 64];
    let (address, key) = (memory.as_ptr() as u64, b.register(&memory));
    let remote = RemoteAddress { address, key };
    a.post(1, Operation::Write(remote), Payload::Inline(&[1; 40]));
    assert_eq!(a.next(), (1, Status::Success));
    let counted = || {
        let listed = server.list();
        [&listed[0], &listed[1]].map(|it| (it.operations, it.bytes_sent, it.bytes_received))
    };
    let begun = Instant::now();
    while counted() != [(1, 40, 0), (0, 0, 40)] {
        assert!(begun.elapsed() < PATIENCE, "{:?}", counted());
        std::thread::yield_now();
    }
}

#[test]
fn the_bytes_of_a_device_s_memory_are_counted_by_the_way_that_they_have_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let paths = [1, 2].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let [mut a, b] = paths.each_ref().map(|path| Program::open(path));
    a.connect(&b);
    b.connect(&a);
    let (private, file) = (vec![1; 4096], shared_file(4096));
    let map = memmap2::MmapOptions::new().len(4096).map_raw(&file);
    let map = map.expect("it is mapped");
    let address = map.as_ptr() as u64;
    let region = Region {
        domain: b.domain,
        address,
        bytes: 4096,
        io_address: address,
        access: 0b1111,
        file_offset: Some(0),
    };
    let asked = b
        .client
        .ask_with(&Request::RegisterRegion(region), Some(file.as_fd()));
    let Ok((Answer::Created(key), _)) = asked else {
        panic!("a region: {asked:?}");
    };
    let sge = Sge {
        address: private.as_ptr() as u64,
        bytes: 4096,
        local_key: a.register(&private),
    };
    let to = RemoteAddress { address, key };
    a.post(1, Operation::Write(to), Payload::Sges(&[sge]));
    assert_eq!(a.next(), (1, Status::Success));
    let counted = || {
        let listed = server.list();
        let copied = [&listed[0], &listed[1]].map(|it| (it.copied, it.windows));
        copied.map(|(copied, windows)| (windows, copied.by_window, copied.by_address_space))
    };
    let begun = Instant::now();
    while counted() != [(0, 0, 4096), (1, 4096, 0)] {
        assert!(begun.elapsed() < PATIENCE, "{:?}", counted());
        std::thread::yield_now();
    }
}

/// A memfd of so many bytes, all of them there.
fn shared_file(bytes: usize) -> File {
    let file = rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(file.expect("there is room"));
    file.write_all(&vec![0; bytes]).expect("there is room");
    file
}

#[test]
fn refused_attempts_are_logged_once_a_second_at_most() {
    // No other test has this device.
    const LAST: u8 = 77;

    let warnings = Warnings::collect();
    let own = || {
        let own = warnings.of("::ffff:10.0.0.77").into_iter();
        own.map(|line| line.split(' ').next().and_then(|count| count.parse().ok()))
            .map(|count| count.expect("it begins with a number"))
            .collect::<Vec<u64>>()
    };
    let directory = tempfile::tempdir().expect("a directory");
    let begun = Instant::now();
    let server = start(&directory.path().join("devices"));
    let paths = [LAST - 1, LAST].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let mut attempts = 0;
    while own().len() < 2 {
        let [mut a, b] = paths.each_ref().map(|path| Program::open(path));
        a.connect(&b);
        b.connect(&a);
        let remote = RemoteAddress { address: 0, key: 7 };
        a.post(1, Operation::Write(remote), Payload::Inline(&[1; 8]));
        assert_eq!(a.next(), (1, Status::RemoteAccess));
        attempts += 1;
        assert!(
            begun.elapsed() < PATIENCE,
            "{attempts} attempts: {:?}",
            own()
        );
    }
    // The first comes a second after the device was opened.
    assert!(own().len() as u64 <= begun.elapsed().as_secs());
    assert!(attempts > 10 * own().len(), "{attempts} attempts");
    // None is left out.
    let refused = || server.list()[1].refused;
    while refused() < attempts as u64 || own().iter().sum::<u64>() != refused() {
        assert!(
            begun.elapsed() < PATIENCE,
            "{attempts} attempts: {:?}",
            own()
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_server_removes_what_servers_leave_and_no_other_file() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join("devices");
    let server = start(&directory);
    server.create("weft0", device(1)).expect("it is made");
    // As a server that was killed leaves it.
    std::mem::forget(server);
    drop(start(&directory));
    assert!(!directory.exists());
    std::fs::create_dir(&directory).expect("it is ours");
    std::fs::write(directory.join("thesis"), "years").expect("it is ours");
    let ports = PortRange { first: 1, count: 1 };
    let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
    let refused = Server::start(&directory, config, 1, drop).expect_err("it is not for devices");
    assert!(refused.to_string().contains("not of devices"), "{refused}");
    assert!(directory.join("thesis").exists());
}

#[test]
fn a_device_has_so_many_programs_and_its_gid_stays_taken_while_its_engine_goes_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path());
    let path = server.create("weft0", device(1)).expect("it is made");
    let most = Totals::DEFAULT.device.opens as usize;
    let open: Vec<Client> = (0..most)
        .map(|_| Client::open(&path).expect("it opens"))
        .collect();
    let refused = Client::open(&path).expect_err("it is one too many");
    let OpenError::Refused { error, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(error, ErrorNumber::OutOfMemory);
    drop(open);
    let begun = Instant::now();
    while Client::open(&path).is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody has it open");
        std::thread::yield_now();
    }
    server.destroy("weft0").expect("it is there");
    let again = server.create("weft1", device(1));
    let error = again.expect_err("its engine goes on");
    assert!(matches!(error, ServerError::StillOpen), "{error}");
}

#[test]
fn a_device_is_not_limited_to_so_little_that_it_would_stall() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(directory.path());
    let limited = |cap_bps| Device {
        cap_bps: Some(cap_bps),
        ..device(1)
    };
    let refused = server.create("weft0", limited(999_999));
    let error = refused.expect_err("it is too little").to_string();
    assert!(error.contains("at least 1000000"), "{error}");
    let made = server.create("weft0", limited(1_000_000));
    drop(Program::open(&made.expect("it is enough")));
    assert_eq!(server.list()[0].cap_bps, Some(1_000_000));
}

#[test]
fn devices_of_two_tenants_are_not_connected_and_the_attempts_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let open = |name: &str, last: u8, tenant: &str| {
        let device = Device {
            tenant: tenant.into(),
            owner: format!("{tenant}/{name}").into(),
            ..device(last)
        };
        Program::open(&server.create(name, device).expect("it is made"))
    };
    let [a, b] = [open("weft0", 1, "team-a"), open("weft1", 2, "team-b")];
    a.connect(&b);
    b.connect(&a);
    let refused = || {
        let listed = server.list();
        listed.iter().map(|it| it.refused_offers).min()
    };
    let deadline = Instant::now() + PATIENCE;
    while refused() == Some(0) {
        assert!(Instant::now() < deadline, "no offer is refused");
        std::thread::yield_now();
    }
    let mut attempts = BTreeSet::new();
    while attempts.len() < 2 {
        attempts.append(&mut taken(&server));
    }
    let attempt = |from: &str, to: &str| RefusedAttempt {
        kind: AttemptKind::Connection,
        from: from.into(),
        to: to.into(),
    };
    let [of_a, of_b] = ["team-a/weft0", "team-b/weft1"];
    assert_eq!(attempts, [attempt(of_a, of_b), attempt(of_b, of_a)].into());
    let [mut c, mut d] = [open("weft2", 3, "team-a"), open("weft3", 4, "team-a")];
    c.connect(&d);
    d.connect(&c);
    d.receive(1);
    c.send(1);
    assert_eq!([c.next(), d.next()], [(1, Status::Success); 2]);
}

/// A program that has connected to a device and has said nothing yet.
fn connected(device: &Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(device.join("control")).expect("a short path");
    rustix::net::connect(&socket, &address).expect("it listens");
    socket
}

/// Sends a packet to a device's control socket, with a descriptor. Waits until the engine has closed the connection.
fn refused(device: &Path, packet: &[u8], descriptor: &File) {
    let socket = connected(device);
    packet::send(&socket, packet, &[descriptor.as_fd()]).expect("it is sent");
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    while packet::receive(&socket, &mut buffer).is_ok_and(|(answer, _)| !answer.is_empty()) {}
}

/// What a program opens the device with.
fn opening(device: &Path, version: u32) -> Vec<u8> {
    let token = std::fs::read(device.join("token")).expect("it is there");
    let token = token.try_into().expect("it has 32 bytes");
    let request = Request::Open { version, token };
    control::emit(&request, &mut [0; MESSAGE_BYTES_MAX]).to_vec()
}

#[test]
fn calls_for_what_is_not_the_program_s_are_counted_by_device() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let paths = [1, 2].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let [mut a, b] = paths.each_ref().map(|path| Program::open(path));
    let counted = || {
        let listed = server.list();
        [&listed[0], &listed[1]].map(|it| it.refused_calls)
    };
    let until = |expected: [u64; 2]| {
        let begun = Instant::now();
        while counted() != expected {
            assert!(begun.elapsed() < PATIENCE, "{:?}", counted());
            std::thread::yield_now();
        }
    };
    // Another program's: every program has numbers of its own.
    let other = Program::open(&paths[0]);
    let asked = a.client.ask(&Request::DestroyQueuePair(other.number));
    assert_eq!(asked, Err(ErrorNumber::InvalidArgument));
    // A shared receive queue of another protection domain.
    let shared = Program::of(a.client, QueuePairType::ReliableConnected, true);
    let Ok(Answer::Created(domain)) = shared.client.ask(&Request::CreateDomain) else {
        panic!("a domain");
    };
    let wanted = QueuePair {
        domain,
        kind: QueuePairType::ReliableConnected,
        send_completions: 1,
        receive_completions: 1,
        shared_receive_queue: Some(shared.receive_queue),
        sizes: QueueSizes::default(),
    };
    let asked = shared.client.ask(&Request::CreateQueuePair(wanted));
    assert_eq!(asked, Err(ErrorNumber::InvalidArgument));
    until([2, 0]);
    // One that is only wrong is no attempt.
    let wrong = Request::CreateCompletionQueue {
        entries: 0,
        channel: None,
    };
    assert!(shared.client.ask(&wrong).is_err());
    // A work request with memory of another domain.
    a = Program::with(shared.client);
    let memory = [0; 64];
    let region = Region {
        domain,
        address: memory.as_ptr() as u64,
        bytes: 64,
        io_address: 0,
        access: 1,
        file_offset: None,
    };
    let Ok(Answer::Created(local_key)) = a.client.ask(&Request::RegisterRegion(region)) else {
        panic!("a region");
    };
    a.connect(&b);
    b.connect(&a);
    let sge = Sge {
        address: 0,
        bytes: 8,
        local_key,
    };
    a.post(1, Operation::Send, Payload::Sges(&[sge]));
    assert_eq!(a.next(), (1, Status::LocalProtection));
    until([3, 0]);
    server.destroy("weft1").expect("it is there");
    assert_eq!(server.list().len(), 1);
    assert_eq!(server.refused().calls, 3, "also of a device that is gone");
}

#[test]
fn openings_by_a_wrong_token_or_a_foreign_protocol_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let paths = [1, 2].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let how = || File::options().read(true).write(true).to_owned();
    let memory = how().open("/proc/self/mem").expect("it is ours");
    let null = how().open("/dev/null").expect("it is there");
    // Without a device's token they are the node's.
    let request = Request::Open {
        version: VERSION,
        token: [7; 32],
    };
    let wrong_token = control::emit(&request, &mut [0; MESSAGE_BYTES_MAX]).to_vec();
    refused(&paths[0], &wrong_token, &memory);
    refused(&paths[0], &[255; 400], &memory);
    // One that goes away again has tried nothing.
    drop(connected(&paths[0]));
    // With it they are the device's: another version, no memory of a program, and no request afterwards.
    refused(&paths[0], &opening(&paths[0], VERSION + 1), &memory);
    refused(&paths[0], &opening(&paths[0], VERSION), &null);
    let open = Client::open(&paths[1]).expect("it opens");
    packet::send(open.socket(), &[255; 400], &[]).expect("it is sent");
    let counted = || {
        let listed = server.list();
        let calls = [&listed[0], &listed[1]].map(|it| it.refused_calls);
        (calls, server.refused().connections)
    };
    let begun = Instant::now();
    while counted() != ([2, 1], 2) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", counted());
        std::thread::yield_now();
    }
}

#[test]
fn a_hostile_program_s_attempts_are_logged_once_a_second_at_most() {
    const NAME: &str = "a_hostile_program_s_attempts_are_logged_once_a_second_at_most";

    if std::env::var_os(ALONE).is_none() {
        // It counts lines that name no device, and other tests log some at the same time.
        let output = again(NAME, ALONE, "1").output().expect("it runs again");
        let said = [output.stdout, output.stderr].concat();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&said)
        );
        return;
    }
    let warnings = Warnings::collect();
    let logged = |device: &str| {
        let lines = warnings.of(device);
        let first = |line: &String| line.split(' ').next().and_then(|it| it.parse().ok());
        let counts = lines.iter().map(|line| first(line).unwrap_or(0));
        (lines.len() as u64, counts.sum::<u64>())
    };
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let path = server.create("weft0", device(1)).expect("it is made");
    let program = Client::open(&path).expect("it opens");
    let begun = Instant::now();
    let (mut calls, mut connections) = (0, 0);
    while begun.elapsed() < Duration::from_secs(3) {
        for _ in 0..100 {
            let asked = program.ask(&Request::DestroyQueuePair(calls));
            assert_eq!(asked, Err(ErrorNumber::InvalidArgument));
            calls += 1;
        }
        let socket = connected(&path);
        packet::send(&socket, &[255; 400], &[]).expect("it is sent");
        connections += 1;
    }
    let (of_calls, of_connections) = ("::ffff:10.0.0.1", "");
    // None is left out.
    while (logged(of_calls).1, logged(of_connections).1) != (calls.into(), connections) {
        let all = (logged(of_calls), logged(of_connections));
        assert!(
            begun.elapsed() < PATIENCE,
            "{calls}, {connections}: {all:?}"
        );
        std::thread::yield_now();
    }
    assert!(calls > 1000 && connections > 10, "{calls}, {connections}");
    for lines in [logged(of_calls).0, logged(of_connections).0] {
        // The first comes at once.
        let most = begun.elapsed().as_secs() + 1;
        assert!((1..=most).contains(&lines), "{lines} lines");
    }
}

#[test]
fn an_offer_of_an_engine_of_another_version_is_dropped_and_the_log_names_both_versions() {
    // No other test has this device.
    const LAST: u8 = 79;

    let warnings = Warnings::collect();
    let directory = tempfile::tempdir().expect("a directory");
    let (sender, offers) = crossbeam_channel::unbounded();
    let server = start_with(&directory.path().join("devices"), move |offer| {
        let _ = sender.send(offer);
    });
    let [path, peer] = [LAST, LAST - 1].map(|last| {
        let path = server.create(&format!("weft{last}"), device(last));
        path.expect("it is made")
    });
    let program = Program::open(&path);
    let other = Program::open(&peer);
    // To a device of another server, which is this one: its offer is changed on the way.
    other.connect_to(device(1).gid, program.number);
    program.connect_to(device(LAST - 1).gid, other.number);
    let mut offer = offers.recv_timeout(PATIENCE).expect("it is made");
    let ours = u32::from(offer.offer.end.settings.wire_version);
    offer.offer.to.gid = device(LAST).gid;
    offer.offer.end.settings.wire_version += 1;
    let begun = Instant::now();
    let told = || warnings.of("::ffff:10.0.0.79");
    while told().is_empty() || begun.elapsed() < Duration::from_secs(2) {
        assert!(begun.elapsed() < PATIENCE, "nothing is logged");
        let _ = server.receive_offer("node1".into(), offer.clone());
        std::thread::yield_now();
    }
    let both = format!(
        "version {} of the wire format, and this one version {ours}",
        ours + 1
    );
    let lines = told();
    assert!(lines.iter().all(|line| line.contains(&both)), "{lines:?}");
    assert!(lines[0].contains("of node1") && lines[0].contains("same release"));
    assert!(
        lines.len() as u64 <= begun.elapsed().as_secs() + 1,
        "{lines:?}"
    );
}

#[test]
fn a_library_of_another_version_is_refused_and_other_programs_go_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = start(&directory.path().join("devices"));
    let path = server.create("weft0", device(1)).expect("it is made");
    let program = Program::open(&path);
    let token = std::fs::read(path.join("token")).expect("it is there");
    let token = token.try_into().expect("it has 32 bytes");
    for version in [VERSION - 1, VERSION + 1] {
        let socket = connected(&path);
        let memory = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        let memory = memory.expect("it is ours");
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let request = Request::Open { version, token };
        let sent = packet::send(
            &socket,
            control::emit(&request, &mut buffer),
            &[memory.as_fd()],
        );
        sent.expect("it is sent");
        let (answer, passed) = packet::receive(&socket, &mut buffer).expect("it is answered");
        let refused = Ok(Err(ErrorNumber::OtherVersion { engine: VERSION }));
        assert_eq!(control::parse::<Outcome>(answer), refused);
        assert!(passed.is_empty());
        let (end, _) = packet::receive(&socket, &mut buffer).expect("it ends");
        assert!(end.is_empty());
    }
    let made = program.client.ask(&Request::CreateDomain);
    assert!(matches!(made, Ok(Answer::Created(_))), "{made:?}");
    let [mut a, mut b] = [program, Program::open(&path)];
    a.connect(&b);
    b.connect(&a);
    b.receive(1);
    a.send(1);
    assert_eq!([a.next(), b.next()], [(1, Status::Success); 2]);
}

#[test]
fn foreign_packets_end_their_connection_and_a_wrong_token_opens_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path().join("devices");
    let server = start(&directory);
    let path = server.create("weft0", device(1)).expect("it is made");
    let connect = || connected(&path);
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let domain = control::emit(&Request::CreateDomain, &mut buffer).to_vec();
    for packet in [vec![255; 400], vec![0; 4000], domain] {
        let socket = connect();
        packet::send(&socket, &packet, &[]).expect("it is sent");
        let answer = packet::receive(&socket, &mut buffer);
        assert!(answer.is_err() || answer.is_ok_and(|(bytes, _)| bytes.is_empty()));
    }
    // More that connect and say nothing than are kept.
    let silent: Vec<_> = (0..200).map(|_| connect()).collect();
    Program::open(&path);
    drop(silent);
    std::fs::remove_file(path.join("token")).expect("it is ours");
    std::fs::write(path.join("token"), [7; 32]).expect("it is ours");
    let refused = Client::open(&path).expect_err("the token is another");
    let OpenError::Refused { error, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(error, ErrorNumber::AccessDenied);
    let again = server.create("weft0", device(2)).expect_err("there is one");
    assert!(matches!(again, ServerError::Exists { .. }), "{again}");
    let same = server
        .create("weft1", device(1))
        .expect_err("the GID is taken");
    assert!(matches!(same, ServerError::GidInUse { .. }), "{same}");
    for name in ["", "..", "a/b", "a-name-that-is-too-long"] {
        let refused = server.create(name, device(1)).expect_err("no name");
        assert!(matches!(refused, ServerError::Name { .. }), "{refused}");
    }
}

#[test]
fn of_offers_that_come_faster_than_they_are_taken_some_are_refused_and_programs_go_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path().join("devices");
    let (offers, sent) = crossbeam_channel::unbounded();
    // The engine stands still until this gives way.
    let (give_way, gate) = crossbeam_channel::bounded::<()>(0);
    let server = start_with(&directory, move |offer| {
        let _ = offers.send(offer);
        let _ = gate.recv();
    });
    let path = server.create("weft0", device(1)).expect("it is made");
    let program = Program::open(&path);
    let program = std::thread::spawn(move || {
        program.connect_to(device(2).gid, 7);
        program
    });
    let offer = sent.recv().expect("the engine sends its offer");
    let to = QueuePairName {
        gid: device(1).gid,
        ..offer.offer.to
    };
    let offer = TenantOffer {
        offer: Offer { to, ..offer.offer },
        ..offer
    };
    let receive = || server.receive_offer("node1".into(), offer.clone());
    let received = (0..5000).filter(|_| receive().is_ok()).count();
    assert_eq!(received, 4096);
    let refused = receive().expect_err("too many wait").to_string();
    assert!(refused.contains("4096 offers wait"), "{refused}");
    drop(give_way);
    let program = program.join().expect("its calls are answered");
    let made = program.client.ask(&Request::CreateDomain);
    assert!(matches!(made, Ok(Answer::Created(_))), "{made:?}");
    while receive().is_err() {
        std::thread::yield_now();
    }
}
