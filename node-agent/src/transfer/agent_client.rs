//! `PeerAgent`: calls of another agent's control API, with retries.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use weft_identity::cause::chain;
use weft_proto::Message as _;
use weft_proto::agent::v1::ErrorDetail;
use weft_proto::agent::v1::agent_client::AgentClient;

use crate::fault::Fault;
use crate::tls::Tls;

/// Largest control message: room for the block hashes of 2 TiB, 32 bytes for each MiB.
pub(crate) const CONTROL_BYTES_MAX: usize = 64 << 20;
/// Time for one try to reach another agent.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);
/// A control connection is pinged this often. With [`PING_TIMEOUT`], a peer that has vanished is noticed after
/// 6 s, long before any lease ends.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A ping that is not answered by then counts as lost: a management network answers in milliseconds, and a busy
/// agent in less than a second.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(4);
/// Wait after the first failed try; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest wait between tries.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Makes calls of another agent.
pub(crate) type Client = AgentClient<Channel>;

/// Another agent's control API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAgent<'a> {
    /// Its node.
    pub node: &'a str,
    /// HOST:PORT.
    pub address: &'a str,
    /// The request's field that names the address.
    pub field: &'static str,
}

impl PeerAgent<'_> {
    /// Makes calls of a transfer and of devices. Connects with the first call.
    pub(crate) fn client(&self, tls: &Tls) -> Result<Client, Fault> {
        self.channel(tls).map(AgentClient::new)
    }

    /// For any service. Connects with the first call.
    pub(crate) fn channel(&self, tls: &Tls) -> Result<Channel, Fault> {
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
        Ok(channel)
    }

    /// Makes a call until it succeeds, fails for good, or the time is over.
    pub(crate) async fn retry<T, C>(
        &self,
        retry_for: Duration,
        call: impl Fn() -> C,
    ) -> Result<T, Fault>
    where
        C: Future<Output = Result<T, Fault>>,
    {
        let deadline = Instant::now() + retry_for;
        let mut wait = RETRY_FIRST;
        loop {
            match call().await {
                Err(fault) if fault.is_transient() && Instant::now() + wait <= deadline => {}
                result => return result,
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    /// The fault that a call ended with.
    fn fault(&self, status: &Status) -> Fault {
        match refusal(status) {
            Some(detail) => Fault::PeerRefused {
                node: self.node.to_owned(),
                reason: detail.reason,
                message: status.message().to_owned(),
                retriable: detail.retriable,
            },
            None => self.unreachable(chain(status)),
        }
    }

    /// What a call brings, if it brings it within [`TRY_TIMEOUT`].
    pub(crate) async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Fault> {
        match timeout(TRY_TIMEOUT, call).await {
            Ok(answer) => answer.map_err(|status| self.fault(&status)),
            Err(_) => Err(self.unreachable(format!("no answer within {TRY_TIMEOUT:?}"))),
        }
    }

    fn unreachable(&self, problem: String) -> Fault {
        Fault::PeerUnreachable {
            node: self.node.to_owned(),
            address: self.address.to_owned(),
            problem,
        }
    }
}

/// Why an agent or the operator refused a call. None where no answer came from it.
pub(crate) fn refusal(status: &Status) -> Option<ErrorDetail> {
    let mut detail = ErrorDetail::decode(status.details()).unwrap_or_default();
    if detail.reason.is_empty() {
        detail.reason = match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => {
                return None;
            }
            code => format!("{code:?}"),
        };
    }
    Some(detail)
}
