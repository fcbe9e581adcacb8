//! Strings for the program.

use std::ffi::CString;

/// A text for the program; a 0 within it ends it.
pub(crate) fn text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.truncate(
        bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len()),
    );
    CString::new(bytes).unwrap_or_default()
}
