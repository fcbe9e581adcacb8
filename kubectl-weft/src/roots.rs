//! `kubectl weft roots`: what the jobs of a namespace may name in `root`, and on which nodes.

use std::{fmt, io::Write};

use weft_cli::columns::columns;
use weft_crds::{AvailableRoot, AvailableRootList};

use crate::{
    cluster::{Cluster, CommandError, Reach},
    output::{Format, say, text},
};

/// Nodes that a line names unless it is wide.
const NODES: usize = 8;

/// What `kubectl weft roots` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How it is printed.
    #[command(flatten)]
    pub format: Format,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// Lists the roots of a namespace.
///
/// # Errors
/// What the cluster refused.
pub async fn run(
    args: &Args,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, CommandError> {
    let cluster = Cluster::reach(&args.reach).await?;
    let namespace = cluster.namespace();
    let path = format!("namespaces/{namespace}/{}", AvailableRoot::RESOURCE);
    let list: AvailableRootList = cluster.live(&path).await?;
    if args.format.write(&list, out)? {
        return Ok(true);
    }
    if list.items.is_empty() {
        let nothing = format!(
            "no root of any RdmaFabric is for jobs of namespace {namespace}; ask who administers the cluster"
        );
        say(nothing, err)?;
    } else {
        let table = Table {
            roots: &list.items,
            is_wide: args.format.is_wide(),
        };
        text(table, out)?;
    }
    Ok(true)
}

/// Roots, a line each.
struct Table<'a> {
    roots: &'a [AvailableRoot],
    is_wide: bool,
}

impl Table<'_> {
    fn nodes(&self, names: &[String]) -> String {
        match names.get(..NODES) {
            Some(first) if !self.is_wide && names.len() > NODES => {
                format!("{} and {} more", first.join(","), names.len() - NODES)
            }
            _ => names.join(","),
        }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |root: &AvailableRoot| {
            let limit = root.bytes_per_namespace.as_deref();
            vec![
                root.name.clone(),
                format!("{:?}", root.access),
                format!("{:?}", root.scope),
                limit.unwrap_or("none").to_owned(),
                root.fabric.clone(),
                self.nodes(&root.nodes),
            ]
        };
        let rows: Vec<_> = self.roots.iter().map(row).collect();
        let head = ["root", "access", "scope", "limit", "fabric", "nodes"];
        columns(f, &head, &rows)
    }
}

#[cfg(test)]
mod tests {
    use weft_crds::{RootAccess, RootScope};

    use super::*;

    #[test]
    fn a_line_says_what_a_job_may_name_and_where() {
        let root = AvailableRoot {
            fabric: "default".to_owned(),
            name: "models".to_owned(),
            access: RootAccess::ReadWrite,
            scope: RootScope::PerNamespace,
            bytes_per_namespace: None,
            nodes: vec!["n1".to_owned(), "n2".to_owned()],
        };
        let table = Table {
            roots: &[root],
            is_wide: false,
        };
        let shown = table.to_string();
        let words: Vec<&str> = shown.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(
            words,
            [
                "models",
                "ReadWrite",
                "PerNamespace",
                "none",
                "default",
                "n1,n2"
            ]
        );
    }
    #[test]
    fn the_nodes_of_a_large_fabric_are_named_in_full_only_where_a_wide_table_is_asked_for() {
        let names: Vec<String> = (1..=10).map(|number| format!("n{number}")).collect();
        let nodes = |is_wide| {
            let table = Table {
                roots: &[],
                is_wide,
            };
            table.nodes(&names)
        };
        assert_eq!(nodes(false), "n1,n2,n3,n4,n5,n6,n7,n8 and 2 more");
        assert_eq!(nodes(true), names.join(","));
    }
}
