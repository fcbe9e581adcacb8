//! The network in memory: lanes with rate, delay and queue, and the weather that drops, doubles,
//! reorders, damages, marks, replays and forges.

use weft_core::units::Nanos;
use weft_core::wire::{HEADER_BYTES, Reset, TRAILER_BYTES, peek};

use crate::draw::Draw;
use crate::scenario::{Dropped, Fabric, Weather};

/// Old datagrams kept for replays; the oldest gives way.
const REPLAYS_KEPT: usize = 64;
/// Datagrams that were handed back, for the next ones to reuse.
const SPARES_KEPT: usize = 1_024;
/// Millionths.
const CERTAIN: u32 = 1_000_000;
/// How many of a million forged datagrams claim that a connection is unknown.
const FORGED_RESETS: u32 = 100_000;

/// A datagram under way, and what happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The host that it left.
    pub from: usize,
    /// The host that it reaches.
    pub to: usize,
    /// The path (port pair) that it took.
    pub path: u8,
    /// Marked congestion-experienced.
    pub ce: bool,
    /// Not as it was sent: damaged or made up. Nothing of it may be used.
    pub tampered: bool,
    /// Header, payload, trailer.
    pub bytes: Vec<u8>,
}

/// What the network did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Datagrams handed to the network.
    pub sent: u64,
    /// Lost to weather, dead lanes and full queues.
    pub lost: u64,
    /// Damaged on the way.
    pub corrupted: u64,
    /// Delivered once more.
    pub repeated: u64,
    /// Made up.
    pub forged: u64,
    /// Marked congestion-experienced.
    pub marked: u64,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    /// When the last byte that is queued will have left, in 1/1024 ns.
    busy_until_1024: u128,
    /// What it drops, once for each mishap that lasts.
    dropped: Vec<Dropped>,
}

/// The network between all hosts.
#[derive(Debug)]
pub struct Network {
    fabric: Fabric,
    weather: Weather,
    draw: Draw,
    hosts: usize,
    lanes: Vec<Lane>,
    /// Extra delay of everything from or to a host.
    slow: Vec<Nanos>,
    replays: Vec<Packet>,
    spares: Vec<Vec<u8>>,
    tally: Tally,
}

