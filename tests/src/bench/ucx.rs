//! UCX over TCP, where its `ucx_perftest` is installed (Debian: ucx-utils).

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weft_fabric::Fabric;

use super::BenchError;
use super::peers::{self, Killed, find};

const PROGRAM: &str = "ucx_perftest";
const PORT: &str = "13337";
/// One message in so many more is sent before counting begins.
const WARM_UP: usize = 10;
/// A server that takes longer than this to listen has failed.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const LISTENS_LOOK: Duration = Duration::from_millis(20);

/// What it runs over.
#[derive(Clone, Copy)]
pub(super) enum Over {
    /// TCP, from node 0 to node 1.
    Tcp,
    /// Shared memory, between two processes of node 0.
    SharedMemory,
}

impl Over {
    fn transports(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::SharedMemory => "posix,cma",
        }
    }

    fn server(self) -> usize {
        match self {
            Self::Tcp => 1,
            Self::SharedMemory => 0,
        }
    }
}

/// The program.
pub(super) struct Ucx(PathBuf);

/// What it measures.
#[derive(Clone, Copy)]
pub(super) enum Test {
    /// One way of a tagged message: microseconds.
    Latency { bytes: usize, count: usize },
    /// Tagged messages, several in flight, from one buffer: GB/s.
    Rate { bytes: usize, count: usize },
}

impl Ucx {
    /// Where it is, if it is installed.
    pub(super) fn find() -> Option<Self> {
        find(PROGRAM).map(Self)
    }

    /// How a row names this peer and its test.
    pub(super) fn peer(found: Option<&Self>, test: &str) -> String {
        match found {
            Some(_) => format!("UCX {test}, TCP"),
            None => "UCX is not installed".to_owned(),
        }
    }

    /// Measures between node 0 and node 1, over TCP.
    pub(super) fn measure(&self, fabric: &Fabric, test: Test) -> Result<f64, BenchError> {
        self.measure_over(fabric, Over::Tcp, test)
    }

    /// Measures.
    pub(super) fn measure_over(
        &self,
        fabric: &Fabric,
        over: Over,
        test: Test,
    ) -> Result<f64, BenchError> {
        let (name, bytes, count) = match test {
            Test::Latency { bytes, count } => ("tag_lat", bytes, count),
            Test::Rate { bytes, count } => ("tag_bw", bytes, count),
        };
        let address = fabric.node(over.server()).data_address.to_string();
        let mut server = Killed(
            self.command(fabric, over.server(), over)
                .stdout(Stdio::null())
                .spawn()
                .map_err(BenchError::system(PROGRAM))?,
        );
        let deadline = Instant::now() + LISTENS_WITHIN;
        loop {
            let output = self
                .command(fabric, 0, over)
                .args([&address, "-t", name, "-f", "-v"])
                .args(["-s", &bytes.to_string(), "-n", &count.to_string()])
                .args(["-w", &(count / WARM_UP).to_string()])
                .output()
                .map_err(BenchError::system(PROGRAM))?;
            if output.status.success() {
                // It serves one client and ends.
                server.0.wait().map_err(BenchError::system(PROGRAM))?;
                let text = String::from_utf8_lossy(&output.stdout);
                return figure(&text, test).ok_or_else(|| failed(&text));
            }
            // UCX logs to standard output.
            let said = String::from_utf8_lossy(&output.stdout);
            if !said.contains("refused") || Instant::now() > deadline {
                return Err(failed(&said));
            }
            std::thread::sleep(LISTENS_LOOK);
        }
    }

    fn command(&self, fabric: &Fabric, node: usize, over: Over) -> Command {
        let mut command = with_own_devices(fabric, node, &self.0);
        command
            .args(["-p", PORT])
            .env("UCX_TLS", over.transports())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit());
        command
    }
}

/// A command in a node's network namespace that has UCX over TCP there. UCX looks for its devices in /sys, which has to be
/// that of the node's network namespace.
pub(super) fn with_own_devices(
    fabric: &Fabric,
    node: usize,
    program: impl AsRef<OsStr>,
) -> Command {
    let mut command = fabric.command(node, "unshare");
    command
        .args(["--mount", "sh", "-c"])
        .arg("mount -t sysfs sysfs /sys && exec \"$0\" \"$@\"")
        .arg(program)
        .env("UCX_TLS", "tcp")
        .env("UCX_NET_DEVICES", "data0")
        .env("UCX_LOG_LEVEL", "error");
    command
}

/// From the columns: iterations, latency of a percentile, average, overall (µs); average and overall
/// bandwidth (MiB/s); average and overall messages a second.
fn figure(text: &str, test: Test) -> Option<f64> {
    let line = text.lines().rev().find(|line| {
        line.split(',')
            .all(|cell| cell.trim().parse::<f64>().is_ok())
    })?;
    let cells: Vec<f64> = line
        .split(',')
        .filter_map(|cell| cell.trim().parse().ok())
        .collect();
    match test {
        Test::Latency { .. } => cells.get(1).copied(),
        Test::Rate { .. } => cells.get(5).map(|mib| mib * f64::from(1 << 20) / 1e9),
    }
}

fn failed(message: &str) -> BenchError {
    peers::failed(PROGRAM, message.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_read_from_the_last_line_of_numbers() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,\
                    overall_mr\n2000,7.593,296.903,2112.835,0.03,2000.00,3368,473\n";
        assert_eq!(
            figure(text, Test::Latency { bytes: 8, count: 1 }),
            Some(7.593)
        );
        let rate = figure(
            text,
            Test::Rate {
                bytes: 65_536,
                count: 1,
            },
        )
        .unwrap();
        assert!((rate - 2.097_152).abs() < 1e-9);
        assert_eq!(
            figure("connect() failed", Test::Latency { bytes: 8, count: 1 }),
            None
        );
    }
}
