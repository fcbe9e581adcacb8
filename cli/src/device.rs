//! `weft device`: the virtual devices of a small fabric that `weft play --device --keep` has left running.
//!
//! Everything of such a fabric is in namespaces of its own. A [`Record`] lies in its private `/run`; it is found through
//! `/proc`, so nothing that has ended is found.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt, fs,
    io::{self, Read as _},
    net::Ipv6Addr,
    os::unix::{
        fs::{MetadataExt as _, OpenOptionsExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use clap::Subcommand;
use nix::{fcntl::OFlag, unistd::geteuid};
use serde::{Deserialize, Serialize};
use weft_proto::engine::v1::{DestroyDeviceRequest, Device, ListDevicesRequest};

use crate::{columns::columns, stage::devices};

/// Where the record is, in the fabric's own `/run`.
const RECORD: &str = "run/weft-play/devices.json";
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// The memory that a program may lock: what Kubernetes gives a pod.
const LOCKED_BYTES: u32 = 64 << 10;
/// Whom programs run as where the fabric was made by root.
const USER: u32 = 1000;

/// What is done with devices.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Run a program at a node, with the node's device and the library for it.
    ///
    /// It runs as uid 1000 (in a fabric of an ordinary user: as that user), without capabilities, and may lock 64 KiB of
    /// memory, as in a pod.
    Run {
        /// The node, as node0.
        node: String,
        /// The program and its arguments, as -- ib_write_bw 10.0.0.1.
        #[arg(last = true, required = true, value_name = "PROGRAM")]
        command: Vec<OsString>,
    },
    /// List the devices.
    List,
    /// Show one device.
    Show {
        /// As node0/weft0.
        device: Name,
    },
    /// Take a device away. A program that has it open keeps it.
    Destroy {
        /// As node0/weft0.
        device: Name,
    },
}

/// A node and a device of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    node: String,
    device: String,
}

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, device) = text.split_once('/').ok_or_else(|| {
            format!("{text:?} is not NODE/DEVICE: write node0/weft0, as `weft device list` does")
        })?;
        Ok(Self {
            node: node.to_owned(),
            device: device.to_owned(),
        })
    }
}

/// What is written down of a fabric that is left running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What to enter the namespaces by.
    pub pid: u32,
    /// The fabric is in a user namespace of its own.
    pub own_user_namespace: bool,
    /// The socket of each engine, by node.
    pub engines: BTreeMap<String, PathBuf>,
}

impl Record {
    /// Writes it; this program is inside of the fabric's namespaces.
    pub(crate) fn write(&self) -> io::Result<()> {
        fs::write(Path::new("/").join(RECORD), serde_json::to_vec(self)?)
    }

