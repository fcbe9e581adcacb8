//! Counters of immediates.

use std::mem::MaybeUninit;

use weft_transfer_engine::ImmCounter;

use crate::argument::{give, given};
use crate::engine::{WeftEngine, running};
use crate::operation::{WeftOperation, WeftOptions, give_operation, options};
use crate::status::{WeftStatus, call};

/// The counter of an immediate.
pub struct WeftImmCounter(ImmCounter);

/// Ends when the count of an immediate is `count` or more: so many messages with it have arrived, and their bytes are there.
/// The count begins at 0 and grows until weft_free_imm(). The order of the messages does not matter. `options` and
/// `operation` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_expect_imm_count(
    engine: Option<&WeftEngine>,
    immediate: u32,
    count: u64,
    options: Option<&WeftOptions>,
    operation: Option<&mut MaybeUninit<*mut WeftOperation>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let options = self::options(options)?;
        let expected = engine.expect_imm_count(immediate, count, options)?;
        give_operation(operation, expected);
        Ok(())
    })
}

/// Ends the counter of an immediate and writes its count to `count`, which may be NULL: the next message with this immediate
/// is the first one. An operation that expects a higher count then ends by its deadline.
#[unsafe(no_mangle)]
pub extern "C" fn weft_free_imm(
    engine: Option<&WeftEngine>,
    immediate: u32,
    count: Option<&mut MaybeUninit<u64>>,
) -> WeftStatus {
    call(|| {
        let freed = running(engine)?.free_imm(immediate);
        if let Some(to) = count {
            to.write(freed);
        }
        Ok(())
    })
}

/// The counter of an immediate, for a program that polls it. weft_free_imm() ends it: then take a new one.
#[unsafe(no_mangle)]
pub extern "C" fn weft_imm_counter_open(
    engine: Option<&WeftEngine>,
    immediate: u32,
    counter: Option<&mut MaybeUninit<*mut WeftImmCounter>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let to = given(counter, "counter")?;
        give(to, WeftImmCounter(engine.imm_counter(immediate)));
        Ok(())
    })
}

/// The count: messages with the immediate whose bytes are there. It takes no lock. 0 if `counter` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_imm_counter_count(counter: Option<&WeftImmCounter>) -> u64 {
    counter.map_or(0, |counter| counter.0.count())
}

/// Frees the handle. The engine goes on counting.
#[unsafe(no_mangle)]
pub extern "C" fn weft_imm_counter_free(counter: Option<Box<WeftImmCounter>>) {
    drop(counter);
}
