//! What the end that connects says first, over TCP or shared memory: which path this is, whose, and that it may.

use std::net::IpAddr;

use weft_core::units::{Host, PathId};

use crate::address::{LinkAddress, LinkKind, LinkToken};
use crate::ports::PortRange;

/// Bytes of a preamble.
pub(crate) const PREAMBLE_BYTES: usize = 48;

/// What no other protocol begins with, the link's name, and the version of what follows: frames as the link's module `frame`
/// or `ring` has them.
const fn magic(kind: LinkKind) -> [u8; 5] {
    match kind {
        LinkKind::Shm => *b"WSHM\x01",
        LinkKind::Udp | LinkKind::Tcp | LinkKind::Xdp => *b"WEFT\x01",
    }
}

/// The first bytes of a connection, from the end that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Preamble {
    /// Proves that the address of the other end was told.
    pub(crate) token: LinkToken,
    /// The path, in the numbers of the end that made the connection.
    pub(crate) path: PathId,
    /// Where that end is reached, over the same link. A connection over TCP comes from the same IP address.
    pub(crate) from: LinkAddress,
}

impl Preamble {
    /// 0 magic · 5 path · 8 token u64 · 16 address · 32 first port u16 · 34 ports u16 · 40 token u64; all else 0.
    pub(crate) fn emit(&self) -> [u8; PREAMBLE_BYTES] {
        let mut out = [0; PREAMBLE_BYTES];
        let ports = self.from.ports();
        out[..5].copy_from_slice(&magic(self.from.kind()));
        out[5] = self.path.0;
        out[8..16].copy_from_slice(&self.token.0.to_le_bytes());
        out[16..32].copy_from_slice(&self.from.host().0);
        out[32..34].copy_from_slice(&ports.first.to_le_bytes());
        out[34..36].copy_from_slice(&ports.count.to_le_bytes());
        let token = self.from.token().unwrap_or(LinkToken(0));
        out[40..].copy_from_slice(&token.0.to_le_bytes());
        out
    }

    /// `None`: it is none of this link and version.
    pub(crate) fn parse(kind: LinkKind, bytes: &[u8; PREAMBLE_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes[at..].first_chunk();
            word.map(|word| LinkToken(u64::from_le_bytes(*word)))
        };
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..5] != magic(kind) {
            return None;
        }
        let address = IpAddr::from(Host(*bytes[16..].first_chunk()?));
        let ports = PortRange {
            first: short(32),
            count: short(34),
        };
        ports.check().ok()?;
        Some(Self {
            token: word(8)?,
            path: PathId(bytes[5]),
            from: LinkAddress::of(kind, address, ports, word(40)?),
        })
    }
}
