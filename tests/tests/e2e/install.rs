//! The chart and a fabric: there, and gone again.

use std::time::Instant;

use serde_json::{Value, json};
use weft_tests::cluster::DATA_INTERFACE;

use crate::lent::{Lent, MODELS, SYSTEM, report, repository};

/// As README and NOTES have it, and what this cluster's data network is called.
pub(crate) fn fabric() -> Value {
    json!({
        "apiVersion": "weft.dev/v1alpha1",
        "kind": "RdmaFabric",
        "metadata": {"name": "default"},
        "spec": {
            "nodeSelector": {"matchLabels": {"gpu": "true"}},
            "roots": [{"name": "models", "hostPath": MODELS, "access": "ReadWrite"}],
            "nics": {"include": [DATA_INTERFACE]},
        },
    })
}

pub(crate) fn helm_install(lent: &Lent) {
    let begun = Instant::now();
    let chart = repository("charts/weft").display().to_string();
    let said = lent.helm(&[
        "install",
        "weft",
        &chart,
        "--namespace",
        SYSTEM,
        "--create-namespace",
        "--wait",
        "--timeout=180s",
    ]);
    assert!(
        said.contains("kubectl wait --for=condition=Ready rdmafabric/default"),
        "{said}"
    );
    report("helm install --wait", begun);
}

pub(crate) fn a_fabric_becomes_ready(lent: &Lent, fabric: &Value) {
    let begun = Instant::now();
    lent.apply(fabric);
    let ready = [
        "wait",
        "--for=condition=Ready",
        "rdmafabric/default",
        "--timeout=60s",
    ];
    lent.kubectl(&ready);
    report("fabric applied to Ready", begun);
    let labelled = lent.kubectl(&["get", "nodes", "-l=gpu=true", "-o=name"]);
    let labelled: Vec<&str> = labelled.lines().collect();
    let shown = lent.json(&["get", "rf", "default"]);
    assert_eq!(
        shown["status"]["nodes"],
        json!({"selected": labelled.len(), "ready": labelled.len()})
    );
    let of_fabric = |name: &str| labelled.contains(&format!("node/{name}").as_str());
    let nodes = lent.cluster.nodes().iter();
    for node in nodes.filter(|node| of_fabric(&node.name)) {
        let shown = lent.json(&["get", "fn", &node.name]);
        let status = &shown["status"];
        assert_eq!(status["dataAddress"], node.data_address.to_string());
        assert_eq!(status["interface"], DATA_INTERFACE);
        assert_eq!(status["findings"], json!([]), "{}", node.name);
    }
}

pub(crate) fn helm_test_finds_it_well(lent: &Lent) {
    let begun = Instant::now();
    let said = lent.helm(&["test", "weft", "--namespace", SYSTEM, "--timeout=120s"]);
    assert!(said.contains("TEST SUITE:     weft-check"), "{said}");
    assert!(said.contains("Phase:          Succeeded"), "{said}");
    report("helm test", begun);
}

/// What is being deleted and cannot end shows up in any list, so all kinds are listed.
pub(crate) fn helm_uninstall_leaves_nothing_that_does_not_end(lent: &Lent) {
    let begun = Instant::now();
    lent.helm(&[
        "uninstall",
        "weft",
        "--namespace",
        SYSTEM,
        "--wait",
        "--timeout=120s",
    ]);
    report("helm uninstall --wait", begun);
    lent.wait_until("agents and operators have ended", || {
        let left = lent.kubectl(&["get", "daemonsets,pods", "--namespace", SYSTEM, "-o=name"]);
        left.is_empty().then_some(())
    });
    report("the last pod gone", begun);
    assert_eq!(terminating(lent), Vec::<String>::new());
    let said = lent.kubectl(&["get", "nodes", "-o=jsonpath={.items[*].metadata}"]);
    for ours in ["weft.dev/fabric", "weft.dev/model."] {
        assert!(!said.contains(ours), "{ours} in {said}");
    }
    let kept = lent.kubectl(&["get", "crds", "-o=name"]);
    for kind in ["rdmafabrics", "fabricnodes", "transferjobs"] {
        assert!(kept.contains(&format!("{kind}.weft.dev")), "{kept}");
    }
    let left = [
        "get",
        "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings",
        "-l=app.kubernetes.io/part-of=weft",
        "-o=name",
    ];
    assert_eq!(lent.kubectl(&left), "");
}

/// Names of what is being deleted, of all kinds.
pub(crate) fn terminating(lent: &Lent) -> Vec<String> {
    let kinds = |namespaced: &str| {
        let said = lent.kubectl(&["api-resources", "--verbs=list", namespaced, "-o=name"]);
        said.split_whitespace().collect::<Vec<_>>().join(",")
    };
    let mut found = Vec::new();
    for (namespaced, everywhere) in [
        ("--namespaced=true", &["-A"][..]),
        ("--namespaced=false", &[]),
    ] {
        let listed = lent.json(&[&["get", &kinds(namespaced)][..], everywhere].concat());
        for object in listed["items"].as_array().unwrap() {
            let metadata = &object["metadata"];
            if !metadata["deletionTimestamp"].is_null() {
                found.push(format!("{} {}", object["kind"], metadata["name"]));
            }
        }
    }
    found
}
