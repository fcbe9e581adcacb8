//! `Store`: what is there, and one way to ask for its bytes.

use std::ops::Range;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::StreamExt as _;
use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, RetryConfig};
use reqwest::header::HeaderMap;
use url::Url;
use weft_identity::cause::innermost;
use weft_proto::agent::v1 as proto;

use super::credentials::Credentials;
use super::error::ObjectError;
use super::http::{Access, Callers, Connector, Refused, authorization};
use super::listing::{Bounds, Listing, TOLD_CHARS, modified_ns, only, relative};
use super::locator::{Locator, Scheme};
use crate::files::{Manifest, ObjectVersion, Shape};

/// Where a Secret says nothing: stores other than Amazon's do not look at it.
const REGION: &str = "us-east-1";

/// A version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    key: Path,
    /// Bytes.
    pub(crate) size: u64,
    etag: Option<String>,
    /// ns since 1970; 0 where the store does not say.
    modified_ns: i64,
}

impl Version {
    /// A name for exactly these bytes, if the store gives one: without, nothing that was read before
    /// can be believed to be of the same version.
    pub(crate) fn fingerprint(&self, url: &str) -> Option<[u8; 16]> {
        if !self.is_named() {
            return None;
        }
        let mut hasher = blake3::Hasher::new();
        let etag = self.etag.as_deref().unwrap_or_default();
        for part in [url, self.key.as_ref(), etag] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.update(&self.size.to_le_bytes());
        hasher.update(&self.modified_ns.to_le_bytes());
        let mut out = [0; 16];
        hasher.finalize_xof().fill(&mut out);
        Some(out)
    }

    /// Whether the store would say that these are other bytes: by a tag, or a time.
    pub(crate) fn is_named(&self) -> bool {
        self.etag.is_some() || self.modified_ns != 0
    }

    /// For If-Match, which weak tags are not for.
    fn strong_etag(&self) -> Option<String> {
        self.etag.clone().filter(|etag| !etag.starts_with("W/"))
    }
}

/// Why bytes did not come.
#[derive(Debug)]
pub(super) enum Answer {
    /// Asking again would bring the same.
    Final(ObjectError),
    /// The server gives objects as a whole only.
    NoRanges,
    /// It may be better next time.
    Again(String),
}

/// A store, and what of it is asked for.
pub(crate) struct Store {
    inner: Box<dyn ObjectStore>,
    locator: Locator,
    expect: proto::ObjectExpect,
    /// What to do when the store refuses.
    remedy: String,
}

impl Store {
    /// Connects to nothing yet. A request that brings nothing for `stall` has failed.
    pub(crate) fn open(
        source: &proto::ObjectSource,
        access: Access,
        stall: Duration,
    ) -> Result<Self, ObjectError> {
        let locator = Locator::parse(&source.url)?;
        let credentials = Credentials::new(source.credentials.as_ref(), locator.scheme)?;
        let inner = build(&locator, &credentials, access, stall)?;
        Ok(Self {
            inner,
            expect: source.expect.clone().unwrap_or_default(),
            remedy: credentials.remedy(),
            locator,
        })
    }

    /// As the job says it.
    pub(crate) fn url(&self) -> &str {
        &self.locator.url
    }

    /// What there is.
    pub(super) async fn list(&self) -> Result<Manifest, Answer> {
        let manifest = if self.locator.is_prefix {
            self.list_prefix().await?
        } else {
            let meta = self.inner.head(&self.locator.key).await;
            let meta = meta.map_err(|error| self.judge(error))?;
            only(&self.locator, self.locator.name(), &meta).map_err(Answer::Final)?
        };
        self.compare(&manifest).map_err(Answer::Final)?;
        Ok(manifest)
    }

    async fn list_prefix(&self) -> Result<Manifest, Answer> {
        let prefix = &self.locator.key;
        let some = (!prefix.as_ref().is_empty()).then_some(prefix);
        let mut listing = Listing::new(&self.locator, Bounds::default());
        let mut found = self.inner.list(some);
        while let Some(meta) = found.try_next().await.map_err(|error| self.judge(error))? {
            listing.add(&meta).map_err(Answer::Final)?;
        }
        listing.manifest().map_err(Answer::Final)
    }

    /// Whether it is what the job expects.
    fn compare(&self, manifest: &Manifest) -> Result<(), ObjectError> {
        let unexpected = |what, expected: String, found: String| ObjectError::Unexpected {
            url: self.locator.url.clone(),
            what,
            expected,
            found,
        };
        let bytes = manifest.bytes();
        if let Some(expected) = self.expect.bytes
            && expected != bytes
        {
            return Err(unexpected("bytes", expected.to_string(), bytes.to_string()));
        }
        let expected = self.expect.etag.as_str();
        if expected.is_empty() {
            return Ok(());
        }
        let found = match (manifest.shape(), manifest.version(0)) {
            (Shape::File, Some(version)) => version.etag.as_str(),
            _ => "none, being a directory",
        };
        if !differ(Some(expected), Some(found)) {
            Ok(())
        } else {
            let found = found.chars().take(TOLD_CHARS).collect();
            Err(unexpected("ETag", expected.to_owned(), found))
        }
    }

