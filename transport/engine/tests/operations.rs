//! Sends, reads, atomics, pages and pieces between two engines over sockets.

mod pair;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};

use pair::{PATIENCE, Pair, bytes_of, pattern, region};
use weft_engine::{
    Access, AddressSpace, Atomic, AtomicChange, DeviceMemory, DomainId, DropReason, EngineError,
    Event, Failure, Key, Pages, Piece, Post, PostError, Progress, REQUESTS_MAX, Read,
    ReceiveBuffer, Region, SIGNAL, SendMessage, Source, WorkRequest, Write, WritePages,
};

const DOMAIN: DomainId = DomainId(1);

fn threads() -> Pair {
    Pair::new(|config| config.progress = Progress::Threads(1))
}

fn post(pair: &Pair, request: impl Into<WorkRequest>, pieces: Vec<Piece>) {
    let post = Post {
        connection: pair.a.id,
        request: request.into(),
        pieces,
    };
    pair.a.engine.post(post).expect("the work request is taken");
}

/// A's next event but those that `b` brings.
fn next(side: &pair::Side) -> Event {
    let event = side.events.recv_timeout(PATIENCE);
    event.expect("an event comes")
}

fn completed(pair: &Pair) {
    let event = next(&pair.a);
    assert!(
        matches!(event, Event::Completed { context: 77, .. }),
        "{event:?}"
    );
}

/// Three pieces of `bytes` in an order that is not theirs, and what they are together.
fn pieces(bytes: usize) -> (Vec<Piece>, Vec<u8>) {
    let fixed = pattern(bytes, 1);
    let changing = region(bytes, 0x5A);
    let sources: [Source; 2] = [fixed.clone().into(), changing.into()];
    let third = bytes / 3;
    let piece = |source: usize, offset: usize, bytes: usize| Piece {
        source: sources[source].clone(),
        offset: offset as u64,
        bytes: bytes as u64,
    };
    let rest = bytes - 2 * third;
    let pieces = vec![
        piece(0, third, third),
        piece(1, 5, third),
        piece(0, 0, rest),
    ];
    let whole = [&fixed[third..2 * third], &vec![0x5A; third], &fixed[..rest]].concat();
    (pieces, whole)
}

#[test]
fn the_pieces_of_a_write_and_of_a_send_arrive_as_one_message() {
    for bytes in [9, 4_000, 1_000_000] {
        let pair = threads();
        let there = region(bytes, 0);
        let key = pair.b.engine.register(DOMAIN, Arc::clone(&there));
        let (sent, whole) = pieces(bytes);
        let write = Write {
            token: 77,
            bytes: bytes as u64,
            key,
            offset: 0,
            immediate: Some(5),
        };
        post(&pair, write, sent);
        assert!(matches!(
            next(&pair.b),
            Event::Delivered { immediate: 5, .. }
        ));
        completed(&pair);
        assert_eq!(bytes_of(&there), whole);

        let there = region(bytes + 10, 0);
        let key = pair.b.engine.register(DOMAIN, Arc::clone(&there));
        let buffer = ReceiveBuffer {
            token: 8,
            key,
            offset: 3,
            bytes: bytes as u64,
        };
        pair.b.engine.post_receive(pair.b.id, buffer).unwrap();
        let (sent, whole) = pieces(bytes);
        let send = SendMessage {
            token: 77,
            bytes: bytes as u64,
            immediate: None,
        };
        post(&pair, send, sent);
        match next(&pair.b) {
            Event::Received {
                context: 8,
                bytes: received,
                immediate: None,
                ..
            } => assert_eq!(received, bytes as u64),
            other => panic!("{other:?}"),
        }
        completed(&pair);
        assert_eq!(bytes_of(&there)[3..3 + bytes], whole);
    }
}

