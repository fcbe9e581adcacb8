//! `python`: writes by the Python module against the same by the Rust crate.

use weft_transfer_engine::Progress;

use super::processes::{Library, Pair, peer};
use super::rounds::{Must, Rounds};
use super::transfer::{Engines, Link};
use super::turns::{Many, Writer};
use super::{BenchError, Context};
use crate::report::Row;

/// Of each end.
const MEMORY: usize = 512 << 20;
const OUTSTANDING: usize = 8;

/// Id, name, bytes and what must hold.
const CASES: [(&str, &str, usize, f64); 2] = [
    ("python-64k", "64 KiB", 64 << 10, 0.85),
    ("python-1m", "1 MiB", 1 << 20, 0.95),
];

/// A row for each size.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    // Of both faces, so that it is not a choice that is measured.
    let link = Link::Udp;
    let mut rust = Engines::start(&fabric, link, Progress::Threads, MEMORY)?;
    let mut python = Pair::start(&fabric, Library::Weft, MEMORY);
    let mut rows = Vec::new();
    for (id, name, bytes, least) in CASES {
        let memory = if context.quick { MEMORY / 4 } else { MEMORY };
        let work = Many {
            bytes,
            count: (memory / bytes) as u64,
            outstanding: OUTSTANDING,
        };
        let mut rounds = Rounds::default();
        if let Ok(python) = &mut python {
            python.write(work)?;
            rust.write(work)?;
            for _ in 0..context.rounds {
                let ours = work.rate(python.write(work)?);
                rounds.add_pair(ours, work.rate(rust.write(work)?));
            }
        }
        let text = format!(
            "{} over {}, writes of {name}, {OUTSTANDING} under way, MTU {}, every byte checked",
            peer(&python, Library::Weft),
            link.name(),
            fabric.spec().mtu,
        );
        let must = Must::RatioAtLeast(least);
        rows.push(rounds.row(id, text, "GB/s", "the Rust face", must));
    }
    Ok(rows)
}
