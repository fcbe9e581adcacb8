//! `encryption`: memory-to-memory writes, encrypted, against the same writes that are only checked for
//! damage.

use weft_engine::Encryption;
use weft_fabric::Spec;

use super::ends::{Ends, Shape};
use super::raw::{LAP, MEMORY, MESSAGE};
use super::rounds::{Must, Rounds};
use super::writes::{self, Writes};
use super::{BenchError, Context};
use crate::report::Row;

/// Play's.
const MTU: u32 = 9000;

/// One row.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        leaves: 1,
        mtu: MTU,
        ..Spec::default()
    })?;
    let start = |encryption, draw| {
        let shape = Shape {
            encryption,
            draw,
            ..Shape::default()
        };
        Ends::start(&fabric, shape)
    };
    let (encrypted, plain) = (start(Encryption::Required, 0)?, start(Encryption::Off, 1)?);
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
    writes::measure(&encrypted, warm_up)?;
    writes::measure(&plain, warm_up)?;
    let mut rate = Rounds::default();
    for _ in 0..context.rounds {
        let ours = writes::measure(&encrypted, writes)?;
        let theirs = writes::measure(&plain, writes)?;
        rate.add_pair(ours.gigabytes_per_second(), theirs.gigabytes_per_second());
    }
    let work = format!(
        "memory to memory, AES-128-GCM, writes of 1 MiB, eight under way, MTU {MTU}, veth through \
         one leaf, every byte checked"
    );
    Ok(vec![rate.row(
        "encryption",
        work,
        "GB/s",
        "unencrypted",
        Must::RatioAtLeast(0.5),
    )])
}
