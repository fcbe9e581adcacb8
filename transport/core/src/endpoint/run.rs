//! A received run cut into pieces that one connection takes: the kernel merges datagrams by ports only.

/// Of the first eight bytes of a packet, read as one little-endian number: version, kind, path and connection.
const NAME: u64 = 0xffff_ffff_0000_ffff;

/// Bytes at the front of a run that belong together: equal version, kind, path and connection.
pub(super) fn leading_piece(run: &[u8], segment: usize) -> usize {
    if run.len() <= segment {
        return run.len();
    }
    let name = |packet: &[u8]| {
        let head: &[u8; 8] = packet.first_chunk()?;
        Some(u64::from_le_bytes(*head) & NAME)
    };
    let mut packets = run.chunks(segment);
    let Some(first) = packets.next() else {
        return 0;
    };
    let first_name = name(first);
    let same = packets
        .take_while(|packet| name(packet) == first_name)
        .map(<[u8]>::len);
    first.len() + same.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_where_the_connection_the_path_or_the_kind_changes() {
        let packet = |kind: u8, path: u8, id: u8| {
            let mut packet = [0; 20];
            (packet[0], packet[1], packet[4]) = (kind, path, id);
            packet
        };
        let packets = [
            packet(1, 0, 1),
            packet(1, 0, 1),
            packet(1, 0, 2),
            packet(17, 0, 2),
            packet(17, 3, 2),
            packet(17, 3, 2),
        ];
        let mut run = packets.concat();
        // The last one of a run may be shorter.
        run.truncate(6 * 20 - 4);
        let mut pieces = Vec::new();
        let mut rest = &run[..];
        while !rest.is_empty() {
            let piece = leading_piece(rest, 20);
            pieces.push(piece);
            rest = &rest[piece..];
        }
        assert_eq!(pieces, [40, 20, 20, 36]);
    }

    #[test]
    fn a_run_shorter_than_a_name_is_one_piece() {
        assert_eq!(leading_piece(&[0; 5], 20), 5);
        assert_eq!(leading_piece(&[1, 2, 3, 4, 5], 2), 5);
    }
}
