//! One attempt at a job: what its threads read, send, receive, check and write.

pub(crate) mod arrivals;
pub mod attempt;
pub(crate) mod block_reader;
pub(crate) mod buffers;
pub(crate) mod dial;
pub(crate) mod fanout;
pub(crate) mod layout;
pub(crate) mod local;
pub(crate) mod memory_account;
pub(crate) mod message;
pub(crate) mod object_receiver;
pub(crate) mod peer;
pub(crate) mod placing;
pub(crate) mod receiver;
pub mod record;
pub(crate) mod recorder;
pub(crate) mod sender;
pub(crate) mod signal;
pub(crate) mod staged_blocks;
pub mod state;
