//! TE8: throughput of the TransferEngine's single writes of 64 KiB to 32 MiB and of its paged writes of 1 to 64 KiB, as in its
//! paper's Figure 8 and Table 2; beside it NIXL, Mooncake and a plain TCP socket, as the bench rows `auto-peers`, `paged` and
//! `tcp-raw` run them.

use std::time::Duration;

use weft_transfer_engine::Progress;

use super::drawing::{Axis, Drawing, Line, LineOrigin, Panel, Unit};
use crate::bench::peers::failed;
use crate::bench::processes::{Library, Pair};
use crate::bench::rounds::Rounds;
use crate::bench::transfer::{Engines, Link};
use crate::bench::turns::{Many, Paged, Writer};
use crate::bench::writes::Writes;
use crate::bench::{BenchError, Context, TCP_CONGESTION, tcp_raw};

/// Of each end of each pair.
const MEMORY: usize = 256 << 20;
const OUTSTANDING: usize = 8;
/// Bytes of a write: 64 KiB, 128 KiB and so on to 32 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 16..=25;
/// KiB of a page.
const PAGES: [usize; 4] = [1, 4, 16, 64];
/// Pages of an operation.
const OPERATION: u32 = 256;
/// How long both ends of the plain socket poll before they sleep: as long as the engine's workers do.
const SPIN: Duration = Duration::from_micros(20);

pub(super) fn measure(context: &Context) -> Result<Drawing, BenchError> {
    let fabric = context.two_nodes()?;
    let engines = |link| Engines::start(&fabric, link, Progress::Inline, MEMORY);
    let (mut udp, mut tcp) = (engines(Link::Udp)?, engines(Link::Tcp)?);
    let pair = |library, name| {
        let pair = Pair::start(&fabric, library, MEMORY);
        pair.map_err(|problem| failed(name, &problem))
    };
    let mut nixl = pair(Library::Nixl, "NIXL")?;
    let mut mooncake = pair(Library::Mooncake, "Mooncake")?;
    let names = [
        "TransferEngine over udp".to_owned(),
        "TransferEngine over tcp".to_owned(),
        nixl.name(),
        mooncake.name(),
        "a TCP socket".to_owned(),
    ];
    let rounds = if context.quick { 1 } else { context.rounds };

    let mut writes: [Vec<(f64, f64)>; 5] = Default::default();
    for size in SIZES {
        let bytes = 1 << size;
        let work = Many {
            bytes,
            count: (MEMORY / bytes) as u64,
            outstanding: OUTSTANDING,
        };
        let plain = Writes {
            bytes,
            count: work.count,
            outstanding: OUTSTANDING as u64,
            memory: MEMORY,
            lap: MEMORY,
        };
        let mut rates = [(); 5].map(|()| Rounds::default());
        for _ in 0..rounds {
            let writers: [&mut dyn Writer; 4] = [&mut udp, &mut tcp, &mut nixl, &mut mooncake];
            for (writer, rate) in writers.into_iter().zip(&mut rates) {
                rate.add(work.rate(writer.write(work)?) * 1e9);
            }
            rates[4].add(tcp_raw::plain(&fabric, plain, SPIN)? * 1e9);
        }
        for (rate, points) in rates.iter().zip(&mut writes) {
            points.push((bytes as f64, rate.ours()));
        }
    }

    let mut pages: [Vec<(f64, f64)>; 3] = Default::default();
    for kib in PAGES {
        let work = Paged {
            page: kib << 10,
            pages: OPERATION,
            operations: (MEMORY / (kib << 10)).min(1 << 16) as u64 / u64::from(OPERATION),
            outstanding: OUTSTANDING,
        };
        let mut rates = [(); 3].map(|()| Rounds::default());
        for _ in 0..rounds {
            let writers: [&mut dyn Writer; 3] = [&mut udp, &mut tcp, &mut nixl];
            for (writer, rate) in writers.into_iter().zip(&mut rates) {
                rate.add(work.rate(writer.write_pages(work)?));
            }
        }
        for (rate, points) in rates.iter().zip(&mut pages) {
            points.push(((kib << 10) as f64, rate.ours()));
        }
    }

    let lines = |all: Vec<Vec<(f64, f64)>>| {
        let lines = all.into_iter().zip(&names);
        lines
            .map(|(points, name)| Line::new(LineOrigin::Measured, name, points))
            .collect()
    };
    let panel = |x, y, unit, lines| Panel {
        x: Axis {
            label: x,
            unit: Unit::Bytes,
        },
        y: Axis { label: y, unit },
        lines,
    };
    let bytes_per_second = Unit::BytesPerSecond;
    Ok(Drawing {
        title: format!(
            "Writes and pages between two nodes, eight under way, MTU {}, {TCP_CONGESTION} (TransferEngine, Figure 8 and Table 2)",
            fabric.spec().mtu
        ),
        panels: vec![
            panel(
                "bytes of a write",
                "throughput",
                bytes_per_second,
                lines(writes.into()),
            ),
            panel(
                "bytes of a page",
                "pages, 256 an operation",
                Unit::PerSecond,
                lines(pages.into()),
            ),
        ],
    })
}
