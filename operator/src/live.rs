//! What people ask the operator: an aggregated API, group `live.weft.dev`, behind the API server.
//!
//! The API server authenticates the caller, asks its own roles, and passes the call on with a client
//! certificate that only it has; `front` takes no call from anybody else. Here the caller's rights to
//! the TransferJobs themselves are asked for, by SubjectAccessReview. Nothing is stored, and nothing of
//! the operator's work depends on it: a cluster whose API server cannot aggregate loses these answers
//! and nothing else.
//!
//! Every replica serves it from its start. A replica that does not lead answers the discovery, which the API
//! server needs to delete any namespace, and refuses the rest.

mod caller;
mod copies;
mod devices;
mod diagnosis;
mod front;
mod leader;
mod page;
mod refused;
mod routes;

use std::{
    convert::Infallible,
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::Client;
use tokio::{net::TcpListener, time::sleep};
use weft_identity::{
    authority::{Authority, AuthorityError},
    tls::TlsError,
    tls_listener::TlsRefusals,
};

pub use self::leader::Leader;
use self::{
    front::{Front, ProxyListener},
    routes::LiveApi,
};
use crate::home::{Home, HomeError};

/// What the API needs is not there yet: it is looked for again.
const AGAIN: Duration = Duration::from_secs(2);
/// How often the authorities are read again. The proxy's changes once in years and the operator's once in months;
/// until that is seen, calls fail.
const AUTHORITY_POLL: Duration = Duration::from_secs(10);
/// A server certificate lives a year.
const CERTIFICATE_RENEWAL: Duration = Duration::from_secs(24 * 60 * 60);

/// What the API works with.
pub struct Live {
    /// The API server.
    pub client: Client,
    /// The operator's namespace.
    pub namespace: String,
    /// Set once this process leads.
    pub leader: Arc<OnceLock<Leader>>,
    /// Counts callers that are not the API server.
    pub refusals: TlsRefusals,
}

/// Why it is not served.
#[derive(Debug, thiserror::Error)]
enum LiveError {
    #[error(
        "ConfigMap extension-apiserver-authentication in kube-system: {0}; the API server needs its \
         --requestheader options, and the operator the Role extension-apiserver-authentication-reader"
    )]
    Front(String),
    #[error("no leader has made the Secret weft-ca yet")]
    NoAuthority,
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(
        "its TLS cannot be set up: {0}; see requestheader-client-ca-file in ConfigMap \
         extension-apiserver-authentication of kube-system, and the Secret weft-ca"
    )]
    Tls(#[from] TlsError),
    #[error("it cannot listen: {0}")]
    Listen(#[from] std::io::Error),
}

/// Serves until the process ends; an error is logged, and it is tried again.
pub async fn serve(listener: TcpListener, live: Live) -> Infallible {
    let listener = Arc::new(listener);
    let mut said = String::new();
    loop {
        match once(&listener, &live).await {
            Ok(()) => said.clear(),
            Err(error) => {
                if error.to_string() != said {
                    tracing::warn!("the live API is not served: {error}; trying again");
                    said = error.to_string();
                }
                sleep(AGAIN).await;
            }
        }
    }
}

/// Until a certificate changes: the proxy's authority, or the operator's.
async fn once(listener: &Arc<TcpListener>, live: &Live) -> Result<(), LiveError> {
    let (front, authority) = read(live).await?;
    let identity = authority.operator_server(&[&server_name(&live.namespace)])?;
    let tls = front.server(&identity)?;
    let (names, refusals) = (front.names.clone(), live.refusals.clone());
    let listener = ProxyListener::new(Arc::clone(listener), tls, names, refusals);
    let api = LiveApi {
        client: live.client.clone(),
        headers: front.headers.clone(),
        leader: Arc::clone(&live.leader),
        pages: Arc::default(),
    };
    tokio::select! {
        ended = axum::serve(listener, routes::router(api)) => Ok(ended?),
        () = changed(&front, &authority, live) => Ok(()),
        () = sleep(CERTIFICATE_RENEWAL) => Ok(()),
    }
}

/// The name that the API server asks for: that of the chart's Service of all replicas.
fn server_name(namespace: &str) -> String {
    format!("weft-operator-live.{namespace}.svc")
}

async fn read(live: &Live) -> Result<(Front, Authority), LiveError> {
    let front = Front::read(&live.client).await.map_err(LiveError::Front)?;
    let home = Home::new(live.client.clone(), &live.namespace);
    let authority = home.stored_authority().await?;
    Ok((front, authority.ok_or(LiveError::NoAuthority)?))
}

/// Ends once the API server says another authority, name or header, or another authority signs here.
async fn changed(front: &Front, authority: &Authority, live: &Live) {
    loop {
        sleep(AUTHORITY_POLL).await;
        // An API server that is away has changed nothing.
        if let Ok((now, signs)) = read(live).await
            && (now != *front || signs.to_kept() != authority.to_kept())
        {
            return;
        }
    }
}
