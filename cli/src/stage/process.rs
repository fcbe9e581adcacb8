//! The processes of agents and engines: found, started, watched, killed.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{Program, StageError};

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
    let answer = http_get(metrics, "/readyz").await?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}

/// What an agent answers to a GET, its head included.
pub(crate) async fn http_get(metrics: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(metrics).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
