//! The chart and a fabric: there, and gone again.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use serde_json::{Value, json};
use weft_cluster::DATA_INTERFACE;

use crate::test_cluster::{MODELS, SYSTEM, TestCluster, report, repository};

/// As README and NOTES have it, and what this cluster's data network is called.
pub(crate) fn fabric() -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "RdmaFabric",
        "metadata": {"name": "default"},
        "spec": {
            "nodeSelector": {"matchLabels": {"gpu": "true"}},
            // The nodes share the disk of the machine that the test runs on, which may be nearly full.
            "roots": [{"name": "models", "hostPath": MODELS, "access": "ReadWrite", "minFree": "0"}],
            "nics": {"include": [DATA_INTERFACE]},
        },
    })
}

/// The commands of docs/install.md, with the images that are in the nodes.
fn guide() -> Vec<String> {
    let guide = fs::read_to_string(repository("docs/install.md")).unwrap();
    let (_, rest) = guide.split_once("## Install it\n```\n").unwrap();
    let (block, _) = rest.split_once("```").unwrap();
    let chart = repository("charts/weft").display().to_string();
    let block = block
        .replace("\\\n", " ")
        .replace("registry.example/weft", "weft.dev")
        .replace("charts/weft", &chart);
    block.lines().map(str::to_owned).collect()
}

pub(crate) fn helm_install(cluster: &TestCluster) {
    let begun = Instant::now();
    let found = ["get", "namespace", SYSTEM, "--ignore-not-found", "-o=name"];
    let is_new = cluster.kubectl(&found).is_empty();
    let mut said = String::new();
    for command in guide() {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.split_first().unwrap() {
            (&"helm", arguments) => {
                said = cluster.helm(&[arguments, &["--timeout=180s"]].concat());
            }
            // An uninstalled release leaves the namespace and its label.
            (_, arguments) if is_new => drop(cluster.kubectl(arguments)),
            _ => {}
        }
    }
    assert!(
        said.contains("kubectl wait --for=condition=Ready rdmafabric/default"),
        "{said}"
    );
    report("helm install --wait", begun);
}

pub(crate) fn a_fabric_becomes_ready(cluster: &TestCluster, fabric: &Value) {
    let begun = Instant::now();
    cluster.apply(fabric);
    let ready = [
        "wait",
        "--for=condition=Ready",
        "rdmafabric/default",
        "--timeout=60s",
    ];
    cluster.kubectl(&ready);
    report("fabric applied to Ready", begun);
    let path = "-o=jsonpath={.metadata.finalizers}";
    assert_eq!(
        cluster.kubectl(&["get", "rdmafabric/default", path]),
        r#"["weft.dev/jobs"]"#
    );
    let labelled = cluster.kubectl(&["get", "nodes", "-l=gpu=true", "-o=name"]);
    let labelled: Vec<&str> = labelled.lines().collect();
    let shown = cluster.json(&["get", "rf", "default"]);
    assert_eq!(
        shown["status"]["nodes"],
        json!({"selected": labelled.len(), "ready": labelled.len()})
    );
    let of_fabric = |name: &str| labelled.contains(&format!("node/{name}").as_str());
    let nodes = cluster.inner.nodes().iter();
    for node in nodes.filter(|node| of_fabric(&node.name)) {
        let shown = cluster.json(&["get", "fn", &node.name]);
        let status = &shown["status"];
        assert_eq!(status["dataAddress"], node.data_address.to_string());
        assert_eq!(status["interface"], DATA_INTERFACE);
        assert_eq!(status["findings"], json!([]), "{}", node.name);
    }
}

