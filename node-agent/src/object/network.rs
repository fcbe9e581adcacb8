//! `Network`: the proxy by which an agent reaches stores, and the authorities that it trusts. The administrator sets
//! both; a Secret adds certificates for its own store only.

use std::str::FromStr;

use reqwest::{NoProxy, Proxy};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use url::Url;

/// The way to stores.
#[derive(Debug, Clone, Default)]
pub(crate) struct Network {
    /// None: directly.
    pub(crate) proxy: Option<ProxyUrl>,
    /// Hosts, domains and CIDRs, separated by commas, that are reached without the proxy.
    pub(crate) no_proxy: String,
    /// Authorities besides the public ones.
    pub(crate) authorities: Authorities,
}

impl Network {
    /// For the client.
    pub(super) fn proxy(&self) -> Option<Proxy> {
        let ProxyUrl(url) = self.proxy.as_ref()?;
        // A URL that was parsed is one.
        let proxy = Proxy::all(url.clone()).ok()?;
        Some(proxy.no_proxy(NoProxy::from_string(&self.no_proxy)))
    }
}

/// An HTTP proxy, as `http://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ProxyUrl(Url);

impl FromStr for ProxyUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("is no URL ({error})"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("has a user name or a password in it, which is not supported".to_owned());
        }
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(format!("`{text}` is not http://HOST:PORT"));
        }
        Ok(Self(url))
    }
}

impl TryFrom<String> for ProxyUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Certificates of authorities, from PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl FromStr for Authorities {
    type Err = String;

    fn from_str(pem: &str) -> Result<Self, String> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        let found = found.map_err(|error| format!("{error}: give PEM certificates"))?;
        if found.is_empty() {
            return Err("no certificate in it: give PEM certificates".to_owned());
        }
        let authorities = Self(found);
        authorities.add_to(&mut RootCertStore::empty())?;
        Ok(authorities)
    }
}

impl TryFrom<String> for Authorities {
    type Error = String;

    fn try_from(pem: String) -> Result<Self, String> {
        pem.parse()
    }
}

impl Authorities {
    pub(super) fn add_to(&self, roots: &mut RootCertStore) -> Result<(), String> {
        self.0.iter().try_for_each(|certificate| {
            let added = roots.add(certificate.clone());
            added.map_err(|error| format!("{error}: give PEM certificates"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_proxy_and_no_certificate_is_refused_with_what_to_give() {
        for (text, why) in [
            ("proxy.example:3128", "is not http://HOST:PORT"),
            ("ftp://proxy.example", "is not http://HOST:PORT"),
            ("http://u:hunter2@proxy.example", "not supported"),
            ("proxy", "is no URL"),
        ] {
            let error = text.parse::<ProxyUrl>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!("http://proxy.example:3128".parse::<ProxyUrl>().is_ok());
        for pem in [
            "",
            "x",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let error = pem.parse::<Authorities>().unwrap_err();
            assert!(error.ends_with("give PEM certificates"), "{pem}: {error}");
        }
    }
}
