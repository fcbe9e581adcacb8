//! A program that polls: no thread of the engine moves bytes.

mod start;

use start::{bytes_of, config, engine, options, pattern, source, whole};
use weft_transfer_engine::{
    Operation, Options, Outcome, Progress, SingleWrite, TransferEngine, TransferEngineConfig,
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
    assert!(matches!(write.unwrap().wait(), Outcome::Unconfirmed(_)));
}

#[test]
fn only_an_engine_of_a_program_that_polls_is_polled() {
    let error = engine().poll().unwrap_err();
    assert!(error.to_string().contains("progress"), "{error}");
    let error = TransferEngine::start(TransferEngineConfig {
        progress: Progress::Inline,
        workers_per_nic: 2,
        ..config()
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("workers_per_nic must be 1"), "{error}");
}
