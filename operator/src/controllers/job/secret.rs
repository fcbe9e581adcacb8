//! Tenants' Secrets, which the operator may read only where a tenant says so by a Role of its own.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use weft_transfer::{Failure, ReadSecret};

use crate::{
    NAME,
    api::call,
    controllers::job::obstacle::{Obstacle, temporary},
};

/// The reason of a name that is none.
const BAD_NAME: &str = "BadRequest";
/// Of an object's name.
const NAME_MAX: usize = 253;

/// Reads Secrets, with whatever right the operator has.
#[derive(Clone)]
pub(crate) struct Secrets {
    client: Client,
    account: String,
}

impl Secrets {
    /// With the operator's account, which is in its own namespace.
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            account: format!("{namespace}:{NAME}"),
        }
    }

    /// What it holds now.
    pub(crate) async fn read(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<BTreeMap<String, Vec<u8>>, Obstacle> {
        // It becomes part of a path.
        if !is_name(name) {
            let name: String = name.chars().take(NAME_MAX).collect();
            let message = format!(
                "secretRef.name: `{name}` is no name of a Secret: give one of at most 253 characters, of a-z, \
                 0-9, `-` and `.`, which begins and ends with a letter or digit (RFC 1123)"
            );
            return Err(temporary(BAD_NAME, message));
        }
        let api = Api::<Secret>::namespaced(self.client.clone(), namespace);
        let problem = match call(api.get_opt(name)).await {
            Ok(Some(secret)) => {
                let data = secret.data.unwrap_or_default().into_iter();
                return Ok(data.map(|(key, value)| (key, value.0)).collect());
            }
            Ok(None) => {
                let text = format!(
                    "there is no Secret {name} in namespace {namespace}: make it, or name another in another job"
                );
                return Err(temporary("SecretMissing", text));
            }
            Err(error) if error.has_code(403) => {
                return Err(forbidden(namespace, name, &self.account));
            }
            Err(problem) => problem,
        };
        let text = format!(
            "Secret {namespace}/{name} could not be read ({problem}): the operator retries; check the API server"
        );
        Err(temporary("SecretUnread", text))
    }
}

/// No Role allows it; `account` is NAMESPACE:NAME of the operator's.
pub(crate) fn forbidden(namespace: &str, name: &str, account: &str) -> Obstacle {
    let text = format!(
        "the operator may not read Secret {namespace}/{name}; whoever administers the namespace allows it by: \
         kubectl create role weft-read-{name} --namespace {namespace} --verb get --resource secrets \
         --resource-name {name}; kubectl create rolebinding weft-read-{name} --namespace {namespace} \
         --role weft-read-{name} --serviceaccount {account}"
    );
    temporary("SecretForbidden", text)
}

/// A DNS subdomain (RFC 1123), as Kubernetes has it.
fn is_name(name: &str) -> bool {
    let is_end = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(|c| is_end(*c))
            && bytes.last().is_some_and(|c| is_end(*c))
            && bytes.iter().all(|c| is_end(*c) || *c == b'-')
    };
    name.len() <= NAME_MAX && name.split('.').all(is_label)
}

impl ReadSecret for Secrets {
    fn read<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<BTreeMap<String, Vec<u8>>, Failure>> {
        Box::pin(async move {
            self.read(namespace, name)
                .await
                .map_err(|obstacle| Failure {
                    node: String::new(),
                    // Somebody may give the right, or make it.
                    retriable: obstacle.reason != BAD_NAME,
                    reason: obstacle.reason,
                    message: obstacle.message,
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, http::StatusCode, routing::get};
    use serde_json::{Value, json};

    use super::*;

    /// What the API server answers when one Secret is asked for.
    fn answering(code: u16, body: Value) -> Secrets {
        let code = StatusCode::from_u16(code).unwrap();
        let answer = get(move || std::future::ready((code, body.to_string())));
        let path = "/api/v1/namespaces/team-a/secrets/store";
        let client = Client::new(Router::new().route(path, answer), "default");
        Secrets::new(client, "weft-system")
    }

    fn status(code: u16, reason: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
               "reason": reason, "message": reason})
    }

    #[tokio::test]
    async fn a_secret_is_read_by_its_name_or_it_is_said_what_is_missing() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "store", "namespace": "team-a"}, "data": {"region": "ZXU="}});
        let read = answering(200, secret)
            .read("team-a", "store")
            .await
            .unwrap();
        assert_eq!(
            read,
            BTreeMap::from([("region".to_owned(), b"eu".to_vec())])
        );

        let denied = answering(403, status(403, "Forbidden"));
        let obstacle = denied.read("team-a", "store").await.unwrap_err();
        assert_eq!(obstacle.reason, "SecretForbidden");
        let text = obstacle.message;
        for part in [
            "--resource-name store",
            "--serviceaccount weft-system:weft-operator",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let missing = answering(404, status(404, "NotFound"));
        let obstacle = missing.read("team-a", "store").await.unwrap_err();
        assert_eq!(obstacle.reason, "SecretMissing");
        let broken = answering(500, status(500, "InternalError"));
        let obstacle = broken.read("team-a", "store").await.unwrap_err();
        assert_eq!(obstacle.reason, "SecretUnread");
    }

    /// What the API server answers to every query is a Secret that nobody may have.
    #[tokio::test]
    async fn what_is_no_name_is_asked_of_nobody() {
        let answer = get(|| async { (StatusCode::OK, json!({"data": {"a": "YQ=="}}).to_string()) });
        let client = Client::new(Router::new().fallback(answer), "default");
        let secrets = Secrets::new(client, "weft-system");
        let long = "a".repeat(254);
        for name in [
            "../../weft-system/secrets/weft-ca",
            "a/b",
            "a?b",
            "a#b",
            "a%2fb",
            "",
            ".",
            "a..b",
            "-a",
            "a-",
            "A",
            &long,
        ] {
            let obstacle = secrets.read("team-a", name).await.unwrap_err();
            assert_eq!(obstacle.reason, BAD_NAME, "{name}");
            assert!(obstacle.message.len() < 500);
        }
        for name in ["a", "store.team-a", "0-1"] {
            assert!(secrets.read("team-a", name).await.is_ok(), "{name}");
        }
    }

    #[tokio::test]
    async fn a_transfer_that_may_not_read_its_secret_any_more_may_try_again() {
        let denied = answering(403, status(403, "Forbidden"));
        let failure = ReadSecret::read(&denied, "team-a", "store")
            .await
            .unwrap_err();
        assert!(failure.retriable && failure.reason == "SecretForbidden");
    }
}