/// The list of the chart's value: for fabrics that are made, and for those that are changed.
pub(crate) fn roots_are_where_the_chart_allows_them(cluster: &TestCluster) {
    let create = |path: &str| {
        let mut wanted = fabric();
        wanted["metadata"]["name"] = json!("elsewhere");
        wanted["spec"]["nodeSelector"] = json!({"matchLabels": {"rack": "none"}});
        wanted["spec"]["roots"][0]["hostPath"] = json!(path);
        let file = cluster.scratch.path().join("fabric.json");
        fs::write(&file, wanted.to_string()).unwrap();
        let file = file.display().to_string();
        let create = ["create", "--dry-run=server", "-f", &file];
        cluster
            .inner
            .kubectl(&create)
            .map_err(|error| error.to_string())
    };
    for path in ["/opt/cni/bin", "/var/lib/weftling", "/mnt"] {
        let said = create(path).unwrap_err();
        for part in [
            "roots.allowedHostPaths",
            &format!("hostPath {path} is not in"),
        ] {
            assert!(said.contains(part), "{path}: {said}");
        }
    }
    for path in ["/mnt/disks", "/data/models"] {
        create(path).unwrap();
    }
    let patch = |patch: &Value| {
        let patch = patch.to_string();
        let named = ["patch", "rf", "default", "--dry-run=server", "--type=merge"];
        let named = [&named[..], &["--patch", &patch]].concat();
        cluster
            .inner
            .kubectl(&named)
            .map_err(|error| error.to_string())
    };
    let spec = json!({"spec": {"transport": {"dscp": 10}}});
    patch(&spec).unwrap();
    // A fabric that is older than the list.
    let allow = |paths: Value| {
        let chart = repository("charts/weft").display().to_string();
        let paths = format!("roots.allowedHostPaths={paths}");
        let to = ["--namespace", SYSTEM, "--set-json", &paths];
        cluster.helm(&[&["upgrade", "weft", &chart][..], &to].concat());
    };
    allow(json!(["/srv"]));
    // The API server learns of a policy by a watch.
    let said = cluster.wait_until("the fabric's root is refused", || patch(&spec).err());
    assert!(said.contains(&format!("hostPath {MODELS}")), "{said}");
    patch(&json!({"metadata": {"labels": {"team": "a"}}})).unwrap();
    allow(json!(["/var/lib/weft"]));
    cluster.wait_until("it is allowed", || patch(&spec).ok());
}

