//! Path state and liveness.

mod blocked;
mod nic_pairs;
#[cfg(test)]
mod tests;
mod view;

use crate::wire::PROBE_BYTES_MAX;

use super::{
    LowestRtt, Nanos, PATHS_MAX, PROBE_AFTER, PROBE_INTERVAL_MAX, PathId, PathPolicy, PathSample,
    Rng, RttEstimator, TIMEOUTS_UNTIL_SUSPENDED, Time,
};
pub use view::PathView;
use view::Resend;

/// A path's share of marked packets moves by 1/2^this of the difference with each acknowledgement: 1/16, as
/// DCTCP's α (RFC 8257, section 4.2).
const CE_SHIFT: u32 = 4;

/// One sample is at most this many timeouts: what slows down is followed in a few samples, and a packet that was
/// copied on its way costs little.
const RTT_SAMPLE_TIMEOUTS: u64 = 4;

/// Bytes of a packet that comes through wherever anything does (RFC 8899, section 5.1.2: BASE_PLPMTU). What paths
/// carry is one of two lengths: what was agreed for the connection, and this.
pub const BASE_PACKET_BYTES: u16 = 1_200;

/// Probes as long as data are at least this far apart: those of 9,000 B take 1.4 Gbit/s, whatever the number of paths
/// that an outage has left to probe (pacing as RFC 9002, section 7.7, asks for). At once they would fill a queue that the
/// data behind them needs.
const PROBE_SPACING: Nanos = Nanos::from_micros(50);

/// Where no path carries data, each probe is twice as far from the next one as the one before, up to this: rather than all paths
/// at once, the NIC or what all paths have in common is at fault, and it may be that it has too much to do (as RFC 9002,
/// section 6.2.1, doubles its probe timeout).
const PROBE_SPACING_MAX: Nanos = Nanos::from_millis(10);

/// But all paths are probed within so long: the one that carries data again is found by then, and suspended paths, probed once
/// a second at least, leave time for the others.
const PROBE_ROUND_MAX: Nanos = Nanos::from_millis(500);

/// Whether data is sent on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// Policies choose among these.
    Live,
    /// Packets of [`BASE_PACKET_BYTES`] come through, longer ones do not. Given data, cut that small, only when no
    /// path is live; probed for the longer ones.
    Narrow,
    /// Something sent on it went unanswered. Probed at once; given data only when no path is live.
    Suspect,
    /// Three timeouts, at different times, without an answer. Probed at growing intervals; given no data.
    Suspended,
}

/// How many paths, which timeout floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathSetConfig {
    /// 1..=256.
    pub paths: u16,
    /// The floor of the retransmission timeout: 250 µs where the worker busy-polls or the NIC
    /// stamps time (STELLAR, section 7), 5 ms where a sleeping thread may wake late.
    pub rto_min: Nanos,
    /// Whether the NIC is known to be where it is said to be before it has answered.
    pub validated: bool,
    /// Whether the link delivers what it takes, in order on each path, or says that a path has broken.
    pub reliable: bool,
}

/// One path's state: all that there is of a path but its counters.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// When something sent on it was last known to have arrived.
    answered: Time,
    /// When to probe next, or when the probe under way counts as unanswered.
    probe_at: Time,
    state: PathState,
    /// Timeouts in a row; a suspended path's interval between probes follows from them.
    timeouts: u8,
    probing: bool,
    /// The next probe has [`BASE_PACKET_BYTES`].
    probes_base: bool,
    /// A packet as long as the longest was sent on it, and none that long is known to have arrived since.
    long_sent: bool,
    /// The share of its packets with Congestion Experienced, in 1/256.
    ce_share: u8,
    rtt: RttEstimator,
}

/// 256 paths to each of 1,000 NICs are 8 MiB.
const _: () = assert!(size_of::<Path>() <= 32);

