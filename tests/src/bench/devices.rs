//! `devices`: virtual RDMA devices made one by one; `device-objects`: what a program makes of one.

pub(crate) mod start_up;

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_device::control::{Answer, Limits, QueuePair, QueueSizes, Region, Request};
use weft_device::state::QueuePairType;
use weft_device_server::{Device, Server};
use weft_device_socket::Client;
use weft_engine::{EngineConfig, PortRange, Secret};

use super::rounds::{Must, Rounds};
use super::rss::anonymous_bytes;
use super::verbs::copy;
use super::{BenchError, Context};
use crate::report::Row;

/// Devices of a node at most (STELLAR, section 4).
const DEVICES: u32 = 65_536;
/// Devices that are made while there are already some.
const SAMPLE: u32 = 256;
/// Objects that are made of one kind.
const OBJECTS: u32 = 4000;
/// Regions of one size made before those of the other.
const BLOCK: u32 = 50;
/// Above that of any other row.
const FIRST_PORT: u16 = 26_000;

const LIMITS: Limits = Limits {
    domains: 16,
    regions: 65_536,
    completion_queues: 16,
    queue_pairs: 8192,
    address_handles: 16,
    completions: 1024,
    work_requests: 64,
    sges: 4,
    inline_bytes: 64,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 1 << 30,
};

/// A directory in memory: a file system on a disk allows a file 65,000 names, and each device has the control socket
/// under a name of its own.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // The server has removed what it made; nothing else is there.
        let _ = fs::remove_dir(&self.0);
    }
}

/// How long devices take to make at two sizes, what an idle one takes, and how long a program waits for its memory.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let devices = if context.quick { DEVICES / 16 } else { DEVICES };
    let (directory, server) = start()?;
    let before = anonymous_bytes("self")?;
    let mut made = 0;
    let few = make(&server, &mut made, SAMPLE)?;
    for _ in 0..devices - 2 * SAMPLE {
        create(&server, &mut made)?;
    }
    let many = make(&server, &mut made, SAMPLE)?;
    let bytes = anonymous_bytes("self")?.saturating_sub(before);
    let mut idle = Rounds::default();
    idle.add(bytes as f64 / f64::from(devices) / 1024.0);
    let mut longest = Rounds::default();
    longest.add(many[many.len() * 99 / 100]);
    let mut flat = Rounds::default();
    flat.add_pair(many[many.len() / 2], few[few.len() / 2]);
    let mut rows = vec![
        longest.row(
            "device-create-p99",
            format!("p99 of making a device beside {devices} others"),
            "ms",
            "",
            Must::AtMost(5.0),
        ),
        flat.row(
            "device-create-flat",
            format!("median of making a device beside {devices} others"),
            "ms",
            "beside none",
            Must::RatioAtMost(2.0),
        ),
        idle.row(
            "device-idle",
            format!("RssAnon of the engine for each of {devices} idle devices"),
            "KiB",
            "",
            Must::AtMost(16.0),
        ),
    ];
    let first = directory.0.join(name(0));
    rows.extend(start_up::measure(context, &first)?);
    rows.extend(copy::measure(context)?);
    Ok(rows)
}

/// How many queue pairs and regions a program makes in a second.
pub(super) fn measure_objects(context: &Context) -> Result<Vec<Row>, BenchError> {
    with_device(|device| objects(context, device))
}

fn start() -> Result<(Directory, Server), BenchError> {
    let directory = Directory(format!("/dev/shm/weft-bench-{}", std::process::id()).into());
    let ports = PortRange {
        first: FIRST_PORT,
        count: 16,
    };
    let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([1; 32]));
    let server = Server::start(&directory.0, config, 1, drop).map_err(failed)?;
    Ok((directory, server))
}

/// Does something with the directory of a device, which is there meanwhile.
pub(crate) fn with_device<R>(
    act: impl FnOnce(&Path) -> Result<R, BenchError>,
) -> Result<R, BenchError> {
    let (directory, server) = start()?;
    create(&server, &mut 0)?;
    act(&directory.0.join(name(0)))
}

