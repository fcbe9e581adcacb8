//! The dashboards of Grafana in the chart, from a list of questions.
//!
//! A panel's title is the question that it answers. Where a query has the label `node`, a click leads to the board of that
//! node. Figures of agents get their node's name by their metric weft_build_info.

use serde_json::{Value, json};

/// As Grafana calls units.
#[derive(Clone, Copy)]
enum Unit {
    Count,
    PerSecond,
    Bytes,
    BytesPerSecond,
    Seconds,
    Ratio,
    Bool,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Count => "short",
            Self::PerSecond => "ops",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "Bps",
            Self::Seconds => "s",
            Self::Ratio => "percentunit",
            Self::Bool => "bool_yes_no",
        }
    }
}

#[derive(Clone, Copy)]
enum Shape {
    /// A line for each series.
    Lines,
    /// The latest value of each series, large.
    Stat,
    /// A row for each series.
    Table,
}

struct Panel {
    question: &'static str,
    /// What the answer means.
    says: &'static str,
    shape: Shape,
    unit: Unit,
    /// Each with the legend of its series.
    queries: &'static [(&'static str, &'static str)],
}

/// A choice at the top of a board: the values of a label.
struct Variable {
    name: &'static str,
    label: &'static str,
    query: &'static str,
    /// Whether one of the choices is all of them: its queries match by `=~`.
    has_all: bool,
}

struct Board {
    /// Its file, and with `weft-` before it its uid.
    name: &'static str,
    question: &'static str,
    variables: &'static [Variable],
    panels: &'static [Panel],
}

const NODE: Variable = Variable {
    name: "node",
    label: "Node",
    query: "label_values(weft_build_info, node)",
    has_all: false,
};

