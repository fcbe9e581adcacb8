//! `ObjectError`: everything that can go wrong with an object, with its cause and remedy. Never a
//! credential's value: only the names of a Secret and its keys.

/// Why an object could not be listed or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// A URL that names no object.
    #[error(
        "source.object.url {url:?} {problem}: give s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or https://HOST/PATH"
    )]
    BadUrl {
        /// As given, without what may be secret.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A Secret that cannot be used.
    #[error("Secret {secret}, key {key:?}: {problem}")]
    BadSecret {
        /// NAMESPACE/NAME.
        secret: String,
        /// The key.
        key: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// The store may not be spoken to.
    #[error("{url}: {problem}")]
    Forbidden {
        /// The object.
        url: String,
        /// Why, and what to do.
        problem: String,
    },
    /// There is none.
    #[error("{url} does not exist, or nothing with that prefix: check bucket and key")]
    Missing {
        /// The object.
        url: String,
    },
    /// The store does not let it be read.
    #[error("the store refuses to let {url} be read: {remedy}")]
    Denied {
        /// The object.
        url: String,
        /// What was sent, and what to do.
        remedy: String,
    },
    /// Another version is there.
    #[error("{url} has changed in the store since it was listed ({what}): start the job again")]
    Changed {
        /// The object.
        url: String,
        /// What differs.
        what: String,
    },
    /// It is not what was expected.
    #[error(
        "{url} has {what} {found}, and source.object.expect says {expected}: correct one of them"
    )]
    Unexpected {
        /// The object.
        url: String,
        /// What of it.
        what: &'static str,
        /// What was asked for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// An object whose name cannot be a file's.
    #[error(
        "{url}: object {key:?} cannot be a file: {problem}: rename it, or choose another prefix"
    )]
    BadKey {
        /// The prefix.
        url: String,
        /// The object.
        key: String,
        /// Why.
        problem: String,
    },
    /// More lies below a prefix than one transfer can have.
    #[error(
        "below {url} are more than {entries} objects and directories, or their names have more than {bytes} bytes: name a prefix with less below it"
    )]
    TooMuch {
        /// The prefix.
        url: String,
        /// Objects and directories, at most.
        entries: usize,
        /// Of the list, at most.
        bytes: usize,
    },
    /// The server gives objects only as a whole. The reader then asks for the whole object.
    #[error("{url} cannot be read: the store gives no ranges of it: check the store")]
    NoRanges {
        /// The object.
        url: String,
    },
    /// The store does not answer, or answers with an error, after all retries.
    #[error("{url} could not be read ({problem}): check the store; the next attempt continues")]
    Unavailable {
        /// The object or prefix.
        url: String,
        /// What happened last.
        problem: String,
    },
}

impl ObjectError {
    /// Stable and machine-readable.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::BadUrl { .. } => "ObjectUrlInvalid",
            Self::BadSecret { .. } => "SecretInvalid",
            Self::Forbidden { .. } => "StoreForbidden",
            Self::Missing { .. } => "ObjectMissing",
            Self::Denied { .. } => "ObjectDenied",
            Self::Changed { .. } => "ObjectChanged",
            Self::Unexpected { .. } => "ExpectMismatch",
            Self::BadKey { .. } => "ObjectKeyInvalid",
            Self::TooMuch { .. } => "ObjectsTooMany",
            Self::NoRanges { .. } | Self::Unavailable { .. } => "ObjectUnavailable",
        }
    }

    /// The next attempt may succeed without anybody changing anything.
    #[must_use]
    pub fn retriable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}
