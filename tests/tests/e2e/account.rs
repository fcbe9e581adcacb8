//! What the operator's own account may change. Whoever has stolen its token may change no more.
//!
//! Everything here is tried only (`--dry-run=server`), in the account's name.

use std::fs;

use serde_json::{Value, json};

use crate::test_cluster::{SYSTEM, TestCluster};

const OPERATOR: &str = "--as=system:serviceaccount:weft-system:weft-operator";
const TRY: &str = "--dry-run=server";

fn tried(cluster: &TestCluster, arguments: &[&str]) -> Result<String, String> {
    let arguments = [arguments, &[OPERATOR, TRY]].concat();
    let said = cluster.inner.kubectl(&arguments);
    said.map_err(|error| error.to_string())
}

pub(crate) fn nodes_are_changed_in_weft_dev_only(cluster: &TestCluster) {
    let patched = |patch: &Value| {
        let patch = patch.to_string();
        let named = ["patch", "node", "node0", "--type=merge", "--patch", &patch];
        tried(cluster, &named)
    };
    let taint = json!({"key": "example.org/x", "effect": "NoExecute"});
    for (patch, says) in [
        (
            json!({"metadata": {"labels": {"gpu": "false"}}}),
            "labels weft.dev/*",
        ),
        (
            json!({"metadata": {"labels": {"gpu": null}}}),
            "labels weft.dev/*",
        ),
        (
            json!({"metadata": {"labels": {"weft.dev.example.org/x": "y"}}}),
            "labels weft.dev/*",
        ),
        (
            json!({"metadata": {"annotations": {"weft.dev/x": "y"}}}),
            "labels of a node only",
        ),
        (
            json!({"metadata": {"finalizers": ["example.org/x"]}}),
            "labels of a node only",
        ),
        (
            json!({"spec": {"unschedulable": true}}),
            "labels of a node only",
        ),
        (
            json!({"spec": {"taints": [taint]}}),
            "labels of a node only",
        ),
    ] {
        let said = patched(&patch).expect_err(&patch.to_string());
        for part in ["'operator-nodes.weft.dev'", says] {
            assert!(said.contains(part), "{patch}: {said}");
        }
    }
    let ours = json!({"weft.dev/tried": "yes", "weft.dev/fabric": "default"});
    patched(&json!({"metadata": {"labels": ours}})).unwrap();
    let none = json!({"weft.dev/fabric": null});
    patched(&json!({"metadata": {"labels": none}})).unwrap();
}

pub(crate) fn of_a_fabric_the_finalizers_are_changed_only(cluster: &TestCluster) {
    let patched = |patch: &Value| {
        let patch = patch.to_string();
        let fabric = ["patch", "rdmafabric", "default", "--type=merge", "--patch"];
        tried(cluster, &[&fabric[..], &[&patch]].concat())
    };
    for patch in [
        json!({"spec": {"nodeSelector": {"matchLabels": {"x": "y"}}}}),
        json!({"spec": {"transport": {"capMbps": 7}}}),
        json!({"metadata": {"annotations": {"weft.dev/force": "true"}}}),
        json!({"metadata": {"labels": {"x": "y"}}}),
        // A fabric whose owner is not there would be deleted.
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "none"},
        ]}}),
    ] {
        let said = patched(&patch).expect_err(&patch.to_string());
        for part in ["'operator-fabrics.weft.dev'", "finalizers and the status"] {
            assert!(said.contains(part), "{patch}: {said}");
        }
    }
    patched(&json!({"metadata": {"finalizers": []}})).unwrap();
}

/// The DaemonSet of the fabric `default`, changed; the words are those of the refusal.
type Change = (&'static str, fn(&mut Value), &'static str);

const ONE: &str = "one container";
const IMAGE: &str = "the image of";
const ACCOUNT: &str = "the account of";
const PROGRAM: &str = "runs the program of the agents' image";
const RIGHTS: &str = "security contexts";
const FLAG: &str = "the arguments of";
const VOLUME: &str = "roots.allowedHostPaths";
const MOUNT: &str = "below /weft/roots";

