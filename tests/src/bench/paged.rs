//! `paged`: pages by the TransferEngine against NIXL with a list of as many descriptors.

use weft_transfer_engine::Progress;

use super::processes::{Library, Pair, peer};
use super::rounds::{Must, Rounds};
use super::transfer::Engines;
use super::turns::{Paged, Writer};
use super::{BenchError, Context, TCP_CONGESTION};
use crate::report::Row;

/// Of each end.
const MEMORY: usize = 1 << 30;
/// Pages of an operation.
const PAGES: u32 = 256;
/// Pages of a round, at most.
const TOTAL: usize = 1 << 16;
const OUTSTANDING: usize = 8;

/// KiB of a page, and what must hold at it.
const CASES: [(usize, f64); 4] = [(1, 3.0), (4, 3.0), (16, 1.5), (64, 1.0)];

/// A row for each size.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let mut ours = Engines::start(&fabric, context.link, Progress::Inline, MEMORY)?;
    let mut nixl = Pair::start(&fabric, Library::Nixl, MEMORY);
    let name = peer(&nixl, Library::Nixl);
    let mut rows = Vec::new();
    for (kib, least) in CASES {
        let page = kib << 10;
        let total = TOTAL.min(MEMORY / page) / if context.quick { 4 } else { 1 };
        let work = Paged {
            page,
            pages: PAGES,
            operations: total as u64 / u64::from(PAGES),
            outstanding: OUTSTANDING,
        };
        ours.write_pages(work)?;
        if let Ok(nixl) = &mut nixl {
            nixl.write_pages(work)?;
        }
        let mut rounds = Rounds::default();
        for _ in 0..context.rounds {
            let rate = work.rate(ours.write_pages(work)?);
            match &mut nixl {
                Ok(nixl) => rounds.add_pair(rate, work.rate(nixl.write_pages(work)?)),
                Err(_) => rounds.add(rate),
            }
        }
        let gigabits = |rate: f64| rate * page as f64 * 8.0 / 1e9;
        let theirs = rounds
            .theirs()
            .map_or(String::new(), |rate| format!(" and {:.2}", gigabits(rate)));
        let text = format!(
            "TransferEngine, polled, {}; pages of {kib} KiB, {PAGES} an operation, {OUTSTANDING} operations under way, \
             {TCP_CONGESTION}, MTU {}, every byte checked: {:.2}{theirs} Gbit/s",
            ours.link().unwrap_or_default(),
            fabric.spec().mtu,
            gigabits(rounds.ours()),
        );
        let must = Must::RatioAtLeast(least);
        rows.push(rounds.row(&format!("paged-{kib}k"), text, "pages/s", &name, must));
    }
    Ok(rows)
}
