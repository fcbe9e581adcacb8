//! Agents in the nodes of a fabric, and transfers between them: what `weft play` does, several times
//! on one fabric and timed from the request on.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::time::timeout;
use weft_cli::authority::{self, Authority};
use weft_cli::fabric::Fabric;
use weft_cli::operator::{Contact, Job, Place, Runner, Spec, Standing};
use weft_engine::PolicyKind;
use weft_planner::{Node, Strategy, Topology, Uplink};
use weft_proto::agent::v1::Algorithm;

use super::BenchError;

const FABRIC: &str = "bench";
const ROOT: &str = "data";
const CONTROL_PORT: u16 = 7400;
const METRICS_PORT: u16 = 7401;
/// 16 ports at either end are enough for every number of paths.
const DATA_PORTS: (u16, u16) = (7500, 16);
const PATHS: u16 = 128;
/// What the planner is told of a link without a rate; all such links are equal.
const UNLIMITED_BPS: u64 = 10_000_000_000;
/// From start to ready: 50 ms where nothing else runs.
const READY_WITHIN: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(20);
/// No transfer here takes a tenth of it.
const OVER_WITHIN: Duration = Duration::from_secs(500);
/// IPv4 and UDP headers, Weft's header and trailer.
const PACKET_OVERHEAD: u32 = 20 + 8 + 64;
/// Ethernet's header, which the token buckets of a fabric count.
const FRAME_OVERHEAD: u32 = 14;

/// What is moved. The source is at node 0.
#[derive(Debug, Clone, Copy)]
pub struct Transfer<'a> {
    /// In node 0's directory.
    pub source: &'a str,
    /// In each destination's directory: every node but the first.
    pub destination: &'a str,
    /// Who sends to whom.
    pub strategy: Strategy,
    /// What is hashed with.
    pub algorithm: Algorithm,
}

/// An agent's process; killed when dropped.
struct Agent(Child);

/// A fabric's agents. They end with this value.
pub struct Stage {
    fabric: Arc<Fabric>,
    runtime: Runtime,
    authority: Arc<Authority>,
    agents: Vec<Agent>,
    /// Where each node's files are.
    directories: Vec<PathBuf>,
}

