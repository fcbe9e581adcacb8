//! Virtual devices of two nodes of a fabric, and programs that use them.

use std::cell::Cell;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use weft_device::control::Limits;
use weft_device_server::{Device, Server, TenantOffer};
use weft_engine::{Egress, EngineConfig, PortRange, Secret};
use weft_fabric::Fabric;

use super::BenchError;

/// The library, as it is built beside this program, and as programs look for it.
const LIBRARY: [&str; 2] = ["libweft_ibverbs.so", "libibverbs.so.1"];
/// The devices of node 0 and of node 1.
pub(super) const NAMES: [&str; 2] = ["weft0", "weft1"];
/// What a device that is limited sends at most, bits per second.
pub(super) const CAP_BPS: u64 = 400_000_000;
/// Of the engines, at both nodes.
pub(super) const PORTS: PortRange = PortRange {
    first: 27_000,
    count: 16,
};
/// Where the first pair of programs meets; each later pair takes the next port.
const FIRST_PORT: u16 = 18_515;
/// No program takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);

const LIMITS: Limits = Limits {
    domains: 16,
    regions: 1024,
    completion_queues: 16,
    queue_pairs: 1024,
    address_handles: 16,
    completions: 1 << 14,
    work_requests: 4096,
    sges: 4,
    inline_bytes: 512,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 64 << 20,
};

/// Where two programs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// With two devices of node 0.
    OneNode,
    /// One at either node.
    TwoNodes,
}

/// What programs have their bytes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Their own.
    Private,
    /// A file in memory that they have mapped.
    Shared,
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Memory::Private => "private",
            Memory::Shared => "shared",
        })
    }
}

/// Bytes of a program's shared memory: more than any of these programs takes.
const SHARED_BYTES: u64 = 16 << 20;

/// The servers of both nodes. They end with this value.
pub(crate) struct Devices<'f> {
    fabric: &'f Fabric,
    directory: tempfile::TempDir,
    port: Cell<u16>,
    /// Kept for what dropping them does.
    _servers: [Arc<Server>; 2],
}

impl<'f> Devices<'f> {
    /// Starts both servers, and makes the devices. At node 1 the second is limited to [`CAP_BPS`].
    pub(crate) fn start(fabric: &'f Fabric) -> Result<Self, BenchError> {
        Self::limited(fabric, [None, Some(CAP_BPS)], Egress::default())
    }

    /// With these limits of the devices of node 1, and of what each node sends.
    pub(super) fn limited(
        fabric: &'f Fabric,
        caps_bps: [Option<u64>; 2],
        egress: Egress,
    ) -> Result<Self, BenchError> {
        let directory = tempfile::tempdir().map_err(BenchError::system("a directory"))?;
        let [built, name] = LIBRARY;
        let lib = directory.path().join("lib");
        fs::create_dir(&lib).map_err(BenchError::system("a directory"))?;
        let built = std::env::current_exe().map(|program| program.with_file_name(built));
        let built = built.map_err(BenchError::system("this program's path"))?;
        fs::metadata(&built).map_err(BenchError::system(format!(
            "{}: build it by `cargo build --release -p weft-verbs-shim`",
            built.display()
        )))?;
        symlink(&built, lib.join(name)).map_err(BenchError::system(name))?;
        let peers: Arc<[OnceLock<Weak<Server>>; 2]> = Arc::default();
        let start = |node: usize| {
            let others = Arc::clone(&peers);
            let path = directory.path().join(format!("node{node}"));
            let address = fabric.node(node).data_address;
            let mut config = EngineConfig::new(address, PORTS, Secret([9; 32]));
            config.mtu = u16::try_from(fabric.spec().mtu).unwrap_or(u16::MAX);
            config.egress = egress;
            let send = move |offer: TenantOffer| {
                let peer = others[1 - node].get().and_then(Weak::upgrade);
                if let Some(peer) = peer {
                    // One that is dropped is sent again.
                    let _ = peer.receive_offer(format!("node{node}").into(), offer);
                }
            };
            let server = fabric.in_node(node, || Server::start(&path, config, 2, send))?;
            let server = Arc::new(server.map_err(failed)?);
            let _ = peers[node].set(Arc::downgrade(&server));
            Ok::<_, BenchError>(server)
        };
        let servers = [start(0)?, start(1)?];
        let create = |node: usize, index: usize, cap_bps: Option<u64>| {
            let last = (2 * node + index + 1) as u8;
            let gid = Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
            let device = Device {
                cap_bps,
                ..Device::new(gid, LIMITS)
            };
            servers[node].create(NAMES[index], device).map_err(failed)
        };
        for (index, cap_bps) in caps_bps.into_iter().enumerate() {
            create(0, index, None)?;
            create(1, index, cap_bps)?;
        }
        Ok(Self {
            fabric,
            directory,
            port: Cell::new(FIRST_PORT),
            _servers: servers,
        })
    }