#[test]
fn reads_and_atomics_bring_what_the_other_end_has() {
    let pair = threads();
    let bytes = pattern(300_000, 3);
    let access = Access::READ.with(Access::ATOMIC);
    let there = Region::share(bytes.to_vec());
    let key = pair
        .b
        .engine
        .register_for(DOMAIN, access, Arc::clone(&there));
    let here = region(300_000, 0);
    let to_key = pair.a.engine.register(DOMAIN, Arc::clone(&here));
    let read = Read {
        token: 77,
        bytes: 250_000,
        key,
        offset: 11,
        to_key,
        to_offset: 400,
    };
    post(&pair, read, Vec::new());
    completed(&pair);
    assert_eq!(bytes_of(&here)[400..250_400], bytes[11..250_011]);
    there.write(64, &40u64.to_le_bytes()).unwrap();
    let add = AtomicChange {
        token: 77,
        atomic: Atomic::FetchAdd { add: 2 },
        key,
        offset: 64,
        to_key,
        to_offset: 8,
    };
    post(&pair, add, Vec::new());
    completed(&pair);
    let word = |region: &Region, at: usize| bytes_of(region)[at..at + 8].to_vec();
    assert_eq!(word(&here, 8), 40u64.to_le_bytes());
    assert_eq!(word(&there, 64), 42u64.to_le_bytes());
    assert!(
        pair.b.events.is_empty(),
        "the other end's user is not asked"
    );
}

#[test]
fn a_region_is_not_read_that_is_open_to_writes_only_or_is_closed_by_now() {
    let pair = threads();
    let to_key = pair.a.engine.register(DOMAIN, region(100, 0));
    let key = pair.b.engine.register(DOMAIN, region(100, 7));
    let read = |key: Key, to_key: Key, bytes| Read {
        token: 0,
        bytes,
        key,
        offset: 0,
        to_key,
        to_offset: 0,
    };
    post(&pair, read(key, to_key, 100), Vec::new());
    match next(&pair.a) {
        Event::Failed { failure, .. } => assert_eq!(failure, Failure::KeyRefused),
        other => panic!("{other:?}"),
    }
    // A read of 64 MiB is under way when the region is closed: both ends are told.
    let bytes = 64 << 20;
    let pair = threads();
    let to_key = pair.a.engine.register(DOMAIN, region(bytes, 0));
    let key = pair
        .b
        .engine
        .register_for(DOMAIN, Access::READ, region(bytes, 7));
    let read = read(key, to_key, bytes as u64);
    post(&pair, read, Vec::new());
    let begun = Instant::now();
    while pair.a.engine.snapshot().connections[0].stats.bytes_placed == 0 {
        assert!(begun.elapsed() < PATIENCE);
    }
    assert!(pair.b.engine.deregister(key).is_some());
    let failure = |side: &pair::Side| match next(side) {
        Event::Failed { failure, .. } => failure,
        other => panic!("{other:?}"),
    };
    assert_eq!(failure(&pair.b), Failure::SourceClosed);
    assert_eq!(failure(&pair.a), Failure::PeerRestarted);
}

#[test]
fn pages_go_where_the_list_says() {
    for bytes in [1_024usize, 4_096, 65_536, 3_001] {
        let pair = threads();
        let there = region(64 * 70_000, 0);
        let key = pair.b.engine.register(DOMAIN, Arc::clone(&there));
        let offsets: Vec<u64> = (0..64).map(|page| (63 - page) * 70_000 + page).collect();
        let source = pattern(64 * bytes, 9);
        let whole = vec![Piece {
            source: source.clone().into(),
            offset: 0,
            bytes: source.len() as u64,
        }];
        let pages = Pages {
            bytes: bytes as u32,
            offsets: Arc::new(offsets.clone()),
        };
        let write = WritePages {
            token: 77,
            key,
            pages,
            immediate: Some(1),
        };
        post(&pair, write, whole);
        assert!(matches!(
            next(&pair.b),
            Event::Delivered { immediate: 1, .. }
        ));
        let there = bytes_of(&there);
        for (page, &offset) in source.chunks(bytes).zip(&offsets) {
            assert_eq!(
                there[offset as usize..][..bytes],
                *page,
                "{bytes} B at {offset}"
            );
        }
    }
}

