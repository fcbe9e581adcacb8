//! The stage: one small fabric with its agents, on which rows are played one after the other.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    ops::{Deref, DerefMut, RangeInclusive},
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::mount::{MsFlags, mount};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
pub(crate) use weft_cli::stage::node_name as name;
use weft_cli::stage::{
    self, Access, CongestionControl, Encryption, Ground, Link, PathPolicy, Root, Setup,
};
use weft_fabric::{Fabric, Spec as Shape};
use weft_identity::server_name;
use weft_proto::agent::v1::{
    AttemptRef, ManifestHolder, Permission, Ticket, agent_client::AgentClient,
};
use weft_tests::program;

use crate::RUNTIME;

/// The source is node 0; 1 and 3 are behind the spines, 2 hangs on the source's leaf.
pub(crate) const NODES: usize = 4;
pub(crate) const SPINES: usize = 4;
const LEAVES: usize = 2;
/// 25 MB/s: the 24 MiB of most rows take a second, some twenty reports of progress.
const NODE_RATE: u64 = 200_000_000;
/// Four ports at either end.
const PATHS: u16 = 16;
/// The nodes' one root.
pub(crate) const ROOT: &str = "data";
const FABRIC: &str = "faults";
/// A private tmpfs: nothing on it outlives the namespaces.
const BASE: &str = "/run/weft-faults";
/// An agent's metrics: a few milliseconds where nothing else runs.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Node 0's agent runs without capabilities, so that file modes hold for it: root with none reads
/// what root may read by mode, and nothing else.
const WITHOUT_CAPABILITIES: [&str; 4] = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"];

/// Written by the row that is playing.
pub(crate) struct Stage {
    stage: stage::Stage,
    pub(crate) fabric: Arc<Fabric>,
    jobs: u64,
}

impl Deref for Stage {
    type Target = stage::Stage;

    fn deref(&self) -> &Self::Target {
        &self.stage
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.stage
    }
}

impl Stage {
    pub(crate) fn set() -> Self {
        let base = Path::new(BASE);
        fs::create_dir(base).unwrap();
        mount_tmpfs(base, "size=2g");
        let shape = Shape {
            nodes: NODES,
            leaves: LEAVES,
            spines: SPINES,
            node_rate: Some(NODE_RATE),
            ..Shape::default()
        };
        let fabric = Arc::new(Fabric::build(&shape).unwrap());
        let root = |node| Root {
            name: ROOT,
            directory: base.join("roots").join(name(node)),
            access: Access::ReadWrite,
        };
        let setup = Setup {
            name: FABRIC,
            ground: Ground::Fabric(Arc::clone(&fabric)),
            program: program("weft-agent"),
            home: base.join("agents"),
            roots: (0..NODES).map(root).collect(),
            paths: PATHS,
            policy: PathPolicy::default(),
            // What strikes is about its packets and paths.
            link: Link::Udp,
            encryption: Encryption::Off,
            congestion: CongestionControl::default(),
            devices: None,
            stays: false,
        };
        let stage = stage::Stage::set(setup).unwrap();
        Self {
            stage,
            fabric,
            jobs: 0,
        }
    }

    /// As it was at first, whatever the last row left.
    pub(crate) fn reset(&mut self) {
        self.fabric.heal_all().unwrap();
        self.fabric.set_loss(0.0).unwrap();
        for spine in 0..SPINES {
            self.fabric.drop_longer_than(spine, None).unwrap();
        }
        self.fabric.set_corrupt(0.0).unwrap();
        for node in 0..NODES {
            self.fabric.heal_node(node).unwrap();
            if !self.stage.is_running(node) {
                RUNTIME.block_on(self.serve(node, &[]));
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

    pub(crate) fn address(&self, node: usize) -> Ipv4Addr {
        self.ground().addresses(node).data
    }

    /// A node's data ports.
    pub(crate) fn ports(&self, node: usize) -> RangeInclusive<u16> {
        let config = self.config(node);
        let first = config.addresses.first_port;
        first..=first + config.ports - 1
    }

    /// A second agent at a node whose data ports the first has.
    pub(crate) fn rival(&self, node: usize) -> std::process::Output {
        let mut config = self.config(node);
        for address in [&mut config.addresses.control, &mut config.addresses.metrics] {
            address.set_port(address.port() + 10);
        }
        let file = self.root(node).join("rival.yaml");
        fs::write(&file, config.yaml().unwrap()).unwrap();
        let mut command = self.fabric.command(node, program("weft-agent"));
        command.arg("--config").arg(file).output().unwrap()
    }

    /// Starts a node's agent, by a program that becomes it; it serves when this returns.
    pub(crate) async fn serve(&mut self, node: usize, by: &[&str]) {
        let mut by = by.to_vec();
        if node == 0 {
            by.extend(WITHOUT_CAPABILITIES);
        }
        self.stage.start(node, &by).unwrap();
        self.stage.ready(node).await.unwrap();
    }

    /// The operator's own line to an agent, for calls that the runner does not make.
    pub(crate) fn operator(&self, node: usize) -> AgentClient<Channel> {
        let authority = self.authority();
        let identity = authority.operator().unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority.certificate()))
            .identity(tonic::transport::Identity::from_pem(
                identity.certificate,
                identity.key,
            ))
            .domain_name(server_name(FABRIC, &name(node)));
        let control = self.ground().addresses(node).control;
        let endpoint = Endpoint::from_shared(format!("https://{control}")).unwrap();
        AgentClient::new(endpoint.tls_config(tls).unwrap().connect_lazy())
    }

    /// Lets node `to` fetch a manifest that node `from` has listed.
    pub(crate) fn holder(
        &self,
        job: &AttemptRef,
        from: usize,
        to: usize,
        manifest_digest: Vec<u8>,
    ) -> ManifestHolder {
        let in_ten_minutes = SystemTime::now() + Duration::from_secs(600);
        let expires = in_ten_minutes.duration_since(UNIX_EPOCH).unwrap();
        let ticket = Ticket {
            fabric: FABRIC.to_owned(),
            attempt: Some(job.clone()),
            from_node: name(to),
            to_node: name(from),
            permission: Permission::FetchManifest.into(),
            expires_unix_s: expires.as_secs(),
            manifest_digest,
            ..Ticket::default()
        };
        ManifestHolder {
            node: name(from),
            control_address: self.ground().addresses(from).control.to_string(),
            ticket: Some(self.authority().sign(&ticket)),
        }
    }

    /// An agent's metrics by name and labels, as `weft_job_bytes_total{job_namespace="",job_name="a"}`.
    pub(crate) fn metrics(&self, node: usize) -> BTreeMap<String, u64> {
        let mut stream = TcpStream::connect(self.ground().addresses(node).metrics).unwrap();
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
        let labels = format!("job_namespace=\"\",job_name=\"{job}\"");
        let name = format!("weft_job_bytes_total{{{labels}}}");
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
