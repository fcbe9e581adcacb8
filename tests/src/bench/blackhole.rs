//! `blackhole`: one of four spines drops everything while its links stay up.
//!
//! One connection writes messages of exactly one chunk, each stamped when it is given to the engine
//! and again when its receiver learns that all of it was placed. That is longer than from its first
//! send to its placement by its wait for the window, so what is reported bounds what is promised.

use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use weft_cli::fabric::{Fabric, Spec};
use weft_engine::rate::Joined;
use weft_engine::{Engine, Event, Key, PolicyKind, PortRange, WriteRequest};
use weft_link::PortPair;

use super::arrivals::{Arrival, back_at, bins, typical, worst};
use super::ends::{Ends, Shape};
use super::rounds::{Must, Rounds};
use super::spray::{SPINE_RATE, SPINES};
use super::{BenchError, Context};
use crate::report::Row;

const PATHS: u16 = 128;
/// The spine that fails.
const FAILED: usize = 1;
/// Messages under way: what four spines hold in their queues of 5 ms, and some more.
const UNDER_WAY: usize = 48;
/// Twice as many regions, taken in turn: each is armed again long before its next message.
const REGIONS: usize = 2 * UNDER_WAY;
/// When the spine fails, and how long the writing goes on after that.
const FAILS_AFTER: Duration = Duration::from_millis(1000);
const GOES_ON: Duration = Duration::from_millis(1000);
/// The window has opened by then.
const SETTLED_AFTER: Duration = Duration::from_millis(300);
const BIN: Duration = Duration::from_millis(10);
/// By when the transport must have recovered.
const BACK_WITHIN: Duration = Duration::from_millis(50);
/// How often the failing spine's counter is read.
const WATCH: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of the stamp at a message's head.
const STAMP: usize = 8;

/// What one round showed.
#[derive(Debug, Clone, Copy)]
struct Seen {
    worst: Duration,
    back: Duration,
    later_percent: f64,
    before: f64,
    after: f64,
}

/// What the fault's thread knows at the end.
struct Fault {
    /// When the spine's counter stood still.
    at: Duration,
    /// Chunks by path, [`BACK_WITHIN`] after that.
    chunks: Vec<u64>,
}

/// Three rows: latency, recovery, chunks sent into the hole.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        spines: SPINES,
        rate: Some(SPINE_RATE),
        ..Spec::default()
    })?;
    let (mut latency, mut back) = (Rounds::default(), Rounds::default());
    let (mut later, mut before, mut after) =
        (Rounds::default(), Rounds::default(), Rounds::default());
    for round in 0..context.rounds {
        let seen = one_round(&fabric, round as u16)?;
        latency.add(seen.worst.as_secs_f64() * 1e3);
        back.add(seen.back.as_secs_f64() * 1e3);
        later.add(seen.later_percent);
        before.add(seen.before * 8.0 / 1e9);
        after.add(seen.after * 8.0 / 1e9);
    }
    let what = format!("one of {SPINES} spines drops everything, two-choices, {PATHS} paths");
    let rounds = context.rounds;
    let latency_work = format!(
        "{what}: worst time from post to placement of a chunk; median of {rounds} runs, largest \
         {:.1}",
        latency.largest()
    );
    let back_work = format!(
        "{what}: until goodput in bins of 10 ms is back at 0.9 of three spines' ({:.2} Gbit/s \
         before, {:.2} after); largest {:.0}",
        before.ours(),
        after.ours(),
        back.largest()
    );
    let later_work = format!(
        "{what}: share of the chunks sent later than 50 ms after it that went to its paths; \
         largest {:.2}",
        later.largest()
    );
    Ok(vec![
        latency.row(
            "blackhole-latency",
            latency_work,
            "ms",
            "",
            Must::AtMost(50.0),
        ),
        back.row(
            "blackhole-recovery",
            back_work,
            "ms",
            "",
            Must::AtMost(50.0),
        ),
        later.row("blackhole-later", later_work, "%", "", Must::AtMost(1.0)),
    ])
}

