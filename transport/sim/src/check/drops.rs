//! No packet dropped for a reason that this run does not give.

use std::collections::{BTreeMap, BTreeSet};

use weft_core::drops::DropReason;
use weft_core::memory::Ticket;
use weft_core::wire::{
    DataHeader, Flags, HEADER_BYTES, Integrity, Kind, Opcode, PREFIX_BYTES, Revoke, TRAILER_BYTES,
    peek,
};
use weft_crypto::KEY_PHASE_PACKETS;

use super::{Checker, packet_number};
use crate::observation::{Arrived, End, Observation, Received};
use crate::scenario::Scenario;

/// A control packet that as many newer ones have overtaken may be dropped though it comes for the first time.
const CONTROL_WINDOW: u64 = 960;

/// No window of a run has more chunks.
const CHUNKS_MAX: i32 = 1 << 16;

/// An untouched packet is dropped only as a duplicate of one that was delivered, because its connection is
/// closed or unknown, or because its receiver must or may refuse it.
#[derive(Default)]
pub(super) struct ExpectedDropsOnly {
    /// Ends that were given a write that their peer must refuse.
    strayed: BTreeSet<End>,
    /// Some host's regions were away.
    away: bool,
    /// Another thread copies payloads, and takes so many at a time.
    copies: bool,
    /// What ends a message waits for its turn, and only so much may wait.
    in_order: bool,
    /// Sends may come before there is a receive, and requests before there is room for a response.
    refuses: bool,
    /// Keys change within the run: what comes late, or is replayed, may be of a key that is over. Its phase
    /// counts modulo 4, so it may also look like one that is in use.
    keys_change: bool,
    /// Of each chunk: how many packets it was last cut into, and which of them were delivered.
    chunks: BTreeMap<(End, u32), (u8, u64)>,
    /// The control packets that were delivered.
    controls: BTreeSet<(End, u64)>,
    /// The newest of them.
    newest: BTreeMap<End, u64>,
    /// The peer has the answers to all revocations before this one.
    answered: BTreeMap<End, u64>,
}

impl ExpectedDropsOnly {
    pub(super) fn new(scenario: &Scenario) -> Self {
        ExpectedDropsOnly {
            copies: scenario.copies.0 > 0,
            in_order: scenario.in_order,
            refuses: scenario.workload.operations > 0,
            keys_change: scenario.settings.integrity == Integrity::Aead
                && scenario.cipher.key_phase_packets < KEY_PHASE_PACKETS,
            ..Self::default()
        }
    }

    /// Takes note of an untouched packet. Returns whether it was delivered before.
    fn deliver(&mut self, end: End, bytes: &[u8], received: &Received<'_>) -> bool {
        let copies = self.copies;
        match peek(bytes).map(|peek| peek.kind) {
            Ok(Kind::Data | Kind::Send | Kind::Request | Kind::Response) => {
                let Ok(header) = DataHeader::parse(bytes) else {
                    return false;
                };
                let (of, packets) = self.chunks.entry((end, header.chunk.0)).or_default();
                let whole = *of > 0 && packets.count_ones() == u32::from(*of);
                // One that was cut anew waits until what is being copied of it has landed.
                let waits = copies && *of > 0 && header.packets > *of;
                let before = whole
                    || waits
                    || header.packets < *of
                    || header.packets == *of && *packets >> header.packet & 1 == 1;
                let empty = bytes.len() == HEADER_BYTES + TRAILER_BYTES;
                let request = header.opcode == Opcode::Request;
                // Of what ends a message, `placed` says only that it is here.
                let again = before && self.in_order && header.flags.contains(Flags::LAST);
                let is_here = empty || request || received.placed.contains(&Ticket::of(&header));
                if is_here && !again && !whole {
                    if header.packets > *of {
                        (*of, *packets) = (header.packets, 0);
                    }
                    *packets |= 1 << header.packet;
                }
                before
            }
            Ok(kind) => {
                let number = packet_number(bytes);
                let newest = self.newest.entry(end).or_default();
                *newest = number.max(*newest);
                let before =
                    *newest - number >= CONTROL_WINDOW || !self.controls.insert((end, number));
                before || kind == Kind::Revoke && self.revoke(end, bytes)
            }
            Err(_) => false,
        }
    }

    /// A message is revoked. Every packet of it that comes from here on counts as one that was delivered before, for it is
    /// dropped as a duplicate. Returns whether the sender has the answer: then this is a late copy of the revocation.
    fn revoke(&mut self, end: End, bytes: &[u8]) -> bool {
        // It is not encrypted any more, unless its key is over.
        let body = bytes.get(PREFIX_BYTES..bytes.len() - TRAILER_BYTES);
        let Some(Ok(revoke)) = body.map(Revoke::parse) else {
            return false;
        };
        let oldest = self.answered.entry(end).or_default();
        let count = revoke.end.ahead_of(revoke.first);
        if count > CHUNKS_MAX || revoke.number < *oldest {
            return revoke.number < *oldest;
        }
        *oldest = revoke.oldest.max(*oldest);
        for at in 0..count as u32 {
            let chunk = revoke.first.plus(at).0;
            self.chunks.insert((end, chunk), (64, u64::MAX));
        }
        false
    }

    fn check(&mut self, received: &Received<'_>) -> Result<(), String> {
        let mut repeated: BTreeMap<Option<End>, u64> = BTreeMap::new();
        let mut unknown = 0;
        for &Arrived {
            end,
            tampered,
            bytes,
        } in &received.packets
        {
            let excused = match end {
                _ if tampered => true,
                Some(end) => self.deliver(end, bytes, received),
                None => true,
            };
            *repeated.entry(end).or_default() += u64::from(excused);
            unknown += u64::from(end.is_none() || tampered);
        }
        for &(end, reason, count) in &received.dropped {
            let tampered = |a: &Arrived<'_>| a.tampered;
            let damaged = received.packets.iter().filter(|a| tampered(a)).count() as u64;
            let most = match reason {
                DropReason::Closed => u64::MAX,
                DropReason::Duplicate => repeated.get(&end).copied().unwrap_or(0),
                DropReason::UnknownConnection if end.is_none() => unknown,
                DropReason::Truncated
                | DropReason::Version
                | DropReason::Kind
                | DropReason::Malformed
                | DropReason::UnknownConnection
                | DropReason::Seal
                | DropReason::Checksum => damaged,
                DropReason::Tag | DropReason::KeyPhase if self.keys_change => u64::MAX,
                DropReason::Tag | DropReason::KeyPhase => damaged,
                DropReason::Key | DropReason::Bounds
                    if end.is_some_and(|end| self.strayed.contains(&end.peer())) =>
                {
                    u64::MAX
                }
                DropReason::PlacementsFull if self.copies || self.in_order => u64::MAX,
                DropReason::NotArmed if self.away || self.refuses => u64::MAX,
                _ => 0,
            };
            if count > most {
                return Err(format!(
                    "{end:?} dropped {count} packets: {reason:?}; {most} gave a reason for it"
                ));
            }
        }
        Ok(())
    }
}

impl Checker for ExpectedDropsOnly {
    fn name(&self) -> &'static str {
        "no unexpected drop"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        match *what {
            Observation::Received { received } => return self.check(received),
            Observation::Strayed { writer, .. } => {
                self.strayed.insert(writer);
            }
            Observation::Deregistered { reader, .. } => {
                self.strayed.extend([reader, reader.peer()]);
            }
            Observation::Away => self.away = true,
            _ => {}
        }
        Ok(())
    }
}
