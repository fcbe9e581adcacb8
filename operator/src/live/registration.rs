//! The APIService of the chart: by which authority the API server knows this server.

use std::{convert::Infallible, time::Duration};

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;
use weft_crds::{LIVE_GROUP, LIVE_VERSION};
use weft_identity::authority::Authority;

/// Somebody may have replaced it, as an upgrade of the chart does.
const LOOK: Duration = Duration::from_secs(10);

/// The name that the API server asks for: that of the chart's Service of all replicas.
pub(super) fn server_name(namespace: &str) -> String {
    format!("weft-operator-live.{namespace}.svc")
}

/// Keeps the authority's certificates in the APIService. Only a leader does it.
pub(crate) async fn keep(client: &Client, authority: &Authority) -> Infallible {
    let api: Api<APIService> = Api::all(client.clone());
    let name = format!("{LIVE_VERSION}.{LIVE_GROUP}");
    let mut said = String::new();
    loop {
        if let Err(error) = once(&api, &name, authority.certificate()).await {
            let error = error.to_string();
            if error != said {
                tracing::warn!(
                    "APIService {name}: {error}; install the chart as it is, or without \
                     liveApi.enabled"
                );
                said = error;
            }
        }
        sleep(LOOK).await;
    }
}

async fn once(api: &Api<APIService>, name: &str, bundle: &str) -> Result<(), kube::Error> {
    let found = api.get(name).await?;
    let kept = found.spec.as_ref().and_then(|spec| spec.ca_bundle.as_ref());
    if kept.is_some_and(|kept| kept.0 == bundle.as_bytes()) {
        return Ok(());
    }
    let bundle = k8s_openapi::ByteString(bundle.as_bytes().to_vec());
    let patch = Patch::Merge(json!({"spec": {"caBundle": bundle}}));
    api.patch(name, &PatchParams::default(), &patch).await?;
    tracing::info!("the API server knows this operator by its authority");
    Ok(())
}
