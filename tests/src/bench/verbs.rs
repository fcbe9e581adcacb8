//! `verbs`: programs of Debian over virtual devices, unmodified, and what they cost beside the engine alone;
//! `verbs-instructions`.
//!
//! The engines are in this process, each in the network namespace of its node; the programs are processes, with private
//! memory, and with shared memory (`--mmap`), which the engines map as well. A limit in microseconds needs a core for each thread that polls: a program, an engine, and the same at the
//! other end. On a machine with fewer cores the row is held against as many threads, without Weft, that pass a token.

pub(super) mod copy;
pub(crate) mod devices;
mod instructions;
pub(super) mod isolation;
pub(super) mod share;
mod soft_roce;
mod token;

use weft_engine::Progress;
use weft_fabric::Fabric;

use self::devices::{CAP_BPS, Devices, Memory, Place};
use self::token::{Course, THREADS};
use super::ends::{Ends, Shape};
use super::rounds::{Must, Rounds};
use super::{BenchError, Context, latency, writes};
use crate::report::{Row, median};

/// `ib_write_bw` keeps so many writes under way unless it is told otherwise.
const OUTSTANDING: u64 = 128;
/// Sizes of writes, and what the ids of their rows end with.
const SIZES: [(usize, &str); 2] = [(64 << 10, "64k"), (1 << 20, "1m")];
/// Ours beside what as many threads without Weft take, where there are too few cores: they reach 0.85 of it at least.
const OF_THREADS: f64 = 1.18;

/// The memory of programs, what the ids of its rows end with, and what holds for it.
struct Kind {
    memory: Memory,
    id: &'static str,
    /// `ib_write_bw` between two nodes, of the engine's own.
    of_engine: f64,
    /// What a program may take longer than the engine alone, microseconds.
    longer_by: f64,
    /// The longest one way between two programs of one node, microseconds.
    local: f64,
}

const KINDS: [Kind; 2] = [
    Kind {
        memory: Memory::Private,
        id: "",
        of_engine: 0.65,
        longer_by: 3.0,
        local: 3.0,
    },
    Kind {
        memory: Memory::Shared,
        id: "-shared",
        of_engine: 0.85,
        longer_by: 0.5,
        local: 0.8,
    },
];
/// The most instructions of a program for a write, its posting and its completion.
const INSTRUCTIONS: f64 = 400.0;

/// Programs that measure latency, and the ids of their rows.
const PINGS: [(&str, &str); 2] = [
    ("verbs-write-lat", "ib_write_lat"),
    ("verbs-send-lat", "ib_send_lat"),
];

/// All rows.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let devices = Devices::start(&fabric)?;
    let mut rows = Vec::new();
    for kind in &KINDS {
        for size in SIZES {
            rows.extend(rates(context, &fabric, &devices, kind, size)?);
        }
        for ping in PINGS {
            rows.extend(latencies(context, &fabric, &devices, kind, ping)?);
        }
    }
    rows.push(limited(context, &devices)?);
    Ok(rows)
}

/// The rate of writes beside that of the kernel's RDMA device in software.
pub(super) fn measure_beside_soft_roce(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let devices = Devices::start(&fabric)?;
    let rows = SIZES.map(|size| beside_soft_roce(context, &devices, size));
    rows.into_iter().collect()
}

/// What a write costs a program.
pub(super) fn measure_instructions(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let devices = Devices::start(&fabric)?;
    Ok(vec![instructions(context, &devices)?])
}

fn rates(
    context: &Context,
    fabric: &Fabric,
    devices: &Devices<'_>,
    kind: &Kind,
    (bytes, name): (usize, &str),
) -> Result<[Row; 2], BenchError> {
    let all = if context.quick { 256 << 20 } else { 1 << 30 };
    let count = all / bytes as u64;
    let ends = Ends::start(fabric, Shape::default())?;
    writes::repeat(&ends, bytes, count / 8, OUTSTANDING)?;
    let (mut apart, mut together) = (Rounds::default(), Rounds::default());
    for _ in 0..context.rounds {
        let ours = devices.rate(Place::TwoNodes, kind.memory, bytes, count)?;
        apart.add_pair(ours, writes::repeat(&ends, bytes, count, OUTSTANDING)?);
        let ours = devices.rate(Place::OneNode, kind.memory, bytes, count)?;
        let theirs = match kind.memory {
            Memory::Private => copy::between_processes(bytes, count)?,
            Memory::Shared => copy::within_a_process(bytes, count),
        };
        together.add_pair(ours, theirs);
    }
    let memory = kind.memory;
    let work = |place: &str| format!("ib_write_bw -s {bytes}, {place}, {memory} memory");
    let copy = match memory {
        Memory::Private => "process_vm_writev",
        Memory::Shared => "memcpy",
    };
    Ok([
        apart.row(
            &format!("verbs-bw-{name}{}", kind.id),
            work("two nodes"),
            "GB/s",
            "the engine alone",
            Must::RatioAtLeast(kind.of_engine),
        ),
        together.row(
            &format!("verbs-bw-{name}-local{}", kind.id),
            work("one node"),
            "GB/s",
            copy,
            Must::RatioAtLeast(0.8),
        ),
    ])
}

