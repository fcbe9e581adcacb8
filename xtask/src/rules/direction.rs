//! Which crate may use which.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Rule, Weight};
use crate::tree::Tree;

pub(super) const DIRECTION: Rule = Rule {
    id: "crate-direction",
    says: "Our crates depend on each other in one direction: engine → link → memory → core, agent → engine and \
           identity, operator and cli → transfer → identity, planner and proto; cli and cluster → fabric.",
    why: "Crates are split by what they must not know; one edge the wrong way and the split is a \
          matter of folders.",
    weight: Weight::Error,
    check: direction,
};

pub(super) const PURITY: Rule = Rule {
    id: "crate-purity",
    says: "transport/core and control/planner reach no runtime, socket or source of randomness; only crds, \
           operator, kubectl-weft, and what tests or generates them reach Kubernetes.",
    why: "A pure crate runs in the simulator and on wasm32; an agent without a Kubernetes client \
          needs no Kubernetes credentials.",
    weight: Weight::Error,
    check: purity,
};

/// What each crate may name for its product or its build. A crate is added here before it is built.
const MAY_USE: &[(&str, &[&str])] = &[
    ("weft-crds", &["weft-planner"]),
    ("weft-planner", &[]),
    ("weft-argument-file", &[]),
    ("weft-proto", &[]),
    ("weft-identity", &["weft-metrics", "weft-proto"]),
    ("weft-metrics", &[]),
    ("weft-page", &["weft-metrics"]),
    (
        "weft-transfer",
        &["weft-identity", "weft-planner", "weft-proto"],
    ),
    ("weft-core", &[]),
    ("weft-crypto", &["weft-core"]),
    ("weft-link", &["weft-core", "weft-memory"]),
    ("weft-memory", &["weft-core"]),
    ("weft-device", &[]),
    (
        "weft-engine",
        &["weft-core", "weft-crypto", "weft-link", "weft-memory"],
    ),
    ("weft-transfer-engine", &["weft-engine"]),
    (
        "weft-transfer-engine-c",
        &["weft-cuda", "weft-transfer-engine"],
    ),
    ("weft-python", &["weft-cuda", "weft-transfer-engine"]),
    ("weft-cuda", &["weft-transfer-engine"]),
    ("weft-device-socket", &["weft-device", "weft-memory"]),
    (
        "weft-device-server",
        &["weft-device", "weft-device-socket", "weft-engine"],
    ),
    ("weft-sim", &["weft-core", "weft-crypto", "weft-memory"]),
    ("weft-verbs-abi", &["weft-device"]),
    ("weft-rdmacm-shim", &["weft-verbs-abi"]),
    (
        "weft-verbs-shim",
        &[
            "weft-device",
            "weft-device-socket",
            "weft-memory",
            "weft-verbs-abi",
        ],
    ),
    ("weft-fabric", &[]),
    (
        "weft-connection-end",
        &["weft-core", "weft-engine", "weft-proto"],
    ),
    (
        "weft-node-engine",
        &[
            "weft-argument-file",
            "weft-connection-end",
            "weft-core",
            "weft-device",
            "weft-device-server",
            "weft-device-socket",
            "weft-engine",
            "weft-proto",
        ],
    ),
    ("weft-device-injection", &["weft-device"]),
    ("weft-device-plugin", &["weft-argument-file", "weft-proto"]),
    ("weft-volume-driver", &["weft-proto"]),
    (
        "weft-agent",
        &[
            "weft-argument-file",
            "weft-connection-end",
            "weft-core",
            "weft-device",
            "weft-device-socket",
            "weft-identity",
            "weft-link",
            "weft-metrics",
            "weft-engine",
            "weft-proto",
        ],
    ),
    (
        "weft-operator",
        &[
            "weft-crds",
            "weft-identity",
            "weft-metrics",
            "weft-page",
            "weft-planner",
            "weft-proto",
            "weft-transfer",
        ],
    ),
    (
        "weft-cli",
        &[
            "weft-device",
            "weft-device-injection",
            "weft-device-socket",
            "weft-fabric",
            "weft-identity",
            "weft-metrics",
            "weft-page",
            "weft-planner",
            "weft-proto",
            "weft-transfer",
        ],
    ),
    (
        "weft-kubectl",
        &[
            "weft-cli",
            "weft-crds",
            "weft-fabric",
            "weft-identity",
            "weft-metrics",
            "weft-page",
            "weft-planner",
        ],
    ),
    ("weft-cluster", &["weft-fabric"]),
    (
        "weft-tests",
        &[
            "weft-fabric",
            "weft-cluster",
            "weft-identity",
            "weft-page",
            "weft-planner",
            "weft-proto",
            "weft-core",
            "weft-link",
            "weft-engine",
            "weft-device",
            "weft-device-plugin",
            "weft-device-server",
            "weft-device-socket",
            "weft-sim",
            "weft-transfer",
            "weft-transfer-engine",
            "weft-agent",
            "weft-operator",
            "weft-crds",
            "weft-cli",
        ],
    ),
    ("xtask", &["weft-crds", "weft-metrics"]),
];

