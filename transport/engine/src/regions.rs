//! The memory that peers may write to.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crossbeam_channel::Receiver;
use weft_core::drops::DropReason;
use weft_core::memory::{Memory, check_bounds};
use weft_core::units::Key;

use crate::command::Command;
use crate::snapshot::RegionCounts;

/// A protection domain: a region can be written to by connections of its own domain only. Given
/// by the engine's user, one for each tenant or transfer; all of a domain lives on one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DomainId(pub u32);

struct Region {
    domain: DomainId,
    /// `None` while the buffer is with its owner.
    buffer: Option<Box<[u8]>>,
}

/// The regions of one worker.
pub(crate) struct Regions {
    by_key: HashMap<Key, Region, BuildHasherDefault<KeyHasher>>,
    /// What the worker has still to be told, of regions among others.
    commands: Receiver<Command>,
}

/// What the engine found when it took a buffer for delivery.
pub(crate) enum Taken {
    Buffer(Box<[u8]>),
    /// The key opens no region of the connection's domain: it was deregistered meanwhile.
    Gone,
    /// Its buffer is already with its owner: two messages were sent into one arming.
    NotArmed,
}

impl Regions {
    pub(crate) fn new(commands: Receiver<Command>) -> Self {
        Self {
            by_key: HashMap::default(),
            commands,
        }
    }

    pub(crate) fn register(&mut self, key: Key, domain: DomainId, buffer: Box<[u8]>) {
        self.by_key.insert(
            key,
            Region {
                domain,
                buffer: Some(buffer),
            },
        );
    }

    /// Gives a region a buffer to receive into; a deregistered one stays so.
    pub(crate) fn arm(&mut self, key: Key, buffer: Box<[u8]>) {
        if let Some(region) = self.by_key.get_mut(&key) {
            region.buffer = Some(buffer);
        }
    }

    pub(crate) fn deregister(&mut self, key: Key) {
        self.by_key.remove(&key);
    }

    /// Takes the buffer out for its owner.
    pub(crate) fn take(&mut self, domain: DomainId, key: Key) -> Taken {
        match self.by_key.get_mut(&key) {
            Some(region) if region.domain == domain => match region.buffer.take() {
                Some(buffer) => Taken::Buffer(buffer),
                None => Taken::NotArmed,
            },
            _ => Taken::Gone,
        }
    }

    /// The regions as a connection of `domain` sees them.
    pub(crate) fn of(&mut self, domain: DomainId) -> DomainMemory<'_> {
        DomainMemory {
            regions: self,
            domain,
        }
    }

    pub(crate) fn counts(&self) -> RegionCounts {
        let mut counts = RegionCounts::default();
        for region in self.by_key.values() {
            match &region.buffer {
                Some(buffer) => {
                    counts.armed += 1;
                    counts.armed_bytes += buffer.len() as u64;
                }
                None => counts.taken += 1,
            }
        }
        counts
    }
}

/// The one copy between the socket and the reader's memory.
pub(crate) struct DomainMemory<'a> {
    regions: &'a mut Regions,
    domain: DomainId,
}

impl Memory for DomainMemory<'_> {
    fn place(&mut self, key: Key, offset: u64, payload: &[u8]) -> Result<(), DropReason> {
        self.copy(key, offset, payload).map_err(|reason| {
            // A refusal is final to the writer. It knows the key since the region was registered,
            // but the registration may be one of the commands that wait: look again after them.
            if self.regions.commands.is_empty() {
                reason
            } else {
                DropReason::NotArmed
            }
        })
    }
}

impl DomainMemory<'_> {
    fn copy(&mut self, key: Key, offset: u64, payload: &[u8]) -> Result<(), DropReason> {
        let region = match self.regions.by_key.get_mut(&key) {
            // A foreign region looks like none: a peer learns nothing by trying.
            Some(region) if region.domain == self.domain => region,
            _ => return Err(DropReason::Key),
        };
        let buffer = region.buffer.as_mut().ok_or(DropReason::NotArmed)?;
        check_bounds(buffer.len() as u64, offset, payload.len() as u64)?;
        let at = offset as usize;
        buffer[at..at + payload.len()].copy_from_slice(payload);
        Ok(())
    }
}

