//! Whether an API server takes devices that several claims share (its feature gate `DRAConsumableCapacity`). One that does not
//! leaves out the fields that say so, and says nothing of it.

use kube::{
    Api, Client,
    api::PostParams,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

use crate::{
    api::{CallError, call, retry_until_answered},
    claims::DRIVER,
};

/// The field by which claims share a device.
pub(crate) const FIELD: &str = "allowMultipleAllocations";

/// Asks by a slice that is not kept, until the API server answers.
pub(crate) async fn is_offered(client: &Client) -> Result<bool, CallError> {
    let slices = GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceSlice");
    let slices = ApiResource::from_gvk(&slices);
    let probe = "weft-consumable-capacity";
    let device = json!({"name": "vdev", FIELD: true});
    let mut slice = DynamicObject::new(probe, &slices).data(json!({
        "spec": {
            "driver": DRIVER,
            "nodeName": probe,
            "pool": {"name": probe, "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }));
    // Nobody can make one of the same name first.
    slice.metadata.name = None;
    slice.metadata.generate_name = Some(format!("{probe}-"));
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let api = Api::<DynamicObject>::all_with(client.clone(), &slices);
    let what = "consumable capacity cannot be looked for";
    let made = retry_until_answered(what, CallError::is_transient, || {
        call(api.create(&dry, &slice))
    });
    Ok(is_kept(&made.await?.data))
}

fn is_kept(slice: &Value) -> bool {
    slice["spec"]["devices"][0][FIELD] == true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_server_that_leaves_the_field_out_does_not_offer_it() {
        let slice = |device: Value| json!({"spec": {"devices": [device]}});
        assert!(is_kept(&slice(json!({"name": "vdev", FIELD: true}))));
        assert!(!is_kept(&slice(json!({"name": "vdev"}))));
        assert!(!is_kept(&json!({})));
    }
}
