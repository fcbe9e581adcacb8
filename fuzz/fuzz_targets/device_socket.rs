//! A program sends anything, with any descriptors, to the control socket of a running device. In the input, each packet
//! follows a byte of flags and a byte with its length.
//!
//! The engine must answer each packet or close the socket. A panic of any of its threads ends the process.
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
use weft_device::control::{self, MESSAGE_BYTES_MAX, Outcome, Request};
use weft_device_server::{Device, Server};
use weft_device_socket::{CONTROL_FILE, TOKEN_FILE, packet};
use weft_engine::{EngineConfig, PortRange, Secret};
use weft_fuzz::LIMITS;

/// Far longer than any answer takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// A flag: the packet opens the device as a program does, and the input's own packet is ignored.
const OPENS: u8 = 0x10;

struct Fixture {
    directory: tempfile::TempDir,
    _server: Server,
    token: [u8; 32],
    descriptors: [OwnedFd; 4],
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| make().expect("a device can be made here"));

fn make() -> io::Result<Fixture> {
    let directory = tempfile::tempdir()?;
    let ports = PortRange {
        first: 20_000 + (std::process::id() % 600) as u16 * 16,
        count: 16,
    };
    let config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
    let server = Server::start(&directory.path().join("devices"), config, 1, drop);
    let server = server.map_err(io::Error::other)?;
    let device = Device::new([9; 16], LIMITS);
    let path = server.create("weft0", device).map_err(io::Error::other)?;
    let token = std::fs::read(path.join(TOKEN_FILE))?;
    let open = |path: &str| OpenOptions::new().read(true).write(true).open(path);
    let memory = memfd_create("fuzz", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, 1 << 20)?;
    Ok(Fixture {
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
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
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
    let fixture = &*FIXTURE;
    let socket = program(fixture.directory.path()).expect("the engine accepts programs");
    let mut rest = bytes;
    while let Some(([flags, length], more)) = rest.split_first_chunk() {
        let (packet, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let open = Request::Open {
            version: VERSION,
            token: fixture.token,
        };
        let packet = match flags & OPENS {
            0 if packet.is_empty() => continue,
            0 => packet,
            _ => control::emit(&open, &mut buffer),
        };
        // How many descriptors, and which is the first.
        let (count, first) = (usize::from(flags & 3), usize::from(flags >> 2 & 3));
        let passed = (first..first + count).map(|at| fixture.descriptors[at % 4].as_fd());
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
