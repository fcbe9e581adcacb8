//! The chart, as `helm` renders it.

// Most of it stands beside the `#[test]` functions, so clippy does not see that it is a test.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};
use weft_crds::{FabricPage, NodeMetrics};
use weft_identity::{AGENT_NAME, OPERATOR_NAME};

const NAMESPACE: &str = "weft-system";

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn chart() -> PathBuf {
    repository().join("charts/weft")
}

/// The program; fetched if this machine does not have it.
fn helm() -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let script = repository().join("hack/cluster-binaries.sh");
        let output = Command::new(script).arg("helm").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let directory = String::from_utf8(output.stdout).unwrap();
        PathBuf::from(directory.trim()).join("helm")
    });
    Command::new(program)
}

fn template(values: &[&str]) -> Output {
    let mut command = helm();
    command.args(["template", "weft"]).arg(chart());
    command.args(["--namespace", NAMESPACE]);
    for value in values {
        command.args(["--set-json", value]);
    }
    command.output().unwrap()
}

/// What the chart installs with these values.
struct Rendered(Vec<Value>);

fn rendered(values: &[&str]) -> Rendered {
    let output = template(values);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{values:?}: {said}");
    let text = String::from_utf8(output.stdout).unwrap();
    let documents = text.split("\n---\n").map(yaml);
    Rendered(documents.filter(|one| !one.is_null()).collect())
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

impl Rendered {
    fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |one| one["kind"] == kind)
    }

    fn find(&self, kind: &str, name: &str) -> &Value {
        let is_it = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == name;
        let found = self.0.iter().find(is_it);
        found.unwrap_or_else(|| panic!("no {kind} {name}"))
    }

    fn operator(&self) -> &Value {
        &self.find("Deployment", "weft-operator")["spec"]["template"]
    }

    /// The DaemonSet that the operator starts from.
    fn agent(&self) -> Value {
        let template = &self.find("ConfigMap", "weft-agent-template")["data"]["agent.yaml"];
        yaml(template.as_str().unwrap())
    }
}

/// What is refused, and how.
fn refusal(value: &str) -> String {
    let output = template(&[value]);
    assert!(!output.status.success(), "{value} is accepted");
    String::from_utf8(output.stderr).unwrap()
}

fn strings(list: &Value) -> Vec<&str> {
    let list = list.as_array().into_iter().flatten();
    list.map(|one| one.as_str().unwrap()).collect()
}

#[test]
fn helm_finds_nothing_to_say_about_the_chart() {
    for values in [&[][..], &["--set", "serviceMonitor.enabled=true"]] {
        let mut command = helm();
        command.args(["lint", "--strict"]).arg(chart()).args(values);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn an_agent_finds_what_the_chart_mounts_and_is_told_where_it_runs() {
    let agent = rendered(&[]).agent();
    let agent = &agent["spec"]["template"]["spec"]["containers"][0];
    let mounts = agent["volumeMounts"].as_array().unwrap();
    let args = strings(&agent["args"]);
    for (flag, mount) in [
        ("--operator-ca=", "/etc/weft/ca"),
        ("--token=", "/var/run/secrets/weft.dev"),
        ("--state=", "/var/lib/weft/agent"),
    ] {
        let path = args.iter().find_map(|arg| arg.strip_prefix(flag)).unwrap();
        assert!(path.starts_with(mount), "{path}");
        assert!(
            mounts.iter().any(|one| one["mountPath"] == mount),
            "{mount}"
        );
    }
    for (name, field) in [
        ("NODE_NAME", "spec.nodeName"),
        ("NODE_ADDRESS", "status.hostIP"),
    ] {
        let mut variables = agent["env"].as_array().unwrap().iter();
        let variable = variables.find(|one| one["name"] == name).unwrap();
        assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], field);
    }
}

#[test]
fn the_chart_has_the_release_of_the_programs() {
    let chart = yaml(&fs::read_to_string(chart().join("Chart.yaml")).unwrap());
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    let rendered = rendered(&[]);
    let image = |pod: &Value| pod["spec"]["containers"][0]["image"].clone();
    let tag = env!("CARGO_PKG_VERSION");
    assert_eq!(
        image(rendered.operator()),
        format!("weft.dev/operator:{tag}")
    );
    let agent = rendered.agent();
    assert_eq!(
        image(&agent["spec"]["template"]),
        format!("weft.dev/agent:{tag}")
    );
}

#[test]
fn a_digest_wins_over_the_tag_in_every_pod_and_in_what_the_policy_allows() {
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let values = [
        "image.tag=\"7\"".to_owned(),
        format!(
            "image.digests={}",
            json!({"operator": digest("a"), "agent": digest("b")})
        ),
    ];
    let rendered = rendered(&values.each_ref().map(String::as_str));
    let image = |pod: &Value| pod["spec"]["containers"][0]["image"].clone();
    let operator = format!("weft.dev/operator@{}", digest("a"));
    let job = &rendered.find("Job", "weft-uninstall")["spec"]["template"];
    let check = rendered.find("Pod", "weft-check");
    for pod in [rendered.operator(), job, check] {
        assert_eq!(image(pod), operator);
    }
    let agent = format!("weft.dev/agent@{}", digest("b"));
    assert_eq!(image(&rendered.agent()["spec"]["template"]), agent);
    let policy = rendered.find("ValidatingAdmissionPolicy", "operator-daemonsets.weft.dev");
    assert!(policy.to_string().contains(&format!("image == '{agent}'")));

    let one = format!("image.digests.agent=\"{}\"", digest("b"));
    let one = self::rendered(&["image.tag=\"7\"", &one]);
    assert_eq!(image(one.operator()), "weft.dev/operator:7");
}

#[test]
fn annotations_labels_variables_and_flags_reach_operator_hooks_and_agents() {
    let settings = |who: &str| {
        json!({
            "podAnnotations": {"example.org/note": who},
            "podLabels": {"team": who},
            "extraEnv": [{"name": "RUST_BACKTRACE", "value": format!("it's {who} <1>")}],
            "extraArgs": ["--log-json"],
            "serviceAccount": {"annotations": {"example.org/role": who}},
        })
    };
    let values = ["operator", "agent"].map(|who| format!("{who}={}", settings(who)));
    let (plain, with) = (
        rendered(&[]),
        rendered(&values.each_ref().map(String::as_str)),
    );
    let pods = |rendered: &Rendered| {
        [
            ("operator", rendered.operator().clone()),
            (
                "operator",
                rendered.find("Job", "weft-uninstall")["spec"]["template"].clone(),
            ),
            (
                "operator",
                rendered.find("Job", "weft-upgrade")["spec"]["template"].clone(),
            ),
            ("operator", rendered.find("Pod", "weft-check").clone()),
            ("agent", rendered.agent()["spec"]["template"].clone()),
        ]
    };
    for ((who, pod), (_, before)) in pods(&with).into_iter().zip(pods(&plain)) {
        let settings = settings(who);
        let metadata = &pod["metadata"];
        assert_eq!(metadata["annotations"]["example.org/note"], who);
        assert_eq!(metadata["labels"]["team"], who);
        for (name, value) in before["metadata"]["labels"].as_object().unwrap() {
            assert_eq!(&metadata["labels"][name], value, "a label of the chart");
        }
        let list = |pod: &Value, key: &str| {
            let list = pod["spec"]["containers"][0][key].as_array();
            list.cloned().unwrap_or_default()
        };
        let more = |key: &str| {
            let mut more = list(&pod, key);
            more.retain(|one| !list(&before, key).contains(one));
            Value::from(more)
        };
        assert_eq!(more("env"), settings["extraEnv"], "{who}");
        // The hooks' verbs have other flags.
        if list(&pod, "ports") != list(&Value::Null, "ports") {
            assert_eq!(more("args"), settings["extraArgs"], "{who}");
        }
        let account = with.find("ServiceAccount", &format!("weft-{who}"));
        let annotations = &account["metadata"]["annotations"];
        assert_eq!(annotations, &settings["serviceAccount"]["annotations"]);
    }
}

