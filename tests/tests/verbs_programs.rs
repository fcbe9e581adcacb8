//! Verbs programs of Debian, unmodified, over virtual devices: two devices of one node, each program as an ordinary user.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::Ipv4Addr,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use weft_device::control::Limits;
use weft_device_server::{Device, Server, ServerError};
use weft_engine::{EngineConfig, EngineError, PortRange, Secret};
use weft_tests::{program, stdout_of};

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

/// Two devices, and a directory with the library under the name that programs look for.
struct Node {
    server: Server,
    directory: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        open(directory.path()).expect("it is ours");
        let library = directory.path().join("lib");
        fs::create_dir(&library).expect("it is ours");
        let shim = program("libweft_ibverbs.so");
        fs::copy(shim, library.join("libibverbs.so.1")).expect("it was built");
        let devices = directory.path().join("devices");
        let server = start(&devices);
        for last in 0..2 {
            let mut gid = [0; 16];
            gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last + 1]);
            let device = Device {
                gid,
                limits: LIMITS,
            };
            let made = server.create(&format!("weft{last}"), device);
            made.expect("it is made");
        }
        // As mounting the devices' directories into a container would.
        open(&devices).expect("it is ours");
        symlink("libibverbs.so.1", library.join("libibverbs.so")).expect("it is ours");
        Self { server, directory }
    }

    /// A program as uid 1000, without capabilities, with 64 KiB of memory that it may lock.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("timeout");
        let user = "--reuid=1000 --regid=1000 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all";
        command
            .args([PATIENCE, "prlimit", "--memlock=65536", "setpriv"])
            .args(user.split(' '))
            .arg("env")
            .arg(format!(
                "LD_LIBRARY_PATH={}",
                self.directory.path().join("lib").display()
            ))
            .arg(format!(
                "WEFT_DEVICES={}",
                self.directory.path().join("devices").display()
            ))
            .args(line.split_whitespace());
        command
    }

    fn run(&self, line: &str) -> String {
        stdout_of(line, &self.command(line).output().expect("it starts"))
    }

    /// A program at both devices: one waits, the other connects to it over 127.0.0.1. What both say.
    fn pair(&self, line: &str, port: u16) -> [String; 2] {
        let server = format!("{line} -d weft0 -p {port}");
        let mut waiting = self.command(&server);
        let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped());
        let waiting = waiting.spawn().expect("it starts");
        await_listener(port);
        let client = self.run(&format!("{line} -d weft1 -p {port} 127.0.0.1"));
        let waited = waiting.wait_with_output().expect("it ends");
        [stdout_of(&server, &waited), client]
    }
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
    for step in 0..300 {
        let ports = PortRange {
            first: 22_000 + ((std::process::id() + step) % 300) as u16 * 16,
            count: 16,
        };
        let mut config = EngineConfig::new(Ipv4Addr::LOCALHOST, ports, Secret([9; 32]));
        config.mtu = 9000;
        match Server::start(directory, config, drop) {
            Ok(server) => return server,
            Err(ServerError::Engine(EngineError::Link(error))) if error.reason() == "PortTaken" => {
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no free ports");
}

/// Programs at once would only wait for each other's turns, and each has a port of its own.
#[test]
fn programs_of_rdma_core_and_perftest_run_as_they_are() {
    let node = Node::new();
    let listed = node.run("ibv_devices");
    assert!(
        listed.contains("weft0") && listed.contains("weft1"),
        "{listed}"
    );
    let shown = node.run("ibv_devinfo -d weft1 -v");
    for part in [
        "PORT_ACTIVE (4)",
        "4096 (5)",
        "Ethernet",
        "RoCE v2",
        "::ffff:10.0.0.2",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // `-c` checks every byte.
    let told = node.pair("ibv_rc_pingpong -g 0 -c -n 500", 18_515);
    for told in told {
        assert!(told.contains("500 iters in "), "{told}");
    }
    // `-e` waits for events instead of polling.
    for told in node.pair("ibv_rc_pingpong -g 0 -c -e -n 500", 18_600) {
        assert!(told.contains("500 iters in "), "{told}");
    }
    // 16 queue pairs take their receives from one queue.
    for (port, line) in (18_700..).zip([
        "ibv_srq_pingpong -g 0 -c -n 500",
        "ibv_srq_pingpong -g 0 -c -e -n 500",
        "ibv_uc_pingpong -g 0 -c -n 500",
        "ibv_ud_pingpong -g 0 -c -n 500",
        "ibv_ud_pingpong -g 0 -c -e -n 500",
    ]) {
        for told in node.pair(line, port) {
            assert!(told.contains("500 iters in "), "{told}");
        }
    }
    let programs = [
        "ib_send_bw --use-srq -q 4 -s 4096",
        "ib_write_bw -c UC -s 65536",
        "ib_send_bw -c UD -s 4096",
        "ib_send_lat -c UD -s 64",
        "ib_send_bw -e -s 4096",
        "ib_write_bw -s 65536",
        "ib_write_bw -q 4 -s 4096",
        "ib_send_bw -s 65536",
        "ib_read_bw -s 65536",
        "ib_atomic_bw -A FETCH_AND_ADD",
        "ib_write_lat",
        "ib_send_lat",
        "ib_read_lat",
        "ib_atomic_lat -A CMP_AND_SWAP",
    ];
    for (port, line) in (18_516..).zip(programs) {
        let [_, told] = node.pair(&format!("{line} -x 0 -n 200"), port);
        assert!(told.contains("#bytes"), "{line}: {told}");
    }
}

#[test]
fn a_program_hears_that_the_engine_has_ended() {
    let node = Node::new();
    let mut watching = node.command("stdbuf -oL ibv_asyncwatch -d weft0");
    let watching = watching.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watching = watching.spawn().expect("it starts");
    // It says what it waits for once the device is open.
    let mut said = BufReader::new(watching.stdout.take().expect("it is piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it is text");
    assert!(line.contains("weft0"), "{line}");
    drop(node.server);
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("it is text");
    assert!(rest.contains("IBV_EVENT_DEVICE_FATAL"), "{rest}");
    watching.wait().expect("it ends");
}

/// The names and versions that NCCL asks the dynamic linker for.
#[test]
fn every_name_is_there_with_the_version_that_programs_ask_for() {
    const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    int missing = 0;
    for (int at = 1; at + 1 < count; at += 2)
        if (!dlvsym(library, words[at], words[at + 1])) { puts(words[at]); missing++; }
    return missing;
}"#;
    const NAMES: [(&str, &str); 12] = [
        (
            "IBVERBS_1.1",
            "ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_open_device ibv_close_device \
             ibv_get_async_event ibv_ack_async_event ibv_query_device ibv_query_port ibv_query_gid ibv_query_qp \
             ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_dereg_mr ibv_create_cq ibv_destroy_cq ibv_create_qp \
             ibv_modify_qp ibv_destroy_qp ibv_fork_init ibv_event_type_str",
        ),
        (
            "IBVERBS_1.0",
            "ibv_create_comp_channel ibv_destroy_comp_channel",
        ),
        ("IBVERBS_1.5", "ibv_get_pkey_index"),
        ("IBVERBS_1.6", "ibv_qp_to_qp_ex"),
        ("IBVERBS_1.7", "ibv_reg_mr_iova"),
        ("IBVERBS_1.8", "ibv_reg_mr_iova2"),
        ("IBVERBS_1.9", "ibv_get_device_index"),
        ("IBVERBS_1.10", "ibv_query_ece ibv_set_ece"),
        ("IBVERBS_1.11", "_ibv_query_gid_ex _ibv_query_gid_table"),
        ("IBVERBS_1.12", "ibv_reg_dmabuf_mr"),
        ("IBVERBS_1.13", "ibv_is_fork_initialized"),
        ("IBVERBS_1.14", "ibv_query_qp_data_in_order"),
    ];
    let node = Node::new();
    let source = node.directory.path().join("names.c");
    let names = node.directory.path().join("names");
    fs::write(&source, SOURCE).expect("it is ours");
    let built = Command::new("cc")
        .arg("-o")
        .args([&names, &source])
        .arg("-ldl")
        .status();
    assert!(built.expect("a C compiler").success());
    let mut line = names.display().to_string();
    for (version, names) in NAMES {
        for name in names.split_whitespace() {
            line += &format!(" {name} {version}");
        }
    }
    node.run(&line);
}
