//! Entry point: reads the command line and gives it to the command it names.

use std::{
    env,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use weft_cli::{VERSION, device, plan, play};

/// The arguments make no sense.
const USAGE: u8 = 2;

const PLAY_STATUS: &str = "\
Exit status:
  0        every destination is Verified, and every fault asked for has happened
  1        not so; standard error says why
  2        the arguments make no sense
  128 + n  ended by signal n";

const PLAN_STATUS: &str = "\
Exit status:
  0  there is a plan
  2  there is none; standard error says which argument or file to change";

const DEVICE_STATUS: &str = "\
Exit status:
  0  done; of run: that of the program
  2  not done, or doctor has found what keeps a program from its device; standard error says why";

/// Moves model weights to many nodes over every path.
#[derive(Parser)]
#[command(name = "weft", version = VERSION)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Send real bytes through a small fabric on this machine.
    ///
    /// Makes nodes, leaves and spines out of network namespaces, starts the agents that a cluster
    /// runs, sends the data from node 0 to the others and checks what arrived. Nothing stays but what
    /// --out or --keep asked for.
    #[command(after_help = PLAY_STATUS)]
    Play(Box<play::Args>),
    /// Print what the planner would do, and send nothing.
    ///
    /// What a TransferJob would do in a cluster: kubectl weft plan -f JOB.
    #[command(after_help = PLAN_STATUS)]
    Plan(Box<plan::Args>),
    /// Use the virtual RDMA devices of a fabric that weft play --device has left running.
    #[command(after_help = DEVICE_STATUS)]
    Device {
        /// The fabric, by the process that ends it, where several run.
        #[arg(long, global = true, value_name = "PID")]
        play: Option<u32>,
        #[command(subcommand)]
        action: device::Action,
    },
    /// Print what makes a shell complete this command line.
    ///
    /// For bash: source <(weft completion bash)
    Completion {
        /// The shell.
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout(), io::stderr());
    match Line::parse().command {
        Command::Play(args) => {
            tracing_subscriber::fmt()
                .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
                .with_ansi(io::stderr().is_terminal() && !is_without_color())
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
        Command::Device { play, action } => match device::run(&action, play, &mut out) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Nobody may be listening; the status says it too.
                let _ = writeln!(err, "weft device: {error}");
                ExitCode::from(USAGE)
            }
        },
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Line::command(), "weft", &mut script);
            match out.write_all(&script) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
    }
}

/// As <https://no-color.org> has it.
fn is_without_color() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
