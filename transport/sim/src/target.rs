//! What one end may be written to, and the messages that it expects there.

use weft_core::drops::DropReason;
use weft_core::memory::{Access, DomainId, Place};
use weft_core::units::Key;
use weft_memory::{Backing, RegionTable, TableReader};

use crate::observation::{End, Message};

/// Regions of an end: messages of one connection go to several.
pub const REGIONS: usize = 3;

/// A region without its bytes: what lies in it follows from the messages.
#[derive(Debug)]
pub struct SlotRegion {
    /// Whose it is.
    pub end: End,
    /// Which of its regions it is.
    pub index: usize,
    bytes: u64,
}

impl Backing for SlotRegion {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The regions of one host, of all its ends and tenants.
#[derive(Debug)]
pub struct Regions {
    table: RegionTable<SlotRegion>,
    reader: TableReader<SlotRegion>,
}

impl Regions {
    /// Closes a region.
    pub fn deregister(&self, key: Key) {
        self.table.deregister(key);
    }
}

impl Default for Regions {
    fn default() -> Regions {
        let table = RegionTable::default();
        let reader = table.reader();
        Regions { table, reader }
    }
}

/// The regions of one end, cut into slots; a slot holds one message under way.
#[derive(Debug)]
pub struct Target {
    keys: [Key; REGIONS],
    slot_bytes: u64,
    /// By slot: slot s lies in region s mod REGIONS at place s / REGIONS.
    slots: Vec<Option<Message>>,
}

impl Target {
    /// Empty regions with `slots` slots in all.
    pub fn new(keys: [Key; REGIONS], slots: u16, slot_bytes: u64) -> Target {
        Target {
            keys,
            slot_bytes,
            slots: vec![None; slots.into()],
        }
    }

    /// Opens the regions of `end` to its tenant.
    pub fn register(&self, regions: &mut Regions, domain: DomainId, end: End) {
        for (index, &key) in self.keys.iter().enumerate() {
            let bytes = self.region_bytes(index);
            let region = SlotRegion { end, index, bytes };
            let access = Access::WRITE.with(Access::READ).with(Access::ATOMIC);
            regions.table.register(key, domain, access, region);
        }
    }

    /// Closes the regions.
    pub fn deregister(&self, regions: &mut Regions) {
        self.keys.iter().for_each(|key| regions.deregister(*key));
    }

    fn region_bytes(&self, index: usize) -> u64 {
        let slots = self.slots.len().saturating_sub(index).div_ceil(REGIONS);
        slots as u64 * self.slot_bytes
    }

    /// A slot in which no message is under way.
    pub fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(Option::is_none)
    }

    /// The key and the first byte of a slot.
    pub fn place_of(&self, slot: usize) -> (Key, u64) {
        (
            self.keys[slot % REGIONS],
            (slot / REGIONS) as u64 * self.slot_bytes,
        )
    }

    /// A region's key and length.
    pub fn region(&self, index: usize) -> (Key, u64) {
        (self.keys[index], self.region_bytes(index))
    }

    /// From now on `slot` belongs to `message`.
    pub fn expect(&mut self, slot: usize, message: Message) {
        self.slots[slot] = Some(message);
    }

    /// The message has ended: its slot is free.
    pub fn release(&mut self, token: u64) {
        for slot in &mut self.slots {
            if slot.is_some_and(|message| message.id == token) {
                *slot = None;
            }
        }
    }

    /// The message under way at `offset` of a region.
    pub fn message_at(&self, index: usize, offset: u64) -> Option<&Message> {
        let slot = (offset / self.slot_bytes) as usize * REGIONS + index;
        self.slots.get(slot).and_then(Option::as_ref)
    }
}

/// Whose region a place lies in, and which of its regions that is.
///
/// # Errors
/// As [`weft_memory::Placing::resolve`].
pub fn find(regions: &mut Regions, place: &Place) -> Result<(End, usize), DropReason> {
    let placing = regions.reader.enter();
    let region = placing.resolve(place, Access::WRITE)?;
    Ok((region.end, region.index))
}
