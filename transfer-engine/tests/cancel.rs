//! Confirmed cancel over real sockets: memory is reused at once, and no late byte lands in it.

mod start;

use start::{PATIENCE, bytes_of, config, done, options, pattern, source, whole};
use std::time::Duration;
use weft_transfer_engine::{
    Cause, Options, Outcome, SingleRead, SingleWrite, TransferEngine, TransferEngineConfig,
};

const BYTES: u64 = 64 << 20;
/// What the owner of the memory writes to it when it may reuse it.
const REUSED: u8 = 0xEE;

fn patient() -> TransferEngine {
    TransferEngine::start(TransferEngineConfig {
        cancel_timeout: PATIENCE,
        ..config()
    })
    .expect("it starts")
}

#[test]
fn a_write_is_cancelled_in_the_middle_and_no_late_byte_lands_in_its_pages() {
    let [a, b] = [patient(), patient()];
    let from = source(&a, vec![1; BYTES as usize]);
    let mut reused = 0;
    for (round, cause) in [Cause::Cancelled, Cause::DeadlinePassed, Cause::Cancelled]
        .into_iter()
        .enumerate()
    {
        let (to, descriptor) = b.alloc(BYTES).unwrap();
        let write = SingleWrite {
            immediate: Some(7),
            ..whole(&from, &descriptor)
        };
        let deadline = match cause {
            Cause::Cancelled => PATIENCE,
            _ => Duration::from_millis(10),
        };
        let operation = a
            .submit_single_write(&write, Options::within(deadline))
            .unwrap();
        let mut first = [0];
        while first != [1] && operation.outcome().is_none() {
            to.read(0, &mut first).unwrap();
        }
        if cause == Cause::Cancelled {
            operation.cancel();
        }
        match operation.wait() {
            Outcome::Reusable(failure) => {
                reused += 1;
                assert_eq!(failure.cause, cause);
                to.write(0, &vec![REUSED; BYTES as usize]).unwrap();
            }
            // A fast machine: all bytes had arrived.
            Outcome::Done => continue,
            other => panic!("{other:?}"),
        }
        // Later writes of the same length push out whatever is left of the first one: it would land by then.
        let (_sink, other) = b.alloc(BYTES).unwrap();
        done(
            &a.submit_single_write(&whole(&from, &other), options())
                .unwrap(),
        );
        assert!(
            bytes_of(&to).iter().all(|byte| *byte == REUSED),
            "round {round}"
        );
        // Its immediate never counts, and the key is good for the next write.
        assert_eq!(b.imm_counter(7).count(), 0);
        let small = SingleWrite { bytes: 10, ..write };
        done(&a.submit_single_write(&small, options()).unwrap());
        done(&b.expect_imm_count(7, 1, options()).unwrap());
        b.free_imm(7);
    }
    assert!(reused > 0, "no write was cancelled in the middle");
}

#[test]
fn a_thousand_operations_are_cancelled_at_once_and_each_ends_once() {
    let [a, b] = [patient(), patient()];
    let from = source(&a, pattern(64 << 10));
    let (here, _) = a.alloc(64 << 10).unwrap();
    let (_there, descriptor) = b.alloc(64 << 10).unwrap();
    let read = SingleRead {
        source: (descriptor.clone(), 0),
        destination: (here, 0),
        bytes: 64 << 10,
    };
    done(&a.connect(b.main_address(), options()).unwrap());
    let begin = |index| match index % 10 {
        0 => a.submit_read(&read, options()).unwrap(),
        _ => a
            .submit_single_write(&whole(&from, &descriptor), options())
            .unwrap(),
    };
    let operations: Vec<_> = (0..1_000).map(begin).collect();
    std::thread::scope(|scope| {
        for some in operations.chunks(250) {
            scope.spawn(|| some.iter().for_each(|operation| operation.cancel()));
        }
    });
    for operation in &operations {
        match operation.wait() {
            Outcome::Done => {}
            Outcome::Reusable(failure) => assert_eq!(failure.cause, Cause::Cancelled),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(a.counts().unwrap().operations, 0);
    done(&begin(1));
}