    /// Of every fabric of this user.
    fn all() -> Vec<Self> {
        let read = |entry: fs::DirEntry| {
            entry.file_name().to_str()?.parse::<u32>().ok()?;
            let record = Self::read(&entry.path())?;
            Some((record.pid, record))
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let records: BTreeMap<u32, Self> = processes.filter_map(read).collect();
        records.into_values().collect()
    }

    /// Of the fabric that a process is in; `process` is its directory in /proc. Any user can make namespaces with any file
    /// in them, and what a record says is entered with this user's rights: the file must be this user's, and the process
    /// that it names must be in the same namespace.
    fn read(process: &Path) -> Option<Self> {
        let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
        let mut how = fs::File::options();
        let file = how.read(true).custom_flags(flags);
        let file = file.open(process.join("root").join(RECORD)).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.uid() != geteuid().as_raw() {
            return None;
        }
        let record: Self = serde_json::from_reader(file.take(RECORD_BYTES_MAX)).ok()?;
        let namespace = |process: &Path| fs::read_link(process.join("ns/mnt"));
        let named = Path::new("/proc").join(record.pid.to_string());
        let is_same = namespace(process).ok()? == namespace(&named).ok()?;
        is_same.then_some(record)
    }

    /// The one that is meant.
    fn find(play: Option<u32>) -> Result<Self, DeviceError> {
        let mut all = Self::all();
        if let Some(play) = play {
            all.retain(|record| record.pid == play);
        }
        match (all.pop(), all.is_empty()) {
            (Some(record), true) => Ok(record),
            (None, _) => Err(DeviceError::NoFabric),
            (Some(last), false) => {
                let pids = all.iter().chain([&last]);
                let pids: Vec<String> = pids.map(|record| record.pid.to_string()).collect();
                Err(DeviceError::Several(pids.join(", ")))
            }
        }
    }

    /// The socket of a node's engine, as it is seen from outside.
    fn socket(&self, node: &str) -> Result<PathBuf, DeviceError> {
        let inside = self.engines.get(node).ok_or_else(|| DeviceError::NoNode {
            node: node.to_owned(),
            nodes: self.engines.keys().cloned().collect::<Vec<_>>().join(", "),
        })?;
        let inside = inside.strip_prefix("/").unwrap_or(inside);
        Ok(Path::new("/proc")
            .join(self.pid.to_string())
            .join("root")
            .join(inside))
    }

    /// The command that runs a program at a node with a device.
    fn command(&self, node: &str, command: &[OsString]) -> Command {
        let mut line: Vec<OsString> = Vec::new();
        let mut add = |words: &[&str]| line.extend(words.iter().map(OsString::from));
        add(&["--target", &self.pid.to_string()]);
        if self.own_user_namespace {
            add(&["--user", "--preserve-credentials"]);
        }
        add(&["--mount", "--net", "--pid", "ip", "netns", "exec", node]);
        add(&["prlimit", &format!("--memlock={LOCKED_BYTES}"), "setpriv"]);
        match self.own_user_namespace {
            // No other user is known there, and root there may have no capability.
            true => add(&["--securebits=+noroot,+noroot_locked"]),
            false => add(&[
                &format!("--reuid={USER}"),
                &format!("--regid={USER}"),
                "--clear-groups",
            ]),
        }
        add(&[
            "--no-new-privs",
            "--inh-caps=-all",
            "--bounding-set=-all",
            "env",
        ]);
        let index = node
            .strip_prefix("node")
            .and_then(|index| index.parse().ok());
        let directory = devices::directory(index.unwrap_or_default());
        add(&[
            &format!("LD_LIBRARY_PATH={}", devices::library().display()),
            &format!("WEFT_DEVICES={}", directory.display()),
        ]);
        line.extend(command.iter().cloned());
        let mut program = Command::new("nsenter");
        program.args(line);
        program
    }
}

/// Why that did not work. Every text names the cause and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Nothing runs.
    #[error(
        "no fabric with devices is running: start one with `weft play --device 0,1 --keep`, as the same user"
    )]
    NoFabric,
    /// Which one is not said.
    #[error("several fabrics are running: name one by --play, of {0}")]
    Several(String),
    /// The node has no device.
    #[error("{node} has no engine of devices; those that have: {nodes}")]
    NoNode {
        /// The node.
        node: String,
        /// Those that have one.
        nodes: String,
    },
    /// The device is not there.
    #[error("there is no device {device} at {node}; see: weft device list")]
    NoDevice {
        /// The node.
        node: String,
        /// The device.
        device: String,
    },
    /// The engine answers no.
    #[error("the engine of {node}: {problem}")]
    Engine {
        /// The node.
        node: String,
        /// What it said.
        problem: String,
    },
    /// The program was not started.
    #[error("nsenter cannot be run: {0}; install util-linux and iproute2")]
    NotRun(io::Error),
    /// No runtime.
    #[error("the runtime cannot start: {0}")]
    Runtime(io::Error),
    /// The result cannot be written.
    #[error("the result cannot be written: {0}")]
    Output(io::Error),
}

/// Carries it out; a program that runs takes the place of this one.
///
/// # Errors
/// [`DeviceError`].
pub fn run(
    action: &Action,
    play: Option<u32>,
    out: &mut impl io::Write,
) -> Result<(), DeviceError> {
    let record = Record::find(play)?;
    let runtime = || {
        let built = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        built.map_err(DeviceError::Runtime)
    };
    let write = |out: &mut _, text: &dyn fmt::Display| {
        let out: &mut dyn io::Write = out;
        write!(out, "{text}").map_err(DeviceError::Output)
    };
    match action {
        Action::Run { node, command } => {
            record.socket(node)?;
            Err(DeviceError::NotRun(record.command(node, command).exec()))
        }
        Action::List => {
            let list = runtime()?.block_on(list(&record))?;
            write(out, &List(&list))
        }
        Action::Show { device } => {
            let list = runtime()?.block_on(list(&record))?;
            let found = list
                .iter()
                .find(|(node, found)| *node == device.node && found.name == device.device);
            let found = found.ok_or_else(|| {
                let Name { node, device } = device.clone();
                DeviceError::NoDevice { node, device }
            })?;
            write(out, &Detail(found))
        }
        Action::Destroy { device } => {
            runtime()?.block_on(destroy(&record, device))?;
            write(
                out,
                &format_args!("{}/{} destroyed\n", device.node, device.device),
            )
        }
    }
}

fn refused(node: &str, status: &tonic::Status) -> DeviceError {
    DeviceError::Engine {
        node: node.to_owned(),
        problem: status.message().to_owned(),
    }
}

async fn destroy(record: &Record, device: &Name) -> Result<(), DeviceError> {
    let mut engine = weft_proto::engine::client(&record.socket(&device.node)?);
    let name = device.device.clone();
    let destroyed = engine.destroy_device(DestroyDeviceRequest { name }).await;
    destroyed.map_err(|status| refused(&device.node, &status))?;
    Ok(())
}