fn one_round(fabric: &Fabric, draw: u16) -> Result<Seen, BenchError> {
    let shape = Shape {
        policy: PolicyKind::TwoChoices,
        paths: PATHS,
        draw,
    };
    let ends = Ends::start(fabric, shape)?;
    let joined = ends.join()?;
    let begun = Instant::now();
    let total = AtomicU64::new(u64::MAX);
    let (arrivals, fault) = thread::scope(|scope| {
        let (freed, free) = unbounded();
        let regions = regions(&ends);
        for region in &regions {
            // The receiving end is held right below.
            let _ = freed.send(*region);
        }
        let (receiver, arrived, total) = (&ends.receiver, &joined.arrived, &total);
        let receiving = scope.spawn(move || receive(receiver, arrived, begun, &freed, total));
        let failing = scope.spawn(|| fail(fabric, &ends.sender, begun));
        let posted = post(&ends.sender, &joined, begun, &free);
        // Whatever happened, the receiver must come to an end.
        total.store(*posted.as_ref().unwrap_or(&0), Ordering::Release);
        let fault = failing
            .join()
            .map_err(|_| BenchError::Panicked("the fault"))?;
        let arrivals = receiving
            .join()
            .map_err(|_| BenchError::Panicked("the receiver"))?;
        posted?;
        Ok::<_, BenchError>((arrivals?, fault?))
    })?;
    let chunks = chunks_by_path(&ends.sender);
    fabric.heal_spine(FAILED)?;
    let lost = paths_over(fabric, FAILED, shape.ports())?;
    let later = |paths: &mut dyn Iterator<Item = usize>| -> u64 {
        paths
            .map(|path| chunks[path].saturating_sub(fault.chunks[path]))
            .sum()
    };
    let (all, into_the_hole) = (
        later(&mut (0..usize::from(PATHS))),
        later(&mut lost.iter().copied()),
    );
    let end = FAILS_AFTER + GOES_ON;
    let before = typical(&bins(&arrivals, SETTLED_AFTER, FAILS_AFTER, BIN));
    let after = bins(&arrivals, fault.at, end, BIN);
    let steady = typical(&bins(&arrivals, fault.at + 4 * BACK_WITHIN, end, BIN));
    // Whichever is more: what was there less one spine's part, or what it came to in the end.
    let three_spines = steady.max(before * (SPINES - 1) as f64 / SPINES as f64);
    let back = back_at(&after, 0.9 * three_spines).unwrap_or(after.len());
    Ok(Seen {
        worst: worst(&arrivals),
        back: BIN * back as u32,
        later_percent: 100.0 * into_the_hole as f64 / all.max(1) as f64,
        before,
        after: steady,
    })
}

/// The receiver's regions, each with its number, which is the immediate of its messages.
fn regions(ends: &Ends) -> Vec<(u32, Key)> {
    let bytes = chunk_payload(&ends.receiver);
    (0..REGIONS as u32)
        .map(|number| {
            let buffer = vec![0; bytes].into_boxed_slice();
            (
                number,
                ends.receiver.register(weft_engine::DomainId(0), buffer),
            )
        })
        .collect()
}

/// Bytes that one chunk carries.
fn chunk_payload(engine: &Engine) -> usize {
    let settings = engine.settings();
    settings.chunk_packets() as usize * usize::from(settings.packet_payload)
}

/// Keeps [`UNDER_WAY`] messages under way; how many it posted.
fn post(
    sender: &Engine,
    joined: &Joined,
    begun: Instant,
    free: &Receiver<(u32, Key)>,
) -> Result<u64, BenchError> {
    let bytes = chunk_payload(sender);
    let mut idle: Vec<Arc<Box<[u8]>>> = (0..UNDER_WAY)
        .map(|_| Arc::new(vec![0x5A; bytes].into_boxed_slice()))
        .collect();
    let mut regions = VecDeque::new();
    let mut posted = 0;
    while begun.elapsed() < FAILS_AFTER + GOES_ON || idle.len() < UNDER_WAY {
        regions.extend(free.try_iter());
        let more = begun.elapsed() < FAILS_AFTER + GOES_ON;
        while more && !idle.is_empty() && !regions.is_empty() {
            let (Some(mut source), Some((number, key))) = (idle.pop(), regions.pop_front()) else {
                break;
            };
            // The engine gave back its last reference with `Written`.
            if let Some(message) = Arc::get_mut(&mut source) {
                let stamp = begun.elapsed().as_nanos() as u64;
                message[..STAMP].copy_from_slice(&stamp.to_le_bytes());
            }
            sender.write(WriteRequest {
                connection: joined.near,
                source,
                bytes: bytes as u64,
                key,
                offset: 0,
                immediate: Some(number),
                context: 0,
            })?;
            posted += 1;
        }
        select! {
            recv(joined.sent) -> event => match event {
                Ok(Event::Written { source, .. }) => idle.push(source),
                Ok(Event::Failed { failure, .. }) => return Err(BenchError::Failed(failure)),
                Ok(_) => {}
                Err(_) => return Err(silent("the sending engine")),
            },
            recv(free) -> region => regions.extend(region),
            default(PATIENCE) => return Err(silent("acknowledgements")),
        }
    }
    Ok(posted)
}