impl Path {
    /// A suspended path's interval between probes: doubled with each.
    fn probe_interval(&self) -> Nanos {
        let unanswered = u32::from(self.timeouts.saturating_sub(TIMEOUTS_UNTIL_SUSPENDED));
        PROBE_AFTER
            .times(1 << unanswered.min(16))
            .min(PROBE_INTERVAL_MAX)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    sent_chunks: u64,
    lost_chunks: u64,
    ce_packets: u64,
    timeouts: u64,
}

/// What there is to tell about a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathReport {
    /// The path.
    pub id: PathId,
    /// Whether it is given data.
    pub state: PathState,
    /// Smoothed round-trip time, once measured.
    pub srtt: Option<Nanos>,
    /// Chunks sent on it, resends included.
    pub sent_chunks: u64,
    /// Chunks sent on it and declared lost.
    pub lost_chunks: u64,
    /// Packets that arrived with Congestion Experienced.
    pub ce_packets: u64,
    /// Timeouts, probes included.
    pub timeouts: u64,
}

/// What the paths to a NIC carry, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Capacity {
    /// No path carries data, or the NIC has not answered.
    Nothing,
    /// Packets of [`BASE_PACKET_BYTES`].
    ShortPackets,
    /// Packets of every length.
    AllPackets,
}

/// The paths between two NICs, or between the NICs of two machines. Owned by a worker, lent to each connection's calls.
#[derive(Debug)]
pub struct PathSet {
    rto_min: Nanos,
    paths: Vec<Path>,
    counters: Vec<Counters>,
    /// Bytes of the largest packet that was sent on any of them, up to [`PROBE_BYTES_MAX`]. A path that carries
    /// smaller ones only is of no use, so nothing smaller answers for it, and a probe is as large (RFC 8899,
    /// section 4.3: a black hole is found by packets of the size in use).
    largest: u16,
    /// As [`PathSetConfig::reliable`].
    reliable: bool,
    /// The paths on which the link takes no chunk now, in order.
    blocked: Vec<PathId>,
    /// Which two NICs each path is between, by number; empty where there are only two.
    nic_pairs: Vec<u8>,
    /// Something sent there has come back: the NIC is where it is said to be (RFC 9000, section 8). Until then one
    /// packet of each connection is under way, so that a spoofed address attracts little traffic.
    validated: bool,
    /// No probe before this moment.
    probe_from: Time,
    /// From one probe to the next.
    probe_spacing: Nanos,
    /// The live paths in order.
    live: Vec<PathId>,
    /// The narrow ones in order: what is left when none is live.
    narrow: Vec<PathId>,
    /// The suspect ones in order: what is left then.
    suspect: Vec<PathId>,
    /// Over all paths: what bounds a round trip on a path not measured yet.
    all: RttEstimator,
    /// Over all paths.
    lowest: LowestRtt,
}

impl PathSet {
    /// Paths that were never used, all live. A count outside 1..=256 is brought within.
    pub fn new(config: &PathSetConfig) -> PathSet {
        Self::between(config, Vec::new())
    }

    /// Paths that were never used; the i-th is between the two NICs that have the number `nic_pairs[i]` together.
    pub(crate) fn between(config: &PathSetConfig, nic_pairs: Vec<u8>) -> PathSet {
        let count = config.paths.clamp(1, PATHS_MAX);
        let path = Path {
            answered: Time::ZERO,
            probe_at: Time::ZERO,
            state: PathState::Live,
            timeouts: 0,
            probing: false,
            probes_base: false,
            long_sent: false,
            ce_share: 0,
            rtt: RttEstimator::default(),
        };
        let mut set = PathSet {
            rto_min: config.rto_min,
            nic_pairs: Vec::new(),
            paths: vec![path; count.into()],
            counters: vec![Counters::default(); count.into()],
            largest: 0,
            reliable: config.reliable,
            blocked: Vec::new(),
            validated: config.validated,
            probe_from: Time::ZERO,
            probe_spacing: PROBE_SPACING,
            live: (0..count).map(|p| PathId(p as u8)).collect(),
            narrow: Vec::with_capacity(count.into()),
            suspect: Vec::with_capacity(count.into()),
            all: RttEstimator::default(),
            lowest: LowestRtt::default(),
        };
        set.set_nic_pairs(nic_pairs);
        set
    }

    /// Whether anything sent to the NIC has come back.
    #[inline]
    pub fn is_validated(&self) -> bool {
        self.validated
    }

    /// Something sent to the NIC has come back.
    #[inline]
    pub fn validate(&mut self) {
        self.validated = true;
    }

