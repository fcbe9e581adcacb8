//! Virtual devices of two nodes of a small fabric, as a user makes and uses them: `weft play --device`, `weft device`, and
//! verbs programs of Debian, unmodified.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Ipv6Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use weft_cli::device::Record;
use weft_proto::engine::{self, v1::CreateDeviceRequest};
use weft_tests::{
    container::{SECCOMP_PROFILE, in_container},
    program, stdout_of,
};

/// A program that hangs is ended after so many seconds. Nothing here takes a tenth of it on an idle machine.
const PATIENCE: &str = "60";

/// Where perftest and rdma-core's examples listen.
const PORT: u16 = 18_515;
/// Where `ucx_perftest` does.
const UCX_PORT: u16 = 13_337;
/// Where `fi_pingpong` does.
const FABRIC_PORT: u16 = 47_592;
/// Where `NIXL_WRITE` does.
const NIXL_PORT: u16 = 18_600;
/// A write by NIXL, the programs of both nodes.
const NIXL_WRITE: &str = include_str!("../nixl/write.py");
/// Where `MPI_LAUNCH` does.
const MPI_PORT: u16 = 18_700;
/// Runs `MPI_EXCHANGE` with ranks at both nodes.
const MPI_LAUNCH: &str = include_str!("../mpi/launch.py");
/// What each rank runs.
const MPI_EXCHANGE: &str = include_str!("../mpi/exchange.py");
/// Where the program with many devices does.
const MANY_PORT: u16 = 18_800;
/// Writes and reads by a hundred devices.
const MANY: &str = include_str!("../pyverbs/many.py");
/// UCX over the device, and over nothing else.
const UCX: &str = "env UCX_TLS=rc_verbs,ud_verbs:aux UCX_NET_DEVICES=weft0:1";

/// One fabric at a time: two share the cores too finely for programs that give up.
static ONE: Mutex<()> = Mutex::new(());

/// A fabric that is left running. Dropping it ends it.
struct Fabric {
    _alone: MutexGuard<'static, ()>,
    pid: i32,
    /// What enters its namespaces, for `ip netns exec` and a namespace.
    enter: String,
    /// Of node 0, on the management network: programs' own connections have one path each, which may be by any spine.
    address: String,
}

impl Fabric {
    fn start(arguments: &str) -> Self {
        // A test that failed has ended its fabric.
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        for needed in [
            "weft-agent",
            "weft-engine",
            "libweft_ibverbs.so",
            "libweft_rdmacm.so",
        ] {
            program(needed);
        }
        let output = Command::new(program("weft"))
            .arg("play")
            .args(words(arguments))
            .output();
        let output = output.expect("weft starts");
        stdout_of(arguments, &output);
        let said = String::from_utf8_lossy(&output.stderr);
        let line = |begin: &str| {
            let mut lines = said.lines().map(str::trim);
            lines
                .find_map(|line| line.strip_prefix(begin))
                .unwrap_or_else(|| panic!("{begin}: {said}"))
                .to_owned()
        };
        let pid = line("kill ").parse().expect("a pid");
        let enter = line("nsenter ").replace("node1 bash", "");
        let address = line("node0: control ");
        let address = address.split(':').next().expect("an address").to_owned();
        Self {
            _alone: alone,
            pid,
            enter,
            address,
        }
    }

