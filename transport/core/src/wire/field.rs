//! Where each field stands in its packet: `emit`, `parse` and the tables of `docs/wire.md` use these.

/// The bytes of a field.
pub type Field = core::ops::Range<usize>;

macro_rules! fields {
    ($($(#[$doc:meta])* $part:ident = $title:literal {
        $($(#[$field_doc:meta])* $field:ident = $from:literal .. $to:literal, $name:literal;)*
    })*) => {
        $($(#[$doc])* pub mod $part {
            use super::Field;
            $($(#[$field_doc])* #[doc = concat!("The field `", $name, "`.")] pub const $field: Field = $from..$to;)*
        })*

        /// Every part of a packet by its title in `docs/wire.md`, with its fields in order.
        pub const ALL: &[(&str, &[(&str, Field)])] = &[$(($title, &[$(($name, $part::$field)),*])),*];
    };
}

fields! {
    /// The first 16 bytes of every packet.
    prefix = "Prefix" {
        VERSION_KIND = 0..1, "version, kind";
        PATH = 1..2, "path";
        INDEX_PHASE = 2..3, "packet index, key phase";
        PACKETS = 3..4, "packets in chunk";
        CONNECTION = 4..8, "connection id";
        PACKET_NUMBER = 8..16, "packet number";
    }
    /// A data packet's header, behind the prefix.
    data = "Data" {
        SENT_AT = 16..20, "sent-at";
        CHUNK = 20..24, "chunk number";
        CHUNK_INDEX = 24..27, "chunk index in message";
        FLAGS = 27..28, "flags";
        IMMEDIATE = 28..32, "immediate";
        KEY = 32..40, "key";
        OFFSET = 40..48, "offset";
    }
    /// The payload of a request.
    request = "Request" {
        KIND = 0..4, "what to do";
        ZERO = 4..8, "0";
        VALUE = 8..16, "bytes or value";
        COMPARE = 16..24, "compare";
    }
    /// The trailer of a packet that is sealed but not encrypted.
    trailer = "Trailer" {
        HASH = 0..8, "keyed hash";
        CRC = 8..12, "CRC32C";
        ZERO = 12..16, "0";
    }
    /// The fixed part of an acknowledgement's body.
    ack = "Ack" {
        CUMULATIVE = 0..4, "cumulative";
        WORDS = 4..5, "words of the map";
        PARTIALS = 5..6, "partials";
        ECHOES = 6..7, "echoes";
        ZERO = 7..8, "0";
        SENT_AT = 8..12, "sent-at";
    }
    /// One partly received chunk of an acknowledgement.
    partial = "Partial" {
        CHUNK = 0..4, "chunk number";
        OF = 4..5, "packets in chunk";
        ZERO = 5..8, "0";
        PACKETS = 8..16, "map of packets";
    }
    /// One echo of an acknowledgement.
    echo = "Echo" {
        PATH = 0..1, "path";
        ZERO = 1..2, "0";
        CE = 2..4, "packets with CE";
        PACKETS = 4..6, "packets";
        LARGEST = 6..8, "largest packet";
        SENT_AT = 8..12, "sent-at";
        DELAY = 12..16, "delay";
        NUMBER = 16..20, "packet number";
    }
    /// The body of a probe.
    probe = "Probe" {
        SENT_AT = 0..4, "sent-at";
        ZERO = 4..8, "0";
    }
    /// The body of a refusal.
    refusal = "Refusal" {
        REASON = 0..4, "reason";
        CHUNK = 4..8, "chunk number";
    }
    /// The body of a credit.
    credit = "Credit" {
        BYTES = 0..8, "bytes";
    }
    /// The body of a revocation.
    revoke = "Revoke" {
        FIRST = 0..4, "first chunk";
        END = 4..8, "end";
        NUMBER = 8..16, "revocation";
        OLDEST = 16..24, "oldest";
    }
    /// The body of the answer to a revocation.
    revoked = "Revoked" {
        NUMBER = 0..8, "revocation";
        WHOLE = 8..12, "whole";
        ZERO = 12..16, "0";
    }
    /// The body of a request to send.
    request_to_send = "RequestToSend" {
        DEMAND = 0..8, "demand";
        RESEND = 8..16, "resend";
        SENT = 16..24, "sent";
        PACKETS = 24..32, "packets";
    }
}
