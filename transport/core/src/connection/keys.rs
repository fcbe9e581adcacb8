//! The keys of a connection: what the next packet is sealed with, and what opens one that arrives.
//!
//! Only [`Integrity::Aead`] changes keys. One end leads: once enough packets were sealed or opened under one key it
//! goes on to its next key, and the other end follows as soon as it takes a packet sealed with that one. The leader
//! goes the next step only after it has taken a packet of its present phase, so the keys of the two directions are
//! never more than one phase apart, and an end needs three to receive: previous, current, next. In QUIC (RFC 9001,
//! section 6.1) either end leads, after it has seen a packet of the current phase acknowledged; here control packets
//! are not acknowledged, and an end that sends nothing else would wait for ever, or step ahead of its peer.

use crate::drops::DropReason;
use crate::units::{Nanos, Time};
use crate::wire::{Cipher, Integrity, KeyPhase, Seal, Secret};
use serde::{Deserialize, Serialize};

/// The previous key opens packets for so long after the next was first used: a multiple of the time for which a
/// network keeps a packet, and beyond the three PTO of RFC 9001, section 6.5, at every round trip here.
const PREVIOUS_KEY_FOR: Nanos = Nanos::from_secs(1);

/// An end whose peer does not follow, or does not lead, stops at this many packets under one key (RFC 9001, section 6.6: 2^23), less
/// the packets of one chunk, which are sealed together.
const SEALED_MAX: u64 = (1 << 23) - 64;

/// What is saved of the keys; the secrets of the current phases are saved with the configuration.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct SavedKeys {
    send_phase: KeyPhase,
    receive_phase: KeyPhase,
    sealed: u64,
    opened: u64,
    /// Absent before keys change for the first time.
    leads: Option<bool>,
}

/// The key of one direction in one phase.
#[derive(Debug)]
struct Phase {
    secret: Secret,
    seal: Seal,
}

impl Phase {
    fn new(cipher: &dyn Cipher, integrity: Integrity, secret: &Secret, phase: KeyPhase) -> Phase {
        Phase {
            secret: secret.clone(),
            seal: Seal::with(integrity, secret, phase, cipher),
        }
    }

    fn next(&self, cipher: &dyn Cipher) -> Phase {
        let (secret, phase) = (cipher.next_secret(&self.secret), self.seal.phase().next());
        Phase::new(cipher, Integrity::Aead, &secret, phase)
    }
}

/// What only an encrypted connection has.
#[derive(Debug)]
struct Updates {
    cipher: &'static dyn Cipher,
    /// Whether this end leads: the one whose first secret of sending is the smaller.
    leads: bool,
    /// Packets sealed with the current key of sending.
    sealed: u64,
    /// Packets taken since that key is in use.
    opened: u64,
    /// The next keys. They are derived ahead, so that a forged packet costs no derivation.
    next_send: Phase,
    next_receive: Phase,
    /// The previous key of receiving, and until when it opens packets.
    previous: Option<(Seal, Time)>,
}

#[derive(Debug)]
pub(super) struct Keys {
    send: Phase,
    receive: Phase,
    updates: Option<Box<Updates>>,
}

impl Keys {
    pub(super) fn new(
        cipher: &'static dyn Cipher,
        integrity: Integrity,
        [send, receive]: [&Secret; 2],
        saved: SavedKeys,
    ) -> Keys {
        let leads = saved.leads.unwrap_or(send.0 < receive.0);
        let send = Phase::new(cipher, integrity, send, saved.send_phase);
        let receive = Phase::new(cipher, integrity, receive, saved.receive_phase);
        let updates = (integrity == Integrity::Aead).then(|| {
            Box::new(Updates {
                cipher,
                leads,
                sealed: saved.sealed,
                opened: saved.opened,
                next_send: send.next(cipher),
                next_receive: receive.next(cipher),
                previous: None,
            })
        });
        Keys {
            send,
            receive,
            updates,
        }
    }

    pub(super) fn save(&self) -> SavedKeys {
        let updates = self.updates.as_ref();
        SavedKeys {
            send_phase: self.send.seal.phase(),
            receive_phase: self.receive.seal.phase(),
            sealed: updates.map_or(0, |updates| updates.sealed),
            opened: updates.map_or(0, |updates| updates.opened),
            leads: updates.map(|updates| updates.leads),
        }
    }

    /// The secrets of the current phases: of sending and of receiving.
    pub(super) fn secrets(&self) -> [&Secret; 2] {
        [&self.send.secret, &self.receive.secret]
    }

    /// Heap memory, bytes, without what the cipher keeps for each key.
    pub(super) fn heap_bytes(&self) -> usize {
        self.updates.as_deref().map_or(0, size_of_val)
    }

    /// What the next packet is sealed with.
    #[inline]
    pub(super) fn seal(&self) -> &Seal {
        &self.send.seal
    }

    /// Whether no further packet may be sealed, because the peer does not follow or does not lead.
    #[inline]
    pub(super) fn are_used_up(&self) -> bool {
        matches!(&self.updates, Some(updates) if updates.sealed >= SEALED_MAX)
    }

    /// So many packets were sealed with [`Keys::seal`].
    #[inline]
    pub(super) fn count_sealed(&mut self, packets: u64) {
        if let Some(updates) = &mut self.updates {
            updates.sealed += packets;
            self.lead();
        }
    }

    /// Changes the key of sending when it is time to.
    fn lead(&mut self) {
        let followed = self.send.seal.phase() == self.receive.seal.phase();
        if let Some(updates) = &mut self.updates
            && updates.leads
            && followed
            && updates.sealed.max(updates.opened) >= updates.cipher.key_phase_packets()
        {
            self.send = updates.update_send();
        }
    }

