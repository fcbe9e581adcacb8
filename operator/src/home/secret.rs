//! Secret and ConfigMap `weft-ca`: the authority, and the certificates by which agents know the operator.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api,
    api::{Patch, PostParams},
};
use time::OffsetDateTime;
use weft_identity::authority::{Authority, KeptAuthority};

use super::{AUTHORITY, Home, HomeError, metadata, params};
use crate::{
    NAME,
    api::call,
    rotation::{self, Step},
};

/// As errors name it.
const SECRET: &str = "Secret weft-ca";

const CERTIFICATES: &str = "ca.crt";
const KEY: &str = "ca.key";
const TICKETS: &str = "tickets.key";
const NEXT: &str = "ca.next.key";
/// Somebody wants another authority: `kubectl annotate secret weft-ca weft.dev/rotate=now`.
const ROTATE: &str = "weft.dev/rotate";
/// When the last step of a rotation was, in seconds since the Unix epoch.
const ROTATED_AT: &str = "weft.dev/rotation-step-at";

/// What a leader keeps in its namespace.
#[derive(Debug, PartialEq)]
enum Found {
    /// It is as it was left.
    Same,
    /// It is to be put back.
    Missing,
    /// Somebody has put another valid authority there.
    Replaced,
    /// What is there is no authority, for this reason.
    Broken(String),
}

impl Home {
    /// The authority that was kept, or a new one if there is none.
    pub async fn authority(&self) -> Result<Authority, HomeError> {
        if let Some(authority) = self.stored_authority().await? {
            return Ok(authority);
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let authority = Authority::new(NAME)?;
        let secret = secret(&authority.to_kept());
        let created = call(api.create(&PostParams::default(), &secret)).await;
        created.map_err(|source| self.failed(SECRET, "written", source))?;
        tracing::info!("a new certificate authority is kept in {SECRET}");
        Ok(authority)
    }

    /// The authority that was kept, if there is one.
    pub(crate) async fn stored_authority(&self) -> Result<Option<Authority>, HomeError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = call(api.get_opt(AUTHORITY)).await;
        let secret = secret.map_err(|source| self.failed(SECRET, "read", source))?;
        let authority = secret.map(|secret| Authority::from_kept(NAME, kept(&secret)));
        Ok(authority.transpose()?)
    }

    /// Shows agents by which certificates they know the operator.
    pub async fn publish(&self, authority: &Authority) -> Result<(), HomeError> {
        let map = config_map(authority);
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let written = call(api.patch(AUTHORITY, &params(), &Patch::Apply(&map))).await;
        let failed = |source| self.failed("ConfigMap weft-ca", "written", source);
        written.map(drop).map_err(failed)
    }

    pub(super) async fn keep_secret(&self, authority: &Authority) -> Result<(), HomeError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = call(api.get_opt(AUTHORITY)).await;
        let found = found.map_err(|source| self.failed(SECRET, "read", source))?;
        match judge(found.as_ref(), authority) {
            Found::Same => {
                if let Some(secret) = &found {
                    self.rotate(&api, secret, authority).await?;
                }
            }
            Found::Missing => {
                let secret = secret(&authority.to_kept());
                let created = call(api.create(&PostParams::default(), &secret)).await;
                created.map_err(|source| self.failed(SECRET, "written", source))?;
                tracing::warn!("{SECRET} was deleted; it is there again, with the same authority");
            }
            Found::Replaced => return Err(HomeError::Replaced),
            Found::Broken(problem) => {
                tracing::error!("{SECRET}: {problem}; the authority in force is another");
            }
        }
        Ok(())
    }

    /// Takes the step of a rotation that is due. The next process goes on with what is kept then.
    async fn rotate(
        &self,
        api: &Api<Secret>,
        found: &Secret,
        authority: &Authority,
    ) -> Result<(), HomeError> {
        let notes = found.metadata.annotations.as_ref();
        let note = |name: &str| notes.and_then(|notes| notes.get(name));
        let since = note(ROTATED_AT)
            .and_then(|text| text.parse().ok())
            .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
        let now = OffsetDateTime::now_utc();
        let asked = note(ROTATE).is_some();
        let due = rotation::due(&authority.to_kept(), since, asked, now)?;
        let Some((step, kept)) = due else {
            return Ok(());
        };
        let mut next = secret(&kept);
        let notes = next.metadata.annotations.get_or_insert_default();
        notes.insert(ROTATED_AT.to_owned(), now.unix_timestamp().to_string());
        if asked && step != Step::Announce {
            // Asked for while one goes on already: another follows it.
            notes.insert(ROTATE.to_owned(), "now".to_owned());
        }
        // Somebody else's change in between is not written over.
        next.metadata.resource_version = found.metadata.resource_version.clone();
        let replaced = call(api.replace(AUTHORITY, &PostParams::default(), &next)).await;
        replaced.map_err(|source| self.failed(SECRET, "written", source))?;
        Err(HomeError::Rotated(step))
    }
}

