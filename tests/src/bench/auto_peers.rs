//! `auto-peers`: writes by the TransferEngine against NIXL and Mooncake; `ucx_perftest` is printed beside.

use weft_transfer_engine::Progress;

use super::processes::{Library, Pair, peer};
use super::rounds::{Must, Rounds};
use super::transfer::Engines;
use super::turns::{Many, Writer};
use super::ucx::{Test, Ucx};
use super::{BenchError, Context, TCP_CONGESTION};
use crate::report::Row;

/// Of each end: what the writes go through, or the one place of the largest.
const MEMORY: usize = 1 << 30;

/// A size and what must hold against NIXL.
struct Case {
    id: &'static str,
    name: &'static str,
    bytes: usize,
    least: f64,
}

const CASES: [Case; 3] = [
    Case {
        id: "auto-peers-64k",
        name: "64 KiB",
        bytes: 64 << 10,
        least: 1.15,
    },
    Case {
        id: "auto-peers-1m",
        name: "1 MiB",
        bytes: 1 << 20,
        least: 1.0,
    },
    Case {
        id: "auto-peers-1g",
        name: "1 GiB",
        bytes: 1 << 30,
        least: 1.0,
    },
];

/// What must hold against Mooncake, at each size.
const LEAST_OF_MOONCAKE: f64 = 2.0;

/// Two rows for each size, with one write under way and with eight.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let mut ours = Engines::start(&fabric, context.link, Progress::Inline, MEMORY)?;
    let mut nixl = Pair::start(&fabric, Library::Nixl, MEMORY);
    let mut mooncake = Pair::start(&fabric, Library::Mooncake, MEMORY);
    let ucx = Ucx::find();
    let names = [
        peer(&nixl, Library::Nixl),
        peer(&mooncake, Library::Mooncake),
    ];
    let mut rows = Vec::new();
    for case in CASES {
        for outstanding in [1, 8] {
            let work = case.work(context.quick, outstanding);
            // Nobody pays for a connection, its slow start or the first touch of pages.
            ours.write(work)?;
            for pair in [&mut nixl, &mut mooncake].into_iter().flatten() {
                pair.write(work)?;
            }
            let mut against = [(); 2].map(|()| Rounds::default());
            let mut beside = Rounds::default();
            for _ in 0..context.rounds {
                let rate = work.rate(ours.write(work)?);
                for (pair, rounds) in [&mut nixl, &mut mooncake].into_iter().zip(&mut against) {
                    match pair {
                        Ok(pair) => rounds.add_pair(rate, work.rate(pair.write(work)?)),
                        Err(_) => rounds.add(rate),
                    }
                }
                if let Some(ucx) = &ucx {
                    let test = Test::Rate {
                        bytes: work.bytes,
                        count: work.count as usize,
                    };
                    beside.add(ucx.measure(&fabric, test)?);
                }
            }
            let beside = match &ucx {
                Some(_) => format!("UCX tag_bw, one buffer, {:.2} GB/s", beside.ours()),
                None => "UCX is not installed".to_owned(),
            };
            let text = format!(
                "TransferEngine, polled, {}; writes of {}, {outstanding} under way, {TCP_CONGESTION}, MTU {}, veth through one \
                 leaf, every byte checked; {beside}",
                ours.link().unwrap_or_default(),
                case.name,
                fabric.spec().mtu,
            );
            let musts = [case.least, LEAST_OF_MOONCAKE].map(Must::RatioAtLeast);
            for ((suffix, must), (rounds, name)) in ["", "-mooncake"]
                .into_iter()
                .zip(musts)
                .zip(against.iter().zip(&names))
            {
                let id = format!("{}-{outstanding}{suffix}", case.id);
                rows.push(rounds.row(&id, text.clone(), "GB/s", name, must));
            }
        }
    }
    Ok(rows)
}

impl Case {
    fn work(&self, quick: bool, outstanding: usize) -> Many {
        // The largest go from one place to one place; the others once through the memory, or a part of it.
        let count = match self.bytes {
            MEMORY => outstanding.max(if quick { 2 } else { 4 }),
            bytes if quick => MEMORY / 4 / bytes,
            bytes => MEMORY / bytes,
        };
        Many {
            bytes: self.bytes,
            count: count as u64,
            outstanding,
        }
    }
}
