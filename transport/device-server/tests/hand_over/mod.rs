//! Servers that end while programs use their devices, and are followed by others that go on with them.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use memmap2::MmapOptions;
use rustix::fs::{MemfdFlags, memfd_create};
use weft_device::work_request::DatagramAddress;
use weft_device_socket::descriptor_store::Stored;

use super::*;

/// A node's server, and the offers that it sends.
struct Node {
    directory: std::path::PathBuf,
    config: EngineConfig,
    server: Server,
    sender: Sender<TenantOffer>,
    offers: Receiver<TenantOffer>,
}

impl Node {
    fn start(directory: &Path) -> Self {
        static NODES: AtomicU16 = AtomicU16::new(0);
        let node = std::process::id() as u16 % 40 * 4 + NODES.fetch_add(1, Ordering::Relaxed);
        let ports = PortRange {
            first: 59_000 + node % 90 * 64,
            count: 16,
        };
        let mut config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
        config.stall_timeout = Nanos::from_secs(2);
        let (sender, offers) = unbounded();
        let server = Server::start(directory, config.clone(), 4, send_to(&sender));
        Self {
            directory: directory.to_owned(),
            config,
            server: server.expect("these ports are free"),
            sender,
            offers,
        }
    }

    fn with(self, between: impl FnOnce(&mut Stored)) -> Result<Self, ServerError> {
        let mut saved = self.server.save().expect("it is saved");
        between(&mut saved);
        let send_offer = send_to(&self.sender);
        // As another process would, which draws its own.
        let mut config = self.config.clone();
        config.node_key = Secret([8; 32]);
        let server = Server::restore(&self.directory, &config, 4, saved, send_offer)?;
        Ok(Self { server, ..self })
    }

    /// Another server goes on.
    fn replace(self) -> Self {
        self.with(|_| {}).expect("it goes on")
    }

    fn take_offers(&self, of: &Node) {
        for offer in of.offers.try_iter() {
            let _ = self.server.receive_offer(Arc::from("the other"), offer);
        }
    }
}

fn send_to(sender: &Sender<TenantOffer>) -> impl Fn(TenantOffer) + Send + Sync + 'static {
    let sender = sender.clone();
    move |offer| {
        let _ = sender.send(offer);
    }
}

/// A write, an atomic, a read, a send and a write with an immediate in turns, from `here` to `there`, whose first word is the
/// atomics'. The last two take a receive each.
fn post(program: &mut Program, wr_id: u64, here: (&[u8], u32), there: (&[u8], u32)) {
    let part = here.0.len() / 4;
    let at = |memory: &[u8], part_of: usize| memory.as_ptr() as u64 + (part_of * part) as u64;
    let sge = |part_of, bytes: usize| Sge {
        address: at(here.0, part_of),
        bytes: bytes as u32,
        local_key: here.1,
    };
    let remote = |part_of| RemoteAddress {
        address: at(there.0, part_of),
        key: there.1,
    };
    let (operation, sge) = match wr_id % 5 {
        0 => (Operation::Write(remote(1)), sge(1, part)),
        1 => {
            let remote = remote(0);
            (Operation::FetchAdd { remote, add: 1 }, sge(0, 8))
        }
        2 => (Operation::Read(remote(2)), sge(2, part)),
        3 => (Operation::Send, sge(3, 0)),
        _ => (Operation::Write(remote(3)), sge(3, part)),
    };
    let immediate = (wr_id % 5 == 4).then_some(wr_id as u32);
    program.post_with(wr_id, operation, immediate, Payload::Sges(&[sge]));
}

