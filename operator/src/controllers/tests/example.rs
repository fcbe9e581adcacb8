use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::controllers::cache::{Key, cached};
use crate::controllers::controller::{Controller, ReconcileContext, Setup};
use crate::controllers::request::Request;

/// Names a job of its namespace.
#[derive(CustomResource, Deserialize, Serialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "Shortcut",
    namespaced
)]
#[kube(status = "ShortcutStatus")]
pub(crate) struct ShortcutSpec {
    pub(crate) job: String,
}

/// Shows the job's phase.
#[derive(Deserialize, Serialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShortcutStatus {
    pub(crate) phase: String,
    /// The writer sets it.
    pub(crate) leader_epoch: i64,
}

cached!(Shortcut);

pub(crate) struct Shortcuts;

impl Shortcuts {
    pub(crate) fn new(_: &Setup<'_>) -> Self {
        Self
    }
}

impl Controller for Shortcuts {
    fn name(&self) -> &'static str {
        "shortcuts"
    }

    fn reconcile(&mut self, context: &mut ReconcileContext<'_>) {
        let cache = context.cache;
        for (key, shortcut) in cache.shortcuts.iter() {
            let (namespace, name) = (key.namespace.clone(), shortcut.spec.job.clone());
            let job = cache.jobs.get(&Key { namespace, name });
            let job_status = job.and_then(|job| job.status.as_ref());
            let mut status = shortcut.status.clone().unwrap_or_default();
            status.phase = job_status.map_or_else(String::new, |job| format!("{:?}", job.phase));
            let differs = shortcut.status.as_ref() != Some(&status);
            let request = differs.then(|| Request::status(shortcut, &status));
            context.submit(key, request.into_iter().collect());
        }
    }
}
