//! `WorkloadIdentity`: which jobs without a Secret read a store with the agent's own identity at a cloud.
//!
//! The administrator names namespaces and prefixes; a cloud's webhook puts a role and the file of a token
//! into the pod's environment. Nothing of it comes from a job or a Secret, and the identity of the node is not used:
//! without a token nothing is asked, and metadata services are refused in any case.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;

use super::locator::{Locator, Scheme};

/// Any namespace.
const ANY: &str = "*";
/// What the library is told of an identity at Amazon. The first two are necessary.
const S3: [&str; 6] = [
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_SESSION_NAME",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_STS",
];
/// Of one at Azure. The first four are necessary.
const AZURE: [&str; 6] = [
    "AZURE_CLIENT_ID",
    "AZURE_TENANT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_AUTHORITY_HOST",
];

/// Which jobs may use the agent's identity, and what that is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct WorkloadIdentity {
    /// Which jobs. Nobody's, if there is none.
    pub allowed: Vec<AllowedPrefix>,
    /// The variables that a cloud's webhook sets, by their names: AWS_ROLE_ARN and others.
    pub environment: BTreeMap<String, String>,
}

/// What jobs of a namespace may read so, as `NAMESPACE=URL`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AllowedPrefix {
    /// `*` for all.
    namespace: String,
    prefix: Locator,
}

impl FromStr for AllowedPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, url) = text
            .split_once('=')
            .filter(|(namespace, _)| !namespace.is_empty())
            .ok_or_else(|| format!("`{text}` is not NAMESPACE=URL, or *=URL for all namespaces"))?;
        let prefix = Locator::parse(url).map_err(|error| error.to_string())?;
        if !matches!(prefix.scheme, Scheme::S3 | Scheme::Azure) {
            return Err(format!(
                "`{url}`: agents have an identity for s3:// and az:// only; jobs for other stores need a Secret"
            ));
        }
        if !prefix.is_prefix {
            return Err(format!("`{url}` must end with a slash"));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            prefix,
        })
    }
}

impl TryFrom<String> for AllowedPrefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl AllowedPrefix {
    fn allows(&self, namespace: &str, locator: &Locator) -> bool {
        let prefix = &self.prefix;
        let below = |rest: usize| rest > 0 || locator.is_prefix;
        let rest = locator.key.prefix_match(&prefix.key);
        (self.namespace == ANY || self.namespace == namespace)
            && prefix.scheme == locator.scheme
            && prefix.bucket == locator.bucket
            && rest.is_some_and(|rest| below(rest.count()))
    }
}

impl WorkloadIdentity {
    /// The variables of the environment that say who the agent is.
    pub fn environment() -> BTreeMap<String, String> {
        let names = S3.iter().chain(&AZURE);
        names
            .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
            .collect()
    }

    /// Whether a job of this namespace reads this object so.
    pub(super) fn allows(&self, namespace: &str, locator: &Locator) -> bool {
        let mut allowed = self.allowed.iter();
        allowed.any(|one| one.allows(namespace, locator))
    }

    /// What the library is told, by the names that it has for it; or which variable is missing.
    pub(super) fn settings(&self, scheme: Scheme) -> Result<Vec<(String, &str)>, String> {
        let (names, necessary) = match scheme {
            Scheme::Azure => (&AZURE, 4),
            _ => (&S3, 2),
        };
        // Azure's webhook ends the authority's URL with a slash, and the library adds one.
        let value = |name: &str| {
            let value = self.environment.get(name)?;
            Some(value.trim_end_matches('/'))
        };
        if let Some(missing) = names[..necessary].iter().find(|name| value(name).is_none()) {
            return Err(format!(
                "jobs may read this with the agent's identity, and the agent has no {missing}: annotate and label the \
                 agents as the cloud's webhook asks, or give the job a Secret"
            ));
        }
        let names = names.iter();
        Ok(names
            .filter_map(|name| Some((name.to_ascii_lowercase(), value(name)?)))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_for_the_namespaces_and_below_the_prefixes_that_are_named_and_for_no_other() {
        let identity = WorkloadIdentity {
            allowed: ["team-a=s3://models/a/", "*=s3://public/", "b=az://c/"]
                .map(|text| text.parse().unwrap())
                .into(),
            ..WorkloadIdentity::default()
        };
        for (namespace, url, expected) in [
            ("team-a", "s3://models/a/x.bin", true),
            ("team-a", "s3://models/a/", true),
            ("team-a", "s3://models/a/b/", true),
            ("team-b", "s3://models/a/x.bin", false),
            ("", "s3://models/a/x.bin", false),
            ("team-a", "s3://models/a", false),
            ("team-a", "s3://models/ab/x.bin", false),
            ("team-a", "s3://models/a/../b/x.bin", false),
            ("team-a", "s3://models/a/%2e%2e/b/x.bin", false),
            ("team-a", "s3://models/", false),
            ("team-a", "az://models/a/x.bin", false),
            ("team-a", "https://models/a/x.bin", false),
            ("", "s3://public/x.bin", true),
            ("team-b", "s3://public/", true),
            ("b", "az://c/x.bin", true),
        ] {
            let locator = Locator::parse(url).unwrap();
            let found = identity.allows(namespace, &locator);
            assert_eq!(found, expected, "{namespace} {url}");
        }
        let nobody = WorkloadIdentity::default();
        assert!(!nobody.allows("team-a", &Locator::parse("s3://models/a/").unwrap()));
    }

    #[test]
    fn what_is_no_namespace_and_prefix_is_refused() {
        for (text, why) in [
            ("s3://models/", "is not NAMESPACE=URL"),
            ("=s3://models/", "is not NAMESPACE=URL"),
            ("a=s3://models/x", "must end with a slash"),
            ("a=gs://models/", "s3:// and az:// only"),
            ("a=models/", "cannot be read"),
        ] {
            let error = text.parse::<AllowedPrefix>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn half_an_identity_names_the_variable_that_is_missing() {
        let mut identity = WorkloadIdentity::default();
        let missing = identity.settings(Scheme::S3).unwrap_err();
        assert!(missing.contains("no AWS_ROLE_ARN"), "{missing}");
        for name in ["AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"] {
            identity.environment.insert(name.to_owned(), "x".to_owned());
        }
        assert_eq!(identity.settings(Scheme::S3).unwrap().len(), 2);
        let missing = identity.settings(Scheme::Azure).unwrap_err();
        assert!(missing.contains("no AZURE_CLIENT_ID"), "{missing}");
    }
}
