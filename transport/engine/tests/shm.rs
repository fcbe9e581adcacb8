//! The tests of data over shared memory: those of the other files, once more, and what happens when a process ends.
#![expect(
    clippy::duplicate_mod,
    reason = "each of these files has the module `pair` for itself"
)]

#[path = "cancel.rs"]
mod cancel;
#[path = "inline.rs"]
mod inline;
#[path = "operations.rs"]
mod operations;
mod pair;
#[path = "saved.rs"]
mod saved;
#[path = "threads.rs"]
mod threads;