#[test]
fn programs_go_on_while_both_servers_are_replaced_again_and_again() {
    const PART: usize = 256 << 10;
    const ROUNDS: u64 = 1200;
    const UNDER_WAY: u64 = 8;

    let directory = tempfile::tempdir().expect("a directory");
    let mut nodes = [1, 2].map(|last| Some(Node::start(&directory.path().join(format!("{last}")))));
    let paths = [0, 1].map(|at| {
        let node: &Node = nodes[at].as_ref().expect("it is there");
        let made = node.server.create("weft0", device(at as u8 + 1));
        made.expect("it is made")
    });
    let [mut a, mut b] = paths.each_ref().map(|path| Program::open(path));
    a.connect(&b);
    b.connect(&a);
    let memory: [Vec<u8>; 2] = [1, 2].map(|byte| {
        let word = vec![0; PART];
        let rest = (0..3 * PART).map(|at| (at % 251) as u8 ^ byte);
        word.into_iter().chain(rest).collect()
    });
    let (key, there) = (a.register(&memory[0]), b.register(&memory[1]));
    (0..16).for_each(|receive| b.receive(receive));
    let (mut posted, mut done, mut received, mut replaced) = (0, 0, 0, 0);
    let mut longest = Duration::ZERO;
    let begun = Instant::now();
    while done < ROUNDS || received < 2 * ROUNDS / 5 {
        assert!(
            begun.elapsed() < PATIENCE,
            "{done} done, {received} received"
        );
        if let [Some(first), Some(second)] = &nodes {
            first.take_offers(second);
            second.take_offers(first);
        }
        while posted < ROUNDS && posted < done + UNDER_WAY {
            post(&mut a, posted, (&memory[0], key), (&memory[1], there));
            posted += 1;
        }
        while let Some(ended) = a.poll() {
            assert_eq!(ended, (done, Status::Success));
            done += 1;
        }
        while let Some(ended) = b.poll() {
            assert_eq!(ended, (received, Status::Success));
            received += 1;
            b.receive(received + 15);
        }
        // At a time when something is under way.
        if replaced < 20 && done > replaced * (ROUNDS / 25) + 10 {
            let at = replaced as usize % 2;
            let paused = Instant::now();
            nodes[at] = nodes[at].take().map(Node::replace);
            longest = longest.max(paused.elapsed());
            replaced += 1;
        }
    }
    assert_eq!(replaced, 20, "all of it came before");
    let word = memory[1][..8].try_into().expect("8 bytes");
    assert_eq!(
        u64::from_ne_bytes(word),
        ROUNDS / 5,
        "an atomic was done twice"
    );
    assert!(
        memory[0][PART..2 * PART] == memory[1][PART..2 * PART],
        "the writes"
    );
    assert!(
        memory[0][2 * PART..3 * PART] == memory[1][2 * PART..3 * PART],
        "the reads"
    );
    assert!(
        memory[0][3 * PART..] == memory[1][3 * PART..],
        "the writes with an immediate"
    );
    println!("the longest pause: {longest:?}");
    let open = nodes.iter().flatten().map(|node| node.server.list());
    let open: Vec<u32> = open.flatten().map(|device| device.contexts).collect();
    assert_eq!(open, [1, 1]);
    drop(nodes);
    let gone = a.client.ask(&Request::CreateDomain);
    assert_eq!(gone, Err(ErrorNumber::EngineGone));
}

/// A device of a node, and the node.
fn one_node(directory: &Path) -> (Node, std::path::PathBuf) {
    let node = Node::start(directory);
    let path = node.server.create("weft0", device(1));
    (node, path.expect("it is made"))
}

#[test]
fn a_program_that_ends_while_there_is_no_server_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (node, path) = one_node(directory.path());
    let (stays, ends) = (Program::open(&path), Program::open(&path));
    let node = node.with(|_| drop(ends)).expect("it goes on");
    let begun = Instant::now();
    while node.server.list()[0].contexts != 1 {
        assert!(begun.elapsed() < PATIENCE, "a context stays");
    }
    assert!(stays.client.ask(&Request::CreateDomain).is_ok());
    // A device that was made before opens for new programs, too.
    Program::open(&path);
}

#[test]
fn a_call_and_a_program_that_come_while_there_is_no_server_wait_for_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (node, path) = one_node(directory.path());
    let program = Program::open(&path);
    let (sender, begins) = unbounded();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let (program, path, sender) = (&program, &path, &sender);
        let node = node.with(|_| {
            threads.push(scope.spawn(move || {
                sender.send(()).expect("it is awaited");
                assert!(program.client.ask(&Request::CreateDomain).is_ok());
            }));
            threads.push(scope.spawn(move || {
                sender.send(()).expect("it is awaited");
                Program::open(path);
            }));
            begins.iter().take(2).for_each(drop);
        });
        let node = node.expect("it goes on");
        for thread in threads {
            thread.join().expect("it has its answer");
        }
        drop(node);
    });
}

