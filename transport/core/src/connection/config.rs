//! What a connection is set up with.

use super::keys::{Keys, SavedKeys};
use crate::congestion::{CongestionKind, CreditLimits, Limits};
use crate::memory::DomainId;
use crate::path::{PATHS_MAX, PolicyKind};
use crate::recovery::WINDOW_MAX;
use crate::units::{ChunkNumber, ConnectionId, Nanos};
use crate::wire::{CHUNK_PACKETS_MAX, Cipher, Integrity, OVERHEAD_BYTES, Secret, VERSION};
use core::fmt::Display;
use serde::{Deserialize, Serialize};

/// One UDP datagram's payload at most (65,535 − 20 B IPv4 − 8 B UDP).
const PACKET_BYTES_MAX: u32 = 65_507;

/// A chunk's payload is 64 KiB at most. A link may allow less.
const CHUNK_BYTES_MAX: u32 = 65_536 + (CHUNK_PACKETS_MAX * OVERHEAD_BYTES) as u32;

/// What both ends must agree on; [`Settings::difference`] names what they do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Paths between the two NICs, 1..=256.
    pub paths: u16,
    /// Payload bytes of a full packet.
    pub packet_payload: u16,
    /// Bytes of a full chunk on the wire, at most 69,632.
    pub chunk_bytes: u32,
    /// Chunks outstanding at most, 1..=960.
    pub window_chunks: u16,
    /// The packets' format: [`VERSION`] and no other.
    pub wire_version: u8,
    /// What protects the packets.
    pub integrity: Integrity,
}

/// A setting outside of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingsError {
    /// Paths.
    #[error("paths is {0}: it must be 1 to {PATHS_MAX}")]
    Paths(u16),
    /// Packet payload.
    #[error("packet_payload is {0} bytes: it must be 1 to 65443")]
    PacketPayload(u16),
    /// Chunk size.
    #[error("chunk_bytes is {0}: a chunk must hold one packet and at most 69632 bytes")]
    ChunkBytes(u32),
    /// Window.
    #[error("window_chunks is {0}: it must be 1 to {WINDOW_MAX}")]
    WindowChunks(u16),
    /// Wire version.
    #[error(
        "wire_version is {0}: this program speaks {VERSION}; run the same version at both ends"
    )]
    WireVersion(u8),
}

impl Settings {
    /// Checks every field's range.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.paths == 0 || self.paths > PATHS_MAX {
            return Err(SettingsError::Paths(self.paths));
        }
        if self.packet_payload == 0 || self.packet_bytes() > PACKET_BYTES_MAX {
            return Err(SettingsError::PacketPayload(self.packet_payload));
        }
        if self.chunk_bytes < self.packet_bytes() || self.chunk_bytes > CHUNK_BYTES_MAX {
            return Err(SettingsError::ChunkBytes(self.chunk_bytes));
        }
        if self.window_chunks == 0 || self.window_chunks > WINDOW_MAX {
            return Err(SettingsError::WindowChunks(self.window_chunks));
        }
        if self.wire_version != VERSION {
            return Err(SettingsError::WireVersion(self.wire_version));
        }
        Ok(())
    }

    /// Bytes of a full packet on the wire (UDP payload).
    pub fn packet_bytes(&self) -> u32 {
        u32::from(self.packet_payload) + OVERHEAD_BYTES as u32
    }

    /// Packets of a full chunk.
    pub fn chunk_packets(&self) -> u32 {
        (self.chunk_bytes / self.packet_bytes()).clamp(1, CHUNK_PACKETS_MAX as u32)
    }

    /// FNV-1a over the fields (Fowler, Noll and Vo): what the two ends compare first.
    pub fn hash(&self) -> u64 {
        let fields = [
            u64::from(self.paths),
            self.packet_payload.into(),
            self.chunk_bytes.into(),
            self.window_chunks.into(),
            self.wire_version.into(),
            self.integrity.code().into(),
        ];
        let bytes = fields.iter().flat_map(|field| field.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// The first field in which `other` differs, as text for an error.
    pub fn difference(&self, other: &Settings) -> Option<String> {
        let fields = [
            (
                "wire_version",
                u32::from(self.wire_version),
                u32::from(other.wire_version),
            ),
            ("paths", self.paths.into(), other.paths.into()),
            (
                "packet_payload (mtu less the headers of IPv4 or IPv6)",
                self.packet_payload.into(),
                other.packet_payload.into(),
            ),
            ("chunk_bytes", self.chunk_bytes, other.chunk_bytes),
            (
                "window_chunks",
                self.window_chunks.into(),
                other.window_chunks.into(),
            ),
        ];
        let differ = |name, ours: &dyn Display, theirs: &dyn Display| {
            format!("{name} is {ours} here and {theirs} at the peer")
        };
        let number = fields
            .into_iter()
            .find(|(_, ours, theirs)| ours != theirs)
            .map(|(name, ours, theirs)| differ(name, &ours, &theirs));
        let (ours, theirs) = (self.integrity, other.integrity);
        let integrity = || differ("integrity", &ours.name(), &theirs.name());
        number.or_else(|| (ours != theirs).then(integrity))
    }

    pub(crate) fn limits(&self) -> Limits {
        let chunk = u64::from(self.chunk_packets() * self.packet_bytes());
        Limits {
            packet: self.packet_bytes().into(),
            chunk,
            max: chunk * u64::from(self.window_chunks),
            paths: self.paths,
        }
    }
}

/// One end of a connection, as agreed over the control API.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionConfig {
    /// What both ends share; valid.
    pub settings: Settings,
    /// This end's name for the connection.
    pub local: ConnectionId,
    /// The peer's name for it.
    pub remote: ConnectionId,
    /// Its protection domain: which regions at this end the peer may write to.
    pub domain: DomainId,
    /// Seals what is sent, until keys change for the first time.
    pub send_secret: Secret,
    /// Opens what is received, until keys change for the first time.
    pub receive_secret: Secret,
    /// Who chooses the paths.
    pub policy: PolicyKind,
    /// Who decides the window.
    pub congestion: CongestionKind,
    /// The connection fails after this long without an acknowledgement while there is work.
    pub stall_timeout: Nanos,
    /// Whether it does not fail as long as the peer answers that it is not ready: it has no buffer for a send.
    pub waits_for_receiver: bool,
    /// Whether it goes on when the peer refuses a write or a request for good: that one alone ends then. Not on an in-order
    /// connection, where what was posted later waits for it.
    pub survives_refusals: bool,
    /// What a reset from the peer must carry: one of these, by the NIC of this end that it comes to.
    pub reset_tokens: Box<[u64]>,
    /// Whether this end places the peer's messages, carries out its requests and reports the ends of its messages in the
    /// order in which the peer posted them, and completes its own in the order of posting; otherwise each as soon as it
    /// is here.
    pub in_order: bool,
    /// The number of the first chunk that this end sends: 0, but in tests of the numbers' wrap. The
    /// peer's `receive_from`.
    pub send_from: ChunkNumber,
    /// The number of the first chunk that the peer sends.
    pub receive_from: ChunkNumber,
    /// The number of the first data packet that this end sends: drawn, so that only who receives packets can name one.
    /// Control packets count from it with its halves exchanged.
    pub first_packet: u32,
}