const BOARDS: &[Board] = &[
    Board {
        name: "fabric",
        question: "Is the fabric healthy?",
        variables: &[],
        panels: &[
            Panel {
                question: "How many nodes report?",
                says: "Nodes whose agents take jobs; and those of fabrics that have not been ready for ten minutes, as the operator knows: kubectl get fabricnodes says which.",
                shape: Shape::Stat,
                unit: Unit::Count,
                queries: &[
                    ("count(count by (node) (weft_build_info))", "nodes"),
                    ("max(weft_operator_nodes_not_ready)", "not ready"),
                ],
            },
            Panel {
                question: "Which alerts fire?",
                says: "Each has a page in docs/runbooks. It is empty, too, where prometheusRule.enabled is false.",
                shape: Shape::Table,
                unit: Unit::Count,
                queries: &[(
                    r#"ALERTS{alertname=~"Weft.+", alertstate="firing"}"#,
                    "{{alertname}}",
                )],
            },
            Panel {
                question: "Which nodes send most?",
                says: "Bytes of jobs that peers have acknowledged, of 20 nodes. What pods send over virtual devices is on their board.",
                shape: Shape::Lines,
                unit: Unit::BytesPerSecond,
                queries: &[(
                    "topk(20, rate(weft_acknowledged_bytes_total[$__rate_interval]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))",
                    "{{node}}",
                )],
            },
            Panel {
                question: "Which node sends chunks again?",
                says: "The 20 that do most. Above 1 % packets are lost, or answers are late. Of jobs, not of virtual devices.",
                shape: Shape::Lines,
                unit: Unit::Ratio,
                queries: &[(
                    "topk(20, (rate(weft_chunks_resent_total[5m]) / (rate(weft_chunks_sent_total[5m]) > 10)) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))",
                    "{{node}}",
                )],
            },
            Panel {
                question: "Which paths are not used?",
                says: "The 100 pairs of nodes with most of them, while they have connections of jobs. A spine that drops packets shows at many nodes, a cable at one.",
                shape: Shape::Table,
                unit: Unit::Count,
                queries: &[(
                    "topk(100, weft_peer_paths_down * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info) > 0)",
                    "{{node}} to {{peer}}",
                )],
            },
            Panel {
                question: "Where is one path slower than the others?",
                says: "The round trip of the slowest path, by that of the median one. Above 10 a link is full, or has a lower rate.",
                shape: Shape::Lines,
                unit: Unit::Count,
                queries: &[(
                    r#"topk(20, (weft_peer_rtt_seconds{of_paths="max"} / ignoring (of_paths) weft_peer_rtt_seconds{of_paths="median"}) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))"#,
                    "{{node}} to {{peer}}",
                )],
            },
            Panel {
                question: "Is the network full?",
                says: "Packets of jobs that switches have marked, of the 20 nodes with most: their queues are long.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[(
                    "topk(20, sum by (node) (rate(weft_peer_ce_packets_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info)))",
                    "{{node}}",
                )],
            },
            Panel {
                question: "Which links are in use?",
                says: "Connections of jobs, by link. TCP where UDP is blocked, or TCP is faster: docs/links.md.",
                shape: Shape::Lines,
                unit: Unit::Count,
                queries: &[("sum by (link) (weft_peer_connections)", "{{link}}")],
            },
            Panel {
                question: "Where does a link not pass?",
                says: "The link that is used instead, and the node at the other end; * is every node. A firewall, or a port that another program has.",
                shape: Shape::Table,
                unit: Unit::Bool,
                queries: &[(
                    "weft_link_fallback * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info)",
                    "{{node}} to {{to_node}}: {{link}}",
                )],
            },
            Panel {
                question: "Which disk is nearly full?",
                says: "What is free beyond what transfers leave free (minFree). Jobs to a root without are refused.",
                shape: Shape::Lines,
                unit: Unit::Bytes,
                queries: &[(
                    "bottomk(20, (weft_root_free_bytes - weft_root_min_free_bytes) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))",
                    "{{node}} {{root}}",
                )],
            },
            Panel {
                question: "Which certificate ends first?",
                says: "Agents renew theirs long before; not while the operator does not answer.",
                shape: Shape::Table,
                unit: Unit::Seconds,
                queries: &[(
                    "bottomk(5, (weft_certificate_expires_timestamp_seconds - time()) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))",
                    "{{node}}",
                )],
            },
            Panel {
                question: "Which NICs are down?",
                says: "NICs of the data path without a carrier.",
                shape: Shape::Table,
                unit: Unit::Bool,
                queries: &[(
                    "(weft_nic_up == bool 0) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info) > 0",
                    "{{node}} {{interface}}",
                )],
            },
        ],
    },
    Board {
        name: "node",
        question: "What does this node do, and what holds it up?",
        variables: &[NODE],
        panels: &[
            Panel {
                question: "How much does it send to each peer?",
                says: "Bytes of jobs that a peer has acknowledged.",
                shape: Shape::Lines,
                unit: Unit::BytesPerSecond,
                queries: &[(
                    r#"rate(weft_peer_acknowledged_bytes_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                    "{{peer}}",
                )],
            },
            Panel {
                question: "How much does it receive?",
                says: "Bytes of jobs that were placed in its memory.",
                shape: Shape::Lines,
                unit: Unit::BytesPerSecond,
                queries: &[(
                    r#"rate(weft_placed_bytes_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                    "received",
                )],
            },
            Panel {
                question: "How long are its paths?",
                says: "The fastest, the median and the slowest path to each peer.",
                shape: Shape::Lines,
                unit: Unit::Seconds,
                queries: &[(
                    r#"weft_peer_rtt_seconds * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                    "{{peer}} {{of_paths}}",
                )],
            },
            Panel {
                question: "On the way to which peer are chunks lost?",
                says: "Of the chunks that were sent to a peer.",
                shape: Shape::Lines,
                unit: Unit::Ratio,
                queries: &[(
                    r#"(rate(weft_peer_chunks_lost_total[5m]) / (rate(weft_peer_chunks_sent_total[5m]) > 0)) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                    "{{peer}}",
                )],
            },
            Panel {
                question: "What arrives and is not used?",
                says: "Forged or damaged packets stand here, and those that came twice.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[(
                    r#"rate(weft_dropped_packets_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                    "{{reason}}",
                )],
            },
            Panel {
                question: "Which peers do not answer in time?",
                says: "Timeouts on the paths to a peer, probes included.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[(
                    r#"rate(weft_peer_timeouts_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                    "{{peer}}",
                )],
            },
            Panel {
                question: "How many connections has it?",
                says: "By peer and link, those that measure a link included.",
                shape: Shape::Lines,
                unit: Unit::Count,
                queries: &[(
                    r#"weft_peer_connections * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                    "{{peer}} {{link}}",
                )],
            },
            Panel {
                question: "How much memory do its transfers use?",
                says: "Buffers of jobs, and receive regions that are ready.",
                shape: Shape::Lines,
                unit: Unit::Bytes,
                queries: &[
                    (
                        r#"weft_buffer_bytes * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                        "buffers",
                    ),
                    (
                        r#"weft_armed_bytes * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                        "receive regions",
                    ),
                ],
            },
            Panel {
                question: "Which calls does its agent refuse?",
                says: "Calls by reason, and connections before their first call.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[
                    (
                        r#"rate(weft_refused_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                        "{{reason}}",
                    ),
                    (
                        r#"rate(weft_tls_refused_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info{node="$node"})"#,
                        "TLS: {{reason}}",
                    ),
                ],
            },
        ],
    },
    Board {
        name: "job",
        question: "How far is this job, and why is it not faster?",
        variables: &[
            Variable {
                name: "namespace",
                label: "Namespace",
                query: "label_values(weft_job_size_bytes, job_namespace)",
                has_all: false,
            },
            Variable {
                name: "name",
                label: "Job",
                query: r#"label_values(weft_job_size_bytes{job_namespace="$namespace"}, job_name)"#,
                has_all: false,
            },
        ],
        panels: &[
            Panel {
                question: "How far is each node?",
                says: "Bytes that are there and checked, of all bytes; nothing of a job without bytes.",
                shape: Shape::Lines,
                unit: Unit::Ratio,
                queries: &[(
                    r#"(weft_job_bytes_total{job_namespace="$namespace", job_name="$name"} / (weft_job_size_bytes > 0)) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info)"#,
                    "{{node}}",
                )],
            },
            Panel {
                question: "Which node is behind?",
                says: "What comes anew, without what was there before. Of a chain, the first one that is slower than the node before it, or its disk, holds up all that follow.",
                shape: Shape::Lines,
                unit: Unit::BytesPerSecond,
                queries: &[(
                    r#"(rate(weft_job_bytes_total{job_namespace="$namespace", job_name="$name"}[$__rate_interval]) - rate(weft_job_resumed_bytes_total{job_namespace="$namespace", job_name="$name"}[$__rate_interval])) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info)"#,
                    "{{node}}",
                )],
            },
            Panel {
                question: "What is each node doing?",
                says: "The state of its latest attempt.",
                shape: Shape::Table,
                unit: Unit::Count,
                queries: &[(
                    r#"weft_job_state{job_namespace="$namespace", job_name="$name"} * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info)"#,
                    "{{node}} {{state}}",
                )],
            },
            Panel {
                question: "Where did it fail, and why?",
                says: "The Events of the job have the whole message.",
                shape: Shape::Table,
                unit: Unit::Count,
                queries: &[(
                    r#"weft_job_failed{job_namespace="$namespace", job_name="$name"} * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info)"#,
                    "{{node}} {{reason}}",
                )],
            },
            Panel {
                question: "How much did not have to be sent again?",
                says: "Bytes that were on a node before the attempt, and were right.",
                shape: Shape::Stat,
                unit: Unit::Bytes,
                queries: &[(
                    r#"sum(weft_job_resumed_bytes_total{job_namespace="$namespace", job_name="$name"})"#,
                    "resumed",
                )],
            },
            Panel {
                question: "Which attempt is it?",
                says: "The latest that any node knows.",
                shape: Shape::Stat,
                unit: Unit::Count,
                queries: &[(
                    r#"max(weft_job_attempt{job_namespace="$namespace", job_name="$name"})"#,
                    "attempt",
                )],
            },
        ],
    },
    Board {
        name: "devices",
        question: "Can pods use their virtual devices?",
        variables: &[Variable {
            name: "namespace",
            label: "Namespace",
            query: "label_values(weft_device_share, pod_namespace)",
            has_all: true,
        }],
        panels: &[
            Panel {
                question: "How many devices do pods have?",
                says: "Of all nodes, beside those that they could have.",
                shape: Shape::Lines,
                unit: Unit::Count,
                queries: &[
                    ("sum(weft_devices_in_use)", "in use"),
                    ("sum(weft_devices)", "in all"),
                ],
            },
            Panel {
                question: "Which cannot be used, and why?",
                says: "docs/devices.md says what each reason means.",
                shape: Shape::Table,
                unit: Unit::Count,
                queries: &[(
                    "weft_devices_unhealthy * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info) > 0",
                    "{{node}} {{reason}}",
                )],
            },
            Panel {
                question: "Who tries what is not allowed?",
                says: "Refused attempts at the 20 nodes with most: Packet of peers, Offer of other tenants, Call of programs, Connection without a token.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[(
                    "topk(20, rate(weft_devices_refused_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))",
                    "{{node}} {{what}}",
                )],
            },
            Panel {
                question: "How much does each pod send?",
                says: "Payload bytes that peers have acknowledged, of the 20 devices that send most.",
                shape: Shape::Lines,
                unit: Unit::BytesPerSecond,
                queries: &[(
                    r#"topk(20, rate(weft_device_sent_bytes_total{pod_namespace=~"$namespace"}[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))"#,
                    "{{pod_namespace}}/{{pod_name}} {{device}}, {{node}}",
                )],
            },
            Panel {
                question: "How much does each pod receive?",
                says: "Payload bytes, of the 20 devices to which most comes.",
                shape: Shape::Lines,
                unit: Unit::BytesPerSecond,
                queries: &[(
                    r#"topk(20, rate(weft_device_received_bytes_total{pod_namespace=~"$namespace"}[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))"#,
                    "{{pod_namespace}}/{{pod_name}} {{device}}, {{node}}",
                )],
            },
            Panel {
                question: "How many operations does each pod begin?",
                says: "Work requests of send queues, of the 20 devices with most.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[(
                    r#"topk(20, rate(weft_device_operations_total{pod_namespace=~"$namespace"}[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))"#,
                    "{{pod_namespace}}/{{pod_name}} {{device}}, {{node}}",
                )],
            },
            Panel {
                question: "Which pods have another share than others?",
                says: "The weight of a device beside others that want more than the link has: the 100 largest.",
                shape: Shape::Table,
                unit: Unit::Count,
                queries: &[(
                    r#"topk(100, (weft_device_share{pod_namespace=~"$namespace"} != 100) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))"#,
                    "{{pod_namespace}}/{{pod_name}} {{device}}, {{node}}",
                )],
            },
            Panel {
                question: "Which pod's device refuses packets, offers or calls?",
                says: "In an hour, the 100 with most. The Events of the pod say what was tried.",
                shape: Shape::Table,
                unit: Unit::Count,
                queries: &[(
                    r#"topk(100, increase(weft_device_refused_total{pod_namespace=~"$namespace"}[1h]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info) > 0)"#,
                    "{{pod_namespace}}/{{pod_name}} {{device}}, {{node}}",
                )],
            },
            Panel {
                question: "Which device stands still?",
                says: "Its program's memory holds up a copy, until the program ends.",
                shape: Shape::Table,
                unit: Unit::Bool,
                queries: &[(
                    r#"topk(100, weft_device_stalled{pod_namespace=~"$namespace"} * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info) > 0)"#,
                    "{{pod_namespace}}/{{pod_name}} {{device}}, {{node}}",
                )],
            },
            Panel {
                question: "Do nodes answer offers to connect?",
                says: "Offers that were dropped, at the 20 nodes with most, as too many waited for another node's agent. They are made again.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[(
                    "topk(20, rate(weft_offers_dropped_total[5m]) * on (job, instance) group_left (node) max by (job, instance, node) (weft_build_info))",
                    "{{node}}",
                )],
            },
        ],
    },
    Board {
        name: "operator",
        question: "Does the operator keep up?",
        variables: &[],
        panels: &[
            Panel {
                question: "Does one lead?",
                says: "The epoch of the leader's commands; 0 while nobody leads.",
                shape: Shape::Stat,
                unit: Unit::Count,
                queries: &[("max(weft_operator_leader_epoch)", "epoch")],
            },
            Panel {
                question: "How many agents does it hear?",
                says: "Agents whose stream of reports is open.",
                shape: Shape::Stat,
                unit: Unit::Count,
                queries: &[("sum(weft_operator_agents)", "agents")],
            },
            Panel {
                question: "How long does it take to react?",
                says: "From an event to the requests that follow it. Above half a second an alert fires.",
                shape: Shape::Lines,
                unit: Unit::Seconds,
                queries: &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(weft_operator_step_seconds_bucket[5m])))",
                        "half of the steps",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(weft_operator_step_seconds_bucket[5m])))",
                        "99 of 100",
                    ),
                ],
            },
            Panel {
                question: "How much does it write, and what is lost?",
                says: "Replaced: a newer one of the same object came before it was sent. Failed: it is made again.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[
                    ("sum(rate(weft_operator_writes_total[5m]))", "sent"),
                    (
                        "sum(rate(weft_operator_writes_dropped_total[5m]))",
                        "replaced",
                    ),
                    ("sum(rate(weft_operator_writes_failed_total[5m]))", "failed"),
                ],
            },
            Panel {
                question: "How much waits to be written?",
                says: "Requests and Events. It grows where operator.writesPerSecond is too low, or the API server refuses.",
                shape: Shape::Lines,
                unit: Unit::Count,
                queries: &[("sum(weft_operator_writes_waiting)", "waiting")],
            },
            Panel {
                question: "How much do agents report?",
                says: "Reports, and certificates that were given.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[
                    ("sum(rate(weft_operator_reports_total[5m]))", "reports"),
                    (
                        "sum(rate(weft_operator_enrolled_total[5m]))",
                        "certificates",
                    ),
                ],
            },
            Panel {
                question: "Which calls does it refuse?",
                says: "Calls of agents by reason, and connections before their first call.",
                shape: Shape::Lines,
                unit: Unit::PerSecond,
                queries: &[
                    (
                        "sum by (call, reason) (rate(weft_operator_refused_total[5m]))",
                        "{{call}} {{reason}}",
                    ),
                    (
                        "sum by (reason) (rate(weft_operator_tls_refused_total[5m]))",
                        "TLS: {{reason}}",
                    ),
                    (
                        "sum by (reason) (rate(weft_operator_live_tls_refused_total[5m]))",
                        "TLS of the live API: {{reason}}",
                    ),
                ],
            },
        ],
    },
];