    /// What connections may send. When one of them finds out that it is more, the others send, too.
    #[inline]
    pub fn capacity(&self) -> Capacity {
        match self.packet_bytes_max() {
            _ if !self.validated || self.is_down() => Capacity::Nothing,
            Some(_) => Capacity::ShortPackets,
            None => Capacity::AllPackets,
        }
    }

    /// How many paths there are.
    pub fn count(&self) -> usize {
        self.paths.len()
    }

    /// How many of them are live.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Whether nothing can be sent: every path is suspended. The connections share the probes' answers: when
    /// this ends, all of them may send again.
    pub fn is_down(&self) -> bool {
        self.candidates().is_empty()
    }

    /// The paths that are given data: the live ones; the narrow ones when none is live; then the suspect ones.
    #[inline]
    fn candidates(&self) -> &[PathId] {
        match (&self.live[..], &self.narrow[..]) {
            ([], []) => &self.suspect,
            ([], narrow) => narrow,
            (live, _) => live,
        }
    }

    /// One of the paths that are given data, another one at another time.
    pub fn any_candidate(&self, now: Time) -> Option<PathId> {
        let candidates = self.candidates();
        let at = (now.as_nanos() >> 20).checked_rem(candidates.len() as u64)?;
        candidates.get(at as usize).copied()
    }

    /// How long a packet may be that is sent now, bytes; no limit of the paths when absent.
    pub fn packet_bytes_max(&self) -> Option<u16> {
        (self.live.is_empty() && !self.narrow.is_empty()).then_some(BASE_PACKET_BYTES)
    }

    /// A path for a control packet: those that are given data in turns, by its number; all where none is.
    pub fn for_control(&self, number: u64) -> PathId {
        match self.candidates() {
            [] => PathId((number % self.count() as u64) as u8),
            paths => paths[(number % paths.len() as u64) as usize],
        }
    }

    /// Whether data may be sent on `path`.
    #[inline]
    pub fn is_candidate(&self, path: PathId) -> bool {
        if !self.takes_chunks(path) {
            return false;
        }
        match self.paths.get(usize::from(path.0)).map(|path| path.state) {
            Some(PathState::Live) => true,
            Some(PathState::Narrow) => self.live.is_empty(),
            Some(PathState::Suspect) => self.live.is_empty() && self.narrow.is_empty(),
            Some(PathState::Suspended) | None => false,
        }
    }

    /// The paths as a connection sees them that has `in_flight` bytes on each.
    #[inline]
    pub fn view<'a>(&'a self, now: Time, in_flight: &'a [u32]) -> PathView<'a> {
        PathView {
            set: self,
            now,
            live: self.candidates(),
            in_flight,
            resend: None,
        }
    }

    /// The path of the next chunk. `None` when every path is suspended, so that only probes are sent, or blocked.
    #[inline]
    pub fn choose(
        &self,
        policy: &mut impl PathPolicy,
        now: Time,
        in_flight: &[u32],
        rng: &mut Rng,
    ) -> Option<PathId> {
        let view = self.view(now, in_flight);
        if !self.blocked.is_empty() {
            return self.choose_where(|_| true, policy, view, rng);
        }
        if view.live.is_empty() {
            return None;
        }
        Some(policy.choose(&view, rng))
    }

    /// The same among the paths that `allows` and the link take.
    fn choose_where(
        &self,
        allows: impl Fn(PathId) -> bool,
        policy: &mut impl PathPolicy,
        view: PathView<'_>,
        rng: &mut Rng,
    ) -> Option<PathId> {
        let mut paths = [PathId(0); PATHS_MAX as usize];
        let mut count = 0;
        for &path in self.candidates() {
            if self.takes_chunks(path) && allows(path) {
                paths[count] = path;
                count += 1;
            }
        }
        let live = &paths[..count];
        (count > 0).then(|| policy.choose(&PathView { live, ..view }, rng))
    }

    /// The path for a chunk that was sent on `lost` at `sent_at` and is declared lost: another one, and
    /// one that was answered since where there is one. A path that died with `lost` was not, so one
    /// resend is enough whatever share of the paths has died.
    pub fn choose_again(
        &self,
        policy: &mut impl PathPolicy,
        lost: PathId,
        sent_at: Time,
        now: Time,
        in_flight: &[u32],
        rng: &mut Rng,
    ) -> Option<PathId> {
        for answered_after in [Some(sent_at), None] {
            let resend = Resend {
                lost,
                answered_after,
            };
            let view = PathView {
                resend: Some(resend),
                ..self.view(now, in_flight)
            };
            let allows = |path| resend.allows(self, path);
            if let Some(path) = self.choose_where(allows, policy, view, rng) {
                return Some(path);
            }
        }
        self.choose(policy, now, in_flight, rng)
    }

