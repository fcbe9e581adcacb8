//! Two virtual devices of one node, and programs of Debian that use them unmodified, each as an ordinary user.

use std::{
    env, fs,
    net::Ipv4Addr,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use weft_device::control::Limits;
use weft_device_server::{Device, Server};
use weft_engine::{EngineConfig, PortRange, Secret};

use crate::{program, stdout_of};

const LIMITS: Limits = Limits {
    domains: 64,
    regions: 1024,
    completion_queues: 64,
    queue_pairs: 64,
    address_handles: 64,
    completions: 1 << 14,
    work_requests: 4096,
    sges: 30,
    inline_bytes: 512,
    requests: 16,
    path_mtu: 5,
    ring_bytes: 64 << 20,
};
/// Nothing here takes a tenth of this on an idle machine.
const PATIENCE: &str = "60";
/// Runs a program with little: as uid 1000, without capabilities, with 64 KiB of memory that it may lock.
const USER: &str = "prlimit --memlock=65536 setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs \
                    --inh-caps=-all --bounding-set=-all";
/// The libraries, as they are built and as programs look for them.
const LIBRARIES: [(&str, &str); 2] = [
    ("libweft_ibverbs.so", "libibverbs.so"),
    ("libweft_rdmacm.so", "librdmacm.so"),
];
/// The devices. Their GIDs are those of 10.0.0.1 and 10.0.0.2, which no interface has.
const DEVICES: [&str; 2] = ["weft0", "weft1"];

/// A node with two devices.
pub struct Node {
    /// What makes the devices.
    pub server: Server,
    directory: tempfile::TempDir,
}

/// A directory that any user may enter.
fn open(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

impl Default for Node {
    fn default() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        open(directory.path());
        fs::create_dir(at("lib")).expect("it is ours");
        for (built, name) in LIBRARIES {
            let versioned = format!("{name}.1");
            fs::copy(program(built), at("lib").join(&versioned)).expect("it was built");
            symlink(versioned, at("lib").join(name)).expect("it is ours");
        }
        let server = start(&at("devices"));
        for (last, name) in (1..).zip(DEVICES) {
            let mut gid = [0; 16];
            gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
            let device = Device::new(gid, LIMITS);
            server.create(name, device).expect("it is made");
            fs::create_dir(at(name)).expect("it is ours");
            symlink(at("devices").join(name), at(name).join(name)).expect("it is ours");
        }
        // As mounting the devices' directories into a container would.
        open(&at("devices"));
        Self { server, directory }
    }
}

impl Node {
    /// A program that sees both devices, as uid 1000, without capabilities, with 64 KiB of memory that it may lock.
    #[must_use]
    pub fn command(&self, line: &str) -> Command {
        self.command_with("devices", line)
    }

    /// As [`command`](Self::command), but it sees only this device.
    #[must_use]
    pub fn command_at(&self, device: usize, line: &str) -> Command {
        self.command_with(DEVICES[device], line)
    }

    /// As [`command`](Self::command), but the program is started as `weft device run` does it, and finds what is in PATH
    /// beside `folder`.
    #[must_use]
    pub fn injected(&self, folder: &Path, line: &str) -> Command {
        let path = env::var("PATH").expect("it is text");
        let mut command = Command::new("timeout");
        command
            .arg(PATIENCE)
            .arg(program("weft"))
            .args(["device", "inject", "--libraries"])
            .arg(self.path("lib"))
            .arg("--devices")
            .arg(self.path("devices"))
            .arg("--")
            .args(USER.split(' '))
            .args(line.split_whitespace())
            .env("PATH", format!("{}:{path}", folder.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn command_with(&self, devices: &str, line: &str) -> Command {
        let mut command = Command::new("timeout");
        let variable =
            |name: &str, directory: &str| format!("{name}={}", self.path(directory).display());
        command
            .arg(PATIENCE)
            .args(USER.split(' '))
            .arg("env")
            .arg(variable("LD_LIBRARY_PATH", "lib"))
            .arg(variable("WEFT_DEVICES", devices))
            .args(line.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// A file or directory of the node's, which ends with it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What a program prints that sees both devices.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn run(&self, line: &str) -> String {
        stdout_of(line, &self.command(line).output().expect("it starts"))
    }

    /// Checks that a library has names with these versions, as `dlvsym` finds them.
    ///
    /// # Panics
    /// If one is missing.
    pub fn assert_names(&self, library: &str, names: &[(&str, &str)]) {
        const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    int missing = 0;
    for (int at = 2; at + 1 < count; at += 2)
        if (!dlvsym(library, words[at], words[at + 1])) { puts(words[at]); missing++; }
    return missing;
}"#;
        let [source, program] = ["names.c", "names"].map(|name| self.path(name));
        fs::write(&source, SOURCE).expect("it is ours");
        let mut compiler = Command::new("cc");
        compiler.arg("-o").args([&program, &source]).arg("-ldl");
        let built = compiler.status().expect("a C compiler");
        assert!(built.success());
        let mut line = format!("{} {library}", program.display());
        for (version, names) in names {
            for name in names.split_whitespace() {
                line += &format!(" {name} {version}");
            }
        }
        let _ = self.run(&line);
    }
}

/// Starts a program that waits for another at a TCP port, and waits until it does.
///
/// # Panics
/// If nobody ever listens there.
#[must_use]
pub fn listening(mut command: Command, port: u16) -> Child {
    let child = command.spawn().expect("it starts");
    await_listener(port);
    child
}

/// What a program has printed when it has ended.
///
/// # Panics
/// If it cannot be waited for.
#[must_use]
pub fn ended(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

/// Waits until a TCP port is listened to, without connecting: these programs take one connection.
fn await_listener(port: u16) {
    let begun = Instant::now();
    let wanted = format!(":{port:04X} ");
    let is_listening = |line: &str| line.contains(&wanted) && line.contains(" 0A ");
    while begun.elapsed() < Duration::from_secs(60) {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        let mut tables = tables.into_iter().flatten();
        if tables.any(|table| table.lines().any(is_listening)) {
            return;
        }
        thread::yield_now();
    }
    panic!("nobody listens at {port}");
}

fn start(directory: &Path) -> Server {
    // Of each server of each process that runs at the same time.
    static SERVERS: AtomicU32 = AtomicU32::new(0);
    let server = std::process::id() * 8 + SERVERS.fetch_add(1, Ordering::Relaxed);
    let ports = PortRange {
        first: 22_000 + (server % 150) as u16 * 64,
        count: 16,
    };
    let mut config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
    config.mtu = 9000;
    Server::start(directory, config, 4, drop).expect("these ports are free")
}
