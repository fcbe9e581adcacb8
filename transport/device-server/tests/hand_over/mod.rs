//! Servers that end while programs use their devices, and are followed by others that go on with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crossbeam_channel::{Receiver, Sender, unbounded};
use weft_device_server::SavedServer;

use super::*;

/// A node's server, and the offers that it sends.
struct Node {
    directory: std::path::PathBuf,
    config: EngineConfig,
    server: Server,
    sender: Sender<Offer>,
    offers: Receiver<Offer>,
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

    fn with(self, between: impl FnOnce(&mut SavedServer)) -> Result<Self, ServerError> {
        let mut saved = self.server.save().expect("it is saved");
        between(&mut saved);
        let send_offer = send_to(&self.sender);
        // As another process would, which draws its own.
        let mut config = self.config.clone();
        config.node_key = Secret([8; 32]);
        let server = Server::restore(&self.directory, config, 4, saved, send_offer)?;
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

fn send_to(sender: &Sender<Offer>) -> impl Fn(Offer) + Send + Sync + 'static {
    let sender = sender.clone();
    move |offer| {
        let _ = sender.send(offer);
    }
}

/// A write, an atomic, a read and a send in turns, from `here` to `there`, whose first word is the atomics'.
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
    let (operation, sge) = match wr_id % 4 {
        0 => (Operation::Write(remote(1)), sge(1, part)),
        1 => {
            let remote = remote(0);
            (Operation::FetchAdd { remote, add: 1 }, sge(0, 8))
        }
        2 => (Operation::Read(remote(2)), sge(2, part)),
        _ => (Operation::Send, sge(3, 0)),
    };
    program.post(wr_id, operation, Payload::Sges(&[sge]));
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
    while done < ROUNDS || received < ROUNDS / 4 {
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
        ROUNDS / 4,
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
    println!("the longest pause: {longest:?}");
    let open = nodes.iter().flatten().map(|node| node.server.list());
    let open: Vec<u32> = open.flatten().map(|device| device.contexts).collect();
    assert_eq!(open, [1, 1]);
    drop(nodes);
    let gone = a.client.ask(&Request::CreateDomain);
    assert_eq!(gone, Err(ErrorNumber::EngineGone));
}
