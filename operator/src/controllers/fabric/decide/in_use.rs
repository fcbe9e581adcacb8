//! A fabric that is deleted is kept while jobs run in it, for its agents go with it.
//!
//! The finalizer keeps it, and the condition `InUse` names the jobs. An annotation lets it go at once.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use serde_json::json;
use weft_crds::{FabricStatus, RdmaFabric, TransferJob};

use crate::controllers::{
    cache::FORCE,
    condition::{ConditionUpdate, is_true, listed, truncate},
    fabric::view::View,
    kinds::Cache,
    request::{Change, Event, FABRIC_FINALIZER, Request},
};

/// The jobs that run in a fabric.
fn running_jobs(cache: &Cache, fabric: &str) -> Vec<String> {
    let is_here = |job: &TransferJob| {
        let status = job.status.as_ref();
        status.is_some_and(|status| status.fabric == fabric && status.phase.is_running())
    };
    let jobs = cache.jobs.iter().filter(|(_, job)| is_here(job));
    jobs.map(|(key, _)| format!("{}/{}", key.namespace, key.name))
        .collect()
}

/// The request that sets or removes the finalizer, if it is not as it should be.
pub(super) fn finalizer(fabric: &RdmaFabric, view: &View<'_>) -> Option<Request> {
    let is_kept = fabric
        .finalizers()
        .iter()
        .any(|one| one == FABRIC_FINALIZER);
    let is_deleted = fabric.metadata.deletion_timestamp.is_some();
    let is_forced = fabric
        .annotations()
        .get(FORCE)
        .is_some_and(|value| value == "true");
    let keeps =
        !is_deleted || !is_forced && !running_jobs(view.cache, &fabric.name_any()).is_empty();
    // Nothing can be added to what is being deleted.
    if is_kept == keeps || is_deleted && !is_kept {
        return None;
    }
    let finalizers: &[&str] = if keeps { &[FABRIC_FINALIZER] } else { &[] };
    let manifest = json!({ "metadata": { "finalizers": finalizers } });
    Some(Request::unless_changed(fabric, Change::Apply(manifest)))
}

/// Why a fabric that is being deleted is still there.
pub(super) fn condition(fabric: &RdmaFabric, view: &View<'_>) -> Option<ConditionUpdate> {
    fabric.metadata.deletion_timestamp.as_ref()?;
    let jobs = running_jobs(view.cache, &fabric.name_any());
    let jobs: Vec<&str> = jobs.iter().map(String::as_str).collect();
    let text = format!(
        "it is deleted once these jobs are over: {}; suspend or delete them, or end them with it: kubectl annotate \
         rdmafabric {} {FORCE}=true",
        listed(&jobs),
        fabric.name_any()
    );
    (!jobs.is_empty()).then(|| ConditionUpdate::new("InUse", true, "JobsRunning", &text))
}

/// Says it once.
pub(super) fn event(old: Option<&FabricStatus>, new: &FabricStatus) -> Vec<Event> {
    let known = old.is_some_and(|old| is_true(&old.conditions, "InUse"));
    let conditions = new.conditions.iter();
    let in_use = conditions.filter(|condition| condition.type_ == "InUse" && !known);
    let said = |condition: &Condition| Event {
        warning: true,
        reason: condition.reason.clone(),
        note: truncate(&condition.message),
    };
    in_use.map(said).collect()
}
