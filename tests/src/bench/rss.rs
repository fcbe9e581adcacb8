//! `rss`: what an agent holds of anonymous memory while much goes through it.
//!
//! The source is a sparse file: reading its holes costs no memory. The copy lies on disk, where the
//! benchmark's own files go, because 8 GiB more of memory are not everybody's. Neither counts: only
//! RssAnon does, the pages that no file gives back.

use std::fmt::Display;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weft_planner::Strategy;
use weft_proto::agent::v1::Algorithm;

use super::memory::Memory;
use super::rounds::{Must, Rounds};
use super::stage::{Stage, Transfer};
use super::{BenchError, Context};
use crate::report::Row;

const SOURCE: &str = "source";
const COPY: &str = "copy";
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// For keys, configurations and logs, and for a page of each block of the source.
const HOME_BYTES: u64 = 128 << 20;

/// Two rows, the sending agent's and the receiving agent's.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let bytes: u64 = if context.quick { 1 << 30 } else { 8 << 30 };
    let fabric = Arc::new(context.two_nodes()?);
    let memory = Memory::mount(HOME_BYTES)?;
    let scratch = Removed(context.scratch.join("rss"));
    fs::create_dir_all(&scratch.0).map_err(BenchError::system(scratch.0.display().to_string()))?;
    let disk = fs::canonicalize(&scratch.0).map_err(BenchError::system("the scratch directory"))?;
    let directories = vec![memory.path().join("node0"), disk.join("node1")];
    let stage = Stage::set(fabric, directories, &memory.path().join("agents"))?;
    File::create(stage.directory(0).join(SOURCE))
        .and_then(|file| {
            file.set_len(bytes)?;
            // No block is a hole: all of them are sent.
            (0..bytes)
                .step_by(1 << 20)
                .try_for_each(|block| file.write_all_at(b"x", block))
        })
        .map_err(BenchError::system("the sparse source"))?;
    let over = AtomicBool::new(false);
    let pids = stage.pids();
    let most = thread::scope(|scope| {
        let looking = scope.spawn(|| -> Result<Vec<u64>, BenchError> {
            let mut most = vec![0; pids.len()];
            while !over.load(Ordering::Acquire) {
                for (most, &pid) in most.iter_mut().zip(&pids) {
                    *most = (*most).max(anonymous_bytes(pid)?);
                }
                thread::sleep(LOOK_EVERY);
            }
            Ok(most)
        });
        let moved = stage.transfer(Transfer {
            source: SOURCE,
            destination: COPY,
            strategy: Strategy::Direct,
            algorithm: Algorithm::Blake3,
        });
        over.store(true, Ordering::Release);
        let most = looking
            .join()
            .map_err(|_| BenchError::Panicked("RssAnon"))?;
        moved.and(most)
    })?;
    let row = |id: &str, who: &str, bytes_held: u64| {
        let mut rounds = Rounds::default();
        rounds.add(bytes_held as f64 / f64::from(1 << 20));
        let work = format!(
            "most RssAnon of the {who} agent while {} GiB move",
            bytes >> 30
        );
        rounds.row(id, work, "MiB", "", Must::AtMost(64.0))
    };
    Ok(vec![
        row("rss-source", "sending", most[0]),
        row("rss-destination", "receiving", most[1]),
    ])
}

/// A directory that is removed when this is dropped.
struct Removed(std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Whoever asked for the figures has them; a file that is left is in the way of nothing.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `RssAnon` of a process: its id, or `self`.
pub(super) fn anonymous_bytes(process: impl Display) -> Result<u64, BenchError> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(Path::new(&path)).map_err(BenchError::system(path.clone()))?;
    parse_anonymous(&text).ok_or_else(|| BenchError::Program {
        program: path,
        message: "has no RssAnon: the kernel is older than 4.5, or the agent has ended".to_owned(),
    })
}

fn parse_anonymous(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_read_in_kib() {
        let status = "VmRSS:\t   10240 kB\nRssAnon:\t    4096 kB\nRssFile:\t    6144 kB\n";
        assert_eq!(parse_anonymous(status), Some(4 << 20));
        assert_eq!(parse_anonymous("Name:\tx\nState:\tZ (zombie)\n"), None);
    }
}
