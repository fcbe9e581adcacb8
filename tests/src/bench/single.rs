//! `write-64k`: writes of 64 KiB, one in flight.

use super::ends::{Ends, Shape};
use super::rounds::{Must, Rounds};
use super::ucx::{Test, Ucx};
use super::writes::{self, Writes};
use super::{BenchError, Context};
use crate::report::Row;

const BYTES: usize = 64 << 10;
/// Walked through at both ends. With one write in flight the end of a lap costs nothing.
const MEMORY: usize = 8 << 20;

/// One row.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let ends = Ends::start(&fabric, Shape::default())?;
    let count = if context.quick { 2_048 } else { 16_384 };
    let writes = Writes {
        bytes: BYTES,
        count,
        outstanding: 1,
        memory: MEMORY,
        lap: MEMORY,
    };
    let warm_up = Writes {
        count: 256,
        ..writes
    };
    writes::measure(&ends, warm_up)?;
    let ucx = Ucx::find();
    let mut rounds = Rounds::default();
    for _ in 0..context.rounds {
        let ours = writes::measure(&ends, writes)?.gigabytes_per_second();
        match &ucx {
            Some(ucx) => {
                rounds.add_pair(
                    ours,
                    ucx.measure(
                        &fabric,
                        Test::Rate {
                            bytes: BYTES,
                            count: count as usize,
                        },
                    )?,
                );
            }
            None => rounds.add(ours),
        }
    }
    let work = format!(
        "writes of 64 KiB, one in flight, worker threads, MTU {}, every byte checked",
        fabric.spec().mtu
    );
    let peer = Ucx::peer(ucx.as_ref(), "tag_bw, several in flight");
    Ok(vec![rounds.row(
        "write-64k",
        work,
        "GB/s",
        &peer,
        Must::AtLeast(2.0),
    )])
}
