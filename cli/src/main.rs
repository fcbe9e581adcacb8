//! Entry point: reads the command line and gives it to the command it names.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use weft_cli::{plan, play};

/// The arguments make no sense.
const USAGE: u8 = 2;

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
    /// What a TransferJob would do in a cluster: kubectl weft plan -f JOB. Exit status: 0, or 2 when
    /// there is no plan.
    Plan(Box<plan::Args>),
}

fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout(), io::stderr());
    match Line::parse().command {
        Command::Play(args) => {
            tracing_subscriber::fmt()
                .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
                .with_writer(io::stderr)
                .init();
            ExitCode::from(play::run(&args, &mut out, &mut err))
        }
        Command::Plan(args) => match plan::run(&args, &mut out) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Nobody may be listening; the status says it too.
                let _ = writeln!(err, "weft plan: {error}");
                ExitCode::from(USAGE)
            }
        },
    }
}
