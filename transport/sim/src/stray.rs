//! Writes that their receiver must refuse, as a writer that is wrong or hostile would post them.

use weft_core::connection::Write;
use weft_core::units::Key;

use crate::endpoint::EndState;
use crate::observation::{End, Observation};
use crate::simulation::Simulation;

/// Tokens of stray writes: none is a message's number.
const STRAY_TOKENS: u64 = 1 << 63;

/// How a write is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// It begins in a region and ends outside, within its first packet.
    Straddling,
    /// It begins behind a region.
    Behind,
    /// It ends at the last offset that there is.
    AtTheEnd,
    /// Its key opens nothing.
    Key,
}

impl Stray {
    /// Every way.
    pub const ALL: [Stray; 4] = [
        Stray::Straddling,
        Stray::Behind,
        Stray::AtTheEnd,
        Stray::Key,
    ];
}

impl Simulation {
    /// The writer of a pair's direction posts a write that must be refused, if its connection runs.
    pub(crate) fn post_stray(&mut self, pair: usize, side: usize, stray: Stray) {
        let end = self.pairs[pair].ends[side];
        let (key, region_bytes) = self.ends[end.peer().0].target.region();
        let EndState::Open(connection) = &mut self.ends[end.0].state else {
            return;
        };
        let payload = u64::from(self.scenario.settings.packet_payload);
        let bytes = self.work.magnitude(2, 8 * payload);
        let (key, offset) = match stray {
            Stray::Straddling => {
                let within = self.work.within(1, bytes.min(payload) - 1);
                (key, region_bytes.saturating_sub(within))
            }
            Stray::Behind => (key, region_bytes + self.work.magnitude(1, 1 << 40) - 1),
            Stray::AtTheEnd => (key, u64::MAX - bytes),
            Stray::Key => (Key(self.work.bits()), 0),
        };
        let token = STRAY_TOKENS + self.totals.strays;
        let write = Write {
            token,
            bytes,
            key,
            offset,
            immediate: self.work.coin().then_some(u32::MAX),
        };
        // A full queue takes it as little as any other.
        if connection.post_write(write).is_err() {
            return;
        }
        self.totals.strays += 1;
        let endpoint = &mut self.ends[end.0];
        endpoint.strayed = true;
        endpoint.open += 1;
        self.checkers
            .observe(self.now, &Observation::Strayed { writer: end, token });
        self.wake(end);
    }

    /// An end has something to look at though nothing has arrived.
    fn wake(&mut self, end: End) {
        let host = self.ends[end.0].host;
        self.hosts[host].touched.insert(end);
        if self.hosts[host].up {
            self.agenda.turn(self.now, host, &mut self.hosts[host]);
        }
    }
}
