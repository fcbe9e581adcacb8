//! What each call answers.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use weft_cuda::CudaError;
use weft_transfer_engine::TransferError;

use crate::text::text;

/// What a call answers: 0, or less than 0 when it failed.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "C's names")]
pub enum WeftStatus {
    /// It succeeded.
    WEFT_OK = 0,
    /// An argument or a setting cannot be used.
    WEFT_INVALID = -1,
    /// Bytes do not lie in their region.
    WEFT_OUT_OF_BOUNDS = -2,
    /// The memory is not registered with this engine, or no longer.
    WEFT_NOT_REGISTERED = -3,
    /// The region is registered for other uses.
    WEFT_ACCESS_DENIED = -4,
    /// The operating system refused a call.
    WEFT_SYSTEM = -5,
    /// A NIC did not start.
    WEFT_NIC = -6,
    /// The process was forked after the engine was started.
    WEFT_FORKED = -7,
    /// The time to wait is over.
    WEFT_TIMED_OUT = -8,
    /// A bug of the library.
    WEFT_INTERNAL = -9,
    /// The engine is closed, or is being closed.
    WEFT_CLOSED = -10,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: WeftStatus,
    pub(crate) text: String,
}

impl Refusal {
    /// `text` names the argument and says what to do.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self {
            status: WeftStatus::WEFT_INVALID,
            text: text.into(),
        }
    }

    pub(crate) fn out_of_bounds(text: String) -> Self {
        Self {
            status: WeftStatus::WEFT_OUT_OF_BOUNDS,
            text,
        }
    }

    pub(crate) fn timed_out(text: &str) -> Self {
        Self {
            status: WeftStatus::WEFT_TIMED_OUT,
            text: text.to_owned(),
        }
    }
}

impl From<TransferError> for Refusal {
    fn from(error: TransferError) -> Self {
        let status = match error {
            TransferError::Invalid { .. }
            | TransferError::Nics(_)
            | TransferError::UnevenWorkers { .. } => WeftStatus::WEFT_INVALID,
            TransferError::Link(_) => WeftStatus::WEFT_NIC,
            TransferError::System { .. }
            | TransferError::Listen { .. }
            | TransferError::Memfd(_) => WeftStatus::WEFT_SYSTEM,
            TransferError::OutOfBounds { .. } => WeftStatus::WEFT_OUT_OF_BOUNDS,
            TransferError::NotRegistered { .. } => WeftStatus::WEFT_NOT_REGISTERED,
            TransferError::AccessDenied { .. } => WeftStatus::WEFT_ACCESS_DENIED,
            TransferError::Forked { .. } => WeftStatus::WEFT_FORKED,
            TransferError::Closed => WeftStatus::WEFT_CLOSED,
            _ => WeftStatus::WEFT_INTERNAL,
        };
        Self {
            status,
            text: error.to_string(),
        }
    }
}

impl From<CudaError> for Refusal {
    fn from(error: CudaError) -> Self {
        let status = match error {
            CudaError::NotAllocated { .. } => WeftStatus::WEFT_INVALID,
            _ => WeftStatus::WEFT_SYSTEM,
        };
        Self {
            status,
            text: error.to_string(),
        }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Carries out a call, and keeps its error for [`weft_last_error`].
pub(crate) fn call(body: impl FnOnce() -> Result<(), Refusal>) -> WeftStatus {
    // What the body was changing is not used any more, or is behind a lock that survives a panic.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(Refusal {
            status: WeftStatus::WEFT_INTERNAL,
            text: "a bug of Weft: the call panicked, see stderr; report it".to_owned(),
        })
    });
    let Err(refusal) = result else {
        return WeftStatus::WEFT_OK;
    };
    LAST_ERROR.with_borrow_mut(|last| *last = text(refusal.text));
    refusal.status
}

/// Says why the last call of this thread that failed has failed: one line that names the argument and the remedy. It is
/// empty before the first failure. The string is good until the next failure on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn weft_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|last| last.as_ptr())
}

const NAMES: [(WeftStatus, &CStr); 11] = [
    (WeftStatus::WEFT_OK, c"WEFT_OK"),
    (WeftStatus::WEFT_INVALID, c"WEFT_INVALID"),
    (WeftStatus::WEFT_OUT_OF_BOUNDS, c"WEFT_OUT_OF_BOUNDS"),
    (WeftStatus::WEFT_NOT_REGISTERED, c"WEFT_NOT_REGISTERED"),
    (WeftStatus::WEFT_ACCESS_DENIED, c"WEFT_ACCESS_DENIED"),
    (WeftStatus::WEFT_SYSTEM, c"WEFT_SYSTEM"),
    (WeftStatus::WEFT_NIC, c"WEFT_NIC"),
    (WeftStatus::WEFT_FORKED, c"WEFT_FORKED"),
    (WeftStatus::WEFT_TIMED_OUT, c"WEFT_TIMED_OUT"),
    (WeftStatus::WEFT_INTERNAL, c"WEFT_INTERNAL"),
    (WeftStatus::WEFT_CLOSED, c"WEFT_CLOSED"),
];

/// The name of a status, such as "WEFT_OUT_OF_BOUNDS". `status` is a weft_status.
#[unsafe(no_mangle)]
pub extern "C" fn weft_status_name(status: i32) -> *const c_char {
    let found = NAMES.iter().find(|(each, _)| *each as i32 == status);
    found
        .map_or(c"(no status of Weft)", |(_, name)| name)
        .as_ptr()
}
