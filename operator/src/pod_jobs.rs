//! Which job a pod's volume names, and the UID of the pod's namespace: asked of the API server, a few at a time.
//!
//! The API server is asked and not the controllers' cache: a namespace that has just been made again must not be taken for the one
//! before it, whose files lie on the nodes.

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::Semaphore;
use weft_crds::TransferJob;
use weft_proto::operator::v1::{FindJobRequest, FindJobResponse, Job};

use crate::{api::call, fault::Fault};

/// Questions to the API server at a time. The kubelets ask again about pods that wait, after up to two minutes each: a thousand
/// such pods are some ten questions a second.
const AT_A_TIME: usize = 8;
/// Of a name in Kubernetes.
const NAME_BYTES_MAX: usize = 253;

/// Asks the API server, a few questions at a time.
pub(crate) struct PodJobs {
    client: Client,
    turns: Semaphore,
}

impl PodJobs {
    /// By this client.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(AT_A_TIME),
        }
    }

    /// What there is of these names.
    pub(crate) async fn find(&self, request: &FindJobRequest) -> Result<FindJobResponse, Fault> {
        let FindJobRequest { namespace, name } = request;
        // They become part of a path at the API server.
        check("namespace", namespace)?;
        if !name.is_empty() {
            check("name", name)?;
        }
        let no_namespace = || Fault::NoNamespace {
            namespace: namespace.clone(),
        };
        // The turn is waited for within the same time.
        let found = call(async {
            // It is never closed.
            let _turn = self.turns.acquire().await;
            let namespaces: Api<Namespace> = Api::all(self.client.clone());
            namespaces.get_metadata(namespace).await
        });
        let found = found.await.map_err(|error| match error.is_not_found() {
            true => no_namespace(),
            false => Fault::NotAnswered(error),
        })?;
        // No pod is made in one that is being deleted, and its files may be of one that follows soon.
        if found.metadata.deletion_timestamp.is_some() {
            return Err(no_namespace());
        }
        Ok(FindJobResponse {
            namespace_uid: found.uid().ok_or_else(no_namespace)?,
            job: self.job(namespace, name).await?,
        })
    }

    async fn job(&self, namespace: &str, name: &str) -> Result<Option<Job>, Fault> {
        if name.is_empty() {
            return Ok(None);
        }
        let found = call(async {
            let _turn = self.turns.acquire().await;
            let jobs: Api<TransferJob> = Api::namespaced(self.client.clone(), namespace);
            jobs.get(name).await
        });
        match found.await {
            Ok(job) => {
                let phase = job.status.as_ref().map(|status| status.phase);
                Ok(Some(Job {
                    uids: weft_transfer::known_uids(&job.uid().unwrap_or_default()).to_vec(),
                    phase: format!("{:?}", phase.unwrap_or_default()),
                }))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(Fault::NotAnswered(error)),
        }
    }
}

fn check(field: &'static str, name: &str) -> Result<(), Fault> {
    let is_letter = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_letter)
        && !name.starts_with('.');
    match is_name {
        true => Ok(()),
        false => Err(Fault::BadRequest {
            field,
            problem:
                "is no name of Kubernetes: give 1 to 253 small letters, digits, \"-\" and \".\""
                    .to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, http::StatusCode, http::Uri};
    use serde_json::{Value, json};

    use super::*;

    /// An API server with the namespaces `team-a` and `ending`, and the job `minilm` of `team-a`.
    fn jobs() -> PodJobs {
        let answer = async |uri: Uri| {
            let object = |kind: &str, version: &str, metadata: Value| {
                let mut object = json!({"apiVersion": version, "kind": kind, "metadata": metadata});
                if kind == "TransferJob" {
                    object["spec"] = json!({
                        "source": {"file": {"node": "n1", "root": "models", "path": "minilm"}},
                        "destinations": {"nodes": ["n2"], "root": "models", "path": "minilm"},
                    });
                    object["status"] = json!({"phase": "Transferring"});
                }
                (StatusCode::OK, object.to_string())
            };
            let partial = ("PartialObjectMetadata", "meta.k8s.io/v1");
            match uri.path() {
                "/api/v1/namespaces/team-a" => {
                    let metadata = json!({"name": "team-a", "uid": "namespace-1"});
                    object(partial.0, partial.1, metadata)
                }
                "/api/v1/namespaces/ending" => {
                    let metadata = json!({
                        "name": "ending", "uid": "namespace-2", "deletionTimestamp": "2026-11-28T00:00:00Z",
                    });
                    object(partial.0, partial.1, metadata)
                }
                "/apis/weft.dev/v1alpha1/namespaces/team-a/transferjobs/minilm" => {
                    let metadata = json!({"name": "minilm", "namespace": "team-a", "uid": "job-1"});
                    object("TransferJob", "weft.dev/v1alpha1", metadata)
                }
                path if path.contains("broken") => {
                    (StatusCode::INTERNAL_SERVER_ERROR, String::new())
                }
                path => {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let status = json!({
                        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound",
                        "message": format!("{name} not found"), "code": 404, "details": {"name": name},
                    });
                    (StatusCode::NOT_FOUND, status.to_string())
                }
            }
        };
        PodJobs::new(Client::new(Router::new().fallback(answer), "default"))
    }

    async fn find(namespace: &str, name: &str) -> Result<FindJobResponse, Fault> {
        let request = FindJobRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        jobs().find(&request).await
    }

    #[tokio::test]
    async fn a_pods_namespace_and_job_are_known_by_their_uids() {
        let found = find("team-a", "minilm").await.unwrap();
        let job = Job {
            uids: vec!["job-1".to_owned(), "job-1-here".to_owned()],
            phase: "Transferring".to_owned(),
        };
        assert_eq!(
            (&*found.namespace_uid, found.job),
            ("namespace-1", Some(job))
        );
        for name in ["", "other"] {
            let found = find("team-a", name).await.unwrap();
            assert_eq!((&*found.namespace_uid, found.job), ("namespace-1", None));
        }
    }

    #[tokio::test]
    async fn a_namespace_that_is_gone_or_going_has_no_uid_and_no_other_path_is_asked_for() {
        for (namespace, name, reason) in [
            ("none", "", "NoNamespace"),
            ("ending", "", "NoNamespace"),
            ("broken", "", "NotAnswered"),
            ("team-a", "broken", "NotAnswered"),
            ("", "", "BadRequest"),
            ("../secrets", "", "BadRequest"),
            ("team-a", "..", "BadRequest"),
            ("team-a", "a/b", "BadRequest"),
        ] {
            let refused = find(namespace, name).await.unwrap_err();
            assert_eq!(refused.reason(), reason, "{namespace} {name}: {refused}");
        }
    }
}
