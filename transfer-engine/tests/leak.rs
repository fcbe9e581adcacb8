//! Peers come and go, and nothing of them is left. Alone in its process: it counts what the process has.

mod start;

use std::time::Instant;

use start::{PATIENCE, bytes_of, config, done, options, pattern, source, whole};
use weft_transfer_engine::{LinkChoice, LinkKind, TransferEngine, TransferEngineConfig};

/// Bytes of memory that is no file's.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let mut lines = status.lines();
    let found = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let found = found.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    found.expect("the kernel says it") << 10
}

/// Open files and threads of this process.
fn of_process() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"]
        .map(|folder| std::fs::read_dir(folder).expect("procfs").count())
}

/// Peers until pools and tables are as large as they become.
const WARM_UP: u32 = 200;
/// What peers may leave: pages that the allocator keeps for threads, 1.4 MB once and nothing after 3,000 peers. A connection
/// takes several kilobytes.
const BYTES_MAX: u64 = 2 << 20;
const BYTES_PER_PEER_MAX: u64 = 256;

/// `WEFT_TEST_PEERS` says how many they are: 10,000 take some minutes.
#[test]
fn a_thousand_peers_that_come_and_go_leave_nothing() {
    let peers = std::env::var("WEFT_TEST_PEERS").map_or(Ok(1_000), |peers| peers.parse::<u32>());
    let peers = peers.expect("WEFT_TEST_PEERS is a number");
    assert!(peers > WARM_UP, "WEFT_TEST_PEERS is more than {WARM_UP}");
    let mut memory = 0;
    let start = |link| {
        TransferEngine::start(TransferEngineConfig {
            port_count: 1,
            link,
            ..config()
        })
    };
    let hub = start(LinkChoice::Auto).unwrap();
    let (region, descriptor) = hub.alloc(100).unwrap();
    let until_it_is = |expected: &dyn Fn() -> bool, what: &str| {
        let begun = Instant::now();
        while !expected() {
            assert!(
                begun.elapsed() < PATIENCE,
                "{what}: {:?}, {:?}",
                hub.counts().unwrap(),
                of_process()
            );
            std::thread::yield_now();
        }
    };
    let before = (hub.counts().unwrap(), of_process());
    for index in 0..peers {
        // To measure takes longer than to connect.
        let peer = match index % 10 {
            0 => start(LinkChoice::Auto),
            1 => start(LinkChoice::Network),
            2..5 => start(LinkChoice::Only(LinkKind::Tcp)),
            _ => start(LinkChoice::Only(LinkKind::Udp)),
        };
        let peer = peer.unwrap();
        let from = source(&peer, pattern(100));
        done(
            &peer
                .submit_single_write(&whole(&from, &descriptor), options())
                .unwrap(),
        );
        done(&hub.connect(peer.main_address(), options()).unwrap());
        match index % 2 {
            0 => hub.remove_peer(peer.main_address()),
            _ => drop(peer),
        }
        if index == WARM_UP {
            memory = anonymous_bytes();
        }
    }
    until_it_is(&|| hub.counts().unwrap() == before.0, "the engine");
    until_it_is(&|| of_process() == before.1, "the process");
    assert!(bytes_of(&region) == pattern(100));
    let grown = anonymous_bytes().saturating_sub(memory);
    let allowed = BYTES_MAX + u64::from(peers - WARM_UP) * BYTES_PER_PEER_MAX;
    assert!(
        grown <= allowed,
        "{grown} B more than after {WARM_UP} peers"
    );
    println!("{peers} peers, {grown} B more than after {WARM_UP}");
}