async fn list(record: &Record) -> Result<Vec<(String, Device)>, DeviceError> {
    let mut all = Vec::new();
    for node in record.engines.keys() {
        let mut engine = weft_proto::engine::client(&record.socket(node)?);
        let devices = engine.list_devices(ListDevicesRequest {}).await;
        let devices = devices.map_err(|status| refused(node, &status))?;
        let devices = devices.into_inner().devices.into_iter();
        all.extend(devices.map(|device| (node.clone(), device)));
    }
    Ok(all)
}

fn gid(device: &Device) -> String {
    let octets = <[u8; 16]>::try_from(device.gid.as_slice());
    octets.map_or_else(
        |_| String::new(),
        |octets| Ipv6Addr::from(octets).to_string(),
    )
}

struct List<'a>(&'a [(String, Device)]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |(node, device): &(String, Device)| {
            vec![
                format!("{node}/{}", device.name),
                gid(device),
                device.contexts.to_string(),
                device.queue_pairs.to_string(),
            ]
        };
        let rows: Vec<Vec<String>> = self.0.iter().map(row).collect();
        columns(f, &["DEVICE", "GID", "OPEN", "QUEUE PAIRS"], &rows)
    }
}

struct Detail<'a>(&'a (String, Device));

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, device) = self.0;
        writeln!(f, "Device:       {}", device.name)?;
        writeln!(f, "Node:         {node}")?;
        writeln!(f, "GID:          {}", gid(device))?;
        writeln!(f, "Directory:    {}", device.directory)?;
        writeln!(f, "Open:         {} times", device.contexts)?;
        writeln!(f, "Queue pairs:  {}", device.queue_pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(own_user_namespace: bool) -> Record {
        Record {
            pid: 77,
            own_user_namespace,
            engines: [("node0".to_owned(), PathBuf::from("/run/e.sock"))].into(),
        }
    }

    fn line(record: &Record) -> String {
        let command = record.command("node0", &["ibv_devinfo".into()]);
        let words = command.get_args().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_program_runs_in_the_namespaces_of_its_node_without_rights() {
        assert_eq!(
            line(&record(false)),
            "--target 77 --mount --net --pid ip netns exec node0 prlimit --memlock=65536 setpriv --reuid=1000 \
             --regid=1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all env \
             LD_LIBRARY_PATH=/run/weft-devices/lib WEFT_DEVICES=/run/weft-devices/node0 ibv_devinfo"
        );
        let own = line(&record(true));
        assert!(own.starts_with("--target 77 --user --preserve-credentials --mount"));
        assert!(own.contains("setpriv --securebits=+noroot,+noroot_locked --no-new-privs"));
    }

    #[test]
    fn a_record_is_believed_only_where_the_process_that_it_names_is() {
        let process = tempfile::tempdir().unwrap();
        let file = process.path().join("root").join(RECORD);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::create_dir(process.path().join("ns")).unwrap();
        let here = std::process::id();
        let own = Record {
            pid: here,
            ..record(false)
        };
        fs::write(&file, serde_json::to_vec(&own).unwrap()).unwrap();
        let is_in = |namespace: &Path| {
            let link = process.path().join("ns/mnt");
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(namespace, &link).unwrap();
            Record::read(process.path()).is_some()
        };
        let true_one = fs::read_link("/proc/self/ns/mnt").unwrap();
        assert!(is_in(&true_one));
        assert!(!is_in(Path::new("mnt:[1]")));
        // A link may lead to a file of another namespace.
        let elsewhere = process.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert!(!is_in(&true_one));
    }

    #[test]
    fn a_device_is_named_with_its_node() {
        let name: Name = "node1/weft0".parse().unwrap();
        assert_eq!((&*name.node, &*name.device), ("node1", "weft0"));
        assert!("weft0".parse::<Name>().unwrap_err().contains("node0/weft0"));
        let record = record(false);
        assert_eq!(
            record.socket("node0").unwrap(),
            Path::new("/proc/77/root/run/e.sock")
        );
        let unknown = record.socket("node9").unwrap_err().to_string();
        assert!(unknown.contains("those that have: node0"), "{unknown}");
    }

    #[test]
    fn devices_are_listed_in_columns() {
        let device = Device {
            name: "weft0".to_owned(),
            gid: "::ffff:10.0.0.1"
                .parse::<Ipv6Addr>()
                .unwrap()
                .octets()
                .to_vec(),
            directory: "/run/weft-devices/node0/weft0".to_owned(),
            contexts: 1,
            queue_pairs: 4,
        };
        let all = [("node0".to_owned(), device)];
        assert_eq!(
            List(&all).to_string(),
            "DEVICE       GID              OPEN  QUEUE PAIRS\nnode0/weft0  ::ffff:10.0.0.1  1     4\n"
        );
        assert!(Detail(&all[0]).to_string().contains("Queue pairs:  4"));
    }
}
