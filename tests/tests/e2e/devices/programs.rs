//! Programs of perftest, rdma-core, UCX, libfabric, MPI and pyverbs, unmodified, in unprivileged pods of three nodes.

use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Devices, PORT, TEAM, claims};
use crate::test_cluster::report;

/// A ConfigMap: programs of Python that are no package's.
const FILES: &str = "programs";
/// Runs `MPI_EXCHANGE` with two ranks in each pod.
const MPI_LAUNCH: &str = include_str!("../../../mpi/launch.py");
/// Compares every byte and every sum.
const MPI_EXCHANGE: &str = include_str!("../../../mpi/exchange.py");
/// Runs rdma-core's own tests, and prints the name of each that passes.
const PYVERBS: &str = include_str!("../../../pyverbs/passed.py");
/// What has to pass, a name a line.
const PYVERBS_WANTED: &str = include_str!("../../../pyverbs/wanted.txt");

/// By reliable and unreliable connections and by datagrams, of which each compares or counts what comes.
const EXAMPLES: [&str; 4] = [
    "ibv_rc_pingpong -g 0 -c -e -n 200",
    "ibv_uc_pingpong -g 0 -c -n 200",
    "ibv_ud_pingpong -g 0 -c -e -n 200",
    "ibv_srq_pingpong -g 0 -c -n 200",
];
/// `-R` connects by librdmacm, which perftest does not do for unreliable connections.
const PERFTEST: [&str; 11] = [
    "ib_write_bw -a -n 20",
    "ib_write_bw -c UC -s 65536 -n 200",
    "ib_send_bw -c UD -s 1024 -n 200",
    "ib_read_bw -s 65536 -n 200",
    "ib_write_lat -n 200",
    "ib_atomic_lat -A FETCH_AND_ADD -n 200",
    "ib_write_bw -R -s 65536 -n 200",
    "ib_read_lat -R -n 200",
    "ib_send_bw -R -s 4096 -n 200",
    "ib_send_lat -R -c UD -s 64 -n 200",
    "ib_atomic_lat -R -A CMP_AND_SWAP -n 200",
];
/// Where they listen by librdmacm.
const RDMACM_PORT: u16 = 7_174;
/// The one that waits, the one that connects, and what the latter says. `-V` compares every byte.
const RDMACM: [[&str; 3]; 3] = [
    [
        "rping -s -v -V -C 10",
        "rping -c -v -V -C 10 -a",
        "ping data: rdma-ping-9: ",
    ],
    [
        "ucmatose -c 4 -p 7174",
        "ucmatose -c 4 -p 7174 -s",
        "return status 0",
    ],
    ["udaddy", "udaddy -s", "return status 0"],
];
const UCX_PORT: u16 = 13_337;
const UCX: [&str; 4] = ["tag_lat", "tag_bw -s 65536", "ucp_get -s 4096", "ucp_add"];
const LIBFABRIC_PORT: u16 = 47_592;
const LIBFABRIC: [&str; 2] = ["verbs -e msg", "verbs;ofi_rxm -e rdm"];
const MPI_PORT: u16 = 18_700;
/// What programs fail with by faults of their own, on a busy machine only: the words that one says, and what has happened. Then
/// they are started again.
const OWN_FAULTS: [(&[&str], &str); 3] = [
    (
        &["Correlation coefficient r^2: ", "Can't produce a report"],
        "perftest has measured the rate of the processor's clock while other programs ran",
    ),
    // ofiwg/libfabric#11828. All that was to be exchanged is by then, and compared.
    (
        &["1m ", "terminated with signal 11"],
        "libfabric has posted a receive to an endpoint that it was closing",
    ),
    // openucx/ucx#11107, before 1.20.
    (
        &["must be smaller than current_psn"],
        "UCX has got a late acknowledgement of the endpoint that had the number before",
    ),
];
const ATTEMPTS: u32 = 3;

