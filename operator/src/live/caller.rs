//! Who asks, and whether they may.

use std::{collections::BTreeMap, future::Future};

use axum::http::HeaderMap;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};

use super::front::Headers;

/// A user, as the API server has authenticated them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) user: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl Caller {
    /// From the headers of a call by the proxy; nobody where it names nobody.
    pub(super) fn of(call: &HeaderMap, headers: &Headers) -> Option<Self> {
        let values = |name: &String| {
            let values = call.get_all(name).into_iter();
            let values = values.filter_map(|value| value.to_str().ok().map(str::to_owned));
            values.collect::<Vec<_>>()
        };
        let user = headers.user.iter().flat_map(values).next()?;
        let groups = headers.group.iter().map(values);
        let groups = groups.into_iter().find(|groups| !groups.is_empty());
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in call.keys() {
            let name = name.as_str();
            let rest = headers.extra.iter().find_map(|prefix| {
                let prefix = prefix.to_ascii_lowercase();
                name.strip_prefix(&prefix)
            });
            if let Some(key) = rest {
                extra.insert(unescape(key), values(&name.to_owned()));
            }
        }
        (!user.is_empty()).then_some(Self {
            user,
            groups: groups.unwrap_or_default(),
            extra,
        })
    }
}

/// Keys of extra information are percent-encoded in a header's name.
fn unescape(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let code = behind
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Something that a role may allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) verb: &'static str,
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    /// Of all namespaces when empty.
    pub(super) namespace: String,
    /// Any when empty.
    pub(super) name: String,
}

impl Access {
    /// Of TransferJobs, which are what is asked about.
    pub(super) fn jobs(verb: &'static str, namespace: &str, name: &str) -> Self {
        Self {
            verb,
            group: weft_crds::GROUP,
            resource: "transferjobs",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// Says who may what.
pub(super) trait Authorizer: Clone + Send + Sync + 'static {
    /// Whether a role allows it; an error is that nobody could say.
    fn allows(
        &self,
        caller: &Caller,
        access: &Access,
    ) -> impl Future<Output = Result<bool, String>> + Send;
}

/// SubjectAccessReview, as the API server answers it.
#[derive(Clone)]
pub(super) struct Reviews(pub(super) Client);

impl Authorizer for Reviews {
    async fn allows(&self, caller: &Caller, access: &Access) -> Result<bool, String> {
        let api: Api<SubjectAccessReview> = Api::all(self.0.clone());
        let (params, review) = (PostParams::default(), review(caller, access));
        let answer = api.create(&params, &review).await;
        let answer = answer.map_err(|error| error.to_string())?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

fn review(caller: &Caller, access: &Access) -> SubjectAccessReview {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(caller.user.clone()),
            groups: Some(caller.groups.clone()),
            extra: Some(caller.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: given(access.verb),
                group: given(access.group),
                resource: given(access.resource),
                namespace: given(&access.namespace),
                name: given(&access.name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> Headers {
        let one = |name: &str| vec![name.to_owned()];
        Headers {
            user: one("X-Remote-User"),
            group: one("X-Remote-Group"),
            extra: one("X-Remote-Extra-"),
        }
    }

    #[test]
    fn a_caller_is_who_the_proxy_says_with_all_groups_and_extra_information() {
        let mut call = HeaderMap::new();
        assert_eq!(Caller::of(&call, &headers()), None);
        for (name, value) in [
            ("x-remote-user", "ada"),
            ("x-remote-group", "team-a"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-example.org%2fscopes", "read"),
        ] {
            call.append(name, value.parse().unwrap());
        }
        let caller = Caller::of(&call, &headers()).unwrap();
        assert_eq!(caller.user, "ada");
        assert_eq!(caller.groups, ["team-a", "system:authenticated"]);
        assert_eq!(caller.extra["example.org/scopes"], ["read"]);
    }

    #[test]
    fn a_review_asks_for_the_caller_and_not_for_the_operator() {
        let caller = Caller {
            user: "ada".into(),
            groups: vec!["team-a".into()],
            extra: BTreeMap::new(),
        };
        let review = review(&caller, &Access::jobs("list", "team-a", ""));
        let asked = review.spec.resource_attributes.unwrap();
        assert_eq!(review.spec.user.as_deref(), Some("ada"));
        assert_eq!(asked.namespace.as_deref(), Some("team-a"));
        assert_eq!((asked.verb.as_deref(), asked.name), (Some("list"), None));
    }
}
