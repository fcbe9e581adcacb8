//! The record of a fabric that is left running: how it is found, and how its namespaces are entered.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    io::{self, Read as _},
    net::Ipv6Addr,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use nix::{fcntl::OFlag, unistd::geteuid};
use serde::{Deserialize, Serialize};

use super::DeviceError;

/// Where the record is, in the fabric's own `/run`.
const RECORD: &str = "run/weft-play/devices.json";
/// With 240 nodes it has some 200 KB.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// The memory that a program may lock: the default limit of most systems, which pods have, too.
const LOCKED_BYTES: u32 = 64 << 10;
/// The user that programs run as in a fabric that root has made.
const USER: u32 = 1000;

/// What is written down of a fabric that is left running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What to enter the namespaces by.
    pub pid: u32,
    /// The fabric is in a user namespace of its own.
    pub own_user_namespace: bool,
    /// This program, which gives others the libraries and the devices.
    pub program: PathBuf,
    /// Where the libraries are.
    pub library: PathBuf,
    /// The nodes with a device, by name.
    pub nodes: BTreeMap<String, NodeRecord>,
}

/// A node with a device. Paths are those inside of the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The socket by which its engine is managed.
    pub socket: PathBuf,
    /// Where its devices are.
    pub devices: PathBuf,
    /// What other devices know its device by.
    pub gid: Ipv6Addr,
    /// The command line of its engine.
    pub engine: Vec<String>,
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
    pub(super) fn find(play: Option<u32>) -> Result<Self, DeviceError> {
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

    pub(super) fn node(&self, node: &str) -> Result<&NodeRecord, DeviceError> {
        self.nodes.get(node).ok_or_else(|| DeviceError::NoNode {
            node: node.to_owned(),
            nodes: self.nodes.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }

    /// The socket of a node's engine, as it is seen from outside.
    pub(super) fn socket(&self, node: &str) -> Result<PathBuf, DeviceError> {
        Ok(self.outside(&self.node(node)?.socket))
    }

    /// A path of the fabric, as it is seen from outside.
    pub(super) fn outside(&self, inside: &Path) -> PathBuf {
        let inside = inside.strip_prefix("/").unwrap_or(inside);
        Path::new("/proc")
            .join(self.pid.to_string())
            .join("root")
            .join(inside)
    }

    /// Where a node's engine and agent have their files, inside of the fabric.
    pub(super) fn home(&self, node: &str) -> Result<PathBuf, DeviceError> {
        let home = self.node(node)?.socket.parent();
        Ok(home.unwrap_or(Path::new("/")).to_owned())
    }

    /// The command that runs a program of the fabric's own at a node, with all rights that it has.
    pub(super) fn enter(&self, node: &str, line: &[OsString]) -> Result<Command, DeviceError> {
        self.node(node)?;
        let mut program = Command::new("nsenter");
        program.args(self.namespaces(node)).arg("setsid").args(line);
        Ok(program)
    }

    /// What nsenter is to enter.
    fn namespaces(&self, node: &str) -> Vec<OsString> {
        let pid = self.pid.to_string();
        let own: &[&str] = match self.own_user_namespace {
            true => &["--user", "--preserve-credentials"],
            false => &[],
        };
        let others = ["--mount", "--net", "--pid", "ip", "netns", "exec", node];
        let words = ["--target", &pid].into_iter().chain(own.iter().copied());
        words.chain(others).map(OsString::from).collect()
    }

    /// The command that runs a program at a node with a device.
    pub(super) fn command(&self, node: &str, command: &[OsString]) -> Result<Command, DeviceError> {
        let devices = &self.node(node)?.devices;
        let mut line = self.namespaces(node);
        let mut add = |words: &[&str]| line.extend(words.iter().map(OsString::from));
        let paths = [&self.program, &self.library, devices].map(|path| path.to_string_lossy());
        let [program, libraries, devices] = paths.each_ref().map(|path| &**path);
        add(&[
            program,
            "device",
            "inject",
            "--libraries",
            libraries,
            "--devices",
            devices,
            "--",
        ]);
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
        add(&["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]);
        line.extend(command.iter().cloned());
        let mut program = Command::new("nsenter");
        program.args(line);
        if !self.own_user_namespace {
            // As container runtimes set it for a user without a home. The program may not look into root's.
            program.env("HOME", "/");
        }
        Ok(program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(own_user_namespace: bool) -> Record {
        Record {
            pid: 77,
            own_user_namespace,
            program: PathBuf::from("/run/weft-devices/bin/weft"),
            library: PathBuf::from("/run/weft-devices/lib"),
            nodes: [(
                "node0".to_owned(),
                NodeRecord {
                    socket: PathBuf::from("/run/e.sock"),
                    devices: PathBuf::from("/run/weft-devices/node0"),
                    gid: Ipv6Addr::LOCALHOST,
                    engine: Vec::new(),
                },
            )]
            .into(),
        }
    }

    fn line(record: &Record) -> String {
        let command = record.command("node0", &["ibv_devinfo".into()]).unwrap();
        let words = command.get_args().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_program_runs_in_the_namespaces_of_its_node_without_rights() {
        assert_eq!(
            line(&record(false)),
            "--target 77 --mount --net --pid ip netns exec node0 /run/weft-devices/bin/weft device inject \
             --libraries /run/weft-devices/lib --devices /run/weft-devices/node0 -- prlimit --memlock=65536 setpriv \
             --reuid=1000 --regid=1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all ibv_devinfo"
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
    fn the_socket_of_an_engine_is_reached_from_outside() {
        let record = record(false);
        assert_eq!(
            record.socket("node0").unwrap(),
            Path::new("/proc/77/root/run/e.sock")
        );
        let unknown = record.socket("node9").unwrap_err().to_string();
        assert!(unknown.contains("those that have: node0"), "{unknown}");
    }
}
