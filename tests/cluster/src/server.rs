//! The process that a cluster runs below: brings it up, passes the API server's port out of its
//! namespaces, and does what it is ordered.
//!
//! Its standard input is the socket that listens outside, its standard output tells whoever started
//! it how far it is, in lines of JSON, each a [`Said`].

use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use weft_fabric::isolation;
use weft_fabric::{Fabric, Spec};

use crate::control_plane::{ControlPlane, Keys};
use crate::network::{self, API_PORT};
use crate::node::{Node, Plan, SLOW};
use crate::order::{Answer, Order, SOCKET};
use crate::process::Processes;
use crate::record::NodeRecord;
use crate::{ClusterError, Settings, each, output, write_private};

/// What the server says on its way up, to whoever started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Said {
    /// Its control groups are named after this pid.
    Groups(u32),
    /// It has come to this step.
    Step(String),
    /// The last: these nodes are up.
    Ready(Vec<NodeRecord>),
    /// The last: there is no cluster, and this is why.
    Failed(String),
}

/// The administrator's kubeconfig for outside, in the state directory.
pub(crate) const KUBECONFIG: &str = "kubeconfig";
/// The same for inside.
const KUBECONFIG_INSIDE: &str = "kubeconfig-inside";
/// Kubelets register, report and are found Ready within it, the longest step of all.
const JOIN: Duration = Duration::from_secs(300);

/// Brings a cluster up below this process, which is isolated, and serves until it is ended.
///
/// # Errors
/// Why it did not come up; standard output has said so too.
pub fn serve(settings: &str, state: &Path, programs: &Path) -> Result<(), ClusterError> {
    let settings = serde_json::from_str(settings)
        .map_err(|error| ClusterError::Setting(format!("--settings: {error}")));
    let served = settings
        .and_then(|settings: Settings| Server::start(&settings, state, programs))
        .and_then(|server| {
            tokio::runtime::Runtime::new()
                .map_err(ClusterError::system("starting a runtime"))?
                .block_on(Arc::new(server).run(state))
        });
    if let Err(error) = &served {
        say(&Said::Failed(error.to_string()))?;
    }
    served
}

/// A line to whoever waits for the cluster. If nobody does any more, nobody wants it.
fn say(said: &Said) -> Result<(), ClusterError> {
    let line = serde_json::to_string(said).unwrap_or_default() + "\n";
    let mut out = io::stdout();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .map_err(ClusterError::system("telling who started this"))
}

fn step(step: &str) -> Result<(), ClusterError> {
    say(&Said::Step(step.to_owned()))
}

struct Server {
    fabric: Arc<Fabric>,
    processes: Processes,
    nodes: Vec<Node>,
    listener: TcpListener,
}

impl Server {
    fn start(settings: &Settings, state: &Path, programs: &Path) -> Result<Self, ClusterError> {
        let listener = io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map(TcpListener::from)
            .map_err(ClusterError::system(
                "taking the socket that listens outside",
            ))?;
        let outside = listener.local_addr().map_err(ClusterError::system(
            "standard input is no listening socket",
        ))?;
        let cluster = isolation::pid();
        say(&Said::Groups(cluster))?;

        step("building the fabric")?;
        let fabric = Arc::new(Fabric::build(&Spec {
            nodes: settings.nodes,
            leaves: settings.nodes.min(2),
            spines: settings.spines,
            node_rate: settings.node_rate,
            ..Spec::default()
        })?);
        network::connect(&fabric)?;

        step("starting the control plane")?;
        let names: Vec<String> = fabric.nodes().iter().map(|n| n.name.clone()).collect();
        let address = fabric.management_address();
        let keys = Keys::make(&state.join("keys"), address, &names)?;
        let inside = state.join(KUBECONFIG_INSIDE);
        write_private(
            &inside,
            &keys.kubeconfig(address, API_PORT, &keys.administrator),
        )?;
        write_private(
            &state.join(KUBECONFIG),
            &keys.kubeconfig(Ipv4Addr::LOCALHOST, outside.port(), &keys.administrator),
        )?;
        let logs = state.join("logs");
        fs::create_dir_all(&logs).map_err(ClusterError::system(logs.display().to_string()))?;
        let processes = Processes::default();
        let plane = ControlPlane {
            programs,
            logs: &logs,
            data: &state.join("etcd"),
            keys: &keys,
            address,
            kubeconfig: &inside,
            feature_gates: &settings.feature_gates,
        };
        plane.start_api(&processes)?;

        let make = |&index: &usize| {
            let name = &names[index];
            let kubeconfig = |token: &str| keys.kubeconfig(address, API_PORT, token);
            let labelled = !settings.unlabelled.contains(name);
            let plan = Plan {
                fabric: &fabric,
                index,
                cluster,
                directory: &state.join(name),
                programs,
                logs: &logs,
                labels: if labelled {
                    settings.label.clone()
                } else {
                    String::new()
                },
                kubelet: kubeconfig(&keys.kubelets[index]),
                proxy: kubeconfig(&keys.proxy),
                feature_gates: &settings.feature_gates,
            };
            Node::make(&plan, &processes)
        };
        // The nodes get their containerds while the API server starts.
        let nodes = each(&(0..names.len()).collect::<Vec<_>>(), make)?;
        let api = Api {
            processes: &processes,
            kubectl: &programs.join("kubectl"),
            kubeconfig: &inside,
            address: SocketAddr::from((address, API_PORT)),
        };
        api.until_ready()?;

        step("starting kubelets")?;
        plane.start_controllers(&processes)?;
        for node in &nodes {
            node.join(&processes)?;
        }
        api.until_nodes_are_ready(nodes.len())?;
        api.until_pods_may_be_created()?;

        Ok(Self {
            fabric,
            processes,
            nodes,
            listener,
        })
    }

