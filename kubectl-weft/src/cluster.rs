//! A cluster as its user reaches it: by their kubeconfig and nothing else.
//!
//! What the API server stores is read from it; what the operator knows now is asked of the group
//! `live.weft.dev`, which the API server passes on. So who may see what is what the user's roles say.

use std::{fmt, io, path::PathBuf, time::Duration};

use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use kube::{
    Client, Config,
    api::ListParams,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;
use tokio::time::sleep;
use weft_crds::{LIVE_GROUP, LIVE_VERSION};
use weft_identity::cause::innermost;

/// Calls that may reach replicas of the operator that do not lead: of two replicas one in a million calls
/// reaches the wrong one that often.
const TRIES: u32 = 20;
/// Between two of these calls.
const AGAIN: Duration = Duration::from_millis(100);
/// Nodes whose metrics are asked for at a time.
pub(crate) const NODES_AT_A_TIME: usize = 32;
/// Of a text: a page of all paths has some 14 MB.
const TEXT_BYTES_MAX: u64 = 32 << 20;

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
    /// An answer that began and did not come to its end: the node's agent, or who passes its page on, has failed.
    #[error("{path} ended too early: {problem}; ask again")]
    CutOff {
        /// What was asked for.
        path: String,
        /// What came instead of the rest.
        problem: String,
    },
    /// The operator's API is not there.
    #[error(
        "the cluster does not serve {LIVE_GROUP}: {message}; see: kubectl get apiservice {LIVE_VERSION}.{LIVE_GROUP}. \
         The chart installs it unless liveApi.enabled is false, and any replica of weft-operator serves it"
    )]
    NotLive {
        /// 503 Service Unavailable where the operator does not answer now, 404 Not Found where it is not installed.
        code: u16,
        /// The API server's own words.
        message: String,
    },
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
            Self::CutOff { .. } => "AnswerCutOff",
            Self::NotLive { .. } => "NotLive",
            Self::Refused { .. } => "Refused",
        }
    }

    /// A question about another node would be refused, or left without an answer, just the same.
    pub(crate) fn affects_every_node(&self) -> bool {
        match self {
            Self::Refused { code, .. } => matches!(code, 401 | 403),
            Self::CutOff { .. } => false,
            Self::Kubeconfig(_)
            | Self::Credentials(_)
            | Self::NoAnswer { .. }
            | Self::NotLive { .. } => true,
        }
    }

    /// Asking again may help, with nothing changed: there was no whole answer, or one that says later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::NoAnswer { .. } | Self::CutOff { .. } => true,
            // 429 Too Many Requests (RFC 6585); 502 Bad Gateway, 503 Service Unavailable, 504 Gateway Timeout (RFC 9110).
            Self::Refused { code, .. } | Self::NotLive { code, .. } => {
                matches!(code, 429 | 502..=504)
            }
            Self::Kubeconfig(_) | Self::Credentials(_) => false,
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

    /// One that answers what it is made to.
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
    pub(crate) async fn live_response(
        &self,
        path: &str,
    ) -> Result<http::Response<Body>, ClusterError> {
        let (client, path) = (&self.client, &*live(path));
        let ask = || async move {
            let request = request("GET", path, Vec::new())?.map(Body::from);
            Ok(match client.send(request).await {
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
        let (client, body) = (&self.client, &body);
        let ask = || async move {
            let request = request(method, path, body.clone())?;
            Ok(client.request(request).await)
        };
        self.call(path, ask).await
    }

    /// A page of a list: the objects as they are, whatever their kind.
    ///
    /// # Errors
    /// What the API server refused.
    pub(crate) async fn list(
        &self,
        path: &str,
        params: &ListParams,
    ) -> Result<Value, ClusterError> {
        let client = &self.client;
        let ask = || async move {
            let request = kube::core::Request::new(path).list(params);
            let request = request.map_err(|error| unusable(path, error))?;
            Ok(client.request(request).await)
        };
        self.call(path, ask).await
    }

    /// A text that the API server has; what is no UTF-8 in it is replaced.
    ///
    /// # Errors
    /// What it refused.
    pub async fn text(&self, path: &str) -> Result<String, ClusterError> {
        let mut bytes = Vec::new();
        let mut text = self.open(path).await?.take(TEXT_BYTES_MAX);
        let read = text.read_to_end(&mut bytes).await;
        read.map_err(|error| cut_off(path, &error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of a text, from the beginning of a line, and whether something before it was left out.
    ///
    /// # Errors
    /// What the API server refused.
    pub(crate) async fn text_end(
        &self,
        path: &str,
        bytes_max: usize,
    ) -> Result<(String, bool), ClusterError> {
        let mut text = self.open(path).await?;
        let (mut bytes, mut is_cut) = (Vec::new(), false);
        let mut keep = |bytes: &mut Vec<u8>, room: usize| {
            if bytes.len() > room {
                bytes.drain(..bytes.len() - bytes_max);
                is_cut = true;
            }
        };
        loop {
            let chunk = text.fill_buf().await;
            let chunk = chunk.map_err(|error| cut_off(path, &error))?;
            if chunk.is_empty() {
                break;
            }
            bytes.extend_from_slice(chunk);
            let read = chunk.len();
            text.consume_unpin(read);
            // Not for every chunk: what stays is moved.
            keep(&mut bytes, 2 * bytes_max);
        }
        keep(&mut bytes, bytes_max);
        if is_cut && let Some(line) = bytes.iter().position(|byte| *byte == b'\n') {
            bytes.drain(..=line);
        }
        Ok((String::from_utf8_lossy(&bytes).into_owned(), is_cut))
    }

    async fn open(&self, path: &str) -> Result<impl AsyncBufRead + Unpin + use<>, ClusterError> {
        let client = &self.client;
        let ask = || async move {
            Ok(client
                .request_stream(request("GET", path, Vec::new())?)
                .await)
        };
        self.call(path, ask).await
    }

    /// Makes a call, and makes it again where it has reached a replica of the operator that does not lead, or where
    /// somebody else reads the same node's metrics, which takes a moment.
    async fn call<T, F>(&self, path: &str, ask: impl Fn() -> F) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<Result<T, kube::Error>, ClusterError>>,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            match ask().await? {
                // The API server chooses a replica for each call.
                Err(error) if is_soon_over(&error) && tries < TRIES => sleep(AGAIN).await,
                answer => return answer.map_err(|error| self.explain(path, error)),
            }
        }
    }

    /// What an error of the client means.
    pub fn explain(&self, path: &str, error: kube::Error) -> ClusterError {
        let is_live = path.starts_with(&format!("/apis/{LIVE_GROUP}/"));
        match error {
            kube::Error::Api(status) => {
                let (code, message) = (status.code, status.message.clone());
                // The API server's own words, where it passes nothing on.
                let unserved = code == 503 && status.reason != "NotLeading"
                    || code == 404 && !message.contains(weft_crds::GROUP);
                if is_live && unserved {
                    return ClusterError::NotLive { code, message };
                }
                ClusterError::Refused { code, message }
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
    request.body(body).map_err(|error| unusable(path, error))
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

/// Names that make no path.
fn unusable(path: &str, error: impl fmt::Display) -> ClusterError {
    ClusterError::Refused {
        code: 400,
        message: format!("{path}: {error}; use names that Kubernetes allows"),
    }
}

fn cut_off(path: &str, error: &io::Error) -> ClusterError {
    ClusterError::CutOff {
        path: path.to_owned(),
        problem: innermost(error),
    }
}

/// The replica of the operator that was asked does not lead, or another reader reads the page.
fn is_soon_over(error: &kube::Error) -> bool {
    let reasons = ["NotLeading", "PageUnderWay"];
    matches!(error, kube::Error::Api(status) if reasons.contains(&&*status.reason))
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
        assert!(refused.is_transient());
        assert_eq!(calls.load(Ordering::Relaxed), TRIES);
    }

    #[tokio::test]
    async fn an_agent_or_an_operator_that_is_restarted_is_asked_again_and_one_that_is_not_there_is_not()
     {
        let (cluster, _) = cluster(0);
        let explained = |code: u16| {
            let status = kube::core::Status::failure("error trying to reach service", "x");
            let error = kube::Error::Api(Box::new(status.with_code(code)));
            cluster.explain(&live("fabricnodes/n0/metrics"), error)
        };
        assert!(explained(502).is_transient());
        assert!(explained(503).is_transient());
        assert!(matches!(explained(503), ClusterError::NotLive { .. }));
        assert!(matches!(explained(404), ClusterError::NotLive { .. }));
        assert!(!explained(404).is_transient());
    }
}
