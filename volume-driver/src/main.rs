//! `weft-volume-driver`: mounts verified copies in the pods of a node until SIGTERM.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use weft_volume_driver::{Config, run};

/// Mounts verified copies in the pods of a node.
#[derive(Debug, Parser)]
#[command(name = "weft-volume-driver", version)]
struct Arguments {
    /// This node's name.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: String,
    /// The kubelet's directory (its --root-dir), by the same path as the kubelet sees it.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet: PathBuf,
    /// The agent's directory for volumes (its --volumes).
    #[arg(long, value_name = "DIR", default_value = "/run/weft/volumes")]
    volumes: PathBuf,
    /// Where the node's files are.
    #[arg(long, value_name = "DIR", default_value = "/host")]
    host: PathBuf,
    /// A directory of the node in which roots of fabrics may be (the chart's roots.allowedHostPaths); may be repeated.
    #[arg(long, value_name = "DIR", required = true)]
    allowed_path: Vec<PathBuf>,
    /// A directory for mounts that are being made: of a file system whose mounts nobody else sees, as of an emptyDir.
    #[arg(long, value_name = "DIR", default_value = "/staging")]
    staging: PathBuf,
    /// What to log, for example `info` or `weft_volume_driver=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = match EnvFilter::try_new(&arguments.log) {
        Ok(filter) => filter,
        Err(error) => {
            let message = format!("--log: `{}`: {error}", arguments.log);
            clap::Command::new("weft-volume-driver")
                .error(clap::error::ErrorKind::ValueValidation, message)
                .exit();
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: Arguments) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the runtime cannot start: {error}"))?;
    runtime.block_on(async {
        let terminate = signal(SignalKind::terminate());
        let mut terminate =
            terminate.map_err(|error| format!("signals cannot be awaited: {error}"))?;
        let stopped = async {
            terminate.recv().await;
        };
        let config = Config {
            node: arguments.node,
            kubelet: arguments.kubelet,
            volumes: arguments.volumes,
            host: arguments.host,
            allowed: arguments.allowed_path,
            staging: arguments.staging,
        };
        run(config, stopped)
            .await
            .map_err(|error| error.to_string())
    })
}