#[test]
fn agents_have_a_way_to_stores_and_an_identity_there_only_if_the_values_say_so() {
    let agent = |values: &[&str]| {
        let agent = rendered(values).agent();
        agent["spec"]["template"]["spec"]["containers"][0].clone()
    };
    let plain = agent(&[]);
    for list in [&plain["args"], &plain["env"]] {
        let text = list.to_string();
        assert!(!text.contains("store") && !text.contains("STORE"), "{text}");
        assert!(!text.contains("identity"), "{text}");
    }
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let stores = json!({
        "proxy": "http://proxy.example:3128",
        "noProxy": ["10.0.0.0/8", "minio.example"],
        "caBundle": pem,
        "workloadIdentity": [
            {"namespace": "team-a", "prefix": "s3://models/team-a/"},
            {"namespace": "*", "prefix": "az://public/"},
        ],
    });
    let with = agent(&[&format!("agent.objectStores={stores}")]);
    let args = strings(&with["args"]);
    for flag in [
        "--store-proxy=http://proxy.example:3128",
        "--store-no-proxy=10.0.0.0/8,minio.example",
        "--workload-identity=team-a=s3://models/team-a/",
        "--workload-identity=*=az://public/",
    ] {
        assert!(args.contains(&flag), "{flag}: {args:?}");
    }
    let variable = json!({"name": "WEFT_STORE_CA", "value": pem});
    assert!(with["env"].as_array().unwrap().contains(&variable));
}

#[test]
fn a_program_with_one_port_for_two_purposes_is_refused() {
    for (value, text) in [
        (
            "operator.ports.live=7411",
            "operator.ports: live and metrics are both 7411; choose different ports",
        ),
        (
            "agent.ports={\"control\":7500,\"metrics\":7500}",
            "agent.ports: control and metrics are both 7500",
        ),
    ] {
        let output = template(&[value]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(text), "{said}");
    }
}

#[test]
fn what_is_not_a_value_is_refused_by_its_name() {
    for (value, named) in [
        ("operater={}", "operater"),
        ("operator.replica=3", "replica"),
        ("agent.features.readAnything=true", "readAnything"),
        ("operator.replicas=0", "operator.replicas"),
        ("operator.replicas=\"two\"", "operator.replicas"),
        ("agent.ports.control=80", "agent.ports.control"),
        ("image.pullPolicy=\"Sometimes\"", "image.pullPolicy"),
        ("imagePullSecrets=[\"secret\"]", "imagePullSecrets.0"),
        ("agent.maxUnavailable=\"0%\"", "agent.maxUnavailable"),
        (
            "networkPolicy.nodeCIDRs=[\"10.0.0.1\"]",
            "networkPolicy.nodeCIDRs.0",
        ),
        ("networkPolicy.metricsFrom={\"team\":\"sre\"}", "team"),
        ("agent.tolerations=[{\"operater\":\"Exists\"}]", "operater"),
        (
            "agent.resources.requests.memory=\"lots\"",
            "agent.resources.requests.memory",
        ),
        (
            "operator.resources.limits.memory=\"256MB\"",
            "operator.resources.limits.memory",
        ),
        (
            "agent.objectStores.proxy=\"proxy.example:3128\"",
            "agent.objectStores.proxy",
        ),
        (
            "agent.objectStores.caBundle=\"/etc/ssl/ca.pem\"",
            "agent.objectStores.caBundle",
        ),
        (
            "agent.objectStores.workloadIdentity=[{\"namespace\":\"a\",\"prefix\":\"s3://models/x\"}]",
            "agent.objectStores.workloadIdentity.0.prefix",
        ),
        (
            "agent.objectStores.workloadIdentity=[{\"prefix\":\"s3://models/\"}]",
            "namespace is required",
        ),
        ("image.digests.agent=\"latest\"", "image.digests.agent"),
        ("image.tag=\"no such tag\"", "image.tag"),
        ("agent.log=\"a=b=c\"", "agent.log"),
        ("operator.log=\"???\"", "operator.log"),
        // What the chart or the operator sets itself would be there twice, or be lost.
        (
            "operator.podLabels={\"app.kubernetes.io/name\":\"ours\"}",
            "operator.podLabels",
        ),
        (
            "agent.podLabels={\"weft.dev/fabric\":\"ours\"}",
            "agent.podLabels",
        ),
        (
            "agent.podAnnotations={\"weft.dev/configuration\":\"ours\"}",
            "agent.podAnnotations",
        ),
        (
            "operator.podAnnotations={\"helm.sh/hook\":\"test\"}",
            "operator.podAnnotations",
        ),
        (
            "operator.extraArgs=[\"--log=debug\"]",
            "operator.extraArgs: --log is given already",
        ),
        (
            "agent.extraArgs=[\"--fabric=ours\"]",
            "agent.extraArgs: --fabric is given already",
        ),
        (
            "agent.extraArgs=[\"--engine-socket=/ours\"]",
            "agent.extraArgs: --engine-socket is given already",
        ),
        (
            "operator.extraEnv=[{\"name\":\"POD_IP\",\"value\":\"10.0.0.1\"}]",
            "operator.extraEnv: POD_IP is given already",
        ),
        (
            "agent.extraEnv=[{\"name\":\"NODE_NAME\",\"value\":\"n1\"}]",
            "agent.extraEnv: NODE_NAME is given already",
        ),
        (
            "agent.extraEnv=[{\"name\":\"KEY\",\"valueFrom\":{\"secretKeyRef\":{}}}]",
            "valueFrom is not allowed",
        ),
    ] {
        let said = refusal(value);
        assert!(said.contains(named), "{value}: {said}");
    }
}

#[test]
fn every_value_of_the_schema_has_a_default_and_the_other_way_round() {
    fn properties(schema: &Value, path: &str, into: &mut BTreeSet<String>) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}/{name}");
            properties(schema, &path, into);
            into.insert(path);
        }
    }
    fn defaults(values: &Value, schema: &Value, path: &str, into: &mut BTreeSet<String>) {
        // Below a value whose members the schema does not list everything is the user's own.
        if schema["properties"].is_null() {
            return;
        }
        for (name, value) in values.as_object().into_iter().flatten() {
            let path = format!("{path}/{name}");
            defaults(value, &schema["properties"][name], &path, into);
            into.insert(path);
        }
    }
    let read = |name: &str| fs::read_to_string(chart().join(name)).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let (mut listed, mut given) = (BTreeSet::new(), BTreeSet::new());
    properties(&schema, "", &mut listed);
    defaults(&yaml(&read("values.yaml")), &schema, "", &mut given);
    listed.remove("/global");
    assert_eq!(listed, given);
}

#[test]
fn every_value_has_a_type_and_a_description() {
    fn look(schema: &Value, definitions: &Value, path: &str) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let said = schema["description"].as_str().unwrap_or_default();
            assert!(!said.is_empty(), "{path} has no description");
            let definition = schema["$ref"].as_str().unwrap_or_default();
            let definition = &definitions[definition.trim_start_matches("#/definitions/")];
            let types = ["type", "oneOf"].map(|key| schema.get(key).or(definition.get(key)));
            assert!(types.iter().any(Option::is_some), "{path} has no type");
            look(schema, definitions, &path);
        }
    }
    let schema = fs::read_to_string(chart().join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    look(&schema, &schema["definitions"], "");
}

#[test]
fn the_operator_runs_as_nobody_and_can_change_nothing_of_its_container() {
    let rendered = rendered(&[]);
    let pod = &rendered.operator()["spec"];
    assert_eq!(
        pod["securityContext"],
        json!({
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        })
    );
    assert_eq!(
        pod["containers"][0]["securityContext"],
        json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        })
    );
}