impl ConnectionConfig {
    pub(super) fn credit_limits(&self) -> Option<CreditLimits> {
        self.congestion.credit_limits(&self.settings.limits())
    }

    pub(super) fn keys(&self, cipher: &'static dyn Cipher, saved: SavedKeys) -> Keys {
        let secrets = [&self.send_secret, &self.receive_secret];
        Keys::new(cipher, self.settings.integrity, secrets, saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        paths: 128,
        packet_payload: 1408,
        chunk_bytes: 64_768,
        window_chunks: 512,
        wire_version: VERSION,
        integrity: Integrity::Sealed,
    };

    #[test]
    fn a_full_chunk_is_one_gso_send_of_44_packets_at_an_mtu_of_1500() {
        assert_eq!(SETTINGS.validate(), Ok(()));
        assert_eq!(
            (SETTINGS.packet_bytes(), SETTINGS.chunk_packets()),
            (1472, 44)
        );
    }

    #[test]
    fn every_field_out_of_range_is_named() {
        let cases = [
            (
                Settings {
                    paths: 0,
                    ..SETTINGS
                },
                "paths",
            ),
            (
                Settings {
                    paths: 257,
                    ..SETTINGS
                },
                "paths",
            ),
            (
                Settings {
                    packet_payload: 0,
                    ..SETTINGS
                },
                "packet_payload",
            ),
            (
                Settings {
                    packet_payload: u16::MAX,
                    ..SETTINGS
                },
                "packet_payload",
            ),
            (
                Settings {
                    chunk_bytes: 100,
                    ..SETTINGS
                },
                "chunk_bytes",
            ),
            (
                Settings {
                    chunk_bytes: 69_633,
                    ..SETTINGS
                },
                "chunk_bytes",
            ),
            (
                Settings {
                    window_chunks: 0,
                    ..SETTINGS
                },
                "window_chunks",
            ),
            (
                Settings {
                    window_chunks: 961,
                    ..SETTINGS
                },
                "window_chunks",
            ),
            (
                Settings {
                    wire_version: VERSION + 1,
                    ..SETTINGS
                },
                "wire_version",
            ),
        ];
        for (settings, field) in cases {
            let error = settings.validate().expect_err(field).to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }

    #[test]
    fn a_difference_is_named_and_changes_the_hash() {
        let other = Settings {
            chunk_bytes: 32_768,
            ..SETTINGS
        };
        assert_ne!(SETTINGS.hash(), other.hash());
        let text = SETTINGS.difference(&other).expect("they differ");
        assert_eq!(text, "chunk_bytes is 64768 here and 32768 at the peer");
        assert_eq!(SETTINGS.difference(&SETTINGS), None);
        let encrypted = Settings {
            integrity: Integrity::Aead,
            ..SETTINGS
        };
        assert_ne!(SETTINGS.hash(), encrypted.hash());
        let text = SETTINGS.difference(&encrypted).expect("they differ");
        assert_eq!(text, "integrity is sealed here and aead at the peer");
        let newer = Settings {
            wire_version: VERSION + 1,
            paths: 4,
            ..SETTINGS
        };
        let text = SETTINGS.difference(&newer).expect("they differ");
        assert!(text.starts_with("wire_version is "), "{text}");
        assert_ne!(SETTINGS.hash(), newer.hash());
    }
}
