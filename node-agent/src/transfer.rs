//! One attempt at a job: what its threads read, send, receive, check and write. It never uses the control API's
//! server, which uses it.

pub(crate) mod agent_client;
pub mod attempt;
pub(crate) mod block_reader;
pub(crate) mod block_writer;
pub(crate) mod buffers;
pub(crate) mod destination_blocks;
pub(crate) mod dial;
pub(crate) mod fanout;
pub mod frame;
pub(crate) mod layout;
pub(crate) mod link_probe;
pub(crate) mod local;
pub(crate) mod message;
pub(crate) mod object_receiver;
pub(crate) mod peer;
pub(crate) mod receive_window;
pub(crate) mod receiver;
pub(crate) mod recorder;
pub(crate) mod sender;
pub(crate) mod sender_event;
pub(crate) mod signal;
pub mod state;
