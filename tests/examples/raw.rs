//! The engine's memory-to-memory rate against the raw UDP blaster's, interleaved:
//! `cargo run --release -p weft-tests --example raw -- --rounds 7`.
//!
//! Over loopback, or between two network namespaces that are there already (`--netns a,b
//! --addresses 10.0.0.1,10.0.0.2`, as root).

#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use nix::errno::Errno;
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::unistd::Pid;
use weft_engine::{Encryption, LinkKind, PortRange, Progress};
use weft_tests::bench::blaster::{self, Blaster, BlasterConfig};
use weft_tests::bench::ends::Ends;
use weft_tests::bench::host::{Host, Setup};
use weft_tests::bench::writes::{self, Writes};

#[derive(Parser)]
struct Arguments {
    /// Bytes of an IP packet.
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
    /// Rounds; each measures both.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Writes of 1 MiB in a round.
    #[arg(long, default_value_t = 1024)]
    writes: u64,
    /// Writes under way at a time.
    #[arg(long, default_value_t = 8)]
    outstanding: u64,
    /// MiB of memory at the sender that the writes go through in turn.
    #[arg(long, default_value_t = 256)]
    memory: usize,
    /// MiB of memory at the receiver, every byte of which is checked when it is full.
    #[arg(long, default_value_t = 512)]
    lap: usize,
    /// Paths of the engine.
    #[arg(long, default_value_t = 128)]
    paths: u16,
    /// Microseconds that both poll before they block.
    #[arg(long, default_value_t = 20)]
    spin: u64,
    /// Keep each end on a core of its own.
    #[arg(long)]
    pin: bool,
    /// Two network namespaces, by name.
    #[arg(long, value_delimiter = ',')]
    netns: Vec<String>,
    /// The two addresses.
    #[arg(long, value_delimiter = ',', default_values_t = [IpAddr::V4(Ipv4Addr::LOCALHOST); 2])]
    addresses: Vec<IpAddr>,
    /// Encrypt ours.
    #[arg(long)]
    encrypt: bool,
    /// `ours` or `theirs` alone, for a profiler.
    #[arg(long)]
    only: Option<String>,
}

/// Keeps the calling thread, and those it starts, on the core of end `end`.
fn pin(arguments: &Arguments, end: usize) -> Result<(), Errno> {
    if !arguments.pin {
        return Ok(());
    }
    let mut core = CpuSet::new();
    core.set(end)?;
    sched_setaffinity(Pid::from_raw(0), &core)
}

/// Runs `make` in the namespace of end `end`, if one was named.
fn within<T: Send>(
    arguments: &Arguments,
    end: usize,
    make: impl FnOnce() -> T + Send,
) -> Result<T, Box<dyn Error>> {
    let namespace = match arguments.netns.get(end) {
        Some(name) => Some(std::fs::File::open(Path::new("/run/netns").join(name))?),
        None => None,
    };
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            pin(arguments, end)?;
            if let Some(namespace) = namespace {
                setns(namespace, CloneFlags::CLONE_NEWNET)?;
            }
            Ok::<T, Errno>(make())
        });
        Ok(made.join().map_err(|_| "a thread died")??)
    })
}

const MESSAGE: usize = 1 << 20;

fn theirs(arguments: &Arguments, datagram_bytes: u16) -> Result<f64, Box<dyn Error>> {
    let end = |end: usize| {
        let config = BlasterConfig {
            local: SocketAddr::new(arguments.addresses[end], 19_000 + end as u16),
            datagram_bytes,
            spin: Duration::from_micros(arguments.spin),
        };
        within(arguments, end, move || Blaster::bind(config))
    };
    let (sender, mut receiver) = (end(0)??, end(1)??);
    let peer = SocketAddr::new(arguments.addresses[1], 19_001);
    let message = vec![0x5A; arguments.memory * MESSAGE];
    let times = (arguments.writes as usize / arguments.memory).max(1);
    let bytes = (times * message.len()) as u64;
    let progress = blaster::Progress::default();
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            pin(arguments, 1)?;
            receiver.receive(bytes, Duration::from_secs(5), &progress)
        });
        let sending = scope.spawn(|| {
            pin(arguments, 0)?;
            sender.send(peer, &message, times, &progress)
        });
        sending.join().map_err(|_| "the sender died")??;
        let blasted = receiving.join().map_err(|_| "the receiver died")??;
        let arrived = 100.0 * blasted.bytes as f64 / bytes as f64;
        print!("{arrived:.1} % of the blast arrived; ");
        Ok(blasted.bytes_per_second())
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let encryption = if arguments.encrypt {
        Encryption::Required
    } else {
        Encryption::Off
    };
    let engine = |end: usize| {
        let ports = PortRange {
            first: 19_100 + 100 * end as u16,
            count: 16,
        };
        let setup = Setup {
            link: LinkKind::Udp,
            nics: arguments.addresses[end].into(),
            ports,
            mtu: arguments.mtu,
            paths: arguments.paths,
            policy: None,
            progress: Progress::Threads(1),
            split: 1,
            spin: Some(Duration::from_micros(arguments.spin)),
            encryption,
            seed: 1,
        };
        within(&arguments, end, || Host::start(setup))
    };
    let ends = Ends {
        sender: engine(0)??,
        receiver: engine(1)??,
    };
    let datagram_bytes = ends.sender.datagram_bytes();
    let writes = Writes {
        bytes: MESSAGE,
        count: arguments.writes,
        outstanding: arguments.outstanding,
        memory: arguments.memory * MESSAGE,
        lap: arguments.lap * MESSAGE,
    };
    let mut rows = Vec::new();
    for _ in 0..arguments.rounds {
        let (mut row, only) = ((0.0, 0.0), arguments.only.as_deref());
        if only != Some("theirs") {
            row.0 = writes::measure(&ends, writes)?.gigabytes_per_second();
        }
        if only != Some("ours") {
            row.1 = theirs(&arguments, datagram_bytes)? / 1e9;
        }
        println!(
            "ours {:.2} GB/s  blaster {:.2} GB/s  ratio {:.2}",
            row.0,
            row.1,
            row.0 / row.1
        );
        rows.push(row);
    }
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = rows.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "median: ours {:.2} GB/s, blaster {:.2} GB/s, ratio of pairs {:.2}",
        median(|row| row.0),
        median(|row| row.1),
        median(|row| row.0 / row.1)
    );
    Ok(())
}
