//! A cluster as its user reaches it: by their kubeconfig and nothing else.
//!
//! What the API server stores is read from it; what the operator knows now is asked of the group
//! `live.weft.dev`, which the API server passes on. So who may see what is what the user's roles say.

use std::{io, path::PathBuf, time::Duration};

use futures::AsyncReadExt as _;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::sleep;
use weft_crds::{LIVE_GROUP, LIVE_VERSION};
use weft_identity::cause::innermost;

/// Calls that may reach replicas of the operator that do not lead: of two replicas one in a million calls
/// reaches the wrong one that often.
const TRIES: u32 = 20;
/// Nodes whose metrics are asked for at a time.
pub(crate) const NODES_AT_A_TIME: usize = 32;
/// Of a text: a page of all paths has some 14 MB.
const TEXT_BYTES_MAX: u64 = 32 << 20;
/// Between two of them.
const AGAIN: Duration = Duration::from_millis(100);

/// Which cluster to ask, and with which user: the options that kubectl has.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Reach {
    /// The kubeconfig [default: $KUBECONFIG, or ~/.kube/config].
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The namespace [default: the context's].
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Ask as this user; the kubeconfig's needs the right to impersonate it.
    #[arg(long = "as", value_name = "USER", value_parser = header)]
    pub as_user: Option<String>,
    /// Ask as a member of this group; may be given several times.
    #[arg(long = "as-group", value_name = "GROUP", requires = "as_user", value_parser = header)]
    pub as_groups: Vec<String>,
}

/// A name that an HTTP header can carry.
fn header(text: &str) -> Result<String, String> {
    if text.is_empty() || http::HeaderValue::from_str(text).is_err() {
        return Err("give a name of printable ASCII characters".to_owned());
    }
    Ok(text.to_owned())
}

/// Why a command shows or does nothing.
#[derive(Debug, Error)]
pub enum CommandError {
    /// The cluster refused, or did not answer.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The output could not be written.
    #[error("the output could not be written: {0}; check the pipe or the disk behind it")]
    Write(#[from] io::Error),
}

/// Why a cluster says nothing.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// It is not known which cluster.
    #[error(
        "no cluster is known: {0}; give a kubeconfig by --kubeconfig or KUBECONFIG, and a context that it has by --context"
    )]
    Kubeconfig(#[from] KubeconfigError),
    /// The kubeconfig's credentials or certificates cannot be used.
    #[error("the kubeconfig cannot be used: {0}; try it with kubectl")]
    Credentials(String),
    /// No answer.
    #[error("the API server at {url} does not answer: {problem}; try kubectl version")]
    NoAnswer {
        /// Where.
        url: String,
        /// What came instead.
        problem: String,
    },
    /// The operator's API is not there.
    #[error(
        "the cluster does not serve {LIVE_GROUP}: {0}; see: kubectl get apiservice {LIVE_VERSION}.{LIVE_GROUP}. \
         The chart installs it unless liveApi.enabled is false, and any replica of weft-operator serves it"
    )]
    NotLive(String),
    /// An answer that is a refusal, in its own words.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// Cause and remedy.
        message: String,
    },
}

impl ClusterError {
    /// A short stable name.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Kubeconfig(_) => "KubeconfigMissing",
            Self::Credentials(_) => "CredentialsUnusable",
            Self::NoAnswer { .. } => "ClusterUnreachable",
            Self::NotLive(_) => "NotLive",
            Self::Refused { .. } => "Refused",
        }
    }

    /// What is asked of another object would be refused or left without an answer just the same.
    pub(crate) fn is_of_all(&self) -> bool {
        match self {
            Self::Refused { code, .. } => matches!(code, 401 | 403),
            Self::Kubeconfig(_)
            | Self::Credentials(_)
            | Self::NoAnswer { .. }
            | Self::NotLive(_) => true,
        }
    }

    /// Asking again may help, with nothing changed: there was no answer, or one that says later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => true,
            // 429 Too Many Requests, 503 Service Unavailable, 504 Gateway Timeout (RFC 6585, RFC 9110).
            Self::Refused { code, .. } => matches!(code, 429 | 503 | 504),
            Self::Kubeconfig(_) | Self::Credentials(_) | Self::NotLive(_) => false,
        }
    }
}

