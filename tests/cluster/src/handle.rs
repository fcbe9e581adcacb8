//! A cluster as those outside hold it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::order::{Answer, Order, SOCKET};
use crate::record::{Lock, remove_all_but_lock};
use crate::server::{KUBECONFIG, Said};
use crate::{ClusterError, NodeRecord, Record, Settings, hierarchy, output, output_of};

/// What the server needs to end everything below it, mounts and networks included.
const END: i64 = 60;
/// What is not part of the record, in the state directory.
const LOG: &str = "cluster.log";
/// One of the programs; the others are beside it.
const A_PROGRAM: &str = "kube-apiserver";

/// What [`Cluster::up`] did.
#[derive(Debug)]
pub enum Up {
    /// It made one.
    Made(Cluster),
    /// There was one of this shape.
    Found(Cluster),
}

/// A cluster that is up. It stays when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    state: PathBuf,
    programs: PathBuf,
    record: Record,
}

impl Cluster {
    /// Brings one up. `server` is a program that calls [`crate::serve`] when it is started with the
    /// words `serve --state STATE --programs PROGRAMS --settings JSON`.
    ///
    /// # Errors
    /// Why there is none; whatever was made of it is gone again.
    pub fn up(
        settings: &Settings,
        state: &Path,
        programs: &Path,
        server: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<Up, ClusterError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(ClusterError::NotRoot);
        }
        check(settings)?;
        let programs = &absolute(programs)?;
        let program = programs.join(A_PROGRAM);
        if !program.is_file() {
            return Err(ClusterError::NoProgram { path: program });
        }
        make(state)?;
        let state = &absolute(state)?;
        let lock = Lock::take(state)?;
        if let Some(record) = Record::load(state)? {
            if record.is_up() {
                if record.settings != *settings {
                    return Err(ClusterError::Other {
                        state: state.clone(),
                        nodes: record.settings.nodes,
                    });
                }
                return Ok(Up::Found(Self::new(state, programs, record)));
            }
            end(&record)?;
            remove_all_but_lock(state)?;
        }
        let begun = begin(settings, state, programs, server, say);
        match begun {
            Ok(record) => Ok(Up::Made(Self::new(state, programs, record))),
            Err(error) => {
                if let Some(record) = Record::load(state)? {
                    end(&record)?;
                }
                lock.clear(state)?;
                Err(error)
            }
        }
    }

    /// The one whose state is in this directory.
    ///
    /// # Errors
    /// [`ClusterError::Down`] if there is none.
    pub fn find(state: &Path, programs: &Path) -> Result<Self, ClusterError> {
        if !state.exists() {
            return Err(ClusterError::Down(state.to_owned()));
        }
        match Record::load(state)? {
            Some(record) if record.is_up() => Ok(Self::new(&absolute(state)?, programs, record)),
            _ => Err(ClusterError::Down(state.to_owned())),
        }
    }

    fn new(state: &Path, programs: &Path, record: Record) -> Self {
        Self {
            state: state.to_owned(),
            programs: programs.to_owned(),
            record,
        }
    }

    /// Takes down whatever is left of the cluster whose state is in this directory.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn down(state: &Path) -> Result<(), ClusterError> {
        if !state.exists() {
            return Ok(());
        }
        let state = &absolute(state)?;
        let lock = Lock::take(state)?;
        if let Some(record) = Record::load(state)? {
            end(&record)?;
        }
        lock.clear(state)
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[NodeRecord] {
        &self.record.nodes
    }

    /// The process that everything ends with.
    pub fn pid(&self) -> u32 {
        self.record.pid
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join(KUBECONFIG)
    }

    /// The logs of its components.
    pub fn logs(&self) -> PathBuf {
        self.state.join("logs")
    }

    /// What a node has at this absolute path below `/var`.
    pub fn file(&self, node: &str, path: &str) -> PathBuf {
        self.state.join(node).join(path.trim_start_matches('/'))
    }

    /// kubectl, helm or another of the cluster's programs, speaking to this cluster.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// What kubectl says.
    ///
    /// # Errors
    /// What it says if it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, ClusterError> {
        output(self.command("kubectl").args(arguments))
    }

    /// Makes or changes the objects of a manifest, in YAML or JSON.
    ///
    /// # Errors
    /// What kubectl says if it fails.
    pub fn apply(&self, manifest: &str) -> Result<String, ClusterError> {
        let mut kubectl = self.command("kubectl");
        output_of(kubectl.args(["apply", "-f", "-"]), manifest)
    }

    /// Puts images where every node's pods find them.
    ///
    /// # Errors
    /// Which node did not take which.
    pub fn load_images(&self, archives: &[PathBuf]) -> Result<(), ClusterError> {
        let archives = archives.iter().map(|path| absolute(path));
        let archives = archives.collect::<Result<_, _>>()?;
        self.order(&Order::LoadImages(archives)).map(drop)
    }

    /// The components by name, and whether each runs.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn components(&self) -> Result<Vec<(String, bool)>, ClusterError> {
        match self.order(&Order::Status)? {
            Answer::Status(components) => Ok(components),
            other => Err(ClusterError::Server(format!("answered {other:?}"))),
        }
    }

    /// Has something done that has no answer.
    ///
    /// # Errors
    /// Why it is not done.
    pub fn ask(&self, order: &Order) -> Result<(), ClusterError> {
        self.order(order).map(drop)
    }

    fn order(&self, order: &Order) -> Result<Answer, ClusterError> {
        let socket = self.state.join(SOCKET);
        let failed = || format!("asking the cluster at {}", socket.display());
        let mut stream = UnixStream::connect(&socket).map_err(ClusterError::system(failed()))?;
        let line = serde_json::to_string(order)
            .map_err(std::io::Error::from)
            .map_err(ClusterError::system(failed()))?
            + "\n";
        stream
            .write_all(line.as_bytes())
            .map_err(ClusterError::system(failed()))?;
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .map_err(ClusterError::system(failed()))?;
        match serde_json::from_str(&answer) {
            Ok(Answer::Refused(why)) => Err(ClusterError::Server(why)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(ClusterError::system(failed())(error)),
        }
    }
}

