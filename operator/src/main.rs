//! `weft-operator`: runs in a cluster until SIGTERM or SIGINT.

use std::{
    io::{self, IsTerminal as _},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, error::ErrorKind};
use tracing_subscriber::EnvFilter;
use weft_operator::{
    authority::unique,
    process::{self, Settings},
};

/// The operator of Weft: fabrics, their agents, and transfers between them.
///
/// Runs in a cluster, as `helm install` sets it up; outside of one it takes the cluster from a
/// kubeconfig. Several may run: one leads, by the Lease weft-operator, and the others stand by. Ends
/// with an error when the lead is lost; it is meant to be started again then.
#[derive(Debug, Parser)]
#[command(name = "weft-operator", version)]
struct Arguments {
    /// The namespace of the operator's own objects and of the agents.
    #[arg(long, env = "POD_NAMESPACE", default_value = "weft-system")]
    namespace: String,
    /// Tells this candidate from the others; in a pod the pod's name [default: a unique one].
    #[arg(long, env = "POD_NAME")]
    name: Option<String>,
    /// Where agents reach this process when it leads: an address of this pod or machine.
    #[arg(long, env = "POD_IP", value_name = "IP")]
    address: IpAddr,
    /// TCP port of the control API, which agents call.
    #[arg(long, value_name = "PORT", default_value_t = 7410)]
    control_port: u16,
    /// TCP port of /metrics, /healthz and /readyz.
    #[arg(long, value_name = "PORT", default_value_t = 7411)]
    metrics_port: u16,
    /// The agents' service account, in the same namespace.
    #[arg(long, value_name = "NAME", default_value = "weft-agent")]
    agent_account: String,
    /// The manifest of the agents' DaemonSet, to which the operator adds what depends on the fabric.
    #[arg(long, value_name = "FILE", default_value = "/etc/weft/agent.yaml")]
    agent_template: PathBuf,
    /// Log as JSON, one object a line.
    #[arg(long)]
    log_json: bool,
    /// What to log, for example `info` or `weft_operator=debug,kube=info`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = match EnvFilter::try_new(&arguments.log) {
        Ok(filter) => filter,
        Err(error) => {
            let message = format!("--log: `{}`: {error}", arguments.log);
            Arguments::command()
                .error(ErrorKind::ValueValidation, message)
                .exit();
        }
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    if arguments.log_json {
        log.json().init();
    } else {
        log.init();
    }
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), String> {
    let name = match arguments.name {
        Some(name) if !name.is_empty() => name,
        _ => format!(
            "weft-operator-{}",
            unique().map_err(|error| error.to_string())?
        ),
    };
    let settings = Settings {
        namespace: arguments.namespace,
        name,
        address: arguments.address,
        control_port: arguments.control_port,
        metrics_port: arguments.metrics_port,
        agent_account: arguments.agent_account,
        agent_template: arguments.agent_template,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| {
            format!("the runtime cannot start: {error}: raise the limit on threads")
        })?;
    runtime
        .block_on(process::run(settings))
        .map_err(|error| error.to_string())
}