    fn weft(&self, line: &str) -> Command {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE).arg(program("weft")).args([
            "device",
            "--play",
            &self.pid.to_string(),
        ]);
        command.args(words(line));
        command
    }

    /// What `weft device` prints.
    fn device(&self, line: &str) -> String {
        stdout_of(line, &self.weft(line).output().expect("weft starts"))
    }

    /// A program at both nodes: that of node 0 waits, the other connects to it. What the latter prints.
    fn pair(&self, line: &str, meanwhile: impl FnOnce()) -> String {
        self.pair_at(PORT, line, meanwhile)
    }

    /// The same with programs that listen at another port.
    fn pair_at(&self, port: u16, line: &str, meanwhile: impl FnOnce()) -> String {
        let waiting = self.spawn(&format!("run node0 -- {line}"));
        self.await_listener(port, line);
        let client = self.spawn(&format!("run node1 -- {line} {}", self.address));
        meanwhile();
        let client = client.wait_with_output().expect("it ends");
        let waited = waiting.wait_with_output().expect("it ends");
        let told = stdout_of(line, &client);
        let waited = stdout_of(line, &waited);
        // So a ping-pong says it; it ends as if nothing were wrong.
        assert!(!waited.contains("invalid data"), "{line}: {waited}");
        told
    }

    /// Waits until a program of node 0 listens at this port, without connecting: they take one connection.
    fn await_listener(&self, port: u16, line: &str) {
        let port = format!(":{port:04X} ");
        let listens = |table: String| {
            table
                .lines()
                .any(|line| line.contains(&port) && line.contains(" 0A "))
        };
        until(line, || {
            listens(self.device("run node0 -- cat /proc/net/tcp /proc/net/tcp6"))
        });
    }

    fn spawn(&self, line: &str) -> Child {
        let mut command = self.weft(line);
        let spawned = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        spawned.expect("weft starts")
    }

    /// A file of the fabric, as it is seen from outside.
    fn outside(&self, path: &Path) -> PathBuf {
        let path = path.strip_prefix("/").expect("it begins at the root");
        Path::new("/proc")
            .join(self.pid.to_string())
            .join("root")
            .join(path)
    }

    /// Gives node 0 devices weft1, weft2 and so on beside weft0: another engine, which may have so many open, and another
    /// agent at node 1, which knows their GIDs.
    fn add_devices(&self, count: u16) {
        let file = self.outside(Path::new("/run/weft-play/devices.json"));
        let written = fs::read(&file).expect("it is there");
        let mut record: Record = serde_json::from_slice(&written).expect("it is a record");
        let [node0, node1] = ["node0", "node1"].map(|node| record.nodes[node].socket.clone());
        let node = record.nodes.get_mut("node0").expect("it has a device");
        let flag = node.engine.iter().position(|it| it == "--open-devices");
        node.engine[flag.expect("it has that flag") + 1] = (count + 1).to_string();
        fs::write(&file, serde_json::to_vec(&record).expect("it is text")).expect("it is ours");
        killed(process_of(self, "weft-engine", "/run/weft-devices/node0"));
        self.device("restart node0");
        self.device("create node0/weft0");

        let gids = || (1..=count).map(|last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let mut engine = engine::client(&self.outside(&node0));
            for (number, gid) in (1..).zip(gids()) {
                let request = CreateDeviceRequest {
                    name: format!("weft{number}"),
                    gid: gid.octets().to_vec(),
                    ..CreateDeviceRequest::default()
                };
                engine.create_device(request).await.expect("it is made");
            }
        });

        // Devices come last in it.
        let file = self.outside(&node1.with_file_name("agent.yaml"));
        let mut told = fs::read_to_string(&file).expect("it is there");
        let of_node0 = told.lines().find(|line| line.contains("node: node0,"));
        let (_, of_node0) = of_node0
            .and_then(|line| line.split_once(", "))
            .expect("it knows the other node");
        let peers: String = gids()
            .map(|gid| format!("  - {{gid: \"{gid}\", {of_node0}\n"))
            .collect();
        told += &peers;
        fs::write(&file, told).expect("it is ours");
        self.device("restart node1 agent");
    }

    /// A spine drops what it should pass on; its links stay up.
    fn fail_spine(&self, spine: usize) {
        self.at(&format!("spine{spine} sysctl -q -w net.ipv4.ip_forward=0"));
    }

    /// Bytes that each spine has received.
    fn spine_bytes(&self) -> [u64; 4] {
        std::array::from_fn(|spine| {
            let table = self.at(&format!("spine{spine} cat /proc/net/dev"));
            let rows = table.lines().filter_map(|line| line.split_once(':'));
            let received = rows.map(|(_, row)| row.split_whitespace().next().unwrap_or_default());
            received
                .map(|bytes| bytes.parse::<u64>().unwrap_or_default())
                .sum()
        })
    }

    /// Runs a program in a namespace of the fabric.
    fn at(&self, line: &str) -> String {
        let line = format!("{}{line}", self.enter);
        let output = Command::new("nsenter").args(words(&line)).output();
        stdout_of(&line, &output.expect("nsenter starts"))
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // It is the fabric's own process, which ends everything in it.
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGTERM);
    }
}

/// Tries until it holds. A program that has died would never do what is waited for.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{what}: it never comes"
        );
    }
}

/// A directory with these files. A program of a node may not look into the tests' own one.
fn directory_of(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        fs::write(directory.path().join(name), text).expect("it is ours");
    }
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("it is ours");
    directory
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace()
}