/// A list of roots belongs to nobody as a whole: each root is of the manager that applies it.
pub(crate) fn two_managers_have_roots_of_their_own(cluster: &TestCluster) {
    let mut second = fabric();
    second["spec"] = json!({"roots": [
        {"name": "second", "hostPath": "/var/lib/weft/second", "access": "ReadOnly"},
    ]});
    let file = cluster.scratch.path().join("second.json");
    fs::write(&file, second.to_string()).unwrap();
    let file = file.display().to_string();
    let apply = [
        "apply",
        "--server-side",
        "--field-manager=second",
        "--dry-run=server",
    ];
    let merged = cluster.json(&[&apply[..], &["-f", &file]].concat());
    let roots = merged["spec"]["roots"].as_array().unwrap().iter();
    let names: Vec<&str> = roots.map(|root| root["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["models", "second"]);
}

/// Another link and number of paths replace the agents' pods, and each node is ready with its new one.
pub(crate) fn another_configuration_of_the_fabric_replaces_the_pods(cluster: &TestCluster) {
    let begun = Instant::now();
    let change = |transport: Value| {
        let patch = json!({"spec": {"transport": transport}}).to_string();
        cluster.kubectl(&["patch", "rf", "default", "--type=merge", "--patch", &patch]);
    };
    let text = |object: &Value, path: &str| {
        object
            .pointer(path)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let uids = || -> BTreeSet<String> {
        let of_agents = [
            "get",
            "pods",
            "-l",
            "weft.dev/fabric=default",
            "--namespace",
            SYSTEM,
        ];
        let pods = cluster.json(&of_agents);
        let pods = pods["items"].as_array().unwrap().iter();
        pods.filter_map(|pod| text(pod, "/metadata/uid")).collect()
    };
    let configurations = || -> Vec<(String, bool)> {
        let nodes = cluster.json(&["get", "fabricnodes"]);
        let nodes = nodes["items"].as_array().unwrap().iter();
        let of_node = |node: &Value| {
            let ready = text(node, "/status/conditions/0/status").as_deref() == Some("True");
            Some((text(node, "/status/configuration")?, ready))
        };
        nodes.filter_map(of_node).collect()
    };
    let (pods, before) = (uids(), configurations());
    assert!(
        before.len() == 3
            && before
                .iter()
                .all(|(hash, ready)| *ready && *hash == before[0].0),
        "{before:?}"
    );
    change(json!({"capMbps": 900, "paths": 4, "link": "Tcp"}));
    cluster.wait_until("every node is ready with its new pod", || {
        let now = configurations();
        let is_new = |(hash, ready): &(String, bool)| *ready && *hash != before[0].0;
        (now.len() == 3 && now.iter().all(is_new)).then_some(())
    });
    // A pod that has ended may still be listed when its successor reports.
    cluster.wait_until("only new pods are left", || {
        let now = uids();
        (now.len() == 3 && now.is_disjoint(&pods)).then_some(())
    });
    report("another configuration on all nodes", begun);
}

/// At the level `baseline` an agent's pod is refused; the label of the guide lets it in.
pub(crate) fn agents_need_the_namespaces_label(cluster: &TestCluster) {
    let set = [
        "get",
        "daemonset",
        "weft-agent-default",
        "--namespace",
        SYSTEM,
    ];
    let set = cluster.json(&set);
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tried", "namespace": SYSTEM},
        "spec": set["spec"]["template"]["spec"],
    });
    let file = cluster.scratch.path().join("pod.json");
    fs::write(&file, pod.to_string()).unwrap();
    let file = file.display().to_string();
    let create = || {
        let create = ["create", "--dry-run=server", "-f", &file];
        cluster
            .inner
            .kubectl(&create)
            .map_err(|error| error.to_string())
    };
    let label = |level: &str| {
        let label = format!("pod-security.kubernetes.io/enforce={level}");
        cluster.kubectl(&["label", "namespace", SYSTEM, &label, "--overwrite"]);
    };
    create().unwrap();
    label("baseline");
    // The API server learns of a label by a watch.
    let said = cluster.wait_until("the agent's pod is refused", || create().err());
    for part in ["violates PodSecurity \"baseline", "hostNetwork", "hostPath"] {
        assert!(said.contains(part), "{said}");
    }
    label("privileged");
    cluster.wait_until("the agent's pod is let in", || create().ok());
}

pub(crate) fn helm_test_finds_it_well(cluster: &TestCluster) {
    let begun = Instant::now();
    let said = cluster.helm(&["test", "weft", "--namespace", SYSTEM, "--timeout=120s"]);
    assert!(said.contains("TEST SUITE:     weft-check"), "{said}");
    assert!(said.contains("Phase:          Succeeded"), "{said}");
    report("helm test", begun);
}

/// What is being deleted and cannot end shows up in any list, so all kinds are listed.
pub(crate) fn helm_uninstall_leaves_nothing_that_does_not_end(cluster: &TestCluster) {
    let begun = Instant::now();
    cluster.helm(&[
        "uninstall",
        "weft",
        "--namespace",
        SYSTEM,
        "--wait",
        "--timeout=120s",
    ]);
    report("helm uninstall --wait", begun);
    cluster.wait_until("agents and operators have ended", || {
        let left = cluster.kubectl(&["get", "daemonsets,pods", "--namespace", SYSTEM, "-o=name"]);
        left.is_empty().then_some(())
    });
    report("the last pod gone", begun);
    assert_eq!(terminating(cluster), Vec::<String>::new());
    let said = cluster.kubectl(&["get", "nodes", "-o=jsonpath={.items[*].metadata}"]);
    for ours in ["weft.dev/fabric", "weft.dev/model."] {
        assert!(!said.contains(ours), "{ours} in {said}");
    }
    let path = "-o=jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    assert_eq!(
        cluster.kubectl(&["get", "rdmafabric/default", path]),
        "Unknown"
    );
    let path = "-o=jsonpath={.metadata.finalizers}";
    assert_eq!(cluster.kubectl(&["get", "rdmafabric/default", path]), "");
    let kept = cluster.kubectl(&["get", "crds", "-o=name"]);
    for kind in ["rdmafabrics", "fabricnodes", "transferjobs"] {
        assert!(kept.contains(&format!("{kind}.weft.dev")), "{kept}");
    }
    let left = [
        "get",
        "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings",
        "-l=app.kubernetes.io/part-of=weft",
        "-o=name",
    ];
    assert_eq!(cluster.kubectl(&left), "");
}

/// Names of what is being deleted, of all kinds.
pub(crate) fn terminating(cluster: &TestCluster) -> Vec<String> {
    let kinds = |namespaced: &str| {
        let said = cluster.kubectl(&["api-resources", "--verbs=list", namespaced, "-o=name"]);
        said.split_whitespace().collect::<Vec<_>>().join(",")
    };
    let mut found = Vec::new();
    for (namespaced, everywhere) in [
        ("--namespaced=true", &["-A"][..]),
        ("--namespaced=false", &[]),
    ] {
        let listed = cluster.json(&[&["get", &kinds(namespaced)][..], everywhere].concat());
        for object in listed["items"].as_array().unwrap() {
            let metadata = &object["metadata"];
            if !metadata["deletionTimestamp"].is_null() {
                found.push(format!("{} {}", object["kind"], metadata["name"]));
            }
        }
    }
    found
}