#[test]
fn traces_are_sent_where_a_collector_is_named_and_nowhere_else() {
    let flags =
        |values: &[&str]| rendered(values).operator()["spec"]["containers"][0]["args"].to_string();
    assert!(!flags(&[]).contains("otlp"));
    let url = "http://collector.monitoring:4317";
    let value = format!("operator.otlpEndpoint={url:?}");
    assert!(flags(&[&value]).contains(&format!("\"--otlp-endpoint={url}\"")));
    for wrong in ["collector:4317", "https://collector:4317"] {
        let output = template(&[&format!("operator.otlpEndpoint={wrong:?}")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains("otlpEndpoint"),
            "{said}"
        );
    }
}

/// Before anything is removed, and only on request.
#[test]
fn hooks_run_the_operators_program_as_nobody_with_its_account() {
    let rendered = rendered(&["imagePullSecrets=[{\"name\":\"registry\"}]"]);
    let job = rendered.find("Job", "weft-uninstall");
    let pod = rendered.find("Pod", "weft-check");
    let hook = |one: &Value| one["metadata"]["annotations"]["helm.sh/hook"].clone();
    assert_eq!((hook(job), hook(pod)), (json!("pre-delete"), json!("test")));
    let operator = &rendered.operator()["spec"];
    for (spec, verb) in [
        (&job["spec"]["template"]["spec"], "uninstall"),
        (&pod["spec"], "check"),
    ] {
        for same in ["serviceAccountName", "securityContext", "imagePullSecrets"] {
            assert_eq!(spec[same], operator[same], "{verb}: {same}");
        }
        let (ours, theirs) = (&spec["containers"][0], &operator["containers"][0]);
        for same in ["image", "securityContext", "resources"] {
            assert_eq!(ours[same], theirs[same], "{verb}: {same}");
        }
        assert_eq!(ours["args"], json!([verb, "--metrics-port=7411"]));
    }
    let upgrade = rendered.find("Job", "weft-upgrade");
    assert_eq!(hook(upgrade), json!("pre-upgrade,pre-rollback"));
    let pod_of = |job: &Value| job["spec"]["template"]["spec"].clone();
    let mut same = pod_of(upgrade);
    assert_eq!(same["serviceAccountName"], "weft-upgrade");
    for kind in ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"] {
        assert_eq!(hook(rendered.find(kind, "weft-upgrade")), hook(upgrade));
    }
    same["serviceAccountName"] = json!("weft-operator");
    same["containers"][0]["name"] = json!("uninstall");
    same["containers"][0]["args"] = json!(["uninstall", "--metrics-port=7411"]);
    assert_eq!(same, pod_of(job));
    // Neither is taken for an operator by the Service, the disruption budget or the spread.
    let wanted = &rendered.find("Deployment", "weft-operator")["spec"]["selector"]["matchLabels"];
    for labels in [
        &job["spec"]["template"]["metadata"]["labels"],
        &upgrade["spec"]["template"]["metadata"]["labels"],
        &pod["metadata"]["labels"],
    ] {
        let name = "app.kubernetes.io/name";
        assert_ne!(labels[name], wanted[name]);
    }
}

/// What an upgrade or a rollback to these values asks about first.
#[test]
fn an_upgrade_looks_whether_pods_have_what_its_values_take_away() {
    let taken = |values: &[&str]| -> Option<Vec<String>> {
        let rendered = rendered(values);
        let mut jobs = rendered.of_kind("Job");
        let job = jobs.find(|job| job["metadata"]["name"] == "weft-upgrade")?;
        let args = &job["spec"]["template"]["spec"]["containers"][0]["args"];
        let taken = strings(args).into_iter();
        let taken = taken.filter_map(|arg| arg.strip_prefix("--takes-away="));
        Some(taken.map(str::to_owned).collect())
    };
    let (volumes, devices) = ("volumes.enabled=true", "devices.enabled=true");
    let [both, dra] = ["both", "dra"].map(|mode| format!("devices.mode={}", json!(mode)));
    let (both, dra) = (both.as_str(), dra.as_str());
    for (values, expected) in [
        (&[][..], Some(&["volumes", "devices", "claims"][..])),
        (&[volumes], Some(&["devices", "claims"])),
        (&[volumes, devices], Some(&["claims"])),
        (&[devices, both], Some(&["volumes"])),
        (&[volumes, devices, both], None),
        (&[volumes, devices, dra], Some(&["resource"])),
        (&[dra], Some(&["volumes", "devices", "claims"])),
    ] {
        let expected = expected.map(|list| list.iter().map(|one| (*one).to_owned()).collect());
        assert_eq!(taken(values), expected, "{values:?}");
    }
}

#[test]
fn one_replica_of_several_may_be_away_and_one_alone_is_not_guarded() {
    let several = rendered(&[]);
    let operator = several.find("Deployment", "weft-operator");
    assert_eq!(operator["spec"]["replicas"], 2);
    let budget = several.find("PodDisruptionBudget", "weft-operator");
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    assert_eq!(budget["spec"]["selector"], operator["spec"]["selector"]);
    let alone = rendered(&["operator.replicas=1"]);
    assert_eq!(alone.of_kind("PodDisruptionBudget").count(), 0);
}

#[test]
fn the_service_leaves_it_to_the_leader_who_answers() {
    let rendered = rendered(&[]);
    let service = rendered.find("Service", "weft-operator");
    assert!(service["spec"]["selector"].is_null());
    assert_eq!(service["spec"]["ports"][0]["port"], 7410);
}

#[test]
fn an_agent_is_given_the_capabilities_of_its_features_and_nothing_else() {
    for (features, capabilities) in [
        (None, &["DAC_READ_SEARCH"][..]),
        (Some((false, false)), &[]),
        (Some((true, false)), &["DAC_READ_SEARCH"]),
        (Some((false, true)), &["DAC_OVERRIDE"]),
        (Some((true, true)), &["DAC_READ_SEARCH", "DAC_OVERRIDE"]),
    ] {
        let value = features.map(
            |(read, write)| json!({"readFilesOfOthers": read, "writeToDirectoriesOfOthers": write}),
        );
        let value = value.map(|value| format!("agent.features={value}"));
        let agent = rendered(&value.iter().map(String::as_str).collect::<Vec<_>>()).agent();
        let context = &agent["spec"]["template"]["spec"]["containers"][0]["securityContext"];
        assert_eq!(strings(&context["capabilities"]["drop"]), ["ALL"]);
        assert_eq!(strings(&context["capabilities"]["add"]), capabilities);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert!(context["privileged"].is_null());
    }
}

