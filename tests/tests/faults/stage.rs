//! The stage: one small fabric with its agents, on which rows are played one after the other.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    time::Duration,
};

use nix::mount::{MsFlags, mount};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use weft_cli::{
    authority::Authority,
    fabric::{Fabric, Spec as Shape},
    operator::{Contact, Place},
};
use weft_planner::{Node, Topology, Uplink};
use weft_proto::agent::v1::agent_client::AgentClient;

/// The source is node 0; 1 and 3 are behind the spines, 2 hangs on the source's leaf.
pub(crate) const NODES: usize = 4;
pub(crate) const SPINES: usize = 4;
const LEAVES: usize = 2;
/// 25 MB/s: the 24 MiB of most rows take a second, some twenty reports of progress.
const NODE_RATE: u64 = 200_000_000;
/// The nodes' one root.
pub(crate) const ROOT: &str = "data";
const FABRIC: &str = "faults";
const CONTROL_PORT: u16 = 7400;
const METRICS_PORT: u16 = 7401;
pub(crate) const DATA_PORT: u16 = 7500;
pub(crate) const DATA_PORTS: u16 = 4;
/// A private tmpfs: nothing on it outlives the namespaces.
const BASE: &str = "/run/weft-faults";
/// From start to ready: 100 ms where nothing else runs.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// An agent's metrics: a few milliseconds where nothing else runs.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// What it logs last before it serves.
const READY: &str = "agent started";

