//! Objects of a store as a job's source: lists them and reads their bytes.
//!
//! This module knows nothing of transfers: `transfer::object_receiver` hashes, writes and passes on what is read.
//! Requests go to the store that the URL or the Secret names, and never to this node or to its cloud's metadata
//! service. Without credentials they are not signed, so that no node's own cloud identity is ever used.

mod credentials;
mod error;
mod http;
mod listing;
mod locator;
mod store;
mod whole;

pub use error::ObjectError;
pub use http::Access;
pub(crate) use store::{Store, StoreTimeouts, Version};
pub(crate) use whole::WholeReader;
