//! Entry point: reads the command line and gives it to the command it names.

use std::{
    error::Error,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use weft_cli::VERSION;
use weft_kubectl::{
    copies, devices, doctor, output::say, plan, roots, status, support_bundle, top, ui, version,
};

/// The arguments make no sense, or nothing could be found out.
const UNKNOWN: u8 = 2;
/// Something is wrong.
const FAILED: u8 = 1;
/// Nobody reads the output any more, as after `| head`: what a shell says of a program that SIGPIPE ends (128 + 13).
const UNREAD: u8 = 141;
/// The program's file.
const PROGRAM: &str = "kubectl-weft";
/// What completes it in bash, behind an underscore.
const FUNCTION: &str = "kubectl_weft";

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
    /// Exit status: 0; with delete 1 when a copy stays, may stay, or there is none; 2 when the cluster did not answer.
    #[command(subcommand)]
    Copies(copies::Command),
    /// List the roots that the jobs of a namespace may name, and the nodes that have them.
    ///
    /// Exit status: 0; 2 when the cluster did not answer.
    Roots(Box<roots::Args>),
    /// List the virtual RDMA devices of pods: node, rate, bytes sent and received, refused attempts, health.
    ///
    /// Exit status: 0; 1 when a node did not say which devices it has; 2 when the cluster did not answer.
    Devices(Box<devices::Args>),
    /// Show nodes, jobs, devices or paths: the busiest or the worst first.
    ///
    /// Exit status: 0; 1 when a node did not answer; 2 when nothing could be shown.
    #[command(subcommand)]
    Top(Box<top::Command>),
    /// Show the page of a fabric in a browser: topology, jobs, nodes, devices and findings. Needs ClusterRole weft-monitor.
    ///
    /// It serves the page at 127.0.0.1 until it is ended. Exit status: 2 when there is no page.
    Ui(Box<ui::Args>),
    /// Find what keeps a cluster from moving bytes well: reach of every pair of nodes by packets of
    /// every size and at every port, clocks, certificates, releases, kernels, buffers, memory.
    ///
    /// Exit status: 0 when nothing is wrong, 1 when something is, 2 when that could not be found out.
    Doctor(Box<doctor::Args>),
    /// Write a file for who helps you: objects, events, logs, metrics and configuration of Weft, without secrets.
    ///
    /// Exit status: 0; 2 when the cluster did not answer or the file could not be written.
    SupportBundle(Box<support_bundle::Args>),
    /// Print the version of this program and of the operator.
    ///
    /// Exit status: 0; 2 when the operator's is not known. With --client only this program's is printed.
    Version(Box<version::Args>),
    /// Print what makes a shell complete the command line of kubectl-weft.
    ///
    /// For bash: source <(kubectl weft completion bash). docs/kubectl.md says how kubectl completes "kubectl weft" by it.
    Completion {
        /// The shell.
        shell: Shell,
    },
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
        Command::Devices(args) => {
            ended("devices", block_on(devices::run(&args, &mut out, &mut err)))
        }
        Command::Top(command) => ended("top", block_on(top::run(&command, &mut out, &mut err))),
        Command::Ui(args) => ended("ui", block_on(ui::run(&args, &mut out))),
        Command::SupportBundle(args) => ended(
            "support-bundle",
            block_on(support_bundle::run(&args, &mut out, &mut err)),
        ),
        Command::Version(args) => ended("version", block_on(version::run(&args, &mut out))),
        Command::Completion { shell } => ended(
            "completion",
            out.write_all(&completion(shell)).map(|()| true),
        ),
        Command::Doctor(args) => ended("doctor", block_on(doctor::run(&args, &mut out))),
    }
}

/// What makes a shell complete the program's command line.
fn completion(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    // In a script for bash, clap_complete 4.6 finds no options of the commands of a program with a hyphen in its name.
    let name = match shell {
        Shell::Bash => FUNCTION,
        _ => PROGRAM,
    };
    clap_complete::generate(shell, &mut Line::command().name(name), name, &mut script);
    if shell == Shell::Bash {
        script.extend(format!("complete -F _{FUNCTION} -o default {PROGRAM}\n").bytes());
    }
    script
}

fn block_on<T, E: From<io::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// Whether an error is that the reader of a pipe has gone. What comes from the cluster's side holds no such error, only its text.
fn is_unread(error: &(dyn Error + 'static)) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref().is_some_and(broken) || error.source().is_some_and(is_unread)
}

/// What the shell is told.
fn ended(command: &str, result: Result<bool, impl Error + 'static>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(error) if is_unread(&error) => ExitCode::from(UNREAD),
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