/// A program of this build, beside this test's directory.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join(name);
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build -p weft-cli -p weft-agent` first",
        program.display()
    );
    program
}

pub(crate) fn name(node: usize) -> String {
    format!("node{node}")
}

/// A running agent.
struct Agent {
    process: Child,
    /// Sends once when it serves; ends with the process.
    ready: Receiver<()>,
    log: Arc<Mutex<String>>,
}

impl Agent {
    fn start(mut command: Command) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (tell, ready) = mpsc::channel();
        let log = Arc::new(Mutex::new(String::new()));
        let written = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains(READY) {
                    // Nobody waits for the agents that are not to start.
                    let _ = tell.send(());
                }
                let mut log = written.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self {
            process,
            ready,
            log,
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Fabric, authority and agents. Written by the row that is playing.
pub(crate) struct Stage {
    pub(crate) fabric: Fabric,
    pub(crate) authority: Arc<Authority>,
    agents: Vec<Option<Agent>>,
    jobs: u64,
}

impl Stage {
    pub(crate) fn set() -> Self {
        let base = Path::new(BASE);
        fs::create_dir(base).unwrap();
        mount_tmpfs(base, "size=2g");
        let fabric = Fabric::build(&Shape {
            nodes: NODES,
            leaves: LEAVES,
            spines: SPINES,
            node_rate: Some(NODE_RATE),
            ..Shape::default()
        })
        .unwrap();
        let mut stage = Self {
            fabric,
            authority: Arc::new(Authority::new(FABRIC).unwrap()),
            agents: Vec::new(),
            jobs: 0,
        };
        for node in 0..NODES {
            fs::create_dir_all(stage.root(node)).unwrap();
            stage.configure(node);
            stage.agents.push(None);
            stage.launch(node, &[]);
        }
        for node in 0..NODES {
            stage.wait_until_ready(node);
        }
        stage
    }

    /// As it was at first, whatever the last row left.
    pub(crate) fn reset(&mut self) {
        self.fabric.heal_all().unwrap();
        self.fabric.set_loss(0.0).unwrap();
        self.fabric.set_corrupt(0.0).unwrap();
        for node in 0..NODES {
            self.fabric.heal_node(node).unwrap();
            let ended = |agent: &mut Agent| agent.process.try_wait().unwrap().is_some();
            if self.agents[node].as_mut().is_none_or(ended) {
                self.start(node, &[]);
            }
            for entry in fs::read_dir(self.root(node)).unwrap() {
                let path = entry.unwrap().path();
                clear(&path);
            }
        }
    }

    /// A name that no job had before.
    pub(crate) fn new_job(&mut self) -> String {
        self.jobs += 1;
        format!("job-{}", self.jobs)
    }

    /// The directory of a node's root.
    pub(crate) fn root(&self, node: usize) -> PathBuf {
        Path::new(BASE).join("roots").join(name(node))
    }

    fn home(&self, node: usize) -> PathBuf {
        Path::new(BASE).join("agents").join(name(node))
    }

    pub(crate) fn address(&self, node: usize) -> Ipv4Addr {
        self.fabric.node(node).data_address
    }

    fn configure(&self, node: usize) {
        let (home, name) = (self.home(node), name(node));
        fs::create_dir_all(&home).unwrap();
        let identity = self.authority.node(&name).unwrap();
        identity.write(&self.authority, &home).unwrap();
        let at = self.fabric.node(node).management_address;
        let ports = (CONTROL_PORT, METRICS_PORT);
        fs::write(home.join("agent.yaml"), self.config(node, at, ports)).unwrap();
    }

    fn config(&self, node: usize, at: Ipv4Addr, (control, metrics): (u16, u16)) -> String {
        let (home, root) = (self.home(node), self.root(node));
        let (home, root) = (home.display(), root.display());
        format!(
            "node: {name}\nfabric: {FABRIC}\n\
             control: {{listen: \"{at}:{control}\"}}\nmetrics: {{listen: \"{at}:{metrics}\"}}\n\
             data: {{address: {data}, ports: {{first: {DATA_PORT}, count: {DATA_PORTS}}}, mtu: 9000}}\n\
             operator: {{ticketKey: \"{key}\"}}\n\
             tls: {{ca: {home}/ca.pem, certificate: {home}/node.pem, key: {home}/node.key}}\n\
             roots:\n  - {{name: {ROOT}, path: {root}, access: ReadWrite}}\n",
            name = name(node),
            data = self.address(node),
            key = self.authority.ticket_key(),
        )
    }

    /// A second agent at a node whose data ports the first has.
    pub(crate) fn rival(&self, node: usize) -> std::process::Output {
        let at = self.fabric.node(node).management_address;
        let file = self.home(node).join("rival.yaml");
        let ports = (CONTROL_PORT + 10, METRICS_PORT + 10);
        fs::write(&file, self.config(node, at, ports)).unwrap();
        let mut command = self.fabric.command(node, program("weft-agent"));
        command.arg("--config").arg(file).output().unwrap()
    }

    /// Node 0's agent runs without capabilities, so that file modes hold for it: root with none
    /// reads what root may read by mode, and nothing else.
    fn launch(&mut self, node: usize, wrapper: &[&str]) {
        let mut words = wrapper.to_vec();
        if node == 0 {
            words.extend(["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]);
        }
        let agent = program("weft-agent");
        let mut command = match words.split_first() {
            Some((first, rest)) => {
                let mut command = self.fabric.command(node, first);
                command.args(rest).arg(agent);
                command
            }
            None => self.fabric.command(node, agent),
        };
        command
            .arg("--config")
            .arg(self.home(node).join("agent.yaml"));
        self.agents[node] = Some(Agent::start(command));
    }

    fn wait_until_ready(&self, node: usize) {
        let agent = self.agents[node].as_ref().unwrap();
        if let Err(error) = agent.ready.recv_timeout(READY_WITHIN) {
            let log = agent.log.lock().unwrap();
            panic!("{} is not ready ({error}):\n{log}", name(node));
        }
    }

    /// Starts a node's agent, by a program that becomes it; it serves when this returns.
    pub(crate) fn start(&mut self, node: usize, wrapper: &[&str]) {
        self.launch(node, wrapper);
        self.wait_until_ready(node);
    }

    /// SIGKILL; it is gone when this returns.
    pub(crate) fn kill(&mut self, node: usize) {
        self.agents[node] = None;
    }

    /// What an agent has logged since it was started.
    pub(crate) fn log(&self, node: usize) -> String {
        let agent = self.agents[node].as_ref();
        agent.map_or_else(String::new, |agent| agent.log.lock().unwrap().clone())
    }

    pub(crate) fn contacts(&self) -> Vec<Contact> {
        let contact = |node| Contact {
            node: name(node),
            address: self.control(node).to_string(),
        };
        (0..NODES).map(contact).collect()
    }

    fn control(&self, node: usize) -> SocketAddr {
        SocketAddr::from((self.fabric.node(node).management_address, CONTROL_PORT))
    }

    /// The operator's own line to an agent, for calls that the runner does not make.
    pub(crate) fn operator(&self, node: usize) -> AgentClient<Channel> {
        let identity = self.authority.operator().unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.authority.certificate()))
            .identity(tonic::transport::Identity::from_pem(
                identity.certificate,
                identity.key,
            ))
            .domain_name(Authority::server_name(FABRIC, &name(node)));
        let endpoint = Endpoint::from_shared(format!("https://{}", self.control(node))).unwrap();
        AgentClient::new(endpoint.tls_config(tls).unwrap().connect_lazy())
    }

    pub(crate) fn topology(&self) -> Topology {
        let node = |node: usize| Node {
            name: name(node),
            address: Some(self.control(node).to_string()),
            leaf: format!("leaf{}", self.fabric.node(node).leaf),
            rate_bps: NODE_RATE,
        };
        let uplink = |(leaf, spine)| Uplink {
            leaf: format!("leaf{leaf}"),
            spine: format!("spine{spine}"),
            rate_bps: NODE_RATE,
        };
        let pairs = (0..LEAVES).flat_map(|leaf| (0..SPINES).map(move |spine| (leaf, spine)));
        Topology {
            nodes: (0..NODES).map(node).collect(),
            uplinks: pairs.map(uplink).collect(),
        }
    }

    pub(crate) fn place(&self, node: usize, path: &str) -> Place {
        Place {
            node: name(node),
            root: ROOT.to_owned(),
            path: path.to_owned(),
        }
    }

    /// An agent's metrics by name and labels, as `weft_job_bytes_total{job="a"}`.
    pub(crate) fn metrics(&self, node: usize) -> BTreeMap<String, u64> {
        let at = (self.fabric.node(node).management_address, METRICS_PORT);
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(ANSWER_WITHIN)).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let value = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        text.lines().filter_map(value).collect()
    }

    /// Bytes of a job that are verified at a node, now.
    pub(crate) fn moved(&self, node: usize, job: &str) -> u64 {
        let name = format!("weft_job_bytes_total{{job=\"{job}\"}}");
        self.metrics(node).get(&name).copied().unwrap_or_default()
    }

    /// Arriving packets that a node did not use, by reason.
    pub(crate) fn drops(&self, node: usize) -> BTreeMap<String, u64> {
        let reason = |(name, count): (String, u64)| {
            let rest = name.strip_prefix("weft_dropped_packets_total{reason=\"")?;
            Some((rest.strip_suffix("\"}")?.to_owned(), count))
        };
        self.metrics(node).into_iter().filter_map(reason).collect()
    }
}

pub(crate) fn mount_tmpfs(at: &Path, options: &str) {
    mount(
        Some("tmpfs"),
        at,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(options),
    )
    .unwrap();
}

/// Removes a row's file or directory, with what is mounted there.
fn clear(path: &Path) {
    let mounted = fs::read_to_string("/proc/self/mounts").unwrap();
    for line in mounted.lines() {
        let at = line.split(' ').nth(1).unwrap();
        if Path::new(at).starts_with(path) {
            nix::mount::umount2(at, nix::mount::MntFlags::MNT_DETACH).unwrap();
        }
    }
    if fs::symlink_metadata(path).unwrap().is_dir() {
        fs::remove_dir_all(path).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
}
