//! Paths that take nothing for a while, over each link that loses nothing: one peer that is slow costs the others nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use weft_engine::{
    ConnectionId, DomainId, Engine, EngineConfig, Event, Nanos, Progress, WriteRequest,
};

use crate::pair::{PATIENCE, bytes_of, pattern, region, remote, secret, start};

const DOMAIN: DomainId = DomainId(1);

/// A connection of `a` to `b` that belongs to `owner`, by its id at `a`.
fn join(a: &Engine, b: &Engine, owner: &str, events: &Sender<Event>) -> ConnectionId {
    let (end, its) = (a.allocate(DOMAIN, secret(1)), b.allocate(DOMAIN, secret(2)));
    let (nobody, _) = crossbeam_channel::unbounded();
    b.connect(its.id, remote(&end, secret(1)), nobody)
        .expect("it connects");
    let mut to_b = remote(&its, secret(2));
    to_b.owner = owner.into();
    a.connect(end.id, to_b, events.clone())
        .expect("it connects");
    end.id
}

#[test]
fn connections_to_a_second_owner_learn_that_a_path_takes_nothing_and_send_there_once() {
    let adapt = |config: &mut EngineConfig| {
        config.paths = 1;
        config.stall_timeout = Nanos::from_secs(1);
    };
    let a = start(|config| {
        adapt(config);
        config.progress = Progress::Threads(1);
    });
    let silent = start(adapt);
    let source = pattern(32 << 20, 8);
    let key = silent.register(DOMAIN, region(8, 0));
    let (sender, events) = crossbeam_channel::unbounded();
    let write = |connection, bytes| {
        let request = WriteRequest {
            connection,
            source: Arc::clone(&source).into(),
            source_offset: 0,
            bytes,
            key,
            offset: 0,
            immediate: None,
            context: 0,
        };
        a.write(request).unwrap();
    };
    let fails = |id: ConnectionId| match events.recv_timeout(PATIENCE).unwrap() {
        Event::Failed {
            connection,
            failure,
        } => assert_eq!((connection, failure.reason()), (id, "Stalled")),
        event => panic!("{event:?}"),
    };
    let first = join(&a, &silent, "first", &sender);
    // Once it has answered, more than one packet is under way.
    write(first, 8);
    while events.is_empty() {
        silent.poll(Duration::from_millis(1)).unwrap();
    }
    assert!(matches!(events.recv().unwrap(), Event::Written { .. }));
    // It reads nothing from here on: this fills the path.
    write(first, source.len() as u64);
    fails(first);
    let sent = a.snapshot().stats().chunks_sent;
    let second = join(&a, &silent, "second", &sender);
    write(second, source.len() as u64);
    fails(second);
    assert_eq!(a.snapshot().stats().chunks_sent, sent + 1);
}

#[test]
fn a_peer_that_reads_nothing_holds_up_nobody_else() {
    let a = start(|config| config.progress = Progress::Threads(1));
    let mut others = [start(|_| {}), start(|_| {})];
    let source = pattern(64 << 20, 6);
    let (sender, events) = crossbeam_channel::unbounded();
    let wait = |engine: &mut Engine, wanted: u64| {
        let begun = Instant::now();
        while events.is_empty() {
            assert!(begun.elapsed() < PATIENCE);
            engine.poll(Duration::from_millis(1)).expect("it is inline");
        }
        let event = events.recv().expect("there is one");
        assert!(
            matches!(event, Event::Written { context, .. } if context == wanted),
            "{event:?}"
        );
    };
    let mut large = Vec::new();
    for (context, engine) in (0..).zip(&mut others) {
        let there = region(source.len(), 0);
        let key = engine.register(DOMAIN, Arc::clone(&there));
        let (end, its) = (
            a.allocate(DOMAIN, secret(1)),
            engine.allocate(DOMAIN, secret(2)),
        );
        let (its_sender, _) = crossbeam_channel::unbounded();
        let (to_a, to_it) = (remote(&end, secret(1)), remote(&its, secret(2)));
        engine.connect(its.id, to_a, its_sender).unwrap();
        a.connect(end.id, to_it, sender.clone()).unwrap();
        let write = |bytes| WriteRequest {
            connection: end.id,
            source: Arc::clone(&source).into(),
            source_offset: 0,
            bytes,
            key,
            offset: 0,
            immediate: None,
            context,
        };
        // Once it has answered, more than one packet is under way.
        a.write(write(8)).unwrap();
        wait(engine, context);
        large.push((write(source.len() as u64), there));
    }
    let regions: Vec<_> = large
        .into_iter()
        .map(|(write, there)| {
            a.write(write).unwrap();
            there
        })
        .collect();
    for reads in [1, 0] {
        wait(&mut others[reads], reads as u64);
        assert!(bytes_of(&regions[reads]) == source[..]);
    }
    assert!(a.snapshot().link.blocked > 0);
}
