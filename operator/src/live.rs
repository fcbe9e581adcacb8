//! What people ask the operator: an aggregated API, group `live.weft.dev`, behind the API server.
//!
//! The API server authenticates the caller, asks its own roles, and passes the call on with a client
//! certificate that only it has; `front` takes no call from anybody else. Here the caller's rights to
//! the TransferJobs themselves are asked for, by SubjectAccessReview. Nothing is stored, and nothing of
//! the operator's work depends on it: a cluster whose API server cannot aggregate loses these answers
//! and nothing else. Only a leader serves it.

mod caller;
mod copies;
mod diagnosis;
mod front;
mod registration;
mod routes;

use std::{convert::Infallible, sync::Arc, time::Duration};

use kube::Client;
use tokio::{net::TcpListener, sync::mpsc, time::sleep};
use weft_identity::authority::{Authority, AuthorityError};
use weft_transfer::ConnectionPool;

use crate::controllers::Question;

use self::{
    front::{Doors, Front},
    routes::Asked,
};

/// What the API needs is not there yet: it is looked for again.
const AGAIN: Duration = Duration::from_secs(10);
/// The proxy's authority changes once in years; until that is seen its calls are refused.
const LOOK: Duration = Duration::from_secs(60);

/// What the live API works with.
pub struct Live {
    /// The API server.
    pub client: Client,
    /// The operator's namespace.
    pub namespace: String,
    /// Issues the server's certificate.
    pub authority: Arc<Authority>,
    /// The ways to agents.
    pub channels: ConnectionPool,
    /// Who knows the answers.
    pub questions: mpsc::Sender<Question>,
    /// The leader's epoch, with which agents are asked.
    pub epoch: u64,
}

/// Why it is not served.
#[derive(Debug, thiserror::Error)]
enum LiveError {
    #[error(
        "ConfigMap extension-apiserver-authentication in kube-system: {0}; the API server needs its \
         --requestheader options, and the operator the Role extension-apiserver-authentication-reader"
    )]
    Front(String),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("its TLS cannot be set up: {0}")]
    Tls(String),
}

/// Serves for as long as this process leads; what is in the way is logged and tried again.
pub async fn serve(listener: TcpListener, live: Live) -> Infallible {
    let listener = Arc::new(listener);
    let registered = registration::keep(&live.client, &live.authority);
    let served = async {
        let mut said = String::new();
        loop {
            match once(&listener, &live).await {
                Ok(()) => tracing::info!("the API server's proxy has another authority now"),
                Err(error) if error.to_string() == said => sleep(AGAIN).await,
                Err(error) => {
                    tracing::warn!("kubectl weft gets no live answers: {error}");
                    said = error.to_string();
                    sleep(AGAIN).await;
                }
            }
        }
    };
    tokio::select! {
        never = registered => never,
        never = served => never,
    }
}

/// Until the API server's proxy is to be known by something else.
async fn once(listener: &Arc<TcpListener>, live: &Live) -> Result<(), LiveError> {
    let front = Front::read(&live.client).await.map_err(LiveError::Front)?;
    let identity = live
        .authority
        .operator_server(&[&registration::server_name(&live.namespace)])?;
    let tls = front.server(&identity).map_err(LiveError::Tls)?;
    let doors = Doors::open(Arc::clone(listener), tls, front.names());
    let asked = Asked {
        authorizer: caller::Reviews(live.client.clone()),
        headers: front.headers(),
        questions: live.questions.clone(),
        channels: live.channels.clone(),
        epoch: live.epoch,
    };
    tokio::select! {
        ended = axum::serve(doors, routes::router(asked)) => {
            ended.map_err(|error| LiveError::Tls(error.to_string()))
        }
        () = changed(&front, &live.client) => Ok(()),
    }
}

/// Ends once the API server says another authority, name or header.
async fn changed(front: &Front, client: &Client) {
    loop {
        sleep(LOOK).await;
        // An API server that is away has changed nothing.
        if Front::read(client).await.is_ok_and(|now| now != *front) {
            return;
        }
    }
}
