//! The ways to agents: a channel each, made when it is first needed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::OnceCell, time::timeout};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use weft_proto::agent::v1::agent_client::AgentClient;

use super::{
    CONTACT_TRY, NEVER_REACHED, Refusal,
    refusal::{innermost, unreachable},
    runner::{Contact, RunnerError},
};
use crate::authority::Authority;

/// To reach an agent again: a management network answers within milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// With [`PING_TIMEOUT`]: an agent that vanished without a word is missed after 6 s.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// A manifest has some 200 B per file; 64 MiB are 300,000 files.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// An agent and the way to it.
#[derive(Clone)]
pub(super) struct Agent {
    pub(super) address: String,
    endpoint: Endpoint,
    /// Once it has been reached; mends itself from then on.
    client: Arc<OnceCell<AgentClient<Channel>>>,
}

/// The ways to agents, by node.
pub(super) fn agents(
    authority: &Authority,
    contacts: &[Contact],
) -> Result<BTreeMap<String, Agent>, RunnerError> {
    let operator = authority.operator()?;
    let identity = tonic::transport::Identity::from_pem(operator.certificate, operator.key);
    let agent = |Contact { node, address }: &Contact| {
        let failed = |source| RunnerError::Contact {
            node: node.clone(),
            address: address.clone(),
            source,
        };
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority.certificate()))
            .identity(identity.clone())
            .domain_name(Authority::server_name(authority.fabric(), node));
        let endpoint = Endpoint::from_shared(format!("https://{address}"))
            .and_then(|endpoint| endpoint.tls_config(tls))
            .map_err(failed)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let agent = Agent {
            address: address.clone(),
            endpoint,
            client: Arc::default(),
        };
        Ok((node.clone(), agent))
    };
    contacts.iter().map(agent).collect()
}

impl Agent {
    /// A client once it has been reached; the first call reaches it, or says that it does not answer.
    pub(super) async fn client(&self, node: &str) -> Result<AgentClient<Channel>, Refusal> {
        let failed = |cause: &str| Refusal {
            reason: NEVER_REACHED.to_owned(),
            ..unreachable(node, &self.address, cause)
        };
        let reach = async {
            // TLS included: what answers is the node.
            match timeout(CONTACT_TRY, self.endpoint.connect()).await {
                Ok(Ok(channel)) => Ok(AgentClient::new(channel)
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(MESSAGE_BYTES_MAX)),
                Ok(Err(error)) => Err(failed(&innermost(&error))),
                Err(_) => Err(failed(&format!("no connection within {CONTACT_TRY:?}"))),
            }
        };
        self.client.get_or_try_init(|| reach).await.cloned()
    }
}
