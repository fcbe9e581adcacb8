//! `kubectl weft copies`: the verified copies of a cluster, and the removal of those that no job holds.

use std::{
    fmt,
    io::{self, Write},
};

use kube::{Api, ResourceExt as _};
use weft_cli::columns::columns;
use weft_crds::{CopyJob, CopyRemoval, CopyRemovalRequest, FabricNode, NodeCopy, NodeCopyList};
use weft_fabric::quantity;

use crate::{
    cluster::{Cluster, ClusterError, CommandError, Reach},
    output::{Format, say, text},
};

/// Digits of a digest that a line shows unless it is wide, as the label of the node does.
const DIGEST_DIGITS: usize = 12;
/// The reason of the finding of an agent that has more copies than a report lists.
const COPIES_FULL: &str = "CopiesFull";

/// What `kubectl weft copies` takes.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// List the verified copies of a namespace's jobs, node by node.
    List(ListArgs),
    /// Remove the copies of a place that no job holds any more: the files that each copy's record names.
    Delete(DeleteArgs),
}

/// What `kubectl weft copies list` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct ListArgs {
    /// Of the jobs of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only those that no job holds: `kubectl weft copies delete` removes them.
    #[arg(long)]
    pub unheld: bool,
    /// How it is printed.
    #[command(flatten)]
    pub format: Format,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// What `kubectl weft copies delete` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct DeleteArgs {
    /// The root, as `kubectl weft copies list` shows it.
    pub root: String,
    /// The path in the root, as `kubectl weft copies list` shows it: in a PerNamespace root it begins with the namespace,
    /// unlike the path in a job's spec, as in team-a/minilm.
    pub path: String,
    /// Only on this node; may be given several times. Without it: on all nodes.
    #[arg(long = "node", value_name = "NAME")]
    pub nodes: Vec<String>,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// Lists or removes copies; whether every copy that was to be removed was.
