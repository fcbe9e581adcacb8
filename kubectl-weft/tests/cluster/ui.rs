//! `kubectl weft ui`.

use serde_json::json;

use crate::{Server, failure};

const FABRICS: &str = "/apis/weft.dev/v1alpha1/rdmafabrics";
const PAGE: &str = "/apis/live.weft.dev/v1alpha1/fabricpages/lab";

#[test]
fn who_may_not_see_the_page_is_told_which_right_is_missing_and_which_role_has_it() {
    let message = "fabricpages.live.weft.dev \"lab\" is forbidden: User \"ada\" cannot get resource \
                   \"fabricpages\" in API group \"live.weft.dev\" at the cluster scope";
    let server = Server::new([(PAGE, 403, failure(403, "Forbidden", message))]);
    let refused = server.run("ui lab");
    assert_eq!((refused.status, &*refused.out), (Some(2), ""));
    assert_eq!(
        refused.err,
        format!(
            "kubectl weft ui: {message}; the ClusterRole weft-monitor has the rights that the page takes\n"
        )
    );
}

#[test]
fn where_there_are_several_fabrics_one_must_be_named() {
    let fabric = |name: &str| json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": name}});
    let list = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
        "items": [fabric("lab"), fabric("other")],
    });
    let server = Server::new([(FABRICS, 200, list)]);
    let refused = server.run("ui");
    assert_eq!(refused.status, Some(2));
    assert!(
        refused
            .err
            .contains("name the RdmaFabric; there are: lab, other"),
        "{}",
        refused.err
    );
}
