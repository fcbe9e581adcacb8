//! Figure 13: latency and throughput of RDMA writes of 2 B to 8 MiB, by perftest's programs over the devices of two nodes,
//! as the bench rows `verbs` run them.

use super::drawing::{Axis, Drawing, Line, LineOrigin, Panel, Unit};
use crate::bench::rounds::Rounds;
use crate::bench::verbs::devices::{Devices, Memory, Place};
use crate::bench::{BenchError, Context};

/// Bytes of a write: 2, 8, 32 and so on to 8 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 0..=11;
/// Bytes that a round of one size moves at most, unless that were fewer than [`LEAST`] writes.
const ROUND_BYTES: usize = 256 << 20;
const LEAST: usize = 100;

/// Programs with memory of their own, and with memory that the engines map too.
const KINDS: [Memory; 2] = [Memory::Private, Memory::Shared];

pub(super) fn measure(context: &Context) -> Result<Drawing, BenchError> {
    let fabric = context.two_nodes()?;
    let devices = Devices::start(&fabric)?;
    let (round_bytes, most) = match context.quick {
        true => (ROUND_BYTES / 8, 1_000),
        false => (ROUND_BYTES, 20_000),
    };
    let (mut latencies, mut rates) = (Vec::new(), Vec::new());
    for memory in KINDS {
        let (mut latency_points, mut rate_points) = (Vec::new(), Vec::new());
        for size in SIZES {
            let bytes = 2 << (2 * size);
            let count = (round_bytes / bytes).clamp(LEAST, most);
            let (mut latency, mut rate) = (Rounds::default(), Rounds::default());
            for _ in 0..context.rounds {
                latency.add(devices.latency(
                    Place::TwoNodes,
                    memory,
                    "ib_write_lat",
                    bytes,
                    count,
                )?);
                rate.add(devices.rate(Place::TwoNodes, memory, bytes, count as u64)?);
            }
            latency_points.push((bytes as f64, latency.ours() / 1e6));
            rate_points.push((bytes as f64, rate.ours() * 1e9));
        }
        let line = |program, points| {
            let name = format!("{program}, {memory} memory, measured");
            Line::new(LineOrigin::Measured, name, points)
        };
        latencies.push(line("ib_write_lat", latency_points));
        rates.push(line("ib_write_bw", rate_points));
    }
    let panel = |label, unit, lines| Panel {
        x: Axis {
            label: "bytes of a write",
            unit: Unit::Bytes,
        },
        y: Axis { label, unit },
        lines,
    };
    Ok(Drawing {
        title: "RDMA writes between devices of two nodes (STELLAR, Figure 13)".to_owned(),
        panels: vec![
            panel("one way, median", Unit::Seconds, latencies),
            panel("throughput", Unit::BytesPerSecond, rates),
        ],
    })
}
