//! Entry point: reads the command line and gives it to the command it names.

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};
use weft_cli::VERSION;
use weft_kubectl::{copies, doctor, output::say, plan, roots, status, version};

/// The arguments make no sense, or nothing could be found out.
const UNKNOWN: u8 = 2;
/// Something is wrong.
const FAILED: u8 = 1;

/// Shows what Weft's jobs in a cluster would do, how far they are, and what is wrong.
#[derive(Parser)]
#[command(name = "kubectl weft", bin_name = "kubectl weft", version = VERSION)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print what a TransferJob would do in the cluster, and everything that is in its way.
    ///
    /// Exit status: 0 when nothing is, 1 when something is, 2 when that could not be found out.
    Plan(Box<plan::Args>),
    /// Show how far the TransferJobs of a cluster are, at this moment.
    ///
    /// Exit status: 0; with --watch 1 when a job has failed; 2 when nothing could be shown.
    Status(Box<status::Args>),
    /// List the verified copies on the nodes, and remove those that no job holds.
    ///
    /// Exit status: 0; with delete 1 when a copy stays, or there is none; 2 when the cluster did not answer.
    #[command(subcommand)]
    Copies(copies::Command),
    /// List the roots that the jobs of a namespace may name, and the nodes that have them.
    ///
    /// Exit status: 0; 2 when the cluster did not answer.
    Roots(Box<roots::Args>),
    /// Find what keeps a cluster from moving bytes well: reach of every pair of nodes by packets of
    /// every size and at every port, clocks, certificates, releases, kernels, buffers, memory.
    ///
    /// Exit status: 0 when nothing is wrong, 1 when something is, 2 when that could not be found out.
    Doctor(Box<doctor::Args>),
    /// Print the version of this program and of the operator.
    ///
    /// Exit status: 0; 2 when the operator's is not known. With --client only this program's is printed.
    Version(Box<version::Args>),
}

fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout(), io::stderr());
    match Line::parse().command {
        Command::Plan(args) => ended("plan", block_on(plan::run(&args, &mut out))),
        Command::Status(args) => ended("status", block_on(status::run(&args, &mut out, &mut err))),
        Command::Copies(command) => ended(
            "copies",
            block_on(copies::run(&command, &mut out, &mut err)),
        ),
        Command::Roots(args) => ended("roots", block_on(roots::run(&args, &mut out, &mut err))),
        Command::Version(args) => ended("version", block_on(version::run(&args, &mut out))),
        Command::Doctor(args) => ended("doctor", block_on(doctor::run(&args, &mut out))),
    }
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
            let _ = say(
                format!("kubectl weft {command}: {error}"),
                &mut io::stderr(),
            );
            ExitCode::from(UNKNOWN)
        }
    }
}
