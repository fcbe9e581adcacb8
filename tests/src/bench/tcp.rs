//! A TCP connection between two nodes, on which bytes go from node 1 to node 0 until it is dropped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weft_fabric::Fabric;

use super::BenchError;

const PORT: u16 = 29_000;
/// Bytes of one call.
const BLOCK: usize = 64 << 10;

/// The connection, and its two threads.
pub(super) struct TcpLoad {
    over: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    begun: Instant,
    threads: Vec<JoinHandle<()>>,
}

impl TcpLoad {
    /// `rate_bps`: how much it sends, bits per second of payload; as much as it can when absent.
    pub(super) fn start(fabric: &Fabric, rate_bps: Option<u64>) -> Result<Self, BenchError> {
        let (mut sender, mut receiver) = connect(fabric)?;
        let (over, received) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let begun = Instant::now();
        let (ends, counts) = (Arc::clone(&over), Arc::clone(&received));
        let sends = thread::spawn(move || {
            let block = vec![7; BLOCK];
            let mut sent = 0;
            while !ends.load(Ordering::Relaxed) && sender.write_all(&block).is_ok() {
                sent += BLOCK as u64;
                if let Some(rate) = rate_bps {
                    let due = Duration::from_secs_f64(sent as f64 * 8.0 / rate as f64);
                    thread::sleep(due.saturating_sub(begun.elapsed()));
                }
            }
        });
        let receives = thread::spawn(move || {
            let mut block = vec![0; BLOCK];
            while let Ok(bytes @ 1..) = receiver.read(&mut block) {
                counts.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        });
        Ok(Self {
            over,
            received,
            begun,
            threads: vec![sends, receives],
        })
    }

    /// What has arrived so far, GB/s of payload.
    pub(super) fn rate(&self) -> f64 {
        self.received.load(Ordering::Relaxed) as f64 / self.begun.elapsed().as_secs_f64() / 1e9
    }
}

/// A connection from node 1 to node 0: both its ends.
pub(super) fn connect(fabric: &Fabric) -> Result<(TcpStream, TcpStream), BenchError> {
    let failed = |source: std::io::Error| BenchError::system("a TCP connection")(source);
    let address = SocketAddr::new(fabric.node(0).data_address.into(), PORT);
    let listener = fabric.in_node(0, || TcpListener::bind(address))?;
    let listener = listener.map_err(failed)?;
    let sender = fabric.in_node(1, || TcpStream::connect(address))?;
    let sender = sender.map_err(failed)?;
    let (receiver, _) = listener.accept().map_err(failed)?;
    Ok((sender, receiver))
}

impl Drop for TcpLoad {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}
