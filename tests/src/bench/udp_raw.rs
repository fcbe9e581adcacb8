//! `udp-raw`: writes over UDP of three sizes against the blaster, which has no messages.

use super::ends::{Ends, Shape};
use super::raw::{LAP, MEMORY, blast};
use super::rounds::{Must, Rounds};
use super::writes::{self, Writes};
use super::{BenchError, Context};
use crate::report::Row;

const OUTSTANDING: u64 = 8;

/// Id, name, bytes and what must hold.
const CASES: [(&str, &str, usize, f64); 3] = [
    ("udp-raw-64k", "64 KiB", 64 << 10, 0.72),
    ("udp-raw-1m", "1 MiB", 1 << 20, 0.75),
    ("udp-raw-1g", "1 GiB", 1 << 30, 0.75),
];

/// A row for each size.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let ends = Ends::start(&fabric, Shape::default())?;
    let (datagram, spin) = (ends.sender.datagram_bytes(), ends.sender.spin());
    let mut rows = Vec::new();
    for (id, name, bytes, least) in CASES {
        let total = if context.quick { 256 << 20 } else { 1 << 30 };
        // The largest are eight, all of them under way at once between one source and one destination.
        let is_one_place = bytes >= LAP;
        let count = match is_one_place {
            true => OUTSTANDING,
            false => (total / bytes) as u64,
        };
        let work = Writes {
            bytes,
            count,
            outstanding: OUTSTANDING,
            memory: MEMORY,
            lap: LAP,
        };
        // Nobody pays for the first touch of its pages.
        let warm_up = Writes {
            count: (MEMORY / bytes).max(1) as u64,
            ..work
        };
        let mut rounds = Rounds::default();
        for _ in 0..context.rounds {
            let ours = match is_one_place {
                true => writes::repeat(&ends, bytes, count, OUTSTANDING)?,
                false => {
                    writes::measure(&ends, warm_up)?;
                    writes::measure(&ends, work)?.gigabytes_per_second()
                }
            };
            let sent = bytes as u64 * count;
            let theirs = blast(&fabric, datagram, spin, MEMORY.max(bytes), sent)?;
            rounds.add_pair(ours, theirs.bytes_per_second() / 1e9);
        }
        let text = format!(
            "writes of {name} over udp, eight under way, MTU {}, veth through one leaf, both poll {} µs, every byte checked",
            fabric.spec().mtu,
            spin.as_micros()
        );
        let must = Must::RatioAtLeast(least);
        rows.push(rounds.row(id, text, "GB/s", "blaster", must));
    }
    Ok(rows)
}
