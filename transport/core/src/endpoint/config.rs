//! What an endpoint and its connections are made with.

use crate::congestion::CongestionKind;
use crate::connection::Settings;
use crate::memory::DomainId;
use crate::path::PolicyKind;
use crate::units::{ChunkNumber, ConnectionId, Nanos, PathId};
use crate::wire::{Cipher, Secret};

/// What an endpoint is made with.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// What both ends of every connection share; valid.
    pub settings: Settings,
    /// Who chooses the path of each chunk.
    pub policy: PolicyKind,
    /// Who sets the window.
    pub congestion: CongestionKind,
    /// The floor of the retransmission timeout.
    pub rto_min: Nanos,
    /// A connection with something in flight that hears nothing for this long fails.
    pub stall_timeout: Nanos,
    /// The number of the first chunk in both directions of every connection, the same at both ends: 0, but
    /// in tests of the numbers' wrap.
    pub first_chunk: ChunkNumber,
    /// Whether the caller has made sure that its peers are where they are said to be. If not, one packet of each connection is
    /// under way until the peer has answered (RFC 9000, section 8). The engine says no over TCP, too, whose handshake shows
    /// where a peer is: a packet that comes before the peer's end of the connection is made is lost there.
    pub peers_validated: bool,
    /// Whether the link delivers what it takes, in order on each path, or says that a path has broken
    /// ([`Endpoint::break_path`](super::Endpoint::break_path)). Then only that and the timeout tell of losses.
    pub reliable: bool,
    /// The most that is sent, bits per second with all headers. No limit when absent.
    pub rate_cap_bps: Option<u64>,
    /// What the link adds to each packet, for the rate cap: bytes of the IP and UDP headers, say.
    pub link_header_bytes: u32,
    /// Bytes of packets to which a link adds that once that cuts them as a stream: of a TCP segment. [`u32::MAX`] where each
    /// packet has its own headers and no more.
    pub link_segment_bytes: u32,
    /// Encrypts where both ends require it.
    pub cipher: &'static dyn Cipher,
    /// Of all draws.
    pub seed: u64,
}

impl EndpointConfig {
    /// Bytes that the link adds to packets that were sent together and have `bytes` bytes.
    pub fn link_headers(&self, packets: u64, bytes: u64) -> u64 {
        let segments = bytes.div_ceil(u64::from(self.link_segment_bytes.max(1)));
        segments.max(packets) * u64::from(self.link_header_bytes)
    }
}

/// This end of a connection.
#[derive(Clone, Debug)]
pub struct Local {
    /// Its protection domain.
    pub domain: DomainId,
    /// What the peer seals with.
    pub receive_secret: Secret,
    /// As [`ConnectionConfig::in_order`](crate::connection::ConnectionConfig::in_order).
    pub in_order: bool,
}

/// The caller's name for the NIC of a peer, or for several that packets are sprayed over. The endpoint compares names and hands
/// them back.
pub trait PeerName: Clone + Eq {
    /// A number for the two NICs that a path is between. Paths between the same two have the same number.
    fn nic_pair(&self, _path: PathId) -> u8 {
        0
    }
}

impl PeerName for usize {}

/// The other end of a connection. `P` is the caller's name for the NIC there. Connections to one NIC share its paths.
#[derive(Clone, Debug)]
pub struct Remote<P> {
    /// The NIC.
    pub peer: P,
    /// Tells the lives of the peer's endpoint apart: a new one ends the connections of the old.
    pub generation: u64,
    /// The peer's name for the connection.
    pub id: ConnectionId,
    /// Seals what is sent.
    pub send_secret: Secret,
    /// What a Reset from the peer must carry: one of these, by the NIC of this end that it comes to.
    pub reset_tokens: Box<[u64]>,
}