/// A cluster that is known; nothing has been asked yet.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    url: String,
    namespace: String,
}

impl Cluster {
    /// Reads the kubeconfig.
    ///
    /// # Errors
    /// It is missing, or its credentials cannot be used.
    pub async fn reach(reach: &Reach) -> Result<Self, ClusterError> {
        let options = KubeConfigOptions {
            context: reach.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = match &reach.kubeconfig {
            Some(path) => {
                Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?
            }
            None => Config::from_kubeconfig(&options).await?,
        };
        // A call that a replica which does not lead refuses is repeated here, and sooner.
        config.default_retry = false;
        if let Some(namespace) = &reach.namespace {
            config.default_namespace.clone_from(namespace);
        }
        if reach.as_user.is_some() {
            let user = &mut config.auth_info;
            user.impersonate.clone_from(&reach.as_user);
            user.impersonate_groups = Some(reach.as_groups.clone());
            // Those of whom the kubeconfig impersonates.
            user.impersonate_uid = None;
            user.impersonate_user_extra = None;
        }
        let (url, namespace) = (
            config.cluster_url.to_string(),
            config.default_namespace.clone(),
        );
        let client = Client::try_from(config)
            .map_err(|error| ClusterError::Credentials(error.to_string()))?;
        Ok(Self {
            client,
            url,
            namespace,
        })
    }

    #[cfg(test)]
    pub(crate) fn of(client: Client) -> Self {
        Self {
            client,
            url: "http://example.org".to_owned(),
            namespace: "default".to_owned(),
        }
    }

    /// The namespace that the user means where they name none.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The client, for what the API server stores.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Asks the operator: `path` begins after the group's version.
    ///
    /// # Errors
    /// What the API server or the operator refused.
    pub async fn live<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClusterError> {
        self.send("GET", &live(path), Vec::new()).await
    }

    /// Asks the operator for a text: `path` begins after the group's version.
    ///
    /// # Errors
    /// What the API server or the operator refused.
    pub async fn live_text(&self, path: &str) -> Result<String, ClusterError> {
        self.text(&live(path)).await
    }

    /// Opens an answer of the operator, whose body comes as it is read: `path` begins after the group's version.
    ///
    /// # Errors
    /// What the API server or the operator refused.
    pub(crate) async fn open(&self, path: &str) -> Result<http::Response<Body>, ClusterError> {
        let path = &live(path);
        let ask = async || {
            let request = request("GET", path, Vec::new())?.map(Body::from);
            Ok(match self.client.send(request).await {
                Ok(response) => accepted(response).await,
                Err(error) => Err(error),
            })
        };
        self.call(path, ask).await
    }

    /// Where the operator's objects of a namespace are, or those of all.
    pub(crate) fn live_resource(&self, resource: &str, all_namespaces: bool) -> String {
        match all_namespaces {
            true => resource.to_owned(),
            false => format!("namespaces/{}/{resource}", self.namespace),
        }
    }

    /// Posts to the operator; what it answers is stored nowhere.
    ///
    /// # Errors
    /// What the API server or the operator refused.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, ClusterError> {
        self.send("POST", &live(path), body).await
    }