const REFUSED: &[Change] = &[
    (
        "a second container",
        |pod| {
            let more = json!({"name": "more", "image": pod["containers"][0]["image"]});
            push(&mut pod["containers"], more);
        },
        ONE,
    ),
    (
        "a container that runs first",
        |pod| {
            let first = json!({"name": "first", "image": pod["containers"][0]["image"]});
            pod["initContainers"] = json!([first]);
        },
        ONE,
    ),
    (
        "another image",
        |pod| pod["containers"][0]["image"] = json!("example.org/agent:0.1.0"),
        IMAGE,
    ),
    (
        "another account",
        |pod| pod["serviceAccountName"] = json!("weft-operator"),
        ACCOUNT,
    ),
    (
        "another program",
        |pod| pod["containers"][0]["command"] = json!(["/weft/roots/models/program"]),
        PROGRAM,
    ),
    (
        "a program after the start",
        |pod| {
            let program = json!({"exec": {"command": ["/weft/roots/models/program"]}});
            pod["containers"][0]["lifecycle"] = json!({"postStart": program});
        },
        PROGRAM,
    ),
    (
        "a program that probes",
        |pod| {
            let program = json!({"exec": {"command": ["/weft/roots/models/program"]}});
            pod["containers"][0]["livenessProbe"] = program;
        },
        PROGRAM,
    ),
    (
        "a library of a tenant's",
        |pod| {
            let library = json!({"name": "LD_PRELOAD", "value": "/weft/roots/models/library"});
            push(&mut pod["containers"][0]["env"], library);
        },
        PROGRAM,
    ),
    (
        "another value of a variable",
        |pod| {
            let variables = pod["containers"][0]["env"].as_array_mut().unwrap();
            let mut variables = variables.iter_mut();
            let literal = variables.find(|one| !one["value"].is_null());
            literal.unwrap()["value"] = json!("/weft/roots/models/library");
        },
        PROGRAM,
    ),
    (
        "a Secret as a variable",
        |pod| {
            let key = json!({"secretKeyRef": {"name": "other", "key": "key"}});
            let variable = json!({"name": "NODE_NAME", "valueFrom": key});
            pod["containers"][0]["env"] = json!([variable]);
        },
        PROGRAM,
    ),
    (
        "privileged",
        |pod| pod["containers"][0]["securityContext"] = json!({"privileged": true}),
        RIGHTS,
    ),
    (
        "a capability",
        |pod| {
            let added = &mut pod["containers"][0]["securityContext"]["capabilities"]["add"];
            push(added, json!("NET_ADMIN"));
        },
        RIGHTS,
    ),
    (
        "any system call",
        |pod| pod["securityContext"] = json!({"seccompProfile": {"type": "Unconfined"}}),
        RIGHTS,
    ),
    (
        "the node's processes",
        |pod| pod["hostPID"] = json!(true),
        RIGHTS,
    ),
    (
        "the node's whole disk",
        |pod| volume(pod, json!({"hostPath": {"path": "/"}})),
        VOLUME,
    ),
    (
        "a directory whose name begins like one that is allowed",
        |pod| volume(pod, json!({"hostPath": {"path": "/var/lib/weftling"}})),
        VOLUME,
    ),
    (
        "a Secret",
        |pod| volume(pod, json!({"secret": {"secretName": "other"}})),
        VOLUME,
    ),
    (
        "a Secret beside the token",
        |pod| {
            let sources = json!([{"secret": {"name": "other"}}]);
            volume(pod, json!({"projected": {"sources": sources}}));
        },
        VOLUME,
    ),
    (
        "a root in place of the agent's own state",
        |pod| root_as(pod, "state"),
        VOLUME,
    ),
    (
        "a part of a volume",
        |pod| {
            mount(pod, "root-models", "/weft/roots/more");
            let mounts = pod["containers"][0]["volumeMounts"].as_array_mut().unwrap();
            mounts.last_mut().unwrap()["subPath"] = json!("team-a");
        },
        MOUNT,
    ),
];

/// What, and an argument more.
const REFUSED_ARGUMENTS: &[(&str, &str)] = &[
    ("another directory as that of the roots", "--roots-dir=/run"),
    (
        "the socket of the engine in a root",
        "--engine-socket=/weft/roots/models/engine.sock",
    ),
    (
        "a file as the whole configuration",
        "--config=/weft/roots/models/agent.yaml",
    ),
];

/// What, and a volume at a path more.
const REFUSED_MOUNTS: &[(&str, &str, &str)] = &[
    (
        "the agent's own state as a root",
        "state",
        "/weft/roots/state",
    ),
    (
        "a tenant's file as the program",
        "root-models",
        "/weft-agent",
    ),
    (
        "the same by a path that leads out",
        "root-models",
        "/weft/roots/../../weft-agent",
    ),
];