#[test]
fn programs_use_the_devices_of_two_nodes_over_all_spines_and_go_on_without_one() {
    let profile = directory_of(&[("default.py", SECCOMP_PROFILE)]);
    let fabric = Fabric::start("--nodes 2 --size 1MiB --device 1,0 --keep --quiet");
    let list = fabric.device("list");
    assert!(
        list.contains("node0/weft0") && list.contains("node1/weft0"),
        "{list}"
    );
    assert!(
        fabric
            .device("show node1/weft0")
            .contains("Open:         0 times")
    );
    assert!(
        fabric
            .device("run node1 -- ibv_devinfo")
            .contains("PORT_ACTIVE (4)")
    );
    let user = fabric.device("run node1 -- cat /proc/self/status");
    assert!(
        user.contains("CapEff:\t0000000000000000") && user.contains("NoNewPrivs:\t1"),
        "{user}"
    );
    let found = fabric.device("run node1 -- weft device doctor");
    assert!(found.contains("/run/weft-devices/node1/weft0"), "{found}");
    // Newer UCX looks there for a route to its peer.
    let interface = "/sys/class/infiniband/weft0/ports/1/gid_attrs/ndevs/0";
    let interface = fabric.device(&format!("run node1 -- cat {interface}"));
    assert_eq!(interface, "data0\n");
    // `-c` looks at a byte of each page that has come last.
    let told = fabric.pair("ibv_rc_pingpong -p 18515 -g 0 -c -n 200", || {});
    assert!(told.contains("200 iters in "), "{told}");
    let told = fabric.pair("ibv_ud_pingpong -p 18515 -g 0 -c -n 200", || {});
    assert!(told.contains("200 iters in "), "{told}");
    let before = fabric.spine_bytes();
    fabric.pair("ib_write_bw -x 0 -s 65536 -n 500", || {});
    let after = fabric.spine_bytes();
    for (spine, (after, before)) in after.into_iter().zip(before).enumerate() {
        // 32 MB went over four.
        assert!(
            after - before > 1 << 20,
            "spine{spine}: {before} to {after}"
        );
    }
    for line in [
        "ib_send_bw -x 0 -s 4096 -n 500",
        "ib_write_bw -R -s 65536 -n 200",
        "ib_read_bw -x 0 -s 65536 -n 200",
        "ib_atomic_lat -x 0 -A FETCH_AND_ADD -n 200",
        "ib_write_lat -x 0 -n 200",
    ] {
        let told = fabric.pair(line, || {});
        assert!(told.contains("#bytes"), "{line}: {told}");
    }
    // `-a`: of each size that is a power of two, up to 8 MiB.
    let told = fabric.pair("ib_write_bw -x 0 -a -n 20", || {});
    for size in (1..=23).map(|bits| (1_u32 << bits).to_string()) {
        let is_row = |line: &str| words(line).next() == Some(&*size);
        assert!(told.lines().any(is_row), "{size} bytes: {told}");
    }
    // UCX makes its connections by datagrams, and then uses RC with shared receive queues.
    for test in ["tag_lat", "tag_bw -s 65536", "ucp_get -s 4096", "ucp_add"] {
        let line = format!("{UCX} ucx_perftest -n 500 -t {test}");
        let told = fabric.pair_at(UCX_PORT, &line, || {});
        assert!(told.contains("Final: "), "{line}: {told}");
    }
    // In containers, as uid 1000 as well.
    for (port, line) in [
        (PORT, "ibv_rc_pingpong -g 0 -c -n 200"),
        (PORT, "ib_write_bw -R -s 65536 -n 200"),
        (UCX_PORT, &*format!("{UCX} ucx_perftest -n 500 -t tag_lat")),
        (FABRIC_PORT, "fi_pingpong -c -I 50 -p verbs -e msg"),
    ] {
        let line = in_container(&profile.path().join("default.py"), line);
        fabric.pair_at(port, &line, || {});
    }
    // It lists a transport, and then the device that it is of.
    let listed = fabric.device("run node0 -- ucx_info -d");
    let listed = words(&listed).collect::<Vec<&str>>().join(" ");
    for transport in ["rc_verbs", "ud_verbs"] {
        let entry = format!("# Transport: {transport} # Device: weft0:1 ");
        assert!(listed.contains(&entry), "{transport}: {listed}");
    }
    // libfabric connects by librdmacm; `-c` compares every byte.
    for provider in ["verbs -e msg", "verbs;ofi_rxm -e rdm"] {
        let line = format!("fi_pingpong -c -I 50 -p {provider}");
        let told = fabric.pair_at(FABRIC_PORT, &line, || {});
        assert!(told.contains("1m "), "{line}: {told}");
    }
    let told = fabric.pair("ib_write_bw -x 0 -s 65536 -D 3", || {
        let open = |node: &str| {
            fabric
                .device(&format!("show {node}/weft0"))
                .contains("Queue pairs:  1")
        };
        until("queue pairs", || open("node0") && open("node1"));
        fabric.fail_spine(1);
    });
    let row = told
        .lines()
        .find(|line| line.trim_start().starts_with("65536"));
    let writes = row.and_then(|row| row.split_whitespace().nth(1)?.parse::<u64>().ok());
    // One that stalls when the spine fails ends with an error; the path's share comes again by the others.
    assert!(writes.is_some_and(|writes| writes > 200), "{told}");
    assert!(
        fabric
            .device("destroy node0/weft0")
            .contains("node0/weft0 destroyed")
    );
    let list = fabric.device("list");
    assert!(
        !list.contains("node0/weft0") && list.contains("node1/weft0"),
        "{list}"
    );
    let gone = fabric
        .weft("show node0/weft0")
        .output()
        .expect("weft starts");
    let said = String::from_utf8_lossy(&gone.stderr);
    assert!(said.contains("there is no device weft0 at node0"), "{said}");
    assert!(!fabric.device("run node0 -- ibv_devices").contains("weft0"));
}

