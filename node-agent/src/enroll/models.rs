//! Looks after the models that the operator has named: whether their files are still as they were
//! when they were verified.

use std::sync::Arc;

use weft_proto::operator::v1::{Model, ModelState};

use crate::files::{FileError, Manifest, RootPath};
use crate::guard;
use crate::jobs::Jobs;

/// What is so of each of them now; of those that cannot be looked at, nothing.
pub(crate) async fn look(jobs: &Arc<Jobs>, models: Vec<Model>) -> Vec<ModelState> {
    if models.is_empty() {
        return Vec::new();
    }
    let jobs = jobs.clone();
    guard::blocking("models", move || {
        models
            .iter()
            .filter_map(|model| state(&jobs, model))
            .collect()
    })
    .await
}

fn state(jobs: &Jobs, model: &Model) -> Option<ModelState> {
    let said = |intact| {
        Some(ModelState {
            name: model.name.clone(),
            fingerprint: model.fingerprint.clone(),
            intact,
        })
    };
    // A root that is none any more holds nothing for anybody.
    let Ok(root) = jobs.root(&model.root) else {
        return said(false);
    };
    let path = RootPath::parse(&model.path).ok()?;
    match Manifest::scan(&root, &path) {
        Ok(manifest) => said(manifest.fingerprint() == model.fingerprint),
        Err(FileError::SourceMissing { .. } | FileError::NotARegularFile { .. }) => said(false),
        Err(error) => {
            tracing::warn!(model = model.name, "a model cannot be looked at: {error}");
            None
        }
    }
}
