//! Probes, refusals, credits, requests to send, and resets.

use super::field::{credit, prefix, probe, refusal, request_to_send};
use super::{
    ChunkNumber, ConnectionId, DropReason, Field, KeyPhase, Kind, PREFIX_BYTES, PathId, Seal,
    TRAILER_BYTES, get_u8, get_u32, get_u64, peek, put_prefix, put_u32, put_u64,
};
use serde::{Deserialize, Serialize};

/// The prefix of an authenticated control packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control<'a> {
    /// Its kind.
    pub kind: Kind,
    /// The path it was sent on.
    pub path: PathId,
    /// The packet's number; see [`super::CONTROL_PACKET_NUMBERS`].
    pub packet_number: u64,
    /// What follows the prefix, without the trailer.
    pub body: &'a [u8],
}

impl<'a> Control<'a> {
    /// Opens a sealed control packet, in place where it is encrypted.
    ///
    /// # Errors
    /// [`DropReason::Truncated`], [`DropReason::Version`], [`DropReason::Kind`],
    /// [`DropReason::Seal`], [`DropReason::Tag`] or [`DropReason::Malformed`].
    pub fn open(seal: &Seal, packet: &'a mut [u8]) -> Result<Control<'a>, DropReason> {
        let peek = peek(packet)?;
        let opened = seal.open_control(packet)?;
        if !has_no_index(opened, peek.phase) {
            return Err(DropReason::Malformed);
        }
        Ok(Control {
            kind: peek.kind,
            path: peek.path,
            packet_number: get_u64(opened, prefix::PACKET_NUMBER),
            body: &opened[PREFIX_BYTES..],
        })
    }
}

/// Whether the fields that only data packets use are 0.
fn has_no_index(packet: &[u8], phase: KeyPhase) -> bool {
    get_u8(packet, prefix::INDEX_PHASE) == phase.bits() && get_u8(packet, prefix::PACKETS) == 0
}

/// A field of a body, in the packet.
pub(super) const fn in_body(field: &Field) -> Field {
    PREFIX_BYTES + field.start..PREFIX_BYTES + field.end
}

/// Asks whether a path carries packets of its own length; zeros make it as long as it is to be (RFC 8899,
/// section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The sender's clock, units of 64 ns; comes back in an echo.
    pub sent_at: u32,
}

impl Probe {
    /// Bytes of the shortest probe in all.
    pub const BYTES: usize = PREFIX_BYTES + 8 + TRAILER_BYTES;

    /// Writes a sealed probe of `bytes` bytes in all, if there is room; returns its length.
    pub fn emit(
        &self,
        bytes: usize,
        out: &mut [u8],
        seal: &Seal,
        path: PathId,
        connection: ConnectionId,
        packet_number: u64,
    ) -> usize {
        put_prefix(
            out,
            Kind::Probe,
            seal.phase(),
            path,
            connection,
            packet_number,
        );
        let end = bytes.min(out.len()).max(Probe::BYTES) - TRAILER_BYTES;
        out[PREFIX_BYTES..end].fill(0);
        put_u32(out, in_body(&probe::SENT_AT), self.sent_at);
        seal.seal_control(out, end)
    }

    /// Reads a probe's body.
    ///
    /// # Errors
    /// [`DropReason::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Probe, DropReason> {
        if body.len() < 8 || get_u32(body, probe::ZERO) != 0 {
            return Err(DropReason::Malformed);
        }
        Ok(Probe {
            sent_at: get_u32(body, probe::SENT_AT),
        })
    }
}

/// Why a receiver does not place what a chunk carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refused {
    /// The key opens no region of the connection's domain. Final.
    Key = 1,
    /// The write does not lie within its region. Final.
    Bounds = 2,
    /// The region's buffer is with its owner: to be tried again.
    NotArmed = 3,
}

impl Refused {
    /// What a sender is told of a drop; `None` for what it is not told of.
    pub const fn of(reason: DropReason) -> Option<Refused> {
        match reason {
            DropReason::Key => Some(Refused::Key),
            DropReason::Bounds => Some(Refused::Bounds),
            DropReason::NotArmed => Some(Refused::NotArmed),
            _ => None,
        }
    }
}

/// "I do not place this chunk": the negative acknowledgement of InfiniBand's reliable connections
/// (remote access error, receiver not ready).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Why.
    pub refused: Refused,
    /// The chunk of which something was not placed.
    pub chunk: ChunkNumber,
}

impl Refusal {
    /// Bytes of a refusal in all.
    pub const BYTES: usize = PREFIX_BYTES + 8 + TRAILER_BYTES;

