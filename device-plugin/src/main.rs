//! `weft-device-plugin`: gives a node's virtual RDMA devices to pods until SIGTERM.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;
use weft_argument_file::{DEVICE_PLUGIN_FLAGS as FROM_FILE, FileError};
use weft_device_plugin::{ByClaims, Config, Flags, install, run};

/// How often the flags are read again.
const FLAGS_INTERVAL: Duration = Duration::from_secs(2);

/// How pods ask for devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// By the resource.
    DevicePlugin,
    /// By ResourceClaims (Dynamic Resource Allocation, Kubernetes 1.34).
    Dra,
    /// By either.
    Both,
}

/// Gives a node's virtual RDMA devices to pods.
///
/// In place of flags it takes @FILE: a file with a flag on each line, as --count=256. The node's agent writes it. The plugin waits
/// until it is there, takes other flags when it changes, and keeps the last ones while it is gone.
#[derive(Debug, Parser)]
#[command(name = "weft-device-plugin", version)]
struct Arguments {
    /// The socket of the node's weft-engine.
    #[arg(long, value_name = "PATH", default_value = "/run/weft/engine.sock")]
    engine: PathBuf,
    /// Where weft-engine makes devices (its --devices), as the container runtime sees it.
    #[arg(long, value_name = "DIR", default_value = "/run/weft/devices")]
    directory: PathBuf,
    /// How pods ask for devices.
    #[arg(long, value_enum, default_value = "device-plugin")]
    mode: Mode,
    /// The socket of the node's weft-agent, which says what claims have been allocated.
    #[arg(long, value_name = "PATH", default_value = "/run/weft/claims.sock")]
    agent: PathBuf,
    /// The kubelet's directory in which drivers register.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/plugins_registry"
    )]
    plugins_registry: PathBuf,
    /// The driver's own directory, by the path by which the kubelet has it.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/plugins/vdev.weft.dev"
    )]
    driver_directory: PathBuf,
    /// The kubelet's directory for device plugins: it is this one whatever the kubelet's own directory is.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    device_plugins: PathBuf,
    /// The directory with the socket of the Pod Resources API.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/pod-resources"
    )]
    pod_resources: PathBuf,
    /// The namespace of this program's pod: until the kubelet lists the pod, its list of pods is not believed.
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAMESPACE",
        requires = "pod_name"
    )]
    pod_namespace: Option<String>,
    /// The name of this program's pod.
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAME",
        requires = "pod_namespace"
    )]
    pod_name: Option<String>,
    /// Where the container runtime looks for files of the Container Device Interface.
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi: PathBuf,
    /// Where Weft's libraries are, as the container runtime sees it.
    #[arg(long, value_name = "DIR", default_value = "/opt/weft/lib")]
    libraries: PathBuf,
    /// The program that the container runtime calls as a createContainer hook, as the runtime sees it. Without it the libraries are
    /// preloaded by a variable, which serves fewer programs.
    #[arg(long, value_name = "PATH")]
    hook: Option<PathBuf>,
    /// From where libraries and hook are put there, when the program starts.
    #[arg(long, value_name = "DIR")]
    install_from: Option<PathBuf>,
    /// What pods ask for.
    #[arg(long, value_name = "NAME", default_value = "weft.dev/vdev")]
    resource: String,
    /// How many devices pods of this node can have. With 0 those that they have go on.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    count: u32,
    /// Most that each device sends, in bits per second, at least 1,000,000 [default: no limit].
    #[arg(long, value_name = "BPS", value_parser = clap::value_parser!(u64).range(1_000_000..))]
    cap_bps: Option<u64>,
    /// Most work requests that each device begins per second [default: no limit].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    ops: Option<u32>,
    /// The part of the node's link that each device has beside others, a weight [default: 100].
    #[arg(long, value_name = "WEIGHT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    share: Option<u32>,
    /// Pods of different namespaces may reach each other.
    #[arg(long)]
    cross_namespace: bool,
    /// The namespaces whose pods may have devices [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// The NUMA node of the interface that carries the data: the kubelet's topology manager places pods by it [default: it is told none].
    #[arg(long, value_name = "NUMBER")]
    numa_node: Option<u32>,
    /// What to log, for example `info` or `weft_device_plugin=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