/// Queue pairs and regions that one program makes of one device.
fn objects(context: &Context, device: &Path) -> Result<Vec<Row>, BenchError> {
    let mut pairs = Rounds::default();
    let (mut regions, mut sizes) = (Rounds::default(), Rounds::default());
    for _ in 0..context.rounds {
        let program = Client::open(device).map_err(failed)?;
        let ask = |request| {
            let answer = program.ask(&request);
            answer.map_err(|error| failed(format!("{request:?}: {error:?}")))
        };
        let domain = created(ask(Request::CreateDomain)?)?;
        let queue = match ask(Request::CreateCompletionQueue {
            entries: 64,
            channel: None,
        })? {
            Answer::CreatedQueue { queue, .. } => queue,
            other => return Err(failed(format!("{other:?}"))),
        };
        let wanted = QueuePair {
            domain,
            kind: QueuePairType::ReliableConnected,
            send_completions: queue,
            receive_completions: queue,
            shared_receive_queue: None,
            sizes: QueueSizes {
                sends: 16,
                receives: 16,
                send_sges: 1,
                receive_sges: 1,
                inline_bytes: 0,
            },
        };
        let begun = Instant::now();
        for _ in 0..OBJECTS {
            ask(Request::CreateQueuePair(wanted))?;
        }
        pairs.add(f64::from(OBJECTS) / begun.elapsed().as_secs_f64());
        let register = |bytes: u64| {
            let region = Region {
                domain,
                address: 1 << 40,
                bytes,
                io_address: 1 << 40,
                access: 7,
                file_offset: None,
            };
            let begun = Instant::now();
            for _ in 0..BLOCK {
                ask(Request::RegisterRegion(region))?;
            }
            Ok::<_, BenchError>(begun.elapsed().as_secs_f64())
        };
        // In turns: a table with more regions takes longer to add to.
        let (mut large, mut small) = (0.0, 0.0);
        for _ in 0..OBJECTS / BLOCK {
            large += register(1 << 30)?;
            small += register(1 << 20)?;
        }
        regions.add(f64::from(OBJECTS) / large);
        sizes.add_pair(f64::from(OBJECTS) / large, f64::from(OBJECTS) / small);
    }
    let each_second = |what: &str| format!("{what} made by one program in a second");
    Ok(vec![
        pairs.row(
            "device-queue-pairs",
            each_second("queue pairs"),
            "/s",
            "",
            Must::AtLeast(10_000.0),
        ),
        regions.row(
            "device-regions",
            each_second("regions of 1 GiB"),
            "/s",
            "",
            Must::AtLeast(2_000.0),
        ),
        sizes.row(
            "device-regions-flat",
            each_second("regions of 1 GiB"),
            "/s",
            "regions of 1 MiB",
            Must::RatioAtLeast(0.8),
        ),
    ])
}

fn created(answer: Answer) -> Result<u32, BenchError> {
    match answer {
        Answer::Created(handle) => Ok(handle),
        other => Err(failed(format!("{other:?}"))),
    }
}

fn name(device: u32) -> String {
    format!("weft{device}")
}

/// Makes devices one by one. How long each took, milliseconds, the shortest first.
fn make(server: &Server, made: &mut u32, count: u32) -> Result<Vec<f64>, BenchError> {
    let mut times = Vec::new();
    for _ in 0..count {
        times.push(create(server, made)?.as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn create(server: &Server, made: &mut u32) -> Result<Duration, BenchError> {
    let mut gid = [0; 16];
    gid[12..].copy_from_slice(&made.to_be_bytes());
    let device = Device::new(gid, LIMITS);
    let begun = Instant::now();
    server.create(&name(*made), device).map_err(failed)?;
    *made += 1;
    Ok(begun.elapsed())
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Program {
        program: "the devices' server".to_owned(),
        message: error.to_string(),
    }
}