    /// Writes a sealed refusal; returns its length.
    pub fn emit(
        &self,
        out: &mut [u8],
        seal: &Seal,
        path: PathId,
        connection: ConnectionId,
        packet_number: u64,
    ) -> usize {
        put_prefix(
            out,
            Kind::Refusal,
            seal.phase(),
            path,
            connection,
            packet_number,
        );
        put_u32(out, in_body(&refusal::REASON), self.refused as u32);
        put_u32(out, in_body(&refusal::CHUNK), self.chunk.0);
        seal.seal_control(out, PREFIX_BYTES + 8)
    }

    /// Reads a refusal's body.
    ///
    /// # Errors
    /// [`DropReason::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Refusal, DropReason> {
        if body.len() != 8 {
            return Err(DropReason::Malformed);
        }
        let refused = match get_u32(body, refusal::REASON) {
            1 => Refused::Key,
            2 => Refused::Bounds,
            3 => Refused::NotArmed,
            _ => return Err(DropReason::Malformed),
        };
        Ok(Refusal {
            refused,
            chunk: ChunkNumber(get_u32(body, refusal::CHUNK)),
        })
    }
}

/// How much the receiver lets the sender send: the credits of receiver-driven congestion controls
/// (EQDS, section 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit {
    /// Bytes granted since the connection began, headers included. A total, so that the next credit makes up
    /// for one that was lost.
    pub bytes: u64,
}

impl Credit {
    /// Bytes of a credit in all.
    pub const BYTES: usize = PREFIX_BYTES + 8 + TRAILER_BYTES;

    /// Writes a sealed credit; returns its length.
    pub fn emit(
        &self,
        out: &mut [u8],
        seal: &Seal,
        path: PathId,
        connection: ConnectionId,
        packet_number: u64,
    ) -> usize {
        put_prefix(
            out,
            Kind::Credit,
            seal.phase(),
            path,
            connection,
            packet_number,
        );
        put_u64(out, in_body(&credit::BYTES), self.bytes);
        seal.seal_control(out, PREFIX_BYTES + 8)
    }

    /// Reads a credit's body.
    ///
    /// # Errors
    /// [`DropReason::Malformed`].
    pub fn parse(body: &[u8]) -> Result<Credit, DropReason> {
        if body.len() != 8 {
            return Err(DropReason::Malformed);
        }
        Ok(Credit {
            bytes: get_u64(body, credit::BYTES),
        })
    }
}

/// How much the sender wants to send (EQDS's RTS). All are totals in bytes since the connection began, headers
/// included, so that the next request makes up for one that was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RequestToSend {
    /// What was sent and what waits to be sent.
    pub demand: u64,
    /// What was sent and what waits to be sent again: so far, credit is for what was lost.
    pub resend: u64,
    /// What was sent, lost packets included.
    pub sent: u64,
    /// The number of the next data packet.
    pub packets: u64,
}

impl RequestToSend {
    /// Bytes of the body.
    const BODY_BYTES: usize = 32;

    /// Writes a sealed request; returns its length.
    pub fn emit(
        &self,
        out: &mut [u8],
        seal: &Seal,
        path: PathId,
        connection: ConnectionId,
        packet_number: u64,
    ) -> usize {
        put_prefix(
            out,
            Kind::RequestToSend,
            seal.phase(),
            path,
            connection,
            packet_number,
        );
        put_u64(out, in_body(&request_to_send::DEMAND), self.demand);
        put_u64(out, in_body(&request_to_send::RESEND), self.resend);
        put_u64(out, in_body(&request_to_send::SENT), self.sent);
        put_u64(out, in_body(&request_to_send::PACKETS), self.packets);
        seal.seal_control(out, PREFIX_BYTES + RequestToSend::BODY_BYTES)
    }

    /// Reads a request's body.
    ///
    /// # Errors
    /// [`DropReason::Malformed`].
    pub fn parse(body: &[u8]) -> Result<RequestToSend, DropReason> {
        if body.len() != RequestToSend::BODY_BYTES {
            return Err(DropReason::Malformed);
        }
        Ok(RequestToSend {
            demand: get_u64(body, request_to_send::DEMAND),
            resend: get_u64(body, request_to_send::RESEND),
            sent: get_u64(body, request_to_send::SENT),
            packets: get_u64(body, request_to_send::PACKETS),
        })
    }
}

/// "I know no such connection": 16 B, authenticated by the token alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reset {
    /// The path of the datagram that it answers.
    pub path: PathId,
    /// The unknown connection, as the datagram named it.
    pub connection: ConnectionId,
    /// What the control channel has told the peer to expect: only the node that gave the id out can
    /// make it, and for that peer only.
    pub token: u64,
}

impl Reset {
    /// Bytes of a reset.
    pub const BYTES: usize = PREFIX_BYTES;

    /// The reset as it stands in a datagram.
    pub fn emit(&self) -> [u8; Reset::BYTES] {
        let mut out = [0u8; Reset::BYTES];
        put_prefix(
            &mut out,
            Kind::Reset,
            KeyPhase::FIRST,
            self.path,
            self.connection,
            self.token,
        );
        out
    }

