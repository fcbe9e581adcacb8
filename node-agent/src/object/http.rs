//! The HTTP client for stores: TLS with the authorities of this build, and no connection to this node itself.
//!
//! The agent is on its node's network, where a cloud's metadata service gives the node's identity to any caller. A
//! tenant chooses URLs, so these addresses are refused wherever they come from: the URL, the Secret, a redirect, or
//! DNS. Proxies of the agent's environment are not used: a proxy resolves names itself. One that is set for stores is,
//! and then refuses what must not be reached.
//!
//! A store is not trusted either. Only an object's bytes, which go to disk a block at a time, have no limit; every
//! other answer is bounded in bytes and in time.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use nix::ifaddrs::getifaddrs;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Method, StatusCode};
use rustls::{ClientConfig, RootCertStore};
use url::{Host, Url};

use super::credentials::{CA, Credentials};
use super::error::ObjectError;
use super::network::{Authorities, Network};

/// To a store on the other side of the world it takes a fifth of a second.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A download site redirects once or twice.
const REDIRECTS: usize = 5;
/// A page of a list, or a token: S3 and Google Storage list 1,000 objects at a time, Azure 5,000, of
/// which each takes about 1 KiB.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Of an answer that says what is wrong: the codes by which stores tell it stand at its beginning.
const ERROR_BYTES_MAX: usize = 4 << 10;
/// For all of such an answer: the largest page at 1.2 Mbit/s. Silence ends it sooner.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Metadata services over IPv6: Amazon's, of machines and of pods, have a prefix; Google's is one address.
const METADATA_V6_PREFIX: [u16; 2] = [0xfd00, 0xec2];
const METADATA_V6: [u16; 8] = [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254];
/// Services for the node itself that are not link-local, as other clouds have them: Azure's wire
/// server, the metadata services of Alibaba Cloud and of Oracle Cloud.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
];

/// Which stores may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// TLS only, and no address of this node.
    #[default]
    Secure,
    /// Plain HTTP, too, and this node's own services: for stores without TLS.
    Insecure,
}

impl Access {
    /// Whether an address may be connected to.
    fn admits(self, address: IpAddr) -> bool {
        let address = canonical(address);
        let metadata = match address {
            IpAddr::V4(v4) => v4.is_link_local() || METADATA_V4.contains(&v4),
            IpAddr::V6(v6) => {
                v6.is_unicast_link_local()
                    || v6.segments().starts_with(&METADATA_V6_PREFIX)
                    || v6.segments() == METADATA_V6
            }
        };
        let own = address.is_loopback() || address.is_unspecified() || is_of_this_node(address);
        !metadata && !address.is_multicast() && (self == Self::Insecure || !own)
    }

    /// Whether a URL may be asked for; of a name the addresses are looked at later.
    pub(super) fn admits_url(self, url: &Url) -> Result<(), String> {
        if url.scheme() != "https" && self == Self::Secure {
            return Err(format!(
                "it is reached by {} without TLS: use https, or set objects.allowInsecure in \
                 the RdmaFabric, or in the agent's configuration where there is none",
                url.scheme()
            ));
        }
        let address = match url.host() {
            Some(Host::Ipv4(v4)) => IpAddr::V4(v4),
            Some(Host::Ipv6(v6)) => IpAddr::V6(v6),
            Some(Host::Domain(_)) => return Ok(()),
            None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        if self.admits(address) {
            Ok(())
        } else {
            Err(format!(
                "{address} belongs to the node itself or its cloud's metadata service: name a store"
            ))
        }
    }
}

/// Whether an interface here has the address. When the kernel does not list them, all addresses are refused.
fn is_of_this_node(address: IpAddr) -> bool {
    let Ok(entries) = getifaddrs() else {
        return true;
    };
    let mut addresses = entries.filter_map(|entry| entry.address);
    addresses.any(|own| {
        let v4 = own.as_sockaddr_in().map(|own| IpAddr::V4(own.ip()));
        let v6 = own.as_sockaddr_in6().map(|own| IpAddr::V6(own.ip()));
        v4.or(v6) == Some(address)
    })
}

/// The address that is meant: IPv4 that is written as IPv6 (RFC 4291 section 2.5.5.2), or reached
/// through a translator (NAT64's prefixes, RFC 6052 and RFC 8215 with the same layout) or a tunnel (6to4, RFC 3056).
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address.to_canonical() else {
        return address.to_canonical();
    };
    let v4 = |high: u16, low: u16| {
        let bits = u32::from(high) << 16 | u32::from(low);
        IpAddr::V4(Ipv4Addr::from_bits(bits))
    };
    match v6.segments() {
        [0x64, 0xff9b, 0 | 1, _, _, _, high, low] | [0x2002, high, low, ..] => v4(high, low),
        _ => IpAddr::V6(v6),
    }
}

