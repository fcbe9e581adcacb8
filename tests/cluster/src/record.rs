//! The state directory: what is up, and which process it ends with.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{ClusterError, Settings, write_private};

/// Its presence says that the directory is a cluster's.
const RECORD: &str = "cluster.json";
/// Who holds it may change the directory.
const LOCK: &str = "lock";
/// How often a directory may be gone again before it can be used: others take it and clear it meanwhile.
const TRIES: u32 = 1000;

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
    /// Its address on the fabric, at the interface [`crate::DATA_INTERFACE`].
    pub data_address: Ipv4Addr,
}

impl Record {
    /// Of a process that has just been started, for a cluster that is not up yet.
    pub(crate) fn of(pid: u32, settings: Settings) -> Result<Self, ClusterError> {
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

    pub(crate) fn load(state: &Path) -> Result<Option<Self>, ClusterError> {
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

    pub(crate) fn save(&self, state: &Path) -> Result<(), ClusterError> {
        let text = serde_json::to_string_pretty(self)
            .map_err(std::io::Error::from)
            .map_err(ClusterError::system("writing the record"))?;
        write_private(&state.join(RECORD), &text)
    }

    /// Whether the process is still that one.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Whether it came up; a cluster without a node is not one.
    pub(crate) fn is_up(&self) -> bool {
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
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Makes the directory if it is not there, and waits for who holds it.
    pub(crate) fn take(state: &Path) -> Result<Self, ClusterError> {
        let failed = || format!("taking {}", state.display());
        let mut left = TRIES;
        loop {
            left = left.saturating_sub(1);
            match Self::attempt(state) {
                Ok(Attempt::Taken(lock)) => return Ok(lock),
                Ok(Attempt::Occupied) => return Err(ClusterError::Occupied(state.to_owned())),
                Ok(Attempt::Overtaken) => {}
                Err(error) => {
                    // Who held it may be removing the directory.
                    let kinds = [ErrorKind::NotFound, ErrorKind::AlreadyExists];
                    if left == 0 || !kinds.contains(&error.kind()) {
                        return Err(ClusterError::system(failed())(error));
                    }
                }
            }
        }
    }

    fn attempt(state: &Path) -> io::Result<Attempt> {
        fs::create_dir_all(state)?;
        let path = state.join(LOCK);
        // Whoever makes a cluster there makes the lock first and removes it last.
        let was_there = path.exists();
        for entry in fs::read_dir(state)? {
            let is_another = entry?.file_name() != LOCK;
            if is_another && !was_there && !path.exists() {
                return Ok(Attempt::Occupied);
            }
        }
        let file = File::create(&path)?;
        file.lock()?;
        // Who held it may have removed it, and another may have made one anew.
        let held = file.metadata()?;
        let is_named = fs::metadata(&path).is_ok_and(|named| named.ino() == held.ino());
        Ok(match is_named {
            true => Attempt::Taken(Self { _file: file }),
            false => Attempt::Overtaken,
        })
    }

    /// Removes the directory with everything in it, the lock last: whoever finds other things without it
    /// takes them for somebody's. If the next one has taken the directory by then, it stays.
    pub(crate) fn clear(self, state: &Path) -> Result<(), ClusterError> {
        let failed = || format!("removing {}", state.display());
        remove_all_but_lock(state)?;
        fs::remove_file(state.join(LOCK)).map_err(ClusterError::system(failed()))?;
        match fs::remove_dir(state) {
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty
                ) =>
            {
                Err(ClusterError::system(failed())(error))
            }
            _ => Ok(()),
        }
    }
}

/// Empties the directory, by who holds the lock.
pub(crate) fn remove_all_but_lock(state: &Path) -> Result<(), ClusterError> {
    let failed = || format!("emptying {}", state.display());
    for entry in fs::read_dir(state).map_err(ClusterError::system(failed()))? {
        let entry = entry.map_err(ClusterError::system(failed()))?;
        let path = entry.path();
        if entry.file_name() == LOCK {
            continue;
        }
        let directory = entry
            .file_type()
            .map_err(ClusterError::system(failed()))?
            .is_dir();
        let removed = if directory {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(ClusterError::system(failed()))?;
    }
    Ok(())
}

/// What came of a try to take the lock.
enum Attempt {
    Taken(Lock),
    /// The directory holds what is no cluster's.
    Occupied,
    /// Somebody else was faster.
    Overtaken,
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
        // So often that the two meet at each of their steps.
        let mut held = first;
        for _ in 0..1000 {
            fs::write(state.join("log"), "all is well").unwrap();
            held = std::thread::scope(|scope| {
                let next = scope.spawn(|| Lock::take(&state).unwrap());
                held.clear(&state).unwrap();
                next.join().unwrap()
            });
            assert!(state.join(LOCK).exists());
        }
        held.clear(&state).unwrap();
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
