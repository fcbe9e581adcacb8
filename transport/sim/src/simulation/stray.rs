//! Posts what a receiver must refuse, and deregisters regions under way.

use weft_core::connection::Write;
use weft_core::units::Key;

use super::Simulation;
use crate::end::EndState;
use crate::observation::{Observation, SHORT_PAYLOAD};
use crate::stray::Stray;
use crate::target::REGIONS;

/// Tokens of stray writes: none is a message's number.
const STRAY_TOKENS: u64 = 1 << 63;

impl Simulation {
    /// The writer of a pair's direction posts a write that must be refused, if its connection runs.
    pub(crate) fn post_stray(&mut self, pair: usize, side: usize, stray: Stray) {
        let end = self.pairs[pair].ends[side];
        let (key, region_bytes) = self.ends[end.peer().0].target.region(0);
        let payload = u64::from(self.scenario.settings.packet_payload);
        let bytes = self.work.magnitude(2, 8 * payload);
        let (key, offset) = match stray {
            Stray::Straddling => {
                // Its first packet may be sent again as short ones.
                let shortest = payload.min(SHORT_PAYLOAD);
                let within = self.work.within(1, bytes.min(shortest) - 1);
                (key, region_bytes.saturating_sub(within))
            }
            Stray::Behind => (key, region_bytes + self.work.magnitude(1, 1 << 40) - 1),
            Stray::AtTheEnd => (key, u64::MAX - bytes),
            Stray::Key => (Key(self.work.bits()), 0),
            Stray::Tenant => {
                let EndState {
                    peer_host, domain, ..
                } = self.ends[end.0];
                let mut others = self.ends.iter().filter(|other| {
                    other.host == peer_host && other.domain != domain && other.alive()
                });
                let key = others.next().map(|other| other.target.region(0).0);
                (key.unwrap_or(Key(self.work.bits())), 0)
            }
        };
        let token = STRAY_TOKENS + self.totals.strays;
        let write = Write {
            token,
            bytes,
            key,
            offset,
            immediate: self.work.coin().then_some(u32::MAX),
        };
        let EndState { host, id, .. } = self.ends[end.0];
        let Some(running) = self.machines[host].running() else {
            return;
        };
        if running.endpoint.post(id, write).is_err() {
            return;
        }
        self.totals.strays += 1;
        let state = &mut self.ends[end.0];
        state.strayed = true;
        state.open += 1;
        self.checkers
            .observe(self.now, &Observation::Strayed { writer: end, token });
        self.wake(host);
    }

    /// A region of a pair's reader is deregistered while writes to it are under way.
    pub(crate) fn deregister(&mut self, pair: usize, side: usize) {
        let reader = self.pairs[pair].ends[side];
        if !self.ends[reader.0].alive() {
            return;
        }
        let region = self.work.within(0, REGIONS as u64 - 1) as usize;
        let (key, _) = self.ends[reader.0].target.region(region);
        let host = self.ends[reader.0].host;
        self.machines[host].regions.deregister(key);
        for end in [reader, reader.peer()] {
            self.ends[end.0].strayed = true;
        }
        self.checkers
            .observe(self.now, &Observation::Deregistered { reader, key });
    }

    /// A host has something to do though nothing has arrived.
    pub(crate) fn wake(&mut self, host: usize) {
        if self.machines[host].is_up() {
            self.agenda.turn(self.now, host, &mut self.machines[host]);
        }
    }
}
