//! Stat: lists what is under a root, or in a store.

use std::sync::Arc;

use weft_proto::agent::v1::{ObjectSource, StatRequest, StatResponse, Symlinks as SentSymlinks};

use crate::control::attempt_registry::AttemptRegistry;
use crate::convert;
use crate::fail_fast;
use crate::fault::Fault;
use crate::files::{Manifest, Source, Symlinks, namespace_directory};
use crate::object::Store;

impl AttemptRegistry {
    /// Stat lists what is under a root, or in a store.
    pub async fn stat(&self, request: StatRequest) -> Result<StatResponse, Fault> {
        if let Some(source) = &request.object {
            if request.location.is_some() {
                return Err(Fault::bad("location", "is given beside object: give one"));
            }
            let namespace = request.job_name.as_ref();
            let namespace = namespace.map_or("", |name| name.namespace.as_str());
            let listed = self.store(source, namespace)?.list().await?;
            return Ok(self.insert_listed(listed));
        }
        let location = convert::required(request.location.clone(), "location")?;
        let (root, path) = self.resolve(&location)?;
        let job_name = request.job_name.clone();
        let job_name = job_name
            .map(|name| convert::copy_job("", name))
            .transpose()?;
        let symlinks = match request.symlinks() {
            SentSymlinks::Follow => Symlinks::Follow {
                boundary: namespace_directory::link_boundary(&path, job_name.as_ref()),
            },
            SentSymlinks::Refuse | SentSymlinks::Unspecified => Symlinks::Refuse,
        };
        let named = match request.manifest_digest.as_slice() {
            [] => None,
            digest => Some(self.manifests.get(digest, &[])?),
        };
        let list = move || {
            root.check_not_replaced()?;
            if let Some(job_name) = job_name {
                namespace_directory::read(&root, &path, &job_name)?;
            }
            match named {
                Some(named) => Source::new(root, path, named).relist(),
                None => Manifest::scan(&root, &path, &symlinks),
            }
        };
        Ok(self.insert_listed(fail_fast::spawn_blocking("stat", list).await?))
    }

    fn insert_listed(&self, manifest: Manifest) -> StatResponse {
        let response = StatResponse {
            manifest_digest: manifest.digest().to_vec(),
            files: manifest.file_count().into(),
            bytes: manifest.bytes(),
            fingerprint: manifest.fingerprint().to_vec(),
            not_kept: manifest
                .not_kept()
                .map(|what| what.name().to_owned())
                .collect(),
        };
        self.manifests.insert(Arc::new(manifest));
        response
    }

    /// The store that a source names, for a job of this namespace.
    pub(crate) fn store(&self, source: &ObjectSource, namespace: &str) -> Result<Store, Fault> {
        let access = self.reloadable_config().objects;
        Ok(Store::open(source, namespace, access, &self.config.stores)?)
    }
}
