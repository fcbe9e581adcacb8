//! The devices of a server, by what they are looked for.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::Device;

/// What a program shows to open a device.
pub(crate) type Token = [u8; 32];

#[derive(Debug)]
struct Entry {
    token: Token,
    device: Device,
}

/// All devices. To find one takes as long beside 65,536 others as alone.
#[derive(Debug, Default)]
pub(crate) struct DeviceTable {
    by_name: BTreeMap<String, Entry>,
    /// Names.
    by_token: HashMap<Token, String>,
    by_gid: HashMap<[u8; 16], String>,
}

/// The table, of which each change is whole.
pub(crate) fn lock(table: &Mutex<DeviceTable>) -> MutexGuard<'_, DeviceTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceTable {
    pub(crate) fn insert(&mut self, token: Token, name: &str, device: Device) {
        self.by_token.insert(token, name.to_owned());
        self.by_gid.insert(device.gid, name.to_owned());
        self.by_name
            .insert(name.to_owned(), Entry { token, device });
    }

    /// All, for the next server.
    pub(crate) fn all(&self) -> Vec<(Token, String, Device)> {
        let entries = self.by_name.iter();
        let entry =
            |(name, entry): (&String, &Entry)| (entry.token, name.clone(), entry.device.clone());
        entries.map(entry).collect()
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(entry) = self.by_name.remove(name) {
            self.by_token.remove(&entry.token);
            self.by_gid.remove(&entry.device.gid);
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The device that a token opens.
    pub(crate) fn opened_by(&self, token: &Token) -> Option<Device> {
        let name = self.by_token.get(token)?;
        Some(self.by_name.get(name)?.device.clone())
    }

    /// The name of the device of a GID.
    pub(crate) fn name_of(&self, gid: &[u8; 16]) -> Option<&str> {
        Some(self.by_gid.get(gid)?)
    }

    /// All, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Device)> {
        let entries = self.by_name.iter();
        entries.map(|(name, entry)| (name.as_str(), &entry.device))
    }
}
