//! Puts Weft's libraries and devices where a program finds them, whatever is in its container.
//!
//! Weft's libraries are mounted over every copy of libibverbs and librdmacm that the container's files have, and files of the
//! devices are laid over `/sys/class`. The container's files may be hostile: a name in them never leads out of them
//! ([`Root`]), and what is mounted is mounted at descriptors, not at names that somebody may change meanwhile.
//!
//! The caller is in the mount namespace that is to see the mounts, and may mount there.

mod libraries;
mod mounts;
mod root;

pub use libraries::{Copy, Environment, NAMES, copies, is_weft, library_of};
pub use mounts::{CLASSES, Description, describe, mount_over};
pub use root::{Found, Root};
