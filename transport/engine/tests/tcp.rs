//! The tests of data over TCP: those of the other files, once more, and what happens to connections.
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

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pair::{PATIENCE, Pair, Side, bytes_of, pattern, region, start};
use weft_engine::{DomainId, DropReason, EngineConfig, Event, PortRange, Progress, WriteRequest};

const DOMAIN: DomainId = DomainId(1);

/// What stands between two engines and passes on what comes.
struct Proxy {
    port: u16,
    /// Connections that it has taken.
    taken: Arc<AtomicU64>,
}

/// What becomes of a connection.
#[derive(Clone, Copy)]
enum Fault {
    /// Both its ends are closed after so many bytes.
    CutAfter(u64),
    /// A bit of the byte after so many is flipped.
    FlipAfter(u64),
}

impl Proxy {
    /// Before `to`. The first connection that is made meets the fault, the others none.
    fn before(to: SocketAddr, fault: Fault) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it has one").port();
        let taken = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&taken);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.expect("the listener stays");
                let fault = (count.fetch_add(1, Ordering::SeqCst) == 0).then_some(fault);
                let far = TcpStream::connect(to).expect("the engine listens");
                let ends = [(&near, &far, fault), (&far, &near, None)].map(|(from, to, fault)| {
                    let clone = |it: &TcpStream| it.try_clone().expect("descriptors are left");
                    (clone(from), clone(to), fault)
                });
                for (from, to, fault) in ends {
                    std::thread::spawn(move || pump(&from, &to, fault));
                }
            }
        });
        Self { port, taken }
    }
}

/// Passes bytes on until an end is closed.
fn pump(mut from: &TcpStream, mut to: &TcpStream, fault: Option<Fault>) {
    let mut buffer = vec![0; 100_000];
    let mut passed = 0;
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        match fault {
            Some(Fault::CutAfter(limit)) if passed > limit => break,
            Some(Fault::FlipAfter(limit)) if (passed..passed + bytes as u64).contains(&limit) => {
                buffer[(limit - passed) as usize] ^= 4;
            }
            _ => {}
        }
        passed += bytes as u64;
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        // It may be closed by now.
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// Two engines with threads, the second of which is reached through a proxy.
fn behind_proxy(paths: u16, fault: Fault) -> (Pair, Proxy) {
    let adapt = |config: &mut EngineConfig| {
        config.progress = Progress::Threads(1);
        config.paths = paths;
    };
    let (a, b) = (start(adapt), start(adapt));
    let address = b.config().address;
    let proxy = Proxy::before(SocketAddr::new(address.ip(), address.ports().first), fault);
    let ports = PortRange {
        first: proxy.port,
        count: 1,
    };
    (
        Pair::through(a, b, |address| address.with_ports(ports)),
        proxy,
    )
}

fn next(side: &Side) -> Event {
    let event = side.events.recv_timeout(PATIENCE);
    event.expect("an event within the patience")
}

/// Writes 64 MiB from a to b, and compares.
fn write_much(pair: &Pair) {
    let source = pattern(64 << 20, 5);
    let there = region(source.len(), 0);
    let key = pair.b.engine.register(DOMAIN, Arc::clone(&there));
    let request = WriteRequest {
        key,
        immediate: Some(1),
        ..pair.a.write(&source)
    };
    pair.a.engine.write(request).expect("it is open");
    assert!(matches!(next(&pair.b), Event::Delivered { .. }));
    assert!(matches!(next(&pair.a), Event::Written { .. }));
    assert!(bytes_of(&there) == source[..]);
}

#[test]
fn what_a_broken_connection_carried_is_sent_again_and_nothing_else() {
    for paths in [1, 2] {
        let (pair, proxy) = behind_proxy(paths, Fault::CutAfter(3 << 20));
        write_much(&pair);
        let snapshot = pair.a.engine.snapshot();
        let (stats, mut broken) = (snapshot.stats(), snapshot.peers[0].paths.clone());
        broken.retain(|path| path.lost_chunks > 0);
        let lost = broken.iter().map(|path| path.lost_chunks).sum();
        assert_eq!((broken.len(), snapshot.link.broken_paths), (1, 1));
        // Of what was given up for lost some may have arrived: then it is acknowledged by the next connection.
        assert!((1..=lost).contains(&stats.chunks_resent) && lost <= 256);
        assert_eq!(stats.timeouts, 0);
        // The connection is made again.
        let begun = Instant::now();
        while proxy.taken.load(Ordering::SeqCst) <= paths.into() {
            assert!(begun.elapsed() < PATIENCE);
            write_much(&pair);
        }
    }
}

#[test]
fn bytes_that_are_damaged_on_the_way_are_found_and_sent_again() {
    // In a payload, and in a length or a header.
    for at in [5_000_000, 48 + 2] {
        let (pair, _proxy) = behind_proxy(2, Fault::FlipAfter(at));
        write_much(&pair);
        let there = pair.b.engine.snapshot();
        let found = there.drops.get(DropReason::Checksum) + there.drops.get(DropReason::Seal);
        assert!(found + there.link.bad_frames > 0, "{there:?}");
    }
}
