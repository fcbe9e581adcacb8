//! Work that is cancelled over real sockets: once that is confirmed, its place is its owner's again.

mod pair;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pair::{PATIENCE, Pair, Side, bytes_of, pattern, region};
use weft_engine::{
    Access, CancelError, DomainId, EngineConfig, EngineError, Event, Key, Pages, Piece, Post,
    Progress, REQUESTS_MAX, Read, Region, SIGNAL, SendMessage, WorkRequest, WritePages,
    WriteRequest,
};

const DOMAIN: DomainId = DomainId(1);
/// What the owner of the memory writes to it as soon as it may.
const REUSED: u8 = 0xee;
/// Longer than anything that is under way on a loopback: several retransmission timeouts.
const SETTLES: Duration = Duration::from_millis(200);

fn threads(workers: usize) -> impl Fn(&mut EngineConfig) {
    move |config| {
        config.progress = Progress::Threads(workers);
        config.split = workers as u16;
        config.paths = 16;
        // What is to be cancelled is under way for long enough, on a machine that does other things too.
        config.egress.cap_bps = Some(1_000_000_000);
    }
}

fn next(side: &Side) -> Event {
    let event = side.events.recv_timeout(PATIENCE);
    event.expect("an event comes")
}

fn write(side: &Side, source: &Arc<Box<[u8]>>, key: Key, offset: u64, context: u64) {
    let request = WriteRequest {
        key,
        offset,
        context,
        immediate: Some(context as u32),
        ..side.write(source)
    };
    side.engine.write(request).expect("the connection is open");
}

/// The place of a region's bytes is in other use from here on.
fn reuse(region: &Region) {
    let bytes = vec![REUSED; region.len() as usize];
    region.write(0, &bytes).expect("all of it");
}

/// Nothing lands late.
fn stays(region: &Region, byte: u8) {
    let since = Instant::now();
    while since.elapsed() < SETTLES {
        assert!(bytes_of(region).iter().all(|&now| now == byte));
    }
}

fn stays_untouched(region: &Region) {
    stays(region, REUSED);
}

/// Waits until some of what was `sent` lies in the region: its sender is in the midst of it.
fn wait_for_bytes(region: &Region, from: u64) {
    let began = Instant::now();
    let mut byte = [0; 64];
    while byte == [0; 64] {
        assert!(began.elapsed() < PATIENCE, "nothing lands");
        region.read(from, &mut byte).expect("all of it");
        std::thread::yield_now();
    }
}

#[test]
fn no_byte_of_a_write_lands_after_its_cancel_and_its_pages_are_used_again_at_once() {
    const BYTES: usize = 64 << 20;
    for workers in [1, 2] {
        let pair = Pair::new(threads(workers));
        let there = region(BYTES, 0);
        let key = pair.b.engine.register(DOMAIN, Arc::clone(&there));
        let source = pattern(BYTES, 3);
        write(&pair.a, &source, key, 0, 1);
        // In the middle.
        wait_for_bytes(&there, BYTES as u64 / 2);
        pair.a.engine.cancel(pair.a.id, 1).expect("it is under way");
        match next(&pair.a) {
            Event::Cancelled {
                context: 1, pieces, ..
            } => assert_eq!((pieces.len(), pieces[0].bytes), (1, BYTES as u64)),
            other => panic!("{other:?}"),
        }
        reuse(&there);
        stays_untouched(&there);
        assert!(pair.b.events.is_empty(), "its immediate never counts");
        // Nobody holds the source any more; key and connection are as they were.
        assert_eq!(Arc::strong_count(&source), 1);
        let source = pattern(4 << 20, 4);
        write(&pair.a, &source, key, 0, 2);
        assert!(matches!(next(&pair.a), Event::Written { context: 2, .. }));
        assert!(matches!(
            next(&pair.b),
            Event::Delivered { immediate: 2, .. }
        ));
        let bytes = bytes_of(&there);
        assert!(bytes[..4 << 20] == **source);
        assert!(bytes[4 << 20..].iter().all(|&byte| byte == REUSED));
        let again = pair.a.engine.cancel(pair.a.id, 2);
        assert!(matches!(
            again,
            Err(EngineError::Cancel(CancelError::NotUnderWay))
        ));
    }
}