#[test]
fn work_requests_that_make_no_sense_are_refused_at_once() {
    let pair = threads();
    let piece = Piece {
        source: pattern(10, 1).into(),
        offset: 0,
        bytes: 10,
    };
    let refused = |request: WorkRequest, pieces: Vec<Piece>| {
        let post = Post {
            connection: pair.a.id,
            request,
            pieces,
        };
        pair.a
            .engine
            .post(post)
            .expect_err("it makes no sense")
            .reason()
    };
    let key = Key(1);
    let beyond = Piece {
        offset: 1,
        ..piece.clone()
    };
    let read = Read {
        token: 0,
        bytes: 1,
        key,
        offset: 0,
        to_key: key,
        to_offset: 0,
    };
    let send = |bytes| SendMessage {
        token: 0,
        bytes,
        immediate: None,
    };
    let signal = Write {
        token: 0,
        bytes: 0,
        key: SIGNAL,
        offset: 0,
        immediate: None,
    };
    let pages = |bytes, offsets: Vec<u64>| WritePages {
        token: 0,
        key,
        pages: Pages {
            bytes,
            offsets: Arc::new(offsets),
        },
        immediate: None,
    };
    let one = vec![piece];
    assert_eq!(refused(send(10).into(), vec![beyond]), "BeyondSource");
    assert_eq!(refused(signal.into(), Vec::new()), "EmptyWrite");
    assert_eq!(refused(send(9).into(), one.clone()), "PiecesDiffer");
    assert_eq!(refused(read.into(), one.clone()), "PiecesDiffer");
    assert_eq!(
        refused(pages(5, vec![0]).into(), one.clone()),
        "PiecesDiffer"
    );
    assert_eq!(refused(pages(5, vec![0, u64::MAX]).into(), one), "TooLong");
    assert_eq!(refused(pages(0, vec![0]).into(), Vec::new()), "NoPages");
    // Nobody runs the worker: no answer comes.
    let pair = Pair::new(|_| ());
    let post = Post {
        connection: pair.a.id,
        request: read.into(),
        pieces: Vec::new(),
    };
    let mut posted = (0..=REQUESTS_MAX).map(|_| pair.a.engine.post(post.clone()));
    assert!(
        posted
            .by_ref()
            .take(REQUESTS_MAX)
            .all(|posted| posted.is_ok())
    );
    let last = posted.next().unwrap().expect_err("one too many");
    assert!(matches!(
        last,
        EngineError::Post(PostError::TooManyRequests)
    ));
}

/// This process's memory, as another process's is reached.
fn of_process(address: u64, bytes: usize) -> Arc<Region> {
    let mut how = std::fs::OpenOptions::new();
    let file = how.read(true).write(true).open("/proc/self/mem");
    let space = AddressSpace::new(file.expect("it opens").into()).expect("it is one");
    let range = space.range(address, bytes as u64, address);
    Region::of_process(range.expect("the numbers are small"))
}

#[test]
fn another_process_s_memory_is_sent_and_received() {
    let pair = threads();
    let bytes = 200_000;
    let source: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    let target = vec![0u8; bytes];
    let (from, to) = (source.as_ptr() as u64, target.as_ptr() as u64);
    let key = pair.b.engine.register(DOMAIN, of_process(to, bytes));
    let write = Write {
        token: 1,
        bytes: bytes as u64,
        key,
        offset: to,
        immediate: None,
    };
    let half = bytes as u64 / 2;
    let pieces = [(half, half), (0, half)].map(|(at, bytes)| Piece {
        source: of_process(from + at, bytes as usize).into(),
        offset: from + at,
        bytes,
    });
    post(&pair, write, pieces.into());
    assert!(matches!(next(&pair.a), Event::Completed { context: 1, .. }));
    let (first, second) = source.split_at(bytes / 2);
    assert!(target == [second, first].concat());
}

#[test]
fn memory_that_is_not_mapped_fails_the_connection_and_not_the_engine() {
    let pair = threads();
    let key = pair.b.engine.register(DOMAIN, region(8192, 0));
    let write = Write {
        token: 1,
        bytes: 8192,
        key,
        offset: 0,
        immediate: None,
    };
    let piece = Piece {
        source: of_process(4096, 8192).into(),
        offset: 4096,
        bytes: 8192,
    };
    post(&pair, write, vec![piece]);
    let Event::Failed { failure, .. } = next(&pair.a) else {
        panic!("it is to fail");
    };
    assert_eq!(failure, Failure::SourceUnreadable);
}

