//! Path state and liveness.

use crate::wire::{Echo, PROBE_BYTES_MAX};

use super::{
    Nanos, PATHS_MAX, PROBE_AFTER, PROBE_INTERVAL_MAX, PathId, PathPolicy, PathView, PolicyKind,
    Rng, RttEstimator, TIMEOUTS_UNTIL_SUSPENDED, Time,
};

/// Draws of the policy for a resend before the path that was answered last is taken. Where a
/// quarter of the paths has died, eight draws find none of the others once in 65,000 times.
const RESEND_DRAWS: usize = 8;

/// Bytes of a packet that comes through wherever anything does (RFC 8899, section 5.1.2: BASE_PLPMTU). What paths
/// carry is one of two lengths: what was agreed for the connection, and this.
pub const BASE_PACKET_BYTES: u16 = 1_200;

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
    /// Three timeouts without an answer. Probed at growing intervals; given no data.
    Suspended,
}

/// How many paths, which policy, which timeout floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathSetConfig {
    /// 1..=256.
    pub paths: u16,
    /// Who chooses.
    pub policy: PolicyKind,
    /// The floor of the retransmission timeout: 250 µs where the worker busy-polls or the NIC
    /// stamps time (STELLAR, section 7), 5 ms where a sleeping thread may wake late.
    pub rto_min: Nanos,
}

/// One path's hot state; 32 B at most.
#[derive(Clone, Copy, Debug)]
struct Path {
    /// When something sent on it was last known to have arrived.
    answered: Time,
    /// When to probe next, or when the probe under way counts as unanswered.
    probe_at: Time,
    /// The interval after the probe under way.
    interval: Nanos,
    state: PathState,
    timeouts: u8,
    probing: bool,
    /// The next probe has [`BASE_PACKET_BYTES`].
    probes_base: bool,
    /// A packet as long as the longest was sent on it, and none that long is known to have arrived since.
    long_sent: bool,
}

const _: () = assert!(size_of::<Path>() + size_of::<RttEstimator>() <= 40);

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

/// The paths between two NICs. Owned by a worker, lent to each connection's calls.
#[derive(Debug)]
pub struct PathSet {
    policy: Box<dyn PathPolicy>,
    rto_min: Nanos,
    paths: Vec<Path>,
    rtt: Vec<RttEstimator>,
    counters: Vec<Counters>,
    /// Bytes of the largest packet that was sent on any of them, up to [`PROBE_BYTES_MAX`]. A path that carries
    /// smaller ones only is of no use, so nothing smaller answers for it, and a probe is as large (RFC 8899,
    /// section 4.3: a black hole is found by packets of the size in use).
    largest: u16,
    /// The live paths in order.
    live: Vec<PathId>,
    /// The narrow ones in order: what is left when none is live.
    narrow: Vec<PathId>,
    /// The suspect ones in order: what is left then.
    suspect: Vec<PathId>,
    /// Over all paths: what bounds a round trip on a path not measured yet.
    all: RttEstimator,
}

