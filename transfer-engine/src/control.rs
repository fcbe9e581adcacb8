//! Set-up. The control thread calls peers, lets callers in, and holds a TLS connection for each session: its end says at
//! once that the peer is gone.
//!
//! The caller sends [`Hello`], which offers ends over each link that it has. The other end joins those over the links that it
//! has too to ends of its own, and sends these. The caller joins them, chooses one of the links, and says which; both ends
//! close the others.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::digest::{SHA256, digest};
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use weft_engine::{Key, LinkError, LinkKind};

use crate::address::{EngineAddress, JoinToken};
use crate::ends::{End, Ends};
use crate::error::TransferError;
use crate::failure::{Cause, if_elsewhere};
use crate::link_choice::LinkChoice;
use crate::measurement::{Called, Candidate, choose};
use crate::session::Session;
use crate::shared::{Dial, Shared};
use crate::tls::{SERVER_NAME, client_of, is_other_certificate};

/// Most bytes of a message: two ends of 16 workers with 16 IPv6 addresses, over each link, are less.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Callers that have not shown the token, at a time. One more ends the oldest: who is silent keeps nobody out.
const CALLERS_MAX: usize = 256;

/// After this silence the system asks whether the machine of the peer is alive, each second, five times.
const KEEPALIVE: Duration = Duration::from_secs(5);

#[derive(Serialize, Deserialize)]
struct Hello {
    /// Of the engine that is called.
    token: JoinToken,
    /// The caller's network namespace.
    place: String,
    offers: Vec<Offer>,
}

/// Ends over a link, by its name.
#[derive(Serialize, Deserialize)]
struct Offer {
    link: String,
    ends: Vec<End>,
}

/// Of a caller.
type ServerStream = server::TlsStream<TcpStream>;

/// What the engine that is called answers to [`Hello`], or why it does not let the caller in.
type Answer = Result<Welcome, String>;

#[derive(Serialize, Deserialize)]
struct Welcome {
    /// For each link that was offered the ends, or why there are none.
    links: Vec<Result<Vec<End>, String>>,
    /// Opens memory that the caller may write to, to measure.
    key: Key,
}

/// What the thread waits by. It is made before the thread is: a process that forks as soon as an engine has started has none
/// of it half made.
pub(crate) fn runtime() -> Result<Runtime, TransferError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let built = builder.enable_all().build();
    built.map_err(TransferError::system("make an event queue"))
}

/// The thread's body.
pub(crate) fn run(
    runtime: &Runtime,
    shared: &Arc<Shared>,
    server: ServerConfig,
    listeners: Vec<TcpListener>,
    mut commands: UnboundedReceiver<Option<Dial>>,
) {
    let acceptor = TlsAcceptor::from(Arc::new(server));
    // What is under way when this ends, ends with the runtime.
    runtime.block_on(async {
        for listener in listeners {
            let (shared, acceptor) = (Arc::clone(shared), acceptor.clone());
            tokio::spawn(async move {
                if let Err(error) = accept(&shared, &acceptor, listener).await {
                    tracing::error!("no peer can call: {error}");
                }
            });
        }
        while let Some(Some(dial)) = commands.recv().await {
            let shared = Arc::clone(shared);
            tokio::spawn(async move {
                let called = call(&shared, &dial.1);
                let called = timeout(shared.config.connect_timeout, called).await;
                let slow = |_| Err(Cause::Unreachable("it does not answer in time".to_owned()));
                match called.unwrap_or_else(slow) {
                    Ok((session, stream)) => {
                        shared.connected(&dial, &session);
                        hold(&shared, &session, stream).await;
                    }
                    Err(cause) => shared.dial_failed(&dial, &cause),
                }
            });
        }
    });
}

async fn accept(
    shared: &Arc<Shared>,
    acceptor: &TlsAcceptor,
    listener: TcpListener,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut callers: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most likely too many files are open: some close after a while.
                tracing::warn!("a caller was not accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let limit = shared.config.connect_timeout;
        let greeted = greet(Arc::clone(shared), acceptor.clone(), stream);
        let greeted = tokio::spawn(timeout(limit, greeted));
        callers.retain(|caller| !caller.is_finished());
        callers.push_back(greeted.abort_handle());
        if callers.len() > CALLERS_MAX {
            callers.pop_front().inspect(AbortHandle::abort);
        }
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let answered = async {
                // It may have been ended for a later one.
                let (stream, hello) = greeted.await???;
                timeout(limit, answer(&shared, stream, hello)).await?
            };
            match answered.await {
                Ok((session, stream)) => hold(&shared, &session, stream).await,
                Err(error) => tracing::warn!("a caller was not let in: {error}"),
            }
        });
    }
}

