//! A program that polls: no thread of the engine moves bytes.

mod start;

use start::{bytes_of, config, engine, options, pattern, source, whole};
use weft_transfer_engine::{
    LinkChoice, LinkKind, Operation, Options, Outcome, Progress, SingleRead, SingleWrite,
    TransferEngine, TransferEngineConfig,
};

fn inline() -> TransferEngine {
    let progress = Progress::Inline;
    TransferEngine::start(TransferEngineConfig {
        progress,
        ..config()
    })
    .expect("it starts")
}

/// Polls until the operation has ended; its deadline ends it.
fn poll_until_done(engines: &[&TransferEngine], operation: &Operation) {
    while operation.outcome().is_none() {
        for engine in engines {
            engine.poll().expect("the links work");
        }
    }
    assert_eq!(operation.outcome(), Some(Outcome::Done));
}

#[test]
fn a_program_that_polls_both_ends_writes_counts_and_sends() {
    let [a, b] = [inline(), inline()];
    let both = [&a, &b];
    let written = pattern(300_000);
    let from = source(&a, written.clone());
    let (to, descriptor) = b.alloc(300_000).unwrap();
    let counted = b.expect_imm_count(7, 2, options()).unwrap();
    let write = SingleWrite {
        immediate: Some(7),
        ..whole(&from, &descriptor)
    };
    for _ in 0..2 {
        poll_until_done(&both, &a.submit_single_write(&write, options()).unwrap());
    }
    poll_until_done(&both, &counted);
    assert!(bytes_of(&to) == written);
    let (told, messages) = crossbeam_channel::bounded(1);
    let handler = Box::new(move |bytes, _| told.send(bytes).unwrap());
    b.submit_recvs(8, 1, handler).unwrap();
    let send = a.submit_send(b.main_address(), b"a word".to_vec(), None, options());
    poll_until_done(&both, &send.unwrap());
    assert_eq!(
        messages.recv_timeout(start::PATIENCE),
        Ok(b"a word".to_vec())
    );
}

#[test]
fn a_program_that_polls_meets_one_with_threads_and_a_deadline_passes_without_a_poll() {
    let (a, b) = (inline(), engine());
    let from = source(&a, pattern(100));
    let (to, descriptor) = b.alloc(100).unwrap();
    let write = a.submit_single_write(&whole(&from, &descriptor), options());
    poll_until_done(&[&a], &write.unwrap());
    assert!(bytes_of(&to) == pattern(100));
    // Nobody polls: nothing ends it but its deadline.
    let within = std::time::Duration::from_millis(10);
    let write = a.submit_single_write(&whole(&from, &descriptor), Options::within(within));
    let write = write.unwrap();
    while write.outcome().is_none() {
        std::thread::yield_now();
    }
    assert!(matches!(write.outcome(), Some(Outcome::Unconfirmed(_))));
}

#[test]
fn a_program_that_waits_polls_meanwhile() {
    let (a, b) = (inline(), engine());
    let from = source(&a, pattern(100_000));
    let (to, descriptor) = b.alloc(100_000).unwrap();
    let write =
        |deadline| a.submit_single_write(&whole(&from, &descriptor), Options::within(deadline));
    assert_eq!(write(start::PATIENCE).unwrap().wait(), Outcome::Done);
    assert!(bytes_of(&to) == pattern(100_000));
    let write = write(start::PATIENCE).unwrap();
    assert_eq!(write.wait_for(start::PATIENCE), Some(Outcome::Done));
}

#[test]
fn reads_that_wait_are_posted_when_those_before_them_are_cancelled() {
    // Nobody answers before it polls.
    let udp = |progress| {
        TransferEngine::start(TransferEngineConfig {
            progress,
            link: LinkChoice::Only(LinkKind::Udp),
            ..config()
        })
        .expect("it starts")
    };
    let (a, b) = (udp(Progress::Threads), udp(Progress::Inline));
    let (here, _) = a.alloc(64).unwrap();
    let (_there, descriptor) = b.alloc(64).unwrap();
    start::done(&a.connect(b.main_address(), options()).unwrap());
    while a.link(b.main_address()).is_none() {
        std::thread::yield_now();
    }
    let read = || {
        let read = SingleRead {
            source: (descriptor.clone(), 0),
            destination: (here.clone(), 0),
            bytes: 64,
        };
        a.submit_read(&read, options()).unwrap()
    };
    // More than a connection takes at once, then some that wait, all of these cancelled but the last; and then the first.
    let reads: Vec<_> = (0..400).map(|_| read()).collect();
    reads[150..390].iter().for_each(|read| read.cancel());
    reads[..100].iter().for_each(|read| read.cancel());
    for left in reads[100..150].iter().chain(&reads[390..]) {
        poll_until_done(&[&b], left);
    }
}

#[test]
fn only_an_engine_of_a_program_that_polls_is_polled() {
    let error = engine().poll().unwrap_err();
    assert!(error.to_string().contains("progress"), "{error}");
    let error = TransferEngine::start(TransferEngineConfig {
        progress: Progress::Inline,
        workers: 2,
        ..config()
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("workers must be 1"), "{error}");
}
