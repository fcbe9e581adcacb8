//! Who asks, and whether they may.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use percent_encoding::percent_decode_str;
use weft_crds::{FabricPage, LIVE_GROUP, NodeMetrics};

use super::front::Headers;

/// A user, as the API server has authenticated them, from the headers of a call by the proxy; nobody where
/// it names nobody.
pub(super) fn caller(call: &HeaderMap, headers: &Headers) -> Option<SubjectAccessReviewSpec> {
    let values = |name: &String| {
        let values = call.get_all(name).into_iter();
        let values = values.filter_map(|value| value.to_str().ok().map(str::to_owned));
        values.collect::<Vec<_>>()
    };
    let user = headers.user.iter().flat_map(values).next();
    let user = user.filter(|user| !user.is_empty())?;
    let mut groups = headers.group.iter().map(values);
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in call.keys() {
        let name = name.as_str();
        let rest = headers.extra.iter().find_map(|prefix| {
            let prefix = prefix.to_ascii_lowercase();
            name.strip_prefix(&prefix)
        });
        if let Some(key) = rest {
            let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
            extra.insert(key, values(&name.to_owned()));
        }
    }
    Some(SubjectAccessReviewSpec {
        user: Some(user),
        groups: groups.find(|groups| !groups.is_empty()),
        extra: Some(extra),
        ..SubjectAccessReviewSpec::default()
    })
}

/// What a role may allow: of all namespaces, and with any name, where these are empty.
pub(super) fn access(
    verb: &str,
    (group, resource): (&str, &str),
    namespace: &str,
    name: &str,
) -> ResourceAttributes {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ResourceAttributes {
        verb: given(verb),
        group: given(group),
        resource: given(resource),
        namespace: given(namespace),
        name: given(name),
        ..ResourceAttributes::default()
    }
}

/// The same of TransferJobs, which are what is asked about.
pub(super) fn access_to_jobs(verb: &str, namespace: &str, name: &str) -> ResourceAttributes {
    access(verb, (weft_crds::GROUP, "transferjobs"), namespace, name)
}

/// The same of pods, whose devices are listed.
pub(super) fn access_to_pods(namespace: &str) -> ResourceAttributes {
    access("list", ("", "pods"), namespace, "")
}

/// The same of a node's metrics, which name the jobs of all namespaces.
pub(super) fn access_to_metrics(page: NodeMetrics, node: &str) -> ResourceAttributes {
    ResourceAttributes {
        subresource: Some(page.subresource().to_owned()),
        ..access("get", (LIVE_GROUP, NodeMetrics::RESOURCE), "", node)
    }
}

/// The same of a fabric's page: get for the document, watch for its events.
pub(super) fn access_to_page(verb: &str, fabric: &str) -> ResourceAttributes {
    access(verb, (LIVE_GROUP, FabricPage::RESOURCE), "", fabric)
}

/// Whether a role allows it to a caller; an error is that nobody could say.
pub(super) async fn allows(
    client: &Client,
    caller: &SubjectAccessReviewSpec,
    access: &ResourceAttributes,
) -> Result<bool, String> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            resource_attributes: Some(access.clone()),
            ..caller.clone()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(|error| error.to_string())?;
    Ok(answer.status.is_some_and(|status| status.allowed))
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
        assert_eq!(caller(&call, &headers()), None);
        for (name, value) in [
            ("x-remote-user", "ada"),
            ("x-remote-group", "team-a"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-example.org%2fscopes", "read"),
        ] {
            call.append(name, value.parse().unwrap());
        }
        let caller = caller(&call, &headers()).unwrap();
        assert_eq!(caller.user.unwrap(), "ada");
        assert_eq!(caller.groups.unwrap(), ["team-a", "system:authenticated"]);
        assert_eq!(caller.extra.unwrap()["example.org/scopes"], ["read"]);
    }
}