#[test]
fn what_cannot_be_taken_over_says_why_and_its_programs_find_that_the_engine_is_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let (node, path) = one_node(directory.path());
    let program = Program::open(&path);
    let failed = node.with(|saved| saved.record[0] += 1).err();
    let said = failed.expect("it is of another version").to_string();
    assert!(said.contains("it is of version 4, this is 3"), "{said}");
    let gone = program.client.ask(&Request::CreateDomain);
    assert_eq!(gone, Err(ErrorNumber::EngineGone));
}

#[test]
fn a_device_whose_programs_cannot_go_on_opens_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (node, path) = one_node(directory.path());
    let program = Program::open(&path);
    // The record of the open device is cut off.
    let node = node.with(|saved| {
        let bytes = saved.record.len() - 10;
        saved.record.truncate(bytes);
    });
    let node = node.expect("the devices go on");
    let gone = program.client.ask(&Request::CreateDomain);
    assert_eq!(gone, Err(ErrorNumber::EngineGone));
    Program::open(&path);
    drop(node);
}

#[test]
fn a_queue_pair_that_waits_for_its_peer_is_joined_by_the_next_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let (node, path) = one_node(directory.path());
    let [mut a, mut b] = [Program::open(&path), Program::open(&path)];
    b.receive(7);
    a.connect(&b);
    a.send(1);
    let node = node.replace();
    b.connect(&a);
    assert_eq!(a.next(), (1, Status::Success));
    assert_eq!(b.next(), (7, Status::Success));
    // And one that was joined there is found again by the next.
    let node = node.replace();
    b.receive(8);
    a.send(2);
    assert_eq!(a.next(), (2, Status::Success));
    assert_eq!(b.next(), (8, Status::Success));
    drop(node);
}

#[test]
fn shared_receives_of_several_entries_in_shared_memory_are_filled_by_the_next_server() {
    const BYTES: usize = 64 << 10;
    const MESSAGE: usize = 48 << 10;

    let directory = tempfile::tempdir().expect("a directory");
    let (mut node, path) = one_node(directory.path());
    let open = || Client::open(&path).expect("it opens");
    let kind = QueuePairType::ReliableConnected;
    let (mut a, mut b) = (Program::with(open()), Program::of(open(), kind, true));
    a.connect(&b);
    b.connect(&a);
    let source: Vec<u8> = (0..MESSAGE).map(|at| (at % 251) as u8).collect();
    let key = a.register(&source);
    let from = Sge {
        address: source.as_ptr() as u64,
        bytes: MESSAGE as u32,
        local_key: key,
    };
    let file = memfd_create("shared", MemfdFlags::CLOEXEC).expect("it is there");
    let file = File::from(file);
    file.set_len(BYTES as u64).expect("it is there");
    let map = MmapOptions::new().map_raw(&file).expect("it is there");
    let address = map.as_ptr().addr() as u64;
    let region = Region {
        domain: b.domain,
        address,
        bytes: BYTES as u64,
        io_address: address,
        access: 0b1111,
        file_offset: Some(0),
    };
    let asked = b
        .client
        .ask_with(&Request::RegisterRegion(region), Some(file.as_fd()));
    let Ok((Answer::Created(key), _)) = asked else {
        panic!("{asked:?}");
    };
    let part = |at: usize, bytes: usize| Sge {
        address: address + at as u64,
        bytes: bytes as u32,
        local_key: key,
    };
    // The second half of the message comes first.
    let parts = [part(MESSAGE / 2, MESSAGE / 2), part(0, MESSAGE / 2)];
    for round in 0..8 {
        b.receive_into(round, &parts);
    }
    for round in 0..8 {
        let windows: Vec<u32> = node.server.list().iter().map(|it| it.windows).collect();
        assert_eq!(windows, [1]);
        if round % 2 == 0 {
            a.post(round, Operation::Send, Payload::Sges(&[from]));
            node = node.replace();
        } else {
            node = node.replace();
            a.post(round, Operation::Send, Payload::Sges(&[from]));
        }
        assert_eq!(b.next(), (round, Status::Success));
        assert_eq!(a.next(), (round, Status::Success));
        let mut got = vec![0; MESSAGE];
        file.read_exact_at(&mut got, 0).expect("it is there");
        assert_eq!(got[..MESSAGE / 2], source[MESSAGE / 2..]);
        assert_eq!(got[MESSAGE / 2..], source[..MESSAGE / 2]);
    }
}