/// Where the nodes have devices: the agents have the directory by which the programs of a node meet.
const REFUSED_WITH_DEVICES: &[Change] = &[
    (
        "the directory of the devices as a root",
        |pod| mount(pod, "devices", "/weft/roots/run"),
        MOUNT,
    ),
    (
        "a root in place of the directory of the devices",
        |pod| root_as(pod, "devices"),
        VOLUME,
    ),
    (
        "another directory of the node by that name",
        |pod| volume_named(pod, "devices")["hostPath"]["path"] = json!("/run"),
        VOLUME,
    ),
];

fn push(list: &mut Value, one: Value) {
    list.as_array_mut().unwrap().push(one);
}

fn volume(pod: &mut Value, mut volume: Value) {
    volume["name"] = json!("more");
    push(&mut pod["volumes"], volume);
}

fn volume_named<'a>(pod: &'a mut Value, name: &str) -> &'a mut Value {
    let mut volumes = pod["volumes"].as_array_mut().unwrap().iter_mut();
    volumes.find(|one| one["name"] == name).unwrap()
}

/// A root's own directory of the node, by the name of a volume of the chart, which is mounted where that is.
fn root_as(pod: &mut Value, name: &str) {
    let directory = volume_named(pod, "root-models")["hostPath"].clone();
    *volume_named(pod, name) = json!({"name": name, "hostPath": directory});
}

fn mount(pod: &mut Value, volume: &str, path: &str) {
    let mount = json!({"name": volume, "mountPath": path});
    push(&mut pod["containers"][0]["volumeMounts"], mount);
}

fn argument(pod: &mut Value, argument: &str) {
    push(&mut pod["containers"][0]["args"], json!(argument));
}

pub(crate) fn daemonsets_run_the_charts_agents_only(cluster: &TestCluster) {
    let named = [
        "get",
        "daemonset",
        "weft-agent-default",
        "--namespace",
        SYSTEM,
    ];
    let found = cluster.json(&named);
    let file = cluster.scratch.path().join("set.json");
    let changed = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut set = json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": SYSTEM},
            "spec": found["spec"],
        });
        change(&mut set["spec"]["template"]["spec"]);
        fs::write(&file, set.to_string()).unwrap();
        file.display().to_string()
    };
    let made =
        |change: &dyn Fn(&mut Value)| tried(cluster, &["create", "-f", &changed("tried", change)]);
    let mut count = 0;
    let mut is_refused = |what: &str, change: &dyn Fn(&mut Value), says: &str| {
        let said = made(change).expect_err(what);
        for part in ["'operator-daemonsets.weft.dev'", says] {
            assert!(said.contains(part), "{what}: {said}");
        }
        count += 1;
    };
    for (what, change, says) in REFUSED {
        is_refused(what, change, says);
    }
    for (what, more) in REFUSED_ARGUMENTS {
        is_refused(what, &|pod| argument(pod, more), FLAG);
    }
    for (what, volume, path) in REFUSED_MOUNTS {
        is_refused(what, &|pod| mount(pod, volume, path), MOUNT);
    }
    let volumes = &found["spec"]["template"]["spec"]["volumes"];
    let mut volumes = volumes.as_array().unwrap().iter();
    if volumes.any(|volume| volume["name"] == "devices") {
        for (what, change, says) in REFUSED_WITH_DEVICES {
            is_refused(what, change, says);
        }
    }
    made(&|_| {}).unwrap();
    made(&|pod| volume(pod, json!({"hostPath": {"path": "/var/lib/weft/more"}}))).unwrap();
    // The same for one that is there.
    let applied = |change: &dyn Fn(&mut Value)| {
        let file = changed("weft-agent-default", change);
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", &file];
        tried(cluster, &apply)
    };
    let said = applied(&|pod| pod["hostPID"] = json!(true)).unwrap_err();
    assert!(said.contains("'operator-daemonsets.weft.dev'"), "{said}");
    applied(&|_| {}).unwrap();
    println!("{count} DaemonSets refused that the operator's account would make");
}

/// With `devices.mode` `dra`.
pub(crate) fn resource_slices_of_other_drivers_are_not_the_operators(cluster: &TestCluster) {
    let create = |driver: &str| {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "tried"},
            "spec": {
                "driver": driver,
                "nodeName": "node0",
                "pool": {"name": "tried", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "d"}],
            },
        });
        let file = cluster.scratch.path().join("slice.json");
        fs::write(&file, slice.to_string()).unwrap();
        tried(cluster, &["create", "-f", &file.display().to_string()])
    };
    let said = create("gpu.example.org").unwrap_err();
    assert!(
        said.contains("'operator-resourceslices.weft.dev'"),
        "{said}"
    );
    create("vdev.weft.dev").unwrap();
}