#[test]
fn an_agent_is_on_the_nodes_network_in_spite_of_every_taint_with_a_token_for_the_operator_only() {
    let rendered = rendered(&[]);
    let agent = rendered.agent();
    let pod = &agent["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(pod["automountServiceAccountToken"], false);
    let volumes = pod["volumes"].as_array().unwrap();
    let tokens: Vec<&Value> = volumes
        .iter()
        .flat_map(|volume| {
            volume["projected"]["sources"]
                .as_array()
                .into_iter()
                .flatten()
        })
        .collect();
    assert_eq!(tokens.len(), 1);
    assert_eq!(
        tokens[0]["serviceAccountToken"]["audience"],
        "weft.dev/operator"
    );
    // The operator puts the roots there; the chart itself shows an agent nothing of its node.
    assert!(volumes.iter().all(|volume| volume["hostPath"].is_null()));
    // The DaemonSet of one fabric is told from another's by a label that the operator adds.
    let (selector, labels) = (
        &agent["spec"]["selector"]["matchLabels"],
        &agent["spec"]["template"]["metadata"]["labels"],
    );
    for (name, value) in selector.as_object().unwrap() {
        assert_eq!(&labels[name], value);
    }
}

#[test]
fn a_changed_agent_restarts_the_operator_that_has_read_the_old_one() {
    let mark = |values: &[&str]| {
        rendered(values).operator()["metadata"]["annotations"]["weft.dev/agent-template"].clone()
    };
    assert_eq!(mark(&[]), mark(&["operator.log=\"debug\""]));
    assert_ne!(mark(&[]), mark(&["agent.log=\"debug\""]));
}

#[test]
fn secrets_for_the_registry_reach_operator_and_agents() {
    let rendered = rendered(&["imagePullSecrets=[{\"name\":\"registry\"}]"]);
    let secrets = json!([{"name": "registry"}]);
    assert_eq!(rendered.operator()["spec"]["imagePullSecrets"], secrets);
    let agent = rendered.agent();
    assert_eq!(
        agent["spec"]["template"]["spec"]["imagePullSecrets"],
        secrets
    );
}

#[test]
fn definitions_outlive_the_release() {
    let rendered = rendered(&[]);
    let kept: Vec<&Value> = rendered
        .of_kind("CustomResourceDefinition")
        .map(|one| &one["metadata"]["annotations"]["helm.sh/resource-policy"])
        .collect();
    assert_eq!(kept, ["keep"; 3]);
}

#[test]
fn agents_may_ask_the_api_server_nothing() {
    let rendered = rendered(&[]);
    let bindings = ["RoleBinding", "ClusterRoleBinding"].map(|kind| rendered.of_kind(kind));
    let bound: BTreeSet<&str> = bindings
        .into_iter()
        .flatten()
        .flat_map(|binding| binding["subjects"].as_array().unwrap())
        .map(|subject| subject["name"].as_str().unwrap())
        .collect();
    // Nothing runs as the last one: readers of metrics have tokens of it.
    let accounts = ["weft-operator", "weft-upgrade", "weft-metrics-reader"];
    assert_eq!(bound, BTreeSet::from(accounts));
    let account = rendered.find("ServiceAccount", "weft-agent");
    assert_eq!(account["automountServiceAccountToken"], false);
}

#[test]
fn the_live_api_is_there_whole_or_not_at_all() {
    let on = rendered(&[]);
    let service = &on.find("APIService", "v1alpha1.live.weft.dev")["spec"]["service"];
    let replicas = &on.find("Service", service["name"].as_str().unwrap())["spec"];
    assert_eq!(service["port"], replicas["ports"][0]["port"]);
    // All replicas serve the discovery of the group; agents reach the leader and nobody else.
    let labels = &on.operator()["metadata"]["labels"];
    for (key, value) in replicas["selector"].as_object().unwrap() {
        assert_eq!(&labels[key], value, "{key}");
    }
    let leader = &on.find("Service", "weft-operator")["spec"];
    assert_eq!(leader["selector"], Value::Null);
    let arguments = |rendered: &Rendered| {
        strings(&rendered.operator()["spec"]["containers"][0]["args"]).join(" ")
    };
    assert!(arguments(&on).contains("--live-port=7412"));

    let off = rendered(&["liveApi.enabled=false", "metrics.auth=false"]);
    assert_eq!(off.of_kind("APIService").count(), 0);
    let mut services = off.of_kind("Service").map(|one| &one["metadata"]["name"]);
    assert!(services.all(|name| name != "weft-operator-live"));
    assert!(!arguments(&off).contains("--live-port"));
    let rules = off.find("ClusterRole", "weft-operator")["rules"].to_string();
    assert!(!rules.contains("apiservices") && !rules.contains("subjectaccessreviews"));
    let bound = off.of_kind("RoleBinding");
    let namespaces = bound.map(|one| one["metadata"]["namespace"].clone());
    assert!(
        namespaces
            .into_iter()
            .all(|namespace| namespace == NAMESPACE)
    );
}

/// The programs have their flag, the operator its rights, and Prometheus its token; or none of these is there.
#[test]
fn metrics_are_for_the_readers_whom_the_chart_makes_unless_a_value_opens_them() {
    let flag = "--metrics-auth";
    let flags = |rendered: &Rendered| {
        let operator = rendered.operator()["spec"]["containers"][0].clone();
        let agent = rendered.agent()["spec"]["template"]["spec"]["containers"][0].clone();
        [operator, agent].map(|container| strings(&container["args"]).contains(&flag))
    };
    let secrets =
        |rendered: &Rendered| -> Vec<Value> { rendered.of_kind("Secret").cloned().collect() };
    for monitor in ["podMonitor", "serviceMonitor"] {
        let on = rendered(&[&format!("{monitor}.enabled=true")]);
        assert_eq!(flags(&on), [true, true]);
        let role = on.find("ClusterRole", "weft-metrics-reader");
        let rule = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
        assert_eq!(role["rules"], rule);
        let binding = on.find("ClusterRoleBinding", "weft-metrics-reader");
        assert_eq!(binding["roleRef"]["name"], "weft-metrics-reader");
        let reader = json!([{
            "kind": "ServiceAccount", "name": "weft-metrics-reader", "namespace": NAMESPACE,
        }]);
        assert_eq!(binding["subjects"], reader);
        on.find("ServiceAccount", "weft-metrics-reader");
        // Without the live API, too.
        let on = rendered(&[&format!("{monitor}.enabled=true"), "liveApi.enabled=false"]);
        let rules = on.find("ClusterRole", "weft-operator")["rules"].to_string();
        assert!(rules.contains("subjectaccessreviews"), "{rules}");
        let [secret] = &secrets(&on)[..] else {
            panic!("{:?}", secrets(&on));
        };
        assert_eq!(secret["type"], "kubernetes.io/service-account-token");
        let of = &secret["metadata"]["annotations"]["kubernetes.io/service-account.name"];
        assert_eq!(of, "weft-metrics-reader");

        let kind = format!("{}{}", monitor[..1].to_uppercase(), &monitor[1..]);
        let endpoints = |rendered: &Rendered| {
            let spec = &rendered.find(&kind, "weft-agent")["spec"];
            let name = if monitor == "podMonitor" {
                "podMetricsEndpoints"
            } else {
                "endpoints"
            };
            spec[name][0].clone()
        };
        let credentials = |rendered: &Rendered| {
            endpoints(rendered)["authorization"]["credentials"]["name"].clone()
        };
        assert_eq!(credentials(&on), secret["metadata"]["name"]);
        let enabled = format!("{monitor}.enabled=true");
        let own = rendered(&[&enabled, "metrics.tokenSecret=\"prometheus-token\""]);
        assert_eq!(credentials(&own), "prometheus-token");
        assert_eq!(secrets(&own).len(), 0);

        let off = rendered(&[&enabled, "metrics.auth=false"]);
        assert_eq!(flags(&off), [false, false]);
        assert_eq!(secrets(&off).len(), 0);
        let text = Value::from(off.0.clone()).to_string();
        assert!(!text.contains("weft-metrics-reader"));
        for field in ["scheme", "tlsConfig", "authorization"] {
            assert_eq!(endpoints(&off)[field], Value::Null, "{field}");
        }
    }
    // A token that does not end is there for Prometheus only.
    assert_eq!(secrets(&rendered(&[])).len(), 0);
}

/// Every verb on every resource, so that a wider rule shows up as a changed line here.
#[test]
fn the_operator_may_do_this_in_the_cluster_and_this_in_its_namespace() {
    let rendered = rendered(&[]);
    let granted = |kind: &str| -> BTreeMap<String, BTreeSet<String>> {
        let rules = rendered.find(kind, "weft-operator")["rules"].as_array();
        let mut granted: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for rule in rules.unwrap() {
            let names = strings(&rule["resourceNames"]).join(",");
            for resource in strings(&rule["resources"]) {
                let about = if names.is_empty() {
                    resource.to_owned()
                } else {
                    format!("{resource} {names}")
                };
                let verbs = strings(&rule["verbs"]).into_iter().map(str::to_owned);
                granted.entry(about).or_default().extend(verbs);
            }
        }
        granted
    };
    let table = |lines: &[(&str, &str)]| -> BTreeMap<String, BTreeSet<String>> {
        let verbs = |verbs: &str| verbs.split(' ').map(str::to_owned).collect();
        let lines = lines.iter();
        lines
            .map(|(to, may)| ((*to).to_owned(), verbs(may)))
            .collect()
    };
    assert_eq!(
        granted("ClusterRole"),
        table(&[
            ("rdmafabrics", "get list watch patch"),
            ("rdmafabrics/status", "patch"),
            ("fabricnodes", "get list watch create patch delete"),
            ("fabricnodes/status", "patch"),
            ("transferjobs", "get list watch patch delete"),
            ("transferjobs/status", "patch"),
            ("nodes", "get list watch patch"),
            ("namespaces", "get list watch"),
            ("events", "create patch"),
            ("tokenreviews", "create"),
            ("subjectaccessreviews", "create"),
            ("apiservices v1alpha1.live.weft.dev", "patch"),
        ])
    );
    assert_eq!(
        granted("Role"),
        table(&[
            ("leases", "create"),
            ("leases weft-operator", "get update"),
            ("secrets", "create"),
            ("secrets weft-ca", "get update"),
            ("configmaps weft-ca", "create patch"),
            ("daemonsets", "list watch create patch delete"),
            ("services weft-operator", "get"),
            ("endpointslices weft-operator-leader", "get create patch"),
        ])
    );
}

#[test]
fn a_policy_that_nothing_binds_would_deny_nothing() {
    let rendered = rendered(&[]);
    let policies: BTreeSet<Option<&str>> = rendered
        .of_kind("ValidatingAdmissionPolicy")
        .map(|policy| policy["metadata"]["name"].as_str())
        .collect();
    let bound: BTreeSet<Option<&str>> = rendered
        .of_kind("ValidatingAdmissionPolicyBinding")
        .inspect(|binding| {
            assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
        })
        .map(|binding| binding["spec"]["policyName"].as_str())
        .collect();
    assert_eq!(policies.len(), 6);
    assert_eq!(policies, bound);
}

/// A tenant's own Role does; jobs that lack it say how it is made, for this account.
#[test]
fn nothing_in_the_chart_lets_the_operator_read_a_tenants_secret() {
    let rendered = rendered(&[]);
    let roles = rendered.of_kind("ClusterRole");
    for role in roles {
        let name = &role["metadata"]["name"];
        for rule in role["rules"].as_array().unwrap() {
            let resources = strings(&rule["resources"]);
            assert!(!resources.contains(&"secrets"), "{name}");
            assert!(!resources.contains(&"*"), "{name}");
        }
    }
    let elsewhere = rendered.of_kind("Role").filter(|role| {
        role["metadata"]["namespace"] != NAMESPACE && role["rules"].to_string().contains("secrets")
    });
    assert_eq!(elsewhere.count(), 0);
    let pod = &rendered.operator()["spec"];
    assert_eq!(pod["serviceAccountName"], weft_operator::NAME);
}

/// What the policies refuse is shown on a cluster; here, that they follow the chart's values.
#[test]
fn the_policies_of_the_operators_account_follow_the_agents_of_the_chart() {
    let policy = |rendered: &Rendered| {
        let policy = rendered.find("ValidatingAdmissionPolicy", "operator-daemonsets.weft.dev");
        policy["spec"].clone()
    };
    for values in [
        &[][..],
        &[
            "image={\"registry\":\"registry.example/weft\",\"tag\":\"7\"}",
            "agent.features={\"readFilesOfOthers\":false,\"writeToDirectoriesOfOthers\":true}",
            "roots.allowedHostPaths=[\"/srv/models\"]",
            "agent.extraEnv=[{\"name\":\"NOTE\",\"value\":\"it's <1>\"}]",
            "agent.extraArgs=[\"--log-json\"]",
            "devices.enabled=true",
        ],
    ] {
        let rendered = rendered(values);
        let said = policy(&rendered)["validations"].to_string();
        let said = said.replace("\\\"", "\"");
        let pod = &rendered.agent()["spec"]["template"]["spec"];
        let agent = &pod["containers"][0];
        let image = agent["image"].as_str().unwrap();
        assert!(said.contains(&format!("image == '{image}'")), "{said}");
        let capabilities = agent["securityContext"]["capabilities"].to_string();
        let capabilities = format!("\"capabilities\": dyn({capabilities})");
        assert!(said.contains(&capabilities), "{capabilities}: {said}");
        let account = pod["serviceAccountName"].as_str().unwrap();
        assert!(said.contains(&format!("== '{account}'")), "{said}");
        let variables = policy(&rendered)["variables"].clone();
        let variable = |name: &str| -> Value {
            let mut variables = variables.as_array().unwrap().iter();
            let found = variables.find(|one| one["name"] == name).unwrap();
            serde_json::from_str(found["expression"].as_str().unwrap()).unwrap()
        };
        // The operator adds roots, and three flags.
        let mounts = agent["volumeMounts"].as_array().unwrap();
        let paths = mounts.iter();
        let paths = paths.map(|one| (one["name"].as_str().unwrap(), &one["mountPath"]));
        let paths: BTreeMap<_, _> = paths.collect();
        assert_eq!(paths.len(), mounts.len(), "a volume is mounted twice");
        assert_eq!(variable("mounts"), json!(paths));
        assert_eq!(variable("arguments"), agent["args"]);
        let values = variable("values");
        for variable in agent["env"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            match variable["value"].is_null() {
                true => assert!(said.contains(&format!("\"{name}\"")), "{variable}"),
                false => assert_eq!(values[name], variable["value"], "{variable}"),
            }
        }
        let roots = &rendered.find("ValidatingAdmissionPolicy", "host-paths.weft.dev")["spec"];
        let variables = policy(&rendered)["variables"].clone();
        let allowed = variables.as_array().unwrap().iter();
        let allowed: Vec<&Value> = allowed.filter(|one| one["name"] == "allowed").collect();
        assert_eq!(allowed, [&roots["variables"][0]]);
    }
    let rendered = rendered(&[]);
    let account = format!(
        "request.userInfo.username == 'system:serviceaccount:{NAMESPACE}:{}'",
        weft_operator::NAME
    );
    for name in [
        "operator-nodes.weft.dev",
        "operator-fabrics.weft.dev",
        "operator-daemonsets.weft.dev",
    ] {
        let policy = &rendered.find("ValidatingAdmissionPolicy", name)["spec"];
        assert_eq!(policy["failurePolicy"], "Fail");
        assert_eq!(policy["matchConditions"][0]["expression"], account);
        assert!(policy["matchConditions"][1].is_null());
    }
}

#[test]
fn roots_are_allowed_where_the_value_says_and_an_older_fabric_can_be_deleted() {
    let allowed = |values: &[&str]| {
        let rendered = rendered(values);
        let policy = &rendered.find("ValidatingAdmissionPolicy", "host-paths.weft.dev")["spec"];
        assert_eq!(policy["failurePolicy"], "Fail");
        let condition = policy["matchConditions"][0]["expression"].as_str();
        assert!(
            condition
                .unwrap()
                .ends_with("object.spec != oldObject.spec")
        );
        let allowed = policy["variables"][0]["expression"].as_str().unwrap();
        serde_json::from_str::<Value>(allowed).unwrap()
    };
    assert_eq!(
        allowed(&[]),
        json!(["/var/lib/weft", "/mnt/disks", "/data"])
    );
    let values = ["roots.allowedHostPaths=[\"/srv/models\"]"];
    assert_eq!(allowed(&values), json!(["/srv/models"]));
    for path in ["/", "data", "/data/", "/data/../etc", "/a'b"] {
        let said = refusal(&format!("roots.allowedHostPaths={}", json!([path])));
        assert!(said.contains("roots.allowedHostPaths.0"), "{path}: {said}");
    }
    // By which the programs of a node meet.
    for path in [
        "/run",
        "/run/weft",
        "/run/weft/devices",
        "/var/run",
        "/var/run/weft",
    ] {
        let said = refusal(&format!(
            "roots.allowedHostPaths={}",
            json!(["/data", path])
        ));
        let told = format!("roots.allowedHostPaths: {path}: ");
        assert!(said.contains(&told), "{path}: {said}");
    }
    let values = [r#"roots.allowedHostPaths=["/run/weftling","/var/runs","/mnt/run/weft"]"#];
    assert_eq!(allowed(&values).as_array().unwrap().len(), 3);
    let said = refusal("roots.allowedHostPaths=[]");
    assert!(said.contains("roots.allowedHostPaths"), "{said}");
}

/// Roots and fabrics come and go after a job was made; its own word stays.
#[test]
fn the_right_to_shared_roots_is_asked_for_by_what_a_job_says_and_not_by_what_roots_are() {
    let rendered = rendered(&[]);
    let policy = &rendered.find("ValidatingAdmissionPolicy", "shared-roots.weft.dev")["spec"];
    let binding = &rendered.find("ValidatingAdmissionPolicyBinding", "shared-roots.weft.dev");
    assert_eq!(policy["failurePolicy"], "Fail");
    assert!(policy["paramKind"].is_null() && binding["spec"]["paramRef"].is_null());
    let said = policy["variables"].to_string();
    for field in ["spec.source.file.scope", "spec.destinations.scope"] {
        assert!(said.contains(&format!("object.{field} == 'Shared'")));
    }
    let asked = policy["validations"][0]["expression"].as_str().unwrap();
    assert!(asked.starts_with("!(variables.source || variables.destinations) ||"));
    assert!(asked.contains(".check('use').allowed()") && !asked.contains(".name("));
    let role = rendered.find("ClusterRole", "weft-use-shared-roots");
    let rule = json!([{"apiGroups": ["weft.dev"], "resources": ["rdmafabrics"], "verbs": ["use"]}]);
    assert_eq!(role["rules"], rule);
}

/// They name the jobs of all namespaces.
#[test]
fn a_role_that_is_aggregated_to_none_reads_the_metrics_of_nodes_and_the_pages_of_fabrics() {
    let rendered = rendered(&[]);
    let reads = |role: &&Value| role["rules"].to_string().contains("fabricnodes/metrics");
    let readers: Vec<&Value> = rendered.of_kind("ClusterRole").filter(reads).collect();
    let [role] = readers[..] else {
        panic!("{readers:?}");
    };
    assert_eq!(role["metadata"]["name"], "weft-monitor");
    let labels = role["metadata"]["labels"].as_object().unwrap();
    assert!(labels.keys().all(|label| !label.contains("aggregate")));
    let resources =
        NodeMetrics::ALL.map(|page| format!("{}/{}", NodeMetrics::RESOURCE, page.subresource()));
    let rule = json!({"apiGroups": ["live.weft.dev"], "resources": resources, "verbs": ["get"]});
    assert_eq!(role["rules"][0], rule);
    let pages = json!({
        "apiGroups": ["live.weft.dev"], "resources": [FabricPage::RESOURCE], "verbs": ["get", "watch"],
    });
    assert_eq!(role["rules"][1], pages);
    let names_pages = |role: &&Value| role["rules"].to_string().contains(FabricPage::RESOURCE);
    assert_eq!(
        rendered.of_kind("ClusterRole").filter(names_pages).count(),
        1
    );
}

#[test]
fn operators_take_connections_to_their_ports_and_metrics_from_chosen_namespaces() {
    let default = rendered(&[]);
    let policy = &default.find("NetworkPolicy", "weft-operator")["spec"];
    assert_eq!(policy["policyTypes"], json!(["Ingress"]));
    let labels = &default.operator()["metadata"]["labels"];
    for (name, value) in policy["podSelector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&labels[name], value);
    }
    // A policy that left out a port would close it.
    let ports = |container: &Value| -> BTreeMap<String, Value> {
        let ports = container["ports"].as_array().unwrap().iter();
        ports
            .map(|port| {
                (
                    port["name"].as_str().unwrap().to_owned(),
                    port["containerPort"].clone(),
                )
            })
            .collect()
    };
    let from = |rendered: &Rendered, name: &str| {
        let port = ports(&rendered.operator()["spec"]["containers"][0])[name].clone();
        let wanted = json!([{"protocol": "TCP", "port": port}]);
        let policy = &rendered.find("NetworkPolicy", "weft-operator")["spec"]["ingress"];
        let rules = policy.as_array().unwrap().iter();
        let mut rules = rules.filter(|rule| rule["ports"] == wanted);
        let rule = rules
            .next()
            .unwrap_or_else(|| panic!("{name} is closed: {policy}"));
        assert!(rules.next().is_none(), "{policy}");
        rule["from"].clone()
    };
    assert_eq!(from(&default, "control"), Value::Null);
    assert_eq!(from(&default, "live"), Value::Null);
    let metrics = json!([{"podSelector": {}}, {"namespaceSelector": {}}]);
    assert_eq!(from(&default, "metrics"), metrics);

    let narrow = rendered(&[
        "networkPolicy.nodeCIDRs=[\"10.0.0.0/16\",\"fd00::/64\"]",
        "networkPolicy.metricsFrom={\"matchLabels\":{\"team\":\"sre\"}}",
        "liveApi.enabled=false",
    ]);
    assert_eq!(
        from(&narrow, "control"),
        json!([{"ipBlock": {"cidr": "10.0.0.0/16"}}, {"ipBlock": {"cidr": "fd00::/64"}}])
    );
    let metrics = json!([
        {"podSelector": {}}, {"namespaceSelector": {"matchLabels": {"team": "sre"}}},
    ]);
    assert_eq!(from(&narrow, "metrics"), metrics);
    let rules = narrow.find("NetworkPolicy", "weft-operator")["spec"]["ingress"].as_array();
    assert_eq!(rules.unwrap().len(), 2);

    let off = rendered(&["networkPolicy.enabled=false"]);
    assert_eq!(off.of_kind("NetworkPolicy").count(), 0);
}

/// NOTES are rendered by an installation only, which the end-to-end tests make.
#[test]
fn whoever_installs_is_told_the_label_that_pod_security_asks_for() {
    let label = "pod-security.kubernetes.io/enforce=privileged";
    let notes = format!("kubectl label namespace {{{{ .Release.Namespace }}}} {label}");
    let command = format!("kubectl label namespace {NAMESPACE} {label}");
    for (file, said) in [
        ("charts/weft/templates/NOTES.txt", &notes),
        ("docs/install.md", &command),
        ("README.md", &command),
    ] {
        let text = fs::read_to_string(repository().join(file)).unwrap();
        assert!(text.contains(said), "{file} does not have: {said}");
    }
}

/// Where a cluster limits the classes, as GKE does, pods of a class need a quota for it.
#[test]
fn a_quota_allows_the_namespace_the_critical_classes_that_its_pods_use() {
    let classes = |values: &[&str]| {
        let rendered = rendered(values);
        let mut quotas = rendered.of_kind("ResourceQuota");
        let classes = quotas.next().map(|quota| {
            assert_eq!(quota["metadata"]["namespace"], NAMESPACE);
            let scope = &quota["spec"]["scopeSelector"]["matchExpressions"][0];
            assert_eq!(
                (&scope["scopeName"], &scope["operator"]),
                (&json!("PriorityClass"), &json!("In"))
            );
            scope["values"].clone()
        });
        assert_eq!(quotas.count(), 0);
        let pods = [rendered.operator(), &rendered.agent()["spec"]["template"]]
            .map(|pod| pod["spec"]["priorityClassName"].clone());
        (pods, classes)
    };
    let (cluster, node) = ("system-cluster-critical", "system-node-critical");
    assert_eq!(
        classes(&[]),
        ([json!(cluster), json!(node)], Some(json!([cluster, node])))
    );
    let both = format!("operator.priorityClassName=\"{node}\"");
    assert_eq!(
        classes(&[&both]),
        ([json!(node), json!(node)], Some(json!([node])))
    );
    let none = [
        "operator.priorityClassName=\"\"",
        "agent.priorityClassName=\"ours\"",
    ];
    assert_eq!(classes(&none), ([Value::Null, json!("ours")], None));
}

/// A port that stood in one place only would be one where nobody listens.
#[test]
fn ports_are_the_same_wherever_they_stand() {
    let rendered = rendered(&[
        "operator.ports={\"control\":8410,\"metrics\":8411,\"live\":8412}",
        "agent.ports={\"control\":8400,\"metrics\":8401}",
        "serviceMonitor.enabled=true",
        "networkPolicy.nodeCIDRs=[\"10.0.0.0/16\"]",
    ]);
    let text = Value::from(rendered.0.clone()).to_string();
    for port in ["7400", "7401", "7410", "7411", "7412"] {
        assert!(!text.contains(port), "{port} stands somewhere");
    }
    let container = |pod: &Value| pod["spec"]["containers"][0].clone();
    let ports = |list: &Value, key: &str| -> Vec<(String, u64)> {
        let list = list.as_array().unwrap().iter();
        list.map(|port| {
            (
                port["name"].as_str().unwrap().to_owned(),
                port[key].as_u64().unwrap(),
            )
        })
        .collect()
    };
    let named = |list: &[(&str, u64)]| -> Vec<(String, u64)> {
        list.iter()
            .map(|(name, port)| ((*name).to_owned(), *port))
            .collect()
    };
    let operator = container(rendered.operator());
    let agent = container(&rendered.agent()["spec"]["template"]);
    let of_operator = named(&[("control", 8410), ("metrics", 8411), ("live", 8412)]);
    let of_agent = named(&[("control", 8400), ("metrics", 8401)]);
    for (container, wanted) in [(&operator, &of_operator), (&agent, &of_agent)] {
        assert_eq!(&ports(&container["ports"], "containerPort"), wanted);
        for (name, port) in wanted {
            let flag = format!("--{name}-port={port}");
            assert!(
                strings(&container["args"]).contains(&flag.as_str()),
                "{flag}"
            );
        }
    }
    let service = &rendered.find("Service", "weft-operator")["spec"]["ports"];
    for key in ["port", "targetPort"] {
        assert_eq!(ports(service, key), named(&[("control", 8410)]));
    }
    let live = rendered.find("APIService", "v1alpha1.live.weft.dev");
    assert_eq!(live["spec"]["service"]["port"], 8412);
    for (name, port) in [
        ("weft-operator-metrics", 8411),
        ("weft-agent-metrics", 8401),
        ("weft-operator-live", 8412),
    ] {
        let service = &rendered.find("Service", name)["spec"]["ports"];
        let port_name = if port == 8412 { "live" } else { "metrics" };
        assert_eq!(ports(service, "port"), named(&[(port_name, port)]));
    }
    let policy = &rendered.find("NetworkPolicy", "weft-operator")["spec"]["ingress"];
    let open = policy.as_array().unwrap().iter();
    let open: BTreeSet<u64> = open
        .map(|rule| rule["ports"][0]["port"].as_u64().unwrap())
        .collect();
    assert_eq!(open, BTreeSet::from([8410, 8411, 8412]));
    let check = container(rendered.find("Pod", "weft-check"));
    assert_eq!(check["args"], json!(["check", "--metrics-port=8411"]));
}

/// Without a Service, and with the user's rules; both kinds at once would count everything twice.
#[test]
fn a_pod_monitor_finds_the_pods_themselves_and_excludes_service_monitors() {
    let rule =
        json!([{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]);
    let settings = json!({
        "enabled": true, "interval": "15s", "labels": {"release": "prometheus"},
        "relabelings": rule, "metricRelabelings": rule,
    });
    let with = rendered(&[&format!("podMonitor={settings}")]);
    assert_eq!(with.of_kind("ServiceMonitor").count(), 0);
    let services: Vec<_> = with.of_kind("Service").collect();
    assert!(
        !Value::from_iter(services.into_iter().cloned())
            .to_string()
            .contains("metrics")
    );
    let agent = with.agent();
    for (who, pod) in [
        ("weft-operator", with.operator()),
        ("weft-agent", &agent["spec"]["template"]),
    ] {
        let monitor = with.find("PodMonitor", who);
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        let wanted = monitor["spec"]["selector"]["matchLabels"].as_object();
        for (name, value) in wanted.unwrap() {
            assert_eq!(&pod["metadata"]["labels"][name], value);
        }
        let endpoint = json!([{
            "port": "metrics", "interval": "15s", "relabelings": rule, "metricRelabelings": rule,
            "scheme": "https", "tlsConfig": {
                "ca": {"configMap": {"name": "weft-ca", "key": "ca.crt"}},
                // In the certificates of all pods of the kind.
                "serverName": if who == "weft-agent" { AGENT_NAME } else { OPERATOR_NAME },
            },
            "authorization": {
                "type": "Bearer", "credentials": {"name": "weft-metrics-reader", "key": "token"},
            },
        }]);
        assert_eq!(monitor["spec"]["podMetricsEndpoints"], endpoint);
        let mut ports = pod["spec"]["containers"][0]["ports"]
            .as_array()
            .unwrap()
            .iter();
        assert!(ports.any(|port| port["name"] == "metrics"));
    }
    let services = rendered(&[&format!("serviceMonitor={settings}")]);
    let monitor = services.find("ServiceMonitor", "weft-agent");
    assert_eq!(monitor["spec"]["endpoints"][0]["relabelings"], rule);
    let both = template(&["podMonitor.enabled=true", "serviceMonitor.enabled=true"]);
    let said = String::from_utf8_lossy(&both.stderr);
    assert!(
        !both.status.success() && said.contains("podMonitor.enabled"),
        "{said}"
    );
}

#[test]
fn monitors_are_made_on_request_and_find_what_they_watch() {
    let without = rendered(&[]);
    assert_eq!(without.of_kind("ServiceMonitor").count(), 0);
    let with = rendered(&[
        "serviceMonitor.enabled=true",
        "serviceMonitor.labels={\"release\":\"prometheus\"}",
    ]);
    let agent = with.agent();
    for (who, pod) in [
        ("weft-operator", with.operator()),
        ("weft-agent", &agent["spec"]["template"]),
    ] {
        let monitor = with.find("ServiceMonitor", who);
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        let service = with.find("Service", &format!("{who}-metrics"));
        let wanted = monitor["spec"]["selector"]["matchLabels"].as_object();
        for (name, value) in wanted.unwrap() {
            assert_eq!(&service["metadata"]["labels"][name], value);
        }
        for (name, value) in service["spec"]["selector"].as_object().unwrap() {
            assert_eq!(&pod["metadata"]["labels"][name], value);
        }
        let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["name"] == "metrics");
        assert_eq!(
            service["spec"]["ports"][0]["port"],
            port.unwrap()["containerPort"]
        );
    }
}

#[test]
fn volumes_take_a_privileged_daemonset_and_a_driver_that_is_told_whose_pod_it_is() {
    assert_eq!(rendered(&[]).of_kind("CSIDriver").count(), 0);
    let values = [
        "volumes.enabled=true",
        "devices.kubeletPath=\"/data/kubelet\"",
    ];
    let with = rendered(&values);
    let driver = &with.find("CSIDriver", "csi.weft.dev")["spec"];
    assert_eq!(driver["podInfoOnMount"], true);
    assert_eq!(driver["volumeLifecycleModes"], json!(["Ephemeral"]));
    assert_eq!(driver["attachRequired"], false);
    assert_eq!(with.of_kind("DaemonSet").count(), 1);
    let pod = &with.find("DaemonSet", "weft-volume-driver")["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_eq!(pod[field], Value::Null, "{field}");
    }
    let container = &pod["containers"][0];
    let mounts = container["volumeMounts"].as_array().unwrap();
    let shared: Vec<&Value> = mounts
        .iter()
        .filter(|one| one["mountPropagation"] == "Bidirectional")
        .map(|one| &one["mountPath"])
        .collect();
    assert_eq!(shared, ["/data/kubelet/pods"]);
    let host = mounts.iter().find(|one| one["mountPath"] == "/host");
    assert_eq!(host.unwrap()["readOnly"], true);
    let arguments = strings(&container["args"]);
    assert!(arguments.contains(&"--kubelet=/data/kubelet"));
    let allowed = arguments.iter();
    let allowed = allowed.filter_map(|arg| arg.strip_prefix("--allowed-path="));
    let allowed: Vec<&str> = allowed.collect();
    assert_eq!(allowed, ["/var/lib/weft", "/mnt/disks", "/data"]);
    // Both find each other in one directory of the node.
    let agent = with.agent();
    let agent = &agent["spec"]["template"]["spec"]["containers"][0];
    let arguments = strings(&agent["args"]).join(" ");
    assert!(arguments.contains("--volumes=/run/weft/volumes"));
    assert!(!arguments.contains("--engine-socket"), "{arguments}");
    let mounts = agent["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().any(|one| one["mountPath"] == "/run/weft"));
    let policy = with.find("ValidatingAdmissionPolicy", "operator-daemonsets.weft.dev");
    assert!(
        policy
            .to_string()
            .contains("true && volume.name == 'devices'")
    );
}

#[test]
fn devices_by_claims_take_a_class_two_directories_and_rules_of_the_operator_and_else_there_is_none()
{
    let shows = |mode: &str| {
        let mode = format!("devices.mode={}", json!(mode));
        let with = rendered(&["devices.enabled=true", &mode]);
        let plugin = &with.find("DaemonSet", "weft-device-plugin")["spec"]["template"]["spec"];
        let container = &plugin["containers"][0];
        let mounts = container["volumeMounts"].as_array().unwrap();
        let has_mount = |path: &str| mounts.iter().any(|one| one["mountPath"] == path);
        let rules = &with.find("ClusterRole", "weft-operator")["rules"];
        let rules = rules.as_array().unwrap().iter();
        let mut of_claims = rules.filter(|rule| rule["apiGroups"][0] == "resource.k8s.io");
        let operator = &with.operator()["spec"]["containers"][0];
        let by_claims = [
            with.of_kind("DeviceClass").count() == 1,
            of_claims.any(|rule| rule["resources"] == json!(["resourceclaims"])),
            strings(&operator["args"]).contains(&"--resource-slices"),
            has_mount("/var/lib/kubelet/plugins_registry"),
            has_mount("/var/lib/kubelet/plugins/vdev.weft.dev"),
        ];
        assert!(has_mount("/var/lib/kubelet/pod-resources"));
        let by_resource = has_mount("/var/lib/kubelet/device-plugins");
        let args = strings(&container["args"]);
        let mode = args.iter().find_map(|arg| arg.strip_prefix("--mode="));
        (by_claims, by_resource, mode.map(str::to_owned))
    };
    let mode = |mode: &str| Some(mode.to_owned());
    assert_eq!(
        shows("devicePlugin"),
        ([false; 5], true, mode("device-plugin"))
    );
    assert_eq!(shows("dra"), ([true; 5], false, mode("dra")));
    assert_eq!(shows("both"), ([true; 5], true, mode("both")));
    // The flags of the operator are of no use without devices.
    let without = rendered(&[r#"devices.mode="dra""#]);
    assert_eq!(without.of_kind("DeviceClass").count(), 0);
    assert!(refusal(r#"devices.mode="csi""#).contains("devices.mode"));
}

#[test]
fn devices_let_the_operator_get_pods_and_nothing_else_of_them() {
    let of_pods = |values: &[&str]| -> Vec<Value> {
        let with = rendered(values);
        let rules = with.find("ClusterRole", "weft-operator")["rules"].clone();
        let rules = rules.as_array().unwrap().iter();
        let is_of_pods = |rule: &&Value| {
            let resources = strings(&rule["resources"]);
            resources
                .iter()
                .any(|resource| resource.starts_with("pods"))
        };
        rules.filter(is_of_pods).cloned().collect()
    };
    assert!(of_pods(&[]).is_empty());
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    assert_eq!(of_pods(&["devices.enabled=true"]), [rule]);
}

#[test]
fn devices_by_claims_let_the_operator_read_claims_and_change_none() {
    let of_claims = |values: &[&str]| -> Vec<Value> {
        let with = rendered(values);
        let rules = with.find("ClusterRole", "weft-operator")["rules"].clone();
        let rules = rules.as_array().unwrap().iter();
        let of_claims =
            rules.filter(|rule| strings(&rule["resources"]).contains(&"resourceclaims"));
        of_claims.map(|rule| rule["verbs"].clone()).collect()
    };
    assert!(of_claims(&["devices.enabled=true"]).is_empty());
    let with_claims = ["devices.enabled=true", r#"devices.mode="both""#];
    assert_eq!(of_claims(&with_claims), [json!(["get", "list"])]);
}

#[test]
fn claims_share_a_device_and_pods_have_claims_by_the_resource_only_where_it_is_asked_for() {
    let operator = |values: &[&str]| {
        let with = rendered(values);
        let operator = &with.operator()["spec"]["containers"][0];
        strings(&operator["args"]).contains(&"--consumable-capacity")
    };
    let enabled = "devices.enabled=true";
    let dra = r#"devices.mode="dra""#;
    let shared = "devices.consumableCapacity=true";
    assert!(operator(&[enabled, dra, shared]));
    assert!(!operator(&[enabled, dra]));
    let refused = template(&[enabled, shared]);
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("set devices.mode to dra or both"), "{said}");
    let name = |values: &[&str]| {
        let with = rendered(values);
        with.find("DeviceClass", "vdev.weft.dev")["spec"]["extendedResourceName"].clone()
    };
    let by_resource = "devices.extendedResource=true";
    assert_eq!(name(&[enabled, dra, by_resource]), "weft.dev/vdev");
    assert_eq!(name(&[enabled, dra]), Value::Null);
    for mode in [r#"devices.mode="both""#, r#"devices.mode="devicePlugin""#] {
        let refused = template(&[enabled, mode, by_resource]);
        assert!(!refused.status.success(), "{mode} is accepted");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("set devices.mode to dra"), "{said}");
    }
}

#[test]
fn devices_take_two_daemonsets_without_a_capability_and_none_where_they_are_not_enabled() {
    let none = rendered(&[]);
    let names = |rendered: &Rendered| -> Vec<String> {
        let sets = rendered.of_kind("DaemonSet");
        sets.map(|set| set["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(names(&none).is_empty());
    let hook = |arguments: &[&str]| arguments.iter().any(|one| one.starts_with("--hook="));
    for (values, has_hook) in [
        (&["devices.enabled=true"][..], true),
        (&["devices.enabled=true", "devices.hook=false"], false),
    ] {
        let with = rendered(values);
        assert_eq!(names(&with), ["weft-engine", "weft-device-plugin"]);
        for (name, strategy, is_on_the_network) in [
            ("weft-engine", "OnDelete", Value::Bool(true)),
            ("weft-device-plugin", "RollingUpdate", Value::Null),
        ] {
            let set = with.find("DaemonSet", name);
            assert_eq!(set["spec"]["updateStrategy"]["type"], strategy);
            let pod = &set["spec"]["template"]["spec"];
            assert_eq!(pod["hostNetwork"], is_on_the_network);
            assert_eq!(pod["automountServiceAccountToken"], false);
            let context = &pod["containers"][0]["securityContext"];
            assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
            assert_eq!(context["readOnlyRootFilesystem"], true);
        }
        let plugin = &with.find("DaemonSet", "weft-device-plugin")["spec"]["template"]["spec"];
        let arguments = strings(&plugin["containers"][0]["args"]);
        assert_eq!(hook(&arguments), has_hook, "{arguments:?}");
        // No file that somebody writes can say these.
        for flag in ["--resource=weft.dev/vdev", "--mode=device-plugin"] {
            assert!(arguments.contains(&flag), "{arguments:?}");
        }
        // Where the agent writes the flags of both.
        let agent = with.agent();
        let agent = &agent["spec"]["template"]["spec"]["containers"][0];
        let mounts = agent["volumeMounts"].as_array().unwrap();
        assert!(mounts.iter().any(|one| one["mountPath"] == "/run/weft"));
        assert!(strings(&agent["args"]).contains(&"--engine-socket=/run/weft/engine.sock"));
    }
}

#[test]
fn the_rules_are_installed_as_they_stand_in_their_file() {
    let rules = fs::read_to_string(chart().join("monitoring/rules.yaml")).unwrap();
    let off = rendered(&[]);
    assert_eq!(off.of_kind("PrometheusRule").count(), 0);
    let on =
        rendered(&[r#"prometheusRule={"enabled": true, "labels": {"release": "prometheus"}}"#]);
    let rule = on.find("PrometheusRule", "weft");
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(rule["spec"], yaml(&rules));
}

#[test]
fn dashboards_are_installed_as_they_stand_in_their_files() {
    let on = rendered(&[r#"dashboards={"annotations": {"grafana_folder": "Weft"}}"#]);
    let files = fs::read_dir(chart().join("dashboards")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut count = 0;
    for name in names {
        let board = name.strip_suffix(".json").unwrap();
        let map = on.find("ConfigMap", &format!("weft-dashboard-{board}"));
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(map["metadata"]["annotations"]["grafana_folder"], "Weft");
        let file = fs::read_to_string(chart().join("dashboards").join(&name)).unwrap();
        assert_eq!(map["data"][&name], file);
        count += 1;
    }
    assert!(count >= 5, "{count}");
    let off = rendered(&[r#"dashboards={"enabled": false}"#]);
    let mut maps = off.of_kind("ConfigMap");
    assert!(maps.all(|it| !it.to_string().contains("grafana_dashboard")));
}
