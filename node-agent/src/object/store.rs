//! `Store`: lists the objects that a job names, and reads them.

use std::ops::Range;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::TryStreamExt as _;
use futures::stream::BoxStream;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _, RetryConfig,
};
use reqwest::header::HeaderMap;
use url::Url;
use weft_identity::cause::innermost;
use weft_proto::agent::v1 as proto;

use super::credentials::Credentials;
use super::error::ObjectError;
use super::http::{Access, Connector, RedirectsToOthers, Refused, authorization, find_cause};
use super::identity::WorkloadIdentity;
use super::listing::{Bounds, Listing, MESSAGE_CHARS, modified_ns, only, relative};
use super::locator::{Locator, Scheme};
use super::network::Network;
use crate::files::{Manifest, ObjectVersion, Shape};

/// The region where a Secret has none: stores other than Amazon's ignore it.
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
    /// Its id in the read log. `None` where the store names no version: bytes that were read before may then be of
    /// another one.
    pub(crate) fn id(&self, url: &str) -> Option<[u8; 16]> {
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

    /// Whether the store names the version, by an ETag or a time.
    pub(crate) fn is_named(&self) -> bool {
        self.etag.is_some() || self.modified_ns != 0
    }

    /// For If-Match, which weak tags are not for.
    fn strong_etag(&self) -> Option<String> {
        self.etag.clone().filter(|etag| !etag.starts_with("W/"))
    }

    /// How what the store has now differs from this version.
    fn difference(&self, found: &ObjectMeta) -> Option<String> {
        if found.size != self.size {
            Some(format!("{} bytes, {} before", found.size, self.size))
        } else if differ(self.etag.as_deref(), found.e_tag.as_deref()) {
            Some("another ETag".to_owned())
        } else if self.modified_ns != 0 && modified_ns(found) != self.modified_ns {
            Some("another time of its last change".to_owned())
        } else {
            None
        }
    }
}

/// The bytes of a version of an object, as they come.
pub(super) struct Answer {
    pub(super) version: Version,
    /// The offset of the next byte.
    pub(super) at: u64,
    url: String,
    stream: BoxStream<'static, Result<Bytes, ObjectError>>,
    /// The part of the last piece that is not used yet.
    rest: Bytes,
}

impl Answer {
    /// Fills `buffer` with the bytes from `offset` on. What comes before them is passed over.
    pub(super) async fn fill(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), ObjectError> {
        let mut filled = 0;
        while filled < buffer.len() {
            if self.rest.is_empty() {
                self.rest = match self.stream.next().await {
                    Some(piece) => piece?,
                    None => {
                        let (at, size) = (self.at, self.version.size);
                        return Err(ObjectError::Unavailable {
                            url: self.url.clone(),
                            problem: format!("the answer ended at byte {at} of {size}"),
                        });
                    }
                };
            }
            // At most the piece's length.
            let skipped = (offset.saturating_sub(self.at)).min(self.rest.len() as u64) as usize;
            drop(self.rest.split_to(skipped));
            let taken = self.rest.len().min(buffer.len() - filled);
            buffer[filled..filled + taken].copy_from_slice(&self.rest.split_to(taken));
            filled += taken;
            self.at += (skipped + taken) as u64;
        }
        Ok(())
    }
}

/// What holds for all stores: how long they may take, the way to them, and who the agent is there.
#[derive(Debug, Clone)]
pub(crate) struct StoreSettings {
    /// A request that brings no byte for this long fails.
    pub(crate) stall: Duration,
    /// For a whole listing, with its retries.
    pub(crate) list: Duration,
    /// For a block of an object, with its retries.
    pub(crate) block: Duration,
    /// The way.
    pub(crate) network: Network,
    /// For jobs without a Secret.
    pub(crate) identity: WorkloadIdentity,
}

/// A store, and the object or prefix of it that a job names.
pub(crate) struct Store {
    inner: Box<dyn ObjectStore>,
    locator: Locator,
    expect: proto::ObjectExpect,
    /// What to do when the store refuses.
    remedy: String,
    list_timeout: Duration,
    block_timeout: Duration,
}

impl Store {
    /// Checks URL and credentials; connects to nothing yet. The job is of this namespace, "" where that is not known.
    pub(crate) fn open(
        source: &proto::ObjectSource,
        namespace: &str,
        access: Access,
        settings: &StoreSettings,
    ) -> Result<Self, ObjectError> {
        let locator = Locator::parse(&source.url)?;
        let credentials = Credentials::new(source.credentials.as_ref(), locator.scheme)?;
        let identity = &settings.identity;
        let has_secret = source.credentials.is_some();
        let as_agent = !has_secret && identity.allows(namespace, &locator);
        let as_agent = as_agent.then(|| identity.settings(locator.scheme));
        let as_agent = as_agent
            .transpose()
            .map_err(|problem| ObjectError::Forbidden {
                url: locator.url.clone(),
                problem,
            })?;
        let remedy = match &as_agent {
            Some(_) => "the agent's own identity was used; let it read and list there".to_owned(),
            None => credentials.remedy(),
        };
        let inner = build(
            &locator,
            &credentials,
            as_agent.as_deref(),
            access,
            settings,
        )?;
        Ok(Self {
            inner,
            expect: source.expect.clone().unwrap_or_default(),
            remedy,
            locator,
            list_timeout: settings.list,
            block_timeout: settings.block,
        })
    }

