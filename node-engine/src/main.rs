//! `weft-engine`: serves a node's virtual devices until SIGTERM, after which the next engine goes on, or SIGINT.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use weft_argument_file::ENGINE_FLAGS;
use weft_core::path::PolicyKind;
use weft_engine::{Egress, EngineConfig, PortRange, Secret};
use weft_node_engine::{Shutdown, serve};

/// The engine of a node's virtual RDMA devices.
///
/// In place of flags it takes @FILE: a file with a flag on each line, as --mtu=9000. The node's agent writes it, and the engine
/// waits until it is there.
#[derive(Debug, Parser)]
#[command(name = "weft-engine", version)]
struct Arguments {
    /// The Unix socket by which the engine is managed; only its owner can open it. Beside it, with `.store` behind its name,
    /// is that of the node's agent, which keeps what one engine leaves to the next.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Where devices are made, a directory each. It is made anew, unless an engine before this has left its devices.
    #[arg(long, value_name = "DIR")]
    devices: PathBuf,
    /// The address on the data network that packets are sent from and to.
    #[arg(long, value_name = "IP")]
    address: Ipv4Addr,
    /// The first UDP port. The devices that are open take --ports each, from here on.
    #[arg(long, value_name = "PORT")]
    first_port: u16,
    /// Consecutive UDP ports of each open device, one socket each.
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=16))]
    ports: u16,
    /// How many devices may be open at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    open_devices: u16,
    /// Bytes of the largest IP packet of the data network.
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u16,
    /// Paths between two nodes, at most the square of --ports [default: 128, or that].
    #[arg(long, value_name = "COUNT")]
    paths: Option<u16>,
    /// How a chunk's path is chosen.
    #[arg(long, value_name = "POLICY", default_value_t)]
    policy: PolicyKind,
    /// Whether what devices send is encrypted.
    #[arg(
        long,
        value_name = "off|required",
        default_value = "off",
        hide_possible_values = true
    )]
    encryption: Encryption,
    /// What the node's link to the data network carries, in bits per second. Devices share 95 % of that evenly, and what one
    /// does not send the others may. Without it each sends what its connections get [default: no limit].
    #[arg(long, value_name = "BPS", value_parser = clap::value_parser!(u64).range(LINK_BPS_MIN..))]
    link_bps: Option<u64>,
    /// Differentiated services code point of what devices send, 0 to 63.
    #[arg(long, value_name = "DSCP", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=63))]
    dscp: u8,
    /// What to log, for example `info` or `weft_node_engine=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Encryption {
    Off,
    Required,
}

impl Arguments {
    fn engine(&self) -> Result<EngineConfig, String> {
        let mut key = [0; 32];
        let drawn = SystemRandom::new().fill(&mut key);
        drawn.map_err(|_| "the system gives no random numbers".to_owned())?;
        let ports = PortRange {
            first: self.first_port,
            count: self.ports,
        };
        let defaults = EngineConfig::new(self.address, ports, Secret(key));
        Ok(EngineConfig {
            mtu: self.mtu,
            paths: self.paths.unwrap_or(defaults.paths),
            policy: self.policy,
            encryption: match self.encryption {
                Encryption::Off => weft_engine::Encryption::Off,
                Encryption::Required => weft_engine::Encryption::Required,
            },
            egress: Egress {
                cap_bps: self.link_bps.map(share_of_link),
                dscp: self.dscp,
            },
            ..defaults
        })
    }
}

/// The least that an engine takes as a limit, and more.
const LINK_BPS_MIN: u64 = 2_000_000;

/// With less than all of it a device that sends little finds room to send more, and is then given its share.
fn share_of_link(link_bps: u64) -> u64 {
    link_bps / 100 * 95
}

fn main() -> ExitCode {
    let words = match weft_argument_file::wait_and_expand(ENGINE_FLAGS) {
        Ok(words) => words,
        Err(problem) => {
            let mut command = clap::Command::new("weft-engine");
            command.error(clap::error::ErrorKind::Io, problem).exit();
        }
    };
    let flags = flags_of_file(&words);
    let arguments = Arguments::parse_from(words);
    let filter = match EnvFilter::try_new(&arguments.log) {
        Ok(filter) => filter,
        Err(error) => {
            let message = format!("--log: `{}`: {error}", arguments.log);
            clap::Command::new("weft-engine")
                .error(clap::error::ErrorKind::ValueValidation, message)
                .exit();
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    raise_open_files();
    match run(&arguments, flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Those that a file may set.
fn flags_of_file(words: &[OsString]) -> Vec<String> {
    let flags = words.iter().filter_map(|word| word.to_str());
    let flags = flags.filter(|flag| {
        let name = flag.split('=').next();
        name.is_some_and(|name| ENGINE_FLAGS.contains(&name))
    });
    flags.map(str::to_owned).collect()
}

/// Each program that has a device open takes four open files and more, and a shell allows 1,024.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    if let Err(error) = raised {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
}

fn run(arguments: &Arguments, flags: Vec<String>) -> Result<(), String> {
    let config = arguments.engine()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the runtime cannot start: {error}"))?;
    runtime.block_on(async {
        let wait =
            |kind| signal(kind).map_err(|error| format!("signals cannot be awaited: {error}"));
        let mut terminate = wait(SignalKind::terminate())?;
        let mut interrupt = wait(SignalKind::interrupt())?;
        let stopped = async {
            tokio::select! {
                _ = terminate.recv() => Shutdown::HandOver,
                _ = interrupt.recv() => Shutdown::Final,
            }
        };
        let served = serve(
            &arguments.socket,
            &arguments.devices,
            config,
            arguments.open_devices,
            flags,
            stopped,
        );
        served.await.map_err(|error| error.to_string())
    })
}
