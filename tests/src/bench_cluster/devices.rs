//! What virtual devices of pods cost: the kubelet with many of them, and a pod that has one.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use weft_cluster::Cluster;
use weft_device_plugin::kubelet::{channel, device_plugin as proto};

use super::crowd::{client, late, parse, runtime};
use super::process::Process;
use super::{ClusterBenchError, FABRIC, MIB, row};
use crate::report::{Row, median};

/// Of the chart. The libraries are in a directory of each node: /opt is the machine's.
pub(super) const VALUES: &[&str] = &[
    "--set",
    "devices.enabled=true",
    "--set",
    "devices.libraryPath=/var/lib/weft-devices",
];
const NODE: &str = "node0";
const OTHER_NODE: &str = "node1";
/// What a program of a node finds Weft's libraries and the devices of its pods by.
const ON_NODE: [&str; 2] = [
    "LD_LIBRARY_PATH=/var/lib/weft-devices/lib",
    "WEFT_DEVICES=/run/weft/devices",
];
const RESOURCE: &str = "weft.dev/vdev";
const PLUGINS: &str = "/var/lib/kubelet/device-plugins";
/// What the kubelet knows of devices, written anew with each list of them.
const CHECKPOINT: &str = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint";
/// Devices of a node.
const COUNTS: [u32; 3] = [16, 1_024, 65_536];
const CALLS: u32 = 500;
const PODS: usize = 50;
/// Of a pair of programs.
const ROUNDS: usize = 7;
/// Writes of 1 MiB, and what the row of the table begins with that says how fast they were.
const WRITES: [&str; 7] = [
    "timeout",
    "60",
    "ib_write_bw",
    "-s",
    "1048576",
    "-n",
    "2000",
];
const WRITES_ROW: &str = "1048576";
/// Of the bandwidth of the same programs on the nodes.
const POD_SHARE: f64 = 0.95;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(120);

/// All rows, on a cluster in which the chart is installed with [`VALUES`] and the fabric is Ready.
pub(super) fn measure(
    cluster: &Cluster,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Row>, ClusterBenchError> {
    let runtime = runtime()?;
    let client = runtime.block_on(client(cluster))?;
    let mut rows = Vec::new();
    let mut slowest = Vec::new();
    for count in COUNTS {
        let devices = json!({"spec": {"devices": {"perNode": count, "open": 8}}}).to_string();
        let patch = [
            "patch",
            "rdmafabric",
            FABRIC,
            "--type=merge",
            "--patch",
            &devices,
        ];
        cluster.kubectl(&patch)?;
        until(&format!("{count} devices of {NODE}"), || {
            Ok((runtime.block_on(allocatable(&client))? == count.to_string()).then_some(()))
        })?;
        say(&format!("{count} devices: calling Allocate"));
        slowest.push(allocate(cluster, &runtime, count)?);
    }
    for (count, slowest) in COUNTS.iter().zip(&slowest) {
        let work = format!("{count} devices of a node: Allocate of one, 99 of 100");
        rows.push(row(&format!("allocate-{count}"), work, "ms", *slowest, 5.0));
    }
    let most = slowest.iter().copied().fold(0.0, f64::max);
    let least = slowest.iter().copied().reduce(f64::min).unwrap_or(0.0);
    let work = format!("the slowest of {COUNTS:?} devices beside the fastest");
    rows.push(row("allocate-flat", work, "×", most / least, 2.0));
    say("restarting the device plugin");
    rows.extend(registered(cluster)?);
    say("starting pods");
    rows.push(runtime.block_on(pod_start(&client))?);
    say("writing from pod to pod");
    rows.push(pod_to_pod(cluster)?);
    Ok(rows)
}

fn looking(source: io::Error) -> ClusterBenchError {
    ClusterBenchError::system("looking at the device plugin")(source)
}

/// Looks until there is something.
fn until<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, ClusterBenchError>,
) -> Result<T, ClusterBenchError> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if begun.elapsed() > PATIENCE {
            return Err(late(what, begun));
        }
        std::thread::sleep(LOOK);
    }
}

/// What the node can give to pods, as it says itself.
async fn allocatable(client: &Client) -> Result<String, ClusterBenchError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(NODE).await;
    let node = node.map_err(ClusterBenchError::api("reading a node"))?;
    let allocatable = node.status.and_then(|status| status.allocatable);
    let devices = allocatable.and_then(|mut all| all.remove(RESOURCE));
    Ok(devices.map_or_else(String::new, |devices| devices.0))
}

/// The plugin of the node: its files are that one's.
fn plugin(cluster: &Cluster) -> io::Result<Option<Process>> {
    let found = Process::below(cluster.pid(), "weft-device-plugin", &format!("/{NODE}/"))?;
    Ok(found.first().copied())
}

