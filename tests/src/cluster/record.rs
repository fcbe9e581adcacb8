//! The state directory: what is up, and which process it ends with.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ClusterError, Settings, write_private};

/// Its presence says that the directory is a cluster's.
const RECORD: &str = "cluster.json";
/// Who holds it may change the directory.
pub(super) const LOCK: &str = "lock";

/// A cluster, as its state directory tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The process that everything ends with.
    pub pid: u32,
    /// When it was started, in the kernel's words: a pid is used again, the pair is not.
    pub started: u64,
    /// Pid that its control groups are named after; 0 until there are some.
    pub groups: u32,
    /// What it was made of.
    pub settings: Settings,
    /// Its nodes; none until it is up.
    pub nodes: Vec<NodeRecord>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its name to Kubernetes.
    pub name: String,
    /// Its address to Kubernetes.
    pub address: Ipv4Addr,
    /// Its address on the fabric, at the interface [`super::DATA_INTERFACE`].
    pub data_address: Ipv4Addr,
}

impl Record {
    /// Of a process that has just been started, for a cluster that is not up yet.
    pub(super) fn of(pid: u32, settings: Settings) -> Result<Self, ClusterError> {
        let started = started(pid)
            .ok_or_else(|| ClusterError::Server(format!("process {pid} ended at once")))?;
        Ok(Self {
            pid,
            started,
            groups: 0,
            settings,
            nodes: Vec::new(),
        })
    }

    pub(super) fn load(state: &Path) -> Result<Option<Self>, ClusterError> {
        let file = state.join(RECORD);
        if !file.exists() {
            return Ok(None);
        }
        let failed = || format!("reading {}", file.display());
        let text = fs::read_to_string(&file).map_err(ClusterError::system(failed()))?;
        let record = serde_json::from_str(&text)
            .map_err(std::io::Error::from)
            .map_err(ClusterError::system(failed()))?;
        Ok(Some(record))
    }

    pub(super) fn save(&self, state: &Path) -> Result<(), ClusterError> {
        let text = serde_json::to_string_pretty(self)
            .map_err(std::io::Error::from)
            .map_err(ClusterError::system("writing the record"))?;
        write_private(&state.join(RECORD), &text)
    }

    /// Whether the process is still that one.
    pub(super) fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Whether it came up; a cluster without a node is not one.
    pub(super) fn is_up(&self) -> bool {
        self.is_alive() && !self.nodes.is_empty()
    }
}

/// The 22nd field of `/proc/PID/stat`; the second may hold spaces and brackets. A process that only
/// its parent has yet to notice the end of is no process any more.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Held while a cluster is brought up or taken down: one at a time in one directory.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Makes the directory if it is not there, and waits for who holds it.
    pub(super) fn take(state: &Path) -> Result<Self, ClusterError> {
        let failed = || format!("taking {}", state.display());
        loop {
            fs::create_dir_all(state).map_err(ClusterError::system(failed()))?;
            let path = state.join(LOCK);
            let mut entries = fs::read_dir(state).map_err(ClusterError::system(failed()))?;
            if entries.next().is_some() && !path.exists() {
                return Err(ClusterError::Occupied(state.to_owned()));
            }
            let file = File::create(&path).map_err(ClusterError::system(failed()))?;
            file.lock().map_err(ClusterError::system(failed()))?;
            // Who held it may have removed it, and another may have made one anew.
            let held = file.metadata().map_err(ClusterError::system(failed()))?;
            if fs::metadata(&path).is_ok_and(|named| named.ino() == held.ino()) {
                return Ok(Self { _file: file });
            }
        }
    }

    /// Removes the directory with everything in it.
    pub(super) fn clear(self, state: &Path) -> Result<(), ClusterError> {
        fs::remove_dir_all(state).map_err(ClusterError::system(format!(
            "removing {}",
            state.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};

    #[test]
    fn a_pid_that_is_used_again_is_not_taken_for_the_cluster() {
        let own = Record::of(std::process::id(), Settings::default()).unwrap();
        assert!(own.is_alive());
        let other = Record {
            started: own.started + 1,
            ..own.clone()
        };
        assert!(!other.is_alive());
    }

    #[test]
    fn a_process_that_nobody_reaped_is_not_taken_for_the_cluster() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let record = Record::of(child.id(), Settings::default()).unwrap();
        assert!(record.is_alive());
        drop(child.stdin.take());
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(pid), flags).unwrap();
        assert!(!record.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(state.path()).unwrap(), None);
        let record = Record::of(std::process::id(), Settings::default()).unwrap();
        record.save(state.path()).unwrap();
        assert_eq!(Record::load(state.path()).unwrap(), Some(record));
    }

    #[test]
    fn who_waited_for_a_directory_that_was_removed_takes_the_next_one() {
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("state");
        let first = Lock::take(&state).unwrap();
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::take(&state).unwrap());
            first.clear(&state).unwrap();
            second.join().unwrap()
        });
        assert!(state.join(LOCK).exists());
        second.clear(&state).unwrap();
        assert!(!state.exists());
    }

    #[test]
    fn a_directory_with_other_things_in_it_is_left_alone() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join("letter"), "dear").unwrap();
        let refused = Lock::take(state.path()).unwrap_err().to_string();
        assert!(
            refused.ends_with("give another --state, or empty it"),
            "{refused}"
        );
    }
}
