//! The agents' processes: found, configured, started, watched, killed.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::{PathPolicy, PlayError};
use crate::authority::IdentityFiles;

const PROGRAM: &str = "weft-agent";
/// From start to ready; an agent takes some 50 ms where nothing else runs.
const READY_WITHIN: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(20);
/// How soon an agent that ended by itself is noticed.
const EXIT_POLL: Duration = Duration::from_millis(100);
/// Lines of an agent's last words that are shown.
const LINES_SHOWN: usize = 20;

/// Finds the program beside this one, or in `PATH`.
pub(super) fn find() -> Result<PathBuf, PlayError> {
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
        .ok_or_else(|| PlayError::AgentMissing {
            beside: beside.unwrap_or_else(|| PathBuf::from(PROGRAM)),
        })
}

/// What one agent is told.
#[derive(Debug)]
pub(super) struct Config<'a> {
    pub(super) node: &'a str,
    pub(super) fabric: &'a str,
    pub(super) control: SocketAddr,
    pub(super) metrics: SocketAddr,
    pub(super) data: Ipv4Addr,
    pub(super) first_port: u16,
    pub(super) ports: u16,
    pub(super) paths: u16,
    pub(super) mtu: u32,
    pub(super) policy: PathPolicy,
    pub(super) ticket_key: &'a str,
    pub(super) files: &'a IdentityFiles,
    pub(super) root: (&'a str, &'a Path, &'a str),
}

impl Config<'_> {
    /// The configuration file. JSON strings are YAML strings, so that any path can be written.
    pub(super) fn yaml(&self) -> Result<String, serde_json::Error> {
        let quote = |path: &Path| serde_json::to_string(path);
        let (root, directory, access) = self.root;
        Ok(format!(
            "node: {node}\n\
             fabric: {fabric}\n\
             control: {{listen: \"{control}\"}}\n\
             metrics: {{listen: \"{metrics}\"}}\n\
             data:\n  address: {data}\n  ports: {{first: {first}, count: {ports}}}\n  mtu: {mtu}\n\
             operator: {{ticketKey: \"{ticket_key}\"}}\n\
             tls:\n  ca: {ca}\n  certificate: {certificate}\n  key: {key}\n\
             roots:\n  - {{name: {root}, path: {directory}, access: {access}}}\n\
             transport: {{paths: {paths}, policy: {policy}}}\n",
            node = self.node,
            fabric = self.fabric,
            control = self.control,
            metrics = self.metrics,
            data = self.data,
            first = self.first_port,
            ports = self.ports,
            mtu = self.mtu,
            ticket_key = self.ticket_key,
            ca = quote(&self.files.ca)?,
            certificate = quote(&self.files.certificate)?,
            key = quote(&self.files.key)?,
            directory = quote(directory)?,
            paths = self.paths,
            policy = self.policy,
        ))
    }
}

/// An agent and where its words go.
#[derive(Debug)]
struct Agent {
    node: String,
    child: Option<Child>,
    log: PathBuf,
}

/// All agents of a fabric. Whatever is left of them is killed when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Agents {
    agents: Vec<Agent>,
}

impl Agents {
    /// Adds an agent that is not running yet; gives its number.
    pub(super) fn add(&mut self, node: &str, log: PathBuf) -> usize {
        self.agents.push(Agent {
            node: node.to_owned(),
            child: None,
            log,
        });
        self.agents.len() - 1
    }

    /// Starts one, in its own process group: Ctrl-C is for the program that started it.
    pub(super) fn start(
        &mut self,
        i: usize,
        command: std::process::Command,
    ) -> Result<(), PlayError> {
        let agent = &mut self.agents[i];
        let failed = |source| PlayError::AgentNotStarted {
            node: agent.node.clone(),
            source,
        };
        let log = File::options()
            .create(true)
            .append(true)
            .open(&agent.log)
            .map_err(failed)?;
        let words = log.try_clone().map_err(failed)?;
        let child = Command::from(command)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(words)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        agent.child = Some(child);
        Ok(())
    }

    /// Waits until `/readyz` at `metrics` says yes.
    pub(super) async fn ready(&mut self, i: usize, metrics: SocketAddr) -> Result<(), PlayError> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            self.check()?;
            if matches!(timeout(READY_WITHIN, is_ready(metrics)).await, Ok(Ok(true))) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let agent = &self.agents[i];
                return Err(PlayError::AgentNotReady {
                    node: agent.node.clone(),
                    seconds: READY_WITHIN.as_secs(),
                    words: last_words(&agent.log),
                });
            }
            sleep(READY_POLL).await;
        }
    }

    /// Returns when an agent has ended by itself.
    pub(super) async fn ended(&mut self) -> PlayError {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            sleep(EXIT_POLL).await;
        }
    }

    fn check(&mut self) -> Result<(), PlayError> {
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
    pub(super) async fn kill(&mut self, i: usize) -> io::Result<()> {
        match self.agents[i].child.take() {
            Some(mut child) => child.kill().await,
            None => Ok(()),
        }
    }

    /// SIGKILL for all.
    pub(super) async fn kill_all(&mut self) {
        for i in 0..self.agents.len() {
            if let Err(error) = self.kill(i).await {
                tracing::debug!(node = self.agents[i].node, %error, "already gone");
            }
        }
    }
}

fn died(agent: &Agent, status: ExitStatus) -> PlayError {
    let (node, words) = (agent.node.clone(), last_words(&agent.log));
    PlayError::AgentEnded {
        node,
        status,
        words,
    }
}

/// The end of its log, indented.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
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