/// The newest socket that it serves the kubelet at.
fn socket(plugin: Process) -> io::Result<Option<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(plugin.root().join(PLUGINS.trim_start_matches('/')))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("weft-") {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    Ok(found.into_iter().max().map(|(_, path)| path))
}

/// The 99th percentile of calls, as the kubelet makes them, milliseconds.
fn allocate(cluster: &Cluster, runtime: &Runtime, count: u32) -> Result<f64, ClusterBenchError> {
    let socket = until("a socket of the device plugin", || {
        let plugin = plugin(cluster).map_err(looking)?;
        plugin.map_or(Ok(None), socket).map_err(looking)
    })?;
    let _entered = runtime.enter();
    let mut plugin = proto::device_plugin_client::DevicePluginClient::new(channel(&socket));
    let mut took = Vec::new();
    for call in 0..CALLS {
        // All over the node's devices.
        let id = format!("vdev-{:05}", call * 7_919 % count);
        let request = proto::AllocateRequest {
            container_requests: vec![proto::ContainerAllocateRequest {
                devices_ids: vec![id],
            }],
        };
        let begun = Instant::now();
        let answer = runtime.block_on(plugin.allocate(request));
        answer.map_err(|status| looking(io::Error::other(status)))?;
        took.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_unstable_by(f64::total_cmp);
    Ok(took[took.len() * 99 / 100])
}

/// The plugin is killed: from the start of the next one until the kubelet knows all devices; and the memory of that one.
fn registered(cluster: &Cluster) -> Result<[Row; 2], ClusterBenchError> {
    let count = COUNTS[COUNTS.len() - 1];
    let last = format!("vdev-{:05}", count - 1);
    let before = plugin(cluster).map_err(looking)?;
    let before = before.ok_or_else(|| late("a device plugin", Instant::now()))?;
    before.kill().map_err(looking)?;
    let next = until("another device plugin", || {
        let now = plugin(cluster).map_err(looking)?;
        Ok(now.filter(|now| *now != before))
    })?;
    let (begun, begun_at) = (Instant::now(), SystemTime::now());
    let checkpoint = cluster.file(NODE, CHECKPOINT);
    until("all devices at the kubelet", || {
        let is_new = fs::metadata(&checkpoint)
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|modified| modified > begun_at);
        let knows = || fs::read_to_string(&checkpoint).is_ok_and(|text| text.contains(&last));
        Ok((is_new && knows()).then_some(()))
    })?;
    let took = begun.elapsed().as_secs_f64();
    let bytes = next.peak_bytes().map_err(looking)?;
    let work = format!("{count} devices: device plugin started until the kubelet knows them");
    Ok([
        row("devices-registered", work, "s", took, 3.0),
        row(
            "device-plugin-rss",
            format!("{count} devices: most resident memory of the device plugin"),
            "MiB",
            bytes as f64 / MIB,
            64.0,
        ),
    ])
}

/// The same pod with a device and without, in turns.
async fn pod_start(client: &Client) -> Result<Row, ClusterBenchError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for number in 0..PODS {
        without.push(started(&pods, &format!("without-{number}"), false).await?);
        with.push(started(&pods, &format!("with-{number}"), true).await?);
    }
    let (with, without) = (median(&mut with), median(&mut without));
    Ok(Row {
        id: "pod-start".to_owned(),
        work: format!("pod made until it runs, with a device, median of {PODS}"),
        unit: "ms".to_owned(),
        ours: with,
        peer: "the same pod without a device".to_owned(),
        theirs: Some(without),
        ratio: Some(with / without),
        must: "≤ its and 150 ms".to_owned(),
        holds: with <= without + 150.0,
    })
}

fn pod(name: &str, node: &str, with_device: bool) -> Value {
    let limits = match with_device {
        true => json!({RESOURCE: 1}),
        false => json!({}),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "verbs",
                "image": "weft.dev/verbs:1",
                "imagePullPolicy": "Never",
                "resources": {"limits": limits},
            }],
        },
    })
}

/// Milliseconds until it runs. Then it is deleted.
async fn started(pods: &Api<Pod>, name: &str, with: bool) -> Result<f64, ClusterBenchError> {
    let begun = Instant::now();
    let pod = parse(&pod(name, NODE, with))?;
    let made = pods.create(&PostParams::default(), &pod).await;
    made.map_err(ClusterBenchError::api("creating a pod"))?;
    let took = loop {
        let now = pods.get(name).await;
        let now = now.map_err(ClusterBenchError::api("reading a pod"))?;
        let phase = now.status.and_then(|status| status.phase);
        if phase.as_deref() == Some("Running") {
            break begun.elapsed();
        }
        if begun.elapsed() > PATIENCE {
            return Err(late(&format!("{name} runs"), begun));
        }
        tokio::time::sleep(LOOK).await;
    };
    let deleted = pods.delete(name, &DeleteParams::default()).await;
    deleted.map_err(ClusterBenchError::api("deleting a pod"))?;
    while pods
        .get_opt(name)
        .await
        .map_err(ClusterBenchError::api("reading a pod"))?
        .is_some()
    {
        tokio::time::sleep(LOOK).await;
    }
    Ok(took.as_secs_f64() * 1e3)
}

