//! An agent, and the connection to it that all its callers share.
//!
//! One try to connect is under way at a time, and all callers that wait for it share its result: of a
//! hundred jobs that want an agent which does not answer, none waits longer than for one try. A
//! connection on which a call has failed is not used again. The call is made once more on another
//! connection if the failed one was older than the call, for the agent may have been restarted in
//! between; agents accept the same command twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use tokio::sync::Semaphore;
use tonic::{
    Response, Status,
    codegen::http::{Uri, uri::Authority as HostPort},
    transport::Channel,
};
use tower::service_fn;
use weft_identity::{
    authority::{Authority, AuthorityError},
    cause::innermost,
    server_name,
};
use weft_proto::agent::v1::agent_client::AgentClient;

use crate::{
    certificates::{Certificate, Certificates},
    endpoint::AgentEndpoint,
    failure::{
        ADDRESS_UNUSABLE, Failure, NEVER_REACHED, from_status, is_of_connection, node_unreachable,
    },
    tls,
};

/// With [`PING_TIMEOUT`]: an agent that does not answer any more is noticed after 6 s, also without a call,
/// so that the next call does not have to wait for that.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Of an answer. A progress message has some 300 B and as much for each child; a diagnosis 100 B for each
/// of 64 peers; a list of devices 192 KiB at most.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// What an agent may send ahead of what is read of a call …
const CALL_WINDOW: u32 = 256 << 10;
/// … and of all calls of a connection: a call whose answers are read slowly leaves the others room.
const CONNECTION_WINDOW: u32 = 512 << 10;
/// Pages of metrics of an agent that are read at a time. What two readers leave unread would fill the connection's window.
const PAGES_AT_A_TIME: usize = 1;
const _: () = assert!(PAGES_AT_A_TIME * (CALL_WINDOW as usize) < CONNECTION_WINDOW as usize);

/// Makes calls to an agent.
pub(crate) type Client = AgentClient<Channel>;

/// A try to connect, under way or ended.
type Try = Shared<BoxFuture<'static, Result<Connection, Failure>>>;

/// Connects to one agent, for all its callers.
pub(crate) struct Connector {
    endpoint: AgentEndpoint,
    tries: Mutex<Tries>,
    pages: Arc<Semaphore>,
}

#[derive(Default)]
struct Tries {
    last: Option<Try>,
    count: u64,
    /// At least one try has succeeded.
    was_reached: bool,
}

/// A connection. If it closes while no call is in flight, tonic connects again.
#[derive(Clone)]
pub(crate) struct Connection {
    client: Client,
    /// Of the try that made it.
    number: u64,
    /// The certificate that it was made with.
    certificate: u64,
}

/// Makes calls to one agent. Its connection stays as long as anything holds one of these.
#[derive(Clone)]
pub(crate) struct AgentHandle {
    connector: Arc<Connector>,
    authority: Arc<Authority>,
    certificates: Arc<Certificates>,
}

