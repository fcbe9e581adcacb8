//! `core-1`, `core-11`: CPU time of both ends per chunk, everything but the kernel.
//!
//! CPU time of the thread and not time on the wall: on a shared machine the second counts what the
//! others do.

use std::io;

use nix::time::{ClockId, clock_gettime};

use super::rounds::{Must, Rounds};
use super::{BenchError, Context};
use crate::report::Row;
use weft_core::wire::Integrity;
use weft_sim::load::{Load, LoadConfig};

/// Payload bytes of a packet at an MTU of 1500.
const PAYLOAD: u16 = 1408;
/// Per million: 1 % reordered, 0.1 % lost.
const REORDERED: u32 = 10_000;
const LOST: u32 = 1_000;
const PATHS: u16 = 128;
/// Chunks before counting begins.
const WARM_UP: u64 = 20_000;

/// Both rows.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let chunks = if context.quick { 50_000 } else { 400_000 };
    let (mut one, mut eleven) = (Rounds::default(), Rounds::default());
    for round in 0..context.rounds {
        one.add(per_chunk(1, chunks, round)?);
        eleven.add(per_chunk(11, chunks / 4, round)?);
    }
    let work = |packets: &str, rounds: &Rounds| {
        format!(
            "CPU time of both ends per chunk of {packets}, {PAYLOAD} B each, {PATHS} paths, 1 % \
             reordered, 0.1 % lost; best {:.0} ns",
            rounds.smallest()
        )
    };
    // 330 ns for each packet would be 3,630; a chunk of eleven has to be cheaper than that.
    Ok(vec![
        one.row(
            "core-1",
            work("1 packet", &one),
            "ns",
            "",
            Must::AtMost(330.0),
        ),
        eleven.row(
            "core-11",
            work("11 packets", &eleven),
            "ns",
            "",
            Must::AtMost(3630.0),
        ),
    ])
}

fn per_chunk(packets: u32, chunks: u64, round: usize) -> Result<f64, BenchError> {
    let mut pair = Load::new(LoadConfig {
        payload: PAYLOAD,
        packets,
        paths: PATHS,
        integrity: Integrity::Sealed,
        lost: LOST,
        reordered: REORDERED,
        seed: round as u64 + 1,
    });
    pair.run(WARM_UP);
    let (sent, begun) = (pair.chunks(), cpu_nanos()?);
    pair.run(chunks);
    Ok((cpu_nanos()? - begun) as f64 / (pair.chunks() - sent) as f64)
}

/// CPU time of the calling thread. Not `getrusage`, which counts in ticks of 4 ms on some kernels:
/// 10 ns a chunk here.
fn cpu_nanos() -> Result<u64, BenchError> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_err(|errno| BenchError::system("clock_gettime")(io::Error::from(errno)))?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
