//! No packet number twice.

use std::collections::BTreeMap;

use weft_core::units::ConnectionId;
use weft_core::wire::{CONTROL_PACKET_NUMBERS, Kind, peek};

use super::{Checker, packet_number};
use crate::observation::Observation;

/// The packet numbers of a connection and direction only grow, those of data and those of control packets each
/// for themselves, whatever is blocked, saved or restored: they are the nonces of its encryption.
#[derive(Default)]
pub(super) struct NumbersGrow {
    /// The last ones, by the receiver's name for the connection, which is unique in a run.
    last: BTreeMap<(ConnectionId, bool), u64>,
}

impl Checker for NumbersGrow {
    fn name(&self) -> &'static str {
        "packet numbers used once"
    }

    fn observe(&mut self, _now: u64, what: &Observation<'_>) -> Result<(), String> {
        let Observation::Transmitted { packet } = *what else {
            return Ok(());
        };
        let Some(peek) = peek(packet).ok().filter(|peek| peek.kind != Kind::Reset) else {
            return Ok(());
        };
        let number = packet_number(packet);
        let key = (peek.connection, number >= CONTROL_PACKET_NUMBERS);
        match self.last.insert(key, number) {
            Some(last) if last >= number => Err(format!(
                "packet {number} was sent to {} after {last}",
                peek.connection
            )),
            _ => Ok(()),
        }
    }
}
