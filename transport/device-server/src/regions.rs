//! The registered memory of a context, as the engine knows it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use weft_device::completion::Status;
use weft_device::control::{self, ErrorNumber};
use weft_device::work_request::Sge;
use weft_engine::{
    Access, AddressSpace, DomainId, Engine, Key, Part, Piece, Region, SIGNAL, SharedFiles,
};

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
    /// Its protection domain, as the engine knows it.
    domain: DomainId,
    memory: Arc<Region>,
    /// What the engine writes by that arrives for this program's own receives, reads and atomics. No peer knows it.
    local: Option<Key>,
    /// What peers reach it by: the prefix and the program's key.
    remote: Option<Key>,
    /// How many regions of several entries have a part of it.
    parts: usize,
}

mod saved;

pub(crate) use saved::{KeysByMemory, SavedPiece, SavedRegions};

/// Regions of several entries that a context has at a time: each is an entry in the engine's table as well.
const JOINED_MAX: usize = 65_536;

/// The regions of a context.
#[derive(Default)]
pub(crate) struct Regions {
    /// By the program's key.
    registered: BTreeMap<u32, Registered>,
    /// Regions of several entries of one work request, and these.
    joined: BTreeMap<Key, Vec<Sge>>,
    /// Registered regions whose memory is.
    windows: u32,
    /// Work requests for memory, or for a peer, that is not their queue pair's to use.
    refused: Cell<u64>,
}

/// Where bytes that arrive for a work request go.
pub(crate) struct Target {
    /// What opens it.
    pub(crate) key: Key,
    /// Where in it they begin.
    pub(crate) offset: u64,
    /// How many it has room for.
    pub(crate) bytes: u64,
}

/// The key by which a peer reaches a region.
pub(crate) fn remote_key(prefix: u32, key: u32) -> Key {
    Key(u64::from(prefix) << 32 | u64::from(key))
}

/// What peers may do, of the bits of `enum ibv_access_flags`.
pub(crate) fn remote_access(flags: u32) -> Access {
    let allowed = [
        (flag::REMOTE_WRITE, Access::WRITE),
        (flag::REMOTE_READ, Access::READ),
        (flag::REMOTE_ATOMIC, Access::ATOMIC),
    ];
    let allowed = allowed.into_iter().filter(|(bit, _)| flags & bit != 0);
    allowed.fold(Access::NONE, |all, (_, one)| all.with(one))
}

/// Registers memory by a key, which is drawn if there is none.
fn register(engine: &Engine, domain: DomainId, key: Option<Key>, memory: Arc<Region>) -> Key {
    match key {
        Some(key) => {
            engine.register_as(key, domain, Access::WRITE, memory);
            key
        }
        None => engine.register_for(domain, Access::WRITE, memory),
    }
}

impl Regions {
    /// Memory of the program, reached by its address space, and by a window where it has mapped `file` there and that can be
    /// mapped here.
    pub(crate) fn memory(
        asked: &control::Region,
        file: Option<OwnedFd>,
        space: &AddressSpace,
        files: &mut SharedFiles,
    ) -> Result<Arc<Region>, ErrorNumber> {
        let range = space
            .range(asked.address, asked.bytes, asked.io_address)
            .map_err(|_| ErrorNumber::InvalidArgument)?;
        let window = file.zip(asked.file_offset).and_then(|(file, start)| {
            let window = files.window(file, start, asked.bytes);
            let window = window.inspect_err(|error| tracing::debug!("no window: {error}"));
            window.ok()
        });
        Ok(match window {
            Some(window) => Region::of_shared_file(window, range),
            None => Region::of_process(range),
        })
    }

    /// How many there are, and how many of them are mapped here as well.
    pub(crate) fn count(&self) -> (u32, u32) {
        (self.registered.len() as u32, self.windows)
    }

    /// A work request names memory, or a peer, of another protection domain, or none that there is.
    pub(crate) fn count_refused(&self) {
        self.refused.set(self.refused.get() + 1);
    }

    /// How many did.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Registers memory of the program. Nothing is touched or pinned, so the time does not depend on the length. `local`: the
    /// key of its own receives and reads, if it has one already.
    pub(crate) fn add(
        &mut self,
        engine: &Engine,
        (domain, prefix): (DomainId, u32),
        key: u32,
        asked: control::Region,
        memory: Arc<Region>,
        local: Option<Key>,
    ) {
        let has = |bit| asked.access & bit != 0;
        let local =
            has(flag::LOCAL_WRITE).then(|| register(engine, domain, local, Arc::clone(&memory)));
        let access = remote_access(asked.access);
        let remote = (access != Access::NONE).then(|| {
            let key = remote_key(prefix, key);
            engine.register_as(key, domain, access, Arc::clone(&memory));
            key
        });
        let registered = Registered {
            asked,
            domain,
            memory,
            local,
            remote,
            parts: 0,
        };
        self.windows += u32::from(registered.memory.is_window());
        self.registered.insert(key, registered);
    }