    /// A program in a node that sees the node's devices.
    pub(super) fn command(&self, node: usize, program: &str) -> Command {
        let mut command = self.fabric.command(node, program);
        command
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .env("WEFT_DEVICES", self.path(&format!("node{node}")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// A file of the directory that ends with this value.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `ib_write_bw`: GB/s.
    pub(crate) fn rate(
        &self,
        place: Place,
        memory: Memory,
        bytes: usize,
        count: u64,
    ) -> Result<f64, BenchError> {
        self.rate_from(self.connecting(place), memory, bytes, count)
    }

    /// The same between two nodes, where the device that sends is limited.
    pub(super) fn limited_rate(&self, bytes: usize, count: u64) -> Result<f64, BenchError> {
        let (node, _, address) = self.connecting(Place::TwoNodes);
        self.rate_from((node, NAMES[1], address), Memory::Private, bytes, count)
    }

    fn rate_from(
        &self,
        connecting: (usize, &str, Ipv4Addr),
        memory: Memory,
        bytes: usize,
        count: u64,
    ) -> Result<f64, BenchError> {
        let line = format!("ib_write_bw -x 0 -F -s {bytes} -n {count}");
        // Bytes, writes, peak and average in MiB/s with two digits behind the point, millions of writes a second with six.
        match bytes < 4096 {
            true => Ok(self.measure(connecting, memory, &line, 4)? * bytes as f64 / 1e3),
            false => Ok(self.measure(connecting, memory, &line, 3)? * f64::from(1 << 20) / 1e9),
        }
    }

    /// A program that measures latency: the median of one way, microseconds.
    pub(crate) fn latency(
        &self,
        place: Place,
        memory: Memory,
        program: &str,
        bytes: usize,
        count: usize,
    ) -> Result<f64, BenchError> {
        // Bytes, messages, shortest, longest, typical.
        let line = format!("{program} -x 0 -F -s {bytes} -n {count}");
        self.measure(self.connecting(place), memory, &line, 4)
    }

    /// The program that connects: its node, its device, and where the other one waits, which has the first of node 0.
    fn connecting(&self, place: Place) -> (usize, &'static str, Ipv4Addr) {
        match place {
            Place::OneNode => (0, NAMES[1], Ipv4Addr::LOCALHOST),
            Place::TwoNodes => (1, NAMES[0], self.fabric.node(0).data_address),
        }
    }

    /// The figure in a column of what the program that connects prints.
    fn measure(
        &self,
        (node, device, address): (usize, &str, Ipv4Addr),
        memory: Memory,
        line: &str,
        column: usize,
    ) -> Result<f64, BenchError> {
        // They are gone when this returns.
        let files = [(); 2].map(|()| match memory {
            Memory::Private => Ok(None),
            Memory::Shared => shared_file().map(Some),
        });
        let [waiting_file, connecting_file] = files;
        let (waiting_file, connecting_file) = (waiting_file?, connecting_file?);
        let waiting = (0, NAMES[0], &waiting_file);
        let connecting = (node, device, &connecting_file);
        let [waiting, connecting] = self.start_pair(line, waiting, connecting, address)?;
        let printed = connecting.output()?;
        waiting.output()?;
        figure(&printed, column).ok_or_else(|| BenchError::Program {
            program: line.to_owned(),
            message: printed,
        })
    }

    /// A program that writes from a device of node 1 to the one of the same name of node 0 until it is dropped, and its
    /// peer.
    pub(super) fn writing(&self, device: &str, line: &str) -> Result<[Program; 2], BenchError> {
        let (_, _, address) = self.connecting(Place::TwoNodes);
        self.start_pair(line, (0, device, &None), (1, device, &None), address)
    }

    /// The program that waits, and the one that connects to it: their nodes, devices and shared memory.
    fn start_pair(
        &self,
        line: &str,
        waiting: (usize, &str, &Option<NamedTempFile>),
        connecting: (usize, &str, &Option<NamedTempFile>),
        address: Ipv4Addr,
    ) -> Result<[Program; 2], BenchError> {
        let port = self.port.replace(self.port.get() + 1);
        let start = |(node, device, file): (usize, &str, &Option<NamedTempFile>),
                     peer: Option<Ipv4Addr>| {
            let mut words = line.split(' ');
            let program = words.next().unwrap_or_default();
            let mut command = self.command(node, program);
            let port = port.to_string();
            command.args(words).args(["-d", device, "-p", &port]);
            let path = file.as_ref().map(|file| file.path().display());
            command.args(path.map(|path| format!("--mmap={path}")));
            command.args(peer.map(|peer| peer.to_string()));
            Program::start(program, command)
        };
        let mut waiting = start(waiting, None)?;
        waiting.until_it_listens(port)?;
        Ok([waiting, start(connecting, Some(address))?])
    }
}

/// A file in memory, for one program.
fn shared_file() -> Result<NamedTempFile, BenchError> {
    let made = NamedTempFile::new_in("/dev/shm").and_then(|file| {
        file.as_file().set_len(SHARED_BYTES)?;
        Ok(file)
    });
    made.map_err(BenchError::system("a file in /dev/shm"))
}

/// The last line that begins with two whole numbers has the figures.
fn figure(printed: &str, column: usize) -> Option<f64> {
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    let mut lines = printed.lines().rev().map(cells);
    let is_row = |cells: &Vec<String>| {
        let mut first = cells.iter().map(|cell| cell.parse::<u64>());
        matches!((first.next(), first.next()), (Some(Ok(_)), Some(Ok(_))))
    };
    lines.find(is_row)?.get(column)?.parse().ok()
}

/// A running program. It does not outlive this value.
pub(super) struct Program {
    name: String,
    child: Option<Child>,
    begun: Instant,
}

impl Program {
    pub(super) fn start(name: &str, mut command: Command) -> Result<Self, BenchError> {
        Ok(Self {
            name: name.to_owned(),
            child: Some(command.spawn().map_err(BenchError::system(name))?),
            begun: Instant::now(),
        })
    }

    /// Waits without connecting: these programs take one connection.
    fn until_it_listens(&mut self, port: u16) -> Result<(), BenchError> {
        let wanted = format!(":{port:04X} ");
        let is_listening = |line: &str| line.contains(&wanted) && line.contains(" 0A ");
        while let Some(child) = self.running()? {
            let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{}/net/{table}", child.id()));
            let mut tables = tables.iter().flat_map(fs::read_to_string);
            if tables.any(|table| table.lines().any(is_listening)) {
                return Ok(());
            }
            thread::sleep(LOOK_EVERY);
        }
        // What it says is why it does not listen.
        let message = self.take_output()?;
        Err(self.failed(message))
    }

    /// The child, unless it has ended. One that takes too long is an error.
    fn running(&mut self) -> Result<Option<&mut Child>, BenchError> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        if self.begun.elapsed() > PATIENCE {
            return Err(BenchError::Silent {
                what: "a program over a virtual device",
                seconds: PATIENCE.as_secs(),
            });
        }
        let ended = child.try_wait().map_err(BenchError::system(&self.name))?;
        Ok(ended.is_none().then_some(child))
    }

    /// What it prints until it ends well.
    pub(super) fn output(mut self) -> Result<String, BenchError> {
        while self.running()?.is_some() {
            thread::sleep(LOOK_EVERY);
        }
        self.take_output()
    }

    fn take_output(&mut self) -> Result<String, BenchError> {
        let Some(child) = self.child.take() else {
            return Ok(String::new());
        };
        let output = child
            .wait_with_output()
            .map_err(BenchError::system(&self.name))?;
        let [printed, said] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        match output.status.success() {
            // Valgrind reports to standard error.
            true => Ok(format!("{printed}{said}")),
            false => Err(self.failed(format!("{}: {printed}{said}", output.status))),
        }
    }

    fn failed(&self, message: String) -> BenchError {
        BenchError::Program {
            program: self.name.clone(),
            message,
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Program {
        program: "the devices' server".to_owned(),
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_in_the_row_that_begins_with_bytes_and_messages() {
        let printed = " local address: LID 0000 QPN 0x0001\n\
                       #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                       65536      500              0.00               1907.35            0.030518\n\
                       ---------------\n";
        assert_eq!(figure(printed, 3), Some(1907.35));
        assert_eq!(figure("Couldn't connect to 10.0.0.1:18515\n", 3), None);
    }
}
