//! The processes of agents and engines: found, configured, started, watched, killed.

use std::{
    fmt,
    fs::{self, File},
    io,
    net::{Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    str::FromStr,
    time::Duration,
};

use clap::ValueEnum;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use weft_fabric::{MAX_RATE, MIN_RATE, quantity};
use weft_identity::authority::IdentityFiles;

use super::{Addresses, Program, Root, StageError};

/// From start to ready; an agent takes some 50 ms where nothing else runs.
const READY_WITHIN: Duration = Duration::from_secs(60);
const READY_POLL: Duration = Duration::from_millis(20);
/// How soon an agent that ended by itself is noticed.
const EXIT_POLL: Duration = Duration::from_millis(100);
/// Lines of an agent's last words that are shown.
const LINES_SHOWN: usize = 20;

/// Finds a program beside this one, or in `PATH`.
pub fn find(program: Program) -> Result<PathBuf, StageError> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join(program.file())));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join(program.file()));
    beside
        .clone()
        .into_iter()
        .chain(in_path)
        .find(|file| file.is_file())
        .ok_or_else(|| StageError::Missing {
            program,
            beside: beside.unwrap_or_else(|| PathBuf::from(program.file())),
        })
}

/// How a path is chosen for a chunk; the agents know them by these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PathPolicy {
    /// One path for everything.
    Single,
    /// One after the other.
    RoundRobin,
    /// Any, at random.
    Oblivious,
    /// The faster of two drawn at random.
    TwoChoices,
    /// The fastest.
    BestRtt,
    /// Those whose data came back soon.
    #[default]
    Reps,
    /// One until another is clearly better.
    Hopper,
}

impl fmt::Display for PathPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::RoundRobin => "round-robin",
            Self::Oblivious => "oblivious",
            Self::TwoChoices => "two-choices",
            Self::BestRtt => "best-rtt",
            Self::Reps => "reps",
            Self::Hopper => "hopper",
        })
    }
}

/// What bounds the bytes in flight; the agents know them by these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// Marks and queueing delay.
    #[default]
    EcnRtt,
    /// A target for the round trip.
    Swift,
    /// Credits that receivers grant.
    Eqds {
        /// The rate at which every node receives.
        mbps: u64,
    },
}

impl FromStr for CongestionControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("eqds:")) {
            ("ecn-rtt", _) => Ok(Self::EcnRtt),
            ("swift", _) => Ok(Self::Swift),
            (_, Some(rate)) => match quantity::parse_rate(rate) {
                Ok(bps) if (MIN_RATE..=MAX_RATE).contains(&bps) => Ok(Self::Eqds {
                    mbps: bps / 1_000_000,
                }),
                Ok(_) => Err("give a rate from 1mbit to 400gbit, as eqds:10gbit".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            _ => Err(
                "must be ecn-rtt, swift or eqds:RATE with the rate at which nodes receive, as eqds:10gbit"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EcnRtt => f.write_str("ecn-rtt"),
            Self::Swift => f.write_str("swift"),
            Self::Eqds { mbps } => write!(f, "eqds:{mbps}mbit"),
        }
    }
}

/// Whether the data path is encrypted; the agents know it by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encryption {
    /// Packets are readable; damage is found.
    Off,
    /// Every packet is encrypted.
    Required,
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Required => "required",
        })
    }
}

/// What jobs may do in a root; agents know it by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// What one agent is told.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Its node.
    pub node: String,
    /// The fabric's name.
    pub fabric: &'static str,
    /// Where it listens.
    pub addresses: Addresses,
    /// Data ports from the first one on.
    pub ports: u16,
    /// Paths to every other node.
    pub paths: u16,
    /// Largest IP packet.
    pub mtu: u32,
    /// How a chunk's path is chosen.
    pub policy: PathPolicy,
    /// Whether the data path is encrypted.
    pub encryption: Encryption,
    /// What bounds the bytes in flight.
    pub congestion: CongestionControl,
    /// What tickets are checked with.
    pub ticket_key: String,
    /// Its keys and certificates.
    pub files: IdentityFiles,
    /// Its one root.
    pub root: Root,
    /// The socket of its engine and the devices of the fabric, where it has a device.
    pub devices: Option<(PathBuf, Vec<DevicePeer>)>,
}

/// A device of the fabric, as agents know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePeer {
    /// Its GID.
    pub gid: Ipv6Addr,
    /// Its node.
    pub node: String,
    /// The control API of that node's agent.
    pub control: SocketAddr,
}

impl AgentConfig {
    /// The configuration file. JSON strings are YAML strings, so that any path can be written.
    pub fn yaml(&self) -> Result<String, serde_json::Error> {
        let quote = |path: &Path| serde_json::to_string(path);
        let devices = match &self.devices {
            None => String::new(),
            Some((socket, peers)) => {
                let peer = |peer: &DevicePeer| {
                    let DevicePeer { gid, node, control } = peer;
                    format!("  - {{gid: \"{gid}\", node: {node}, control: \"{control}\"}}\n")
                };
                let peers: String = peers.iter().map(peer).collect();
                format!("devices:\n  socket: {}\n  peers:\n{peers}", quote(socket)?)
            }
        };
        Ok(format!(
            "node: {node}\n\
             fabric: {fabric}\n\
             control: {{listen: \"{control}\"}}\n\
             metrics: {{listen: \"{metrics}\"}}\n\
             data:\n  address: {data}\n  ports: {{first: {first}, count: {ports}}}\n  mtu: {mtu}\n\
             operator: {{ticketKey: \"{ticket_key}\"}}\n\
             tls:\n  ca: {ca}\n  certificate: {certificate}\n  key: {key}\n\
             roots:\n  - {{name: {root}, path: {directory}, access: {access:?}}}\n\
             transport: {{paths: {paths}, policy: {policy}, congestion: {congestion}, encryption: \"{encryption}\"}}\n\
             {devices}",
            node = self.node,
            fabric = self.fabric,
            control = self.addresses.control,
            metrics = self.addresses.metrics,
            data = self.addresses.data,
            first = self.addresses.first_port,
            ports = self.ports,
            mtu = self.mtu,
            ticket_key = self.ticket_key,
            ca = quote(&self.files.ca)?,
            certificate = quote(&self.files.certificate)?,
            key = quote(&self.files.key)?,
            root = self.root.name,
            directory = quote(&self.root.directory)?,
            access = self.root.access,
            paths = self.paths,
            policy = self.policy,
            encryption = self.encryption,
            congestion = self.congestion,
        ))
    }
}

