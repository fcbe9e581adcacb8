//! Engines that end in the midst of their work, and are replaced.

mod pair;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use pair::{PATIENCE, Pair, Side, bytes_of, pattern, region, remote, secret, start};
use weft_engine::{
    Access, DomainId, Engine, EngineError, Event, Key, Piece, Post, Progress, ReceiveBuffer,
    Region, SendMessage, SharedReceiveQueue, Source, WriteRequest,
};

const DOMAIN: DomainId = DomainId(1);

/// Ends the engine of a side, and starts the next one with the regions that it had.
fn replace(side: Side, regions: &[(Key, &Arc<Region>)]) -> Side {
    let config = side.engine.config().clone();
    let saved = side.engine.save().expect("an inline engine is saved");
    let engine = Engine::start_as(config, saved.incarnation).expect("the ports are free again");
    for connection in saved.connections {
        let restored = engine.restore(connection, side.sender.clone());
        restored.expect("it goes on");
    }
    for (key, region) in regions {
        engine.register_as(*key, DOMAIN, Access::WRITE, Arc::clone(region));
    }
    Side { engine, ..side }
}

fn turn(pair: &mut Pair) -> bool {
    let poll = |side: &mut Side| side.engine.poll(Duration::ZERO).expect("it polls");
    poll(&mut pair.a) | poll(&mut pair.b)
}