#[test]
fn a_thousand_writes_are_cancelled_by_many_threads_at_once_and_each_has_one_end() {
    const WRITES: u64 = 1_000;
    const BYTES: usize = 64 << 10;
    for workers in [1, 2] {
        let pair = Pair::new(threads(workers));
        let there = region(WRITES as usize * BYTES, 0);
        let key = pair.b.engine.register(DOMAIN, Arc::clone(&there));
        let source = pattern(BYTES, 5);
        // Nothing lands while its owner has the region: each second write is cancelled by then, sent or not.
        pair.b.engine.take(key).expect("it is armed");
        for context in 0..WRITES {
            write(&pair.a, &source, key, context * BYTES as u64, context);
        }
        let cancel = |from: u64| {
            std::thread::scope(|scope| {
                for thread in 0..10 {
                    let a = &pair.a;
                    scope.spawn(move || {
                        for context in (from + 2 * thread..WRITES).step_by(20) {
                            match a.engine.cancel(a.id, context) {
                                Ok(()) | Err(EngineError::Cancel(CancelError::NotUnderWay)) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    });
                }
            });
        };
        cancel(1);
        pair.b.engine.arm(key, Arc::clone(&there));
        wait_for_bytes(&there, 0);
        cancel(0);
        let (mut written, mut cancelled) = (Vec::new(), Vec::new());
        for _ in 0..WRITES {
            match next(&pair.a) {
                Event::Written { context, .. } => written.push(context),
                Event::Cancelled { context, .. } => cancelled.push(context),
                other => panic!("{other:?}"),
            }
        }
        let before = bytes_of(&there);
        reuse(&there);
        let mut all = [&written[..], &cancelled].concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..WRITES), "one end for each");
        let odd = (1..WRITES).step_by(2);
        cancelled.sort_unstable();
        assert!(
            odd.into_iter()
                .all(|context| cancelled.binary_search(&context).is_ok())
        );
        stays_untouched(&there);
        assert!(pair.a.events.is_empty());
        // What was written is there, and its immediate counted; no other one did.
        let mut told: Vec<u64> = pair
            .b
            .events
            .try_iter()
            .map(|event| match event {
                Event::Delivered { immediate, .. } => immediate.into(),
                other => panic!("{other:?}"),
            })
            .collect();
        told.sort_unstable();
        written.sort_unstable();
        assert_eq!(told, written);
        for context in written {
            let at = context as usize * BYTES;
            assert!(before[at..at + BYTES] == **source, "write {context}");
        }
    }
}

fn post(side: &Side, request: impl Into<WorkRequest>, pieces: Vec<Piece>) {
    let post = Post {
        connection: side.id,
        request: request.into(),
        pieces,
    };
    side.engine.post(post).expect("the work request is taken");
}

#[test]
fn pages_and_a_read_are_cancelled_and_a_send_is_not() {
    const BYTES: usize = 32 << 20;
    let pair = Pair::new(threads(1));
    let there = region(2 * BYTES, 0);
    let key = pair
        .b
        .engine
        .register_for(DOMAIN, Access::ALL, Arc::clone(&there));
    let source = pattern(BYTES, 6);
    let pages = Pages {
        bytes: 4_096,
        offsets: Arc::new((0..BYTES as u64 / 4_096).map(|at| at * 8_192).collect()),
    };
    let immediate = Some(7);
    let write = WritePages {
        token: 1,
        key,
        pages,
        immediate,
    };
    let piece = Piece {
        source: source.into(),
        offset: 0,
        bytes: BYTES as u64,
    };
    post(&pair.a, write, vec![piece]);
    wait_for_bytes(&there, BYTES as u64);
    pair.a.engine.cancel(pair.a.id, 1).expect("it is under way");
    assert!(matches!(next(&pair.a), Event::Cancelled { context: 1, .. }));
    reuse(&there);

    let here = region(BYTES, 0);
    let to_key = pair.a.engine.register(DOMAIN, Arc::clone(&here));
    let read = Read {
        token: 2,
        bytes: BYTES as u64,
        key,
        offset: 0,
        to_key,
        to_offset: 0,
    };
    post(&pair.a, read, vec![]);
    wait_for_bytes(&here, 0);
    pair.a.engine.cancel(pair.a.id, 2).expect("it is under way");
    match next(&pair.a) {
        Event::Cancelled {
            context: 2, pieces, ..
        } => assert!(pieces.is_empty()),
        other => panic!("{other:?}"),
    }
    here.write(0, &vec![0; BYTES]).expect("all of it");
    stays(&here, 0);
    stays_untouched(&there);

    let send = SendMessage {
        token: 3,
        bytes: 0,
        immediate: Some(1),
    };
    post(&pair.a, send, vec![]);
    let refused = pair.a.engine.cancel(pair.a.id, 3);
    assert!(matches!(
        refused,
        Err(EngineError::Cancel(CancelError::NotCancellable))
    ));
    assert!(pair.b.events.is_empty());
}