    /// The version that a listing has told.
    pub(crate) fn version(
        &self,
        path: &str,
        size: u64,
        shape: Shape,
        version: &ObjectVersion,
    ) -> Version {
        let key = match shape {
            Shape::Directory => {
                let parts = path.split('/').map(object_store::path::PathPart::from);
                self.locator.key.parts().chain(parts).collect()
            }
            Shape::File => self.locator.key.clone(),
        };
        Version {
            key,
            size,
            etag: Some(version.etag.clone()).filter(|etag| !etag.is_empty()),
            modified_ns: version.modified_ns,
        }
    }

    /// The bytes of exactly this version: a part of it, or all.
    pub(super) async fn get(
        &self,
        version: &Version,
        range: Option<Range<u64>>,
    ) -> Result<BoxStream<'static, Result<bytes::Bytes, String>>, Answer> {
        let options = GetOptions {
            range: range.map(GetRange::Bounded),
            if_match: version.strong_etag(),
            ..GetOptions::default()
        };
        let result = self.inner.get_opts(&version.key, options).await;
        let result = result.map_err(|error| self.judge(error))?;
        let found = &result.meta;
        let what = if found.size != version.size {
            Some(format!("{} bytes, {} before", found.size, version.size))
        } else if differ(version.etag.as_deref(), found.e_tag.as_deref()) {
            Some("another ETag".to_owned())
        } else if version.modified_ns != 0 && modified_ns(found) != version.modified_ns {
            Some("another time of its last change".to_owned())
        } else {
            None
        };
        if let Some(what) = what {
            return Err(Answer::Final(ObjectError::Changed {
                url: self.url_of(&version.key),
                what,
            }));
        }
        let told = |error: object_store::Error| problem(&error);
        Ok(result.into_stream().map_err(told).boxed())
    }

    /// Of one of its objects, for messages.
    pub(super) fn url_of(&self, key: &Path) -> String {
        match relative(&self.locator.key, key) {
            Some(relative) if self.locator.is_prefix => format!("{}{relative}", self.locator.url),
            _ => self.locator.url.clone(),
        }
    }

    /// The URL of a version, for messages.
    pub(super) fn url_of_version(&self, version: &Version) -> String {
        self.url_of(&version.key)
    }

    /// What an error of the library means.
    fn judge(&self, error: object_store::Error) -> Answer {
        use object_store::Error as E;
        let url = |path: &str| match Path::parse(path) {
            Ok(key) if !path.is_empty() => self.url_of(&key),
            _ => self.locator.url.clone(),
        };
        if let Some(Refused(problem)) = cause(&error) {
            return Answer::Final(ObjectError::Forbidden {
                url: self.locator.url.clone(),
                problem,
            });
        }
        Answer::Final(match error {
            E::NotFound { path, .. } => ObjectError::Missing { url: url(&path) },
            E::PermissionDenied { path, .. } | E::Unauthenticated { path, .. } => {
                ObjectError::Denied {
                    url: url(&path),
                    remedy: self.remedy.clone(),
                }
            }
            E::Precondition { path, .. } => ObjectError::Changed {
                url: url(&path),
                what: "another ETag".to_owned(),
            },
            E::NotSupported { .. } => return Answer::NoRanges,
            E::InvalidPath { source } => ObjectError::BadKey {
                url: self.locator.url.clone(),
                key: String::new(),
                problem: source.to_string(),
            },
            error => return Answer::Again(problem(&error)),
        })
    }
}

/// Whether tags name different versions: some stores quote them in one answer and not in another, or
/// leave them out of lists.
fn differ(told: Option<&str>, found: Option<&str>) -> bool {
    let same = |a: &str, b: &str| a.trim_matches('"') == b.trim_matches('"');
    told.is_some_and(|told| !found.is_some_and(|found| same(told, found)))
}

/// Our own refusal, where it is what lies at the bottom of an error.
fn cause(error: &object_store::Error) -> Option<Refused> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(refused) = error.downcast_ref::<Refused>() {
            return Some(refused.clone());
        }
        next = error.source();
    }
    None
}

/// The innermost error, which says what happened, cut to what is told.
fn problem(error: &dyn std::error::Error) -> String {
    innermost(error).chars().take(TOLD_CHARS).collect()
}