///
/// # Errors
/// What the cluster refused.
pub async fn run(
    command: &Command,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, CommandError> {
    match command {
        Command::List(args) => list(args, out, err).await,
        Command::Delete(args) => delete(args, out, err).await,
    }
}

async fn list(
    args: &ListArgs,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, CommandError> {
    let cluster = Cluster::reach(&args.reach).await?;
    let resource = NodeCopy::RESOURCE;
    let path = match args.all_namespaces {
        true => resource.to_owned(),
        false => format!("namespaces/{}/{resource}", cluster.namespace()),
    };
    let mut list: NodeCopyList = cluster.live(&path).await?;
    if args.unheld {
        list.items.retain(|copy| !copy.is_held());
    }
    let table = Table {
        copies: &list.items,
        is_wide: args.format.is_wide(),
    };
    if !args.format.write(&list, out)? {
        match list.items.is_empty() {
            true => say("no copies; --all-namespaces shows those of all", err)?,
            false => text(table, out)?,
        }
    }
    match nodes_with_more(&cluster).await {
        Ok(nodes) if nodes.is_empty() => {}
        Ok(nodes) => {
            let line = format!(
                "more copies than a report lists (48 KiB) are on {}, and those left out are not shown: remove some of \
                 these by kubectl weft copies delete, and the reports list others",
                nodes.join(", ")
            );
            say(line, err)?;
        }
        Err(error) => say(unknown(&error), err)?,
    }
    Ok(true)
}

/// The nodes whose agents have more copies than they report.
async fn nodes_with_more(cluster: &Cluster) -> Result<Vec<String>, ClusterError> {
    let api: Api<FabricNode> = Api::all(cluster.client());
    let listed = api.list(&Default::default()).await;
    let nodes = listed.map_err(|error| cluster.explain("", error))?.items;
    let has_more = |node: &FabricNode| {
        let findings = node.status.iter().flat_map(|status| &status.findings);
        findings
            .into_iter()
            .any(|finding| finding.reason == COPIES_FULL)
    };
    let with_more = nodes.iter().filter(|node| has_more(node));
    Ok(with_more.map(FabricNode::name_any).collect())
}

/// Where the user may not list the FabricNodes.
fn unknown(error: &ClusterError) -> String {
    format!(
        "whether a node has more copies than a report lists (48 KiB) is not known: {error}; who may list fabricnodes sees \
         {COPIES_FULL} there"
    )
}

async fn delete(
    args: &DeleteArgs,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, CommandError> {
    let cluster = Cluster::reach(&args.reach).await?;
    let request = CopyRemovalRequest {
        root: args.root.clone(),
        path: args.path.clone(),
        nodes: args.nodes.clone(),
    };
    let body = serde_json::to_vec(&request).map_err(io::Error::from)?;
    let (namespace, resource) = (cluster.namespace(), CopyRemoval::RESOURCE);
    let path = format!("namespaces/{namespace}/{resource}");
    let removal: CopyRemoval = cluster.ask(&path, body).await?;
    for node in &removal.removed {
        let DeleteArgs { root, path, .. } = args;
        say(
            format!(
                "{path} of root {root} released at node {node}: its agent removes the copy's files; a source's own files stay"
            ),
            out,
        )?;
    }
    for kept in &removal.kept {
        say(format!("node {}: {}", kept.node, kept.message), err)?;
    }
    if removal.removed.is_empty() && removal.kept.is_empty() {
        let nothing = format!(
            "no node reports a copy of {} in root {} for a job of namespace {namespace}; see: kubectl weft \
             copies list",
            args.path, args.root
        );
        say(nothing, err)?;
    }
    let is_done = removal.kept.is_empty() && !removal.removed.is_empty();
    let nodes = match nodes_with_more(&cluster).await {
        Ok(nodes) => nodes,
        Err(error) => {
            say(unknown(&error), err)?;
            return Ok(is_done);
        }
    };
    let unasked = unasked(nodes, &args.nodes, &removal);
    for node in &unasked {
        let line = format!(
            "node {node}: its agent has more copies than its report lists (48 KiB), and was not asked, as the report does not list \
             {} of root {}: if it has that copy, the files stay; remove copies that kubectl weft copies list --all-namespaces \
             shows there, and delete this one again",
            args.path, args.root
        );
        say(line, err)?;
    }
    Ok(is_done && unasked.is_empty())
}

/// Of the nodes whose reports leave copies out: those that may have the copy all the same.
fn unasked(mut nodes: Vec<String>, wanted: &[String], removal: &CopyRemoval) -> Vec<String> {
    nodes.retain(|node| wanted.is_empty() || wanted.contains(node));
    nodes.retain(|node| !removal.removed.contains(node));
    // Of a node that was named, one is kept also because no report lists it.
    nodes.retain(|node| !wanted.is_empty() || removal.kept.iter().all(|kept| kept.node != *node));
    nodes
}

/// Copies, a line each.
struct Table<'a> {
    copies: &'a [NodeCopy],
    is_wide: bool,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = |job: &CopyJob| match job.exists {
            true => format!("{}/{}", job.namespace, job.name),
            false => format!("{}/{} (deleted)", job.namespace, job.name),
        };
        let row = |copy: &NodeCopy| {
            let jobs: Vec<String> = copy.jobs.iter().map(job).collect();
            let digits = if self.is_wide {
                copy.digest.len()
            } else {
                DIGEST_DIGITS
            };
            let digest = copy.digest.get(..digits).unwrap_or(&copy.digest);
            vec![
                copy.node.clone(),
                copy.root.clone(),
                copy.path.clone(),
                quantity::bytes(copy.bytes),
                copy.files.to_string(),
                digest.to_owned(),
                jobs.join(", "),
            ]
        };
        let rows: Vec<_> = self.copies.iter().map(row).collect();
        let head = ["node", "root", "path", "bytes", "files", "digest", "jobs"];
        columns(f, &head, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_where_a_copy_is_and_which_jobs_are_gone() {
        let job = |name: &str, exists| CopyJob {
            namespace: "team-a".to_owned(),
            name: name.to_owned(),
            uid: "u1".to_owned(),
            exists,
        };
        let copy = NodeCopy {
            node: "n2".to_owned(),
            root: "models".to_owned(),
            path: "team-a/minilm".to_owned(),
            digest: "0123456789abcdef".to_owned(),
            bytes: 91_000_000,
            files: 7,
            jobs: vec![job("minilm", false), job("again", true)],
        };
        let table = |is_wide| {
            let copies = std::slice::from_ref(&copy);
            Table { copies, is_wide }.to_string()
        };
        let shown = table(false);
        let words: Vec<&str> = shown.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words[..3], ["n2", "models", "team-a/minilm"]);
        assert!(
            shown.contains("0123456789ab  team-a/minilm (deleted), team-a/again"),
            "{shown}"
        );
        assert!(!shown.contains("abcdef"), "{shown}");
        let wide = table(true);
        assert!(wide.contains("  0123456789abcdef  "), "{wide}");
    }
}
