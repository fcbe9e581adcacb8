//! The control API's listener: gives each connection to the server with the certificates in force.
//!
//! A server's certificates are fixed when it is made, so new certificates get a new server. The server before it
//! goes on with the calls that it has, and its callers connect again. Certificates that cannot be used change
//! nothing: the agent goes on with those it has, and logs a warning.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use weft_identity::cause::chain;
use weft_identity::tls::HANDSHAKE_WITHIN;

use crate::control::authorization::Authorization;
use crate::fail_fast;
use crate::tls::Tls;
use crate::transfer::agent_client::{PING_INTERVAL, PING_TIMEOUT};
use crate::transfer::frame::SLOT_BYTES;

/// The certificates' files are read so often.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);

/// The pause after a connection could not be accepted: there are no file descriptors, and to try again at once
/// would keep a core busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepted connections on their way to a server.
const ACCEPTED: usize = 16;

/// Calls on one connection at a time that hold no memory: lists, and attempts that are refused or
/// over.
const STREAMS_BESIDE: u32 = 128;
/// An attempt that goes on is followed, and one command on it is on its way.
const STREAMS_PER_ATTEMPT: u32 = 2;
/// `limits.slots` is at least 2, and an attempt that sends takes more.
const ATTEMPT_BYTES_MIN: u64 = 2 * SLOT_BYTES as u64;

type Connections = mpsc::Sender<io::Result<TcpStream>>;

/// The listener and its servers.
#[derive(Debug)]
pub(crate) struct ControlListener {
    listener: TcpListener,
    authorization: Authorization,
    /// Read for calls of other agents.
    tls: watch::Sender<Tls>,
    stop: watch::Receiver<bool>,
    /// Calls on one connection at a time; further ones wait.
    streams_max: u32,
    /// To the server in force.
    connections: Connections,
    servers: JoinSet<()>,
}

impl ControlListener {
    /// Uses the certificates of `tls`; the error says why TLS cannot use them. Takes as many calls at a time as the
    /// attempts can have that share `memory`.
    pub(crate) fn new(
        listener: TcpListener,
        authorization: Authorization,
        tls: watch::Sender<Tls>,
        stop: watch::Receiver<bool>,
        memory: u64,
    ) -> Result<Self, String> {
        let in_force = tls.borrow().clone();
        let mut control = Self {
            listener,
            authorization,
            tls,
            stop,
            streams_max: streams_max(memory),
            connections: mpsc::channel(ACCEPTED).0,
            servers: JoinSet::new(),
        };
        control.connections = control.serve(&in_force)?;
        Ok(control)
    }

    /// Accepts connections until the agent stops, and waits until all are closed.
    pub(crate) async fn run(mut self) -> Result<(), String> {
        let mut rereads = tokio::time::interval(REREAD_INTERVAL);
        let mut stopped = pin!(stopped(self.stop.clone()));
        // What was wrong the last time: it is logged once.
        let mut wrong: Option<String> = None;
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((connection, _)) => {
                        if self.connections.send(Ok(connection)).await.is_err() {
                            return Err("its server has ended".to_owned());
                        }
                    }
                    Err(error) => {
                        tracing::warn!("a connection could not be accepted: {error}: raise the limit on open files");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                _ = rereads.tick() => {
                    let found = self.reread().await.err();
                    if let Some(problem) = found.as_ref().filter(|found| wrong.as_ref() != Some(found)) {
                        tracing::warn!("the certificates in force stay: {problem}");
                    }
                    wrong = found;
                }
                () = &mut stopped => break,
            }
        }
        drop((self.listener, self.connections));
        while self.servers.join_next().await.is_some() {}
        Ok(())
    }

    /// Puts new certificates in force, if there are any.
    async fn reread(&mut self) -> Result<(), String> {
        let tls = self.tls.borrow().clone();
        let found = fail_fast::spawn_blocking("certificates", move || tls.reread()).await;
        let Some(tls) = found.map_err(|error| error.to_string())? else {
            return Ok(());
        };
        let connections = self.serve(&tls)?;
        let before = std::mem::replace(&mut self.connections, connections);
        self.tls.send_replace(tls);
        tokio::spawn(async move {
            // A server that gets no more connections drops those whose handshake is not over.
            tokio::time::sleep(HANDSHAKE_WITHIN).await;
            drop(before);
        });
        // Servers whose connections are all closed.
        while self.servers.try_join_next().is_some() {}
        tracing::info!("new certificates are in force");
        Ok(())
    }

    /// Starts a server with these certificates.
    fn serve(&mut self, tls: &Tls) -> Result<Connections, String> {
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .max_concurrent_streams(self.streams_max)
            .tls_config(tls.server())
            .map_err(|error| {
                format!(
                    "tls: {}: check that `tls.key` belongs to `tls.certificate` and that all three are PEM",
                    chain(&error)
                )
            })?;
        let router = server.add_service(self.authorization.clone());
        let (connections, incoming) = mpsc::channel(ACCEPTED);
        let stopped = stopped(self.stop.clone());
        self.servers.spawn(async move {
            let served = router
                .serve_with_incoming_shutdown(ReceiverStream::new(incoming), stopped)
                .await;
            if let Err(error) = served {
                tracing::error!("a server of the control API has ended: {}", chain(&error));
            }
        });
        Ok(connections)
    }
}

/// What `limits.memory` allows: an operator that follows every attempt can still cancel each.
fn streams_max(memory: u64) -> u32 {
    let attempts = u32::try_from(memory / ATTEMPT_BYTES_MIN).unwrap_or(u32::MAX);
    let of_attempts = attempts.saturating_mul(STREAMS_PER_ATTEMPT);
    of_attempts.saturating_add(STREAMS_BESIDE)
}

/// Waits until the agent stops.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stop.wait_for(|stop| *stop).await;
}
