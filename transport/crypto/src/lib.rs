//! AES-128-GCM for encrypted connections.
//!
//! The core asks for a cipher by [`weft_core::wire::Cipher`] and contains none: this crate implements it by
//! `ring`, in C and assembly (docs/decisions/0026). Engine, simulator, fuzz targets and tests use the same one.

use std::sync::Arc;

use ring::aead::{AES_128_GCM as RING_AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use weft_core::wire::{Cipher, PacketKey, Secret, TRAILER_BYTES};

/// Packets under one key at most. RFC 9001, section 6.6, allows AES-GCM 2^23 packets of up to 2^16 bytes; an end
/// begins to change its key at half of them, and the other end has the other half to follow.
pub const KEY_PHASE_PACKETS: u64 = 1 << 22;

/// Bytes of the cipher's key.
const KEY_BYTES: usize = 16;

/// AES-128-GCM (NIST SP 800-38D) with keys derived by HKDF-SHA256 (RFC 5869). A direction's secret takes the place
/// of the pseudorandom key; the information names what is derived, as in RFC 9001, section 5.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aes128Gcm {
    /// Packets that an end seals under one key before it changes to the next; [`KEY_PHASE_PACKETS`] and fewer.
    pub key_phase_packets: u64,
}

/// The cipher of a product's connections.
pub static AES_128_GCM: Aes128Gcm = Aes128Gcm {
    key_phase_packets: KEY_PHASE_PACKETS,
};

impl Cipher for Aes128Gcm {
    fn packet_key(&self, secret: &Secret) -> Arc<dyn PacketKey> {
        let key: [u8; KEY_BYTES] = expand(secret, b"weft key");
        let key =
            UnboundKey::new(&RING_AES_128_GCM, &key).expect("the key has the cipher's length");
        Arc::new(Key {
            key: LessSafeKey::new(key),
            iv: expand(secret, b"weft iv"),
        })
    }

    fn next_secret(&self, secret: &Secret) -> Secret {
        Secret(expand(secret, b"weft ku"))
    }

    fn key_phase_packets(&self) -> u64 {
        self.key_phase_packets
    }
}

/// The secret of a part of a connection that is split over several workers: the first part has the connection's
/// own, and each other part one that follows from it.
pub fn part_secret(secret: &Secret, part: u16) -> Secret {
    match part {
        0 => secret.clone(),
        _ => Secret(expand(
            secret,
            &[b"weft part ".as_slice(), &part.to_be_bytes()].concat(),
        )),
    }
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand<const BYTES: usize>(secret: &Secret, name: &[u8]) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    Prk::new_less_safe(HKDF_SHA256, &secret.0)
        .expand(&[name], Length(BYTES))
        .and_then(|expanded| expanded.fill(&mut out))
        .expect("HKDF gives up to 255 hashes, and this is one");
    out
}

struct Key {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
}

/// Never prints the key.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// The initialization vector xor the packet number (RFC 9001, section 5.3).
    fn nonce(&self, packet_number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..]
            .iter_mut()
            .zip(packet_number.to_be_bytes())
        {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

impl PacketKey for Key {
    fn seal(&self, packet_number: u64, header: &[u8], body: &mut [u8]) -> [u8; TRAILER_BYTES] {
        let tag = self
            .key
            .seal_in_place_separate_tag(self.nonce(packet_number), Aad::from(header), body)
            .expect("a packet is shorter than the cipher's limit of 64 GiB");
        let mut out = [0; TRAILER_BYTES];
        out.copy_from_slice(tag.as_ref());
        out
    }

    fn open(&self, packet_number: u64, header: &[u8], body: &mut [u8]) -> bool {
        let nonce = self.nonce(packet_number);
        self.key
            .open_in_place(nonce, Aad::from(header), body)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = b"the header";

    fn sealed(key: &dyn PacketKey, number: u64) -> Vec<u8> {
        let mut body = b"the payload".to_vec();
        let tag = key.seal(number, HEADER, &mut body);
        assert_ne!(body, b"the payload");
        [&body[..], &tag].concat()
    }

    #[test]
    fn what_is_sealed_opens_and_any_flipped_bit_is_noticed() {
        let key = AES_128_GCM.packet_key(&Secret([7; 32]));
        let packet = sealed(&*key, 5);
        let mut opened = packet.clone();
        assert!(key.open(5, HEADER, &mut opened));
        assert_eq!(&opened[..11], b"the payload");
        for bit in 0..packet.len() * 8 {
            let mut damaged = packet.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.open(5, HEADER, &mut damaged), "bit {bit}");
        }
        assert!(!key.open(5, b"another header", &mut packet.clone()));
        assert!(!key.open(6, HEADER, &mut packet.clone()));
        assert!(!key.open(5, HEADER, &mut []), "shorter than a tag");
    }

    #[test]
    fn each_secret_and_each_phase_has_a_key_of_its_own() {
        let mut secrets = vec![Secret([7; 32]), Secret([8; 32])];
        for _ in 0..4 {
            secrets.push(AES_128_GCM.next_secret(&secrets[secrets.len() - 1]));
        }
        let keys: Vec<_> = secrets.iter().map(|s| AES_128_GCM.packet_key(s)).collect();
        for (i, sealing) in keys.iter().enumerate() {
            for (j, opening) in keys.iter().enumerate() {
                let mut packet = sealed(&**sealing, 9);
                assert_eq!(opening.open(9, HEADER, &mut packet), i == j, "{i} {j}");
            }
        }
    }

    #[test]
    fn each_part_of_a_connection_has_a_secret_of_its_own() {
        let whole = Secret([7; 32]);
        let mut secrets = vec![AES_128_GCM.next_secret(&whole).0];
        secrets.extend((0..300).map(|part| part_secret(&whole, part).0));
        assert_eq!(secrets[1], whole.0);
        secrets.sort_unstable();
        assert!(secrets.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_keys_are_hkdfs_of_the_secret() {
        // HMAC-SHA256 by itself: the first block of HKDF-Expand is HMAC(secret, info || 0x01).
        let secret = Secret([7; 32]);
        let mac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret.0);
        let block = ring::hmac::sign(&mac, b"weft ku\x01");
        assert_eq!(AES_128_GCM.next_secret(&secret).0, block.as_ref());
    }
}