/// Keys are random and ids count up; neither is chosen by a peer. A multiplication spreads both over
/// the whole word: the table takes its buckets from the low bits and its tags from the high ones.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, word: u64) {
        // 2^64 divided by the golden ratio (Knuth, TAOCP 6.4), folded to the middle of the product.
        let product = u128::from(word) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_ids_spread_over_buckets_and_tags() {
        let hashes: Vec<u64> = (0..256u32)
            .map(|id| {
                let mut hasher = KeyHasher::default();
                hasher.write_u32(id);
                hasher.finish()
            })
            .collect();
        let distinct = |part: fn(&u64) -> u64| {
            let parts: std::collections::BTreeSet<u64> = hashes.iter().map(part).collect();
            parts.len()
        };
        assert!(distinct(|hash| hash & 255) > 128);
        assert!(distinct(|hash| hash >> 57) > 64);
    }

    const KEY: Key = Key(0x1234_5600);
    const MINE: DomainId = DomainId(1);

    fn regions() -> Regions {
        let mut regions = Regions::new(crossbeam_channel::never());
        regions.register(KEY, MINE, vec![0; 10].into());
        regions
    }

    #[test]
    fn bytes_land_where_they_belong_and_nowhere_else() {
        let mut regions = regions();
        assert_eq!(regions.of(MINE).place(KEY, 4, &[1, 2, 3]), Ok(()));
        assert_eq!(
            regions.of(MINE).place(KEY, 8, &[9, 9, 9]),
            Err(DropReason::Bounds)
        );
        assert_eq!(
            regions.of(MINE).place(KEY, u64::MAX, &[9]),
            Err(DropReason::Bounds)
        );
        assert_eq!(
            regions.of(MINE).place(Key(1), 0, &[9]),
            Err(DropReason::Key)
        );
        let Taken::Buffer(buffer) = regions.take(MINE, KEY) else {
            panic!("the region is armed")
        };
        assert_eq!(*buffer, [0, 0, 0, 0, 1, 2, 3, 0, 0, 0]);
    }

    #[test]
    fn a_key_whose_registration_waits_is_not_refused_for_good() {
        let (tell, commands) = crossbeam_channel::unbounded();
        let mut regions = Regions::new(commands.clone());
        let register = Command::Register {
            key: KEY,
            domain: MINE,
            buffer: vec![0; 10].into(),
        };
        assert!(tell.send(register).is_ok());
        let place = |regions: &mut Regions| regions.of(MINE).place(KEY, 0, &[1]);
        assert_eq!(place(&mut regions), Err(DropReason::NotArmed));
        let Ok(Command::Register {
            key,
            domain,
            buffer,
        }) = commands.try_recv()
        else {
            panic!("the registration waits")
        };
        assert_eq!(place(&mut regions), Err(DropReason::Key));
        regions.register(key, domain, buffer);
        assert_eq!(place(&mut regions), Ok(()));
    }

    #[test]
    fn another_domain_finds_no_region() {
        let mut regions = regions();
        assert_eq!(
            regions.of(DomainId(2)).place(KEY, 0, &[1]),
            Err(DropReason::Key)
        );
        assert!(matches!(regions.take(DomainId(2), KEY), Taken::Gone));
    }

    #[test]
    fn a_taken_region_refuses_until_it_is_armed_again() {
        let mut regions = regions();
        assert!(matches!(regions.take(MINE, KEY), Taken::Buffer(_)));
        assert!(matches!(regions.take(MINE, KEY), Taken::NotArmed));
        assert_eq!(
            regions.of(MINE).place(KEY, 0, &[1]),
            Err(DropReason::NotArmed)
        );
        regions.arm(KEY, vec![0; 4].into());
        assert_eq!(regions.of(MINE).place(KEY, 0, &[1]), Ok(()));
        regions.deregister(KEY);
        regions.arm(KEY, vec![0; 4].into());
        assert_eq!(regions.of(MINE).place(KEY, 0, &[1]), Err(DropReason::Key));
    }
}
