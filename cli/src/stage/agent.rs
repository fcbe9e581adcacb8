//! The agents' processes: found, configured, started, watched, killed.

use std::{
    fmt,
    fs::{self, File},
    io,
    net::SocketAddr,
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

use super::{Addresses, Root, StageError};

const PROGRAM: &str = "weft-agent";
/// From start to ready; an agent takes some 50 ms where nothing else runs.
const READY_WITHIN: Duration = Duration::from_secs(60);
const READY_POLL: Duration = Duration::from_millis(20);
/// How soon an agent that ended by itself is noticed.
const EXIT_POLL: Duration = Duration::from_millis(100);
/// Lines of an agent's last words that are shown.
const LINES_SHOWN: usize = 20;

/// Finds the agent's program beside this one, or in `PATH`.
pub fn find_agent() -> Result<PathBuf, StageError> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join(PROGRAM)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join(PROGRAM));
    beside
        .clone()
        .into_iter()
        .chain(in_path)
        .find(|file| file.is_file())
        .ok_or_else(|| StageError::AgentMissing {
            beside: beside.unwrap_or_else(|| PathBuf::from(PROGRAM)),
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
}

impl AgentConfig {
    /// The configuration file. JSON strings are YAML strings, so that any path can be written.
    pub fn yaml(&self) -> Result<String, serde_json::Error> {
        let quote = |path: &Path| serde_json::to_string(path);
        Ok(format!(
            "node: {node}\n\
             fabric: {fabric}\n\
             control: {{listen: \"{control}\"}}\n\
             metrics: {{listen: \"{metrics}\"}}\n\
             data:\n  address: {data}\n  ports: {{first: {first}, count: {ports}}}\n  mtu: {mtu}\n\
             operator: {{ticketKey: \"{ticket_key}\"}}\n\
             tls:\n  ca: {ca}\n  certificate: {certificate}\n  key: {key}\n\
             roots:\n  - {{name: {root}, path: {directory}, access: {access:?}}}\n\
             transport: {{paths: {paths}, policy: {policy}, congestion: {congestion}, encryption: \"{encryption}\"}}\n",
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

/// An agent and where its words go.
#[derive(Debug)]
struct Agent {
    node: String,
    child: Option<Child>,
    log: PathBuf,
    /// Bytes of the log that are from before it was started.
    logged: u64,
}

impl Agent {
    fn words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(self.logged).unwrap_or(usize::MAX);
        String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
    }
}

/// All agents of a stage. Whatever is left of them is killed when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Agents {
    agents: Vec<Agent>,
}

impl Agents {
    /// Adds an agent that is not running yet.
    pub(super) fn add(&mut self, node: &str, log: PathBuf) {
        self.agents.push(Agent {
            node: node.to_owned(),
            child: None,
            log,
            logged: 0,
        });
    }

    /// Starts one, by a command that becomes it.
    pub(super) fn start(&mut self, i: usize, mut command: Command) -> Result<(), StageError> {
        let agent = &mut self.agents[i];
        let mut spawn = || {
            let log = File::options().create(true).append(true).open(&agent.log)?;
            let logged = log.metadata()?.len();
            let words = log.try_clone()?;
            command.stdin(Stdio::null()).stdout(log).stderr(words);
            Ok((command.spawn()?, logged))
        };
        let (child, logged) = spawn().map_err(|source| StageError::AgentNotStarted {
            node: agent.node.clone(),
            source,
        })?;
        (agent.child, agent.logged) = (Some(child), logged);
        Ok(())
    }

    /// Waits until `/readyz` at `metrics` says yes.
    pub(super) async fn ready(&mut self, i: usize, metrics: SocketAddr) -> Result<(), StageError> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            self.check()?;
            if matches!(timeout(READY_WITHIN, is_ready(metrics)).await, Ok(Ok(true))) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let agent = &self.agents[i];
                return Err(StageError::AgentNotReady {
                    node: agent.node.clone(),
                    seconds: READY_WITHIN.as_secs(),
                    words: last_words(&agent.words()),
                });
            }
            sleep(READY_POLL).await;
        }
    }

    /// Returns when an agent has ended by itself.
    pub(super) async fn ended(&mut self) -> StageError {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            sleep(EXIT_POLL).await;
        }
    }

    fn check(&mut self) -> Result<(), StageError> {
        for agent in &mut self.agents {
            if let Some(child) = &mut agent.child
                && let Ok(Some(status)) = child.try_wait()
            {
                return Err(died(agent, status));
            }
        }
        Ok(())
    }

    /// SIGKILL; gone when this returns.
    pub(super) fn kill(&mut self, i: usize) -> io::Result<()> {
        let Some(mut child) = self.agents[i].child.take() else {
            return Ok(());
        };
        child.kill()?;
        child.wait().map(drop)
    }

    pub(super) fn is_running(&mut self, i: usize) -> bool {
        let child = self.agents[i].child.as_mut();
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(super) fn pid(&self, i: usize) -> Option<u32> {
        self.agents[i].child.as_ref().map(Child::id)
    }

    pub(super) fn log(&self, i: usize) -> String {
        self.agents[i].words()
    }

    /// They go on when this is dropped.
    pub(super) fn leave(&mut self) {
        for agent in &mut self.agents {
            agent.child = None;
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for i in 0..self.agents.len() {
            if let Err(error) = self.kill(i) {
                tracing::debug!(node = self.agents[i].node, %error, "already gone");
            }
        }
    }
}

fn died(agent: &Agent, status: ExitStatus) -> StageError {
    StageError::AgentEnded {
        node: agent.node.clone(),
        status,
        words: last_words(&agent.words()),
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

async fn is_ready(metrics: SocketAddr) -> io::Result<bool> {
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
