//! The cluster's processes: started, watched, ended and started again by name.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::ClusterError;

/// Bytes of a log that say why its process ended.
const TAIL: u64 = 4096;

/// Starts the process, with its output going to this file.
type Recipe = Box<dyn Fn(File) -> Result<Child, ClusterError> + Send + Sync>;

/// All of them. They end with the process namespace.
#[derive(Default)]
pub(crate) struct Processes {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    entries: Mutex<Vec<Arc<Entry>>>,
    /// Told when a process has ended.
    changed: Condvar,
}

struct Entry {
    name: String,
    log: PathBuf,
    recipe: Recipe,
    state: Mutex<State>,
}

#[derive(Clone)]
enum State {
    Running(Pid),
    Ended(String),
}

impl Processes {
    /// Starts one and watches it from here on.
    pub(crate) fn start(
        &self,
        name: &str,
        log: PathBuf,
        recipe: impl Fn(File) -> Result<Child, ClusterError> + Send + Sync + 'static,
    ) -> Result<(), ClusterError> {
        let entry = Arc::new(Entry {
            name: name.to_owned(),
            log,
            recipe: Box::new(recipe),
            state: Mutex::new(State::Ended("not started".to_owned())),
        });
        self.launch(&entry)?;
        lock(&self.shared.entries).push(entry);
        Ok(())
    }

    fn launch(&self, entry: &Arc<Entry>) -> Result<(), ClusterError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&entry.log)
            .map_err(ClusterError::system(entry.log.display().to_string()))?;
        let mut state = lock(&entry.state);
        let mut child = (entry.recipe)(log)?;
        let pid = Pid::from_raw(child.id().cast_signed());
        *state = State::Running(pid);
        drop(state);
        let (entry, shared) = (Arc::clone(entry), Arc::clone(&self.shared));
        thread::spawn(move || {
            // Without reaping it: until the state says so, the pid is nobody else's.
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
                == Err(nix::errno::Errno::EINTR)
            {}
            let mut state = lock(&entry.state);
            *state = State::Ended(match child.wait() {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            });
            drop(state);
            // With the lock that waiters hold between their look and their sleep.
            drop(lock(&shared.entries));
            shared.changed.notify_all();
        });
        Ok(())
    }

    /// Their names, in the order of their start, and whether each runs.
    pub(crate) fn list(&self) -> Vec<(String, bool)> {
        let entries = lock(&self.shared.entries);
        let running = |entry: &Entry| matches!(*lock(&entry.state), State::Running(_));
        entries
            .iter()
            .map(|entry| (entry.name.clone(), running(entry)))
            .collect()
    }

    /// Ends one as a crash would.
    pub(crate) fn kill(&self, name: &str) -> Result<(), ClusterError> {
        let entry = self.entry(name)?;
        if let State::Running(pid) = *lock(&entry.state) {
            kill(pid, Signal::SIGKILL).map_err(ClusterError::system(format!("ending {name}")))?;
        }
        let gone = || {
            let ended = matches!(*lock(&entry.state), State::Ended(_));
            Ok(ended.then_some(()))
        };
        self.until(name, Duration::from_secs(30), name, gone)
    }

    /// Starts one again that has ended.
    pub(crate) fn restart(&self, name: &str) -> Result<(), ClusterError> {
        let entry = self.entry(name)?;
        if matches!(*lock(&entry.state), State::Running(_)) {
            return Ok(());
        }
        self.launch(&entry)
    }

    fn entry(&self, name: &str) -> Result<Arc<Entry>, ClusterError> {
        let entries = lock(&self.shared.entries);
        let found = entries.iter().find(|entry| entry.name == name);
        found
            .cloned()
            .ok_or_else(|| ClusterError::NoSuchProcess(name.to_owned()))
    }

    /// Says which process has ended, if one has: while the cluster comes up none may.
    pub(crate) fn check(&self) -> Result<(), ClusterError> {
        let entries: Vec<Arc<Entry>> = lock(&self.shared.entries).clone();
        for entry in entries {
            if let State::Ended(status) = lock(&entry.state).clone() {
                return Err(ClusterError::Ended {
                    name: entry.name.clone(),
                    status,
                    log: tail(&entry.log),
                });
            }
        }
        Ok(())
    }

    /// Looks until the condition holds: again when a process has ended, and every `LOOK_EVERY`.
    /// `name` is the process whose log explains it if it does not come to hold.
    pub(crate) fn until<T>(
        &self,
        what: &str,
        within: Duration,
        name: &str,
        mut look: impl FnMut() -> Result<Option<T>, ClusterError>,
    ) -> Result<T, ClusterError> {
        const LOOK_EVERY: Duration = Duration::from_millis(100);
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if Instant::now() > deadline {
                let log = match self.entry(name) {
                    Ok(entry) => tail(&entry.log),
                    Err(error) => error.to_string(),
                };
                return Err(ClusterError::Late {
                    what: what.to_owned(),
                    seconds: within.as_secs(),
                    name: name.to_owned(),
                    log,
                });
            }
            let entries = lock(&self.shared.entries);
            drop(self.shared.changed.wait_timeout(entries, LOOK_EVERY));
        }
    }
}

/// What is held is a whole value at every moment; a panic elsewhere does not change that.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_else(|error| format!("{}: {error}", log.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn shell(script: &'static str) -> impl Fn(File) -> Result<Child, ClusterError> {
        move |log| {
            Command::new("sh")
                .args(["-c", script])
                .stderr(log)
                .spawn()
                .map_err(ClusterError::system("sh"))
        }
    }

    #[test]
    fn a_process_that_ends_is_named_with_the_end_of_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let processes = Processes::default();
        processes
            .start(
                "etcd",
                directory.path().join("etcd.log"),
                shell("echo no disk >&2; exit 3"),
            )
            .unwrap();
        let ended = processes
            .until("etcd serves", Duration::from_secs(60), "etcd", || {
                processes.check()?;
                Ok(None::<()>)
            })
            .unwrap_err();
        assert_eq!(
            ended.to_string(),
            "etcd ended (exit status: 3); the end of its log:\nno disk"
        );
    }

    #[test]
    fn a_process_is_killed_and_started_again_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let processes = Processes::default();
        processes
            .start(
                "kubelet",
                directory.path().join("log"),
                shell("exec cat /dev/zero >/dev/null"),
            )
            .unwrap();
        processes.check().unwrap();
        processes.kill("kubelet").unwrap();
        assert_eq!(processes.list(), [("kubelet".to_owned(), false)]);
        processes.restart("kubelet").unwrap();
        assert_eq!(processes.list(), [("kubelet".to_owned(), true)]);
        processes.kill("kubelet").unwrap();
        let unknown = processes.kill("kublet").unwrap_err().to_string();
        assert_eq!(
            unknown,
            "there is no kublet: the components are listed by `cluster status`"
        );
    }
}