/// The files of the chart: paths and texts.
pub(super) fn files() -> impl Iterator<Item = (String, String)> {
    BOARDS.iter().map(|board| {
        let path = format!("charts/weft/dashboards/{}.json", board.name);
        (path, format!("{:#}\n", json(board)))
    })
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// Schema 39 is one of Grafana 10; later ones read it.
fn json(board: &Board) -> Value {
    let source = json!({"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"});
    let variables = board.variables.iter().map(|variable| {
        let mut choice = json!({
            "name": variable.name,
            "label": variable.label,
            "type": "query",
            "datasource": datasource(),
            "definition": variable.query,
            "query": {"query": variable.query, "refId": "variable"},
            "refresh": 2,
            "sort": 1,
        });
        if variable.has_all {
            choice["includeAll"] = json!(true);
            choice["allValue"] = json!(".*");
        }
        choice
    });
    let choices: Vec<_> = [source].into_iter().chain(variables).collect();
    let panels = board.panels.iter().enumerate();
    json!({
        "uid": format!("weft-{}", board.name),
        "title": format!("Weft / {}", board.question),
        "tags": ["weft"],
        "schemaVersion": 39,
        "version": 1,
        "editable": false,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [{
            "type": "dashboards", "title": "Weft", "tags": ["weft"],
            "icon": "dashboard", "tooltip": "Other boards of Weft", "url": "",
            "asDropdown": true, "includeVars": true, "keepTime": true, "targetBlank": false,
        }],
        "annotations": {"list": []},
        "templating": {"list": choices},
        "panels": panels.map(|(index, panel)| panel_json(index, panel)).collect::<Vec<_>>(),
    })
}

fn panel_json(index: usize, panel: &Panel) -> Value {
    let (kind, format, is_instant) = match panel.shape {
        Shape::Lines => ("timeseries", "time_series", false),
        Shape::Stat => ("stat", "time_series", true),
        Shape::Table => ("table", "table", true),
    };
    let options = match panel.shape {
        Shape::Lines => json!({
            "legend": {"showLegend": true, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }),
        Shape::Stat => json!({
            "reduceOptions": {"values": false, "calcs": ["lastNotNull"], "fields": ""},
            "graphMode": "none", "colorMode": "value", "textMode": "auto", "justifyMode": "auto", "orientation": "auto",
            "wideLayout": true, "showPercentChange": false, "percentChangeColorMode": "standard",
        }),
        Shape::Table => json!({"frameIndex": 0, "showHeader": true}),
    };
    let queries = panel.queries.iter().zip('A'..);
    let targets = queries.map(|((query, legend), id)| {
        json!({
            "refId": id.to_string(),
            "datasource": datasource(),
            "expr": query,
            "legendFormat": legend,
            "format": format,
            "instant": is_instant,
            "range": !is_instant,
        })
    });
    let mut legends = panel.queries.iter().map(|(_, legend)| legend);
    let has_node = legends.any(|legend| legend.contains("{{node}}"));
    // In a table a label is a column.
    let is_table = matches!(panel.shape, Shape::Table);
    let node = match is_table {
        true => "${__data.fields.node}",
        false => "${__field.labels.node}",
    };
    let to_node = json!({
        "title": "This node",
        "url": format!("/d/weft-node?var-node={node}&${{datasource:queryparam}}&${{__url_time_range}}"),
    });
    let links = if has_node { vec![to_node] } else { Vec::new() };
    let (of_all, overrides) = match is_table {
        true => {
            let property = json!({"id": "links", "value": links});
            let matcher = json!({"id": "byName", "options": "node"});
            let of_column = json!({"matcher": matcher, "properties": [property]});
            (Vec::new(), vec![of_column])
        }
        false => (links, Vec::new()),
    };
    json!({
        "id": index + 1,
        "title": panel.question,
        "description": panel.says,
        "type": kind,
        "datasource": datasource(),
        "gridPos": {"x": index % 2 * 12, "y": index / 2 * 8, "w": 12, "h": 8},
        "targets": targets.collect::<Vec<_>>(),
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit.name(),
                "links": of_all,
            },
            "overrides": overrides,
        },
        "options": options,
    })
}