/// Resolves names, and leaves out the addresses that are not allowed.
#[derive(Debug)]
struct CheckedResolver(Access);

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let access = self.0;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let admitted: Vec<SocketAddr> =
                found.filter(|found| access.admits(found.ip())).collect();
            if admitted.is_empty() {
                let problem = format!(
                    "{} has only addresses of the node itself or of a metadata service",
                    name.as_str()
                );
                return Err(Refused(problem).into());
            }
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

/// A refusal of our own: a retry would have the same result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(pub(super) String);

/// The cause of this type, at any depth of an error.
pub(super) fn find_cause<'e, T: Error + 'static>(
    error: &'e (dyn Error + 'static),
) -> Option<&'e T> {
    std::iter::successors(Some(error), |&error| error.source())
        .find_map(|error| error.downcast_ref())
}

/// What happens to redirects to another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RedirectsToOthers {
    /// Requests have no secret but an Authorization header, which the client removes.
    Followed,
    /// Requests are signed, in headers and parameters that only the library knows.
    Refused,
}

/// Gives the library our client, and checks each URL: the library also makes URLs of its own.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    client: reqwest::Client,
    access: Access,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[tonic::async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let url = Url::parse(&request.uri().to_string());
        let url = url.map_err(|error| refused(error.to_string()))?;
        self.access.admits_url(&url).map_err(refused)?;
        let asks_for_data = *request.method() == Method::GET && !is_list(&url);
        let asks_for_token = *request.method() == Method::POST;
        let response = HttpService::call(&self.client, request).await;
        // Without this, the library would retry a refused address as a failed connection.
        let response = response.map_err(|error| match find_cause::<Refused>(&error) {
            Some(Refused(problem)) => refused(problem.clone()),
            None => error,
        })?;
        let status = response.status();
        // A 404 or 403 of that server is no word about an object.
        if asks_for_token && status.is_client_error() && !is_temporary(status) {
            return Err(refused(format!(
                "{} answers {status} and gives no token: correct the Secret, or where the job has none the agents' \
                 role and identity",
                url.origin().ascii_serialization()
            )));
        }
        if is_final(status) {
            return Err(refused(format!(
                "the store answers {status}: check the URL, and region and endpoint in the Secret"
            )));
        }
        if status.is_success() && asks_for_data {
            return Ok(response);
        }
        match tokio::time::timeout(ANSWER_WITHIN, bounded(response)).await {
            Ok(bounded) => bounded,
            Err(late) => Err(HttpError::new(HttpErrorKind::Timeout, late)),
        }
    }
}

fn refused(problem: String) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, Refused(problem))
}

/// Whether the request lists objects, as S3 and Google Storage name that, or Azure.
fn is_list(url: &Url) -> bool {
    url.query_pairs()
        .any(|(key, value)| key == "list-type" || key == "comp" && value == "list")
}

/// Reads a whole answer that is no object; of an error, the beginning.
async fn bounded(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let succeeded = parts.status.is_success();
    let most = match succeeded {
        true => ANSWER_BYTES_MAX,
        false => ERROR_BYTES_MAX,
    };
    let mut pieces = body.bytes_stream();
    let mut taken = BytesMut::new();
    while let Some(piece) = pieces.try_next().await? {
        let room = most - taken.len();
        if piece.len() > room {
            if succeeded {
                return Err(refused(format!(
                    "an answer of more than {most} bytes that is no object: is it a store?"
                )));
            }
            taken.extend_from_slice(&piece[..room]);
            break;
        }
        taken.extend_from_slice(&piece);
    }
    // The library takes no text that ends within a character.
    let taken = match succeeded {
        true => taken.freeze(),
        false => Bytes::from(String::from_utf8_lossy(&taken).into_owned()),
    };
    Ok(HttpResponse::from_parts(parts, taken.into()))
}

/// Whether the same request may have another answer later.
fn is_temporary(status: StatusCode) -> bool {
    [408, 425, 429].contains(&status.as_u16())
}

/// Whether another request would have the same answer. The library handles the other statuses.
fn is_final(status: StatusCode) -> bool {
    let handled = [401, 403, 404, 405, 409, 412, 416];
    let is_handled = handled.contains(&status.as_u16()) || is_temporary(status);
    status.is_redirection() && status != StatusCode::NOT_MODIFIED
        || status.is_client_error() && !is_handled
}

