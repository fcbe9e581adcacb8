//! How calls fail.

use std::ffi::c_int;

/// Sets `errno`; gives what a call that fails returns.
pub(crate) fn fail(number: c_int) -> c_int {
    // SAFETY: it is this thread's.
    unsafe { *libc::__errno_location() = number };
    -1
}

/// As [`fail`], with the number of an error.
pub(crate) fn fail_with(error: &std::io::Error) -> c_int {
    fail(error.raw_os_error().unwrap_or(libc::EIO))
}
