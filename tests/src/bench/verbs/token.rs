//! As many threads as two programs and their engines, which pass a token and do nothing else.
//!
//! A thread in a program's place passes the token to one in the place of its device's engine through shared memory; it
//! goes on in a datagram, from node to node or by loopback. Each waits as the one does whose place it has: an engine offers the processor to others after
//! each look, a program after many.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weft_fabric::Fabric;

use super::BenchError;
use crate::report::median;

/// Above the engines' own.
const PORT: u16 = 28_000;
/// Of a datagram: what the engine sends for a message of 8 bytes.
const DATAGRAM: usize = 72;
/// One round trip in so many more is made before counting begins.
const WARM_UP: usize = 10;
/// No token takes a hundredth of it.
const PATIENCE: Duration = Duration::from_secs(20);
/// A thread in a program's place offers the processor to others after so many looks, as the library does.
const LOOKS_BEFORE_YIELD: u32 = 512;

/// Which way the token goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Course<'f> {
    /// Within this node.
    OneNode,
    /// Over the fabric.
    TwoNodes(&'f Fabric),
}

/// How many wait by looking: a program and its device's engine at either end.
pub(super) const THREADS: usize = 4;

/// A count alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// What a program and its engine share.
#[derive(Debug, Default)]
struct Shared {
    to_engine: Count,
    to_program: Count,
}

/// A thread, and what ends all of them.
struct Thread<'a> {
    over: &'a AtomicBool,
}

impl Thread<'_> {
    /// Waits for the token with this number.
    fn expect(&self, at: &Count, number: u64) -> Result<(), BenchError> {
        let begun = Instant::now();
        while at.0.load(Ordering::Acquire) < number {
            for _ in 0..LOOKS_BEFORE_YIELD {
                if at.0.load(Ordering::Acquire) >= number {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            thread::yield_now();
            if self.over.load(Ordering::Acquire) || begun.elapsed() > PATIENCE {
                self.over.store(true, Ordering::Release);
                return Err(BenchError::Silent {
                    what: "a token between threads",
                    seconds: PATIENCE.as_secs(),
                });
            }
        }
        Ok(())
    }

    /// The program that begins: microseconds of each way.
    fn ask(&self, shared: &Shared, count: usize) -> Result<Vec<f64>, BenchError> {
        (1..=count as u64)
            .map(|number| {
                let begun = Instant::now();
                shared.to_engine.0.store(number, Ordering::Release);
                self.expect(&shared.to_program, number)?;
                Ok(begun.elapsed().as_secs_f64() * 1e6 / 2.0)
            })
            .collect()
    }

    fn answer(&self, shared: &Shared, count: usize) -> Result<(), BenchError> {
        (1..=count as u64).try_for_each(|number| {
            self.expect(&shared.to_program, number)?;
            shared.to_engine.0.store(number, Ordering::Release);
            Ok(())
        })
    }

    /// The engine of one program: what it posts goes to the other engine, and what comes from there to it.
    fn carry(&self, shared: &Shared, socket: &UdpSocket) -> Result<(), BenchError> {
        let mut sent = 0;
        let mut datagram = [0; DATAGRAM];
        while !self.over.load(Ordering::Acquire) {
            let number = shared.to_engine.0.load(Ordering::Acquire);
            if number > sent {
                sent = number;
                datagram[..8].copy_from_slice(&number.to_le_bytes());
                socket
                    .send(&datagram)
                    .map_err(BenchError::system("a token is sent"))?;
            }
            if let Ok(DATAGRAM) = socket.recv(&mut datagram) {
                let mut number = [0; 8];
                number.copy_from_slice(&datagram[..8]);
                let number = u64::from_le_bytes(number);
                shared.to_program.0.store(number, Ordering::Release);
            }
            thread::yield_now();
        }
        Ok(())
    }
}

/// The median of one way from program to program, microseconds.
pub(super) fn one_way(course: Course<'_>, count: usize) -> Result<f64, BenchError> {
    let [here, there] = match course {
        Course::OneNode => connect_by_loopback()?,
        Course::TwoNodes(fabric) => connect(fabric)?,
    };
    let warm_up = count / WARM_UP;
    let all = warm_up + count;
    let (near, far) = (Shared::default(), Shared::default());
    let over = AtomicBool::new(false);
    let place = || Thread { over: &over };
    let mut ways = thread::scope(|scope| {
        scope.spawn(|| place().carry(&near, &here));
        scope.spawn(|| place().carry(&far, &there));
        let answers = scope.spawn(|| place().answer(&far, all));
        let asked = place().ask(&near, all);
        let answered = answers.join();
        over.store(true, Ordering::Release);
        answered.map_err(|_| BenchError::Panicked("the answering end"))??;
        asked
    })?;
    Ok(median(&mut ways.split_off(warm_up)))
}

/// Two sockets of this node, connected to each other.
fn connect_by_loopback() -> Result<[UdpSocket; 2], BenchError> {
    let bind = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let make = || -> io::Result<[UdpSocket; 2]> {
        let sockets = [bind()?, bind()?];
        sockets[0].connect(sockets[1].local_addr()?)?;
        sockets[1].connect(sockets[0].local_addr()?)?;
        Ok(sockets)
    };
    make().map_err(BenchError::system("a token's socket"))
}

/// A socket in either node, connected to each other.
fn connect(fabric: &Fabric) -> Result<[UdpSocket; 2], BenchError> {
    let address = |node: usize| SocketAddr::new(fabric.node(node).data_address.into(), PORT);
    let bind = |node: usize| -> Result<UdpSocket, BenchError> {
        let bound = fabric.in_node(node, || {
            let socket = UdpSocket::bind(address(node))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })?;
        bound.map_err(BenchError::system::<std::io::Error>("a token's socket"))
    };
    let sockets = [bind(0)?, bind(1)?];
    for (node, socket) in sockets.iter().enumerate() {
        socket
            .connect(address(1 - node))
            .map_err(BenchError::system("a token's socket"))?;
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_and_fro_within_a_node() {
        let way = one_way(Course::OneNode, 50).unwrap();
        assert!(way > 0.0);
    }
}
