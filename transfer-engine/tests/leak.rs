//! Peers come and go, and nothing of them is left. Alone in its process: it counts what the process has.

mod start;

use std::time::Instant;

use start::{PATIENCE, bytes_of, config, done, options, pattern, source, whole};
use weft_transfer_engine::{LinkChoice, LinkKind, TransferEngine, TransferEngineConfig};

/// Open files and threads of this process.
fn of_process() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"]
        .map(|folder| std::fs::read_dir(folder).expect("procfs").count())
}

#[test]
fn a_thousand_peers_that_come_and_go_leave_nothing() {
    const PEERS: u32 = 1_000;
    let start = |link| {
        TransferEngine::start(TransferEngineConfig {
            ports_per_nic: 1,
            link,
            ..config()
        })
    };
    let hub = start(LinkChoice::Auto).unwrap();
    let (memory, descriptor) = hub.alloc(100).unwrap();
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
    for index in 0..PEERS {
        // To measure takes longer than to connect.
        let peer = match index % 10 {
            0 => start(LinkChoice::Auto),
            1..5 => start(LinkChoice::Only(LinkKind::Tcp)),
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
    }
    until_it_is(&|| hub.counts().unwrap() == before.0, "the engine");
    until_it_is(&|| of_process() == before.1, "the process");
    assert!(bytes_of(&memory) == pattern(100));
}