const PURE: &[&str] = &["weft-core", "weft-planner"];
const IMPURE: &[&str] = &[
    "tokio",
    "mio",
    "nix",
    "rustix",
    "socket2",
    "quinn-udp",
    "crossbeam-channel",
    "rand",
    "getrandom",
    "tempfile",
    "time",
];
const KUBERNETES: &[&str] = &["kube", "kube-client", "k8s-openapi"];
/// Who may know Kubernetes: the API's types, the operator and who uses it, and what generates files.
const SPEAK_KUBERNETES: &[&str] = &[
    "weft-crds",
    "weft-operator",
    "weft-kubectl",
    "weft-tests",
    "xtask",
];

fn direction(tree: &Tree) -> Vec<Finding> {
    let allowed: BTreeMap<&str, BTreeSet<&str>> = MAY_USE
        .iter()
        .map(|(name, uses)| (*name, uses.iter().copied().collect()))
        .collect();
    let mut findings = Vec::new();
    for (name, member) in &tree.crates().members {
        let Some(allowed) = allowed.get(name.as_str()) else {
            findings.push(Finding::of(
                name,
                "a new crate; say in MAY_USE what it may use",
            ));
            continue;
        };
        findings.extend(
            member
                .ours
                .iter()
                .filter(|used| !allowed.contains(used.as_str()))
                .map(|used| Finding::of(name, format!("may not depend on {used}"))),
        );
    }
    findings
}

fn purity(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, member) in &tree.crates().members {
        let pure = PURE.contains(&name.as_str()).then_some(IMPURE);
        let plain = (!SPEAK_KUBERNETES.contains(&name.as_str())).then_some(KUBERNETES);
        let forbidden = pure.into_iter().chain(plain).flatten();
        findings.extend(
            forbidden
                .filter(|crate_name| member.reaches.contains(**crate_name))
                .map(|reached| Finding::of(name, format!("may not reach {reached}"))),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crates::{Crates, Member};

    fn tree(members: &[(&str, &[&str], &[&str])]) -> Tree {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let members = members
            .iter()
            .map(|(name, ours, reaches)| {
                (
                    (*name).to_owned(),
                    Member {
                        ours: set(ours),
                        reaches: set(reaches),
                    },
                )
            })
            .collect();
        Tree::of([]).with_crates(Crates {
            members,
            foreign: Vec::new(),
        })
    }

    #[test]
    fn an_edge_the_wrong_way_is_found() {
        let tree = tree(&[
            ("weft-link", &["weft-core"], &[]),
            ("weft-core", &["weft-link"], &[]),
            ("weft-cli", &["weft-agent"], &[]),
        ]);
        let found: Vec<String> = direction(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "weft-cli: may not depend on weft-agent",
                "weft-core: may not depend on weft-link"
            ]
        );
    }

    #[test]
    fn a_crate_that_nobody_placed_is_found() {
        assert_eq!(direction(&tree(&[("weft-new", &[], &[])])).len(), 1);
    }

    #[test]
    fn no_edge_in_the_table_leads_back() {
        let uses: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
        for (name, _) in MAY_USE {
            let mut left = uses[name].to_vec();
            let mut seen = BTreeSet::new();
            while let Some(next) = left.pop() {
                assert_ne!(next, *name, "{name} reaches itself");
                if seen.insert(next) {
                    left.extend(uses[next]);
                }
            }
        }
    }

    #[test]
    fn a_runtime_in_the_core_is_found_and_one_in_the_agent_is_not() {
        let tree = tree(&[
            ("weft-core", &[], &["tokio"]),
            ("weft-agent", &[], &["tokio", "kube"]),
        ]);
        let found: Vec<String> = purity(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "weft-agent: may not reach kube",
                "weft-core: may not reach tokio"
            ]
        );
    }
}
