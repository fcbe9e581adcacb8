//! Revocations: a sender revokes a message, and the receiver says that nothing more of it is placed.

use super::control::in_body;
use super::field::{revoke, revoked};
use super::{
    ChunkNumber, ConnectionId, DropReason, Kind, PREFIX_BYTES, PathId, Seal, get_u32, get_u64,
    put_prefix, put_u32, put_u64,
};

/// A sender has at most this many revocations without an answer on the wire; more wait their turn. So a receiver
/// remembers as many answers for each connection: some 7 KiB.
pub(crate) const REVOCATIONS_MAX: u64 = 128;

/// Bytes of the bodies.
const REVOKE_BYTES: usize = 24;
const REVOKED_BYTES: usize = 16;

/// "Place no more of this message": the chunk numbers of a message that its sender has cancelled, without those at its
/// beginning that are acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revoke {
    /// The message's first chunk that is not acknowledged.
    pub first: ChunkNumber,
    /// The chunk behind the last one of the message that was ever sent.
    pub end: ChunkNumber,
    /// The number of the revocation: they count per connection and direction, from 0.
    pub number: u64,
    /// The sender has the answers to all revocations before this one.
    pub oldest: u64,
}

impl Revoke {
    /// Bytes of a revocation in all.
    pub const BYTES: usize = PREFIX_BYTES + REVOKE_BYTES + super::TRAILER_BYTES;

    /// Writes a sealed revocation; returns its length.
    pub fn emit(
        &self,
        out: &mut [u8],
        seal: &Seal,
        path: PathId,
        connection: ConnectionId,
        packet_number: u64,
    ) -> usize {
        let phase = seal.phase();
        put_prefix(out, Kind::Revoke, phase, path, connection, packet_number);
        put_u32(out, in_body(&revoke::FIRST), self.first.0);
        put_u32(out, in_body(&revoke::END), self.end.0);
        put_u64(out, in_body(&revoke::NUMBER), self.number);
        put_u64(out, in_body(&revoke::OLDEST), self.oldest);
        seal.seal_control(out, PREFIX_BYTES + REVOKE_BYTES)
    }

    /// Reads a revocation's body.
    ///
    /// # Errors
    /// [`DropReason::Malformed`]: also when it names no chunk, or is so far ahead of the oldest one that its sender
    /// should have waited.
    pub fn parse(body: &[u8]) -> Result<Revoke, DropReason> {
        if body.len() != REVOKE_BYTES {
            return Err(DropReason::Malformed);
        }
        let read = Revoke {
            first: ChunkNumber(get_u32(body, revoke::FIRST)),
            end: ChunkNumber(get_u32(body, revoke::END)),
            number: get_u64(body, revoke::NUMBER),
            oldest: get_u64(body, revoke::OLDEST),
        };
        let ahead = read.number.checked_sub(read.oldest);
        let in_turn = ahead.is_some_and(|ahead| ahead < REVOCATIONS_MAX);
        match in_turn && read.end.ahead_of(read.first) > 0 {
            true => Ok(read),
            false => Err(DropReason::Malformed),
        }
    }
}

/// The answer to a [`Revoke`]: from here on no byte of the message is placed, and its immediate does not count, unless it
/// has before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revoked {
    /// As in [`Revoke::number`].
    pub number: u64,
    /// Every chunk that it names was here whole when the revocation came. Where the message's last chunk is among them, it
    /// was delivered.
    pub whole: bool,
}

impl Revoked {
    /// Bytes of an answer in all.
    pub const BYTES: usize = PREFIX_BYTES + REVOKED_BYTES + super::TRAILER_BYTES;

    /// Writes a sealed answer; returns its length.
    pub fn emit(
        &self,
        out: &mut [u8],
        seal: &Seal,
        path: PathId,
        connection: ConnectionId,
        packet_number: u64,
    ) -> usize {
        let phase = seal.phase();
        put_prefix(out, Kind::Revoked, phase, path, connection, packet_number);
        put_u64(out, in_body(&revoked::NUMBER), self.number);
        put_u32(out, in_body(&revoked::WHOLE), self.whole.into());
        put_u32(out, in_body(&revoked::ZERO), 0);
        seal.seal_control(out, PREFIX_BYTES + REVOKED_BYTES)
    }

    /// Reads an answer's body.
    ///
    /// # Errors
    /// [`DropReason::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Revoked, DropReason> {
        if body.len() != REVOKED_BYTES || get_u32(body, revoked::ZERO) != 0 {
            return Err(DropReason::Malformed);
        }
        let whole = match get_u32(body, revoked::WHOLE) {
            0 => false,
            1 => true,
            _ => return Err(DropReason::Malformed),
        };
        Ok(Revoked {
            number: get_u64(body, revoked::NUMBER),
            whole,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CONTROL_PACKET_NUMBERS, Control, Secret};
    use proptest::prelude::*;

    const NUMBER: u64 = CONTROL_PACKET_NUMBERS + 3;

    /// A message whose chunk numbers wrap.
    const REVOKE: Revoke = Revoke {
        first: ChunkNumber(u32::MAX - 4),
        end: ChunkNumber(3),
        number: 1 << 40,
        oldest: (1 << 40) - 127,
    };

    fn body(revoke: &Revoke) -> Vec<u8> {
        let mut out = [0; 64];
        let seal = Seal::new(&Secret([7; 32]));
        let length = revoke.emit(&mut out, &seal, PathId(9), ConnectionId(5), NUMBER);
        assert_eq!(length, Revoke::BYTES);
        let control = Control::open(&seal, &mut out[..length]).expect("it is sealed");
        assert_eq!((control.kind, control.path), (Kind::Revoke, PathId(9)));
        control.body.to_vec()
    }

    #[test]
    fn a_revocation_is_read_back_and_one_that_names_nothing_or_is_out_of_turn_is_refused() {
        assert_eq!(Revoke::parse(&body(&REVOKE)), Ok(REVOKE));
        let refused = [
            Revoke {
                end: REVOKE.first,
                ..REVOKE
            },
            Revoke {
                end: REVOKE.first.minus(1),
                ..REVOKE
            },
            Revoke {
                oldest: REVOKE.oldest - 1,
                ..REVOKE
            },
            Revoke {
                oldest: REVOKE.number + 1,
                ..REVOKE
            },
        ];
        for revoke in refused {
            let read = Revoke::parse(&body(&revoke));
            assert_eq!(read, Err(DropReason::Malformed), "{revoke:?}");
        }
    }

    #[test]
    fn the_answer_to_a_revocation_is_read_back() {
        let seal = Seal::new(&Secret([7; 32]));
        for whole in [false, true] {
            let revoked = Revoked {
                number: REVOKE.number,
                whole,
            };
            let mut out = [0; 64];
            let length = revoked.emit(&mut out, &seal, PathId(9), ConnectionId(5), NUMBER);
            assert_eq!(length, Revoked::BYTES);
            let control = Control::open(&seal, &mut out[..length]).expect("it is sealed");
            assert_eq!((control.kind, control.path), (Kind::Revoked, PathId(9)));
            assert_eq!(Revoked::parse(control.body), Ok(revoked));
            let mut other = control.body.to_vec();
            other[8] = 2;
            assert_eq!(Revoked::parse(&other), Err(DropReason::Malformed));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_parsing_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = (Revoke::parse(&bytes), Revoked::parse(&bytes));
        }
    }
}
