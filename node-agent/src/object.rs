//! Objects of a store as a source: what is there, and its bytes.
//!
//! Knows nothing of transfers: it lists, and reads ranges, with patience. What is read is hashed,
//! written and passed on by `fetch`. Requests go to the store that the URL or the Secret
//! names and to nothing on this node; without credentials they are not signed, so that no node's own
//! cloud identity is ever used.

mod credentials;
mod error;
mod http;
mod listing;
mod locator;
mod read;
mod store;

pub use error::ObjectError;
pub use http::Access;
pub(crate) use read::{Reader, Tempo, Whole};
pub(crate) use store::{Store, Version};
