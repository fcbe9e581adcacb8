//! What the end that connects says first: which path this is, whose, and that it may.

use std::net::IpAddr;

use weft_core::units::{Host, PathId};

use crate::address::{LinkAddress, LinkToken};
use crate::ports::PortRange;

/// Bytes of a preamble.
pub(super) const PREAMBLE_BYTES: usize = 48;

/// What no other protocol begins with.
const MAGIC: [u8; 4] = *b"WEFT";

/// The version of the stream's format: frames as module `frame` has them.
const VERSION: u8 = 1;

/// The first bytes of a connection, from the end that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Preamble {
    /// Proves that the address of the other end was told.
    pub(super) token: LinkToken,
    /// The path, in the numbers of the end that made the connection.
    pub(super) path: PathId,
    /// Where that end is reached. The connection comes from the same IP address.
    pub(super) from: LinkAddress,
}

impl Preamble {
    /// 0 magic · 4 version · 5 path · 8 token u64 · 16 address · 32 first port u16 · 34 ports u16 · 40 token u64; all else 0.
    pub(super) fn emit(&self) -> [u8; PREAMBLE_BYTES] {
        let mut out = [0; PREAMBLE_BYTES];
        let ports = self.from.ports();
        out[..4].copy_from_slice(&MAGIC);
        (out[4], out[5]) = (VERSION, self.path.0);
        out[8..16].copy_from_slice(&self.token.0.to_le_bytes());
        out[16..32].copy_from_slice(&self.from.host().0);
        out[32..34].copy_from_slice(&ports.first.to_le_bytes());
        out[34..36].copy_from_slice(&ports.count.to_le_bytes());
        let token = match self.from {
            LinkAddress::Tcp { token, .. } => token,
            LinkAddress::Udp { .. } => LinkToken(0),
        };
        out[40..].copy_from_slice(&token.0.to_le_bytes());
        out
    }

    /// `None`: it is none of this version.
    pub(super) fn parse(bytes: &[u8; PREAMBLE_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes[at..].first_chunk();
            word.map(|word| LinkToken(u64::from_le_bytes(*word)))
        };
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..4] != MAGIC || bytes[4] != VERSION {
            return None;
        }
        let ports = PortRange {
            first: short(32),
            count: short(34),
        };
        ports.check().ok()?;
        Some(Self {
            token: word(8)?,
            path: PathId(bytes[5]),
            from: LinkAddress::Tcp {
                address: IpAddr::from(Host(*bytes[16..].first_chunk()?)),
                ports,
                token: word(40)?,
            },
        })
    }
}
