//! `split`: memory-to-memory writes of one connection over two workers, against one over one worker.
//!
//! Two workers at either end and the program that posts want five cores: on fewer they share them, and the row does not
//! hold.

use weft_engine::Progress;
use weft_fabric::Spec;

use super::ends::{Ends, Shape};
use super::raw::{LAP, MEMORY, MESSAGE};
use super::rounds::{Must, Rounds};
use super::writes::{self, Writes};
use super::{BenchError, Context};
use crate::report::Row;

/// Play's.
const MTU: u32 = 9000;
const WORKERS: u16 = 2;
/// As many as the ports of two workers make.
const PATHS: u16 = 64;

/// Two rows: the rate, and how the packets were shared.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        leaves: 1,
        mtu: MTU,
        ..Spec::default()
    })?;
    let start = |split: u16, draw| {
        let shape = Shape {
            paths: PATHS,
            progress: Progress::Threads(split.into()),
            split,
            draw,
            ..Shape::default()
        };
        Ends::start(&fabric, shape)
    };
    let (split, whole) = (start(WORKERS, 0)?, start(1, 1)?);
    let writes = Writes {
        bytes: MESSAGE,
        count: if context.quick { 256 } else { 1024 },
        outstanding: 8,
        memory: MEMORY,
        lap: LAP,
    };
    // Neither pays for the first touch of its pages in a round.
    let warm_up = Writes {
        count: 64,
        ..writes
    };
    writes::measure(&split, warm_up)?;
    writes::measure(&whole, warm_up)?;
    let (mut rate, mut share) = (Rounds::default(), Rounds::default());
    for _ in 0..context.rounds {
        let ours = writes::measure(&split, writes)?;
        let theirs = writes::measure(&whole, writes)?;
        rate.add_pair(ours.gigabytes_per_second(), theirs.gigabytes_per_second());
        share.add(ours.least_share);
    }
    let what = format!(
        "one connection over {WORKERS} workers, memory to memory, writes of 1 MiB, eight under way, MTU {MTU}, veth \
         through one leaf"
    );
    Ok(vec![
        rate.row(
            "split",
            format!("{what}, every byte checked"),
            "GB/s",
            "one worker",
            Must::RatioAtLeast(1.5),
        ),
        share.row(
            "split-share",
            format!("{what}: packets of the worker that sent fewer"),
            "of all",
            "",
            Must::AtLeast(0.25),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_workers_send_and_the_smaller_share_is_told() {
        let shape = Shape {
            paths: 4,
            progress: Progress::Threads(WORKERS.into()),
            split: WORKERS,
            draw: 12,
            ..Shape::default()
        };
        let writes = Writes {
            bytes: 64 << 10,
            count: 32,
            outstanding: 8,
            memory: 1 << 20,
            lap: 1 << 20,
        };
        let measured = writes::measure(&Ends::on_loopback(shape), writes).unwrap();
        assert!(
            measured.least_share > 0.0 && measured.least_share <= 0.5,
            "{measured:?}"
        );
    }
}
