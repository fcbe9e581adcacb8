//! Processes below a cluster: found in `/proc`, looked at, and asked in their own network.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use weft_cluster::{in_network_of, is_below};

use super::ClusterBenchError;

/// An answer on the same machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process(u32);

impl Process {
    /// Those below `ancestor` whose name is `name` (as the kernel keeps it: 15 characters) and whose
    /// command line or environment holds `word`.
    pub(super) fn below(ancestor: u32, name: &str, word: &str) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let comm = read("comm");
            if comm.trim_ascii_end() != &name.as_bytes()[..name.len().min(15)] {
                continue;
            }
            let words = [read("cmdline"), read("environ"), read("mountinfo")].concat();
            let told = words
                .windows(word.len().max(1))
                .any(|w| w == word.as_bytes());
            if (word.is_empty() || told) && is_below(pid, ancestor) {
                found.push(Self(pid));
            }
        }
        Ok(found)
    }

    /// The first of those.
    pub(super) fn one_below(
        ancestor: u32,
        name: &str,
        word: &str,
    ) -> Result<Self, ClusterBenchError> {
        let found = Self::below(ancestor, name, word)
            .map_err(ClusterBenchError::system("looking for a process"))?;
        let first = found.first().copied();
        first.ok_or_else(|| ClusterBenchError::Late {
            what: format!("a process {name} {word}"),
            seconds: 0,
        })
    }

    /// As the kernel counts it.
    pub(super) fn pid(self) -> u32 {
        self.0
    }

    /// The files that it sees.
    pub(super) fn root(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.0))
    }

    /// Ends it as a crash would.
    pub(super) fn kill(self) -> io::Result<()> {
        let pid = Pid::from_raw(self.0.cast_signed());
        Ok(signal::kill(pid, Signal::SIGKILL)?)
    }

    /// Anonymous memory that is in use, bytes.
    pub(super) fn anonymous_bytes(self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024)
            .ok_or_else(|| io::Error::other("no RssAnon in /proc/PID/status"))
    }

    /// All memory that is in use, the program's own pages included, bytes; the most there ever was.
    pub(super) fn peak_bytes(self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024)
            .ok_or_else(|| io::Error::other("no VmHWM in /proc/PID/status"))
    }

    /// Processor time used so far, nanoseconds.
    pub(super) fn cpu_nanos(self) -> io::Result<u64> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.0))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            let spent = text.split_whitespace().next().and_then(|n| n.parse().ok());
            nanos += spent.unwrap_or(0u64);
        }
        Ok(nanos)
    }

    /// Does something on a thread that is in this process's network.
    pub(super) fn in_network<T: Send + 'static>(
        self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<thread::JoinHandle<T>> {
        in_network_of(self.0, f)
    }

    /// What its HTTP server on this port says.
    pub(super) fn http(self, port: u16, path: &'static str) -> io::Result<String> {
        let asked = self.in_network(move || -> io::Result<String> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
            Ok(body.to_owned())
        })?;
        asked
            .join()
            .map_err(|_| io::Error::other("the asking thread panicked"))?
    }
}
