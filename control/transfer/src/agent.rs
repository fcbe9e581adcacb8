//! An agent, and the connection to it that all who call it share.
//!
//! One try to reach it is under way at a time, and whoever waits for it shares its result: of a
//! hundred jobs that want an agent which does not answer, none waits longer than for one try. A
//! connection that has failed a call is not used again. The call is made once more on another where
//! that connection was older than the call, for the agent may have been restarted in between; agents
//! take the same command twice.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tonic::{
    Response, Status,
    codegen::http::{Uri, uri::Authority as HostPort},
    transport::{Channel, Endpoint},
};
use tower::service_fn;
use weft_identity::{authority::AuthorityError, cause::innermost};
use weft_proto::agent::v1::agent_client::AgentClient;

use super::{
    Refusal,
    channels::Channels,
    refusal::{ADDRESS_UNUSABLE, NEVER_REACHED, is_of_connection, refusal, unreachable},
    runner::Contact,
    tls,
};

/// With [`PING_TIMEOUT`]: an agent that vanished without a word is missed after 6 s, also while nobody
/// calls it, so that the next call does not have to find out.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Of an answer. A report has some 300 B and as much for each child; a diagnosis 100 B for each
/// of 64 peers.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// What an agent may send ahead of what is read of a call …
const CALL_WINDOW: u32 = 256 << 10;
/// … and of all calls of a connection: a call whose answers are read slowly leaves the others room.
const CONNECTION_WINDOW: u32 = 512 << 10;

/// Makes calls of an agent.
pub(super) type Client = AgentClient<Channel>;

/// What all who call an agent share.
pub(super) struct Shared {
    contact: Contact,
    way: Mutex<Way>,
    /// Held by who tries to reach it.
    trying: tokio::sync::Mutex<()>,
}

/// How it is reached.
#[derive(Default)]
struct Way {
    open: Option<Connection>,
    /// How many were made.
    made: u64,
    /// The last try, where it came to nothing, and when that was known.
    failed: Option<(Instant, Refusal)>,
}

/// A connection, which tonic mends where it was closed and nobody was calling.
#[derive(Clone)]
pub(super) struct Connection {
    client: Client,
    number: u64,
    /// Which certificate was shown.
    certificate: u64,
}

/// An agent. Its connection stays as long as anybody holds one of these.
#[derive(Clone)]
pub(super) struct Agent {
    shared: Arc<Shared>,
    channels: Channels,
}

impl Shared {
    pub(super) fn new(contact: &Contact) -> Self {
        Self {
            contact: contact.clone(),
            way: Mutex::default(),
            trying: tokio::sync::Mutex::default(),
        }
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Agent {
    pub(super) fn new(shared: Arc<Shared>, channels: Channels) -> Self {
        Self { shared, channels }
    }

    /// HOST:PORT of its control API, as was said.
    pub(super) fn address(&self) -> &str {
        &self.shared.contact.address
    }

    /// Makes a call; the answer, or what the agent or the way to it refused.
    pub(super) async fn call<T, C>(&self, call: impl Fn(Client) -> C) -> Result<T, Refusal>
    where
        C: Future<Output = Result<Response<T>, Status>>,
    {
        Ok(self.open(call).await?.0)
    }

    /// The same, with the connection that the answer is from, for answers that go on.
    pub(super) async fn open<T, C>(
        &self,
        call: impl Fn(Client) -> C,
    ) -> Result<(T, Connection), Refusal>
    where
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let (mut connection, mut is_new) = self.reach().await?;
        loop {
            match call(connection.client.clone()).await {
                Ok(response) => return Ok((response.into_inner(), connection)),
                Err(status) => {
                    let refusal = self.failed(&connection, &status);
                    if is_new || !is_of_connection(&status) {
                        return Err(refusal);
                    }
                    // Once more, and no more.
                    is_new = true;
                    connection = self.reach().await?.0;
                }
            }
        }
    }

    /// What an error means that came over a connection, which is not used again if it is at fault.
    pub(super) fn failed(&self, connection: &Connection, status: &Status) -> Refusal {
        let Contact { node, address } = &self.shared.contact;
        if is_of_connection(status) {
            let mut way = self.shared.way();
            // Another one may have been made since.
            way.open.take_if(|open| open.number == connection.number);
        }
        refusal(node, address, status)
    }

    /// A connection that shows the certificate in force, and whether it was made for this call.
    async fn reach(&self) -> Result<(Connection, bool), Refusal> {
        let wanted = self.channels.certificate().map_err(|e| self.unshown(&e))?;
        if let Some(open) = self.usable(wanted) {
            return Ok((open, false));
        }
        let came = Instant::now();
        let _trying = self.shared.trying.lock().await;
        if let Some(open) = self.usable(wanted) {
            return Ok((open, true));
        }
        let failed = self.shared.way().failed.clone();
        if let Some((at, refusal)) = failed
            && at >= came
        {
            return Err(refusal);
        }
        let tried = self.connect().await;
        let mut way = self.shared.way();
        match tried {
            Ok((client, certificate)) => {
                way.made += 1;
                let open = Connection {
                    client,
                    number: way.made,
                    certificate,
                };
                way.open = Some(open.clone());
                way.failed = None;
                Ok((open, true))
            }
            Err(refusal) => {
                way.open = None;
                way.failed = Some((Instant::now(), refusal.clone()));
                Err(refusal)
            }
        }
    }

    fn usable(&self, certificate: u64) -> Option<Connection> {
        let open = self.shared.way().open.clone();
        open.filter(|open| open.certificate >= certificate)
    }

    async fn connect(&self) -> Result<(Client, u64), Refusal> {
        let Contact { node, address } = &self.shared.contact;
        let is_host_port =
            |address: &HostPort| address.port_u16().is_some() && !address.as_str().contains('@');
        if !address.parse().is_ok_and(|parsed| is_host_port(&parsed)) {
            return Err(self.undialled("it is not HOST:PORT"));
        }
        let shown = self.channels.credentials(node);
        let shown = shown.map_err(|error| self.unshown(&error))?;
        // The connector does TLS: for the library the connection is as it comes.
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| self.undialled(&innermost(&error)))?
            .initial_stream_window_size(CALL_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        // TLS included: what answers is the node.
        let to = address.clone();
        let connector = service_fn(move |_: Uri| {
            tls::dial(to.clone(), shown.name.clone(), Arc::clone(&shown.tls))
        });
        let cause = match endpoint.connect_with_connector(connector).await {
            Ok(channel) => {
                let client = AgentClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
                return Ok((client, shown.number));
            }
            Err(error) => innermost(&error),
        };
        let refusal = unreachable(node, address, &cause);
        if self.shared.way().made > 0 {
            return Err(refusal);
        }
        Err(Refusal {
            reason: NEVER_REACHED.to_owned(),
            ..refusal
        })
    }

    fn undialled(&self, problem: &str) -> Refusal {
        let Contact { node, address } = &self.shared.contact;
        Refusal {
            node: node.clone(),
            reason: ADDRESS_UNUSABLE.to_owned(),
            message: format!(
                "node {node}: its agent cannot be dialled at `{address}` ({problem}): see the \
                 address that its agent reports"
            ),
            retriable: true,
        }
    }

    fn unshown(&self, error: &AuthorityError) -> Refusal {
        Refusal {
            node: self.shared.contact.node.clone(),
            reason: error.reason().to_owned(),
            message: error.to_string(),
            retriable: true,
        }
    }
}