impl Connector {
    pub(crate) fn new(endpoint: &AgentEndpoint) -> Self {
        Self {
            endpoint: endpoint.clone(),
            tries: Mutex::default(),
            pages: Arc::new(Semaphore::new(PAGES_AT_A_TIME)),
        }
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentHandle {
    pub(crate) fn new(
        connector: Arc<Connector>,
        authority: Arc<Authority>,
        certificates: Arc<Certificates>,
    ) -> Self {
        Self {
            connector,
            authority,
            certificates,
        }
    }

    /// HOST:PORT of its control API, as reported.
    pub(crate) fn address(&self) -> &str {
        &self.connector.endpoint.address
    }

    /// Of those that read a page of its metrics at a time.
    pub(crate) fn pages(&self) -> &Arc<Semaphore> {
        &self.connector.pages
    }

    /// Makes a call with this request; the answer, or why there is none.
    pub(crate) async fn call<Q: Clone, T, C>(
        &self,
        request: &Q,
        call: impl Fn(Client, Q) -> C,
    ) -> Result<T, Failure>
    where
        C: Future<Output = Result<Response<T>, Status>>,
    {
        Ok(self.open(request, call).await?.0)
    }

    /// The same, with the connection that the answer is from, for answers that are streams.
    pub(crate) async fn open<Q: Clone, T, C>(
        &self,
        request: &Q,
        call: impl Fn(Client, Q) -> C,
    ) -> Result<(T, Connection), Failure>
    where
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let (connection, is_new) = self.connect().await?;
        let status = match call(connection.client.clone(), request.clone()).await {
            Ok(response) => return Ok((response.into_inner(), connection)),
            Err(status) => status,
        };
        let failure = self.failed(&connection, &status);
        if is_new || !is_of_connection(&status) {
            return Err(failure);
        }
        let (connection, _) = self.connect().await?;
        match call(connection.client.clone(), request.clone()).await {
            Ok(response) => Ok((response.into_inner(), connection)),
            Err(status) => Err(self.failed(&connection, &status)),
        }
    }

    /// What an error means that came over a connection, which is not used again if it is at fault.
    pub(crate) fn failed(&self, connection: &Connection, status: &Status) -> Failure {
        let AgentEndpoint { node, address } = &self.connector.endpoint;
        if is_of_connection(status) {
            let mut tries = self.connector.tries();
            // Another connection may have been made since.
            if tries.count == connection.number {
                tries.last = None;
            }
        }
        from_status(node, address, status)
    }

    /// A connection with the current certificate, and whether it was made for this call.
    async fn connect(&self) -> Result<(Connection, bool), Failure> {
        let node = &self.connector.endpoint.node;
        let unusable =
            |error: AuthorityError| Failure::at(node, error.reason(), &error.to_string(), true);
        let certificate = self.certificates.current(&self.authority);
        let certificate = certificate.map_err(unusable)?;
        let next = {
            let mut tries = self.connector.tries();
            match &tries.last {
                // It is under way.
                Some(last) if last.peek().is_none() => last.clone(),
                last => {
                    if let Some(Some(Ok(open))) = last.as_ref().map(Shared::peek)
                        && open.certificate >= certificate.number
                    {
                        return Ok((open.clone(), false));
                    }
                    tries.count += 1;
                    let endpoint = self.connector.endpoint.clone();
                    let name = server_name(self.authority.fabric(), node);
                    // A task of its own: it goes on when all of its callers give up.
                    let dialled = tokio::spawn(dial(endpoint, name, certificate, tries.count));
                    let next = dialled.map(|ended| {
                        ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
                    });
                    let next = next.boxed().shared();
                    tries.last = Some(next.clone());
                    next
                }
            }
        };
        let tried = next.await;
        let mut tries = self.connector.tries();
        match tried {
            Ok(open) => {
                tries.was_reached = true;
                Ok((open, true))
            }
            Err(failure) if tries.was_reached || failure.reason == ADDRESS_UNUSABLE => Err(failure),
            Err(failure) => Err(Failure {
                reason: NEVER_REACHED.to_owned(),
                ..failure
            }),
        }
    }
}

/// Makes a connection. What answers has a certificate of that name.
async fn dial(
    endpoint: AgentEndpoint,
    name: String,
    certificate: Certificate,
    number: u64,
) -> Result<Connection, Failure> {
    let AgentEndpoint { node, address } = endpoint;
    let unusable = |problem: &str| {
        let message = format!(
            "node {node}: its agent cannot be dialled at `{address}` ({problem}): see the \
             address that its agent reports"
        );
        Failure::at(&node, ADDRESS_UNUSABLE, &message, true)
    };
    if address.is_empty() {
        let message = format!(
            "node {node}: its agent has no address yet, as long as it has not joined or the node has no data interface: see kubectl \
             describe fabricnode {node}"
        );
        return Err(Failure::at(&node, ADDRESS_UNUSABLE, &message, true));
    }
    let is_host_port =
        |address: &HostPort| address.port_u16().is_some() && !address.as_str().contains('@');
    if !address.parse().is_ok_and(|parsed| is_host_port(&parsed)) {
        return Err(unusable("it is not HOST:PORT"));
    }
    // The connector does TLS; the library uses the connection as it is.
    let transport = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| unusable(&innermost(&error)))?
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let to = address.clone();
    let tls = certificate.tls;
    let connector = service_fn(move |_: Uri| tls::dial(to.clone(), name.clone(), Arc::clone(&tls)));
    let channel = transport.connect_with_connector(connector).await;
    let channel = channel.map_err(|error| node_unreachable(&node, &address, &innermost(&error)))?;
    Ok(Connection {
        client: AgentClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
        number,
        certificate: certificate.number,
    })
}