impl Connector {
    /// `headers` go with every request, but not with redirected ones.
    pub(super) fn new(
        access: Access,
        network: &Network,
        stall: Duration,
        credentials: &Credentials,
        headers: HeaderMap,
        to_others: RedirectsToOthers,
    ) -> Result<Self, ObjectError> {
        let failed = |problem: String| ObjectError::Forbidden {
            url: "the store".to_owned(),
            problem,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?
            .with_root_certificates(authorities(network, credentials)?)
            .with_no_client_auth();
        let redirect = Policy::custom(move |attempt| {
            if attempt.previous().len() > REDIRECTS {
                return attempt.error(Refused("it redirects without end".to_owned()));
            }
            let from = attempt.previous().last().map(Url::origin);
            if to_others == RedirectsToOthers::Refused && from != Some(attempt.url().origin()) {
                let problem = format!(
                    "it redirects to {}, and signed requests are for itself only: name \
                     that one as the Secret's endpoint, or the right region",
                    attempt.url().origin().ascii_serialization()
                );
                return attempt.error(Refused(problem));
            }
            match access.admits_url(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(problem) => attempt.error(Refused(problem)),
            }
        });
        // Only the one that is set for stores: the environment's is for something else.
        let client = reqwest::Client::builder().no_proxy();
        let client = match network.proxy() {
            Some(proxy) => client.proxy(proxy),
            None => client,
        };
        let client = client
            .tls_backend_preconfigured(tls)
            .https_only(access == Access::Secure)
            .dns_resolver(Arc::new(CheckedResolver(access)))
            .redirect(redirect)
            // It would have the URL of a signed request, and its parameters, in it.
            .referer(false)
            .connect_timeout(CONNECT_WITHIN)
            .read_timeout(stall)
            .default_headers(headers)
            .user_agent(concat!("weft-agent/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self { client, access })
    }
}

/// Public authorities, as they are built in, those of the agent, and those of the Secret.
fn authorities(network: &Network, credentials: &Credentials) -> Result<RootCertStore, ObjectError> {
    let mut roots = RootCertStore {
        roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
    };
    let of_secret = credentials.get(CA).map(str::parse::<Authorities>);
    let added = network.authorities.add_to(&mut roots).and_then(|()| {
        let of_secret = of_secret.transpose()?;
        of_secret.map_or(Ok(()), |found| found.add_to(&mut roots))
    });
    added.map_err(|problem| credentials.wrong(CA, &problem))?;
    Ok(roots)
}

/// A header that is never logged.
pub(super) fn authorization(
    credentials: &Credentials,
    key: &str,
    text: &str,
) -> Result<HeaderMap, ObjectError> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| credentials.wrong(key, "has characters that no header can have"))?;
    value.set_sensitive(true);
    Ok([(AUTHORIZATION, value)].into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_url_leads_to_the_node_itself_or_to_its_clouds_metadata_service() {
        let table = [
            ("https://store.example/a", true, true),
            ("https://10.1.2.3/a", true, true),
            ("http://10.1.2.3/a", false, true),
            ("https://127.0.0.1/a", false, true),
            ("https://[::1]/a", false, true),
            ("https://0.0.0.0/a", false, true),
            ("https://169.254.169.254/latest", false, false),
            ("http://169.254.169.254/latest", false, false),
            ("https://[::ffff:169.254.169.254]/", false, false),
            ("https://[fe80::1]/", false, false),
            ("https://[fd00:ec2::254]/", false, false),
            ("https://[fd00:ec2::23]/", false, false),
            ("https://[fd20:ce::254]/", false, false),
            ("https://[64:ff9b:1::a9fe:a9fe]/", false, false),
            ("https://[64:ff9b::169.254.169.254]/", false, false),
            ("https://[2002:a9fe:a9fe::1]/", false, false),
            ("https://[64:ff9b::10.1.2.3]/", true, true),
            ("http://168.63.129.16/machine", false, false),
            ("http://100.100.100.200/latest", false, false),
            ("https://192.0.0.192/opc", false, false),
        ];
        for (text, secure, insecure) in table {
            let url = Url::parse(text).unwrap();
            assert_eq!(Access::Secure.admits_url(&url).is_ok(), secure, "{text}");
            let found = Access::Insecure.admits_url(&url).is_ok();
            assert_eq!(found, insecure, "{text}");
        }
    }

    #[test]
    fn no_address_of_an_interface_here_is_connected_to() {
        let mut seen = 0;
        for entry in getifaddrs().unwrap() {
            let Some(address) = entry.address else {
                continue;
            };
            let Some(v4) = address.as_sockaddr_in() else {
                continue;
            };
            seen += 1;
            assert!(!Access::Secure.admits(IpAddr::V4(v4.ip())), "{v4}");
        }
        assert!(seen > 0);
    }

    #[tokio::test]
    async fn a_name_of_the_node_itself_is_not_resolved() {
        let look = |access: Access| CheckedResolver(access).resolve("localhost".parse().unwrap());
        assert!(look(Access::Insecure).await.is_ok());
        let error = look(Access::Secure).await.err().unwrap();
        assert!(error.to_string().contains("localhost"), "{error}");
    }
}