impl Stage {
    /// Starts an agent at every node; node `i` has `directories[i]`, and `home` is for keys,
    /// configurations and logs.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn set(
        fabric: Arc<Fabric>,
        directories: Vec<PathBuf>,
        home: &Path,
    ) -> Result<Self, BenchError> {
        let program = program()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(BenchError::system("the runtime of the operator"))?;
        let authority = Arc::new(Authority::new(FABRIC)?);
        let mut agents = Vec::new();
        for (i, directory) in directories.iter().enumerate() {
            let node = fabric.node(i);
            let home = home.join(&node.name);
            for directory in [&home, directory] {
                fs::create_dir_all(directory)
                    .map_err(BenchError::system(directory.display().to_string()))?;
            }
            let text = configuration(&fabric, i, &authority, directory, &home)?;
            let file = home.join("agent.yaml");
            fs::write(&file, text).map_err(BenchError::system(file.display().to_string()))?;
            let log = File::create(home.join("agent.log"))
                .map_err(BenchError::system("the agent's log"))?;
            let agent = fabric
                .command(i, &program)
                .arg("--config")
                .arg(&file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .map_err(BenchError::system(program.display().to_string()))?;
            agents.push(Agent(agent));
        }
        let stage = Self {
            fabric,
            runtime,
            authority,
            agents,
            directories,
        };
        for i in 0..stage.agents.len() {
            let address = SocketAddr::from((stage.address(i), METRICS_PORT));
            let waiting = stage
                .runtime
                .block_on(async { timeout(READY_WITHIN, ready(address)).await });
            if waiting.is_err() {
                let log =
                    fs::read_to_string(home.join(&stage.fabric.node(i).name).join("agent.log"));
                return Err(BenchError::Program {
                    program: format!("weft-agent of {}", stage.fabric.node(i).name),
                    message: format!("is not ready: {}", log.unwrap_or_default().trim()),
                });
            }
        }
        Ok(stage)
    }

    fn address(&self, i: usize) -> Ipv4Addr {
        self.fabric.node(i).management_address
    }

    /// Process ids of the agents, by node.
    pub fn pids(&self) -> Vec<u32> {
        self.agents.iter().map(|agent| agent.0.id()).collect()
    }

    /// Where node `i` has its files.
    pub fn directory(&self, i: usize) -> &Path {
        &self.directories[i]
    }

    /// Moves a file and answers how long it took from the request until every destination had it
    /// fsynced and verified.
    ///
    /// # Errors
    /// [`BenchError`]: also when a destination is not Verified.
    pub fn transfer(&self, transfer: Transfer<'_>) -> Result<Duration, BenchError> {
        let contact = |i| Contact {
            node: self.fabric.node(i).name.clone(),
            address: format!("{}:{CONTROL_PORT}", self.address(i)),
        };
        let contacts: Vec<Contact> = (0..self.agents.len()).map(contact).collect();
        let spec = self.spec(transfer)?;
        let begun = Instant::now();
        let transfer = async {
            let mut runner = Runner::begin(spec, Arc::clone(&self.authority), &contacts)?;
            while !runner.job().is_over() {
                runner.turn().await;
            }
            Ok::<_, BenchError>((begun.elapsed(), complaint(runner.job())))
        };
        let within = async { timeout(OVER_WITHIN, transfer).await };
        let over = self.runtime.block_on(within);
        let Ok(over) = over else {
            return Err(BenchError::Silent {
                what: "the transfer's end",
                seconds: OVER_WITHIN.as_secs(),
            });
        };
        match over? {
            (took, None) => Ok(took),
            (_, Some(message)) => Err(BenchError::Program {
                program: "transfer".into(),
                message,
            }),
        }
    }

    fn spec(&self, transfer: Transfer<'_>) -> Result<Spec, BenchError> {
        let place = |i: usize, path: &str| Place {
            node: self.fabric.node(i).name.clone(),
            root: ROOT.to_owned(),
            path: path.to_owned(),
        };
        Ok(Spec {
            uid: format!("bench-{}", authority::unique()?),
            source: place(0, transfer.source),
            destinations: (1..self.agents.len())
                .map(|i| place(i, transfer.destination))
                .collect(),
            topology: self.topology(),
            strategy: transfer.strategy,
            payload_share: payload_share(self.fabric.spec().mtu),
            algorithm: transfer.algorithm,
            // A benchmark has no second attempts: what fails is reported.
            backoff_limit: 0,
        })
    }

    fn topology(&self) -> Topology {
        let spec = self.fabric.spec();
        let node = |i: usize| Node {
            name: self.fabric.node(i).name.clone(),
            address: Some(format!("{}:{CONTROL_PORT}", self.address(i))),
            leaf: format!("leaf{}", self.fabric.node(i).leaf),
            rate_bps: spec.node_rate.unwrap_or(UNLIMITED_BPS),
        };
        let uplink = |(leaf, spine)| Uplink {
            leaf: format!("leaf{leaf}"),
            spine: format!("spine{spine}"),
            rate_bps: spec.rate.unwrap_or(UNLIMITED_BPS),
        };
        let pairs = (0..spec.leaves).flat_map(|l| (0..spec.spines).map(move |s| (l, s)));
        Topology {
            nodes: (0..self.agents.len()).map(node).collect(),
            uplinks: pairs.map(uplink).collect(),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Part of a link's rate that is payload, as a fabric's token buckets count: full packets, whose
/// payload is rounded down to a multiple of 8.
pub fn payload_share(mtu: u32) -> f64 {
    let payload = (mtu - PACKET_OVERHEAD) & !7;
    f64::from(payload) / f64::from(payload + PACKET_OVERHEAD + FRAME_OVERHEAD)
}

/// Why the job is not complete.
fn complaint(job: &Job) -> Option<String> {
    if job.is_complete() {
        return None;
    }
    let at_source = job.source_fault().map(|fault| fault.message);
    let at_destinations = job.destinations().filter_map(|view| match view.standing {
        Standing::Verified { .. } => None,
        Standing::Failed(refusal) | Standing::Troubled(refusal) => Some(refusal.message.clone()),
        Standing::Waiting => Some(format!("{} was not started", view.place.node)),
    });
    Some(
        at_source
            .into_iter()
            .chain(at_destinations)
            .collect::<Vec<_>>()
            .join("; "),
    )
}

fn configuration(
    fabric: &Fabric,
    i: usize,
    authority: &Authority,
    directory: &Path,
    home: &Path,
) -> Result<String, BenchError> {
    let node = fabric.node(i);
    let files = authority.node(&node.name)?.write(authority, home)?;
    // JSON strings are YAML strings, so that any path can be written.
    let quote = |path: &Path| serde_json::Value::from(path.display().to_string()).to_string();
    let access = if i == 0 { "ReadOnly" } else { "ReadWrite" };
    let (first, count) = DATA_PORTS;
    Ok(format!(
        "node: {name}\nfabric: {FABRIC}\n\
         control: {{listen: \"{at}:{CONTROL_PORT}\"}}\n\
         metrics: {{listen: \"{at}:{METRICS_PORT}\"}}\n\
         data:\n  address: {data}\n  ports: {{first: {first}, count: {count}}}\n  mtu: {mtu}\n\
         operator: {{ticketKey: \"{key}\"}}\n\
         tls:\n  ca: {ca}\n  certificate: {certificate}\n  key: {private}\n\
         roots:\n  - {{name: {ROOT}, path: {directory}, access: {access}}}\n\
         transport: {{paths: {PATHS}, policy: {policy}}}\n",
        name = node.name,
        at = node.management_address,
        data = node.data_address,
        mtu = fabric.spec().mtu,
        key = authority.ticket_key(),
        ca = quote(&files.ca),
        certificate = quote(&files.certificate),
        private = quote(&files.key),
        directory = quote(directory),
        policy = PolicyKind::TwoChoices,
    ))
}

/// The agent's program, which lies beside this one.
fn program() -> Result<PathBuf, BenchError> {
    let beside = std::env::current_exe().map_err(BenchError::system("this program's path"))?;
    let program = beside.with_file_name("weft-agent");
    if program.is_file() {
        return Ok(program);
    }
    Err(BenchError::Program {
        program: program.display().to_string(),
        message: "is not there: build it with `cargo build --release -p weft-agent`".to_owned(),
    })
}

/// Returns when `/readyz` says yes.
async fn ready(address: SocketAddr) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ask = async || -> std::io::Result<bool> {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request = b"GET /readyz HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    };
    while !matches!(ask().await, Ok(true)) {
        tokio::time::sleep(READY_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_share_is_that_of_full_packets() {
        // 8,904 of 9,010 and 1,408 of 1,514.
        assert!((payload_share(9000) - 8904.0 / 9010.0).abs() < 1e-9);
        assert!((payload_share(1500) - 1408.0 / 1514.0).abs() < 1e-9);
    }
}
