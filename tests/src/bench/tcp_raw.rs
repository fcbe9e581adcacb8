//! `tcp-raw`: writes over TCP against a plain TCP socket that walks the same memory; `iperf3` is printed beside.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use weft_engine::LinkKind;
use weft_fabric::Fabric;

use super::blaster::Idle;
use super::ends::{Ends, Shape};
use super::peers::{Killed, failed, find};
use super::raw::{LAP, MEMORY, PATIENCE};
use super::rounds::{Must, Rounds};
use super::writes::{self, Writes, first_difference, pattern};
use super::{BenchError, Context, TCP_CONGESTION, tcp};
use crate::report::Row;

const OUTSTANDING: u64 = 8;
/// Connections that the engine makes: as many as it does by default.
const PATHS: u16 = 4;
/// What the plain socket reads at once, at most.
const READ_BYTES: usize = 1 << 20;

/// A size and what must hold at it.
struct Case {
    id: &'static str,
    name: &'static str,
    bytes: usize,
    least: f64,
}

const CASES: [Case; 3] = [
    Case {
        id: "tcp-raw-64k",
        name: "64 KiB",
        bytes: 64 << 10,
        least: 0.8,
    },
    Case {
        id: "tcp-raw-1m",
        name: "1 MiB",
        bytes: 1 << 20,
        least: 0.95,
    },
    Case {
        id: "tcp-raw-1g",
        name: "1 GiB",
        bytes: 1 << 30,
        least: 0.95,
    },
];

/// A row for each size.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.two_nodes()?;
    let shape = Shape {
        link: LinkKind::Tcp,
        paths: PATHS,
        ..Shape::default()
    };
    let ends = Ends::start(&fabric, shape)?;
    let spin = ends.sender.spin();
    let mut rows = Vec::new();
    for case in CASES {
        let bytes = case.bytes;
        let total = if context.quick { 256 << 20 } else { 1 << 30 };
        // The largest are eight, all of them under way at once between one source and one destination.
        let is_one_place = bytes >= LAP;
        let count = match is_one_place {
            true => OUTSTANDING,
            false => (total / bytes) as u64,
        };
        let work = Writes {
            bytes,
            count,
            outstanding: OUTSTANDING,
            memory: MEMORY.max(bytes),
            lap: LAP.max(bytes),
        };
        // Neither pays for the first touch of its pages, or for a connection's slow start.
        let warm_up = Writes {
            count: (MEMORY / bytes).max(1) as u64,
            ..work
        };
        let (mut rate, mut beside) = (Rounds::default(), Rounds::default());
        for _ in 0..context.rounds {
            let ours = match is_one_place {
                true => writes::repeat(&ends, bytes, count, OUTSTANDING)?,
                false => {
                    writes::measure(&ends, warm_up)?;
                    writes::measure(&ends, work)?.gigabytes_per_second()
                }
            };
            rate.add_pair(ours, plain(&fabric, work, spin)?);
            if let Some(figure) = iperf(&fabric, bytes.min(READ_BYTES))? {
                beside.add(figure);
            }
        }
        let iperf = match find(IPERF) {
            Some(_) => format!("iperf3 {:.2} GB/s", beside.ours()),
            None => "iperf3 is not installed".to_owned(),
        };
        rows.push(rate.row(
            case.id,
            format!(
                "writes of {} over tcp, eight under way, {PATHS} paths, {TCP_CONGESTION}, MTU {}, veth through one leaf, \
                 both poll {} µs, every byte checked; {iperf}",
                case.name,
                fabric.spec().mtu,
                spin.as_micros()
            ),
            "GB/s",
            "a TCP socket",
            Must::RatioAtLeast(case.least),
        ));
    }
    Ok(rows)
}

