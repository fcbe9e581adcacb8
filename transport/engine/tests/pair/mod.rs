//! Two engines over 127.0.0.1 and a connection between them, for both kinds of progress: over UDP, in the test program
//! `tcp` over TCP, and in `shm` over shared memory.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use weft_engine::{
    ConnectionId, DomainId, Engine, EngineConfig, EngineError, Event, LinkAddress, LinkKind,
    LocalEnd, Nanos, PortRange, Progress, Region, RemoteEnd, Secret, WriteRequest,
};

/// Nothing here takes a tenth of this on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One end: an engine, its connection's id, its events.
pub(crate) struct Side {
    pub(crate) engine: Engine,
    pub(crate) id: ConnectionId,
    pub(crate) end: LocalEnd,
    pub(crate) sender: Sender<Event>,
    pub(crate) events: Receiver<Event>,
}

/// Two ends of one connection.
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
}

pub(crate) fn secret(byte: u8) -> Secret {
    Secret([byte; 32])
}

/// Over which link these tests are: those of the test programs `tcp` and `shm` are the other programs' files, once more.
pub(crate) const LINK: LinkKind = match env!("CARGO_CRATE_NAME").as_bytes() {
    b"tcp" => LinkKind::Tcp,
    b"shm" => LinkKind::Shm,
    _ => LinkKind::Udp,
};

/// Whether that link loses nothing unless it says so.
#[allow(dead_code)] // not every test of this folder asks
pub(crate) const IS_RELIABLE: bool = !matches!(LINK, LinkKind::Udp);

/// Every engine of a test process has its own ports; another process's are passed over.
pub(crate) fn start(adapt: impl Fn(&mut EngineConfig)) -> Engine {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..500 {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) + std::process::id();
        let ports = PortRange {
            first: 20_000 + (step % 380) as u16 * 32,
            count: 16,
        };
        let here = Ipv4Addr::LOCALHOST;
        let mut config = EngineConfig::over(LINK, here, ports, secret(9));
        config.progress = Progress::Inline;
        config.stall_timeout = Nanos::from_secs(20);
        adapt(&mut config);
        match Engine::start(config) {
            Ok(engine) => return engine,
            Err(EngineError::Link(error)) if error.reason() == "PortTaken" => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no free ports between 20000 and 32160");
}

/// What `end` must tell its peer, whose packets it will open with `receive_secret`.
pub(crate) fn remote(end: &LocalEnd, receive_secret: Secret) -> RemoteEnd {
    RemoteEnd::new("peer".into(), end, receive_secret)
}

impl Pair {
    /// Engines set up alike, joined in domain 1 of each.
    #[allow(dead_code)] // the tests over TCP join theirs through a proxy
    pub(crate) fn new(adapt: impl Fn(&mut EngineConfig)) -> Self {
        Self::of(start(&adapt), start(&adapt))
    }

    #[allow(dead_code)] // as before
    pub(crate) fn of(a: Engine, b: Engine) -> Self {
        Self::through(a, b, |address| address)
    }

    /// The same where `a` reaches `b` by another address.
    pub(crate) fn through(
        a: Engine,
        b: Engine,
        way: impl FnOnce(LinkAddress) -> LinkAddress,
    ) -> Self {
        let side = |engine: Engine, byte| {
            let end = engine.allocate(DomainId(1), secret(byte));
            let (sender, events) = unbounded();
            Side {
                engine,
                id: end.id,
                end,
                sender,
                events,
            }
        };
        let (a, b) = (side(a, 1), side(b, 2));
        let mut to_b = remote(&b.end, secret(2));
        to_b.address = way(to_b.address);
        a.engine
            .connect(a.id, to_b, a.sender.clone())
            .expect("a connects");
        b.engine
            .connect(b.id, remote(&a.end, secret(1)), b.sender.clone())
            .expect("b connects");
        Self { a, b }
    }
}

impl Side {
    /// A write of all of `source`.
    #[allow(dead_code)] // not every test of this folder writes one piece
    pub(crate) fn write(&self, source: &Arc<Box<[u8]>>) -> WriteRequest {
        WriteRequest {
            connection: self.id,
            source: Arc::clone(source).into(),
            source_offset: 0,
            bytes: source.len() as u64,
            key: weft_engine::SIGNAL,
            offset: 0,
            immediate: None,
            context: 0,
        }
    }
}

/// A region of `bytes` bytes that are all `value`.
#[allow(dead_code)] // not every test of this folder has regions
pub(crate) fn region(bytes: usize, value: u8) -> Arc<Region> {
    Region::share(vec![value; bytes])
}

/// The bytes of a region.
#[allow(dead_code)] // not every test of this folder has regions
pub(crate) fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes).expect("all of it");
    bytes
}

/// Bytes that differ at every place a chunk could be exchanged for another.
pub(crate) fn pattern(bytes: usize, salt: u64) -> Arc<Box<[u8]>> {
    let mut state = salt.wrapping_mul(2).wrapping_add(1);
    let bytes: Vec<u8> = (0..bytes)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    Arc::new(bytes.into())
}
