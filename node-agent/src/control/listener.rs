//! The control API's listener: gives each caller to the server with the certificates in force.
//!
//! A server's certificates are fixed when it is made, so new ones get a server of their own. The one
//! before it goes on with the calls that it has, and sends its callers away for the next. Certificates
//! that cannot be used change nothing: the agent goes on with those it has, and says so.

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

use crate::abort;
use crate::control::authorization::Door;
use crate::tls::Tls;
use crate::transfer::dial::{PING_INTERVAL, PING_TIMEOUT};
use crate::transfer::record::SLOT_BYTES;

/// The certificates' files are read so often: they are small, and whoever replaces them watches.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Before the next try to take a caller where that failed: there are no descriptors, and asking at
/// once again would keep a core busy with it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Callers on their way to a server, which takes each at once.
const CALLERS: usize = 16;

/// Calls on one connection at a time that hold no memory: lists, and attempts that are refused or
/// over.
const STREAMS_BESIDE: u32 = 128;
/// An attempt that goes on is followed, and one command on it is on its way.
const STREAMS_PER_ATTEMPT: u32 = 2;
/// `limits.slots` is 2 at least, and whoever sends takes more.
const ATTEMPT_BYTES_MIN: u64 = 2 * SLOT_BYTES as u64;

type Callers = mpsc::Sender<io::Result<TcpStream>>;

/// The listener and its servers.
#[derive(Debug)]
pub(crate) struct Control {
    listener: TcpListener,
    door: Door,
    /// Read by whoever calls other agents.
    tls: watch::Sender<Tls>,
    stop: watch::Receiver<bool>,
    /// Calls on one connection at a time; further ones wait.
    streams_max: u32,
    /// To the server in force.
    callers: Callers,
    servers: JoinSet<()>,
}

impl Control {
    /// With the certificates of `tls`; the answer is what TLS makes of them, if they do not fit.
    /// As many calls at a time are taken as attempts can have that share `memory`.
    pub(crate) fn new(
        listener: TcpListener,
        door: Door,
        tls: watch::Sender<Tls>,
        stop: watch::Receiver<bool>,
        memory: u64,
    ) -> Result<Self, String> {
        let mut servers = JoinSet::new();
        let streams_max = streams_max(memory);
        let callers = serve(&tls.borrow(), &door, &stop, streams_max, &mut servers)?;
        Ok(Self {
            listener,
            door,
            tls,
            stop,
            streams_max,
            callers,
            servers,
        })
    }

    /// Takes callers until told to stop, and waits until they have hung up.
    pub(crate) async fn run(mut self) -> Result<(), String> {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        let mut stopped = pin!(stopped(self.stop.clone()));
        // What was wrong at the last look: it is said once.
        let mut wrong: Option<String> = None;
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((caller, _)) => {
                        if self.callers.send(Ok(caller)).await.is_err() {
                            return Err("its server has ended".to_owned());
                        }
                    }
                    Err(error) => {
                        tracing::warn!("a caller could not be taken: {error}: raise the limit on open files");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                _ = looks.tick() => {
                    let found = self.look().await.err();
                    if let Some(problem) = found.as_ref().filter(|found| wrong.as_ref() != Some(found)) {
                        tracing::warn!("the certificates in force stay: {problem}");
                    }
                    wrong = found;
                }
                () = &mut stopped => break,
            }
        }
        drop((self.listener, self.callers));
        while self.servers.join_next().await.is_some() {}
        Ok(())
    }

    /// Puts new certificates in force, if there are any.
    async fn look(&mut self) -> Result<(), String> {
        let tls = self.tls.borrow().clone();
        let found = abort::blocking("certificates", move || tls.reread()).await;
        let Some(tls) = found.map_err(|error| error.to_string())? else {
            return Ok(());
        };
        let callers = serve(
            &tls,
            &self.door,
            &self.stop,
            self.streams_max,
            &mut self.servers,
        )?;
        let before = std::mem::replace(&mut self.callers, callers);
        self.tls.send_replace(tls);
        tokio::spawn(async move {
            // A server without callers to come drops those that are still showing who they are.
            tokio::time::sleep(HANDSHAKE_WITHIN).await;
            drop(before);
        });
        // Servers whose callers have all hung up.
        while self.servers.try_join_next().is_some() {}
        tracing::info!("new certificates are in force");
        Ok(())
    }
}

/// What `limits.memory` allows: an operator that follows every attempt can still cancel each.
fn streams_max(memory: u64) -> u32 {
    let attempts = u32::try_from(memory / ATTEMPT_BYTES_MIN).unwrap_or(u32::MAX);
    let of_attempts = attempts.saturating_mul(STREAMS_PER_ATTEMPT);
    of_attempts.saturating_add(STREAMS_BESIDE)
}

/// Starts a server with these certificates.
fn serve(
    tls: &Tls,
    door: &Door,
    stop: &watch::Receiver<bool>,
    streams_max: u32,
    servers: &mut JoinSet<()>,
) -> Result<Callers, String> {
    let mut server = Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(streams_max)
        .tls_config(tls.server())
        .map_err(|error| {
            format!(
                "tls: {}: check that `tls.key` belongs to `tls.certificate` and that all three are PEM",
                chain(&error)
            )
        })?;
    let router = server.add_service(door.clone());
    let (callers, incoming) = mpsc::channel(CALLERS);
    let stopped = stopped(stop.clone());
    servers.spawn(async move {
        let served = router
            .serve_with_incoming_shutdown(ReceiverStream::new(incoming), stopped)
            .await;
        if let Err(error) = served {
            tracing::error!("a server of the control API has ended: {}", chain(&error));
        }
    });
    Ok(callers)
}

/// Waits until the agent is to stop.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stop.wait_for(|stop| *stop).await;
}
