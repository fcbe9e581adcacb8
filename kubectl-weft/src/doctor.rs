//! `kubectl weft doctor`: what keeps a cluster from moving bytes well, each finding with its fix.
//!
//! Every ready node's agent sends packets to the data ports of all others and says what came back, and
//! what its kernel and pod give it; the operator passes that on. What is not measured is not printed.

mod findings;

use std::{collections::BTreeSet, fmt, io::Write};

use futures::{StreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use weft_cli::{columns::columns, printable::line};
pub(crate) use weft_crds::doctor::Finding;
use weft_crds::{Diagnosis, DiagnosisRequest, FabricNode, RdmaFabric, doctor::is_ready};
use weft_fabric::quantity;

use self::findings::find;
use crate::{
    cluster::{Cluster, ClusterError, CommandError, Reach},
    output::Format,
};

/// Nodes that measure at a time: what they send to one node stays within the answers that it grants.
const AT_A_TIME: usize = 4;

/// What `kubectl weft doctor` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only the nodes of this RdmaFabric.
    #[arg(long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// How it is printed.
    #[command(flatten)]
    pub format: Format,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// What was measured at a node, or why that could not be.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Examined {
    /// The node.
    pub node: String,
    /// What its agent found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Diagnosis>,
    /// Why there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    examined: Vec<Examined>,
    findings: Vec<Finding>,
}

/// Examines and prints; whether nothing is wrong.
///
/// # Errors
/// Nothing could be found out.
pub async fn run(args: &Args, out: &mut impl Write) -> Result<bool, CommandError> {
    let cluster = Cluster::reach(&args.reach).await?;
    let api: Api<FabricNode> = Api::all(cluster.client());
    let listed = api.list(&Default::default()).await;
    let mut nodes = listed.map_err(|error| cluster.explain("", error))?.items;
    let api: Api<RdmaFabric> = Api::all(cluster.client());
    let listed = api.list(&Default::default()).await;
    let mut fabrics = listed.map_err(|error| cluster.explain("", error))?.items;
    if let Some(name) = &args.fabric {
        nodes.retain(|node| node.spec.fabric == *name);
        fabrics.retain(|fabric| fabric.name_any() == *name);
    }
    let names: Vec<String> = nodes
        .iter()
        .filter(|node| is_ready(node))
        .map(|node| node.name_any())
        .collect();
    let asked = names.into_iter().map(|node| examine(&cluster, node));
    let examined: Vec<Result<Examined, ClusterError>> =
        stream::iter(asked).buffered(AT_A_TIME).collect().await;
    let examined: Vec<Examined> = examined.into_iter().collect::<Result<_, _>>()?;
    let findings = find(&fabrics, &nodes, &examined, Timestamp::now());
    let is_well = findings.is_empty();
    let report = Report { examined, findings };
    let view = View {
        report: &report,
        is_wide: args.format.is_wide(),
    };
    args.format.show(&report, view, out)?;
    Ok(is_well)
}

/// What is wrong by what objects say, without a measurement.
pub(crate) fn of_objects(
    fabrics: &[RdmaFabric],
    nodes: &[FabricNode],
    now: Timestamp,
) -> Vec<Finding> {
    find(fabrics, nodes, &[], now)
}

async fn examine(cluster: &Cluster, node: String) -> Result<Examined, ClusterError> {
    let request = DiagnosisRequest { node: node.clone() };
    // A name is text.
    let body = serde_json::to_vec(&request).unwrap_or_default();
    let told = cluster.ask::<Diagnosis>(Diagnosis::RESOURCE, body).await;
    let (diagnosis, error) = match told {
        Ok(diagnosis) => (Some(diagnosis), None),
        // The caller may not ask, or there is nobody to ask: the same for every node.
        Err(error) if error.affects_every_node() => return Err(error),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(Examined {
        node,
        diagnosis,
        error,
    })
}

/// A report for people.
struct View<'a> {
    report: &'a Report,
    is_wide: bool,
}

impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told: Vec<&Diagnosis> = self
            .report
            .examined
            .iter()
            .filter_map(|one| one.diagnosis.as_ref())
            .collect();
        if !told.is_empty() {
            measured(f, &told, self.is_wide)?;
            writeln!(f)?;
        }
        for (number, finding) in self.report.findings.iter().enumerate() {
            let problem = format!("{}: {}", finding.subject, finding.problem);
            writeln!(f, "{}. {}", number + 1, line(problem))?;
            if !finding.fix.is_empty() {
                writeln!(f, "   fix: {}", line(&finding.fix))?;
            }
        }
        match self.report.findings.len() {
            0 => writeln!(f, "nothing is wrong with what was measured"),
            1 => writeln!(f, "1 finding"),
            more => writeln!(f, "{more} findings"),
        }
    }
}

/// A line for each node: how many of its peers it reaches by which packets, and what it has.
fn measured(f: &mut fmt::Formatter<'_>, told: &[&Diagnosis], is_wide: bool) -> fmt::Result {
    let row = |one: &&Diagnosis| {
        let mut sizes: Vec<u32> = one.reaches.iter().map(|reach| reach.packet_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let of_size = |size: u32| {
            let of_size = one
                .reaches
                .iter()
                .filter(|reach| reach.packet_bytes == size);
            let whole =
                |reach: &&weft_crds::Reach| reach.silent_ports.is_empty() && reach.error.is_empty();
            // A peer with several links is reached when one of them passes.
            let nodes = |reach: &weft_crds::Reach| reach.node.clone();
            let all: BTreeSet<String> = of_size.clone().map(nodes).collect();
            let whole: BTreeSet<String> = of_size.filter(whole).map(nodes).collect();
            let (all, whole) = (all.len(), whole.len());
            format!("{whole}/{all} by {size} B")
        };
        let reach: Vec<String> = sizes.into_iter().map(of_size).collect();
        let facts = &one.facts;
        let offers = [("GSO", facts.gso), ("GRO", facts.gro)];
        let offers = offers.iter().filter(|(_, has)| *has).map(|(name, _)| *name);
        let offers: Vec<&str> = offers.collect();
        let mut row = vec![
            one.node.clone(),
            if reach.is_empty() {
                "-".to_owned()
            } else {
                reach.join(", ")
            },
            facts.kernel.clone(),
            if offers.is_empty() {
                "-".to_owned()
            } else {
                offers.join(" ")
            },
            quantity::bytes(facts.receive_buffer_granted),
            format!("{:+} ms", one.clock_ahead_ms),
        ];
        if is_wide {
            let limit = match facts.memory_limit {
                0 => "none".to_owned(),
                limit => quantity::bytes(limit),
            };
            row.extend([
                quantity::bytes(facts.send_buffer_granted),
                quantity::bytes(facts.memory_budget),
                limit,
            ]);
        }
        row
    };
    let mut head = vec![
        "node",
        "peers reached",
        "kernel",
        "UDP",
        "socket buffer",
        "clock",
    ];
    if is_wide {
        head.extend(["send buffer", "agent buffers", "memory limit"]);
    }
    columns(f, &head, &told.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests;