/// Takes messages until as many have come as were posted.
fn receive(
    receiver: &Engine,
    arrived: &Receiver<Event>,
    begun: Instant,
    freed: &Sender<(u32, Key)>,
    total: &AtomicU64,
) -> Result<Vec<Arrival>, BenchError> {
    let mut arrivals = Vec::new();
    let mut quiet_since = Instant::now();
    while (arrivals.len() as u64) < total.load(Ordering::Acquire) {
        match arrived.recv_timeout(BIN) {
            Ok(Event::Delivered {
                immediate,
                key,
                buffer,
                ..
            }) => {
                let placed = begun.elapsed();
                let mut stamp = [0; STAMP];
                stamp.copy_from_slice(&buffer[..STAMP]);
                let posted = Duration::from_nanos(u64::from_le_bytes(stamp));
                arrivals.push(Arrival {
                    posted,
                    placed,
                    bytes: buffer.len() as u64,
                });
                receiver.arm(key, buffer);
                // The sender of messages may have given up; it says why itself.
                let _ = freed.send((immediate, key));
                quiet_since = Instant::now();
            }
            Ok(Event::Failed { failure, .. }) => return Err(BenchError::Failed(failure)),
            Ok(_) => {}
            Err(_) if quiet_since.elapsed() > PATIENCE => return Err(silent("messages")),
            Err(_) => {}
        }
    }
    Ok(arrivals)
}

/// Fails the spine at its time and finds out when it really fell silent.
fn fail(fabric: &Fabric, sender: &Engine, begun: Instant) -> Result<Fault, BenchError> {
    let until = |at: Duration| thread::sleep(at.saturating_sub(begun.elapsed()));
    until(FAILS_AFTER);
    let done = AtomicBool::new(false);
    // `nft` needs milliseconds to start: the spine's own counter says when it took effect.
    let at = thread::scope(|scope| {
        let watching = scope.spawn(|| -> Result<Duration, BenchError> {
            let (mut last, mut changed) = (0, begun.elapsed());
            while !done.load(Ordering::Acquire) {
                let bytes = fabric.spine_bytes()?[FAILED];
                if bytes != last {
                    (last, changed) = (bytes, begun.elapsed());
                }
                thread::sleep(WATCH);
            }
            Ok(changed)
        });
        let failed = fabric.fail_spine(FAILED);
        done.store(true, Ordering::Release);
        let at = watching
            .join()
            .map_err(|_| BenchError::Panicked("the spine's counter"))?;
        failed?;
        at
    })?;
    until(at + BACK_WITHIN);
    Ok(Fault {
        at,
        chunks: chunks_by_path(sender),
    })
}

fn chunks_by_path(sender: &Engine) -> Vec<u64> {
    let snapshot = sender.snapshot();
    let paths = snapshot
        .peers
        .first()
        .map(|peer| peer.paths.as_slice())
        .unwrap_or_default();
    paths.iter().map(|path| path.sent_chunks).collect()
}

/// The paths that lead over `spine`, by the kernel's own answer for each port pair.
fn paths_over(fabric: &Fabric, spine: usize, ports: PortRange) -> Result<Vec<usize>, BenchError> {
    let (from, to) = (fabric.node(0), fabric.node(1));
    let questions: String = (0..PATHS)
        .map(|path| {
            let pair = PortPair::of_path(path as u8, ports);
            format!(
                "route get {} from {} iif {} ipproto udp sport {} dport {}\n",
                to.data_address,
                from.data_address,
                from.name,
                ports.port(pair.local),
                ports.port(pair.remote)
            )
        })
        .collect();
    let leaf = from.namespace.with_file_name(format!("leaf{}", from.leaf));
    let answers = ask_routes(&leaf, &questions)?;
    let next: Vec<&str> = answers
        .lines()
        .filter(|line| line.contains(" dev "))
        .collect();
    if next.len() != usize::from(PATHS) {
        let message = format!("{} answers for {PATHS} paths: {answers}", next.len());
        return Err(BenchError::Program {
            program: "ip route get".into(),
            message,
        });
    }
    let device = format!(" dev spine{spine} ");
    Ok((0..usize::from(PATHS))
        .filter(|&path| next[path].contains(&device))
        .collect())
}

/// Asks the routing table of a namespace.
fn ask_routes(namespace: &std::path::Path, questions: &str) -> Result<String, BenchError> {
    let mut net = std::ffi::OsString::from("--net=");
    net.push(namespace);
    let mut child = Command::new("nsenter")
        .arg(net)
        .args(["--", "ip", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(BenchError::system("nsenter"))?;
    if let Some(mut input) = child.stdin.take() {
        use std::io::Write as _;
        input
            .write_all(questions.as_bytes())
            .map_err(BenchError::system("ip -batch"))?;
    }
    let output = child
        .wait_with_output()
        .map_err(BenchError::system("ip -batch"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(BenchError::Program {
            program: "ip route get".into(),
            message,
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn silent(what: &'static str) -> BenchError {
    BenchError::Silent {
        what,
        seconds: PATIENCE.as_secs(),
    }
}
