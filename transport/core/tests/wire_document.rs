//! `docs/wire.md` shows the bytes that the code writes.

use weft_core::units::{ChunkNumber, ConnectionId, Key, PathId};
use weft_core::wire::{
    CONTROL_PACKET_NUMBERS, DataHeader, Flags, HEADER_BYTES, KeyPhase, Kind, PREFIX_BYTES, Revoke,
    Revoked, Seal, Secret, TRAILER_BYTES, field,
};

const DOCUMENT: &str = include_str!("../../../docs/wire.md");

/// The table that starts with `title` in its first column's heading: each row's first two cells.
fn table(title: &str) -> Vec<(String, String)> {
    let heading = format!("| {title} | ");
    let start = DOCUMENT
        .lines()
        .skip_while(|line| !line.starts_with(&heading));
    let rows = start.skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim));
    cells
        .map(|mut cells| {
            let mut cell = || cells.next().unwrap_or_default().to_owned();
            (cell(), cell())
        })
        .collect()
}

#[test]
fn the_documents_tables_are_the_fields_that_the_code_reads_and_writes() {
    for (title, fields) in field::ALL {
        let rows = fields.iter().map(|(name, field)| {
            let bytes = format!("{}..{}", field.start, field.end);
            (bytes, (*name).to_owned())
        });
        let shown = table(&format!("{title}: bytes"));
        assert_eq!(shown, rows.collect::<Vec<_>>(), "{title}");
    }
}

#[test]
fn the_document_lists_every_kind() {
    let kinds = Kind::ALL.iter();
    let kinds = kinds.map(|kind| (format!("{}", *kind as u8), format!("{kind:?}")));
    assert_eq!(table("kind"), kinds.collect::<Vec<_>>());
}

#[test]
fn the_documents_data_header_is_what_the_code_emits() {
    let header = DataHeader {
        opcode: weft_core::wire::Opcode::Write,
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
    header.emit(KeyPhase::FIRST, &mut bytes);
    assert_eq!(example("data"), bytes);
}

#[test]
fn the_documents_revocation_and_its_answer_are_what_the_code_emits() {
    let (path, connection, number) = (PathId(0), ConnectionId(1), CONTROL_PACKET_NUMBERS);
    let (first, end) = (ChunkNumber(0xffff_fffe), ChunkNumber(3));
    let seal = Seal::new(&Secret([1; 32]));
    let revoke = Revoke {
        first,
        end,
        number: 0x105,
        oldest: 0x101,
    };
    let revoked = Revoked {
        number: 0x105,
        whole: false,
    };
    let mut bytes = [0; 64];
    let length = revoke.emit(&mut bytes, &seal, path, connection, number);
    let body = PREFIX_BYTES..length - TRAILER_BYTES;
    assert_eq!(example("revoke"), bytes[body]);
    let length = revoked.emit(&mut bytes, &seal, path, connection, number);
    let body = PREFIX_BYTES..length - TRAILER_BYTES;
    assert_eq!(example("revoked"), bytes[body]);
}

/// The bytes of the block of this name.
fn example(name: &str) -> Vec<u8> {
    let begins = format!("```{name}\n");
    let block = DOCUMENT.split(&begins).nth(1);
    let block = block.and_then(|rest| rest.split("```").next());
    let bytes = block.expect("an example").split_whitespace();
    let byte = |text| u8::from_str_radix(text, 16).expect("hexadecimal");
    bytes.map(byte).collect()
}
