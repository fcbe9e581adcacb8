//! Programs that open a device and then send anything, with any descriptors: each packet after a byte that says what goes
//! with it, and its length in a byte.
//!
//! The engine answers each packet or closes the socket, and a panic of any of its threads ends the process.
#![no_main]

use std::fs::OpenOptions;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use weft_device::VERSION;
use weft_device::control::{self, Limits, MESSAGE_BYTES_MAX, Outcome, Request};
use weft_device_server::{Device, Server};
use weft_device_socket::{CONTROL_FILE, TOKEN_FILE, packet};
use weft_engine::{EngineConfig, PortRange, Secret};

const LIMITS: Limits = Limits {
    domains: 4,
    regions: 4,
    completion_queues: 4,
    queue_pairs: 4,
    address_handles: 4,
    completions: 1024,
    work_requests: 256,
    sges: 8,
    inline_bytes: 256,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 4 << 20,
};

/// Far longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(8);

/// The packet opens the device as a program does, and what follows is ignored.
const OPENS: u8 = 0x10;

struct World {
    directory: tempfile::TempDir,
    _server: Server,
    token: [u8; 32],
    descriptors: [OwnedFd; 4],
}

static WORLD: LazyLock<World> = LazyLock::new(|| make().expect("a device can be made here"));

fn make() -> io::Result<World> {
    let directory = tempfile::tempdir()?;
    let ports = PortRange {
        first: 20_000 + (std::process::id() % 600) as u16 * 16,
        count: 16,
    };
    let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
    let server = Server::start(&directory.path().join("devices"), config, 1, drop);
    let server = server.map_err(io::Error::other)?;
    let device = Device {
        gid: [9; 16],
        limits: LIMITS,
        cap_bps: None,
    };
    let path = server.create("weft0", device).map_err(io::Error::other)?;
    let token = std::fs::read(path.join(TOKEN_FILE))?;
    let open = |path: &str| OpenOptions::new().read(true).write(true).open(path);
    let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, 1 << 20)?;
    Ok(World {
        directory,
        _server: server,
        token: token.try_into().unwrap_or_default(),
        descriptors: [
            open("/proc/self/mem")?.into(),
            memory,
            open("/dev/null")?.into(),
            io::pipe()?.0.into(),
        ],
    })
}

fn program(directory: &Path) -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    let path = directory.join("devices/weft0").join(CONTROL_FILE);
    connect(&socket, &SocketAddrUnix::new(&path)?)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// The engine's answer; nothing when it has closed the socket.
fn receive(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    loop {
        let received = packet::receive(socket, &mut buffer).map(|(answer, _)| answer.to_vec());
        match received {
            // The fuzzer's clock.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let world = &*WORLD;
    let socket = program(world.directory.path()).expect("the engine accepts programs");
    let mut rest = bytes;
    while let Some(([with, length], more)) = rest.split_first_chunk() {
        let (packet, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let open = Request::Open {
            version: VERSION,
            token: world.token,
        };
        let packet = match with & OPENS {
            0 if packet.is_empty() => continue,
            0 => packet,
            _ => control::emit(&open, &mut buffer),
        };
        // How many descriptors, and which is the first.
        let (count, first) = (usize::from(with & 3), usize::from(with >> 2 & 3));
        let passed = (first..first + count).map(|at| world.descriptors[at % 4].as_fd());
        let passed: Vec<BorrowedFd<'_>> = passed.collect();
        if packet::send(&socket, packet, &passed).is_err() {
            // It is closed.
            return;
        }
        match receive(&socket) {
            Ok(answer) if answer.is_empty() => return,
            Ok(answer) => assert!(control::parse::<Outcome>(&answer).is_ok()),
            Err(error) => {
                let is_closed = error.kind() == io::ErrorKind::ConnectionReset;
                assert!(is_closed, "neither an answer nor the end: {error}");
                return;
            }
        }
    }
});
