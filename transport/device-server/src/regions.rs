//! The registered memory of a context, as the engine knows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_device::completion::Status;
use weft_device::control::{self, ErrorNumber};
use weft_device::work_request::Sge;
use weft_engine::{Access, AddressSpace, DomainId, Engine, Key, Piece, Region};

/// `enum ibv_access_flags`.
mod flag {
    pub(super) const LOCAL_WRITE: u32 = 1;
    pub(super) const REMOTE_WRITE: u32 = 1 << 1;
    pub(super) const REMOTE_READ: u32 = 1 << 2;
    pub(super) const REMOTE_ATOMIC: u32 = 1 << 3;
}

/// A registered region.
struct Registered {
    /// As the program asked for it.
    asked: control::Region,
    memory: Arc<Region>,
    /// What the engine writes by that arrives for this program's own receives, reads and atomics. No peer knows it.
    local: Option<Key>,
    /// What peers reach it by: the prefix and the program's key.
    remote: Option<Key>,
}

/// The regions of a context, by the program's key.
#[derive(Default)]
pub(crate) struct Regions(BTreeMap<u32, Registered>);

/// The key by which a peer reaches a region.
pub(crate) fn remote_key(prefix: u32, key: u32) -> Key {
    Key(u64::from(prefix) << 32 | u64::from(key))
}

impl Regions {
    /// Registers memory of the program. Nothing is touched or pinned, so the time does not depend on the length.
    pub(crate) fn add(
        &mut self,
        engine: &Engine,
        (domain, prefix): (DomainId, u32),
        key: u32,
        asked: control::Region,
        space: &AddressSpace,
    ) -> Result<(), ErrorNumber> {
        let range = space
            .range(asked.address, asked.bytes, asked.io_address)
            .map_err(|_| ErrorNumber::InvalidArgument)?;
        let memory = Region::of_process(range);
        let has = |bit| asked.access & bit != 0;
        let local = has(flag::LOCAL_WRITE)
            .then(|| engine.register_for(domain, Access::WRITE, Arc::clone(&memory)));
        let allowed = [
            (flag::REMOTE_WRITE, Access::WRITE),
            (flag::REMOTE_READ, Access::READ),
            (flag::REMOTE_ATOMIC, Access::ATOMIC),
        ];
        let allowed = allowed.into_iter().filter(|(bit, _)| has(*bit));
        let remote = allowed.map(|(_, access)| access).reduce(Access::with);
        let remote = remote.map(|access| {
            let key = remote_key(prefix, key);
            engine.register_as(key, domain, access, Arc::clone(&memory));
            key
        });
        let registered = Registered {
            asked,
            memory,
            local,
            remote,
        };
        self.0.insert(key, registered);
        Ok(())
    }

    /// Closes a region: when this returns, no peer reaches it.
    pub(crate) fn remove(&mut self, engine: &Engine, key: u32) {
        if let Some(region) = self.0.remove(&key) {
            for key in [region.local, region.remote].into_iter().flatten() {
                engine.deregister(key);
            }
        }
    }

    pub(crate) fn remove_all(&mut self, engine: &Engine) {
        let keys: Vec<u32> = self.0.keys().copied().collect();
        keys.into_iter().for_each(|key| self.remove(engine, key));
    }

    /// The region that holds the bytes of an entry, if it is of this protection domain.
    fn find(&self, domain: u32, sge: &Sge) -> Result<&Registered, Status> {
        let region = self.0.get(&sge.local_key).ok_or(Status::LocalProtection)?;
        let begin = sge.address.checked_sub(region.asked.io_address);
        let end = begin.and_then(|begin| begin.checked_add(sge.bytes.into()));
        let is_within = end.is_some_and(|end| end <= region.asked.bytes);
        match region.asked.domain == domain && is_within {
            true => Ok(region),
            false => Err(Status::LocalProtection),
        }
    }

    /// Where the bytes of a message lie.
    pub(crate) fn pieces(&self, domain: u32, sges: &[Sge]) -> Result<Vec<Piece>, Status> {
        let piece = |sge: &Sge| {
            let region = self.find(domain, sge)?;
            Ok(Piece {
                source: Arc::clone(&region.memory).into(),
                offset: sge.address,
                bytes: sge.bytes.into(),
            })
        };
        let sges = sges.iter().filter(|sge| sge.bytes > 0);
        sges.map(piece).collect()
    }

    /// Copies the bytes that entries name behind what is in `out`.
    pub(crate) fn gather(
        &self,
        domain: u32,
        sges: &[Sge],
        out: &mut Vec<u8>,
    ) -> Result<(), Status> {
        for sge in sges.iter().filter(|sge| sge.bytes > 0) {
            let region = self.find(domain, sge)?;
            let before = out.len();
            out.resize(before + sge.bytes as usize, 0);
            let read = region.memory.read(sge.address, &mut out[before..]);
            read.map_err(|_| Status::LocalProtection)?;
        }
        Ok(())
    }

    /// Copies bytes to where entries say, one entry behind the other. All entries are checked before the first byte.
    pub(crate) fn scatter(&self, domain: u32, sges: &[Sge], bytes: &[u8]) -> Result<(), Status> {
        let sges = || sges.iter().filter(|sge| sge.bytes > 0);
        sges().try_for_each(|sge| self.target(domain, sge).map(drop))?;
        let room: u64 = sges().map(|sge| u64::from(sge.bytes)).sum();
        if room < bytes.len() as u64 {
            return Err(Status::LocalLength);
        }
        let mut left = bytes;
        for sge in sges() {
            let (now, rest) = left.split_at(left.len().min(sge.bytes as usize));
            let written = self.find(domain, sge)?.memory.write(sge.address, now);
            written.map_err(|_| Status::LocalProtection)?;
            left = rest;
        }
        Ok(())
    }

    /// Where bytes that arrive go: the engine's key and the offset.
    pub(crate) fn target(&self, domain: u32, sge: &Sge) -> Result<(Key, u64), Status> {
        let region = self.find(domain, sge)?;
        let key = region.local.ok_or(Status::LocalProtection)?;
        Ok((key, sge.address))
    }
}