fn build(
    locator: &Locator,
    credentials: &Credentials,
    access: Access,
    stall: Duration,
) -> Result<Box<dyn ObjectStore>, ObjectError> {
    let unusable = |error: object_store::Error| credentials.wrong("", &problem(&error));
    let connector = |headers, callers| Connector::new(access, stall, credentials, headers, callers);
    let callers = match credentials.are_none() {
        true => Callers::SentOn,
        false => Callers::Kept,
    };
    let plain = || connector(HeaderMap::new(), callers);
    Ok(match locator.scheme {
        Scheme::S3 => {
            let region = credentials.get("region").unwrap_or(REGION);
            let mut builder = AmazonS3Builder::new()
                .with_bucket_name(&locator.bucket)
                .with_region(region)
                .with_retry(once())
                .with_allow_http(true)
                .with_http_connector(plain()?);
            builder = match credentials.pair("access_key_id", "secret_access_key")? {
                Some((id, key)) => builder.with_access_key_id(id).with_secret_access_key(key),
                None => builder.with_skip_signature(true),
            };
            if let Some(token) = credentials.get("session_token") {
                builder = builder.with_token(token);
            }
            if let Some(endpoint) = endpoint(credentials, access)? {
                builder = builder.with_endpoint(endpoint);
            }
            Box::new(builder.build().map_err(unusable)?)
        }
        Scheme::Gcs => {
            let builder = GoogleCloudStorageBuilder::new()
                .with_bucket_name(&locator.bucket)
                .with_retry(once())
                .with_http_connector(plain()?);
            let builder = match credentials.get("service_account_key") {
                Some(key) => builder.with_service_account_key(key),
                None => builder.with_skip_signature(true),
            };
            Box::new(builder.build().map_err(unusable)?)
        }
        Scheme::Azure => Box::new(
            azure(locator, credentials, access)?
                .with_http_connector(plain()?)
                .build()
                .map_err(unusable)?,
        ),
        Scheme::Http => {
            let url = Url::parse(&locator.bucket).map_err(|error| ObjectError::BadUrl {
                url: locator.url.clone(),
                problem: error.to_string(),
            })?;
            access
                .admits_url(&url)
                .map_err(|problem| ObjectError::Forbidden {
                    url: locator.url.clone(),
                    problem,
                })?;
            let headers = http_headers(&url, credentials)?;
            let builder = HttpBuilder::new()
                .with_url(&locator.bucket)
                .with_retry(once())
                .with_http_connector(connector(headers, Callers::SentOn)?);
            Box::new(builder.build().map_err(unusable)?)
        }
    })
}

fn azure(
    locator: &Locator,
    credentials: &Credentials,
    access: Access,
) -> Result<MicrosoftAzureBuilder, ObjectError> {
    let missing = "is missing: give the storage account's name, also where no key is needed";
    let account = credentials
        .get("account_name")
        .ok_or_else(|| credentials.wrong("account_name", missing))?;
    let mut builder = MicrosoftAzureBuilder::new()
        .with_container_name(&locator.bucket)
        .with_account(account)
        .with_retry(once())
        .with_allow_http(true);
    if let Some(endpoint) = endpoint(credentials, access)? {
        builder = builder.with_endpoint(endpoint.to_owned());
    }
    let client = credentials.pair("client_id", "client_secret")?;
    Ok(
        match (
            credentials.get("account_key"),
            credentials.get("sas_token"),
            client,
        ) {
            (Some(key), None, None) => builder.with_access_key(key),
            (None, Some(token), None) => {
                let pairs = url::form_urlencoded::parse(token.trim_start_matches('?').as_bytes());
                builder.with_sas_authorization(pairs.into_owned().collect::<Vec<_>>())
            }
            (None, None, Some((id, secret))) => {
                let tenant = credentials.get("tenant_id").ok_or_else(|| {
                    credentials.wrong("tenant_id", "is missing; client_id needs it")
                })?;
                builder.with_client_secret_authorization(id, secret, tenant)
            }
            (None, None, None) => builder.with_skip_signature(true),
            _ => {
                let problem =
                    "is one of several ways to sign: give one of account_key, sas_token, client_id";
                return Err(credentials.wrong("account_key", problem));
            }
        },
    )
}

/// Where the store is, if the Secret says so.
fn endpoint(credentials: &Credentials, access: Access) -> Result<Option<&str>, ObjectError> {
    let Some(text) = credentials.get("endpoint") else {
        return Ok(None);
    };
    let url = Url::parse(text)
        .map_err(|error| credentials.wrong("endpoint", &format!("is no URL ({error})")))?;
    access
        .admits_url(&url)
        .map_err(|problem| credentials.wrong("endpoint", &problem))?;
    Ok(Some(text))
}

/// Who is asking, told to the one host that the Secret is for: a job could name any.
fn http_headers(url: &Url, credentials: &Credentials) -> Result<HeaderMap, ObjectError> {
    let user = credentials.pair("username", "password")?;
    let (key, text) = match (credentials.get("bearer_token"), user) {
        (None, None) => return Ok(HeaderMap::new()),
        (Some(token), None) => ("bearer_token", format!("Bearer {token}")),
        (None, Some((name, password))) => {
            let pair = BASE64_STANDARD.encode(format!("{name}:{password}"));
            ("username", format!("Basic {pair}"))
        }
        (Some(_), Some(_)) => {
            let problem = "is given beside username: give one of them";
            return Err(credentials.wrong("bearer_token", problem));
        }
    };
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    match credentials.get("host") {
        Some(of) if of == host => authorization(credentials, key, &text),
        Some(_) => Err(credentials.wrong(
            "host",
            &format!("is not {host}, which the URL names: the Secret is for that host only"),
        )),
        None => Err(credentials.wrong(
            "host",
            &format!("is missing: say which host it may be sent to, here {host}"),
        )),
    }
}

/// Trying again is [`super::read`]'s, which knows what has come already.
fn once() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}