#[test]
fn datagrams_go_on_in_the_next_server() {
    const Q_KEY: u32 = 0x1111;

    let directory = tempfile::tempdir().expect("a directory");
    let (mut node, path) = one_node(directory.path());
    let client = Client::open(&path).expect("it opens");
    let mut program = Program::of(client, QueuePairType::UnreliableDatagram, false);
    for (state, given) in [
        (
            State::Init,
            &[Attributes::PKEY_INDEX, Attributes::PORT, Attributes::QKEY][..],
        ),
        (State::ReadyToReceive, &[]),
        (State::ReadyToSend, &[Attributes::SQ_PSN]),
    ] {
        let attributes = QueuePairAttributes {
            state: state as u32,
            q_key: Q_KEY,
            port: 1,
            ..QueuePairAttributes::default()
        };
        program.modify(given, attributes);
    }
    let made = program.client.ask(&Request::CreateAddressHandle {
        domain: program.domain,
        address: Address {
            gid: program.client.gid(),
            is_global: true,
            port: 1,
            ..Address::default()
        },
    });
    let Ok(Answer::Created(address_handle)) = made else {
        panic!("{made:?}");
    };
    let to = Operation::SendDatagram(DatagramAddress {
        address_handle,
        queue_pair: program.number,
        q_key: Q_KEY,
    });
    let memory = vec![0; 4096];
    let buffer = Sge {
        address: memory.as_ptr() as u64,
        bytes: memory.len() as u32,
        local_key: program.register(&memory),
    };
    for round in 0..3 {
        program.receive_into(100 + round, &[buffer]);
        node = node.replace();
        program.post(round, to, Payload::Inline(b"datagram"));
        let mut done = [program.next(), program.next()];
        done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(
            done,
            [(round, Status::Success), (100 + round, Status::Success)]
        );
    }
    assert_eq!(memory[40..48], *b"datagram");
}

#[test]
fn a_device_that_stands_still_is_left_out_and_the_others_go_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let (node, path) = one_node(directory.path());
    let other = node.server.create("weft1", device(2));
    let other = other.expect("it is made");
    let (sender, reads) = unbounded();
    let mount = tempfile::tempdir().expect("a directory");
    let (mounted, mut held_up, address) = Hanging(sender).map(mount.path());
    let memory = format!("/proc/{}/mem", held_up.id());
    let client = Client::open_for(&path, Path::new(&memory));
    let mut a = Program::with(client.expect("it opens"));
    let [b, mut c, mut d] = [(); 3].map(|()| Program::open(&other));
    a.connect(&b);
    b.connect(&a);
    c.connect(&d);
    d.connect(&c);
    a.write_held_up(1, address);
    let begun = Instant::now();
    while !node.server.list().iter().any(|it| it.is_stalled) {
        assert!(begun.elapsed() < PATIENCE, "it does not stand still");
        std::thread::yield_now();
    }
    let begun = Instant::now();
    let node = node.replace();
    // It is waited for once, for a second.
    let paused = begun.elapsed();
    assert!(paused < Duration::from_secs(2), "{paused:?}");
    let open: Vec<u32> = node.server.list().iter().map(|it| it.contexts).collect();
    assert_eq!(open, [0, 3]);
    d.receive(2);
    c.send(2);
    assert_eq!(d.next(), (2, Status::Success));
    assert_eq!(c.next(), (2, Status::Success));
    drop(reads);
    // Its thread ends when the copy does; nobody has its socket any more.
    let gone = a.client.ask(&Request::CreateDomain);
    assert_eq!(gone, Err(ErrorNumber::EngineGone));
    let events = a.client.take_events().expect("nobody has taken it");
    let mut buffer = [0; 8];
    let (end, _) = packet::receive(&events, &mut buffer).expect("it ends");
    assert!(end.is_empty());
    held_up.kill().expect("it runs");
    held_up.wait().expect("it ends");
    mounted.umount_and_join().expect("it ends");
    drop(node);
}
