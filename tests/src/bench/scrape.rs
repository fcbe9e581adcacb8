//! `scrape`: how long Prometheus waits for the page of an agent with 64 peers and 1,000 devices, and how long the page is.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::routing::get;
use weft_core::path::{PathReport, PathState};
use weft_core::units::{Nanos, PathId};
use weft_engine::{LinkAddress, PeerSnapshot, PortRange, Snapshot};
use weft_identity::{health_server, metrics};
use weft_proto::engine::v1::Device;

use super::rounds::{Must, Rounds};
use super::{BenchError, Context};
use crate::report::{Row, median};

const PEERS: u8 = 64;
const PATHS: u8 = 128;
const DEVICES: u64 = 1000;
/// Scrapes of a round.
const TIMES: usize = 50;
/// As Prometheus asks.
const REQUEST: &[u8] =
    b"GET /metrics HTTP/1.1\r\nHost: agent\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n";

/// Two rows: the whole request over loopback, and the bytes that come.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    // It has a loopback interface.
    context.two_nodes()?.in_node(0, || measure_here(context))?
}

fn measure_here(context: &Context) -> Result<Vec<Row>, BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(BenchError::system("a runtime"))?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.map_err(BenchError::system("a port"))?;
    let address = listener.local_addr();
    let address = address.map_err(BenchError::system("a port"))?;
    let registry = Arc::new(weft_agent::metrics::registry_of(peers(), devices()));
    let page = get(move || {
        let page = metrics::page(&registry);
        async { page }
    });
    runtime.spawn(health_server::serve(
        listener,
        Router::new().route("/metrics", page),
    ));
    let (mut times, mut lengths) = (Rounds::default(), Rounds::default());
    for _ in 0..context.rounds {
        let mut round = Vec::new();
        let mut length = 0;
        for _ in 0..TIMES {
            let (milliseconds, bytes) = scrape(address)?;
            round.push(milliseconds);
            length = bytes;
        }
        times.add(median(&mut round));
        lengths.add(length as f64 / 1024.0);
    }
    let of = format!("an agent with {PEERS} peers of {PATHS} paths, and {DEVICES} devices of pods");
    Ok(vec![
        times.row(
            "scrape",
            format!("a scrape of {of}, over loopback, median of {TIMES}"),
            "ms",
            "",
            Must::AtMost(20.0),
        ),
        lengths.row(
            "scrape-bytes",
            format!("its page, by gzip: {of}"),
            "KiB",
            "",
            Must::AtMost(200.0),
        ),
    ])
}

/// Milliseconds, and bytes of the answer.
fn scrape(address: SocketAddr) -> Result<(f64, usize), BenchError> {
    let begun = Instant::now();
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(REQUEST)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer: std::io::Result<Vec<u8>> = ask();
    let answer = answer.map_err(BenchError::system("a scrape"))?;
    let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
    let head = String::from_utf8_lossy(&answer[..answer.len().min(512)]).into_owned();
    if head.starts_with("HTTP/1.1 200 ") && head.contains("content-encoding: gzip") {
        return Ok((milliseconds, answer.len()));
    }
    Err(BenchError::Program {
        program: "the page".to_owned(),
        message: head,
    })
}

/// No two figures are the same: they would be compressed too well.
fn peers() -> Snapshot {
    let peer = |number: u8| {
        let path = |id: u8| PathReport {
            id: PathId(id),
            state: PathState::Live,
            srtt: Some(Nanos::new(
                100_000 + 7_919 * u64::from(number) + 101 * u64::from(id),
            )),
            sent_chunks: 1_000_003 * u64::from(number) + u64::from(id),
            lost_chunks: 31 * u64::from(number),
            ce_packets: 17 * u64::from(number) + u64::from(id),
            timeouts: u64::from(number),
        };
        PeerSnapshot {
            address: LinkAddress::Udp {
                nics: Ipv4Addr::new(10, 87, number, 10).into(),
                ports: PortRange {
                    first: 7500,
                    count: 16,
                },
            },
            live_paths: PATHS.into(),
            down_paths: 0,
            paths: (0..PATHS).map(path).collect(),
            nic_pairs: Vec::new(),
        }
    };
    Snapshot {
        peers: (0..PEERS).map(peer).collect(),
        ..Snapshot::default()
    }
}

fn devices() -> Vec<Device> {
    let device = |number: u64| Device {
        name: format!("vdev-{number:05}"),
        owner: format!("team-{}/trainer-{number}", number % 20),
        bytes_sent: 104_729 * number * number,
        bytes_received: 130_363 * number * number,
        refused: number % 3,
        operations: 7_919 * number,
        share: 100,
        ..Device::default()
    };
    (0..DEVICES).map(device).collect()
}