impl Arguments {
    fn config(&self) -> Config {
        let by_claims = ByClaims {
            agent: self.agent.clone(),
            plugins_registry: self.plugins_registry.clone(),
            directory: self.driver_directory.clone(),
        };
        Config {
            engine: self.engine.clone(),
            directory: self.directory.clone(),
            device_plugins: (self.mode != Mode::Dra).then(|| self.device_plugins.clone()),
            by_claims: (self.mode != Mode::DevicePlugin).then_some(by_claims),
            pod_resources: self.pod_resources.clone(),
            own_pod: self.pod_namespace.clone().zip(self.pod_name.clone()),
            cdi: self.cdi.clone(),
            libraries: self.libraries.clone(),
            hook: self.hook.clone(),
            resource: self.resource.clone(),
        }
    }

    fn flags(&self) -> Flags {
        Flags {
            count: self.count,
            cap_bps: self.cap_bps.unwrap_or(0),
            ops_per_s: self.ops.unwrap_or(0),
            share: self.share.unwrap_or(0),
            cross_namespace: self.cross_namespace,
            namespaces: self.namespaces.clone(),
            numa_node: self.numa_node,
        }
    }
}

fn main() -> ExitCode {
    let words = match weft_argument_file::wait_and_expand(FROM_FILE) {
        Ok(words) => words,
        Err(problem) => {
            let mut command = clap::Command::new("weft-device-plugin");
            command.error(clap::error::ErrorKind::Io, problem).exit();
        }
    };
    let arguments = Arguments::parse_from(words);
    let filter = match EnvFilter::try_new(&arguments.log) {
        Ok(filter) => filter,
        Err(error) => {
            let message = format!("--log: `{}`: {error}", arguments.log);
            clap::Command::new("weft-device-plugin")
                .error(clap::error::ErrorKind::ValueValidation, message)
                .exit();
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: &Arguments) -> Result<(), String> {
    if let Some(from) = &arguments.install_from {
        install(from, &arguments.libraries, arguments.hook.as_deref())
            .map_err(|error| error.to_string())?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the runtime cannot start: {error}"))?;
    runtime.block_on(async {
        let terminate = signal(SignalKind::terminate());
        let mut terminate =
            terminate.map_err(|error| format!("signals cannot be awaited: {error}"))?;
        let stopped = async move {
            terminate.recv().await;
        };
        let (shown, flags) = watch::channel(arguments.flags());
        tokio::select! {
            ended = run(arguments.config(), flags, stopped) => {
                ended.map_err(|error| error.to_string())
            }
            problem = follow(&shown) => Err(problem),
        }
    })
}

/// Shows other flags, if there are some, as long as their file can be used. Returns what is wrong with it.
async fn follow(shown: &watch::Sender<Flags>) -> String {
    let mut is_told = false;
    loop {
        tokio::time::sleep(FLAGS_INTERVAL).await;
        let words = match weft_argument_file::expand(std::env::args_os(), FROM_FILE) {
            Ok(words) => words,
            // As when too many files are open.
            Err(error @ FileError::Unreadable { .. }) => {
                if !is_told {
                    tracing::warn!("the flags stay as they are: {error}");
                    is_told = true;
                }
                continue;
            }
            Err(error) => return error.to_string(),
        };
        is_told = false;
        let found = match Arguments::try_parse_from(words) {
            Ok(arguments) => arguments.flags(),
            Err(error) => return error.to_string(),
        };
        shown.send_if_modified(|flags| {
            let is_changed = *flags != found;
            if is_changed {
                tracing::info!("the flags are now {found:?}");
                *flags = found;
            }
            is_changed
        });
    }
}
