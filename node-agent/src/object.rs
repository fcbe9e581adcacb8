//! Objects of a store as a job's source: lists them and reads their bytes.
//!
//! This module knows nothing of transfers: `transfer::object_receiver` hashes, writes and passes on what is read.
//! Requests go to the store that the URL or the Secret names, and never to this node or to its cloud's metadata
//! service. Without credentials they are not signed, unless the administrator lets the job use the agents'
//! identity; a node's own cloud identity is never used.

mod credentials;
mod error;
mod http;
mod identity;
mod listing;
mod locator;
mod network;
mod store;
mod whole;

pub use error::ObjectError;
pub use http::Access;
pub use identity::{AllowedPrefix, WorkloadIdentity};
pub(crate) use network::Network;
pub use network::{Authorities, ProxyUrl};
pub(crate) use store::{Store, StoreSettings, Version};
pub(crate) use whole::WholeReader;
