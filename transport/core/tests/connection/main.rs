//! The connection from outside: two ends over virtual time, packet traces, and what may not be said
//! to it. A fault is one visible line; a drop that a test did not announce fails it.

mod acks;
mod cancel;
mod cancelled_reads;
mod drops;
mod encryption;
mod immediates;
mod loss;
mod operations;
mod order;
mod pair;
mod paths;
mod placements;
mod properties;
mod refusals;
mod reliable;
mod restore;
mod trace;
