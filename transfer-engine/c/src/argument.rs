//! From C's arguments to Rust's. Each error names the argument; a name is made only then.

use std::ffi::{CStr, c_char, c_void};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Duration;

use crate::status::Refusal;

/// What an argument points to.
pub(crate) fn given<T>(argument: Option<T>, name: impl Display) -> Result<T, Refusal> {
    argument.ok_or_else(|| Refusal::invalid(format!("{name} is NULL")))
}

/// Gives the program a handle, which it frees.
pub(crate) fn give<T>(to: &mut MaybeUninit<*mut T>, handle: T) {
    to.write(Box::into_raw(Box::new(handle)));
}

/// Gives the program a handle if it wants one.
pub(crate) fn give_if_wanted<T>(to: Option<&mut MaybeUninit<*mut T>>, handle: T) {
    if let Some(to) = to {
        give(to, handle);
    }
}

/// A string of the program.
pub(crate) fn string<'a>(argument: *const c_char, name: impl Display) -> Result<&'a str, Refusal> {
    if argument.is_null() {
        return Err(Refusal::invalid(format!("{name} is NULL")));
    }
    // SAFETY: a string that ends with 0 (invariant 1), and no caller keeps it beyond the call.
    let bytes = unsafe { CStr::from_ptr(argument) };
    let text = bytes.to_str();
    text.map_err(|error| Refusal::invalid(format!("{name} is not UTF-8: {error}")))
}

/// Copies a string to the program, which has `bytes` bytes for it and for the 0 at its end. What is longer is cut.
pub(crate) fn put_string(to: *mut c_char, bytes: usize, string: &str) -> Result<(), Refusal> {
    if to.is_null() || bytes == 0 {
        return Err(Refusal::invalid("text is NULL or has no bytes".to_owned()));
    }
    let length = string.floor_char_boundary(bytes - 1);
    // SAFETY: an array of `bytes` bytes (invariant 1), which are more than `length`; nothing else has it during the call.
    unsafe {
        to.copy_from_nonoverlapping(string.as_ptr().cast(), length);
        to.add(length).write(0);
    }
    Ok(())
}

/// An array of the program. It may be NULL when it has no elements.
pub(crate) fn array<'a, T>(
    first: *const T,
    count: usize,
    name: impl Display,
) -> Result<&'a [T], Refusal> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(Refusal::invalid(format!("{name} is NULL")));
    }
    if !first.is_aligned() {
        return Err(Refusal::invalid(format!("{name} is not aligned")));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        let problem = format!("{name} has {count} elements: more than memory can hold");
        return Err(Refusal::invalid(problem));
    }
    // SAFETY: an array of this length (invariant 1), and no caller keeps it beyond the call.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Bytes of the program.
pub(crate) fn bytes<'a>(
    first: *const c_void,
    count: u64,
    name: impl Display,
) -> Result<&'a [u8], Refusal> {
    let count = usize::try_from(count);
    let count = count.map_err(|_| Refusal::invalid(format!("{name} has too many bytes")))?;
    array(first.cast(), count, name)
}

/// Memory of the program that it wants to register.
pub(crate) fn memory(first: *mut c_void, bytes: u64) -> Result<(NonNull<u8>, usize), Refusal> {
    let first = given(NonNull::new(first.cast::<u8>()), "memory")?;
    let length = usize::try_from(bytes).ok();
    let ends = |length: &usize| first.addr().get().checked_add(*length).is_some();
    let length = length.filter(|it| *it <= isize::MAX as usize && ends(it));
    let length = length
        .ok_or_else(|| Refusal::invalid(format!("bytes is {bytes}: memory ends before that")))?;
    Ok((first, length))
}

/// A time of a structure, 0 for the default.
pub(crate) fn time_or(microseconds: u64, default: Duration) -> Duration {
    match microseconds {
        0 => default,
        _ => Duration::from_micros(microseconds),
    }
}

/// A value of a structure, 0 for the default.
pub(crate) fn value_or<T: Default + PartialEq>(value: T, default: T) -> T {
    match value == T::default() {
        true => default,
        false => value,
    }
}
