//! libfabric's provider `net`, which runs over TCP, where its `fi_pingpong` is installed (Debian: libfabric-bin).

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weft_fabric::Fabric;

use super::BenchError;
use super::peers::{Killed, failed, find};

const PROGRAM: &str = "fi_pingpong";
/// A server that takes longer than this to listen has failed.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const LISTENS_LOOK: Duration = Duration::from_millis(20);

/// The program.
pub(super) struct Libfabric(PathBuf);

impl Libfabric {
    /// Where it is, if it is installed.
    pub(super) fn find() -> Option<Self> {
        find(PROGRAM).map(Self)
    }

    /// Microseconds of one way of a tagged message from node 0 to node 1, the mean.
    pub(super) fn one_way(
        &self,
        fabric: &Fabric,
        bytes: usize,
        count: usize,
    ) -> Result<f64, BenchError> {
        let mut server = Killed(
            self.command(fabric, 1, bytes, count)
                .stdout(Stdio::null())
                .spawn()
                .map_err(BenchError::system(PROGRAM))?,
        );
        let deadline = Instant::now() + LISTENS_WITHIN;
        loop {
            let output = self
                .command(fabric, 0, bytes, count)
                .arg(fabric.node(1).data_address.to_string())
                .output()
                .map_err(BenchError::system(PROGRAM))?;
            if output.status.success() {
                server.0.wait().map_err(BenchError::system(PROGRAM))?;
                let text = String::from_utf8_lossy(&output.stdout);
                return figure(&text).ok_or_else(|| failed(PROGRAM, text.trim()));
            }
            let said = String::from_utf8_lossy(&output.stderr);
            if !said.contains("refused") || Instant::now() > deadline {
                return Err(failed(PROGRAM, said.trim()));
            }
            std::thread::sleep(LISTENS_LOOK);
        }
    }

    fn command(&self, fabric: &Fabric, node: usize, bytes: usize, count: usize) -> Command {
        let mut command = fabric.command(node, &self.0);
        command
            .args(["-p", "net", "-e", "rdm", "-m", "tagged"])
            .args(["-S", &bytes.to_string(), "-I", &count.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        command
    }
}

/// From the columns: bytes, sent, acknowledged, total, time, MB/s, µs a transfer, millions of transfers a second.
fn figure(text: &str) -> Option<f64> {
    let line = text.lines().last()?;
    line.split_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_the_microseconds_of_the_last_line() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    8       5k      =5k      78k         0.04s      1.86       4.31       0.23\n";
        assert_eq!(figure(text), Some(4.31));
        assert_eq!(figure("bytes   #sent   #ack\n"), None);
    }
}
