//! Dialing another agent: agreeing on a data connection with a child through its control API.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use weft_core::units::Key;
use weft_core::wire::{Secret, VERSION};
use weft_engine::{DomainId, Engine, Event};
use weft_identity::cause::chain;
use weft_proto::Message as _;
use weft_proto::agent::v1::agent_client::AgentClient;
use weft_proto::agent::v1::{Algorithm, Child, ConnectRequest, ConnectResponse, ErrorDetail};

use crate::convert;
use crate::fault::Fault;
use crate::tls::Tls;
use crate::transfer::arrivals::AHEAD_MESSAGES;
use crate::transfer::attempt::Attempt;
use crate::transfer::fanout::ChildIndex;
use crate::transfer::message::Held;
use crate::transfer::peer::Peer;
use crate::transfer::record::SLOT_BYTES;
use crate::transfer::sender::{End, Feed, Link};
use crate::transfer::state::State;

/// Largest control message: the hashes of 1 TiB.
pub(crate) const CONTROL_BYTES_MAX: usize = 64 << 20;
/// Slots that a child may offer, at most.
const SLOTS_MAX: usize = 64;
const _: () = assert!(SLOTS_MAX <= AHEAD_MESSAGES as usize);
/// Time for one try to reach another agent.
pub(crate) const TRY_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection is pinged this often. With [`PING_TIMEOUT`]: a peer that vanished without a word is
/// missed after 6 s, before its next try has taken long and long before any lease has run out.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A ping that is not answered by then never will be: a management network answers in milliseconds,
/// and a busy agent in less than a second.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Wait after the first failed try; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest wait between tries.
const RETRY_MOST: Duration = Duration::from_secs(1);

/// What a dialer works with.
#[derive(Debug)]
pub(crate) struct Dial {
    /// The transport.
    pub engine: Arc<Engine>,
    /// What it works for.
    pub attempt: Arc<Attempt>,
    /// Whom to call.
    pub child: Child,
    /// Which of the outlet's children that is.
    pub index: ChildIndex,
    /// Its record.
    pub peer: Arc<Peer>,
    /// This node's certificate.
    pub tls: Tls,
    /// Of the child's slots: how many to use, at most.
    pub slots: usize,
    /// What both ends must mean.
    pub manifest_digest: [u8; 32],
    /// How blocks are hashed.
    pub algorithm: Algorithm,
    /// Of this attempt's connections at this node.
    pub domain: DomainId,
    /// For how long to try.
    pub patience: Duration,
    /// Where the engine's events go.
    pub events: Sender<Event>,
    /// Where the result goes.
    pub feed: Sender<Feed>,
}

impl Dial {
    /// Calls until the child has agreed or refused, or patience is over; tells the outlet.
    pub(crate) async fn run(self) {
        let mut watch = self.attempt.watch();
        let feed = tokio::select! {
            result = self.connect() => match result {
                Ok(link) => Feed::Connected(self.index, link),
                Err(fault) => Feed::Refused(self.index, fault),
            },
            // Not where the attempt is merely over: a relay that has everything still owes it to
            // its children.
            _ = watch.wait_for(|status| status.state == State::Failed) => return,
        };
        // An outlet that is over needs neither; a connection closes with the message.
        let _ = self.feed.send(feed);
    }

    async fn connect(&self) -> Result<Link, Fault> {
        let secret = draw_secret()?;
        let local = self.engine.allocate(self.domain, secret.clone());
        let end = End::new(self.engine.clone(), local.id);
        let request = ConnectRequest {
            ticket: self.child.ticket.clone(),
            wire_version: VERSION.into(),
            endpoint: Some(convert::endpoint_to_proto(&local, &secret)),
            manifest_digest: self.manifest_digest.to_vec(),
            algorithm: self.algorithm.into(),
        };
        let response = self.call(request).await?;
        let remote =
            convert::endpoint(&self.child.node, response.endpoint, self.engine.settings())?;
        let faulty = |problem: &str| Fault::PeerFaulty {
            node: self.child.node.clone(),
            problem: problem.to_owned(),
        };
        let fits = |slots: &[weft_proto::agent::v1::Slot]| {
            (1..=SLOTS_MAX).contains(&slots.len())
                && slots.iter().all(|slot| slot.bytes as usize >= SLOT_BYTES)
        };
        if !fits(&response.slots) {
            return Err(faulty("slots that are too many, too few or too small"));
        }
        let held = Held::new(response.have).map_err(faulty)?;
        let address = remote.address;
        self.engine
            .connect(local.id, remote, self.events.clone())
            .map_err(|error| Fault::Engine {
                problem: error.to_string(),
            })?;
        self.peer.opened(local.id, address);
        let slots = response
            .slots
            .iter()
            .take(self.slots)
            .map(|slot| Key(slot.key))
            .collect();
        Ok(Link { end, slots, held })
    }

