//! What a link hands over, and where it goes.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;

use weft_core::drops::DropReason;
use weft_core::endpoint::Endpoint;
use weft_core::memory::{Access, Place};
use weft_core::received::{Offer, Received};
use weft_core::units::{Source, Time};
use weft_core::wire::{Envelope, payload_crc};
use weft_link::Handler;
use weft_memory::{Placing, Region};

use crate::peer::PeerNic;

/// What the link hands its packets to: the endpoint, with the memory that payload goes to.
pub(super) struct Incoming<'a> {
    pub(super) now: Time,
    pub(super) endpoint: &'a mut Endpoint<PeerNic>,
    pub(super) memory: Placing<'a, Region>,
    /// Of a packet's length.
    pub(super) scratch: &'a mut [u8],
}

impl Handler for Incoming<'_> {
    fn offer(&mut self, from: Source, envelope: &Envelope, bytes: u32) -> Offer {
        let memory = &mut self.memory;
        self.endpoint.offer(self.now, from, envelope, bytes, memory)
    }

    fn receive(
        &mut self,
        place: &Place,
        crc: Option<u32>,
        first: &[u8],
        socket: BorrowedFd<'_>,
        ahead: &mut [u8],
    ) -> io::Result<Result<usize, DropReason>> {
        // Looked up once: who takes the region or closes it waits until all of the payload is there.
        let region = match self.memory.resolve(place, Access::WRITE) {
            Ok(region) => region,
            Err(reason) => return Ok(Err(reason)),
        };
        if let Err(reason) = region.write(place.offset, first) {
            return Ok(Err(reason));
        }
        let end = place.offset + place.bytes;
        let mut at = place.offset + first.len() as u64;
        let mut behind = 0;
        while at < end {
            let rest = (end - at) as usize;
            let received = region.receive(at, rest, socket, ahead)?;
            if received == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += received.min(rest) as u64;
            behind = received.saturating_sub(rest);
        }
        let checked = check_payload(region, place, crc, self.scratch);
        Ok(checked.map(|()| behind))
    }

    fn copy(
        &mut self,
        place: &Place,
        crc: Option<u32>,
        payload: &[AtomicU8],
    ) -> Result<(), DropReason> {
        let region = self.memory.resolve(place, Access::WRITE)?;
        region.write_shared(place.offset, payload)?;
        check_payload(region, place, crc, self.scratch)
    }

    fn handle(&mut self, received: Received<'_>) {
        self.endpoint.handle(self.now, received, &mut self.memory);
    }
}

/// Checks a payload that lies in place for damage, where its link does not keep it whole.
fn check_payload(
    region: &Region,
    place: &Place,
    crc: Option<u32>,
    scratch: &mut [u8],
) -> Result<(), DropReason> {
    let Some(crc) = crc else {
        return Ok(());
    };
    // A copy: others may write to the region meanwhile.
    let payload = scratch.get_mut(..place.bytes as usize);
    let payload = payload.ok_or(DropReason::Bounds)?;
    region.read(place.offset, payload)?;
    match payload_crc(payload) == crc {
        true => Ok(()),
        false => Err(DropReason::Checksum),
    }
}