    /// Any request of the API server.
    ///
    /// # Errors
    /// What it refused.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, ClusterError> {
        let make = || request(method, path, body.clone());
        let client = &self.client;
        self.call(path, async || Ok(client.request(make()?).await))
            .await
    }

    /// A text that the API server has; what is no UTF-8 in it is replaced.
    ///
    /// # Errors
    /// What it refused.
    pub async fn text(&self, path: &str) -> Result<String, ClusterError> {
        let client = &self.client;
        let ask = async || {
            Ok(client
                .request_stream(request("GET", path, Vec::new())?)
                .await)
        };
        let text = self.call(path, ask).await?;
        let mut bytes = Vec::new();
        let read = text.take(TEXT_BYTES_MAX).read_to_end(&mut bytes).await;
        read.map_err(|error| ClusterError::NoAnswer {
            url: self.url.clone(),
            problem: format!("{path} ends too early: {}", innermost(&error)),
        })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Makes a call, and makes it again where it has reached a replica of the operator that does not lead.
    async fn call<T>(
        &self,
        path: &str,
        ask: impl AsyncFn() -> Result<Result<T, kube::Error>, ClusterError>,
    ) -> Result<T, ClusterError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match ask().await? {
                // The API server chooses a replica for each call.
                Err(error) if is_not_leading(&error) && tries < TRIES => sleep(AGAIN).await,
                answer => return answer.map_err(|error| self.explain(path, error)),
            }
        }
    }

    /// What an error of the client means.
    pub fn explain(&self, path: &str, error: kube::Error) -> ClusterError {
        let is_live = path.starts_with(&format!("/apis/{LIVE_GROUP}/"));
        match error {
            kube::Error::Api(status) => {
                let message = status.message.clone();
                // The API server's own words, where it passes nothing on.
                let unserved = status.code == 503 && status.reason != "NotLeading"
                    || status.code == 404 && !message.contains(weft_crds::GROUP);
                if is_live && unserved {
                    return ClusterError::NotLive(message);
                }
                ClusterError::Refused {
                    code: status.code,
                    message,
                }
            }
            other => ClusterError::NoAnswer {
                url: self.url.clone(),
                problem: innermost(&other),
            },
        }
    }
}

/// A request of the API server.
fn request(
    method: &str,
    path: &str,
    body: Vec<u8>,
) -> Result<http::Request<Vec<u8>>, ClusterError> {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", "application/json");
    request.body(body).map_err(|error| ClusterError::Refused {
        code: 400,
        message: format!("{path}: {error}; use names that Kubernetes allows"),
    })
}

/// An answer that is no refusal.
async fn accepted(response: http::Response<Body>) -> Result<http::Response<Body>, kube::Error> {
    let code = response.status();
    if code.is_success() {
        return Ok(response);
    }
    let body = response.into_body().collect_bytes().await?;
    let status = serde_json::from_slice(&body).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body);
        kube::core::Status::failure(text.trim(), "Unknown").with_code(code.as_u16())
    });
    Err(kube::Error::Api(status.boxed()))
}

/// The replica of the operator that was asked does not lead.
fn is_not_leading(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "NotLeading")
}

/// A path of the operator's group.
fn live(path: &str) -> String {
    format!("/apis/{LIVE_GROUP}/{LIVE_VERSION}/{path}")
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;

    /// A cluster whose first calls reach a replica that does not lead.
    fn cluster(elsewhere: u32) -> (Cluster, Arc<AtomicU32>) {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let server = tower::service_fn(move |_: http::Request<Body>| {
            let call = counted.fetch_add(1, Ordering::Relaxed) + 1;
            let (code, body) = match call <= elsewhere {
                true => (
                    503,
                    r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "reason": "NotLeading", "message": "try again", "code": 503}"#,
                ),
                false => (200, "7"),
            };
            let response = http::Response::builder().status(code);
            std::future::ready(response.body(Body::from(body.as_bytes().to_vec())))
        });
        (Cluster::of(Client::new(server, "default")), calls)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_reaches_a_replica_that_does_not_lead_is_made_again() {
        let (half, calls) = cluster(3);
        assert_eq!(half.live::<u32>("transferprogress").await.unwrap(), 7);
        assert_eq!(calls.load(Ordering::Relaxed), 4);
        let (nobody, calls) = cluster(u32::MAX);
        let refused = nobody.live::<u32>("transferprogress").await.unwrap_err();
        assert_eq!(refused.to_string(), "try again");
        assert!(refused.may_pass());
        assert_eq!(calls.load(Ordering::Relaxed), TRIES);
    }
}
