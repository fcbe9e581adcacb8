//! The API server's proxy: how it is known, and a listener that takes connections of nobody else.

use std::{io, net::SocketAddr, sync::Arc};

use axum::serve::Listener;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use weft_identity::{
    authority::Identity,
    tls::{self, ClientCertificate, TlsError},
    tls_listener::{TlsConnection, TlsListener, TlsRefusals},
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// What every cluster's API server publishes for servers behind it.
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// How the API server's proxy is known, and what it says of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Front {
    /// PEM: whose certificates it shows.
    authorities: String,
    /// The common names that these may have; any when empty.
    pub(super) names: Vec<String>,
    pub(super) headers: Headers,
}

/// The headers that say who asks. Of several, the first that is there counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) user: Vec<String>,
    pub(super) group: Vec<String>,
    pub(super) extra: Vec<String>,
}

impl Front {
    /// As the API server publishes it.
    pub(super) async fn read(client: &Client) -> Result<Self, String> {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let map = api.get(CONFIG_MAP).await;
        Self::of(&map.map_err(|error| error.to_string())?)
    }

    fn of(map: &ConfigMap) -> Result<Self, String> {
        let text = |key: &str| {
            let data = map.data.as_ref();
            data.and_then(|data| data.get(key))
                .map_or("", String::as_str)
        };
        let list = |key: &str| {
            let names: Vec<String> = match text(key) {
                "" => Vec::new(),
                text => serde_json::from_str(text).map_err(|error| format!("{key}: {error}"))?,
            };
            Ok::<_, String>(names)
        };
        let authorities = text("requestheader-client-ca-file").to_owned();
        if authorities.is_empty() {
            return Err("requestheader-client-ca-file is missing".to_owned());
        }
        let headers = Headers {
            user: list("requestheader-username-headers")?,
            group: list("requestheader-group-headers")?,
            extra: list("requestheader-extra-headers-prefix")?,
        };
        if headers.user.is_empty() {
            return Err("requestheader-username-headers is empty".to_owned());
        }
        Ok(Self {
            authorities,
            names: list("requestheader-allowed-names")?,
            headers,
        })
    }

    /// TLS that asks everybody for a certificate of the proxy's authority.
    pub(super) fn server(&self, identity: &Identity) -> Result<ServerConfig, TlsError> {
        tls::server(
            identity.certificate.as_bytes(),
            identity.key.as_bytes(),
            self.authorities.as_bytes(),
            ClientCertificate::Required,
            tls::HTTP1,
        )
    }
}

/// Takes connections of the proxy only. Dropping it ends the handshakes that are under way.
pub(super) struct ProxyListener {
    listener: TlsListener,
    names: Vec<String>,
    refusals: TlsRefusals,
}

impl ProxyListener {
    pub(super) fn new(
        listener: Arc<TcpListener>,
        tls: ServerConfig,
        names: Vec<String>,
        refusals: TlsRefusals,
    ) -> Self {
        Self {
            listener: TlsListener::new(listener, Arc::new(tls), refusals.clone()),
            names,
            refusals,
        }
    }
}

impl Listener for ProxyListener {
    type Io = TlsConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TlsConnection, SocketAddr) {
        loop {
            let connection = self.listener.accept().await;
            let from = connection.peer_address();
            if is_front(&connection, &self.names) {
                return (connection, from);
            }
            self.refusals.count("OtherName");
            tracing::warn!(
                %from,
                "a caller of the live API has another name than the API server's proxy"
            );
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

fn is_front(connection: &TlsConnection, names: &[String]) -> bool {
    let leaf = connection.certificate();
    leaf.is_some_and(|leaf| names.is_empty() || has_name(leaf, names))
}

fn has_name(certificate: &[u8], names: &[String]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let common = certificate.subject().iter_common_name();
    let mut common = common.filter_map(|name| name.as_str().ok());
    common.any(|name| names.iter().any(|known| known == name))
}

#[cfg(test)]
mod tests {
    use rustls::{
        RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    };
    use tokio::{net::TcpStream, time::timeout};
    use weft_identity::{
        authority::Authority,
        tls_listener::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX},
    };

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> ConfigMap {
        let data = pairs
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        ConfigMap {
            data: Some(data.collect()),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn the_proxy_is_known_by_what_the_api_server_publishes_and_by_nothing_less() {
        let authority = Authority::new("front").unwrap();
        let whole = [
            ("requestheader-client-ca-file", authority.certificate()),
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            (
                "requestheader-extra-headers-prefix",
                r#"["X-Remote-Extra-"]"#,
            ),
        ];
        let front = Front::of(&map(&whole)).unwrap();
        assert_eq!(front.names, ["front-proxy-client"]);
        assert_eq!(front.headers.extra, ["X-Remote-Extra-"]);
        let server = Authority::new("weft")
            .unwrap()
            .operator_server(&[])
            .unwrap();
        front.server(&server).unwrap();
        for missing in [
            "requestheader-client-ca-file",
            "requestheader-username-headers",
        ] {
            let rest: Vec<_> = whole
                .into_iter()
                .filter(|(key, _)| *key != missing)
                .collect();
            let error = Front::of(&map(&rest)).unwrap_err();
            assert!(error.starts_with(missing), "{error}");
        }
    }

    #[tokio::test]
    async fn those_who_dawdle_keep_nobody_out() {
        let authority = Authority::new("front").unwrap();
        let front = Front {
            authorities: authority.certificate().to_owned(),
            names: Vec::new(),
            headers: Headers {
                user: Vec::new(),
                group: Vec::new(),
                extra: Vec::new(),
            },
        };
        let server = front.server(&authority.operator_server(&[]).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut proxy_listener = ProxyListener::new(
            Arc::new(listener),
            server.unwrap(),
            Vec::new(),
            TlsRefusals::default(),
        );
        let accepted = tokio::spawn(async move { proxy_listener.accept().await });
        let mut idle = Vec::new();
        for _ in 0..HANDSHAKES_MAX + 20 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }

        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(authority.certificate().as_bytes());
        roots.add(root.unwrap()).unwrap();
        let own = authority.operator().unwrap();
        let chain = CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
        let client =
            rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![chain], key)
                .unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let stream = TcpStream::connect(address).await.unwrap();
        let name = "operator.weft".try_into().unwrap();
        // Before anybody's time is over.
        let within = HANDSHAKE_TIMEOUT / 2;
        let calls = timeout(within, connector.connect(name, stream));
        let (called, accepted) = tokio::join!(calls, timeout(within, accepted));
        called.unwrap().unwrap();
        accepted.unwrap().unwrap();
    }

    #[test]
    fn a_certificate_of_the_authority_with_another_name_is_not_the_proxys() {
        let authority = Authority::new("front").unwrap();
        let node = authority.node("n1").unwrap();
        let der = CertificateDer::from_pem_slice(node.certificate.as_bytes()).unwrap();
        assert!(has_name(&der, &["n1".to_owned()]));
        assert!(!has_name(&der, &["front-proxy-client".to_owned()]));
    }
}