/// The peer is emulated, so what is held against it is only that it is far behind.
fn beside_soft_roce(
    context: &Context,
    devices: &Devices<'_>,
    (bytes, name): (usize, &str),
) -> Result<Row, BenchError> {
    let count = (256 << 20) / bytes as u64;
    let mut rounds = Rounds::default();
    for _ in 0..context.rounds {
        let ours = devices.rate(Place::TwoNodes, Memory::Private, bytes, count)?;
        rounds.add_pair(ours, soft_roce::rate(bytes)?);
    }
    Ok(rounds.row(
        &format!("verbs-soft-roce-{name}"),
        format!("ib_write_bw -s {bytes}, two nodes, private memory"),
        "GB/s",
        "Soft-RoCE in a virtual machine",
        Must::RatioAtLeast(20.0),
    ))
}

fn latencies(
    context: &Context,
    fabric: &Fabric,
    devices: &Devices<'_>,
    kind: &Kind,
    (id, program): (&str, &str),
) -> Result<[Row; 2], BenchError> {
    let count = if context.quick { 2_000 } else { 20_000 };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let row = |place| -> Result<Row, BenchError> {
        let course = match place {
            Place::TwoNodes => Course::TwoNodes(fabric),
            Place::OneNode => Course::OneNode,
        };
        let (mut rounds, mut alone) = (Rounds::default(), Rounds::default());
        let has_cores = cores >= THREADS;
        for _ in 0..context.rounds {
            let ours = devices.latency(place, kind.memory, program, 8, count)?;
            let own = match place {
                Place::TwoNodes => Some(engine_alone(fabric, count)?),
                Place::OneNode => None,
            };
            own.into_iter().for_each(|own| alone.add(own));
            let theirs = match has_cores {
                true => own,
                false => Some(token::one_way(course, count)?),
            };
            match theirs {
                Some(theirs) => rounds.add_pair(ours, theirs),
                None => rounds.add(ours),
            }
        }
        let threads = format!("{THREADS} threads on {cores} cores");
        let (peer, must) = match (has_cores, place) {
            (false, _) => (&*threads, Must::RatioAtMost(OF_THREADS)),
            (true, Place::TwoNodes) => ("the engine alone", Must::MoreByAtMost(kind.longer_by)),
            (true, Place::OneNode) => ("", Must::AtMost(kind.local)),
        };
        let work = format!("{program} -s 8 one way, {} memory, ", kind.memory);
        let (id, work) = match place {
            Place::TwoNodes => (
                format!("{id}{}", kind.id),
                format!("{work}two nodes; the engine alone {:.1}", alone.ours()),
            ),
            Place::OneNode => (format!("{id}-local{}", kind.id), work + "one node"),
        };
        Ok(rounds.row(&id, work, "µs", peer, must))
    };
    Ok([row(Place::TwoNodes)?, row(Place::OneNode)?])
}

/// One way between two engines whose callers poll them, microseconds.
fn engine_alone(fabric: &Fabric, count: usize) -> Result<f64, BenchError> {
    let shape = Shape {
        progress: Progress::Inline,
        draw: 1,
        ..Shape::default()
    };
    let mut ways = latency::exchange(Ends::start(fabric, shape)?, count)?;
    Ok(median(&mut ways))
}

/// What a device that is limited sends, of its limit.
fn limited(context: &Context, devices: &Devices<'_>) -> Result<Row, BenchError> {
    let (bytes, name) = SIZES[0];
    // A second, or a quarter.
    let all = if context.quick {
        CAP_BPS / 32
    } else {
        CAP_BPS / 8
    };
    let mut rounds = Rounds::default();
    for _ in 0..context.rounds {
        let count = all / bytes as u64;
        let ours = devices.limited_rate(bytes, count)?;
        rounds.add_pair(ours, CAP_BPS as f64 / 8e9);
    }
    Ok(rounds.row(
        &format!("verbs-bw-{name}-limited"),
        format!("ib_write_bw -s {bytes}, two nodes, the device limited to {CAP_BPS} bit/s"),
        "GB/s",
        "the limit",
        Must::RatioAtLeast(0.9),
    ))
}

fn instructions(context: &Context, devices: &Devices<'_>) -> Result<Row, BenchError> {
    let mut rounds = Rounds::default();
    let count = if context.quick { 2_048 } else { 16_384 };
    rounds.add(instructions::of_a_write(devices, count)?);
    Ok(rounds.row(
        "verbs-instructions",
        "ibv_post_send and ibv_poll_cq of a write of 8 B".to_owned(),
        "instructions",
        "",
        Must::AtMost(INSTRUCTIONS),
    ))
}
