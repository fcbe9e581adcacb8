//! The control API's listener: gives each connection to the server with the certificates in force.
//!
//! A server's certificates are fixed when it is made, so new certificates get a new server. The server before it
//! goes on with the calls that it has, and its callers connect again. Certificates that cannot be used change
//! nothing: the agent goes on with those it has, and logs a warning.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tonic::transport::Server;
use weft_identity::cause::chain;
use weft_identity::tls_listener::{TlsListener, TlsRefusals};

use crate::control::authorization::{Authorization, MeasurementAuthorization};
use crate::fail_fast;
use crate::tls::Tls;
use crate::transfer::agent_client::{PING_INTERVAL, PING_TIMEOUT};
use crate::transfer::frame::SLOT_BYTES;

/// The certificates' files are read so often.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);

/// Calls on one connection at a time that hold no memory: lists, and attempts that are refused or
/// over.
const STREAMS_WITHOUT_BUFFERS: u32 = 128;
/// An attempt that goes on is followed, and one command on it is on its way.
const STREAMS_PER_ATTEMPT: u32 = 2;
/// `limits.slots` is at least 2, and an attempt that sends takes more.
const ATTEMPT_BYTES_MIN: u64 = 2 * SLOT_BYTES as u64;

/// The listener and its servers.
#[derive(Debug)]
pub(crate) struct ControlListener {
    listener: Arc<TcpListener>,
    authorization: Authorization,
    /// Read for calls of other agents.
    tls: watch::Sender<Tls>,
    stop: watch::Receiver<bool>,
    /// Calls on one connection at a time; further ones wait.
    streams_max: u32,
    refusals: TlsRefusals,
    servers: JoinSet<()>,
}

impl ControlListener {
    /// Uses the certificates of `tls`. Takes as many calls at a time as the attempts can have that share `memory`.
    pub(crate) fn new(
        listener: TcpListener,
        authorization: Authorization,
        tls: watch::Sender<Tls>,
        stop: watch::Receiver<bool>,
        memory: u64,
        refusals: TlsRefusals,
    ) -> Self {
        Self {
            listener: Arc::new(listener),
            authorization,
            tls,
            stop,
            streams_max: streams_max(memory),
            refusals,
            servers: JoinSet::new(),
        }
    }

    /// Serves until the agent stops and all connections are closed.
    pub(crate) async fn run(mut self) {
        let mut rereads = tokio::time::interval(REREAD_INTERVAL);
        // Dropped once other certificates are in force.
        let mut in_force = self.serve();
        // What was wrong the last time: it is logged once.
        let mut wrong: Option<String> = None;
        while !*self.stop.borrow() {
            tokio::select! {
                _ = rereads.tick() => match self.reread().await {
                    Ok(true) => {
                        in_force = self.serve();
                        tracing::info!("new certificates are in force");
                        wrong = None;
                    }
                    Ok(false) => wrong = None,
                    Err(problem) => {
                        if wrong.as_ref() != Some(&problem) {
                            tracing::warn!("the certificates in force stay: {problem}");
                        }
                        wrong = Some(problem);
                    }
                },
                // A sender that is gone means the same.
                _ = self.stop.changed() => break,
            }
            // Servers whose connections are all closed.
            while self.servers.try_join_next().is_some() {}
        }
        drop((in_force, self.listener));
        while self.servers.join_next().await.is_some() {}
    }

    /// Reads the certificates again; true if there are others.
    async fn reread(&self) -> Result<bool, String> {
        let tls = self.tls.borrow().clone();
        let found = fail_fast::spawn_blocking("certificates", move || tls.reread()).await;
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(|tls| self.tls.send_replace(tls)).is_some())
    }

    /// Starts a server with the certificates in force. It accepts connections until the agent stops or the sender is
    /// dropped, finishes the handshakes that have begun, and ends when its calls are over.
    fn serve(&mut self) -> oneshot::Sender<()> {
        let (in_force, replaced) = oneshot::channel::<()>();
        let tls = self.tls.borrow().server();
        let listener = TlsListener::new(Arc::clone(&self.listener), tls, self.refusals.clone());
        let connections = listener.connections(async {
            let _ = replaced.await;
        });
        let router = Server::builder()
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .max_concurrent_streams(self.streams_max)
            .add_service(MeasurementAuthorization::from(self.authorization.clone()))
            .add_service(self.authorization.clone());
        let stopped = stopped(self.stop.clone());
        self.servers.spawn(async move {
            let served = router.serve_with_incoming_shutdown(connections, stopped);
            if let Err(error) = served.await {
                tracing::error!("a server of the control API has ended: {}", chain(&error));
            }
        });
        in_force
    }
}

/// What `limits.memory` allows: an operator that follows every attempt can still cancel each.
fn streams_max(memory: u64) -> u32 {
    let attempts = u32::try_from(memory / ATTEMPT_BYTES_MIN).unwrap_or(u32::MAX);
    let of_attempts = attempts.saturating_mul(STREAMS_PER_ATTEMPT);
    of_attempts.saturating_add(STREAMS_WITHOUT_BUFFERS)
}

/// Waits until the agent stops.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stop.wait_for(|stop| *stop).await;
}
