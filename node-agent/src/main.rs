//! `weft-agent --config FILE`: runs a node's agent until SIGTERM or SIGINT.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use weft_agent::agent::Agent;
use weft_agent::config::{self, Config};

/// How long work that blocks may go on after everything else has ended.
const RUNTIME_GRACE: Duration = Duration::from_secs(2);

/// The node agent of Weft: moves files between nodes for an operator or for `weft play`.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration, its certificates and its roots, and exit.
    #[arg(long)]
    check_config: bool,
    /// Log as JSON, one object a line.
    #[arg(long)]
    log_json: bool,
    /// What to log, for example `info` or `weft_agent=debug,weft_engine=info`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = match EnvFilter::try_new(&arguments.log) {
        Ok(filter) => filter,
        Err(error) => {
            let message = format!("--log: `{}`: {error}", arguments.log);
            clap::Command::new("weft-agent")
                .error(clap::error::ErrorKind::ValueValidation, message)
                .exit();
        }
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    if arguments.log_json {
        log.json().init();
    } else {
        log.init();
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let file = arguments.config.display();
    let text = std::fs::read_to_string(&arguments.config)
        .map_err(|error| format!("{file}: {error}: give the configuration file by --config"))?;
    let config = config::parse(&text).map_err(|error| format!("{file}: {error}"))?;
    if arguments.check_config {
        config
            .check_files()
            .map_err(|error| format!("{file}: {error}"))?;
        tracing::info!("{file}: the configuration is good");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| {
            format!("the runtime cannot start: {error}: raise the limit on threads")
        })?;
    let served = runtime.block_on(serve(&config));
    // Whatever still blocks is left behind; the process ends.
    runtime.shutdown_timeout(RUNTIME_GRACE);
    served.map_err(|error| format!("{file}: {error}"))
}

async fn serve(config: &Config) -> Result<(), String> {
    let agent = Agent::start(config)
        .await
        .map_err(|error| error.to_string())?;
    let wait = |kind| signal(kind).map_err(|error| format!("signals cannot be awaited: {error}"));
    let (mut terminate, mut interrupt) = (
        wait(SignalKind::terminate())?,
        wait(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: ending all jobs"),
        _ = interrupt.recv() => tracing::info!("SIGINT: ending all jobs"),
    }
    agent.stop().await;
    Ok(())
}
