//! The TransferEngine for programs in C and C++. `include/weft.h` is made from this crate; its comments are the reference.
//!
//! Each call checks its arguments, makes Rust's of them, and calls `weft-transfer-engine`. No panic leaves a call.
//!
//! # Invariants of `unsafe`
//! 1. *Pointers of the program.* Each pointer that a program passes is NULL or what `weft.h` says: a handle that this
//!    library made and that is not freed, a structure, an array of the given length, a string that ends with 0. Therefore
//!    the calls take references and boxes, for which C passes pointers. A program that breaks this breaks itself, as with
//!    any library in C.
//! 2. *Memory of the program.* Registered memory can be read and written until `weft_dereg_mr` has succeeded, and a flag
//!    until its operation has ended. What `user_data` points to can be used by the callback thread.
//!
//! A call checks first that it is in the process that started the engine: in a forked one nobody would answer, and another
//! thread may have held a lock.
#![deny(clippy::undocumented_unsafe_blocks)]
#![expect(
    unsafe_code,
    reason = "the interface is C's: pointers, strings and callbacks of programs"
)]
#![expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "only C calls these functions, by the rules of weft.h (invariant 1)"
)]

mod argument;
mod callback;
pub mod counter;
pub mod engine;
pub mod memory;
pub mod message;
pub mod names;
pub mod operation;
pub mod status;
mod text;
pub mod watcher;
pub mod write;
