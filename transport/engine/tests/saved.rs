//! Engines that end in the midst of their work, and are replaced.

mod pair;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pair::{PATIENCE, Pair, Side, bytes_of, pattern, region};
use weft_engine::{
    Access, DomainId, Engine, EngineError, Event, Key, Progress, Region, WriteRequest,
};

const DOMAIN: DomainId = DomainId(1);

/// Ends the engine of a side, and starts the next one with the regions that it had.
fn replace(side: Side, regions: &[(Key, &Arc<Region>)]) -> Side {
    let config = side.engine.config().clone();
    let saved = side.engine.save().expect("an inline engine is saved");
    let engine = Engine::restore(config, saved, &side.sender).expect("the ports are free again");
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