    /// When something sent on `path` was last known to have arrived.
    pub(super) fn answered(&self, path: PathId) -> Time {
        self.paths[path.0 as usize].answered
    }

    /// The round-trip time of `path`.
    #[inline]
    pub(super) fn rtt(&self, path: PathId) -> RttEstimator {
        self.paths[path.0 as usize].rtt
    }

    /// The share of marked packets of `path`, in 1/256.
    pub(super) fn ce_share(&self, path: PathId) -> u8 {
        self.paths[path.0 as usize].ce_share
    }

    /// The lowest round-trip time of the last 10 to 20 s on any path.
    pub fn base_rtt(&self) -> Option<Nanos> {
        self.lowest.get()
    }

    /// Whether `path` exists in this set.
    pub fn contains(&self, path: PathId) -> bool {
        (path.0 as usize) < self.paths.len()
    }

    /// A chunk was sent on `path`; the largest of its packets has `bytes` bytes.
    #[inline(always)]
    pub fn on_sent(&mut self, path: PathId, bytes: u32) {
        self.counters[path.0 as usize].sent_chunks += 1;
        let bytes = bytes.min(PROBE_BYTES_MAX as u32) as u16;
        self.largest = self.largest.max(bytes);
        self.paths[path.0 as usize].long_sent |= bytes == self.largest;
    }

    /// The peer has seen what was sent on the sample's path; the largest packet had `largest` bytes. Only as large a
    /// one as the path is to carry shows that it is alive.
    #[inline]
    pub fn on_answer(&mut self, now: Time, sample: &PathSample, largest: u16) {
        let index = sample.path.0 as usize;
        let ce = u32::from(sample.ce);
        self.counters[index].ce_packets += u64::from(sample.ce);
        let state = &mut self.paths[index];
        if let Some(rtt) = sample.rtt {
            state.rtt.update(rtt);
            self.all.update(rtt);
            self.lowest.update(now, rtt);
        }
        if ce > 0 || state.ce_share > 0 {
            let share = (ce * 255 / sample.packets.max(1)).min(255);
            let old = u32::from(state.ce_share);
            // Rounded towards the sample, so that it gets there.
            let up = (1 << CE_SHIFT) - 1;
            let step = |by: u32| (by + up) >> CE_SHIFT;
            state.ce_share = match share.checked_sub(old) {
                Some(above) => old + step(above),
                None => old - step(old - share),
            } as u8;
        }
        let before = state.state;
        let after = match before {
            _ if largest >= self.largest => PathState::Live,
            // Nothing longer is under way: what arrived is all that there was to answer.
            PathState::Live if !state.long_sent => PathState::Live,
            PathState::Suspended | PathState::Narrow if largest >= BASE_PACKET_BYTES => {
                PathState::Narrow
            }
            _ => return,
        };
        state.answered = now;
        state.long_sent &= largest < self.largest;
        if after == PathState::Live {
            state.timeouts = 0;
        }
        if after != before {
            self.revive(now, index, after);
        }
    }

    /// Something has come back of a path that was given up, or more than before.
    fn revive(&mut self, now: Time, index: usize, to: PathState) {
        let outage = match to {
            PathState::Live => self.live.is_empty(),
            _ => self.is_down(),
        };
        let path = &mut self.paths[index];
        path.state = to;
        path.probing = false;
        path.probes_base = false;
        self.probe_spacing = PROBE_SPACING;
        self.probe_from = self.probe_from.min(now);
        if outage {
            // The first answer after a total outage: ask all others at once rather than when
            // their intervals, grown during the outage, have passed.
            for path in &mut self.paths {
                if matches!(path.state, PathState::Suspended | PathState::Narrow) {
                    path.probe_at = now;
                    path.timeouts = TIMEOUTS_UNTIL_SUSPENDED;
                }
            }
        }
        self.list();
    }