impl PathSet {
    /// Paths that were never used, all live. A count outside 1..=256 is brought within.
    pub fn new(config: &PathSetConfig) -> PathSet {
        let count = config.paths.clamp(1, PATHS_MAX);
        let path = Path {
            answered: Time::ZERO,
            probe_at: Time::ZERO,
            interval: Nanos::ZERO,
            state: PathState::Live,
            timeouts: 0,
            probing: false,
            probes_base: false,
            long_sent: false,
        };
        PathSet {
            policy: config.policy.build(),
            rto_min: config.rto_min,
            paths: vec![path; count.into()],
            rtt: vec![RttEstimator::default(); count.into()],
            counters: vec![Counters::default(); count.into()],
            largest: 0,
            live: (0..count).map(|p| PathId(p as u8)).collect(),
            narrow: Vec::with_capacity(count.into()),
            suspect: Vec::with_capacity(count.into()),
            all: RttEstimator::default(),
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

    /// Whether nothing can be sent: every path is suspended. Whoever lends the set to several
    /// connections looks at all of them again when this ends: what one's probe has found out, the
    /// others wait for.
    pub fn is_dark(&self) -> bool {
        self.candidates().is_empty()
    }

    /// The paths that are given data.
    fn candidates(&self) -> &[PathId] {
        let mut lists = [&self.live, &self.narrow, &self.suspect].into_iter();
        lists.find(|list| !list.is_empty()).map_or(&[], |list| list)
    }

    /// How long a packet may be that is sent now, bytes; no limit of the paths when absent.
    pub fn packet_bytes_max(&self) -> Option<u16> {
        (self.live.is_empty() && !self.narrow.is_empty()).then_some(BASE_PACKET_BYTES)
    }

    /// Replaces the policy by one that is not listed in [`PolicyKind`].
    pub fn set_policy(&mut self, policy: Box<dyn PathPolicy>) {
        self.policy = policy;
    }

    /// The path of the next chunk; not `avoid` when there is another. `None` when every path is
    /// suspended: then only probes are sent.
    pub fn choose(&mut self, avoid: Option<PathId>, rng: &mut Rng) -> Option<PathId> {
        let mut lists = [&self.live, &self.narrow, &self.suspect].into_iter();
        let candidates = lists.find(|list| !list.is_empty())?;
        let view = PathView::new(candidates, &self.rtt);
        let chosen = self.policy.choose(view, rng);
        if avoid != Some(chosen) || candidates.len() == 1 {
            return Some(chosen);
        }
        // A draw over the others, even: the one after the avoided path, a random distance on.
        let at = candidates
            .iter()
            .position(|&path| path == chosen)
            .unwrap_or(0);
        let draw = u64::from(rand_core::Rng::next_u32(rng)) * (candidates.len() as u64 - 1);
        let distance = 1 + (draw >> 32) as usize;
        Some(candidates[(at + distance) % candidates.len()])
    }

    /// The path for a chunk that was sent on `lost` at `sent_at` and is taken for lost: another
    /// one, and of the policy's draws the first that was answered since. A path that died with
    /// `lost` was not, so one resend is enough whatever share of the paths has died.
    pub fn choose_again(&mut self, lost: PathId, sent_at: Time, rng: &mut Rng) -> Option<PathId> {
        let first = self.choose(Some(lost), rng)?;
        let mut chosen = first;
        for _ in 1..RESEND_DRAWS {
            if self.answered(chosen) > sent_at {
                return Some(chosen);
            }
            chosen = self.choose(Some(lost), rng)?;
        }
        let others = self.candidates().iter().copied();
        let others = others.filter(|&path| path != lost);
        let last = others.max_by_key(|&path| self.answered(path));
        Some(
            last.filter(|&path| self.answered(path) > sent_at)
                .unwrap_or(first),
        )
    }

    /// When something sent on `path` was last known to have arrived.
    fn answered(&self, path: PathId) -> Time {
        self.paths[path.0 as usize].answered
    }

    /// Whether `path` exists in this set.
    pub fn contains(&self, path: PathId) -> bool {
        (path.0 as usize) < self.paths.len()
    }

    /// A chunk was sent on `path`; the largest of its packets has `bytes` bytes.
    pub fn on_sent(&mut self, path: PathId, bytes: u32) {
        self.counters[path.0 as usize].sent_chunks += 1;
        let bytes = bytes.min(PROBE_BYTES_MAX as u32) as u16;
        self.largest = self.largest.max(bytes);
        self.paths[path.0 as usize].long_sent |= bytes == self.largest;
    }

    /// The peer has seen packets that were sent on `echo`'s path, whose round trip took `rtt`. Only as large a
    /// packet as the path is to carry shows that it is alive.
    pub fn on_answer(&mut self, now: Time, echo: &Echo, rtt: Option<Nanos>) {
        let index = echo.path.0 as usize;
        self.counters[index].ce_packets += u64::from(echo.ce);
        if let Some(rtt) = rtt {
            self.rtt[index].update(rtt);
            self.all.update(rtt);
        }
        let before = self.paths[index].state;
        let after = match before {
            _ if echo.largest >= self.largest => PathState::Live,
            // Nothing longer is under way: what arrived is all that there was to answer.
            PathState::Live if !self.paths[index].long_sent => PathState::Live,
            PathState::Suspended | PathState::Narrow if echo.largest >= BASE_PACKET_BYTES => {
                PathState::Narrow
            }
            _ => return,
        };
        let outage = match after {
            PathState::Live => self.live.is_empty(),
            _ => self.is_dark(),
        };
        let path = &mut self.paths[index];
        path.answered = now;
        path.timeouts = 0;
        path.long_sent &= echo.largest < self.largest;
        if after == before {
            return;
        }
        path.state = after;
        path.probing = false;
        if outage {
            // The first answer after a total outage: ask all others at once rather than when
            // their intervals, grown during the outage, have passed.
            for path in &mut self.paths {
                if matches!(path.state, PathState::Suspended | PathState::Narrow) {
                    path.probe_at = now;
                    path.interval = PROBE_AFTER;
                }
            }
        }
        self.list();
    }

    /// A chunk sent on `path` at `sent_at` is taken for lost. Suspicious only when nothing sent on
    /// that path was answered since.
    pub fn on_loss(&mut self, now: Time, path: PathId, sent_at: Time) {
        self.counters[path.0 as usize].lost_chunks += 1;
        if self.paths[path.0 as usize].answered <= sent_at {
            self.unanswered(now, path);
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
            PathState::Suspect | PathState::Narrow if path.timeouts >= TIMEOUTS_UNTIL_SUSPENDED => {
                path.state = PathState::Suspended;
                path.probing = false;
                path.probes_base = false;
                path.interval = PROBE_AFTER;
                path.probe_at = now + PROBE_AFTER;
                self.list();
            }
            PathState::Suspect | PathState::Narrow | PathState::Suspended => {}
        }
    }

    /// The next path to send a probe on, if one is due, and how long the probe is, bytes: as the largest packet that
    /// the path is to carry. Where that goes unanswered, a shorter one is sent with it. Counts the probe as sent.
    pub fn poll_probe(&mut self, now: Time) -> Option<(PathId, u16)> {
        let largest = self.largest;
        if self.live.len() == self.paths.len() {
            return None;
        }
        for index in 0..self.paths.len() {
            if self.paths[index].state == PathState::Live || self.paths[index].probe_at > now {
                continue;
            }
            let path = PathId(index as u8);
            if self.paths[index].state == PathState::Suspect && self.paths[index].probing {
                self.paths[index].probing = false;
                self.unanswered(now, path);
                if self.paths[index].state == PathState::Suspended {
                    continue;
                }
            }
            let rto = self.rto(path, Nanos::ZERO);
            let path_state = &mut self.paths[index];
            path_state.probing = true;
            if path_state.state == PathState::Suspended && largest > BASE_PACKET_BYTES {
                path_state.probes_base = !path_state.probes_base;
                if path_state.probes_base {
                    // The shorter one goes next, at once.
                    return Some((path, largest));
                }
            }
            let base_goes = path_state.state == PathState::Suspended && largest > BASE_PACKET_BYTES;
            match path_state.state {
                PathState::Suspended | PathState::Narrow => {
                    path_state.interval = path_state.interval.times(2).min(PROBE_INTERVAL_MAX);
                    path_state.probe_at = now + path_state.interval;
                }
                PathState::Live | PathState::Suspect => path_state.probe_at = now + rto,
            }
            let bytes = if base_goes {
                BASE_PACKET_BYTES
            } else {
                largest
            };
            return Some((path, bytes));
        }
        None
    }

    /// When [`PathSet::poll_probe`] has something to do next.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.live.len() == self.paths.len() {
            return None;
        }
        let waiting = self
            .paths
            .iter()
            .filter(|path| path.state != PathState::Live);
        waiting.map(|path| path.probe_at).min()
    }

