//! Entry point: reads the command line and gives it to the command it names.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use weft_cli::{doctor, plan, play, status};

/// The arguments make no sense.
const USAGE: u8 = 2;
/// It did not work, or something is wrong.
const FAILED: u8 = 1;
/// The name under which kubectl finds this program as `kubectl weft`.
const PLUGIN: &str = "kubectl-weft";

/// Moves model weights to many nodes over every path.
#[derive(Parser)]
#[command(name = "weft", version)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send real bytes through a small fabric on this machine.
    ///
    /// Makes nodes, leaves and spines out of network namespaces, starts the agents that a cluster
    /// runs, sends the data from node 0 to the others and checks what arrived. Exit status: 0 when
    /// every destination is Verified and every fault asked for has happened, 2 for arguments that
    /// make no sense, 1 otherwise. Nothing stays but what --out or --keep
    /// asked for.
    Play(Box<play::Args>),
    /// Print what the planner would do, and send nothing.
    ///
    /// With -f: what a TransferJob would do in the cluster, and everything that is in its way. Exit
    /// status: 0 when nothing is, 1 when something is, 2 when that could not be found out.
    Plan(Box<plan::Args>),
    /// Show how far the TransferJobs of a cluster are, at this moment.
    ///
    /// Exit status: 0; with --watch 1 when a job has failed; 2 when nothing could be shown.
    Status(Box<status::Args>),
    /// Find what keeps a cluster from moving bytes well: reach of every pair of nodes by packets of
    /// every size and at every port, clocks, certificates, releases, kernels, buffers, memory.
    ///
    /// Exit status: 0 when nothing is wrong, 1 when something is, 2 when that could not be found out.
    Doctor(Box<doctor::Args>),
}

fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout(), io::stderr());
    match read_line().command {
        Command::Play(args) => {
            tracing_subscriber::fmt()
                .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
                .with_writer(io::stderr)
                .init();
            ExitCode::from(play::run(&args, &mut out, &mut err))
        }
        Command::Plan(args) => ended("plan", block_on(plan::run(&args, &mut out))),
        Command::Status(args) => ended("status", block_on(status::run(&args, &mut out, &mut err))),
        Command::Doctor(args) => ended("doctor", block_on(doctor::run(&args, &mut out))),
    }
}

/// As `weft`, or as the plugin that kubectl calls.
fn read_line() -> Line {
    let called: Option<OsString> = std::env::args_os().next();
    let called = called.as_deref().map(Path::new).and_then(Path::file_stem);
    let mut command = Line::command();
    if called.is_some_and(|name| name == PLUGIN) {
        command = command.name("kubectl weft").bin_name("kubectl weft");
    }
    let matches = command.get_matches();
    Line::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn block_on<T, E: From<io::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// What the shell is told.
fn ended(command: &str, result: Result<bool, impl std::error::Error>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(error) => {
            // Nobody may be listening; the status says it too.
            let _ = writeln!(io::stderr(), "weft {command}: {error}");
            ExitCode::from(USAGE)
        }
    }
}