/// Where `hack/cluster-binaries.sh` of this checkout puts the cluster's programs.
///
/// # Errors
/// The script cannot be run.
pub fn programs() -> Result<PathBuf, ClusterError> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/cluster-binaries.sh");
    let said = output(Command::new(script).arg("--where"))?;
    Ok(PathBuf::from(said.trim()))
}

fn make(directory: &Path) -> Result<(), ClusterError> {
    std::fs::create_dir_all(directory).map_err(ClusterError::system(format!(
        "making {}",
        directory.display()
    )))
}

/// One name that holds wherever a process is.
fn absolute(path: &Path) -> Result<PathBuf, ClusterError> {
    std::fs::canonicalize(path).map_err(ClusterError::system(path.display().to_string()))
}

fn check(settings: &Settings) -> Result<(), ClusterError> {
    let name = |name: &String| (0..settings.nodes).any(|i| *name == format!("node{i}"));
    if let Some(unknown) = settings.unlabelled.iter().find(|given| !name(given)) {
        return Err(ClusterError::Setting(format!(
            "--unlabelled {unknown}: the nodes are node0 to node{}",
            settings.nodes.saturating_sub(1)
        )));
    }
    Ok(())
}

/// Starts the server and waits for what it says.
fn begin(
    settings: &Settings,
    state: &Path,
    programs: &Path,
    server: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<Record, ClusterError> {
    let failed = || "starting the server".to_owned();
    // Bound here, outside of the namespaces that the server makes for itself.
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ClusterError::system(failed()))?;
    let log = File::create(state.join(LOG)).map_err(ClusterError::system(failed()))?;
    let words = serde_json::to_string(settings)
        .map_err(std::io::Error::from)
        .map_err(ClusterError::system(failed()))?;
    // A session of its own: what the user types at the terminal is not meant for it.
    let mut child = Command::new("setsid")
        .arg(server)
        .args(["serve", "--settings", &words, "--state"])
        .arg(state)
        .arg("--programs")
        .arg(programs)
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(ClusterError::system(failed()))?;
    let mut record = Record::of(child.id(), settings.clone())?;
    record.save(state)?;
    let lines = child.stdout.take().map(BufReader::new);
    for line in lines.into_iter().flat_map(BufReader::lines) {
        let line = line.map_err(ClusterError::system(failed()))?;
        match serde_json::from_str(&line) {
            Ok(Said::Step(step)) => say(&step),
            Ok(Said::Groups(pid)) => {
                record.groups = pid;
                record.save(state)?;
            }
            Ok(Said::Ready(nodes)) => {
                record.nodes = nodes;
                record.save(state)?;
                return Ok(record);
            }
            Ok(Said::Failed(why)) => return Err(ClusterError::Server(why)),
            Err(error) => return Err(ClusterError::Server(format!("{line}: {error}"))),
        }
    }
    // It ended without a word of its own.
    let status = child.wait().map_err(ClusterError::system(failed()))?;
    let log = crate::process::tail(&state.join(LOG));
    Err(ClusterError::Server(format!("{status}\n{log}")))
}

/// Ends the process and waits until everything below it has ended, then removes what no process
/// keeps.
fn end(record: &Record) -> Result<(), ClusterError> {
    if record.is_alive() {
        let failed = || format!("ending process {}", record.pid);
        let pid = i32::try_from(record.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| ClusterError::Server(failed()))?;
        let process =
            pidfd_open(pid, PidfdFlags::empty()).map_err(ClusterError::system(failed()))?;
        // Between the look and the opening it may have ended, and the pid be another's.
        if record.is_alive() {
            for signal in [Signal::TERM, Signal::KILL] {
                match pidfd_send_signal(&process, signal) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                    Err(error) => return Err(ClusterError::system(failed())(error)),
                }
                let within = Timespec {
                    tv_sec: END,
                    tv_nsec: 0,
                };
                let mut polled = [PollFd::new(&process, PollFlags::IN)];
                if poll(&mut polled, Some(&within)).map_err(ClusterError::system(failed()))? > 0 {
                    break;
                }
            }
        }
    }
    if record.groups != 0 {
        hierarchy::remove(record.groups)?;
    }
    Ok(())
}