    /// Reads a reset.
    ///
    /// # Errors
    /// [`DropReason::Truncated`], [`DropReason::Version`], [`DropReason::Kind`] or
    /// [`DropReason::Malformed`].
    pub fn parse(packet: &[u8]) -> Result<Reset, DropReason> {
        let peek = peek(packet)?;
        if peek.kind != Kind::Reset {
            return Err(DropReason::Kind);
        }
        if packet.len() != Reset::BYTES || !has_no_index(packet, KeyPhase::FIRST) {
            return Err(DropReason::Malformed);
        }
        Ok(Reset {
            path: peek.path,
            connection: peek.connection,
            token: get_u64(packet, prefix::PACKET_NUMBER),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CONTROL_PACKET_NUMBERS, Secret};

    #[test]
    fn a_probe_is_read_back_and_a_flipped_bit_is_refused() {
        let seal = Seal::new(&Secret([7; 32]));
        let mut out = [0u8; 64];
        let number = CONTROL_PACKET_NUMBERS + 3;
        let length =
            Probe { sent_at: 99 }.emit(0, &mut out, &seal, PathId(9), ConnectionId(5), number);
        assert_eq!(length, Probe::BYTES);
        let mut sealed = out;
        let control = Control::open(&seal, &mut sealed[..length]).expect("a sealed probe opens");
        assert_eq!((control.kind, control.path), (Kind::Probe, PathId(9)));
        assert_eq!(Probe::parse(control.body), Ok(Probe { sent_at: 99 }));
        for bit in 0..length * 8 {
            let mut damaged = out;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Control::open(&seal, &mut damaged[..length]).is_err(),
                "bit {bit} was not noticed"
            );
        }
    }

    #[test]
    fn a_refusal_is_read_back_and_an_unknown_reason_is_refused() {
        let seal = Seal::new(&Secret([7; 32]));
        for refused in [Refused::Key, Refused::Bounds, Refused::NotArmed] {
            let chunk = ChunkNumber(u32::MAX - 4);
            let refusal = Refusal { refused, chunk };
            let mut out = [0u8; 64];
            let number = CONTROL_PACKET_NUMBERS;
            let length = refusal.emit(&mut out, &seal, PathId(9), ConnectionId(5), number);
            assert_eq!(length, Refusal::BYTES);
            let control = Control::open(&seal, &mut out[..length]).expect("a sealed refusal opens");
            assert_eq!((control.kind, control.path), (Kind::Refusal, PathId(9)));
            assert_eq!(Refusal::parse(control.body), Ok(refusal));
        }
        for body in [
            &[0; 8][..],
            &[4, 0, 0, 0, 0, 0, 0, 0],
            &[1, 1, 0, 0, 0, 0, 0, 0],
            &[1],
        ] {
            assert_eq!(Refusal::parse(body), Err(DropReason::Malformed), "{body:?}");
        }
    }

    #[test]
    fn a_credit_is_read_back() {
        let seal = Seal::new(&Secret([7; 32]));
        let credit = Credit {
            bytes: u64::MAX - 9,
        };
        let mut out = [0u8; 64];
        let number = CONTROL_PACKET_NUMBERS;
        let length = credit.emit(&mut out, &seal, PathId(9), ConnectionId(5), number);
        assert_eq!(length, Credit::BYTES);
        let control = Control::open(&seal, &mut out[..length]).expect("a sealed credit opens");
        assert_eq!((control.kind, control.path), (Kind::Credit, PathId(9)));
        assert_eq!(Credit::parse(control.body), Ok(credit));
        assert_eq!(Credit::parse(&[0; 9]), Err(DropReason::Malformed));
    }

    #[test]
    fn a_request_to_send_is_read_back() {
        let seal = Seal::new(&Secret([7; 32]));
        let request = RequestToSend {
            demand: u64::MAX,
            resend: 3,
            sent: 1 << 40,
            packets: 99,
        };
        let mut out = [0u8; 64];
        let number = CONTROL_PACKET_NUMBERS;
        let length = request.emit(&mut out, &seal, PathId(9), ConnectionId(5), number);
        let control = Control::open(&seal, &mut out[..length]).expect("a sealed request opens");
        assert_eq!(control.kind, Kind::RequestToSend);
        assert_eq!(RequestToSend::parse(control.body), Ok(request));
        assert_eq!(RequestToSend::parse(&[0; 31]), Err(DropReason::Malformed));
    }

    #[test]
    fn a_reset_is_read_back() {
        let reset = Reset {
            path: PathId(3),
            connection: ConnectionId(77),
            token: u64::MAX - 1,
        };
        assert_eq!(Reset::parse(&reset.emit()), Ok(reset));
        assert_eq!(
            Reset::parse(&reset.emit()[..15]),
            Err(DropReason::Truncated)
        );
    }
}