    async fn call(&self, request: ConnectRequest) -> Result<ConnectResponse, Fault> {
        let agent = OtherAgent {
            node: &self.child.node,
            address: &self.child.control_address,
            field: "sends_to.control_address",
        };
        let client = agent
            .client(&self.tls)?
            .max_decoding_message_size(CONTROL_BYTES_MAX);
        let call = || {
            let (mut client, request) = (client.clone(), request.clone());
            async move {
                let answer = timeout(TRY_TIMEOUT, client.connect(request)).await;
                let answer = answer.map_err(|_| agent.silent())?;
                let response = answer.map_err(|status| agent.fault(&status))?;
                Ok(response.into_inner())
            }
        };
        agent.retry(self.patience, call).await
    }
}

/// Makes calls of another agent.
pub(crate) type Client = AgentClient<Channel>;

/// Another agent's control API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OtherAgent<'a> {
    /// Its node.
    pub node: &'a str,
    /// HOST:PORT.
    pub address: &'a str,
    /// The field that says so.
    pub field: &'static str,
}

impl OtherAgent<'_> {
    /// Connects with the first call.
    pub(crate) fn client(&self, tls: &Tls) -> Result<Client, Fault> {
        let address = self.address;
        let bad = |problem: String| Fault::bad(self.field, format!("`{address}` {problem}"));
        let channel = Endpoint::from_shared(format!("https://{address}"))
            .map_err(|error| bad(format!("is not HOST:PORT: {error}")))?
            .tls_config(tls.client(self.node))
            .map_err(|error| bad(format!("cannot be used with TLS: {}", chain(&error))))?
            .connect_timeout(TRY_TIMEOUT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .connect_lazy();
        Ok(AgentClient::new(channel))
    }

    /// Makes a call until it succeeds, fails for good, or patience is over.
    pub(crate) async fn retry<T, C>(
        &self,
        patience: Duration,
        call: impl Fn() -> C,
    ) -> Result<T, Fault>
    where
        C: Future<Output = Result<T, Fault>>,
    {
        let deadline = Instant::now() + patience;
        let mut wait = RETRY_FIRST;
        loop {
            match call().await {
                Err(fault) if fault.passes() && Instant::now() + wait <= deadline => {}
                result => return result,
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MOST);
        }
    }

    /// What it answered, or why it did not.
    pub(crate) fn fault(&self, status: &Status) -> Fault {
        let detail = ErrorDetail::decode(status.details()).unwrap_or_default();
        if !detail.reason.is_empty() {
            return Fault::PeerRefused {
                node: self.node.to_owned(),
                reason: detail.reason,
                message: status.message().to_owned(),
                retriable: detail.retriable,
            };
        }
        match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => {
                self.unreachable(chain(status))
            }
            code => Fault::PeerRefused {
                node: self.node.to_owned(),
                reason: format!("{code:?}"),
                message: status.message().to_owned(),
                retriable: false,
            },
        }
    }

    /// It has not answered within [`TRY_TIMEOUT`].
    pub(crate) fn silent(&self) -> Fault {
        self.unreachable(format!("no answer within {TRY_TIMEOUT:?}"))
    }

    fn unreachable(&self, problem: String) -> Fault {
        Fault::PeerUnreachable {
            node: self.node.to_owned(),
            address: self.address.to_owned(),
            problem,
        }
    }
}

/// A connection's secret for one direction.
pub(crate) fn draw_secret() -> Result<Secret, Fault> {
    use ring::rand::{SecureRandom as _, SystemRandom};
    let mut secret = [0; 32];
    SystemRandom::new()
        .fill(&mut secret)
        .map_err(|_| Fault::Engine {
            problem: "the operating system gave no random bytes".to_owned(),
        })?;
    Ok(Secret(secret))
}