    /// A chunk sent on `path` at `sent_at` is declared lost. Suspicious only when nothing sent on that
    /// path was answered since, and counted once: from then on the path's probes tell whether it is dead, each
    /// a timeout after the other.
    pub fn on_loss(&mut self, now: Time, path: PathId, sent_at: Time) {
        self.counters[path.0 as usize].lost_chunks += 1;
        let state = self.paths[path.0 as usize];
        let in_use = matches!(state.state, PathState::Live | PathState::Narrow);
        if in_use && state.answered <= sent_at {
            self.unanswered(now, path);
            self.suspect_pair_if_silent(now, path, sent_at);
        }
    }

    /// Something sent on `path` went unanswered.
    fn unanswered(&mut self, now: Time, path: PathId) {
        let index = path.0 as usize;
        self.counters[index].timeouts += 1;
        let path = &mut self.paths[index];
        path.timeouts = path.timeouts.saturating_add(1);
        match path.state {
            PathState::Live => {
                path.state = PathState::Suspect;
                path.probe_at = now;
                path.probing = false;
                self.list();
            }
            // Its probes are asked for at once: only one answer is missing yet.
            PathState::Narrow => {
                path.state = PathState::Suspended;
                path.timeouts = TIMEOUTS_UNTIL_SUSPENDED;
                path.probe_at = now;
                self.probe_spacing = PROBE_SPACING;
                self.list();
            }
            PathState::Suspect if path.timeouts >= TIMEOUTS_UNTIL_SUSPENDED => {
                path.state = PathState::Suspended;
                path.probing = false;
                path.probes_base = false;
                path.probe_at = now + path.probe_interval();
                let rto = self.rto(PathId(index as u8), Nanos::ZERO);
                self.suspect_all_if_silent(now, rto);
                self.list();
            }
            PathState::Suspect | PathState::Suspended => {}
        }
    }

    /// Where nothing has come back on any live path for a timeout, they are all probed: a connection that sends little would
    /// find out about each by data of its own. What comes back on narrow ones says nothing of long packets.
    fn suspect_all_if_silent(&mut self, now: Time, rto: Nanos) {
        let mut live = self
            .live
            .iter()
            .map(|path| &self.paths[usize::from(path.0)]);
        if live.any(|path| now - path.answered < rto) {
            return;
        }
        for path in &mut self.paths {
            if path.state == PathState::Live {
                path.state = PathState::Suspect;
                path.probe_at = now;
                path.probing = false;
            }
        }
    }

    /// The next path to send a probe on, if one is due, and how long the probe is, bytes: as the largest packet that
    /// the path is to carry. Where that goes unanswered, a shorter one is sent next. Counts the probe as sent.
    pub fn poll_probe(&mut self, now: Time) -> Option<(PathId, u16)> {
        let largest = self.largest;
        if self.live.len() == self.paths.len() || now < self.probe_from {
            return None;
        }
        while let Some(index) = self.first_to_probe(now) {
            let path = &mut self.paths[index];
            if path.probe_at > now {
                break;
            }
            if path.state == PathState::Suspect && path.probing {
                path.probing = false;
                self.unanswered(now, PathId(index as u8));
                if self.paths[index].state == PathState::Suspended {
                    continue;
                }
            }
            let rto = self.rto(PathId(index as u8), Nanos::ZERO);
            let path = &mut self.paths[index];
            path.probing = true;
            let is_long = largest > BASE_PACKET_BYTES;
            if path.state == PathState::Suspended && is_long {
                path.probes_base = !path.probes_base;
                if path.probes_base {
                    // The shorter one goes next.
                    self.space_probes(now);
                    return Some((PathId(index as u8), largest));
                }
            }
            let base_goes = path.state == PathState::Suspended && is_long;
            match path.state {
                PathState::Suspended | PathState::Narrow => {
                    path.timeouts = path.timeouts.saturating_add(1);
                    path.probe_at = now + path.probe_interval();
                }
                PathState::Live | PathState::Suspect => path.probe_at = now + rto,
            }
            let bytes = if base_goes {
                BASE_PACKET_BYTES
            } else {
                self.space_probes(now);
                largest
            };
            return Some((PathId(index as u8), bytes));
        }
        None
    }

