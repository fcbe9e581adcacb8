//! `docs/wire.md` shows the bytes that the code writes.

use weft_core::units::{ChunkNumber, ConnectionId, Key, PathId};
use weft_core::wire::{DataHeader, Flags, HEADER_BYTES};

#[test]
fn the_documents_data_header_is_what_the_code_emits() {
    let header = DataHeader {
        path: PathId(5),
        packet: 1,
        packets: 3,
        connection: ConnectionId(0x1122_3344),
        packet_number: 7,
        sent_at: 0x0102_0304,
        chunk: ChunkNumber(9),
        chunk_index: 2,
        flags: Flags::LAST.with(Flags::IMMEDIATE),
        immediate: 0xAABB_CCDD,
        key: Key(0x1122_3344_5566_7788),
        offset: 0x1000,
    };
    let mut bytes = [0u8; HEADER_BYTES];
    header.emit(&mut bytes);
    let document = include_str!("../../../docs/wire.md");
    let shown = document
        .split("```data")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let shown: Vec<u8> = shown
        .expect("an example of the data header")
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
        .collect();
    assert_eq!(shown, bytes);
}
