//! `kubectl weft version`: the release of this program, and of the operator where the user may see it.

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, Write},
};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde::Serialize;
use thiserror::Error;

use crate::{
    cluster::{Cluster, ClusterError, Reach},
    output::Format,
};

/// What the chart calls the operator.
const OPERATOR: &str = "app.kubernetes.io/name=weft-operator";
/// The chart's release, on everything that it installs.
const RELEASE: &str = "app.kubernetes.io/version";

/// What `kubectl weft version` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Only this program's; no cluster is asked.
    #[arg(long)]
    pub client: bool,
    /// How it is printed.
    #[command(flatten)]
    pub format: Format,
    /// Which cluster to ask, and with which user.
    #[command(flatten)]
    pub reach: Reach,
}

/// Why the operator's version is not shown.
#[derive(Debug, Error)]
pub enum VersionError {
    /// The cluster refused, or did not answer.
    #[error(
        "the operator's version is not known: {0}; --namespace asks in one namespace, --client nobody"
    )]
    Cluster(#[from] ClusterError),
    /// It is not installed, or in another namespace.
    #[error(
        "the operator's version is not known: no Deployment {0} is labelled {OPERATOR}; name the namespace of \
         Weft by --namespace, or install it"
    )]
    NoOperator(String),
    /// None of its pods is ready, so none says what it is.
    #[error(
        "the operator's version is not known: no pod of Deployment {name} is ready; see: kubectl describe pods -n {namespace} \
         -l {OPERATOR}"
    )]
    NotReady {
        /// The Deployment's name.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// The output could not be written.
    #[error("the output could not be written: {0}; check the pipe or the disk behind it")]
    Write(#[from] io::Error),
}

/// What runs where.
#[derive(Debug, Serialize)]
struct Versions {
    client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<String>,
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "client    {}", self.client)?;
        match &self.operator {
            Some(operator) => writeln!(f, "operator  {operator}"),
            None => Ok(()),
        }
    }
}

/// Prints the versions.
///
/// # Errors
/// The operator's is asked for and not known; this program's is printed all the same.
pub async fn run(args: &Args, out: &mut impl Write) -> Result<bool, VersionError> {
    let asked = if args.client {
        Ok(None)
    } else {
        operator(&args.reach).await.map(Some)
    };
    let (operator, result) = match asked {
        Ok(operator) => (operator, Ok(true)),
        Err(error) => (None, Err(error)),
    };
    let versions = Versions {
        client: weft_cli::VERSION,
        operator,
    };
    args.format.show(&versions, &versions, out)?;
    result
}

async fn operator(reach: &Reach) -> Result<String, VersionError> {
    let cluster = Cluster::reach(reach).await?;
    let (api, place): (Api<Deployment>, _) = match &reach.namespace {
        Some(namespace) => (
            Api::namespaced(cluster.client(), namespace),
            format!("in namespace {namespace}"),
        ),
        None => (Api::all(cluster.client()), "in the cluster".to_owned()),
    };
    let of_operator = ListParams::default().labels(OPERATOR);
    let found = api.list(&of_operator).await;
    let found = found.map_err(|error| cluster.explain("", error))?.items;
    let operator = found.first().ok_or(VersionError::NoOperator(place))?;
    let namespace = operator.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
    let pods = pods.list(&of_operator).await;
    let pods = pods.map_err(|error| cluster.explain("", error))?.items;
    running(operator, &pods).ok_or_else(|| VersionError::NotReady {
        name: operator.name_any(),
        namespace,
    })
}

/// What the ready pods run: the tag of the image, or else what the chart says of itself. While one release replaces another, there are
/// two; what the Deployment asks for may not have started, and may never start.
fn running(operator: &Deployment, pods: &[Pod]) -> Option<String> {
    let label = operator.labels().get(RELEASE).map(String::as_str);
    let release = |pod: &Pod| {
        let container = pod.spec.as_ref()?.containers.first()?;
        let image = container.image.as_deref();
        image.and_then(tag).or(label).map(str::to_owned)
    };
    let ready = pods.iter().filter(|pod| is_ready(pod));
    let releases: BTreeSet<String> = ready.filter_map(release).collect();
    let releases: Vec<String> = releases.into_iter().collect();
    (!releases.is_empty()).then(|| releases.join(", "))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn tag(image: &str) -> Option<&str> {
    let (name, _) = image.split_once('@').unwrap_or((image, ""));
    let (_, last) = name.rsplit_once('/').unwrap_or(("", name));
    last.split_once(':').map(|(_, tag)| tag)
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn the_tag_of_an_image_is_neither_a_port_nor_a_digest() {
        for (image, expected) in [
            ("registry:5000/weft/operator:0.1.0", Some("0.1.0")),
            ("registry:5000/weft/operator", None),
            ("operator:0.1.0@sha256:0123", Some("0.1.0")),
            ("weft/operator@sha256:0123", None),
        ] {
            assert_eq!(tag(image), expected, "{image}");
        }
    }
}