#[test]
fn nixl_from_its_wheel_writes_over_the_device() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/nixl.sh");
    let nixl = Command::new(script).output().expect("it starts");
    let nixl = stdout_of("hack/nixl.sh", &nixl);
    let programs = directory_of(&[("write.py", NIXL_WRITE)]);
    let fabric = Fabric::start("--nodes 2 --size 1MiB --device 0,1 --keep --quiet");
    let line = format!(
        "{UCX} PYTHONPATH={}/nixl_cu12 python3 -B {}/write.py",
        nixl.trim(),
        programs.path().display()
    );
    // The other node's compares every byte.
    let told = fabric.pair_at(NIXL_PORT, &line, || {});
    assert!(told.contains("8388608 bytes are written"), "{told}");
}

#[test]
fn mpi_programs_of_two_nodes_exchange_and_reduce_over_the_device() {
    let programs = directory_of(&[("launch.py", MPI_LAUNCH), ("exchange.py", MPI_EXCHANGE)]);
    let fabric = Fabric::start("--nodes 2 --size 1MiB --device 0,1 --keep --quiet");
    let line = format!(
        "{UCX} /usr/bin/python3 -B {}/launch.py",
        programs.path().display()
    );
    let before: u64 = fabric.spine_bytes().iter().sum();
    // Each rank compares every byte and every sum.
    let told = fabric.pair_at(MPI_PORT, &line, || {});
    assert!(told.contains("4 ranks: each two exchanged"), "{told}");
    let passed = fabric.spine_bytes().iter().sum::<u64>() - before;
    // 42 MB of the exchange alone are for ranks of the other node.
    assert!(passed > 40_000_000, "{passed} bytes over the spines");
}

/// The process of the fabric whose command line has these words.
fn process_of(fabric: &Fabric, program: &str, word: &str) -> Pid {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = namespace(&fabric.pid.to_string());
    let is_it = |pid: &String| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains(program) && line.contains(word) && namespace(pid) == own
    };
    let processes = fs::read_dir("/proc").expect("it is mounted").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let pid = pids.find(is_it).expect("it runs");
    Pid::from_raw(pid.parse().expect("a pid"))
}

/// Kills a process, and waits until it is gone.
fn killed(pid: Pid) {
    kill(pid, Signal::SIGKILL).expect("it is there");
    let command_line = format!("/proc/{pid}/cmdline");
    // One that nobody has waited for has none.
    until("it is gone", || {
        fs::read(&command_line).is_ok_and(|it| it.is_empty()) || !Path::new(&command_line).exists()
    });
}