#[test]
fn what_is_under_way_is_done_once_although_both_engines_are_replaced_again_and_again() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(8 << 20, 1);
    let target = region(source.len(), 0);
    let key = pair.b.engine.register(DOMAIN, Arc::clone(&target));
    // More than one connection's window: some are not begun when the engine ends.
    for context in 0..4 {
        let request = WriteRequest {
            key,
            immediate: Some(context as u32),
            context,
            ..pair.a.write(&source)
        };
        pair.a.engine.write(request).expect("it is posted");
    }
    let (mut written, mut delivered) = (Vec::new(), Vec::new());
    let (mut replaced, mut turns) = (0, 0);
    let deadline = Instant::now() + PATIENCE;
    while written.len() < 4 || delivered.len() < 4 {
        assert!(Instant::now() < deadline, "{written:?} {delivered:?}");
        turn(&mut pair);
        turns += 1;
        if turns % 3 == 0 && replaced < 10 {
            replaced += 1;
            let Pair { a, b } = pair;
            let regions = [(key, &target)];
            pair = match replaced % 2 {
                0 => Pair {
                    a: replace(a, &[]),
                    b,
                },
                _ => Pair {
                    a,
                    b: replace(b, &regions),
                },
            };
        }
        for event in pair.a.events.try_iter() {
            match event {
                Event::Written { context, .. } => written.push(context),
                other => panic!("{other:?}"),
            }
        }
        for event in pair.b.events.try_iter() {
            match event {
                Event::Delivered { immediate, .. } => delivered.push(immediate),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(replaced, 10, "all of it came before the engines ended");
    written.sort_unstable();
    delivered.sort_unstable();
    assert_eq!((written, delivered), (vec![0, 1, 2, 3], vec![0, 1, 2, 3]));
    assert!(bytes_of(&target) == source[..], "other bytes arrived");
    let snapshot = pair.a.engine.snapshot();
    assert_eq!(snapshot.connections[0].writes, 0);
}

#[test]
fn work_requests_of_the_next_engine_take_no_place_of_one_that_goes_on() {
    let mut pair = Pair::new(|_| {});
    let source = pattern(1 << 20, 1);
    let target = region(source.len(), 0);
    let key = pair.b.engine.register(DOMAIN, Arc::clone(&target));
    let write = |side: &Side, context| {
        let request = WriteRequest {
            key,
            context,
            ..side.write(&source)
        };
        side.engine.write(request).expect("it is posted");
    };
    let written = |pair: &Pair| {
        let events = pair.a.events.try_iter();
        let context = |event| match event {
            Event::Written { context, .. } => context,
            other => panic!("{other:?}"),
        };
        events.map(context).collect::<Vec<u64>>()
    };
    (0..8).for_each(|context| write(&pair.a, context));
    let mut done = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    // The first ones leave free places before those that go on.
    while done.len() < 3 {
        assert!(Instant::now() < deadline, "{done:?}");
        turn(&mut pair);
        done.extend(written(&pair));
    }
    assert!(done.len() < 8, "all of it came before the engine ended");
    let Pair { a, b } = pair;
    let mut pair = Pair {
        a: replace(a, &[]),
        b,
    };
    (8..24).for_each(|context| write(&pair.a, context));
    while done.len() < 24 {
        assert!(Instant::now() < deadline, "{done:?}");
        turn(&mut pair);
        done.extend(written(&pair));
    }
    done.sort_unstable();
    assert_eq!(done, (0..24).collect::<Vec<u64>>());
}

#[test]
fn a_shared_receive_that_a_send_has_begun_to_fill_is_filled_once() {
    let shared = Arc::new(SharedReceiveQueue::default());
    let (mut a, mut b) = (start(|_| {}), start(|_| {}));
    let [end_a, end_b] =
        [(&a, 1), (&b, 2)].map(|(engine, byte)| engine.allocate_in_order(DOMAIN, secret(byte)));
    let (sender_a, events_a) = unbounded();
    let (sender_b, events_b) = unbounded();
    let connected = a.connect(end_a.id, remote(&end_b, secret(2)), sender_a.clone());
    connected.expect("it connects");
    let connected = b.connect(end_b.id, remote(&end_a, secret(1)), sender_b.clone());
    connected.expect("it connects");

    let bytes = 4 << 20;
    let target = region(bytes, 0);
    let key = b.register(DOMAIN, Arc::clone(&target));
    let post_shared = |token| {
        shared.post(ReceiveBuffer {
            token,
            key,
            offset: 0,
            bytes: bytes as u64,
        });
    };
    post_shared(7);
    b.share_receives(end_b.id, Arc::clone(&shared))
        .expect("it is connected");
    let source = pattern(bytes, 3);
    let send = |engine: &Engine, token| {
        let piece = Piece {
            source: Source::from(Arc::clone(&source)),
            offset: 0,
            bytes: bytes as u64,
        };
        let send = SendMessage {
            token,
            bytes: bytes as u64,
            immediate: None,
        };
        let posted = engine.post(Post {
            connection: end_a.id,
            request: send.into(),
            pieces: vec![piece],
        });
        posted.expect("it is posted");
    };
    send(&a, 1);
    let deadline = Instant::now() + PATIENCE;
    while b.snapshot().stats().bytes_placed == 0 {
        assert!(Instant::now() < deadline, "nothing has come");
        a.poll(Duration::ZERO).expect("it polls");
        b.poll(Duration::ZERO).expect("it polls");
    }
    assert!(
        events_b.is_empty(),
        "all of it came before the engine ended"
    );

    let config = b.config().clone();
    let saved = b.save().expect("an inline engine is saved");
    let shown = format!("{saved:?}");
    assert!(
        shown.contains("state_bytes") && shown.len() < 400,
        "{shown}"
    );
    b = Engine::start_as(config, saved.incarnation).expect("the ports are free again");
    for connection in saved.connections {
        b.restore(connection, sender_b.clone()).expect("it goes on");
    }
    b.share_receives(end_b.id, Arc::clone(&shared))
        .expect("it is connected");
    b.register_as(key, DOMAIN, Access::WRITE, Arc::clone(&target));
    send(&a, 2);
    let run_until = |a: &mut Engine, b: &mut Engine, events: &Receiver<Event>| loop {
        assert!(Instant::now() < deadline, "no event");
        a.poll(Duration::ZERO).expect("it polls");
        b.poll(Duration::ZERO).expect("it polls");
        if let Ok(event) = events.try_recv() {
            return event;
        }
    };
    let event = run_until(&mut a, &mut b, &events_b);
    assert!(
        matches!(event, Event::Received { context: 7, .. }),
        "{event:?}"
    );
    assert!(bytes_of(&target) == source[..], "other bytes arrived");
    // The second send finds no receive until one is posted.
    let event = run_until(&mut a, &mut b, &events_a);
    assert!(
        matches!(event, Event::Completed { context: 1, .. }),
        "{event:?}"
    );
    for _ in 0..200 {
        a.poll(Duration::ZERO).expect("it polls");
        b.poll(Duration::ZERO).expect("it polls");
    }
    assert!(events_b.is_empty(), "a receive was filled twice");
    post_shared(8);
    let event = run_until(&mut a, &mut b, &events_b);
    assert!(
        matches!(event, Event::Received { context: 8, .. }),
        "{event:?}"
    );
}

#[test]
fn a_connection_whose_user_had_too_many_events_to_take_receives_again_when_they_are_taken() {
    // More than the engine lets a user leave untaken.
    const SIGNALS: usize = 70_000;
    let mut pair = Pair::new(|_| {});
    let nothing = pattern(0, 0);
    for immediate in 0..SIGNALS {
        let request = WriteRequest {
            immediate: Some(immediate as u32),
            ..pair.a.write(&nothing)
        };
        pair.a.engine.write(request).expect("it is posted");
    }
    let deadline = Instant::now() + PATIENCE;
    while pair.b.events.len() < 65_536 {
        assert!(Instant::now() < deadline, "{}", pair.b.events.len());
        turn(&mut pair);
    }
    let Pair { a, b } = pair;
    let mut pair = Pair {
        a,
        b: replace(b, &[]),
    };
    let mut taken = 0;
    while taken < SIGNALS {
        assert!(Instant::now() < deadline, "{taken}");
        turn(&mut pair);
        taken += pair.b.events.try_iter().count();
    }
    assert_eq!(taken, SIGNALS);
}

#[test]
fn an_engine_with_threads_is_not_saved() {
    let pair = Pair::new(|config| config.progress = Progress::Threads(1));
    let saved = pair.a.engine.save();
    assert!(matches!(saved, Err(EngineError::NotInline)), "{saved:?}");
}
