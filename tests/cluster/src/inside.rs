//! Looking at a cluster from inside: its processes, and the networks that only they have.

use std::fs::{self, File};
use std::io;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

/// Does something on a thread that is in the network of this process.
///
/// # Errors
/// The process is gone, or this one is not root.
pub fn in_network_of<T: Send + 'static>(
    pid: u32,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    let network = File::open(format!("/proc/{pid}/ns/net"))?;
    let (sender, entered) = std::sync::mpsc::channel();
    let thread = thread::Builder::new().name("in-network".to_owned());
    let handle = thread.spawn(move || {
        let done = setns(&network, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
        let failed = done.is_err();
        // Whoever waits for it waits for nothing else.
        let _ = sender.send(done);
        if failed {
            thread::park();
        }
        f()
    })?;
    entered.recv().map_err(io::Error::other)??;
    Ok(handle)
}

/// Whether a process was started by another, or by one that was.
#[must_use]
pub fn is_below(pid: u32, ancestor: u32) -> bool {
    let mut at = pid;
    while at > 1 {
        if at == ancestor {
            return true;
        }
        let Ok(stat) = fs::read_to_string(format!("/proc/{at}/stat")) else {
            return false;
        };
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        let Some(parent) = parent else { return false };
        at = parent;
    }
    false
}

/// Does something on a thread that has the mounts of this process, and waits for it.
///
/// # Errors
/// The process is gone, or this one is not root.
pub fn in_mounts_of<T: Send>(pid: u32, f: impl FnOnce() -> T + Send) -> io::Result<T> {
    let mounts = File::open(format!("/proc/{pid}/ns/mnt"))?;
    let work = move || {
        // A thread that shares its root directory with others may not change it.
        unshare(CloneFlags::CLONE_FS)?;
        setns(&mounts, CloneFlags::CLONE_NEWNS)?;
        Ok(f())
    };
    let done = thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