fn secret(kept: &KeptAuthority) -> Secret {
    let part =
        |(name, text): (&str, &String)| (name.to_owned(), ByteString(text.clone().into_bytes()));
    let data = [
        (CERTIFICATES, &kept.certificates),
        (KEY, &kept.key),
        (TICKETS, &kept.tickets),
        (NEXT, &kept.next),
    ];
    let data = data.into_iter().filter(|(_, text)| !text.is_empty());
    Secret {
        metadata: metadata(AUTHORITY),
        data: Some(data.map(part).collect()),
        ..Secret::default()
    }
}

fn config_map(authority: &Authority) -> ConfigMap {
    let data = [(CERTIFICATES.to_owned(), authority.certificate().to_owned())];
    ConfigMap {
        metadata: metadata(AUTHORITY),
        data: Some(data.into()),
        ..ConfigMap::default()
    }
}

/// What to make of the Secret that is there, or is not.
fn judge(found: Option<&Secret>, authority: &Authority) -> Found {
    let Some(secret) = found else {
        return Found::Missing;
    };
    let stored = kept(secret);
    if stored == authority.to_kept() {
        return Found::Same;
    }
    match Authority::from_kept(NAME, stored) {
        Ok(_) => Found::Replaced,
        Err(error) => Found::Broken(error.to_string()),
    }
}

/// What is missing, or no text, is empty; the authority says then what it lacks.
fn kept(secret: &Secret) -> KeptAuthority {
    let empty = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&empty);
    let part = |name: &str| {
        let bytes = data.get(name).map(|bytes| bytes.0.clone());
        String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
    };
    KeptAuthority {
        certificates: part(CERTIFICATES),
        key: part(KEY),
        tickets: part(TICKETS),
        next: part(NEXT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_goes_into_its_secret_and_comes_out_of_it() {
        let authority = Authority::new(NAME).unwrap();
        let mut secret = secret(&authority.to_kept());
        assert!(kept(&secret) == authority.to_kept());
        secret.data.as_mut().unwrap().remove(KEY);
        let error = Authority::from_kept(NAME, kept(&secret)).err().unwrap();
        assert!(error.to_string().starts_with("ca.key: "), "{error}");
        let error = Authority::from_kept(NAME, kept(&Secret::default()));
        assert!(error.is_err());
    }

    #[test]
    fn a_secret_that_somebody_touched_is_put_back_or_taken_up_and_nonsense_is_neither() {
        let authority = Authority::new(NAME).unwrap();
        let same = secret(&authority.to_kept());
        assert_eq!(judge(Some(&same), &authority), Found::Same);
        assert_eq!(judge(None, &authority), Found::Missing);
        let other = secret(&Authority::new(NAME).unwrap().to_kept());
        assert_eq!(judge(Some(&other), &authority), Found::Replaced);
        let found = judge(Some(&Secret::default()), &authority);
        assert!(matches!(found, Found::Broken(_)), "{found:?}");
    }
}