    /// The URL as the job gives it.
    pub(crate) fn url(&self) -> &str {
        &self.locator.url
    }

    /// Lists the objects that the URL names.
    pub(crate) async fn list(&self) -> Result<Manifest, ObjectError> {
        let listed = tokio::time::timeout(self.list_timeout, self.list_objects()).await;
        let late = |_| {
            let seconds = self.list_timeout.as_secs();
            Err(ObjectError::Unavailable {
                url: self.locator.url.clone(),
                problem: format!("it was not listed within {seconds} s"),
            })
        };
        let manifest = listed.unwrap_or_else(late)?;
        self.compare(&manifest)?;
        Ok(manifest)
    }

    async fn list_objects(&self) -> Result<Manifest, ObjectError> {
        let refused = |error| explain(&error, self.url(), &self.remedy);
        let key = &self.locator.key;
        if !self.locator.is_prefix {
            let meta = self.inner.head(key).await.map_err(refused)?;
            return only(&self.locator, self.locator.name(), &meta);
        }
        let mut listing = Listing::new(&self.locator, Bounds::default());
        let prefix = (!key.as_ref().is_empty()).then_some(key);
        let mut found = self.inner.list(prefix);
        while let Some(meta) = found.try_next().await.map_err(refused)? {
            listing.add(&meta)?;
        }
        listing.manifest()
    }

    /// Checks what the job expects.
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
            let found = found.chars().take(MESSAGE_CHARS).collect();
            Err(unexpected("ETag", expected.to_owned(), found))
        }
    }

    /// The version of a listed object.
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

    /// Ends the reading of a block that takes too long. Without an end, a server that sends almost nothing would
    /// keep an attempt, and its place at the node, for ever.
    pub(crate) async fn block_within_timeout<T>(
        &self,
        read: impl Future<Output = Result<T, ObjectError>>,
    ) -> Result<T, ObjectError> {
        let read = tokio::time::timeout(self.block_timeout, read).await;
        read.unwrap_or_else(|_| {
            let seconds = self.block_timeout.as_secs();
            Err(ObjectError::Unavailable {
                url: self.locator.url.clone(),
                problem: format!("a block of 1 MiB was not read within {seconds} s"),
            })
        })
    }

    /// Fills `buffer` with the bytes from `offset` on; false where the server gives no ranges of an object.
    pub(crate) async fn read_range(
        &self,
        version: &Version,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<bool, ObjectError> {
        let range = offset..offset + buffer.len() as u64;
        let mut answer = match self.get(version, Some(range)).await {
            Err(ObjectError::NoRanges { .. }) => return Ok(false),
            answer => answer?,
        };
        answer.fill(offset, buffer).await?;
        Ok(true)
    }

    /// Asks for the bytes of exactly this version: a range of them, or all.
    ///
    /// The library makes a request again, and goes on at the missing byte where the answer breaks off, as long as
    /// the store names the version by an ETag.
    pub(super) async fn get(
        &self,
        version: &Version,
        range: Option<Range<u64>>,
    ) -> Result<Answer, ObjectError> {
        let url = self.url_of(&version.key);
        let at = range.as_ref().map_or(0, |range| range.start);
        let options = GetOptions {
            range: range.map(GetRange::Bounded),
            if_match: version.strong_etag(),
            ..GetOptions::default()
        };
        let result = self.inner.get_opts(&version.key, options).await;
        let result = result.map_err(|error| explain(&error, &url, &self.remedy))?;
        if let Some(what) = version.difference(&result.meta) {
            return Err(ObjectError::Changed { url, what });
        }
        let (remedy, of) = (self.remedy.clone(), url.clone());
        let explained = move |error| match explain(&error, &of, &remedy) {
            // The library has tried to go on at the missing byte.
            ObjectError::NoRanges { url } => ObjectError::Unavailable {
                url,
                problem: "the answer broke off, and the server gives no part of it".to_owned(),
            },
            explained => explained,
        };
        Ok(Answer {
            version: version.clone(),
            at,
            url,
            stream: result.into_stream().map_err(explained).boxed(),
            rest: Bytes::new(),
        })
    }

    /// The URL of one object, for messages.
    fn url_of(&self, key: &Path) -> String {
        match relative(&self.locator.key, key) {
            Some(relative) if self.locator.is_prefix => format!("{}{relative}", self.locator.url),
            _ => self.locator.url.clone(),
        }
    }
}

