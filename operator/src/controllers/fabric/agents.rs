//! The DaemonSet that runs a fabric's agents: the chart's template, and what only the fabric knows.

use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Container, HostPathVolumeSource, PodSpec, Volume, VolumeMount},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::ResourceExt as _;
use weft_crds::{RdmaFabric, Root, RootAccess};

use crate::controllers::fabric::configuration::pod_configuration;

/// The fabric that a DaemonSet, its pods and their nodes belong to.
pub(crate) const FABRIC_LABEL: &str = "weft.dev/fabric";
/// The hash of what was applied, so that a difference is seen without comparing defaults.
pub(crate) const APPLIED: &str = "weft.dev/applied";
/// The annotation of pods that names the configuration that they are made for: another one replaces the pods.
const CONFIGURATION: &str = "weft.dev/configuration";
/// The container of the template that runs the agent.
const CONTAINER: &str = "agent";
/// Where the roots are mounted; agents know it, too.
const ROOTS: &str = "/weft/roots";

/// What every fabric's DaemonSet is made from.
#[derive(Debug, Clone, Default)]
pub struct AgentTemplate {
    /// The chart's manifest: image, tolerations, resources, capabilities.
    pub manifest: DaemonSet,
    /// The operator's namespace.
    pub namespace: String,
    /// HOST:PORT at which agents reach the leader.
    pub leader_address: String,
    /// What the DaemonSets end with.
    pub owner: Option<OwnerReference>,
}

/// The name of a fabric's DaemonSet.
pub(crate) fn name(fabric: &str) -> String {
    format!("weft-agent-{fabric}")
}

/// The DaemonSet as it shall be.
pub(crate) fn daemon_set(template: &AgentTemplate, fabric: &RdmaFabric) -> DaemonSet {
    let fabric_name = fabric.name_any();
    let mut set = template.manifest.clone();
    let label = (FABRIC_LABEL.to_owned(), fabric_name.clone());
    set.metadata.name = Some(name(&fabric_name));
    set.metadata.namespace = Some(template.namespace.clone());
    set.metadata.owner_references = template.owner.clone().map(|owner| vec![owner]);
    set.metadata
        .labels
        .get_or_insert_default()
        .extend([label.clone()]);
    let spec = set.spec.get_or_insert_default();
    let selector = spec.selector.match_labels.get_or_insert_default();
    selector.extend([label.clone()]);
    let metadata = spec.template.metadata.get_or_insert_default();
    let labels = metadata.labels.get_or_insert_default();
    labels.extend([label.clone()]);
    let configuration = (CONFIGURATION.to_owned(), pod_configuration(fabric));
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.extend([configuration]);
    let pod = spec.template.spec.get_or_insert_default();
    // Pods run on the nodes that the operator has labelled for the fabric, beside what the chart asks for.
    // Nothing of this depends on which nodes those are: a template that did would be rolled out anew, to all
    // nodes of the fabric, whenever one comes or goes.
    pod.node_selector.get_or_insert_default().extend([label]);
    mount_roots(pod, fabric);
    if let Some(agent) = container(pod) {
        let more = arguments(template, fabric);
        agent.args.get_or_insert_default().extend(more);
    }
    let hash = hash(&set);
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(APPLIED.to_owned(), hash);
    set
}

/// Names a manifest; equal manifests have equal names.
fn hash(set: &DaemonSet) -> String {
    let text = serde_json::to_vec(set).unwrap_or_default();
    blake3::hash(&text).to_hex()[..16].to_owned()
}

fn arguments(template: &AgentTemplate, fabric: &RdmaFabric) -> [String; 3] {
    [
        format!("--operator={}", template.leader_address),
        format!("--fabric={}", fabric.name_any()),
        format!("--pod-configuration={}", pod_configuration(fabric)),
    ]
}

/// The one that is named so, else the first.
fn container(pod: &mut PodSpec) -> Option<&mut Container> {
    let at = pod
        .containers
        .iter()
        .position(|container| container.name == CONTAINER);
    pod.containers.get_mut(at.unwrap_or(0))
}

