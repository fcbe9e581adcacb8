//! `weft-agent`: runs a node's agent until SIGTERM or SIGINT, with the configuration of a file
//! (`--config`) or with that of a cluster's operator (`--operator` and what belongs to it).

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use weft_agent::agent::Agent;
use weft_agent::config::{self, Config};
use weft_agent::enroll;

use crate::arguments::{Arguments, Origin};

mod arguments;

/// How long work that blocks may go on after everything else has ended.
const RUNTIME_GRACE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let (arguments, origin) = Arguments::read();
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
    raise_open_files();
    match run(&arguments, origin) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A shell allows 1,024 open files by default, fewer than the files and connections of a busy agent.
fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
}

fn run(arguments: &Arguments, origin: Origin) -> Result<(), String> {
    match origin {
        Origin::Operator(settings) => block_on(async {
            let enrolled = enroll::run(*settings, terminated()?).await;
            enrolled.map_err(|error| error.to_string())
        }),
        Origin::File(file) => {
            let config = read(&file)?;
            let name = file.display();
            if arguments.check_config {
                config
                    .check_files()
                    .map_err(|error| format!("{name}: {error}"))?;
                tracing::info!("{name}: the configuration is good");
                return Ok(());
            }
            block_on(serve(&config)).map_err(|error| format!("{name}: {error}"))
        }
    }
}

fn read(file: &Path) -> Result<Config, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("{name}: {error}: give the configuration file by --config"))?;
    config::parse(&text).map_err(|error| format!("{name}: {error}"))
}

fn block_on(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| {
            format!("the runtime cannot start: {error}: raise the limit on threads")
        })?;
    let result = runtime.block_on(work);
    // Whatever still blocks is left behind; the process ends.
    runtime.shutdown_timeout(RUNTIME_GRACE);
    result
}

async fn serve(config: &Config) -> Result<(), String> {
    let agent = Agent::start(config)
        .await
        .map_err(|error| error.to_string())?;
    terminated()?.await;
    agent.stop().await;
    Ok(())
}

/// Waits until the process is told to end, from this call on.
fn terminated() -> Result<impl Future<Output = ()>, String> {
    let wait = |kind| signal(kind).map_err(|error| format!("signals cannot be awaited: {error}"));
    let (mut terminate, mut interrupt) = (
        wait(SignalKind::terminate())?,
        wait(SignalKind::interrupt())?,
    );
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: ending all jobs"),
            _ = interrupt.recv() => tracing::info!("SIGINT: ending all jobs"),
        }
    })
}