#[test]
fn a_hundred_devices_go_on_when_the_agent_of_their_node_is_killed() {
    const COUNT: u16 = 100;

    let programs = directory_of(&[("many.py", MANY)]);
    let fabric = Fabric::start("--nodes 2 --size 1MiB --device 0,1 --keep --quiet");
    fabric.add_devices(COUNT);
    let line = format!("/usr/bin/python3 -B {}/many.py", programs.path().display());
    let mut writing = fabric.weft(&format!("run node0 -- {line}"));
    writing.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut writing = writing.stderr(Stdio::piped()).spawn().expect("it starts");
    fabric.await_listener(MANY_PORT, &line);
    let other = fabric.spawn(&format!("run node1 -- {line} {}", fabric.address));
    let mut asks = writing.stdin.take().expect("it is piped");
    let mut answers = BufReader::new(writing.stdout.take().expect("it is piped")).lines();
    let mut errors = writing.stderr.take().expect("it is piped");
    // All of them once more, from now on.
    let mut go_on = |when: &str| {
        let asked = writeln!(asks, "go on");
        let answer = answers.next().and_then(Result::ok);
        let wanted = format!("{COUNT} devices have written and read");
        if asked.is_err() || answer != Some(wanted) {
            let mut said = String::new();
            let _ = errors.read_to_string(&mut said);
            panic!("{when}: {said}");
        }
    };
    go_on("at first");
    let list = fabric.device("list");
    let open = list
        .lines()
        .filter(|line| line.starts_with("node0/") && words(line).nth(2) == Some("1"));
    assert_eq!(open.count(), usize::from(COUNT), "{list}");

    let agent = process_of(&fabric, "weft-agent", "/node0/");
    let agents_line = fs::read_to_string(format!("/proc/{agent}/cmdline")).expect("it runs");
    killed(agent);
    for _ in 0..5 {
        go_on("without the agent");
    }
    let mut another = Command::new("nsenter");
    another.args(words(&fabric.enter)).args(["node0", "setsid"]);
    another.args(agents_line.trim_end_matches('\0').split('\0'));
    another.stdin(Stdio::null()).stdout(Stdio::null());
    let mut another = another.stderr(Stdio::null()).spawn().expect("it starts");
    let told = fabric.pair("ibv_rc_pingpong -d weft0 -p 18515 -g 0 -c -n 200", || {});
    assert!(told.contains("200 iters in "), "{told}");
    go_on("with another agent");
    drop(asks);
    let mut said = String::new();
    errors.read_to_string(&mut said).expect("it is text");
    let status = writing.wait().expect("it ends");
    assert!(status.success(), "{status}: {said}");
    stdout_of("the other", &other.wait_with_output().expect("it ends"));
    drop(fabric);
    another.wait().expect("it ends with the fabric");
}

#[test]
fn a_node_whose_engine_is_killed_gets_another_one_and_its_device_again() {
    let fabric = Fabric::start("--nodes 2 --size 1MiB --device 0,1 --keep --quiet");
    let watching = fabric.spawn("run node1 -- ibv_asyncwatch -d weft0");
    until("the device is open", || {
        fabric
            .device("show node1/weft0")
            .contains("Open:         1 times")
    });
    let engine = process_of(&fabric, "weft-engine", "/run/weft-devices/node1");
    kill(engine, Signal::SIGKILL).expect("it is there");
    let watched = watching.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&watched.stdout);
    assert!(told.contains("IBV_EVENT_DEVICE_FATAL"), "{told}");

    let list = fabric.weft("list").output().expect("weft starts");
    let said = String::from_utf8_lossy(&list.stderr);
    assert!(said.contains("`weft device restart node1`"), "{said}");
    fabric.device("restart node1");
    assert!(!fabric.device("list").contains("node1/weft0"));
    fabric.device("create node1/weft0");
    let line = "ibv_rc_pingpong -p 18515 -g 0 -c -n 200";
    assert!(fabric.pair(line, || {}).contains("200 iters"));
}

#[test]
fn programs_go_on_while_engines_and_agents_are_restarted_ten_times_each() {
    let fabric = Fabric::start("--nodes 2 --size 1MiB --device 0,1 --keep --quiet");
    let is_open = |node: &str| {
        let shown = fabric.device(&format!("show {node}/weft0"));
        shown.contains("Queue pairs:  1\n")
    };
    let are_open = || is_open("node0") && is_open("node1");
    let restart = |which: &str, round: usize| {
        let told = fabric.device(&format!("restart node{} {which}", round % 2));
        assert!(told.contains(&format!("another {which} serves")), "{told}");
        println!("{told}");
    };
    let told = fabric.pair("ib_write_bw -x 0 -s 65536 -D 25", || {
        until("queue pairs", are_open);
        for round in 0..20 {
            restart("engine", round);
            restart("agent", round / 2);
        }
        assert!(are_open(), "the program has ended before the restarts did");
    });
    let row = told
        .lines()
        .find(|line| line.trim_start().starts_with("65536"));
    assert!(row.is_some(), "{told}");
    println!("{told}");
    // `-c` looks at a byte of each page that has come last.
    let told = fabric.pair("ibv_rc_pingpong -p 18515 -g 0 -c -n 30000", || {
        until("queue pairs", are_open);
        (0..4).for_each(|round| restart("engine", round));
        assert!(are_open(), "the program has ended before the restarts did");
    });
    assert!(told.contains("30000 iters in "), "{told}");
}
