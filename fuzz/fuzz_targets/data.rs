//! Data packets of any content from a peer that holds the secret, sealed or encrypted.
//!
//! No panic; what is taken is placed where its header says and nowhere else; what is dropped, replayed or
//! changed on the way places nothing; nor does what was revoked.
#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use weft_core::units::{ChunkNumber, Key, PathId};
use weft_core::wire::{Atomic, DataHeader, Flags, Integrity, Opcode, Request, Revoke};
use weft_fuzz::{B, Duo, KEY};

const FLAGS: [Flags; 4] = [
    Flags::LAST,
    Flags::IMMEDIATE,
    Flags::RETRANSMITTED,
    Flags::ACK_NOW,
];

fuzz_target!(|bytes: &[u8]| {
    let Some((&mode, mut rest)) = bytes.split_first() else {
        return;
    };
    let integrity = if mode & 1 == 0 {
        Integrity::Sealed
    } else {
        Integrity::Aead
    };
    let mut duo = Duo::with(20_000, integrity);
    let (mut revocations, mut revoked) = (0, Vec::new());
    while let [
        packet,
        packets,
        chunk,
        index,
        flags,
        key,
        number,
        low,
        high,
        length,
        tail @ ..,
    ] = rest
    {
        rest = tail;
        if packet >> 6 == 3 {
            // Around the start of the numbers, as below.
            let first = ChunkNumber(i32::from(*chunk as i8) as u32);
            let revoke = Revoke {
                first,
                end: first.plus(1 + u32::from(index % 8)),
                number: revocations,
                oldest: revocations.saturating_sub(u64::from(packets % 4)),
            };
            let before = duo.placed();
            if duo.revokes(1_000 + revocations, &revoke).is_ok() {
                revoked.push(revoke.first..revoke.end);
            }
            assert_eq!(duo.placed(), before);
            revocations += 1;
            continue;
        }
        let set = FLAGS.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
        let opcode = match key >> 6 {
            0 | 1 => Opcode::Write,
            2 => [Opcode::Send, Opcode::Response][usize::from(*length) % 2],
            _ => Opcode::Request,
        };
        let header = DataHeader {
            opcode,
            path: PathId(0),
            packet: packet & 0x3f,
            packets: *packets,
            connection: B,
            packet_number: u64::from(*number) << (flags >> 4),
            sent_at: 0,
            // Around the start of the numbers, on both sides.
            chunk: ChunkNumber(i32::from(*chunk as i8) as u32),
            chunk_index: u32::from(*index),
            flags: set.fold(Flags::NONE, |all, (_, flag)| all.with(*flag)),
            immediate: 3,
            key: if key % 8 == 7 { Key(1) } else { KEY },
            offset: u64::from(u16::from_le_bytes([*low, *high])),
        };
        let value = u64::from(*length);
        let request = match length % 4 {
            0 => Some(Request::Read { bytes: value }),
            1 => Some(Request::Atomic(Atomic::FetchAdd { add: value })),
            2 => Some(Request::Atomic(Atomic::CompareSwap { compare: 0, swap: value })),
            _ => None,
        };
        let request = request.filter(|_| opcode == Opcode::Request);
        let plain = vec![length | 1; usize::from(*length) * 4];
        let payload = request.map_or(plain, |request| request.emit().to_vec());
        let sealed = duo.seal_data(&header, &payload);

        let before = duo.placed();
        let mut changed = sealed.clone();
        let at = usize::from(*number) * 7 % changed.len();
        changed[at] ^= 1 << (number % 8);
        assert!(duo.writes(&changed).is_err(), "byte {at} was changed, and the packet taken");
        assert_eq!(duo.placed(), before, "a changed packet was placed");

        let mut expected = before;
        if duo.writes(&sealed).is_ok() {
            let is_in = |range: &Range<ChunkNumber>| {
                header.chunk.ahead_of(range.start) >= 0 && header.chunk.ahead_of(range.end) < 0
            };
            assert!(!revoked.iter().any(is_in), "{:?} was revoked, and taken", header.chunk);
            let at = header.offset as usize;
            match (opcode, request) {
                (Opcode::Write, _) => {
                    expected[at..at + payload.len()].copy_from_slice(&payload);
                }
                (_, Some(Request::Atomic(atomic))) => {
                    let word = expected[at..].first_chunk_mut().expect("the word was there");
                    *word = atomic.apply(u64::from_le_bytes(*word)).to_le_bytes();
                }
                (_, Some(Request::Read { .. })) => {}
                // One that nobody waits for goes nowhere.
                (Opcode::Response, None) => {}
                (opcode, None) => panic!("{opcode:?} was taken, and nobody waits for it"),
            }
        }
        assert_eq!(duo.placed(), expected);
        assert!(duo.writes(&sealed).is_err(), "a packet was taken twice");
        assert_eq!(duo.placed(), expected, "a replayed packet was placed");
    }
});
