//! The regions of a context on their way to the next engine, and the pieces of messages that lie in them.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weft_device::control;
use weft_device::work_request::Sge;
use weft_engine::{AddressSpace, Engine, FileId, Key, Piece, Region, SharedFiles, Source};

use super::Regions;
use crate::context::Domain;
use crate::saved::{Descriptors, HandOverError};

/// The regions of a context.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedRegions {
    registered: BTreeMap<u32, SavedRegion>,
    /// The protection domain and the entries of each.
    joined: Vec<(Key, u32, Vec<Sge>)>,
    /// Files of the program that are mapped by both, of which there are so many descriptors.
    files: u32,
}

#[derive(Serialize, Deserialize)]
struct SavedRegion {
    asked: control::Region,
    local: Option<Key>,
    /// Which of the files.
    file: Option<u32>,
}

/// A piece of a message that is under way.
#[derive(Serialize, Deserialize)]
pub(crate) enum SavedPiece {
    /// These bytes.
    Bytes(Vec<u8>),
    /// In a region of the program.
    InRegion { key: u32, offset: u64, bytes: u64 },
    /// In the program's memory, where a region was.
    InMemory { address: u64, bytes: u64 },
}

/// The keys of a context's regions, by their memory.
pub(crate) struct KeysByMemory(HashMap<*const Region, u32>);

impl KeysByMemory {
    /// Where a piece lies, for the next engine.
    pub(crate) fn save_piece(&self, piece: &Piece) -> Option<SavedPiece> {
        let Piece { offset, bytes, .. } = *piece;
        match &piece.source {
            Source::Bytes(source) => {
                let from = usize::try_from(offset).ok()?;
                let to = from.checked_add(usize::try_from(bytes).ok()?)?;
                Some(SavedPiece::Bytes(source.get(from..to)?.to_vec()))
            }
            Source::Region(memory) => Some(match self.0.get(&Arc::as_ptr(memory)) {
                Some(&key) => SavedPiece::InRegion { key, offset, bytes },
                None => SavedPiece::InMemory {
                    address: memory.address(offset, bytes)?,
                    bytes,
                },
            }),
        }
    }
}

impl Regions {
    /// What pieces of messages are found by.
    pub(crate) fn keys_by_memory(&self) -> KeysByMemory {
        let all = self.registered.iter();
        KeysByMemory(
            all.map(|(key, region)| (Arc::as_ptr(&region.memory), *key))
                .collect(),
        )
    }

    /// The piece that was saved.
    pub(crate) fn restore_piece(&self, piece: SavedPiece, program: &AddressSpace) -> Option<Piece> {
        Some(match piece {
            SavedPiece::Bytes(bytes) => Piece {
                offset: 0,
                bytes: bytes.len() as u64,
                source: Source::Bytes(Arc::new(bytes.into())),
            },
            SavedPiece::InRegion { key, offset, bytes } => Piece {
                source: Arc::clone(&self.registered.get(&key)?.memory).into(),
                offset,
                bytes,
            },
            SavedPiece::InMemory { address, bytes } => Piece {
                source: Region::of_process(program.range(address, bytes, 0).ok()?).into(),
                offset: 0,
                bytes,
            },
        })
    }

    /// What there is, and the descriptors of its files.
    pub(crate) fn save(
        self,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<SavedRegions, HandOverError> {
        let mut files: Vec<FileId> = Vec::new();
        let joined = self.joined.into_iter().filter_map(|(key, sges)| {
            let first = self.registered.get(&sges.first()?.local_key)?;
            Some((key, first.asked.domain, sges))
        });
        let joined = joined.collect();
        let mut registered = BTreeMap::new();
        for (key, region) in self.registered {
            let mut file = None;
            if let Some(descriptor) = region.memory.window_file() {
                let id = FileId::of(descriptor)?;
                let known = files.iter().position(|known| *known == id);
                if known.is_none() {
                    files.push(id);
                    descriptors.push(descriptor.try_clone_to_owned()?);
                }
                file = Some(known.unwrap_or(files.len() - 1) as u32);
            }
            let saved = SavedRegion {
                asked: region.asked,
                local: region.local,
                file,
            };
            registered.insert(key, saved);
        }
        let files = files.len() as u32;
        Ok(SavedRegions {
            registered,
            joined,
            files,
        })
    }
}

impl SavedRegions {
    pub(crate) fn restore(
        self,
        engine: &Engine,
        domains: &BTreeMap<u32, Domain>,
        program: &AddressSpace,
        shared: &mut SharedFiles,
        descriptors: &mut Descriptors,
    ) -> Result<Regions, HandOverError> {
        let files = (0..self.files).map(|_| descriptors.next());
        let files = files.collect::<Result<Vec<OwnedFd>, _>>()?;
        let mut regions = Regions::default();
        for (key, region) in self.registered {
            let file = region.file.and_then(|file| files.get(file as usize));
            let file = file.map(|file| file.as_fd().try_clone_to_owned());
            let memory = Regions::memory(&region.asked, file.transpose()?, program, shared);
            let memory = memory.map_err(|_| HandOverError::Damaged("a region"))?;
            let domain = domains.get(&region.asked.domain);
            let domain = domain.ok_or(HandOverError::Damaged("a region's protection domain"))?;
            let of = (domain.id, domain.prefix);
            regions.add(engine, of, key, region.asked, memory, region.local);
        }
        for (key, domain, sges) in self.joined {
            let joined = regions.join(engine, domain, sges, Some(key));
            joined.map_err(|_| HandOverError::Damaged("a region of several entries"))?;
        }
        Ok(regions)
    }
}
