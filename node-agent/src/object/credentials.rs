//! The keys of a Secret. Only these go to the library, which has others that read files of this node or ask its
//! cloud for an identity.

use std::collections::BTreeMap;

use weft_proto::agent::v1 as proto;

use super::error::ObjectError;
use super::locator::Scheme;

/// Prefixes that other tools give the same names.
const PREFIXES: [&str; 3] = ["aws_", "google_", "azure_storage_"];
/// Certificates of authorities that are not public.
pub(super) const CA: &str = "ca.crt";

/// What a Secret may hold, by kind of store.
pub(super) fn known(scheme: Scheme) -> &'static [&'static str] {
    match scheme {
        Scheme::S3 => &[
            "access_key_id",
            "secret_access_key",
            "session_token",
            "region",
            "endpoint",
            CA,
        ],
        Scheme::Gcs => &["service_account_key", CA],
        Scheme::Azure => &[
            "account_name",
            "account_key",
            "sas_token",
            "tenant_id",
            "client_id",
            "client_secret",
            "endpoint",
            CA,
        ],
        Scheme::Http => &["host", "bearer_token", "username", "password", CA],
    }
}

/// The credentials of one Secret.
pub(super) struct Credentials {
    /// NAMESPACE/NAME; "" where there is none.
    pub(super) secret: String,
    values: BTreeMap<String, String>,
}

impl Credentials {
    pub(super) fn new(
        given: Option<&proto::Credentials>,
        scheme: Scheme,
    ) -> Result<Self, ObjectError> {
        let mut found = Self {
            secret: String::new(),
            values: BTreeMap::new(),
        };
        let Some(given) = given else {
            return Ok(found);
        };
        found.secret.clone_from(&given.secret);
        for (key, value) in &given.values {
            let lower = key.to_ascii_lowercase();
            let name = PREFIXES
                .iter()
                .find_map(|prefix| lower.strip_prefix(prefix))
                .unwrap_or(&lower);
            let name = if name == "endpoint_url" {
                "endpoint"
            } else {
                name
            };
            if !known(scheme).contains(&name) {
                let known = known(scheme).join(", ");
                return Err(found.wrong(key, &format!("is not used for such a URL; use {known}")));
            }
            let value = std::str::from_utf8(value)
                .map_err(|_| found.wrong(key, "is not text: store it as UTF-8"))?;
            found
                .values
                .insert(name.to_owned(), value.trim().to_owned());
        }
        Ok(found)
    }

    /// Requests are then anonymous.
    pub(super) fn are_none(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Both, or neither.
    pub(super) fn pair(&self, a: &str, b: &str) -> Result<Option<(&str, &str)>, ObjectError> {
        match (self.get(a), self.get(b)) {
            (Some(a), Some(b)) => Ok(Some((a, b))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.wrong(b, &format!("is missing; {a} needs it"))),
            (None, Some(_)) => Err(self.wrong(a, &format!("is missing; {b} needs it"))),
        }
    }

    pub(super) fn wrong(&self, key: &str, problem: &str) -> ObjectError {
        ObjectError::BadSecret {
            secret: self.secret.clone(),
            key: key.to_owned(),
            problem: problem.to_owned(),
        }
    }

    /// What to do when the store refuses.
    pub(super) fn remedy(&self) -> String {
        if self.secret.is_empty() {
            return "the request was anonymous; give credentials with the job, or make the object \
                    public"
                .to_owned();
        }
        let names: Vec<&str> = self.values.keys().map(String::as_str).collect();
        format!(
            "Secret {} was used (keys {}); correct it, or let it read and list there",
            self.secret,
            names.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(values: &[(&str, &str)]) -> proto::Credentials {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), value.as_bytes().to_vec());
        proto::Credentials {
            values: values.iter().map(pair).collect(),
            secret: "team-a/store".to_owned(),
        }
    }

    #[test]
    fn keys_go_by_their_names_and_by_those_of_other_tools() {
        let given = given(&[
            ("AWS_ACCESS_KEY_ID", "a"),
            ("secret_access_key", "b\n"),
            ("AWS_ENDPOINT_URL", "https://minio"),
        ]);
        let found = Credentials::new(Some(&given), Scheme::S3).unwrap();
        let pair = found.pair("access_key_id", "secret_access_key").unwrap();
        assert_eq!(pair, Some(("a", "b")));
        assert_eq!(found.get("endpoint"), Some("https://minio"));
    }

    #[test]
    fn a_key_that_would_read_this_nodes_files_or_identity_is_refused_by_its_name() {
        for key in [
            "web_identity_token_file",
            "AWS_METADATA_ENDPOINT",
            "google_application_credentials",
        ] {
            let given = given(&[(key, "hunter2")]);
            let error = Credentials::new(Some(&given), Scheme::S3).err().unwrap();
            assert_eq!(error.reason(), "SecretInvalid");
            let text = error.to_string();
            assert!(
                text.contains(key) && text.contains("team-a/store"),
                "{text}"
            );
            assert!(!text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn half_a_pair_names_the_other_half() {
        let given = given(&[("access_key_id", "a")]);
        let found = Credentials::new(Some(&given), Scheme::S3).unwrap();
        let error = found
            .pair("access_key_id", "secret_access_key")
            .unwrap_err();
        assert!(error.to_string().contains("secret_access_key"), "{error}");
    }
}