/// Exactly the roots are mounted.
fn mount_roots(pod: &mut PodSpec, fabric: &RdmaFabric) {
    let root = |root: &Root| {
        let name = format!("root-{}", root.name);
        let volume = Volume {
            name: name.clone(),
            host_path: Some(HostPathVolumeSource {
                path: root.host_path.clone(),
                type_: Some("DirectoryOrCreate".to_owned()),
            }),
            ..Volume::default()
        };
        let mount = VolumeMount {
            name,
            mount_path: format!("{ROOTS}/{}", root.name),
            // File systems that are mounted below it later are seen, too.
            mount_propagation: Some("HostToContainer".to_owned()),
            read_only: (root.access == RootAccess::ReadOnly).then_some(true),
            ..VolumeMount::default()
        };
        (volume, mount)
    };
    let (volumes, mounts): (Vec<_>, Vec<_>) = fabric.spec.roots.iter().map(root).unzip();
    pod.volumes.get_or_insert_default().extend(volumes);
    if let Some(agent) = container(pod) {
        agent.volume_mounts.get_or_insert_default().extend(mounts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::tests::scenario;

    fn template(yaml: &str) -> AgentTemplate {
        AgentTemplate {
            manifest: serde_saphyr::from_str(yaml).unwrap(),
            namespace: "weft-system".into(),
            leader_address: "10.96.0.9:7410".into(),
            owner: None,
        }
    }

    const TEMPLATE: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: weft-agent, labels: {app: weft-agent}}
spec:
  selector: {matchLabels: {app: weft-agent}}
  template:
    metadata: {labels: {app: weft-agent}}
    spec:
      hostNetwork: true
      containers:
      - name: agent
        image: weft.dev/agent:0.1.0
        env: [{name: RUST_BACKTRACE, value: '1'}]
        args: [--log=info]
        volumeMounts: [{name: state, mountPath: /var/lib/weft/agent}]
      volumes: [{name: state, emptyDir: {medium: Memory}}]
";

    #[test]
    fn a_fabric_gets_the_template_with_its_own_name_nodes_and_roots() {
        let fabric = scenario::fabric("default", 1);
        let set = daemon_set(&template(TEMPLATE), &fabric);
        let text = serde_saphyr::to_string(&serde_json::to_value(&set).unwrap()).unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_applied_hash_tells_one_manifest_from_another() {
        let applied = |set: &DaemonSet| set.metadata.annotations.as_ref().unwrap()[APPLIED].clone();
        let fabric = scenario::fabric("default", 1);
        let template = template(TEMPLATE);
        let one = daemon_set(&template, &fabric);
        let again = daemon_set(&template, &fabric);
        assert_eq!(applied(&one), applied(&again));
        let mut other = fabric.clone();
        other.spec.roots[0].access = RootAccess::ReadOnly;
        assert_ne!(applied(&one), applied(&daemon_set(&template, &other)));
    }

    #[test]
    fn another_selector_rolls_no_agent() {
        let fabric = scenario::fabric("default", 1);
        let mut other = fabric.clone();
        other.spec.node_selector = Default::default();
        let template = template(TEMPLATE);
        assert_eq!(
            daemon_set(&template, &fabric),
            daemon_set(&template, &other)
        );
    }

    #[test]
    fn the_charts_own_selector_and_affinity_are_kept_beside_the_fabrics_label() {
        let mut template = template(TEMPLATE);
        let affinity = serde_json::json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
            ]},
        }});
        let pod = template.manifest.spec.as_mut().unwrap();
        let pod = pod.template.spec.as_mut().unwrap();
        pod.affinity = serde_json::from_value(affinity.clone()).unwrap();
        pod.node_selector = Some([("gpu".to_owned(), "true".to_owned())].into());
        let set = daemon_set(&template, &scenario::fabric("default", 1));
        let set = serde_json::to_value(set).unwrap();
        let pod = &set["spec"]["template"]["spec"];
        let selector = serde_json::json!({"gpu": "true", FABRIC_LABEL: "default"});
        assert_eq!(
            (&pod["affinity"], &pod["nodeSelector"]),
            (&affinity, &selector)
        );
    }
}