/// A pod with a device and its node.
struct End {
    pod: &'static str,
    node: &'static str,
    /// The device, as the node calls it.
    device: String,
    kubelet: Process,
}

impl End {
    fn make(
        cluster: &Cluster,
        pod_name: &'static str,
        node: &'static str,
    ) -> Result<Self, ClusterBenchError> {
        cluster.apply(&pod(pod_name, node, true).to_string())?;
        let name = format!("pod/{pod_name}");
        cluster.kubectl(&["wait", "--for=condition=Ready", &name, "--timeout=60s"])?;
        let mounts = cluster.kubectl(&["exec", pod_name, "--", "cat", "/proc/self/mountinfo"])?;
        // A row is: two numbers, the file system's device, what of it is mounted, and where.
        let mut rows = mounts.lines().map(|row| row.split(' ').skip(3));
        let device = rows.find_map(|mut row| {
            let (what, at) = (row.next()?, row.next()?);
            (at == "/dev/weft/weft0").then_some(what)
        });
        let device = device.and_then(|device| device.rsplit('/').next());
        let device = device.ok_or_else(|| looking(io::Error::other("the pod has no device")))?;
        let kubelet = format!("--hostname-override={node}");
        Ok(Self {
            pod: pod_name,
            node,
            device: device.to_owned(),
            kubelet: Process::one_below(cluster.pid(), "kubelet", &kubelet)?,
        })
    }

    fn in_pod(&self, cluster: &Cluster) -> Command {
        let mut command = cluster.command("kubectl");
        command.args(["exec", self.pod, "--"]).args(WRITES);
        command
    }

    /// The same program, by the same device, beside the kubelet.
    fn on_node(&self) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.kubelet.pid().to_string()])
            .args(["--net", "--mount", "--pid", "--", "env"])
            .args(ON_NODE)
            .args(WRITES)
            .args(["-d", &self.device]);
        command
    }
}

/// Megabytes per second of two programs; the last word of the one that connects is the address of the other.
fn bandwidth(
    mut waits: Command,
    mut connects: Command,
    address: &str,
) -> Result<f64, ClusterBenchError> {
    let running = |cause| ClusterBenchError::system("running ib_write_bw")(cause);
    let waiting = waits
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut waiting = waiting.map_err(running)?;
    connects.arg(address);
    let mut why = String::new();
    let told = until("a bandwidth of ib_write_bw", || {
        let output = connects.output();
        let output = output.map_err(running)?;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        why = String::from_utf8_lossy(&output.stderr).into_owned();
        // The other one may not listen yet.
        Ok(output.status.success().then_some(told))
    });
    let told = told.map_err(|error| match why.trim() {
        "" => error,
        why => looking(io::Error::other(format!("{error}; it said last: {why}"))),
    })?;
    waiting.wait().map_err(running)?;
    let mut rows = told.lines().map(str::split_whitespace);
    // Bytes, writes, the peak, the average.
    let average = rows.find_map(|mut row| {
        let is_it = row.next()? == WRITES_ROW;
        row.nth(2)?.parse().ok().filter(|_| is_it)
    });
    average.ok_or_else(|| looking(io::Error::other(format!("ib_write_bw said {told}"))))
}

/// Two programs in pods of two nodes, and the same on the nodes, by the same devices, in turns.
fn pod_to_pod(cluster: &Cluster) -> Result<Row, ClusterBenchError> {
    let waits = End::make(cluster, "waits", NODE)?;
    let connects = End::make(cluster, "connects", OTHER_NODE)?;
    let path = "-o=jsonpath={.status.podIP}";
    let in_pod = cluster.kubectl(&["get", "pod", waits.pod, path])?;
    let path = "-o=jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
    let on_node = cluster.kubectl(&["get", "node", waits.node, path])?;
    let (mut pods, mut nodes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let [listens, writes] = [&waits, &connects].map(|end| end.in_pod(cluster));
        pods.push(bandwidth(listens, writes, &in_pod)?);
        nodes.push(bandwidth(waits.on_node(), connects.on_node(), &on_node)?);
    }
    let (pods, nodes) = (median(&mut pods), median(&mut nodes));
    Ok(Row {
        id: "pod-to-pod".to_owned(),
        work: format!("ib_write_bw of 1 MiB, between pods of two nodes, median of {ROUNDS}"),
        unit: "MB/s".to_owned(),
        ours: pods,
        peer: "the same programs on the nodes, by the same devices".to_owned(),
        theirs: Some(nodes),
        ratio: Some(pods / nodes),
        must: format!("≥ {POD_SHARE} of its"),
        holds: pods >= POD_SHARE * nodes,
    })
}