    /// The retransmission timeout of something sent on `path` whose answer the peer may put off for `put_off`:
    /// max(rtoMin, srtt + 4·rttvar + put_off), as RFC 9002, section 6.2.1. Round trips are measured without
    /// that time.
    pub fn rto(&self, path: PathId, put_off: Nanos) -> Nanos {
        self.round_trip_bound(path)
            .map_or(self.rto_min.times(4), |bound| bound + put_off)
            .max(self.rto_min)
    }

    /// Whether little is known of `path`, which was chosen: it has never been measured, or none is live.
    pub fn is_unsure(&self, path: PathId) -> bool {
        self.live.is_empty() || self.rtt[path.0 as usize].smoothed().is_none()
    }

    /// What a round trip on `path` rarely exceeds, once anything was measured: the larger of the
    /// path's own bound and that over all paths.
    pub fn round_trip_bound(&self, path: PathId) -> Option<Nanos> {
        self.all.bound().max(self.rtt[path.0 as usize].bound())
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
            srtt: self.rtt[index].smoothed(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn set(paths: u16) -> PathSet {
        let rto_min = Nanos::from_millis(5);
        PathSet::new(&PathSetConfig {
            paths,
            policy: PolicyKind::Oblivious,
            rto_min,
        })
    }

    fn answer(path: PathId) -> Echo {
        Echo {
            path,
            packets: 1,
            ..Echo::default()
        }
    }

    fn ms(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000)
    }

    #[test]
    fn a_path_with_three_timeouts_is_suspended_and_probed_after_10_ms_doubling_to_1_s() {
        let mut set = set(4);
        let path = PathId(2);
        set.on_answer(ms(0), &answer(path), Some(Nanos::from_micros(50)));
        set.on_loss(ms(1), path, ms(0) + Nanos::new(1));
        assert_eq!(set.live(), 3);
        assert_eq!(
            set.poll_probe(ms(1)),
            Some((path, 0)),
            "a suspect path is probed at once"
        );
        assert_eq!(set.poll_probe(ms(1)), None);
        assert_eq!(
            set.poll_probe(ms(6)),
            Some((path, 0)),
            "and again when that goes unanswered"
        );
        assert_eq!(set.poll_probe(ms(11)), None, "the third timeout suspends");
        assert_eq!(
            set.report().nth(2).map(|r| r.state),
            Some(PathState::Suspended)
        );
        let mut at = ms(21);
        let mut interval = Nanos::from_millis(20);
        for _ in 0..10 {
            assert_eq!(set.poll_timeout(), Some(at));
            assert_eq!(set.poll_probe(at), Some((path, 0)));
            at = at + interval;
            interval = interval.times(2).min(PROBE_INTERVAL_MAX);
        }
        set.on_answer(at, &answer(path), None);
        assert_eq!((set.live(), set.poll_timeout()), (4, None));
    }

    #[test]
    fn a_loss_on_a_path_that_answered_since_is_no_suspicion() {
        let mut set = set(2);
        set.on_answer(ms(5), &answer(PathId(0)), None);
        set.on_loss(ms(6), PathId(0), ms(4));
        assert_eq!(set.live(), 2);
    }

    #[test]
    fn the_first_answer_after_a_total_outage_has_all_paths_probed_at_once() {
        let mut set = set(3);
        for path in 0..3 {
            for _ in 0..3 {
                set.on_loss(ms(1), PathId(path), ms(1));
            }
        }
        let mut rng = Rng::new(1);
        assert_eq!(set.choose(None, &mut rng), None);
        assert!(set.is_dark());
        for at in [11, 31, 71, 151] {
            while set.poll_probe(ms(at)).is_some() {}
        }
        set.on_answer(ms(152), &answer(PathId(1)), None);
        assert!(!set.is_dark());
        assert_eq!(set.poll_probe(ms(152)), Some((PathId(0), 0)));
        assert_eq!(set.poll_probe(ms(152)), Some((PathId(2), 0)));
    }

    #[test]
    fn a_resend_goes_to_a_path_that_was_answered_since_the_chunk_was_sent() {
        let mut set = set(128);
        let mut rng = Rng::new(7);
        for path in 0..128 {
            set.on_answer(ms(1), &answer(PathId(path)), None);
        }
        // Only these two still answer, and nothing was lost on the others yet.
        set.on_answer(ms(5), &answer(PathId(9)), None);
        set.on_answer(ms(6), &answer(PathId(77)), None);
        for _ in 0..100 {
            let again = set.choose_again(PathId(77), ms(4), &mut rng);
            assert_eq!(again, Some(PathId(9)));
        }
        let unproven = set.choose_again(PathId(77), ms(8), &mut rng);
        assert!(unproven.is_some_and(|path| path != PathId(77)));
    }

    #[test]
    fn only_a_packet_as_large_as_what_was_sent_answers_for_a_path() {
        let mut set = set(2);
        let path = PathId(0);
        set.on_sent(path, 1_500);
        set.on_sent(path, 100);
        let small = Echo {
            largest: 1_499,
            ..answer(path)
        };
        set.on_answer(ms(2), &small, None);
        set.on_loss(ms(3), path, ms(1));
        assert_eq!(set.live(), 1, "a small answer proves nothing");
        assert_eq!(set.poll_probe(ms(3)), Some((path, 1_500)));
        set.on_answer(ms(4), &small, None);
        assert_eq!(set.live(), 1);
        let large = Echo {
            largest: 1_500,
            ..small
        };
        set.on_answer(ms(5), &large, None);
        assert_eq!(set.live(), 2);
    }

    #[test]
    fn the_avoided_path_is_never_chosen_when_there_is_another() {
        let mut set = set(2);
        let mut rng = Rng::new(7);
        for _ in 0..100 {
            assert_eq!(set.choose(Some(PathId(0)), &mut rng), Some(PathId(1)));
        }
    }

    #[test]
    fn where_only_short_packets_are_sent_short_ones_answer() {
        let mut set = set(2);
        let path = PathId(0);
        let echo = |largest| Echo {
            largest,
            ..answer(path)
        };
        set.on_sent(path, 1_500);
        set.on_answer(ms(1), &echo(1_500), None);
        set.on_sent(path, 100);
        set.on_answer(ms(3), &echo(100), None);
        set.on_loss(ms(4), path, ms(2));
        assert_eq!(set.live(), 2);
    }

    #[test]
    fn paths_that_carry_short_packets_only_are_used_when_no_other_is_left() {
        let mut set = set(2);
        for path in [PathId(0), PathId(1)] {
            set.on_sent(path, 8_960);
            for _ in 0..3 {
                set.on_loss(ms(1), path, ms(1));
            }
        }
        assert!(set.is_dark());
        assert_eq!(set.packet_bytes_max(), None);
        let probes: Vec<_> = std::iter::from_fn(|| set.poll_probe(ms(11))).collect();
        let (base, long) = (BASE_PACKET_BYTES, 8_960);
        let both = [PathId(0), PathId(1)].map(|path| [(path, long), (path, base)]);
        assert_eq!(probes, both.concat());
        let echo = |path, largest| Echo {
            largest,
            ..answer(path)
        };
        set.on_answer(ms(12), &echo(PathId(0), base), None);
        assert_eq!(set.packet_bytes_max(), Some(base));
        let mut rng = Rng::new(1);
        assert_eq!(set.choose(None, &mut rng), Some(PathId(0)));
        // The other one carries long packets again.
        set.on_answer(ms(13), &echo(PathId(1), long), None);
        assert_eq!(set.packet_bytes_max(), None);
        assert_eq!(set.choose(None, &mut rng), Some(PathId(1)));
        assert_eq!(set.poll_probe(ms(13)), Some((PathId(0), long)));
        set.on_answer(ms(14), &echo(PathId(0), long), None);
        assert_eq!(set.live(), 2);
    }
}