/// The same bytes by one connection, message by message out of the same memory and into as much: GB/s behind the first
/// `work.memory` bytes. What has come is compared at the end.
pub(crate) fn plain(fabric: &Fabric, work: Writes, spin: Duration) -> Result<f64, BenchError> {
    let (sender, receiver) = tcp::connect(fabric)?;
    let failed = || BenchError::system("a plain TCP socket");
    for socket in [&sender, &receiver] {
        socket.set_nonblocking(true).map_err(failed())?;
        socket.set_nodelay(true).map_err(failed())?;
    }
    let source = pattern(0, work.memory);
    let mut lap = vec![0xA5; work.lap];
    let bytes = work.memory as u64 + work.bytes as u64 * work.count;
    let took = thread::scope(|scope| {
        let sending = scope.spawn(|| send(&sender, &source, work.bytes, bytes, spin));
        let took = receive(&receiver, &mut lap, work.memory as u64, bytes, spin);
        let sent = sending.join();
        sent.map_err(|_| BenchError::Panicked("a plain TCP socket"))?
            .map_err(failed())?;
        took.map_err(failed())
    })?;
    let received = lap
        .chunks(work.memory)
        .take((bytes as usize).div_ceil(work.memory));
    for there in received {
        if let Some(at) = first_difference(&source[..there.len()], there) {
            return Err(BenchError::Differs { write: 0, at });
        }
    }
    Ok((bytes - work.memory as u64) as f64 / took.as_secs_f64() / 1e9)
}

fn send(
    mut socket: &TcpStream,
    source: &[u8],
    message: usize,
    bytes: u64,
    spin: Duration,
) -> std::io::Result<()> {
    let mut sent = 0;
    let mut idle = Idle::new(spin);
    while sent < bytes {
        let at = (sent % source.len() as u64) as usize;
        let end = (at / message + 1) * message;
        match socket.write(&source[at..end]) {
            Ok(taken) => {
                sent += taken as u64;
                idle = Idle::new(spin);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                idle.wait(socket, PollFlags::POLLOUT, PATIENCE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Answers how long all but the first `warm_up` bytes took.
fn receive(
    mut socket: &TcpStream,
    lap: &mut [u8],
    warm_up: u64,
    bytes: u64,
    spin: Duration,
) -> std::io::Result<Duration> {
    let mut received = 0;
    let mut begun = Instant::now();
    let mut idle = Idle::new(spin);
    while received < bytes {
        let at = (received % lap.len() as u64) as usize;
        // The clock starts between two reads.
        let most = match received < warm_up {
            true => (warm_up - received) as usize,
            false => READ_BYTES,
        };
        let end = lap.len().min(at + most.min(READ_BYTES));
        match socket.read(&mut lap[at..end]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                received += read as u64;
                idle = Idle::new(spin);
                if received == warm_up {
                    begun = Instant::now();
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                idle.wait(socket, PollFlags::POLLIN, PATIENCE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(begun.elapsed())
}

const IPERF: &str = "iperf3";
const IPERF_PORT: &str = "29001";
/// A server that takes longer than this to listen has failed.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const LISTENS_LOOK: Duration = Duration::from_millis(20);

/// What `iperf3` moves in a second by calls of so many bytes, out of one buffer: GB/s. `None` where it is not installed.
fn iperf(fabric: &Fabric, bytes: usize) -> Result<Option<f64>, BenchError> {
    let Some(program) = find(IPERF) else {
        return Ok(None);
    };
    let server = fabric
        .command(1, &program)
        .args(["-s", "-1", "-p", IPERF_PORT])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let _server = Killed(server.map_err(BenchError::system(IPERF))?);
    let address = fabric.node(1).data_address.to_string();
    let deadline = Instant::now() + LISTENS_WITHIN;
    loop {
        let output = fabric
            .command(0, &program)
            .args(["-c", &address, "-p", IPERF_PORT, "-J", "-t", "1"])
            .args(["-l", &bytes.to_string()])
            .stdin(Stdio::null())
            .output()
            .map_err(BenchError::system(IPERF))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(bits) = report["end"]["sum_received"]["bits_per_second"].as_f64() {
            return Ok(Some(bits / 8e9));
        }
        // Until the server listens; anything else is the end of it.
        if !text.contains("refused") || Instant::now() > deadline {
            return Err(failed(IPERF, text.trim()));
        }
        thread::sleep(LISTENS_LOOK);
    }
}
