//! What `helm test` asks: does an operator lead and answer, and is every fabric Ready.

use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Config, ResourceExt as _, api::ListParams};
use tokio::time::{Instant, sleep};
use weft_crds::RdmaFabric;
use weft_identity::cause::innermost;

use crate::{
    api::{CallError, call},
    home::LEADER,
};

/// What is not well may become so within.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What is not well.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The operator's namespace does not say where the leader is.
    #[error(
        "EndpointSlice {LEADER} in namespace {namespace}: {problem}; look at the operator's log"
    )]
    NoLeader {
        /// Where.
        namespace: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The leader does not say that it leads.
    #[error("the operator at {url} answers: {answer}; look at its log")]
    NotLeading {
        /// Whom.
        url: String,
        /// Or what came instead of an answer.
        answer: String,
    },
    /// Fabrics cannot be listed.
    #[error("RdmaFabrics cannot be listed: {0}; install the chart as it is")]
    NoFabrics(CallError),
    /// Of a fabric.
    #[error("{0}")]
    NotReady(String),
}

/// Looks until all is well; gives a line for each thing that is.
///
/// # Errors
/// What is not well after a minute.
pub async fn run(
    client: &Client,
    namespace: &str,
    metrics_port: u16,
) -> Result<Vec<String>, CheckError> {
    let begun = Instant::now();
    let mut said = String::new();
    loop {
        match look(client, namespace, metrics_port).await {
            Err(error) if begun.elapsed() < PATIENCE => {
                let problem = error.to_string();
                if problem != said {
                    tracing::info!("{problem}; looking again");
                    said = problem;
                }
                sleep(POLL_INTERVAL).await;
            }
            result => return result,
        }
    }
}

async fn look(client: &Client, namespace: &str, port: u16) -> Result<Vec<String>, CheckError> {
    let leader = leader(client, namespace, port).await?;
    let fabrics: Api<RdmaFabric> = Api::all(client.clone());
    let listed = call(fabrics.list(&ListParams::default())).await;
    let mut lines = vec![format!("the operator at {leader} leads")];
    lines.extend(judge(&listed.map_err(CheckError::NoFabrics)?.items)?);
    Ok(lines)
}

/// Where the leader is; it says so itself.
async fn leader(client: &Client, namespace: &str, port: u16) -> Result<String, CheckError> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let no_leader = |problem| CheckError::NoLeader {
        namespace: namespace.to_owned(),
        problem,
    };
    let slice = call(api.get(LEADER)).await;
    let slice = slice.map_err(|error| no_leader(error.to_string()))?;
    let mut endpoints = slice.endpoints.iter().flat_map(|one| one.addresses.first());
    let address = endpoints.next().cloned();
    let address = address.ok_or_else(|| no_leader("it is empty".to_owned()))?;
    let host = if address.contains(':') {
        format!("[{address}]")
    } else {
        address
    };
    let url = format!("http://{host}:{port}/");
    let not_leading = |answer: String| CheckError::NotLeading {
        url: url.clone(),
        answer,
    };
    let ask = async {
        let uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let mut config = Config::new(uri);
        // It is not asked over TLS, and the image has no authorities that could be looked for.
        config.root_cert = Some(Vec::new());
        let http = Client::try_from(config).map_err(|error| innermost(&error))?;
        let request = axum::http::Request::get("/readyz").body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let answered = call(http.request_text(request)).await;
        answered.map_err(|error| error.to_string())
    };
    let said = ask.await.map_err(not_leading)?;
    if said.trim() == "leading" {
        Ok(format!("{host}:{port}"))
    } else {
        Err(not_leading(said.trim().to_owned()))
    }
}

fn judge(fabrics: &[RdmaFabric]) -> Result<Vec<String>, CheckError> {
    let mut lines = Vec::new();
    for fabric in fabrics {
        let name = fabric.name_any();
        let mut conditions = fabric.status.iter().flat_map(|status| &status.conditions);
        match conditions.find(|one| one.type_ == "Ready") {
            Some(ready) if ready.status == "True" => {
                lines.push(format!("rdmafabric/{name}: {}", ready.message));
            }
            Some(ready) => {
                let text = format!("rdmafabric/{name} is not Ready: {}", ready.message);
                return Err(CheckError::NotReady(text));
            }
            None => {
                let text = format!("rdmafabric/{name} has no status: no operator has seen it");
                return Err(CheckError::NotReady(text));
            }
        }
    }
    if lines.is_empty() {
        lines.push("there is no RdmaFabric yet".to_owned());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fabric(conditions: &serde_json::Value) -> RdmaFabric {
        let fabric = json!({
            "apiVersion": "weft.dev/v1alpha1",
            "kind": "RdmaFabric",
            "metadata": {"name": "default"},
            "spec": {"nodeSelector": {}, "roots": []},
            "status": {"conditions": conditions},
        });
        serde_json::from_value(fabric).unwrap()
    }

    fn ready(status: &str) -> RdmaFabric {
        fabric(&json!([{
            "type": "Ready", "status": status, "reason": "Nodes", "message": "2 of 3 nodes",
            "lastTransitionTime": "2026-11-22T02:00:00Z",
        }]))
    }

    #[test]
    fn a_fabric_that_is_not_ready_is_named_with_its_reason() {
        let lines = judge(&[ready("True")]).unwrap();
        assert_eq!(lines, ["rdmafabric/default: 2 of 3 nodes"]);
        let refused = judge(&[ready("True"), ready("False")]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "rdmafabric/default is not Ready: 2 of 3 nodes"
        );
        let unseen = judge(&[fabric(&json!([]))]).unwrap_err();
        assert!(unseen.to_string().contains("no operator has seen it"));
    }

    #[test]
    fn without_a_fabric_there_is_nothing_to_complain_of() {
        assert_eq!(judge(&[]).unwrap(), ["there is no RdmaFabric yet"]);
    }
}
