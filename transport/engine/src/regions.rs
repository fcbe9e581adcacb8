//! The memory that peers may write to: the core's table, with buffers behind it.

use crossbeam_channel::Receiver;
use weft_core::drops::DropReason;
use weft_core::memory::{DomainId, Memory, RegionTable};
use weft_core::units::Key;

use crate::command::Command;
use crate::snapshot::RegionCounts;

/// The regions of one worker.
pub(crate) struct Regions {
    pub(crate) table: RegionTable<Box<[u8]>>,
    /// What the worker has still to be told, of regions among others.
    commands: Receiver<Command>,
}

impl Regions {
    pub(crate) fn new(commands: Receiver<Command>) -> Self {
        Self {
            table: RegionTable::default(),
            commands,
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
        for buffer in self.table.backings() {
            match buffer {
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
        let Regions { table, commands } = &mut *self.regions;
        match table.resolve(self.domain, key, offset, payload.len() as u64) {
            Ok(buffer) => {
                let at = offset as usize;
                buffer[at..at + payload.len()].copy_from_slice(payload);
                Ok(())
            }
            Err(reason) if commands.is_empty() => Err(reason),
            // A refusal is final to the writer. It knows the key since the region was registered, but
            // the registration may be one of the commands that wait: look again after them.
            Err(_) => Err(DropReason::NotArmed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key(0x1234_5600);
    const MINE: DomainId = DomainId(1);

    #[test]
    fn bytes_land_where_they_belong_and_nowhere_else() {
        let mut regions = Regions::new(crossbeam_channel::never());
        regions.table.register(KEY, MINE, vec![0; 10].into());
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
        let buffer = regions.table.take(MINE, KEY).unwrap();
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
        regions.table.register(key, domain, buffer);
        assert_eq!(place(&mut regions), Ok(()));
    }
}