/// Where the device has its memory. No process has memory there, so an access to such an address fails.
const DEVICE_BASE: u64 = 1 << 63;

/// A device whose memory is a file that nobody maps, and how many bytes its routines have copied in and out.
#[derive(Debug)]
struct Accelerator {
    file: File,
    written: AtomicU64,
    read: AtomicU64,
}

impl Accelerator {
    fn new(bytes: &[u8]) -> Arc<Self> {
        let file = memfd_create("accelerator", MemfdFlags::CLOEXEC).expect("a file");
        let file = File::from(file);
        file.write_all_at(bytes, 0).expect("it has room");
        Arc::new(Self {
            file,
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
        })
    }

    fn region(self: &Arc<Self>, bytes: u64) -> Arc<Region> {
        let memory: Arc<dyn DeviceMemory> = self.clone();
        Region::of_device(memory, DEVICE_BASE, bytes).expect("the numbers are small")
    }

    fn bytes(&self, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let read = self.file.read_exact_at(&mut out, 0);
        read.expect("it is that long");
        out
    }

    /// Bytes that were copied in, and out, until now.
    fn copied(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.written), of(&self.read))
    }
}

impl DeviceMemory for Accelerator {
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DropReason> {
        let count = bytes.len() as u64;
        self.written.fetch_add(count, Ordering::Relaxed);
        let written = self.file.write_all_at(bytes, address - DEVICE_BASE);
        written.map_err(|_| DropReason::Bounds)
    }

    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), DropReason> {
        let count = out.len() as u64;
        self.read.fetch_add(count, Ordering::Relaxed);
        let read = self.file.read_exact_at(out, address - DEVICE_BASE);
        read.map_err(|_| DropReason::Bounds)
    }
}

#[test]
fn st3_memory_of_devices_is_written_and_read_by_their_own_routines() {
    let bytes = 300_000;
    let source = pattern(bytes, 11);
    let (from, to) = (Accelerator::new(&source), Accelerator::new(&vec![0; bytes]));
    let whole = || {
        vec![Piece {
            source: from.region(bytes as u64).into(),
            offset: 0,
            bytes: bytes as u64,
        }]
    };

    let pair = threads();
    let key = pair.b.engine.register(DOMAIN, to.region(bytes as u64));
    let write = Write {
        token: 77,
        bytes: bytes as u64,
        key,
        offset: 0,
        immediate: None,
    };
    post(&pair, write, whole());
    completed(&pair);
    assert!(to.bytes(bytes) == **source);
    // Each byte once, however its packets came: there is no copy beside the one to its place.
    assert_eq!(to.copied(), (bytes as u64, 0));
    assert!(from.copied().1 >= bytes as u64);

    let back = Accelerator::new(&vec![0; bytes]);
    let to_key = pair.a.engine.register(DOMAIN, back.region(bytes as u64));
    let open = pair
        .b
        .engine
        .register_for(DOMAIN, Access::READ, to.region(bytes as u64));
    let read = Read {
        token: 77,
        bytes: bytes as u64,
        key: open,
        offset: 0,
        to_key,
        to_offset: 0,
    };
    post(&pair, read, Vec::new());
    completed(&pair);
    assert!(back.bytes(bytes) == **source);
    assert_eq!(back.copied(), (bytes as u64, 0));
}

#[test]
fn st3_an_atomic_on_a_device_without_atomics_is_refused_as_a_key_that_opens_nothing() {
    let pair = threads();
    let device = Accelerator::new(&[0; 64]);
    let key = pair
        .b
        .engine
        .register_for(DOMAIN, Access::ALL, device.region(64));
    let add = AtomicChange {
        token: 77,
        atomic: Atomic::FetchAdd { add: 2 },
        key,
        offset: 8,
        to_key: pair.a.engine.register(DOMAIN, region(8, 0)),
        to_offset: 0,
    };
    post(&pair, add, Vec::new());
    match next(&pair.a) {
        Event::Failed { failure, .. } => assert_eq!(failure, Failure::KeyRefused),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.copied(), (0, 0));
}
