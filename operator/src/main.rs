//! `weft-operator`: runs in a cluster until SIGTERM or SIGINT.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::Duration,
};

use clap::{CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use tokio::runtime::Runtime;
use tracing_subscriber::EnvFilter;
use weft_operator::{
    check,
    in_use::Feature,
    lease::LeaseBoard,
    process::{self, Settings},
    uninstall, upgrade,
};

/// A process that has lost the lead is gone before the next one leads, which takes 5 s and more.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Jobs of hours live beside answers of milliseconds, thousands of both: glibc's allocator keeps what lies
/// between them. How this one is set up is in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The operator of Weft: fabrics, their agents, and transfers between them.
///
/// Runs in a cluster, as `helm install` sets it up; outside of one it takes the cluster from a
/// kubeconfig. Several may run: one leads, by the Lease weft-operator, and the others stand by. Ends
/// with an error when the lead is lost; it is meant to be started again then. Waits for an API server that
/// does not answer.
#[derive(Debug, Parser)]
#[command(name = "weft-operator", version, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    settings: Settings,
    /// Log as JSON, one object a line.
    #[arg(long, global = true)]
    log_json: bool,
    /// What to log, for example `info` or `weft_operator=debug,weft_transfer=debug,kube=info`.
    #[arg(long, global = true, value_name = "FILTER", default_value = "info")]
    log: String,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Suspend all TransferJobs and let them go, so that nothing waits for an operator any more.
    ///
    /// Then nodes say nothing of fabrics and models any more. What `helm uninstall` runs before it removes
    /// anything; ends within 150 s. Does nothing and fails where pods have devices or volumes.
    Uninstall,
    /// Fail where pods have something that the chart is about to take away.
    ///
    /// What `helm upgrade` and `helm rollback` run before they change anything.
    CheckUpgrade {
        /// What is taken away; may be repeated.
        #[arg(long, value_enum, value_name = "WHAT", required = true)]
        takes_away: Vec<Feature>,
    },
    /// Say whether an operator leads and every RdmaFabric is Ready; what `helm test` runs.
    Check,
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| {
            format!("the runtime cannot start: {error}: raise the limit on threads")
        })?;
    let ended = carry_out(&runtime, arguments);
    // What still computes does not keep a process that is to end.
    runtime.shutdown_timeout(END_WITHIN);
    ended
}

fn carry_out(runtime: &Runtime, arguments: Arguments) -> Result<(), String> {
    let settings = arguments.settings;
    match arguments.verb {
        None => {
            let ended = runtime.block_on(process::run(settings));
            ended.map_err(|error| error.to_string())
        }
        Some(Verb::Uninstall) => runtime.block_on(async {
            let client = process::client().await.map_err(|error| error.to_string())?;
            let board = LeaseBoard::new(client.clone(), &settings.namespace);
            let done = uninstall::run(client, board).await;
            done.map_err(|error| error.to_string())
        }),
        Some(Verb::CheckUpgrade { takes_away }) => runtime.block_on(async {
            let client = process::client().await.map_err(|error| error.to_string())?;
            let checked = upgrade::check(&client, &takes_away).await;
            checked.map_err(|error| error.to_string())
        }),
        Some(Verb::Check) => runtime.block_on(async {
            let client = process::client().await.map_err(|error| error.to_string())?;
            let checked = check::run(&client, &settings.namespace, settings.metrics_port).await;
            for line in checked.map_err(|error| error.to_string())? {
                tracing::info!("{line}");
            }
            Ok(())
        }),
    }
}