    /// What opens a packet of `phase`.
    #[inline]
    pub(super) fn open_with(&self, now: Time, phase: KeyPhase) -> Result<&Seal, DropReason> {
        if phase == self.receive.seal.phase() {
            return Ok(&self.receive.seal);
        }
        self.other_phase(now, phase).ok_or(DropReason::KeyPhase)
    }

    #[cold]
    fn other_phase(&self, now: Time, phase: KeyPhase) -> Option<&Seal> {
        let updates = self.updates.as_ref()?;
        if phase == updates.next_receive.seal.phase() {
            return Some(&updates.next_receive.seal);
        }
        let (previous, until) = updates.previous.as_ref()?;
        (previous.phase() == phase && now <= *until).then_some(previous)
    }

    /// A packet of `phase` was authentic, and was taken.
    #[inline]
    pub(super) fn took(&mut self, now: Time, phase: KeyPhase) {
        if let Some(updates) = &mut self.updates {
            updates.opened += 1;
            if phase != self.receive.seal.phase() {
                self.follow(now, phase);
            }
            self.lead();
        }
    }

    #[cold]
    fn follow(&mut self, now: Time, phase: KeyPhase) {
        let Some(updates) = &mut self.updates else {
            return;
        };
        if phase != updates.next_receive.seal.phase() {
            return;
        }
        let after = updates.next_receive.next(updates.cipher);
        let next = std::mem::replace(&mut updates.next_receive, after);
        let previous = std::mem::replace(&mut self.receive, next);
        updates.previous = Some((previous.seal, now + PREVIOUS_KEY_FOR));
        if self.send.seal.phase() != phase {
            self.send = updates.update_send();
        }
    }
}

impl Updates {
    /// The key of sending that follows.
    fn update_send(&mut self) -> Phase {
        (self.sealed, self.opened) = (0, 0);
        let after = self.next_send.next(self.cipher);
        std::mem::replace(&mut self.next_send, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{PacketKey, TRAILER_BYTES};
    use std::sync::Arc;

    /// Encrypts nothing: what is looked at here is which key is used.
    #[derive(Debug)]
    struct Plain;

    impl Cipher for Plain {
        fn packet_key(&self, _: &Secret) -> Arc<dyn PacketKey> {
            Arc::new(Plain)
        }

        fn next_secret(&self, secret: &Secret) -> Secret {
            Secret(secret.0.map(|byte| byte.wrapping_add(1)))
        }

        fn key_phase_packets(&self) -> u64 {
            10
        }
    }

    impl PacketKey for Plain {
        fn seal(&self, _: u64, _: &[u8], _: &mut [u8]) -> [u8; TRAILER_BYTES] {
            [0; TRAILER_BYTES]
        }

        fn open(&self, _: u64, _: &[u8], _: &mut [u8]) -> bool {
            true
        }
    }

    /// The keys of an end that leads, or of one that follows.
    fn keys(integrity: Integrity, leads: bool) -> Keys {
        let (smaller, larger) = (Secret([1; 32]), Secret([2; 32]));
        let secrets = if leads {
            [&smaller, &larger]
        } else {
            [&larger, &smaller]
        };
        Keys::new(&Plain, integrity, secrets, SavedKeys::default())
    }

    #[test]
    fn an_end_whose_peer_never_follows_stops_before_the_ciphers_limit() {
        let mut keys = keys(Integrity::Aead, true);
        keys.count_sealed(10);
        let phase = keys.seal().phase();
        assert_eq!(phase, KeyPhase::FIRST.next());
        let mut sealed = 0;
        while !keys.are_used_up() {
            keys.count_sealed(64);
            sealed += 64;
        }
        assert_eq!((sealed, keys.seal().phase()), ((1 << 23) - 64, phase));
        // The peer has followed after all.
        keys.took(Time::ZERO, phase);
        keys.count_sealed(1);
        assert!(!keys.are_used_up());
    }

    #[test]
    fn an_end_that_does_not_lead_follows_its_peer_and_takes_no_step_of_its_own() {
        let mut keys = keys(Integrity::Aead, false);
        for step in 1..9 {
            let phase = (0..step).fold(KeyPhase::FIRST, |phase, _| phase.next());
            keys.took(Time::ZERO, phase);
            keys.count_sealed(1_000);
            assert_eq!(keys.seal().phase(), phase);
            let [send, receive] = keys.secrets();
            assert_eq!((send.0[0], receive.0[0]), (2 + step, 1 + step));
        }
    }

    #[test]
    fn an_end_that_only_receives_leads_by_what_it_takes() {
        let mut keys = keys(Integrity::Aead, true);
        for _ in 0..9 {
            keys.took(Time::ZERO, KeyPhase::FIRST);
        }
        assert_eq!(keys.seal().phase(), KeyPhase::FIRST);
        for _ in 0..100 {
            keys.took(Time::ZERO, KeyPhase::FIRST);
        }
        assert_eq!(keys.seal().phase(), KeyPhase::FIRST.next());
    }

    #[test]
    fn a_connection_that_is_not_encrypted_has_one_key() {
        let mut keys = keys(Integrity::Sealed, true);
        keys.count_sealed(1 << 40);
        assert!(!keys.are_used_up());
        assert_eq!(keys.seal().phase(), KeyPhase::FIRST);
        let next = keys.open_with(Time::ZERO, KeyPhase::FIRST.next());
        assert_eq!(next.map(Seal::phase), Err(DropReason::KeyPhase));
    }
}