    /// Closes a region: when this returns, no peer reaches it.
    pub(crate) fn remove(&mut self, engine: &Engine, key: u32) {
        let Some(region) = self.registered.remove(&key) else {
            return;
        };
        self.windows -= u32::from(region.memory.is_window());
        for key in [region.local, region.remote].into_iter().flatten() {
            engine.deregister(key);
        }
        if region.parts > 0 {
            let is_of_it = |sge: &Sge| sge.local_key == key;
            let of_it = self.joined.iter().filter(|(_, of)| of.iter().any(is_of_it));
            let joined: Vec<Key> = of_it.map(|(joined, _)| *joined).collect();
            joined.iter().for_each(|key| self.forget(engine, *key));
        }
    }

    pub(crate) fn remove_all(&mut self, engine: &Engine) {
        while let Some((key, _)) = self.joined.pop_first() {
            engine.deregister(key);
        }
        for region in self.registered.values_mut() {
            region.parts = 0;
        }
        let keys: Vec<u32> = self.registered.keys().copied().collect();
        keys.into_iter().for_each(|key| self.remove(engine, key));
    }

    /// The region that holds the bytes of an entry, if it is of this protection domain.
    fn find(&self, domain: u32, sge: &Sge) -> Result<&Registered, Status> {
        let found = self.registered.get(&sge.local_key);
        let found = found.filter(|region| region.asked.domain == domain);
        let region = found.ok_or_else(|| {
            self.count_refused();
            Status::LocalProtection
        })?;
        let begin = sge.address.checked_sub(region.asked.io_address);
        let end = begin.and_then(|begin| begin.checked_add(sge.bytes.into()));
        let is_within = end.is_some_and(|end| end <= region.asked.bytes);
        match is_within {
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
        sges().try_for_each(|sge| self.local_key(domain, sge).map(drop))?;
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

    /// What bytes that arrive for an entry are placed by.
    fn local_key(&self, domain: u32, sge: &Sge) -> Result<Key, Status> {
        let region = self.find(domain, sge)?;
        region.local.ok_or(Status::LocalProtection)
    }

    /// Where bytes that arrive for these entries go, one behind the other. What it gives is to be forgotten
    /// ([`Regions::forget`]) when they are there.
    pub(crate) fn target(
        &mut self,
        engine: &Engine,
        domain: u32,
        sges: &[Sge],
    ) -> Result<Target, Status> {
        let mut filled = sges.iter().filter(|sge| sge.bytes > 0);
        let (first, second) = (filled.next(), filled.next());
        let Some(first) = first else {
            return Ok(Target {
                key: SIGNAL,
                offset: 0,
                bytes: 0,
            });
        };
        let key = self.local_key(domain, first)?;
        if second.is_none() {
            return Ok(Target {
                key,
                offset: first.address,
                bytes: first.bytes.into(),
            });
        }
        if self.joined.len() >= JOINED_MAX {
            return Err(Status::LocalQueuePairOperation);
        }
        let sges = sges.iter().filter(|sge| sge.bytes > 0).copied().collect();
        let (key, bytes) = self.join(engine, domain, sges, None)?;
        Ok(Target {
            key,
            offset: 0,
            bytes,
        })
    }

    /// Registers one region for several entries, which are not empty; by this key, if there is one already.
    fn join(
        &mut self,
        engine: &Engine,
        domain: u32,
        sges: Vec<Sge>,
        key: Option<Key>,
    ) -> Result<(Key, u64), Status> {
        let mut parts = Vec::with_capacity(sges.len());
        let mut of = DomainId::default();
        for sge in &sges {
            self.local_key(domain, sge)?;
            let region = self.find(domain, sge)?;
            of = region.domain;
            parts.push(Part {
                region: Arc::clone(&region.memory),
                offset: sge.address,
                bytes: sge.bytes.into(),
            });
        }
        let joined = Region::joined(parts);
        let bytes = joined.len();
        let key = register(engine, of, key, joined);
        for sge in &sges {
            if let Some(region) = self.registered.get_mut(&sge.local_key) {
                region.parts += 1;
            }
        }
        self.joined.insert(key, sges);
        Ok((key, bytes))
    }

    /// A work request whose bytes went to this key's region is done.
    pub(crate) fn forget(&mut self, engine: &Engine, key: Key) {
        let Some(sges) = self.joined.remove(&key) else {
            return;
        };
        engine.deregister(key);
        for sge in sges {
            if let Some(region) = self.registered.get_mut(&sge.local_key) {
                region.parts -= 1;
            }
        }
    }
}