    /// The paths that are probed: those that are not live, where the link takes anything.
    fn probed(&self) -> impl DoubleEndedIterator<Item = (usize, &Path)> + Clone {
        let paths = self.paths.iter().enumerate();
        paths.filter(|(index, path)| {
            path.state != PathState::Live && self.takes_chunks(PathId(*index as u8))
        })
    }

    /// The path to probe first: the one of which most probes went unanswered, once it is due, so that one soon tells whether
    /// short packets come through; then the others in turns.
    fn first_to_probe(&self, now: Time) -> Option<usize> {
        let waiting = self.probed();
        let first = waiting
            .clone()
            .rev()
            .max_by_key(|(_, path)| path.timeouts)?;
        match first.1.probe_at <= now {
            true => Some(first.0),
            false => Some(waiting.min_by_key(|(_, path)| path.probe_at)?.0),
        }
    }

    /// The next probe waits for a while.
    fn space_probes(&mut self, now: Time) {
        self.probe_from = now + self.probe_spacing;
        if self.live.is_empty() && self.narrow.is_empty() {
            let round = PROBE_ROUND_MAX.get() / self.paths.len() as u64;
            let max = PROBE_SPACING_MAX.min(Nanos::new(round));
            self.probe_spacing = self.probe_spacing.times(2).min(max);
        }
    }

    /// When [`PathSet::poll_probe`] has something to do next.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.live.len() == self.paths.len() {
            return None;
        }
        self.next_probe()
    }

    #[cold]
    fn next_probe(&self) -> Option<Time> {
        let first = self.probed().map(|(_, path)| path.probe_at).min()?;
        Some(first.max(self.probe_from))
    }

    /// The retransmission timeout of something sent on `path` whose answer the peer may put off for `put_off`:
    /// max(rtoMin, srtt + 4·rttvar + put_off), as RFC 9002, section 6.2.1. Round trips are measured without
    /// that time.
    #[inline]
    pub fn rto(&self, path: PathId, put_off: Nanos) -> Nanos {
        self.round_trip_bound(path)
            .map_or_else(|| self.rto_min.times(4), |bound| bound + put_off)
            .max(self.rto_min)
    }

    /// A round trip measured on `path`, at most four timeouts: a packet that the network copied
    /// and delivers much later is echoed too, and must not put the path's timeout off for long.
    #[inline]
    pub fn bounded(&self, path: PathId, rtt: Nanos) -> Nanos {
        let most = self
            .round_trip_bound(path)
            .map(|bound| bound.max(self.rto_min));
        most.map_or(rtt, |most| rtt.min(most.times(RTT_SAMPLE_TIMEOUTS)))
    }

    /// Whether little is known of `path`, which was chosen: it has never been measured, or none is live.
    #[inline(always)]
    pub fn is_unsure(&self, path: PathId) -> bool {
        self.live.is_empty() || self.rtt(path).smoothed().is_none()
    }

    /// What a round trip on `path` rarely exceeds, once anything was measured: the larger of the
    /// path's own bound and that over all paths.
    #[inline]
    pub fn round_trip_bound(&self, path: PathId) -> Option<Nanos> {
        self.all.bound().max(self.rtt(path).bound())
    }

    /// The smoothed round-trip time over all paths.
    pub fn srtt(&self) -> Option<Nanos> {
        self.all.smoothed()
    }

    /// One report per path.
    pub fn report(&self) -> impl Iterator<Item = PathReport> + '_ {
        (0..self.paths.len()).map(|index| PathReport {
            id: PathId(index as u8),
            state: self.paths[index].state,
            srtt: self.paths[index].rtt.smoothed(),
            sent_chunks: self.counters[index].sent_chunks,
            lost_chunks: self.counters[index].lost_chunks,
            ce_packets: self.counters[index].ce_packets,
            timeouts: self.counters[index].timeouts,
        })
    }

    fn list(&mut self) {
        self.live.clear();
        self.narrow.clear();
        self.suspect.clear();
        for (index, path) in self.paths.iter().enumerate() {
            match path.state {
                PathState::Live => self.live.push(PathId(index as u8)),
                PathState::Narrow => self.narrow.push(PathId(index as u8)),
                PathState::Suspect => self.suspect.push(PathId(index as u8)),
                PathState::Suspended => {}
            }
        }
    }
}
