//! Operations: their options, their handles and how they end.

use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weft_transfer_engine::{Completion, Failure, Operation, Options, Outcome, Stage};

use crate::argument::{give_if_wanted, given, time_or};
use crate::callback::{UserData, call_program, check_not_in_callback};
use crate::engine::Process;
use crate::status::{Refusal, WeftStatus, call};
use crate::text::text;

/// An operation that was submitted.
pub struct WeftOperation {
    operation: Operation,
    process: Process,
    /// Once the program has asked for it.
    outcome: OnceLock<Texts>,
}

/// How an operation ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "C's names")]
pub enum WeftOutcomeCode {
    /// The bytes of a write or a send are at the other end, or those of a read here; a count is reached; a peer is
    /// connected.
    WEFT_DONE = 1,
    /// It was stopped, and no byte of it lands any more: the memory at both ends may be reused. Some bytes may have landed
    /// before.
    WEFT_REUSABLE = 2,
    /// It was stopped, and the peer has not confirmed that: bytes may still land.
    WEFT_UNCONFIRMED = 3,
    /// It failed. Bytes may still land, unless the stage is WEFT_STAGE_CONNECT or WEFT_STAGE_POST.
    WEFT_FAILED = 4,
}

/// How far an operation was that is not done.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "C's names")]
pub enum WeftStage {
    /// It is done.
    WEFT_STAGE_DONE = 0,
    /// Connecting to the peer. No byte has left.
    WEFT_STAGE_CONNECT = 1,
    /// Posting a work request. No byte has left.
    WEFT_STAGE_POST = 2,
    /// Moving bytes.
    WEFT_STAGE_TRANSFER = 3,
    /// Waiting for a count of immediates.
    WEFT_STAGE_COUNT = 4,
}

/// The end of an operation. The strings are good until the operation is freed, or until the callback returns.
#[repr(C)]
pub struct WeftOutcome {
    /// How it ended.
    pub code: WeftOutcomeCode,
    /// How far it was.
    pub stage: WeftStage,
    /// The name of the peer, as weft_address_name() gives it; NULL when it is done, and for a count.
    pub peer: *const c_char,
    /// The two ends of the connection; NULL when it is done, and before there is one.
    pub path: *const c_char,
    /// A stable name of what ended it, such as "DeadlinePassed", "Cancelled" or "Unreachable"; "Done" when it is done.
    pub reason: *const c_char,
    /// All of this in one line, with a remedy.
    pub text: *const c_char,
}

/// Gets the end of an operation. It may submit operations, and must not wait for one.
pub type WeftCompletionHandler =
    Option<extern "C-unwind" fn(user_data: *mut c_void, outcome: &WeftOutcome)>;

/// How long an operation may take, and who learns of its end.
#[repr(C)]
pub struct WeftOptions {
    /// From the call on. When it passes, the operation is stopped as by weft_operation_cancel(). 0: 30 s.
    pub deadline_us: u64,
    /// Called once, if the call that submits the operation succeeds. It may be called before that call returns.
    pub handler: WeftCompletionHandler,
    /// Passed on to `handler`.
    pub user_data: *mut c_void,
    /// Set to a weft_outcome_code at the end, with release ordering; set it to 0 before, and read it with acquire ordering
    /// (`__atomic_load_n(flag, __ATOMIC_ACQUIRE)`). It must stay until the end. It cannot be combined with `handler`.
    pub flag: *mut u64,
}

/// The strings of an outcome.
struct Texts {
    code: WeftOutcomeCode,
    stage: WeftStage,
    peer: Option<CString>,
    path: Option<CString>,
    reason: CString,
    text: CString,
}

impl Texts {
    fn new(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Done => Self {
                code: WeftOutcomeCode::WEFT_DONE,
                stage: WeftStage::WEFT_STAGE_DONE,
                peer: None,
                path: None,
                reason: c"Done".to_owned(),
                text: c"done".to_owned(),
            },
            Outcome::Reusable(failure) => Self::of(WeftOutcomeCode::WEFT_REUSABLE, failure),
            Outcome::Unconfirmed(failure) => Self::of(WeftOutcomeCode::WEFT_UNCONFIRMED, failure),
            Outcome::Failed(failure) => Self::of(WeftOutcomeCode::WEFT_FAILED, failure),
        }
    }

    fn of(code: WeftOutcomeCode, failure: &Failure) -> Self {
        let stage = match failure.stage {
            Stage::Connect => WeftStage::WEFT_STAGE_CONNECT,
            Stage::Post => WeftStage::WEFT_STAGE_POST,
            Stage::Transfer => WeftStage::WEFT_STAGE_TRANSFER,
            Stage::Count => WeftStage::WEFT_STAGE_COUNT,
        };
        Self {
            code,
            stage,
            peer: failure.peer.as_deref().map(text),
            path: failure.path.as_deref().map(text),
            reason: text(failure.cause.reason()),
            text: text(failure.to_string()),
        }
    }

    fn show(&self) -> WeftOutcome {
        let or_null =
            |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |it| it.as_ptr());
        WeftOutcome {
            code: self.code,
            stage: self.stage,
            peer: or_null(&self.peer),
            path: or_null(&self.path),
            reason: self.reason.as_ptr(),
            text: self.text.as_ptr(),
        }
    }
}