/// A process and where its words go.
#[derive(Debug)]
struct Process {
    node: String,
    child: Option<Child>,
    log: PathBuf,
    /// Bytes of the log that are from before it was started.
    logged: u64,
}

impl Process {
    fn words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(self.logged).unwrap_or(usize::MAX);
        String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
    }
}

/// All agents of a stage, or all engines. Whatever is left of them is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Processes {
    program: Program,
    processes: Vec<Process>,
}

impl Processes {
    /// None yet.
    pub(super) fn of(program: Program) -> Self {
        let processes = Vec::new();
        Self { program, processes }
    }

    /// Adds a process that is not running yet.
    pub(super) fn add(&mut self, node: &str, log: PathBuf) {
        self.processes.push(Process {
            node: node.to_owned(),
            child: None,
            log,
            logged: 0,
        });
    }

    /// Starts one, by a command that becomes it.
    pub(super) fn start(&mut self, i: usize, mut command: Command) -> Result<(), StageError> {
        let process = &mut self.processes[i];
        let mut spawn = || {
            let log = File::options()
                .create(true)
                .append(true)
                .open(&process.log)?;
            let logged = log.metadata()?.len();
            let words = log.try_clone()?;
            command.stdin(Stdio::null()).stdout(log).stderr(words);
            Ok((command.spawn()?, logged))
        };
        let (child, logged) = spawn().map_err(|source| StageError::NotStarted {
            program: self.program,
            node: process.node.clone(),
            source,
        })?;
        (process.child, process.logged) = (Some(child), logged);
        Ok(())
    }

    /// Waits until it serves, which `is_ready` finds out.
    pub(super) async fn ready(
        &mut self,
        i: usize,
        is_ready: impl AsyncFn() -> io::Result<bool>,
    ) -> Result<(), StageError> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            self.check()?;
            if matches!(timeout(READY_WITHIN, is_ready()).await, Ok(Ok(true))) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let process = &self.processes[i];
                return Err(StageError::NotReady {
                    program: self.program,
                    node: process.node.clone(),
                    seconds: READY_WITHIN.as_secs(),
                    words: last_words(&process.words()),
                });
            }
            sleep(READY_POLL).await;
        }
    }

    /// Returns when one has ended by itself.
    pub(super) async fn ended(&mut self) -> StageError {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            sleep(EXIT_POLL).await;
        }
    }

    fn check(&mut self) -> Result<(), StageError> {
        for process in &mut self.processes {
            if let Some(child) = &mut process.child
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(died(self.program, process, status));
            }
        }
        Ok(())
    }

    /// SIGKILL; gone when this returns.
    pub(super) fn kill(&mut self, i: usize) -> io::Result<()> {
        let Some(mut child) = self.processes[i].child.take() else {
            return Ok(());
        };
        child.kill()?;
        child.wait().map(drop)
    }

    pub(super) fn is_running(&mut self, i: usize) -> bool {
        let child = self.processes[i].child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(super) fn pid(&self, i: usize) -> Option<u32> {
        self.processes[i].child.as_ref().map(Child::id)
    }

    pub(super) fn log(&self, i: usize) -> String {
        self.processes[i].words()
    }

    /// They go on when this is dropped.
    pub(super) fn leave(&mut self) {
        for process in &mut self.processes {
            process.child = None;
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for i in 0..self.processes.len() {
            if let Err(error) = self.kill(i) {
                tracing::debug!(node = self.processes[i].node, %error, "already gone");
            }
        }
    }
}

fn died(program: Program, process: &Process, status: ExitStatus) -> StageError {
    StageError::Ended {
        program,
        node: process.node.clone(),
        status,
        words: last_words(&process.words()),
    }
}

/// The end of its log, indented.
fn last_words(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(LINES_SHOWN);
    if lines.is_empty() {
        return "  (it said nothing)".to_owned();
    }
    lines[from..]
        .iter()
        .map(|line| format!("  {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Whether `/readyz` at `metrics` says yes.
pub(super) async fn is_ready(metrics: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(metrics).await?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_is_told_to_agents_as_it_is_named_here() {
        let told = |text: &str| {
            text.parse()
                .map(|control: CongestionControl| control.to_string())
        };
        assert_eq!(told("swift"), Ok("swift".to_owned()));
        assert_eq!(told("eqds:10gbit"), Ok("eqds:10000mbit".to_owned()));
        for text in [
            "eqds",
            "eqds:",
            "eqds:10",
            "eqds:999kbit",
            "eqds:401gbit",
            "cubic",
        ] {
            assert!(told(text).is_err(), "{text}");
        }
    }
}
