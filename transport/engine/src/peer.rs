//! The NIC at the other end.

use std::sync::Arc;

use weft_link::{AnyPeer, LinkAddress};

/// The NIC at the other end, as the endpoint compares it. What one owner says of an address counts for nobody
/// else's connections.
#[derive(Debug, Clone)]
pub(crate) struct PeerNic {
    pub(crate) owner: Arc<str>,
    pub(crate) address: LinkAddress,
    pub(crate) route: AnyPeer,
}

impl PartialEq for PeerNic {
    fn eq(&self, other: &Self) -> bool {
        self.owner == other.owner && self.address == other.address
    }
}

impl Eq for PeerNic {}
