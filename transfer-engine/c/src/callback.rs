//! Calls of the program's functions. An exception of C++ in one of them reaches `catch_unwind`, which aborts the program.

use std::cell::Cell;
use std::ffi::c_void;

use crate::status::Refusal;

/// What a callback gets, and nobody else uses here.
#[derive(Clone, Copy)]
pub(crate) struct UserData(*mut c_void);

// SAFETY: only the program follows the pointer, and it lets the callback thread do so (invariant 2).
unsafe impl Send for UserData {}
// SAFETY: as before.
unsafe impl Sync for UserData {}

impl UserData {
    pub(crate) fn new(pointer: *mut c_void) -> Self {
        Self(pointer)
    }

    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function of the program.
pub(crate) fn call_program(function: impl FnOnce()) {
    IN_CALLBACK.set(true);
    function();
    IN_CALLBACK.set(false);
}

/// Refuses what would wait for the callback thread in that thread.
pub(crate) fn check_not_in_callback(call: &str) -> Result<(), Refusal> {
    match IN_CALLBACK.get() {
        true => Err(Refusal::invalid(format!(
            "{call} was called by a callback, which it may wait for: call it on another thread"
        ))),
        false => Ok(()),
    }
}