impl Network {
    /// A network between `hosts` hosts.
    pub fn new(hosts: usize, fabric: Fabric, weather: Weather, draw: Draw) -> Network {
        Network {
            fabric,
            weather,
            draw,
            hosts,
            lanes: vec![Lane::default(); hosts * hosts * usize::from(fabric.lanes)],
            slow: vec![Nanos::ZERO; hosts],
            replays: Vec::new(),
            spares: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Counts of what happened.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// An empty buffer for a datagram.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    /// Takes a datagram's buffer back.
    pub fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.spares.len() < SPARES_KEPT {
            bytes.clear();
            self.spares.push(bytes);
        }
    }

    /// The weather turns fair and every lane is up; replays end.
    pub fn heal(&mut self) {
        self.weather = Weather::FAIR;
        self.lanes.iter_mut().for_each(|lane| lane.dropped.clear());
        self.slow.fill(Nanos::ZERO);
        self.replays.clear();
    }

    /// One lane begins to drop packets.
    pub fn begin_drops(&mut self, from: usize, to: usize, lane: u16, dropped: Dropped) {
        let lane = self.lane_index(from, to, lane);
        self.lanes[lane].dropped.push(dropped);
    }

    /// What [`Network::begin_drops`] began is over.
    pub fn end_drops(&mut self, from: usize, to: usize, lane: u16, dropped: Dropped) {
        let lane = self.lane_index(from, to, lane);
        let now = &mut self.lanes[lane].dropped;
        if let Some(at) = now.iter().position(|one| *one == dropped) {
            now.swap_remove(at);
        }
    }

    /// Makes everything from and to `host` later by `extra`.
    pub fn set_slow(&mut self, host: usize, extra: Nanos) {
        self.slow[host] = extra;
    }

    /// Which lane a path takes; as a switch hashes a port pair.
    pub fn lane_of(&self, from: usize, to: usize, path: u8) -> u16 {
        let key = (from * self.hosts + to) as u64 * 257 + u64::from(path);
        ((key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % u64::from(self.fabric.lanes)) as u16
    }

    /// Sends a datagram; `deliver` is called with the nanoseconds until each arrival.
    pub fn send(&mut self, now: u64, packet: Packet, mut deliver: impl FnMut(u64, Packet)) {
        self.tally.sent += 1;
        let lane_number = self.lane_of(packet.from, packet.to, packet.path);
        let index = self.lane_index(packet.from, packet.to, lane_number);
        let lane = &mut self.lanes[index];

        let now_1024 = u128::from(now) * 1024;
        let backlog_1024 = lane.busy_until_1024.saturating_sub(now_1024);
        let slowdown = self.fabric.slowdowns[usize::from(lane_number) % 4];
        let byte_time_1024 = u128::from(self.fabric.byte_time_1024 * slowdown);
        let backlog = backlog_1024 / byte_time_1024;
        let length = packet.bytes.len();
        let dropped = lane.dropped.iter().any(|dropped| match dropped {
            Dropped::All => true,
            Dropped::Longer(bytes) => length > usize::from(*bytes),
            Dropped::Marked => packet.ce || backlog > u128::from(self.fabric.mark_bytes),
        });
        let lost = dropped
            || backlog > u128::from(self.fabric.queue_bytes)
            || self.draw.chance(self.weather.loss);
        if lost {
            self.tally.lost += 1;
            self.recycle(packet.bytes);
            return;
        }
        let takes_1024 = packet.bytes.len() as u128 * byte_time_1024;
        lane.busy_until_1024 = lane.busy_until_1024.max(now_1024) + takes_1024;
        let queued = (lane.busy_until_1024 - now_1024) / 1024;

        let mut packet = packet;
        if backlog > u128::from(self.fabric.mark_bytes) || self.draw.chance(self.weather.mark) {
            packet.ce = true;
            self.tally.marked += 1;
        }
        let spread =
            self.fabric.delay_spread.get() * u64::from(lane_number) / u64::from(self.fabric.lanes);
        let slow = self.slow[packet.from].get() + self.slow[packet.to].get();
        let arrives = now + queued as u64 + self.fabric.delay.get() + spread + slow;

        if self.weather == Weather::FAIR {
            deliver(arrives, packet);
        } else {
            self.mistreat(arrives, packet, deliver);
        }
    }

    /// Does to a datagram what the weather has for it.
    fn mistreat(&mut self, arrives: u64, mut packet: Packet, mut deliver: impl FnMut(u64, Packet)) {
        let weather = self.weather;
        if self.draw.chance(weather.forge) {
            self.tally.forged += 1;
            let forged = self.forge(&packet);
            deliver(arrives, forged);
        }
        if self.draw.chance(weather.replay) && !self.replays.is_empty() {
            let which = self.draw.within(0, self.replays.len() as u64 - 1) as usize;
            self.tally.repeated += 1;
            deliver(arrives, self.replays[which].clone());
        }
        if weather.replay > 0 && self.draw.chance(CERTAIN / 16) {
            if self.replays.len() == REPLAYS_KEPT {
                self.replays.swap_remove(0);
            }
            self.replays.push(packet.clone());
        }
        if self.draw.chance(weather.duplicate) {
            self.tally.repeated += 1;
            deliver(arrives + self.straggle(), packet.clone());
        }
        if self.draw.chance(weather.corrupt) {
            self.tally.corrupted += 1;
            self.damage(&mut packet);
        }
        let late = if self.draw.chance(weather.reorder) {
            self.straggle()
        } else {
            0
        };
        deliver(arrives + late, packet);
    }

    fn straggle(&mut self) -> u64 {
        self.draw.within(0, self.weather.straggle.get())
    }

    /// Flips one to four bits in one part of the datagram, or cuts it short.
    fn damage(&mut self, packet: &mut Packet) {
        let length = packet.bytes.len() as u64;
        let header = HEADER_BYTES as u64;
        let trailer = TRAILER_BYTES as u64;
        packet.tampered = true;
        let (first, last) = match self.draw.within(0, 9) {
            0 => {
                let keep = self.draw.within(0, length - 1);
                packet.bytes.truncate(keep as usize);
                return;
            }
            1..=3 => (0, header.min(length) - 1),
            4..=5 => (length.saturating_sub(trailer), length - 1),
            _ => (0, length - 1),
        };
        // An odd number of distinct bits cannot cancel out.
        let flips = self.draw.pick(&[1u64, 1, 2, 3]);
        let before = packet.bytes.clone();
        for _ in 0..flips {
            let at = self.draw.within(first, last) as usize;
            packet.bytes[at] ^= 1 << self.draw.within(0, 7);
        }
        if before == packet.bytes {
            packet.bytes[first as usize] ^= 1;
        }
    }

    /// What someone sends who sees the traffic but does not know the secret.
    fn forge(&mut self, seen: &Packet) -> Packet {
        let mut forged = seen.clone();
        forged.tampered = true;
        if self.draw.chance(FORGED_RESETS)
            && let Ok(peek) = peek(&seen.bytes)
        {
            // "I know no such connection", in the name of the one that was spoken to.
            let (path, connection, token) = (peek.path, peek.connection, self.draw.bits());
            (forged.from, forged.to) = (seen.to, seen.from);
            forged.bytes = Reset {
                path,
                connection,
                token,
            }
            .emit()
            .to_vec();
            return forged;
        }
        // A later packet number, another place: everything but the seal is plausible.
        let field = self.draw.pick(&[8usize, 20, 24, 28, 32, 40, 48]);
        let value = self.draw.bits().to_le_bytes();
        for (at, byte) in (field..forged.bytes.len()).zip(value) {
            forged.bytes[at] = byte;
        }
        if forged.bytes == seen.bytes {
            forged.bytes[0] ^= 0x80;
        }
        forged
    }

    fn lane_index(&self, from: usize, to: usize, lane: u16) -> usize {
        (from * self.hosts + to) * usize::from(self.fabric.lanes) + usize::from(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FABRIC: Fabric = Fabric {
        lanes: 4,
        byte_time_1024: 1024,
        delay: Nanos::new(1_000),
        delay_spread: Nanos::new(400),
        slowdowns: [1; 4],
        queue_bytes: 2_500,
        mark_bytes: 1_500,
    };

    fn packet(bytes: usize) -> Packet {
        Packet {
            from: 0,
            to: 1,
            path: 0,
            ce: false,
            tampered: false,
            bytes: vec![7; bytes],
        }
    }

    fn arrivals(network: &mut Network, now: u64, count: usize) -> Vec<(u64, bool)> {
        let mut seen = Vec::new();
        for _ in 0..count {
            network.send(now, packet(1_000), |at, packet| seen.push((at, packet.ce)));
        }
        seen
    }

    #[test]
    fn a_lane_serialises_marks_and_then_drops() {
        let mut network = Network::new(2, FABRIC, Weather::FAIR, Draw::new(1, 1));
        let base = 1_000 + 400 * u64::from(network.lane_of(0, 1, 0)) / 4;
        let seen = arrivals(&mut network, 0, 5);
        let expected = [
            (base + 1_000, false),
            (base + 2_000, false),
            (base + 3_000, true),
        ];
        assert_eq!(seen, expected);
        assert_eq!(network.tally().lost, 2);
    }

    #[test]
    fn a_lane_that_is_down_drops_until_it_is_up_again() {
        let mut network = Network::new(2, FABRIC, Weather::FAIR, Draw::new(1, 1));
        let lane = network.lane_of(0, 1, 0);
        network.begin_drops(0, 1, lane, Dropped::All);
        assert_eq!(arrivals(&mut network, 0, 1), []);
        network.end_drops(0, 1, lane, Dropped::All);
        assert_eq!(arrivals(&mut network, 0, 1).len(), 1);
    }

    #[test]
    fn damage_always_changes_the_datagram() {
        let weather = Weather {
            corrupt: CERTAIN,
            ..Weather::FAIR
        };
        let mut network = Network::new(2, FABRIC, weather, Draw::new(1, 1));
        for now in 0..1_000u64 {
            network.send(now * 10_000, packet(200), |_, packet| {
                assert!(packet.tampered);
                assert_ne!(packet.bytes, vec![7; 200]);
            });
        }
    }
}