/// Waits for a caller to show the token.
async fn greet(
    shared: Arc<Shared>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
) -> io::Result<(ServerStream, Hello)> {
    prepare(&stream)?;
    let mut stream = acceptor.accept(stream).await?;
    let hello: Hello = receive(&mut stream).await?;
    if let Err(why) = check(&shared, &hello.token) {
        send(&mut stream, &Answer::Err(why.clone())).await?;
        stream.shutdown().await?;
        return Err(io::Error::other(why));
    }
    Ok((stream, hello))
}

/// Lets a caller in. It may take its time to measure, and keeps nobody out meanwhile.
async fn answer(
    shared: &Arc<Shared>,
    mut stream: ServerStream,
    hello: Hello,
) -> io::Result<(Arc<Session>, ServerStream)> {
    let mut sessions: Vec<(LinkKind, Ends<'_>, Arc<Session>)> = Vec::new();
    let mut join = |offer: Offer| {
        let link: LinkKind = offer.link.parse().map_err(|it: LinkError| it.to_string())?;
        let is_same = |(other, ..): &(LinkKind, _, _)| other.wire() == link.wire();
        if sessions.iter().any(is_same) {
            return Err("it offers a link twice".to_owned());
        }
        if link == LinkKind::Shm && hello.place != shared.place {
            return Err("the engines are not in one network namespace of a node".to_owned());
        }
        let ends = Ends::allocate(shared, link)?;
        let session = ends.join(offer.ends)?;
        let offered = ends.offer();
        sessions.push((link, ends, session));
        Ok(offered)
    };
    let welcome = Welcome {
        links: hello.offers.into_iter().map(&mut join).collect(),
        key: shared.measured.key,
    };
    send(&mut stream, &Answer::Ok(welcome)).await?;
    let chosen: String = receive(&mut stream).await?;
    let is_chosen = |(link, ..): &(LinkKind, _, _)| link.name() == chosen;
    let Some(index) = sessions.iter().position(is_chosen) else {
        return Err(io::Error::other("the caller has no link in common"));
    };
    let (_, ends, session) = sessions.swap_remove(index);
    ends.keep();
    Ok((session, stream))
}

fn check(shared: &Shared, token: &JoinToken) -> Result<(), String> {
    // The time to compare hashes tells nothing about the token.
    let [given, right] = [token, &shared.address.token].map(|token| digest(&SHA256, token));
    match given.as_ref() == right.as_ref() {
        true => Ok(()),
        false => Err("the token is wrong: use the string of main_address".to_owned()),
    }
}

/// Connects to a peer.
async fn call(
    shared: &Arc<Shared>,
    peer: &EngineAddress,
) -> Result<(Arc<Session>, client::TlsStream<TcpStream>), Cause> {
    let broken = |error: io::Error| Cause::Unreachable(error.to_string());
    let begun = Instant::now();
    let (mut stream, host) = connect(shared, peer).await?;
    let mut ours = Vec::new();
    for link in shared.config.link.kinds() {
        let ends = Ends::allocate(shared, link).map_err(Cause::Refused)?;
        ours.push((link, ends));
    }
    let offer = |(link, ends): &(LinkKind, Ends<'_>)| Offer {
        link: link.wire().name().to_owned(),
        ends: ends.offer(),
    };
    let hello = Hello {
        token: peer.token,
        place: shared.place.clone(),
        offers: ours.iter().map(offer).collect(),
    };
    let at = Instant::now();
    send(&mut stream, &hello).await.map_err(broken)?;
    let answer: Answer = receive(&mut stream).await.map_err(broken)?;
    let welcome = answer.map_err(Cause::Refused)?;
    let called = Called {
        address: peer,
        host,
        key: welcome.key,
        round_trip: at.elapsed(),
        // The rest is for saying what has not passed.
        timeout: shared
            .config
            .connect_timeout
            .saturating_sub(begun.elapsed())
            * 9
            / 10,
    };
    if welcome.links.len() != ours.len() {
        let problem = "its answer does not fit: use the same release at both ends";
        return Err(Cause::Refused(problem.to_owned()));
    }
    let (mut candidates, mut refused) = (Vec::new(), Vec::new());
    for ((link, ends), theirs) in ours.into_iter().zip(welcome.links) {
        match theirs.and_then(|theirs| ends.join(theirs)) {
            Ok(session) => candidates.push(Candidate {
                link,
                ends,
                session,
            }),
            // Most peers are elsewhere.
            Err(_) if link == LinkKind::Shm && shared.config.link == LinkChoice::Auto => {}
            Err(why) => {
                tracing::warn!(peer = peer.name(), link = link.name(), "not joined: {why}");
                refused.push(why);
            }
        }
    }
    let chosen = choose(shared, &called, &candidates, &refused).await?;
    let name = chosen.link.wire().name().to_owned();
    send(&mut stream, &name).await.map_err(broken)?;
    let is_chosen = |it: &Candidate<'_>| it.link == chosen.link;
    let index = candidates.iter().position(is_chosen).unwrap_or_default();
    let Candidate { ends, session, .. } = candidates.swap_remove(index);
    // Nobody else sets it.
    let _ = session.link.set((chosen, host));
    ends.keep();
    Ok((session, stream))
}

/// Connects from a NIC, where there are several: at its device, so that one that is down is not taken for another one's.
async fn connect_from(shared: &Shared, nic: usize, endpoint: SocketAddr) -> io::Result<TcpStream> {
    let nics = &shared.config.nics;
    if nics.len() == 1 {
        return TcpStream::connect(endpoint).await;
    }
    let socket = match endpoint {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.bind(SocketAddr::new(nics[nic], 0))?;
    if let Some(device) = &shared.devices[nic] {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    socket.connect(endpoint).await
}

/// A TLS connection to the first endpoint that answers, and its host.
async fn connect(
    shared: &Shared,
    peer: &EngineAddress,
) -> Result<(client::TlsStream<TcpStream>, IpAddr), Cause> {
    let broken = |error: String| Cause::Unreachable(error);
    let config = client_of(&peer.certificate).map_err(|error| broken(error.to_string()))?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut cause = broken("its address has no endpoint".to_owned());
    // Each endpoint from the NIC of the same number, and then from the next one.
    let (nics, endpoints) = (shared.config.nics.len(), peer.endpoints.len());
    let count = endpoints.max(nics);
    let tries = match (nics, endpoints) {
        (1, _) | (_, 0) => endpoints,
        _ => 2 * count,
    };
    let pairs = (0..tries).map(|at| (at % nics, (at + at / count) % endpoints));
    for (nic, endpoint) in pairs {
        let endpoint = peer.endpoints[endpoint];
        let name = ServerName::try_from(SERVER_NAME);
        let name = name.map_err(|error| broken(error.to_string()))?;
        let connecting = async {
            let stream = connect_from(shared, nic, endpoint).await?;
            prepare(&stream)?;
            connector.connect(name, stream).await
        };
        // One that does not answer leaves time for the others.
        let limit = shared.config.connect_timeout / tries.max(1) as u32;
        let slow = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
        match timeout(limit, connecting).await.unwrap_or_else(slow) {
            Ok(stream) => return Ok((stream, endpoint.ip())),
            Err(error) if is_other_certificate(&error) => {
                cause = Cause::AnotherGeneration(endpoint);
            }
            Err(error) => {
                let elsewhere = if_elsewhere(&endpoint);
                cause = broken(format!("{endpoint}: {error}{elsewhere}"));
            }
        }
    }
    Err(cause)
}

/// Waits for the end of a session.
async fn hold<S: AsyncRead + AsyncWrite + Unpin>(
    shared: &Shared,
    session: &Arc<Session>,
    mut stream: S,
) {
    tokio::select! {
        // The peer sends nothing more: this is the end.
        ended = stream.read_u8() => match ended {
            // Its NIC is silent, and the connections go on over others. If they do not, they stall.
            Err(error) if session.has_several_nics && is_silence(&error) => {
                session.hang_up.notified().await;
            }
            _ => shared.end_session(session, &Cause::PeerEnded),
        },
        () = session.hang_up.notified() => {}
    }
    // A dead peer does not read it.
    let _ = timeout(shared.config.connect_timeout, stream.shutdown()).await;
}

/// Whether a connection ended because nothing came back.
fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    let kinds = [TimedOut, HostUnreachable, NetworkUnreachable, NetworkDown];
    kinds.contains(&error.kind())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(Duration::from_secs(1))
        .with_retries(5);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
    stream.write_u32_le(bytes.len() as u32).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

async fn receive<S: AsyncRead + Unpin, T: DeserializeOwned>(stream: &mut S) -> io::Result<T> {
    let bytes = stream.read_u32_le().await? as usize;
    if bytes > MESSAGE_BYTES_MAX {
        return Err(io::Error::other("a message of set-up is too long"));
    }
    let mut message = vec![0; bytes];
    stream.read_exact(&mut message).await?;
    postcard::from_bytes(&message).map_err(io::Error::other)
}