#[test]
fn no_read_is_lost_that_is_posted_while_the_peer_still_answers_cancelled_ones() {
    let mut pair = Pair::new(|_| ());
    let key = pair
        .b
        .engine
        .register_for(DOMAIN, Access::ALL, region(4_096, 0));
    let to_key = pair.a.engine.register(DOMAIN, region(4_096, 0));
    let try_post = |side: &Side, token: u64| {
        let read = Read {
            token,
            bytes: 4_096,
            key,
            offset: 0,
            to_key,
            to_offset: 0,
        };
        side.engine.post(Post {
            connection: side.id,
            request: read.into(),
            pieces: Vec::new(),
        })
    };
    let most = REQUESTS_MAX as u64;
    for token in 0..most {
        try_post(&pair.a, token).expect("so many may be under way");
    }
    let poll = |side: &mut Side| side.engine.poll(Duration::ZERO).expect("the link works");
    // Some of them leave.
    for _ in 0..10 {
        poll(&mut pair.a);
    }
    for token in 0..most {
        let cancelled = pair.a.engine.cancel(pair.a.id, token);
        cancelled.expect("it is under way");
    }
    let began = Instant::now();
    while pair.a.events.len() < REQUESTS_MAX {
        assert!(began.elapsed() < PATIENCE);
        poll(&mut pair.a);
    }
    let are_cancelled = |event: Event| matches!(event, Event::Cancelled { .. });
    assert!(pair.a.events.try_iter().all(are_cancelled));
    let taken = (most..).take_while(|&token| try_post(&pair.a, token).is_ok());
    let taken = taken.count();
    assert!(taken < REQUESTS_MAX, "the peer has yet to answer some");
    while pair.a.events.len() < taken {
        assert!(began.elapsed() < PATIENCE);
        poll(&mut pair.a);
        poll(&mut pair.b);
    }
    let are_complete = |event: Event| matches!(event, Event::Completed { .. });
    assert!(pair.a.events.try_iter().all(are_complete));
}

#[test]
fn an_inline_engine_cancels_what_it_has_not_sent_yet() {
    let mut pair = Pair::new(|_| ());
    let source = pattern(1 << 20, 7);
    for context in [1, 2] {
        // Longer than what a caller sends itself: it waits for the next poll.
        write(&pair.a, &source, SIGNAL, 0, context);
    }
    let there = region(1 << 20, 0);
    let key = pair.b.engine.register(DOMAIN, Arc::clone(&there));
    write(&pair.a, &source, key, 0, 3);
    for context in [1, 2] {
        let cancelled = pair.a.engine.cancel(pair.a.id, context);
        cancelled.expect("it waits to be sent");
    }
    let began = Instant::now();
    let mut ends = Vec::new();
    while ends.len() < 3 {
        assert!(began.elapsed() < PATIENCE);
        for side in [&mut pair.a, &mut pair.b] {
            side.engine.poll(Duration::ZERO).expect("the link works");
        }
        ends.extend(pair.a.events.try_iter());
    }
    assert!(
        matches!(
            ends[..],
            [
                Event::Cancelled { context: 1, .. },
                Event::Cancelled { context: 2, .. },
                Event::Written { context: 3, .. },
            ]
        ),
        "{ends:?}"
    );
    assert!(bytes_of(&there) == **source);
    let stats = pair.a.engine.snapshot().connections[0].stats;
    assert!(
        stats.chunks_sent < 2 * (1 << 20) / (60 << 10),
        "two were never sent"
    );
    let unknown = pair.b.engine.cancel(pair.a.id, 1);
    assert!(matches!(
        unknown,
        Err(EngineError::UnknownConnection { .. })
    ));
}
