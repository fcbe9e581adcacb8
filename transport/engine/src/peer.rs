//! The NICs at the other end.

use std::sync::Arc;

use weft_core::endpoint::PeerName;
use weft_core::units::PathId;
use weft_link::{AnyPeer, LinkAddress};

/// The NICs at the other end, as the endpoint compares them. What one owner says of an address counts for nobody
/// else's connections.
#[derive(Debug, Clone)]
pub(crate) struct PeerNic {
    pub(crate) owner: Arc<str>,
    /// This end.
    pub(crate) here: LinkAddress,
    pub(crate) address: LinkAddress,
    pub(crate) route: AnyPeer,
}

impl PartialEq for PeerNic {
    fn eq(&self, other: &Self) -> bool {
        self.owner == other.owner && self.address == other.address
    }
}

impl Eq for PeerNic {}

impl PeerName for PeerNic {
    fn nic_pair(&self, path: PathId) -> u8 {
        self.here.nic_pair(&self.address, path)
    }
}