/// What an error of the library means.
fn explain(error: &object_store::Error, url: &str, remedy: &str) -> ObjectError {
    use object_store::Error as E;
    let url = url.to_owned();
    if let Some(Refused(problem)) = find_cause(error) {
        let problem = problem.clone();
        return ObjectError::Forbidden { url, problem };
    }
    match most_specific(error) {
        E::NotFound { .. } => ObjectError::Missing { url },
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
            let remedy = remedy.to_owned();
            ObjectError::Denied { url, remedy }
        }
        E::Precondition { .. } => ObjectError::Changed {
            url,
            what: "another ETag".to_owned(),
        },
        E::NotSupported { .. } => ObjectError::NoRanges { url },
        E::InvalidPath { source } => ObjectError::BadKey {
            url,
            key: String::new(),
            problem: source.to_string(),
        },
        _ => ObjectError::Unavailable {
            url,
            problem: problem(error),
        },
    }
}

/// The library wraps an error that ends a resumed answer in a generic one.
fn most_specific(error: &object_store::Error) -> &object_store::Error {
    match error {
        object_store::Error::Generic { source, .. } => source
            .downcast_ref::<object_store::Error>()
            .map_or(error, most_specific),
        _ => error,
    }
}

/// Whether tags name different versions: some stores quote them in one answer and not in another, or
/// leave them out of lists.
fn differ(expected: Option<&str>, found: Option<&str>) -> bool {
    let same = |a: &str, b: &str| a.trim_matches('"') == b.trim_matches('"');
    expected.is_some_and(|expected| !found.is_some_and(|found| same(expected, found)))
}

/// The innermost error, which says what happened, cut for a message.
fn problem(error: &dyn std::error::Error) -> String {
    innermost(error).chars().take(MESSAGE_CHARS).collect()
}

fn build(
    locator: &Locator,
    credentials: &Credentials,
    as_agent: Option<&[(String, &str)]>,
    access: Access,
    settings: &StoreSettings,
) -> Result<Box<dyn ObjectStore>, ObjectError> {
    let unusable = |error: object_store::Error| match as_agent {
        Some(_) => ObjectError::Forbidden {
            url: locator.url.clone(),
            problem: format!("the agent's identity cannot be used: {}", problem(&error)),
        },
        None => credentials.wrong("", &problem(&error)),
    };
    let connector = |headers, to_others| {
        let (network, stall) = (&settings.network, settings.stall);
        Connector::new(access, network, stall, credentials, headers, to_others)
    };
    let to_others = match credentials.are_none() && as_agent.is_none() {
        true => RedirectsToOthers::Followed,
        false => RedirectsToOthers::Refused,
    };
    let plain = || connector(HeaderMap::new(), to_others);
    Ok(match locator.scheme {
        Scheme::S3 => {
            let region = credentials.get("region").unwrap_or(REGION);
            let mut builder = AmazonS3Builder::new()
                .with_bucket_name(&locator.bucket)
                .with_region(region)
                .with_retry(retry())
                .with_allow_http(true)
                .with_http_connector(plain()?);
            let pair = credentials.pair("access_key_id", "secret_access_key")?;
            builder = match (pair, as_agent) {
                (Some((id, key)), _) => builder.with_access_key_id(id).with_secret_access_key(key),
                (None, None) => builder.with_skip_signature(true),
                (None, Some(settings)) => {
                    settings.iter().try_fold(builder, |builder, setting| {
                        let key = setting.0.parse().map_err(unusable)?;
                        Ok(builder.with_config(key, setting.1))
                    })?
                }
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
                .with_retry(retry())
                .with_http_connector(plain()?);
            let builder = match credentials.get("service_account_key") {
                Some(key) => builder.with_service_account_key(key),
                None => builder.with_skip_signature(true),
            };
            Box::new(builder.build().map_err(unusable)?)
        }
        Scheme::Azure => Box::new(
            match as_agent {
                None => azure(locator, credentials, access)?,
                Some(settings) => settings.iter().try_fold(
                    azure_container(locator),
                    |builder, (name, value)| {
                        let key = name.parse().map_err(unusable)?;
                        Ok(builder.with_config(key, *value))
                    },
                )?,
            }
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
                .with_retry(retry())
                .with_http_connector(connector(headers, RedirectsToOthers::Followed)?);
            Box::new(builder.build().map_err(unusable)?)
        }
    })
}

fn azure_container(locator: &Locator) -> MicrosoftAzureBuilder {
    MicrosoftAzureBuilder::new()
        .with_container_name(&locator.bucket)
        .with_retry(retry())
        .with_allow_http(true)
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
    let mut builder = azure_container(locator).with_account(account);
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

/// The credentials, for the one host that the Secret names: a job could name any.
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

/// Up to 25 s of waiting; then the job's next attempt goes on.
fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(10),
            base: 2.0,
        },
        max_retries: 7,
        retry_timeout: Duration::from_secs(180),
    }
}
