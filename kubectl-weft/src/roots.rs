//! `kubectl weft roots`: what the jobs of a namespace may name in `root`, and on which nodes.

use std::{
    fmt,
    io::{self, Write},
};

use thiserror::Error;
use weft_cli::columns::columns;
use weft_crds::{AvailableRoot, AvailableRootList};

use crate::cluster::{Cluster, ClusterError, Reach};

/// What `kubectl weft roots` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// `json`: the objects as they are.
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<crate::status::Output>,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// Why nothing is shown.
#[derive(Debug, Error)]
pub enum RootsError {
    /// The cluster refused, or did not answer.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The output could not be written.
    #[error("the output could not be written: {0}; check the pipe or the disk behind it")]
    Write(#[from] io::Error),
}

/// Lists the roots of a namespace.
///
/// # Errors
/// What the cluster refused.
pub async fn run(
    args: &Args,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<bool, RootsError> {
    let cluster = Cluster::reach(&args.reach).await?;
    let namespace = cluster.namespace();
    let path = format!("namespaces/{namespace}/{}", AvailableRoot::RESOURCE);
    let list: AvailableRootList = cluster.live(&path).await?;
    if args.output.is_some() {
        serde_json::to_writer_pretty(&mut *out, &list).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if list.items.is_empty() {
        writeln!(
            err,
            "no root of any RdmaFabric is for jobs of namespace {namespace}; ask who administers the cluster"
        )?;
    } else {
        write!(out, "{}", Table(&list.items))?;
    }
    Ok(true)
}

/// Roots, a line each.
struct Table<'a>(&'a [AvailableRoot]);

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
                root.nodes.join(","),
            ]
        };
        let rows: Vec<_> = self.0.iter().map(row).collect();
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
        let shown = Table(&[root]).to_string();
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
}
