//! The nodes' virtual devices: an engine at each node that has one, and what programs need to use them.

use std::{
    ffi::OsString,
    fs::{self, Permissions},
    io,
    net::{Ipv4Addr, Ipv6Addr},
    num::NonZeroU32,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use nix::mount::{MsFlags, mount};
use tokio::net::UnixStream;
use weft_proto::engine::v1::CreateDeviceRequest;

use super::{Program, Setup, StageError, node_name, process::find};

/// Where the devices of nodes and the library are. In the isolation `/run` is private, and any user may enter it.
const DIRECTORY: &str = "/run/weft-devices";
/// The libraries, as they are built and as programs are linked to them; programs load them with `.1` as well.
const LIBRARIES: [(&str, &str); 2] = [
    ("libweft_ibverbs.so", "libibverbs.so"),
    ("libweft_rdmacm.so", "librdmacm.so"),
];
/// What each node's device is called.
pub const DEVICE: &str = "weft0";
/// As with agents, each engine has a range of ports of its own, above those of the agents.
const FIRST_PORT: u16 = 12_000;
const PORTS_STEP: u16 = 16;

/// Which nodes have a device, and what that takes.
#[derive(Debug, Clone)]
pub struct Devices {
    /// The engine's program.
    pub program: PathBuf,
    /// Where the libraries are, as they are built.
    pub libraries: PathBuf,
    /// The nodes.
    pub nodes: Vec<usize>,
    /// How each is limited.
    pub limits: DeviceLimits,
}

/// How each device is limited.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceLimits {
    /// Most that it sends, bits per second.
    pub cap_bps: Option<u64>,
    /// Most work requests that it begins per second.
    pub ops_per_s: Option<NonZeroU32>,
}

impl Devices {
    /// Devices at these nodes, by the program and the libraries that are beside this program.
    pub fn at(nodes: Vec<usize>, limits: DeviceLimits) -> Result<Self, StageError> {
        let program = find(Program::Engine)?;
        for (built, _) in LIBRARIES {
            let beside = program.with_file_name(built);
            if !beside.is_file() {
                return Err(StageError::LibraryMissing { beside });
            }
        }
        let libraries = program.with_file_name("");
        Ok(Self {
            program,
            libraries,
            nodes,
            limits,
        })
    }
}

/// Where programs at node `i` find their devices.
pub fn directory(i: usize) -> PathBuf {
    Path::new(DIRECTORY).join(node_name(i))
}

/// The directory with the libraries, under the names that programs look for.
pub fn library() -> PathBuf {
    Path::new(DIRECTORY).join("lib")
}

/// This program, where any user may run it.
pub fn program() -> PathBuf {
    Path::new(DIRECTORY).join("bin/weft")
}

/// What other devices know that of node `i` by.
pub fn gid(address: Ipv4Addr) -> Ipv6Addr {
    address.to_ipv6_mapped()
}

/// The command line of node `i`'s engine.
pub(super) fn arguments(i: usize, socket: &Path, setup: &Setup) -> Vec<OsString> {
    let address = setup.ground.addresses(i).data;
    // At most 240 nodes: the ports end below 15,900.
    let first_port = FIRST_PORT + PORTS_STEP * i as u16;
    let words = [
        ("--address", address.to_string()),
        ("--first-port", first_port.to_string()),
        (
            "--ports",
            super::ground::port_count(setup.paths).to_string(),
        ),
        ("--open-devices", "1".to_owned()),
        ("--paths", setup.paths.to_string()),
        ("--mtu", setup.ground.mtu().to_string()),
        ("--policy", setup.policy.to_string()),
        ("--encryption", setup.encryption.to_string()),
    ];
    let words = words.map(|(flag, value)| [OsString::from(flag), value.into()]);
    let paths = [
        [OsString::from("--socket"), socket.into()],
        ["--devices".into(), directory(i).into()],
    ];
    paths.into_iter().chain(words).flatten().collect()
}

/// Whether an engine serves at this socket.
pub(super) async fn is_ready(socket: &Path) -> io::Result<bool> {
    UnixStream::connect(socket).await.map(|_| true)
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, None::<&str>, flags, None::<&str>).map_err(io::Error::from)
}

/// Puts the libraries, and this program, where those of any user find them.
pub(super) fn put_libraries(from: &Path) -> Result<(), StageError> {
    let directory = library();
    let put = || {
        let mut made = fs::DirBuilder::new();
        made.recursive(true).mode(0o755).create(&directory)?;
        for (built, name) in LIBRARIES {
            let versioned = format!("{name}.1");
            let library = directory.join(&versioned);
            fs::copy(from.join(built), &library)?;
            fs::set_permissions(&library, Permissions::from_mode(0o755))?;
            symlink(versioned, directory.join(name))?;
        }
        let program = program();
        made.create(program.parent().unwrap_or(&directory))?;
        fs::File::create(&program)?;
        bind(&std::env::current_exe()?, &program)
    };
    put().map_err(|source| StageError::Files {
        path: directory.clone(),
        source,
    })
}

/// Gives the nodes a `/dev` of their own with `/dev/infiniband/weft0` in it. It is the null device: UCX looks whether there
/// is such a character device that it may use, and does not open it.
pub(super) fn put_device_node() -> Result<(), StageError> {
    let made = Path::new(DIRECTORY).join("dev");
    let put = || {
        let of_devices = made.join("infiniband");
        fs::create_dir_all(&of_devices)?;
        for entry in fs::read_dir("/dev")? {
            let entry = entry?;
            let (from, to, kind) = (
                entry.path(),
                made.join(entry.file_name()),
                entry.file_type()?,
            );
            if to == of_devices {
                continue;
            } else if kind.is_symlink() {
                symlink(fs::read_link(&from)?, &to)?;
                continue;
            } else if kind.is_dir() {
                fs::create_dir(&to)?;
            } else {
                fs::File::create(&to)?;
            }
            if let Err(error) = bind(&from, &to) {
                tracing::debug!("{} is not visible in here: {error}", from.display());
            }
        }
        let node = of_devices.join(DEVICE);
        fs::File::create(&node)?;
        bind(Path::new("/dev/null"), &node)?;
        bind(&made, Path::new("/dev"))
    };
    put().map_err(|source| StageError::Files {
        path: made.clone(),
        source,
    })
}

/// Makes node `i`'s device, whose directory any user may then enter.
pub(super) async fn create(
    i: usize,
    socket: &Path,
    address: Ipv4Addr,
    limits: DeviceLimits,
) -> Result<(), StageError> {
    let request = CreateDeviceRequest {
        name: DEVICE.to_owned(),
        gid: gid(address).octets().to_vec(),
        cap_bps: limits.cap_bps.unwrap_or(0),
        ops_per_s: limits.ops_per_s.map_or(0, NonZeroU32::get),
        ..CreateDeviceRequest::default()
    };
    let created = weft_proto::engine::client(socket)
        .create_device(request)
        .await;
    created.map_err(|status| StageError::NoDevice {
        node: node_name(i),
        problem: status.message().to_owned(),
    })?;
    let path = directory(i);
    let opened = fs::set_permissions(&path, Permissions::from_mode(0o755));
    opened.map_err(|source| StageError::Files { path, source })
}