/// A pod of the image with all programs. Their temporary files need a place, and UCX takes the device and nothing else.
fn with_programs(mut pod: Value) -> Value {
    let spec = &mut pod["spec"];
    spec["volumes"] = json!([
        {"name": "tmp", "emptyDir": {}},
        {"name": "programs", "configMap": {"name": FILES}},
    ]);
    let container = &mut spec["containers"][0];
    container["image"] = json!("weft.dev/programs:1");
    container["volumeMounts"] = json!([
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "programs", "mountPath": "/programs"},
    ]);
    container["env"] = json!([
        {"name": "UCX_TLS", "value": "rc_verbs,ud_verbs:aux"},
        {"name": "UCX_NET_DEVICES", "value": "weft0:1"},
    ]);
    pod
}

pub(super) fn unprivileged_pods_run_perftest_ucx_mpi_and_pyverbs(devices: &Devices) {
    run_all(devices, ["p0", "p1", "p2"], |name, node| {
        super::pod(TEAM, name, node, 1)
    });
}

pub(super) fn pods_with_claims_run_perftest_ucx_mpi_and_pyverbs(devices: &Devices) {
    devices.cluster.apply(&claims::template());
    run_all(devices, ["q0", "q1", "q2"], claims::pod);
}

/// In pods with these names, one for each node.
fn run_all(devices: &Devices, names: [&str; 3], pod: fn(&str, &str) -> Value) {
    let cluster = &devices.cluster;
    cluster.apply(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": FILES, "namespace": TEAM},
        "data": {
            "launch.py": MPI_LAUNCH,
            "exchange.py": MPI_EXCHANGE,
            "passed.py": PYVERBS,
        },
    }));
    for (name, node) in names.iter().zip(["node0", "node1", "node2"]) {
        cluster.apply(&with_programs(pod(name, node)));
    }
    for name in names {
        devices.wait_for(TEAM, name);
    }
    let [a, b, c] = names.map(|name| (TEAM, name));
    for pod in [a, b, c] {
        has_little(devices, pod);
    }
    for part in [perftest, rdmacm, ucx, libfabric] {
        part(devices, a, b);
    }
    mpi(devices, a, [b, c]);
    pyverbs(devices, c);
    for name in names {
        devices.delete(TEAM, name);
    }
}

