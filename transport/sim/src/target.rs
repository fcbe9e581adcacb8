//! What one end may be written to, and the messages that it expects there.

use weft_core::drops::DropReason;
use weft_core::memory::{Backing, DomainId, Memory, RegionTable};
use weft_core::units::Key;

use crate::check::Checkers;
use crate::observation::{End, Message, Observation};

/// Regions of an end: messages of one connection go to several.
pub const REGIONS: usize = 3;

/// A region without its bytes: what lies in it follows from the messages.
#[derive(Debug)]
struct SlotRegion {
    index: usize,
    bytes: u64,
}

impl Backing for SlotRegion {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// All connections of the simulation are of one domain.
const DOMAIN: DomainId = DomainId(1);

/// The regions of one end, cut into slots; a slot holds one message under way.
#[derive(Debug)]
pub struct Target {
    keys: [Key; REGIONS],
    table: RegionTable<SlotRegion>,
    slot_bytes: u64,
    /// By slot: slot s lies in region s mod REGIONS at place s / REGIONS.
    slots: Vec<Option<Message>>,
}

impl Target {
    /// Empty regions with `slots` slots in all.
    pub fn new(keys: [Key; REGIONS], slots: u16, slot_bytes: u64) -> Target {
        let mut table = RegionTable::default();
        for (index, &key) in keys.iter().enumerate() {
            let slots = usize::from(slots).saturating_sub(index).div_ceil(REGIONS);
            let bytes = slots as u64 * slot_bytes;
            table.register(key, DOMAIN, SlotRegion { index, bytes });
        }
        Target {
            keys,
            table,
            slot_bytes,
            slots: vec![None; slots.into()],
        }
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

    /// The first region's key and length.
    pub fn region(&self) -> (Key, u64) {
        let slots = self.slots.len().div_ceil(REGIONS) as u64;
        (self.keys[0], slots * self.slot_bytes)
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

    /// Messages under way.
    pub fn expected(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    fn find(&mut self, key: Key, offset: u64, length: u64) -> Result<Option<&Message>, DropReason> {
        let region = self.table.resolve(DOMAIN, key, offset, length)?;
        let slot = (offset / self.slot_bytes) as usize * REGIONS + region.index;
        Ok(self.slots.get(slot).and_then(Option::as_ref))
    }
}

/// A target lent to the core for one run, with those who watch.
pub struct Watched<'a> {
    /// Virtual nanoseconds.
    pub now: u64,
    /// The end that receives.
    pub reader: End,
    /// Its regions.
    pub target: &'a mut Target,
    /// Whether they take anything now.
    pub armed: bool,
    /// Who watches.
    pub checkers: &'a mut Checkers,
}

impl Memory for Watched<'_> {
    fn place(&mut self, key: Key, offset: u64, payload: &[u8]) -> Result<(), DropReason> {
        let message = self.target.find(key, offset, payload.len() as u64)?;
        if !self.armed {
            return Err(DropReason::NotArmed);
        }
        let placed = Observation::Placed {
            reader: self.reader,
            message,
            key,
            offset,
            payload,
        };
        self.checkers.observe(self.now, &placed);
        Ok(())
    }
}
