//! Ends the engine or the agent of a node by SIGTERM and starts it again, as an upgrade does: programs that use the node's
//! devices notice a pause.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, ErrorKind},
    os::unix::{ffi::OsStrExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, Mode, OFlags, flock},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use weft_device_socket::descriptor_store;

use super::{DeviceError, NodeProgram, Record};
use crate::stage::ENGINE_LOG;

/// From its start until it serves, and from SIGTERM until it has ended: an agent gives jobs 20 s.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A process of a node that is to be restarted.
struct Running {
    pid: u32,
    line: Vec<OsString>,
}

impl Running {
    /// The program whose command line names a file beside the socket of the node's engine. Every fabric has one at the same
    /// path, but a PID namespace of its own.
    fn find(which: NodeProgram, home: &Path, namespace: &Path) -> Option<Self> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut all = processes.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line: Vec<OsString> = words(&line);
            let is_it = matches(which, home, &line) && pid_namespace(pid).ok()? == namespace;
            is_it.then_some(Self { pid, line })
        });
        all.next()
    }
}

/// The PID namespace of a process, as a name that no other one has.
fn pid_namespace(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid"))
}

/// Of `/proc/PID/cmdline`.
fn words(line: &[u8]) -> Vec<OsString> {
    let line = line.strip_suffix(b"\0").unwrap_or(line);
    let words = line.split(|byte| *byte == 0);
    words
        .map(|word| OsStr::from_bytes(word).to_owned())
        .collect()
}

fn matches(which: NodeProgram, home: &Path, line: &[OsString]) -> bool {
    let program = line.first().map(Path::new).and_then(Path::file_name);
    let mut files = line.iter().skip(1).map(Path::new);
    program == Some(OsStr::new(which.file())) && files.any(|file| file.parent() == Some(home))
}

/// Restarts it, and answers how long there was none that serves.
pub(super) fn restart(
    record: &Record,
    node: &str,
    which: NodeProgram,
) -> Result<Duration, DeviceError> {
    let failed = |source| DeviceError::NotRestarted {
        node: node.to_owned(),
        which,
        source,
    };
    let outside = record.socket(node)?;
    let home = record.home(node)?;
    let namespace = pid_namespace(record.pid).map_err(failed)?;
    let running = Running::find(which, &home, &namespace);
    let engine: Vec<OsString> = record
        .node(node)?
        .engine
        .iter()
        .map(OsString::from)
        .collect();
    let (line, log) = match (&running, which) {
        (Some(running), _) => (&running.line, log_of(running)),
        // It was killed, or has failed.
        (None, NodeProgram::Engine) => (&engine, append(&record.outside(&home).join(ENGINE_LOG))),
        (None, NodeProgram::Agent) => return Err(failed(ErrorKind::NotFound.into())),
    };
    let log = log.map_err(failed)?;
    let begun = Instant::now();
    let lock = match which {
        NodeProgram::Engine => Some(PathBuf::from(format!("{}.lock", outside.display()))),
        NodeProgram::Agent => None,
    };
    if let Some(running) = &running {
        end(running, lock.as_deref()).map_err(failed)?;
    }
    let mut command = record.enter(node, line)?;
    let words = log.try_clone().map_err(failed)?;
    let child = command.stdin(Stdio::null()).stdout(log).stderr(words);
    // It goes on when this program ends.
    child.spawn().map_err(failed)?;
    let store = descriptor_store::path_of(&outside);
    while !serves(which, &outside, &store) {
        if begun.elapsed() > TIMEOUT {
            return Err(failed(ErrorKind::TimedOut.into()));
        }
        sleep(POLL_INTERVAL);
    }
    Ok(begun.elapsed())
}

/// Where the process writes.
fn log_of(running: &Running) -> io::Result<fs::File> {
    append(Path::new(&format!("/proc/{}/fd/1", running.pid)))
}

fn append(path: &Path) -> io::Result<fs::File> {
    let opened = rustix::fs::open(path, OFlags::WRONLY | OFlags::APPEND, Mode::empty())?;
    Ok(opened.into())
}

/// SIGTERM; another one may begin when this returns. An engine of which a thread stands still has given its lock back then,
/// and goes on to be there.
fn end(running: &Running, lock: Option<&Path>) -> io::Result<()> {
    let pid = Pid::from_raw(running.pid.cast_signed()).ok_or(ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::TERM)?;
    let interval = Timespec::try_from(POLL_INTERVAL).map_err(io::Error::other)?;
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT {
        let has_ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&interval))? > 0;
        if has_ended || lock.is_some_and(is_free) {
            return Ok(());
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// Whether there is such a file, which nobody has locked.
fn is_free(lock: &Path) -> bool {
    let file = fs::File::open(lock);
    file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

/// The engine makes its socket when it has its devices; each agent makes the store's anew.
fn serves(which: NodeProgram, engine: &Path, store: &Path) -> bool {
    match which {
        NodeProgram::Engine => UnixStream::connect(engine).is_ok(),
        NodeProgram::Agent => descriptor_store::is_served(store),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn a_program_of_another_fabric_is_not_found() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("engine.sock");
        fs::write(&file, "it runs").unwrap();
        // As the engines of two fabrics it has the same command line in each.
        let mut engine = std::process::Command::new("tail");
        engine.arg0("weft-engine").arg("-f").arg(&file);
        let mut engine = engine.stdout(Stdio::piped()).spawn().unwrap();
        // The kernel knows a command line a moment after the program's start.
        let mut said = [0; 7];
        engine
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut said)
            .unwrap();
        let here = pid_namespace(std::process::id()).unwrap();
        let found = |namespace: &Path| {
            let found = Running::find(NodeProgram::Engine, home.path(), namespace);
            found.map(|running| running.pid)
        };
        let both = [here.as_path(), Path::new("pid:[1]")].map(found);
        engine.kill().unwrap();
        engine.wait().unwrap();
        assert_eq!(both, [Some(engine.id()), None]);
    }

    #[test]
    fn a_node_s_programs_are_known_by_their_files() {
        let line = |text: &[u8]| words(text);
        let engine = line(b"/opt/weft-engine\0--socket\0/run/a/engine.sock\0--mtu\x001500\0");
        assert_eq!(engine.len(), 5);
        let home = Path::new("/run/a");
        assert!(matches(NodeProgram::Engine, home, &engine));
        assert!(!matches(NodeProgram::Agent, home, &engine));
        assert!(!matches(NodeProgram::Engine, Path::new("/run/b"), &engine));
        let agent = line(b"weft-agent\0--config\0/run/a/agent.yaml\0");
        assert!(matches(NodeProgram::Agent, home, &agent));
        assert!(!matches(NodeProgram::Agent, home, &words(b"")));
    }
}