/// A word of the program that tells of the end of an operation.
struct Flag(NonNull<AtomicU64>);

// SAFETY: the word can be used by any thread until it is set (invariant 2), and is used as an atomic only.
unsafe impl Send for Flag {}

impl Flag {
    fn set(self, code: u64) {
        // SAFETY: the program keeps the word until it is set (invariant 2), and `options` has checked its alignment.
        unsafe { self.0.as_ref() }.store(code, Ordering::Release);
    }
}

/// The options of an operation.
pub(crate) fn options(options: Option<&WeftOptions>) -> Result<Options, Refusal> {
    let default = Options::default();
    let Some(options) = options else {
        return Ok(default);
    };
    let flag = NonNull::new(options.flag.cast::<AtomicU64>());
    let completion = match (options.handler, flag) {
        (Some(_), Some(_)) => {
            return Err(Refusal::invalid(
                "options has a handler and a flag: set one of them",
            ));
        }
        (None, Some(flag)) if !flag.is_aligned() => {
            return Err(Refusal::invalid("options.flag is not aligned to 8 bytes"));
        }
        (None, Some(flag)) => {
            let flag = Flag(flag);
            Completion::Store(Box::new(move |code| flag.set(code)))
        }
        (Some(handler), None) => {
            let user_data = UserData::new(options.user_data);
            Completion::Callback(Box::new(move |outcome| {
                let texts = Texts::new(&outcome);
                call_program(|| handler(user_data.get(), &texts.show()));
            }))
        }
        (None, None) => Completion::None,
    };
    Ok(Options {
        deadline: time_or(options.deadline_us, default.deadline),
        completion,
    })
}

/// Gives the program the handle of an operation, if it wants one.
pub(crate) fn give_operation(
    to: Option<&mut MaybeUninit<*mut WeftOperation>>,
    operation: Operation,
) {
    give_if_wanted(
        to,
        WeftOperation {
            operation,
            process: Process::this(),
            outcome: OnceLock::new(),
        },
    );
}

/// Waits until the operation has ended, and writes how to `outcome`, which may be NULL. WEFT_TIMED_OUT when it has not
/// ended in this time: `timeout_us` may be 0, to look only, or WEFT_NO_TIMEOUT, for it ends by its deadline and the cancel
/// timeout. A callback may call this with 0 only.
#[unsafe(no_mangle)]
pub extern "C" fn weft_operation_wait(
    operation: Option<&WeftOperation>,
    timeout_us: u64,
    outcome: Option<&mut MaybeUninit<WeftOutcome>>,
) -> WeftStatus {
    call(|| {
        let handle = given(operation, "operation")?;
        handle.process.check()?;
        let ended = match timeout_us {
            0 => handle.operation.outcome(),
            _ => {
                check_not_in_callback("weft_operation_wait")?;
                handle.operation.wait_for(Duration::from_micros(timeout_us))
            }
        };
        let still = "the operation has not ended: wait longer, or cancel it";
        let ended = ended.ok_or_else(|| Refusal::timed_out(still))?;
        if let Some(to) = outcome {
            let texts = handle.outcome.get_or_init(|| Texts::new(&ended));
            to.write(texts.show());
        }
        Ok(())
    })
}

/// Stops the operation. It then ends within the cancel timeout: as WEFT_REUSABLE when no byte of it lands any more, as
/// WEFT_UNCONFIRMED when the peer does not confirm that in time, or as it would have ended anyway. A send that is under way
/// cannot be stopped: it ends as WEFT_DONE or WEFT_UNCONFIRMED.
#[unsafe(no_mangle)]
pub extern "C" fn weft_operation_cancel(operation: Option<&WeftOperation>) -> WeftStatus {
    call(|| {
        let handle = given(operation, "operation")?;
        handle.process.check()?;
        handle.operation.cancel();
        Ok(())
    })
}

/// Frees the handle. The operation goes on.
#[unsafe(no_mangle)]
pub extern "C" fn weft_operation_free(operation: Option<Box<WeftOperation>>) {
    drop(operation);
}