/// What the programs run with: an ordinary user, no capability, the filter of system calls, a root that cannot be written to.
fn has_little(devices: &Devices, pod: (&str, &str)) {
    let status = devices.run(pod, &["cat", "/proc/self/status"]);
    for line in [
        "Uid:\t1000\t1000\t",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let mounts = devices.run(pod, &["cat", "/proc/mounts"]);
    let root = mounts
        .lines()
        .find(|line| line.split(' ').nth(1) == Some("/"));
    let options = root.and_then(|line| line.split(' ').nth(3));
    assert!(options.is_some_and(|it| it.starts_with("ro,")), "{mounts}");
}

/// Starts programs, and again after one of [`OWN_FAULTS`].
fn start(start: impl Fn() -> Result<String, String>) -> Result<String, String> {
    let mut ended = start();
    for _ in 1..ATTEMPTS {
        let Err(said) = &ended else { break };
        let is_said = |words: &[&str]| words.iter().all(|&word| said.contains(word));
        let fault = OWN_FAULTS.iter().find(|(words, _)| is_said(words));
        let Some((_, fault)) = fault else { break };
        println!("{fault}; the programs are started again");
        ended = start();
    }
    ended
}

/// The same program in two pods, or two that belong together. What the one that connects says.
fn pair(devices: &Devices, port: u16, pods: [(&str, &str); 2], lines: [&str; 2]) -> String {
    let [waits, connects] = lines.map(|line| line.split(' ').collect::<Vec<&str>>());
    let told = start(|| devices.pair_at(port, (pods[0], &waits), (pods[1], &connects)));
    told.unwrap_or_else(|told| devices.cluster.fail(&format!("{lines:?}: {told}")))
}

fn perftest(devices: &Devices, a: (&str, &str), b: (&str, &str)) {
    let begun = Instant::now();
    for line in EXAMPLES {
        let told = pair(devices, PORT, [a, b], [line; 2]);
        assert!(told.contains("200 iters in "), "{line}: {told}");
    }
    for line in PERFTEST {
        let told = pair(devices, PORT, [a, b], [line; 2]);
        assert!(told.contains("#bytes"), "{line}: {told}");
    }
    report("programs of rdma-core and perftest in pods", begun);
}

fn rdmacm(devices: &Devices, a: (&str, &str), b: (&str, &str)) {
    let begun = Instant::now();
    for [waits, connects, says] in RDMACM {
        let told = pair(devices, RDMACM_PORT, [a, b], [waits, connects]);
        assert!(told.contains(says), "{connects}: {told}");
    }
    report("programs of librdmacm in pods", begun);
}

fn ucx(devices: &Devices, a: (&str, &str), b: (&str, &str)) {
    let begun = Instant::now();
    // It lists a transport, and then the device that it is of.
    let listed = devices.run(a, &["ucx_info", "-d"]);
    let listed = listed.split_whitespace().collect::<Vec<&str>>().join(" ");
    for transport in ["rc_verbs", "ud_verbs"] {
        let entry = format!("# Transport: {transport} # Device: weft0:1 ");
        assert!(listed.contains(&entry), "{transport}: {listed}");
    }
    for test in UCX {
        let line = format!("ucx_perftest -n 500 -t {test}");
        let told = pair(devices, UCX_PORT, [a, b], [&line; 2]);
        assert!(told.contains("Final: "), "{line}: {told}");
    }
    report("programs of UCX in pods", begun);
}

/// `-c` compares every byte.
fn libfabric(devices: &Devices, a: (&str, &str), b: (&str, &str)) {
    let begun = Instant::now();
    for provider in LIBFABRIC {
        let line = format!("fi_pingpong -c -I 50 -p {provider}");
        let told = pair(devices, LIBFABRIC_PORT, [a, b], [&line; 2]);
        assert!(told.contains("1m "), "{line}: {told}");
    }
    report("programs of libfabric in pods", begun);
}

/// Six ranks, two in each pod.
fn mpi(devices: &Devices, starts: (&str, &str), waits: [(&str, &str); 2]) {
    let begun = Instant::now();
    let ended = start(|| run_ranks(devices, starts, waits));
    let told = ended.unwrap_or_else(|said| devices.cluster.fail(&said));
    assert!(told.contains("6 ranks: each two exchanged"), "{told}");
    report("MPI in three pods", begun);
}

/// What the ranks say, or what they say that fail.
fn run_ranks(
    devices: &Devices,
    starts: (&str, &str),
    waits: [(&str, &str); 2],
) -> Result<String, String> {
    let launch = ["timeout", "60", "python3", "-B", "/programs/launch.py"];
    let waiting = waits.map(|pod| {
        let mut command = devices.command(pod, &launch);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        devices.await_listener(&mut child, pod, MPI_PORT);
        child
    });
    let addresses = waits.map(|(namespace, name)| devices.address(namespace, name));
    let addresses = addresses.each_ref().map(String::as_str);
    let told = devices.try_run(starts, &[&launch[..], &addresses].concat());
    for child in waiting {
        let ended = child.wait_with_output().unwrap();
        assert!(told.is_err() || ended.status.success(), "{ended:?}");
    }
    told
}

fn pyverbs(devices: &Devices, pod: (&str, &str)) {
    let begun = Instant::now();
    let line = "cd /usr/share/doc/rdma-core && python3 -B /programs/passed.py --dev weft0 --gid 0";
    let told = devices.run(pod, &["timeout", "120", "sh", "-c", line]);
    let failed = PYVERBS_WANTED.lines().filter(|name| {
        let passed = format!("passed {name}");
        !told.lines().any(|line| line == passed)
    });
    let failed: Vec<&str> = failed.collect();
    assert!(failed.is_empty(), "{failed:?} did not pass: {told}");
    report("rdma-core's own tests in a pod", begun);
}
