//! `Locator`: what a job's URL says.

use object_store::path::Path;
use url::Url;

use super::error::ObjectError;

/// Which kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    S3,
    Gcs,
    Azure,
    /// https, and http where the agent's configuration allows that.
    Http,
}

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Locator {
    pub(super) scheme: Scheme,
    /// As it was given: it holds nothing secret.
    pub(super) url: String,
    /// Bucket or container; of Http the URL of the host.
    pub(super) bucket: String,
    /// The object, or what all of them begin with.
    pub(super) key: Path,
    /// It ends with a slash.
    pub(super) is_prefix: bool,
}

impl Locator {
    pub(super) fn parse(text: &str) -> Result<Self, ObjectError> {
        // Not the text itself: what is refused may be a password.
        let bad = |problem: &str| ObjectError::BadUrl {
            url: without_secrets(text).to_owned(),
            problem: problem.to_owned(),
        };
        let url = Url::parse(text).map_err(|error| bad(&format!("cannot be read ({error})")))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("has a user name in it, which a Secret is for"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("has a `?` or `#` part, which is not supported"));
        }
        let scheme = match url.scheme() {
            "s3" => Scheme::S3,
            "gs" => Scheme::Gcs,
            "az" => Scheme::Azure,
            "https" | "http" => Scheme::Http,
            _ => return Err(bad("is of another scheme")),
        };
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| bad("has no bucket or host"))?;
        let bucket = match scheme {
            Scheme::Http => url[..url::Position::BeforePath].to_owned(),
            _ if url.port().is_some() => {
                return Err(bad(
                    "has a port, which a bucket has not: the Secret's `endpoint` is for that",
                ));
            }
            _ => host.to_owned(),
        };
        let key = Path::from_url_path(url.path())
            .map_err(|error| bad(&format!("has a path that cannot be used ({error})")))?;
        let is_prefix = url.path().is_empty() || url.path().ends_with('/');
        if is_prefix && scheme == Scheme::Http {
            return Err(bad(
                "ends with a slash, and a web server has no list of its files: name one of them",
            ));
        }
        Ok(Self {
            scheme,
            url: text.to_owned(),
            bucket,
            key,
            is_prefix,
        })
    }

    /// What a single object is called.
    pub(super) fn name(&self) -> &str {
        self.key.filename().unwrap_or_default()
    }
}

/// What messages may repeat of a URL that is refused.
fn without_secrets(text: &str) -> &str {
    let plain = text.split(['?', '#']).next().unwrap_or_default();
    if plain.contains('@') {
        "…@…"
    } else {
        plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_objects_and_prefixes_are_taken_apart() {
        let table = [
            (
                "s3://models/a/b.bin",
                Scheme::S3,
                "models",
                "a/b.bin",
                false,
            ),
            ("s3://models/a/", Scheme::S3, "models", "a", true),
            ("s3://models", Scheme::S3, "models", "", true),
            ("gs://m/x%20y", Scheme::Gcs, "m", "x y", false),
            ("az://c/d/e", Scheme::Azure, "c", "d/e", false),
            (
                "https://h.example:8443/p/q",
                Scheme::Http,
                "https://h.example:8443",
                "p/q",
                false,
            ),
        ];
        for (text, scheme, bucket, key, is_prefix) in table {
            let found = Locator::parse(text).unwrap();
            assert_eq!((found.scheme, found.bucket.as_str()), (scheme, bucket));
            assert_eq!((found.key.as_ref(), found.is_prefix), (key, is_prefix));
        }
        assert_eq!(Locator::parse("s3://m/a/b.bin").unwrap().name(), "b.bin");
    }

    #[test]
    fn what_is_no_url_of_an_object_is_refused_and_not_repeated_where_it_may_be_secret() {
        let table = [
            ("models/a", "cannot be read"),
            ("ftp://h/a", "another scheme"),
            ("file:///etc/shadow", "another scheme"),
            ("s3:///a", "no bucket"),
            ("s3://b:9000/a", "has a port"),
            ("https://h/a/", "ends with a slash"),
            ("https://u:hunter2@h/a", "user name"),
            ("https://h/a?sig=hunter2", "`?` or `#`"),
            ("s3://b/a//c", "path"),
        ];
        for (text, hint) in table {
            let error = Locator::parse(text).unwrap_err();
            assert_eq!(error.reason(), "ObjectUrlInvalid");
            let message = error.to_string();
            assert!(message.contains(hint), "{text}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