    fn records(&self) -> Vec<NodeRecord> {
        let nodes = self.fabric.nodes().iter();
        nodes
            .map(|node| NodeRecord {
                name: node.name.clone(),
                address: node.management_address,
                data_address: node.data_address,
            })
            .collect()
    }

    async fn run(self: Arc<Self>, state: &Path) -> Result<(), ClusterError> {
        let failed = || "listening".to_owned();
        let outside = self
            .listener
            .try_clone()
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener)
            })
            .map_err(ClusterError::system(failed()))?;
        let socket = state.join(SOCKET);
        let orders = UnixListener::bind(&socket).map_err(ClusterError::system(format!(
            "listening at {}; if the name is too long, give a shorter --state",
            socket.display()
        )))?;
        let api = SocketAddr::from((self.fabric.management_address(), API_PORT));
        say(&Said::Ready(self.records()))?;
        loop {
            tokio::select! {
                accepted = outside.accept() => {
                    let (client, _) = accepted.map_err(ClusterError::system(failed()))?;
                    tokio::spawn(forward(client, api));
                }
                accepted = orders.accept() => {
                    let (client, _) = accepted.map_err(ClusterError::system(failed()))?;
                    tokio::spawn(Arc::clone(&self).answer(client));
                }
            }
        }
    }

    /// One order, one answer.
    async fn answer(self: Arc<Self>, client: UnixStream) {
        let mut client = BufReader::new(client);
        let mut line = String::new();
        if let Err(error) = client.read_line(&mut line).await {
            tracing::debug!("an order that ended early: {error}");
            return;
        }
        let answered = tokio::task::spawn_blocking(move || {
            let order = serde_json::from_str(&line);
            let order = order.map_err(|error| ClusterError::Server(error.to_string()))?;
            self.obey(order)
        });
        let answer = match answered.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::Refused(error.to_string()),
            Err(panic) => Answer::Refused(panic.to_string()),
        };
        let answer = serde_json::to_string(&answer).unwrap_or_default() + "\n";
        if let Err(error) = client.get_mut().write_all(answer.as_bytes()).await {
            tracing::debug!("nobody waits for the answer: {error}");
        }
    }

    fn obey(&self, order: Order) -> Result<Answer, ClusterError> {
        match order {
            Order::LoadImages(archives) => self.load(&archives)?,
            Order::Status => return Ok(Answer::Status(self.processes.list())),
            Order::Kill(name) => self.processes.kill(&name)?,
            Order::Start(name) => self.processes.restart(&name)?,
            Order::FailSpine(k) => self.fabric.fail_spine(k)?,
            Order::HealSpine(k) => self.fabric.heal_spine(k)?,
            Order::UnplugNode(name) => self.fabric.unplug_node(self.node(&name)?)?,
            Order::PlugNode(name) => self.fabric.plug_node(self.node(&name)?)?,
            Order::RebootNode(name) => {
                self.nodes[self.node(&name)?].reboot(&self.processes)?;
            }
        }
        Ok(Answer::Done)
    }

    fn node(&self, name: &str) -> Result<usize, ClusterError> {
        let mut nodes = self.fabric.nodes().iter();
        nodes
            .position(|node| node.name == name)
            .ok_or_else(|| ClusterError::NoSuchNode(name.to_owned()))
    }

    /// All nodes at once, one archive after the other.
    fn load(&self, archives: &[PathBuf]) -> Result<(), ClusterError> {
        for archive in archives {
            each(&self.nodes, |node| node.load_image(archive))?;
        }
        Ok(())
    }
}

/// The API server, asked how far the cluster is. Meanwhile no component may end.
struct Api<'a> {
    processes: &'a Processes,
    kubectl: &'a Path,
    kubeconfig: &'a Path,
    address: SocketAddr,
}

impl Api<'_> {
    /// What kubectl says; an API server that has just started may refuse anything once.
    fn ask(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(self.kubectl);
        command.arg("--kubeconfig").arg(self.kubeconfig);
        output(command.args(arguments)).ok()
    }

    fn until<T>(
        &self,
        what: &str,
        within: Duration,
        name: &str,
        look: impl Fn() -> Option<T>,
    ) -> Result<T, ClusterError> {
        self.processes.until(what, within, name, || {
            self.processes.check()?;
            Ok(look())
        })
    }

    fn until_ready(&self) -> Result<(), ClusterError> {
        let listens = || TcpStream::connect(self.address).is_ok();
        let ready = || self.ask(&["get", "--raw=/readyz"]).map(drop);
        let look = || listens().then(ready).flatten();
        self.until("the API server is ready", SLOW, "kube-apiserver", look)
    }

    fn until_nodes_are_ready(&self, nodes: usize) -> Result<(), ClusterError> {
        let statuses = "-o=jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
        let ready = || {
            let said = self.ask(&["get", "nodes", statuses])?;
            let ready = said.split(' ').filter(|status| *status == "True");
            (ready.count() == nodes).then_some(())
        };
        self.until("all nodes are Ready", JOIN, "node0/kubelet", ready)
    }

    /// They are refused before every namespace has its default account.
    fn until_pods_may_be_created(&self) -> Result<(), ClusterError> {
        let account = || self.ask(&["get", "serviceaccount", "default"]).map(drop);
        let name = "kube-controller-manager";
        self.until("pods may be created", SLOW, name, account)
    }
}

/// From outside to the API server, until either end has enough.
async fn forward(mut client: tokio::net::TcpStream, api: SocketAddr) {
    let forwarded = async {
        let mut server = tokio::net::TcpStream::connect(api).await?;
        copy_bidirectional(&mut client, &mut server).await
    };
    if let Err(error) = forwarded.await {
        tracing::debug!("a connection to the API server: {error}");
    }
}
