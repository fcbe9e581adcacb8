//! Hopper: one path until another is clearly better (Nosrati and Ghaderi, "Predictive Load Balancing for RDMA
//! Traffic").
//!
//! Section and table numbers below are that paper's. Round-trip times are per acknowledgement. Probes are control
//! packets beside the data, as in the paper's design (section 3.2).
//!
//! The base RTT is what packets take on a path that carries nothing but this connection. In the paper that is the
//! network's own, since a sender has one bandwidth-delay product in flight at most (section 4.1.1). Here a window may
//! queue as well, so the base RTT is the lowest of the last 10 to 20 s over all paths of the two NICs, and what
//! the congestion control lets a connection queue ([`CongestionKind::queueing`]). Without that a connection leaves every
//! path for its own queue.
//!
//! A window that has grown too large queues more than that on every path. So a path is kept until one window was
//! acknowledged there: only then has the congestion control had a round trip on that path, and made the window smaller if
//! it must. Otherwise each switch to an empty path looks like an empty network, and the window never shrinks.
//!
//! [`CongestionKind::queueing`]: crate::congestion::CongestionKind::queueing

use super::{Nanos, PathId, PathPolicy, PathSample, PathView, Rng, Time};
use crate::congestion::CongestionKind;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Paths probed at a time: the power of two choices (section 3.2, "Probe Initiation").
const PROBES: usize = 2;
/// Probes remembered. Two in an epoch of one RTT at least, kept for 4 RTT (Table 1), are 10; a longer
/// `ttl_probe` remembers the newest of these.
const MEMORY: usize = 16;
/// Draws for a path that was not explored of late. Where half of the paths were, sixteen draws find none of
/// the others once in 65,000 times.
const DRAWS: usize = 16;
/// The estimate of the last packet's RTT is at most this many times the average: ours, so that a trend over two
/// close samples stops nothing for long.
const PREDICTION_MAX: u64 = 4;

/// Table 1, in percent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HopperParameters {
    /// α: the newest sample's weight in the moving average; 100 is no averaging.
    pub alpha: u16,
    /// th_probe: other paths are probed above this average, of the base RTT.
    pub th_probe: u16,
    /// th_cong: the path counts as congested above this average, of the base RTT.
    pub th_cong: u16,
    /// ttl_probe: a probed path is not probed again for this long, of the base RTT.
    pub ttl_probe: u16,
    /// δ: a probed path is clearly better when its RTT is at most this, of the current average.
    pub delta: u16,
}

impl HopperParameters {
    /// Table 1's values.
    pub const DEFAULT: HopperParameters = HopperParameters {
        alpha: 100,
        th_probe: 150,
        th_cong: 250,
        ttl_probe: 400,
        delta: 80,
    };

    /// Sets the parameter `key`; `None` where there is none of that name, or it is out of range.
    pub(super) fn set(&mut self, key: &str, value: u16) -> Option<()> {
        let (field, most) = match key {
            "alpha" => (&mut self.alpha, 100),
            "th-probe" => (&mut self.th_probe, u16::MAX),
            "th-cong" => (&mut self.th_cong, u16::MAX),
            "ttl-probe" => (&mut self.ttl_probe, u16::MAX),
            "delta" => (&mut self.delta, 100),
            _ => return None,
        };
        (1..=most).contains(&value).then(|| *field = value)
    }
}

impl fmt::Display for HopperParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HopperParameters {
            alpha,
            th_probe,
            th_cong,
            ttl_probe,
            delta,
        } = self;
        write!(
            f,
            "alpha={alpha},th-probe={th_probe},th-cong={th_cong},ttl-probe={ttl_probe},delta={delta}"
        )
    }
}

/// `percent` of a span.
fn percent(span: Nanos, percent: u16) -> Nanos {
    Nanos::new(span.get().saturating_mul(percent.into()) / 100)
}

/// Whether an epoch has probed (Alg. 1's `probe`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Probing {
    /// The average was not above th_probe.
    NotYet,
    /// It was: the next choice draws the paths.
    Due,
    Done,
}

/// One control epoch: one RTT (section 3, "Design Overview"), of its first sample or its average, whichever is less:
/// a packet that came back late would otherwise stop the probes for as long as it took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Epoch {
    began: Time,
    ends: Time,
    /// Alg. 1's avg_rtt.
    average: Nanos,
    probing: Probing,
    /// Alg. 1's `switch`, consumed: the alternatives were compared.
    compared: bool,
    trend: Trend,
}

/// The linear regression of Fig. 1, of the moments at which packets are acknowledged over the path's bytes: for
/// packets sent at an even rate the same as of their RTTs, and right for a window that leaves at once, too. Both
/// count from the epoch's start, so that the sums of squares stay exact.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Trend {
    /// Moments count from here, ns.
    since: Time,
    /// Bytes acknowledged since.
    acked: u64,
    samples: f64,
    bytes: f64,
    moments: f64,
    bytes_bytes: f64,
    bytes_moments: f64,
}

impl Trend {
    /// An epoch begins. `before`: when what precedes its first packet was acknowledged, if that is no longer ago than
    /// two round trips; with it one packet in an epoch tells a trend.
    fn new(now: Time, before: Option<Time>) -> Trend {
        Trend {
            since: before.unwrap_or(now),
            acked: 0,
            samples: if before.is_some() { 1.0 } else { 0.0 },
            bytes: 0.0,
            moments: 0.0,
            bytes_bytes: 0.0,
            bytes_moments: 0.0,
        }
    }

    /// `bytes` more were acknowledged.
    fn add(&mut self, bytes: u32, now: Time) {
        self.acked += u64::from(bytes);
        let (bytes, moment) = (self.acked as f64, (now - self.since).get() as f64);
        self.samples += 1.0;
        self.bytes += bytes;
        self.moments += moment;
        self.bytes_bytes += bytes * bytes;
        self.bytes_moments += bytes * moment;
    }

    /// When the last of the `in_flight` bytes will be, where two samples tell a trend.
    fn last_at(&self, in_flight: u32) -> Option<Time> {
        let spread = self.samples * self.bytes_bytes - self.bytes * self.bytes;
        if self.samples < 2.0 || spread <= 0.0 {
            return None;
        }
        let slope = (self.samples * self.bytes_moments - self.bytes * self.moments) / spread;
        let bytes = self.acked + u64::from(in_flight);
        let ahead = self.samples * bytes as f64 - self.bytes;
        let moment = (self.moments + slope * ahead) / self.samples;
        Some(self.since + Nanos::new(moment.max(0.0) as u64))
    }
}

/// A path that was probed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Probe {
    path: PathId,
    /// When it was drawn, with another one; sent at once.
    drawn_at: Time,
    /// When its answer came, and the RTT.
    answer: Option<(Time, Nanos)>,
}

/// Hopper's state for one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hopper {
    parameters: HopperParameters,
    /// What the congestion control lets a connection queue.
    queueing: Nanos,
    current: Option<PathId>,
    /// Bytes acknowledged on the current path since it was taken.
    acked: u64,
    /// When something was last sent on the current path.
    sent_at: Time,
    /// When something on it was last acknowledged.
    acked_at: Option<Time>,
    epoch: Option<Epoch>,
    /// The newest probes; the next one replaces the oldest.
    probes: [Option<Probe>; MEMORY],
    next_probe: u8,
    /// Paths drawn to be probed, and when they were.
    unsent: [Option<PathId>; PROBES],
    drawn_at: Time,
    resumes_at: Time,
}

impl Hopper {
    pub(super) fn new(parameters: HopperParameters, congestion: CongestionKind) -> Hopper {
        Hopper {
            parameters,
            queueing: congestion.queueing(),
            current: None,
            acked: 0,
            sent_at: Time::ZERO,
            acked_at: None,
            epoch: None,
            probes: [None; MEMORY],
            next_probe: 0,
            unsent: [None; PROBES],
            drawn_at: Time::ZERO,
            resumes_at: Time::ZERO,
        }
    }

    /// What packets take on a path that carries nothing but this connection.
    fn base_rtt(&self, view: &PathView<'_>) -> Option<Nanos> {
        view.base_rtt().map(|lowest| lowest + self.queueing)
    }

    /// Whether `path` was probed within the last ttl_probe, or is about to be.
    fn is_explored(&self, path: PathId, now: Time, base: Nanos) -> bool {
        let ttl = percent(base, self.parameters.ttl_probe);
        let probed = |probe: &Probe| probe.path == path && now - probe.drawn_at < ttl;
        self.unsent.contains(&Some(path)) || self.probes.iter().flatten().any(probed)
    }

    /// Draws "two randomly selected unexplored paths" (section 3.2).
    fn draw_probes(&mut self, view: &PathView<'_>, rng: &mut Rng) {
        let Some(base) = self.base_rtt(view) else {
            return;
        };
        self.drawn_at = view.now();
        for slot in 0..PROBES {
            let draws = (0..DRAWS).map(|_| view.draw(rng));
            let mut unexplored = draws.filter(|&path| {
                Some(path) != self.current && !self.is_explored(path, view.now(), base)
            });
            let drawn = unexplored.next();
            self.unsent[slot] = drawn;
        }
    }

    /// A packet on another path than the current one came back: a probe's answer.
    fn answered(&mut self, view: &PathView<'_>, sample: &PathSample) {
        let Some(rtt) = sample.rtt else { return };
        let waits = |probe: &&mut Probe| probe.path == sample.path && probe.answer.is_none();
        let Some(probe) = self.probes.iter_mut().flatten().find(waits) else {
            return;
        };
        probe.answer = Some((view.now(), rtt));
        let drawn_at = probe.drawn_at;
        let mut pair = self
            .probes
            .iter()
            .flatten()
            .filter(|probe| probe.drawn_at == drawn_at);
        if pair.all(|probe| probe.answer.is_some()) {
            self.compare(view);
        }
    }

    /// Whether a probe of the pair drawn last may yet tell of a better path: one that is clearly better than
    /// `average` answers within that time.
    fn awaits_pair(&self, now: Time, average: Nanos) -> bool {
        let of_pair = |probe: &Probe| probe.drawn_at == self.drawn_at && probe.answer.is_none();
        now - self.drawn_at <= percent(average, self.parameters.delta)
            && (self.unsent.iter().any(Option::is_some)
                || self.probes.iter().flatten().any(of_pair))
    }

    /// Alg. 1's SWITCHPATH: takes the better of the probed paths if the current one is congested and that one
    /// is clearly better (section 3.3, "Path Selection").
    fn compare(&mut self, view: &PathView<'_>) {
        let (Some(epoch), Some(base)) = (self.epoch, self.base_rtt(view)) else {
            return;
        };
        let congested = epoch.average > percent(base, self.parameters.th_cong);
        if epoch.compared || !congested || self.awaits_pair(view.now(), epoch.average) {
            return;
        }
        let in_flight = self.current.map_or(0, |current| view.in_flight(current));
        if self.acked < in_flight.into() {
            return;
        }
        // "For a few RTTs" (section 3.3): the path's own, which may be many times the base.
        let ttl = percent(base, self.parameters.ttl_probe).max(epoch.average);
        let fresh = |probe: &Probe| {
            let (at, rtt) = probe.answer?;
            // The current path was a probed one before it was taken.
            let other = Some(probe.path) != self.current && view.allows(probe.path);
            (other && view.now() - at <= ttl).then_some((rtt, probe.path))
        };
        // One sample tells when what is in flight arrives if that is no more than what it told of.
        if epoch.trend.samples < 2.0 && u64::from(in_flight) > epoch.trend.acked {
            return;
        }
        let Some((rtt, path)) = self.probes.iter().flatten().filter_map(fresh).min() else {
            // Nothing to compare yet: the answers come within a round trip.
            return;
        };
        if rtt <= percent(epoch.average, self.parameters.delta) {
            self.switch(view, path, rtt, &epoch);
        } else if let Some(epoch) = &mut self.epoch {
            // With what is remembered of epochs before; this one's own probes are compared when they answer.
            epoch.compared = epoch.probing != Probing::Due;
        }
    }

    /// Goes over to `path`, "by a duration proportional to the RTT difference between the two paths" after the
    /// last packet on the old one (section 3.3, "Reducing Out-of-Order Packets").
    fn switch(&mut self, view: &PathView<'_>, path: PathId, rtt: Nanos, epoch: &Epoch) {
        let in_flight = self.current.map_or(0, |current| view.in_flight(current));
        let last = match epoch.trend.last_at(in_flight) {
            _ if in_flight == 0 => Nanos::ZERO,
            Some(acked_at) => (acked_at - self.sent_at).min(epoch.average.times(PREDICTION_MAX)),
            None => epoch.average,
        };
        self.resumes_at = self.sent_at + Nanos::new(last.get().saturating_sub(rtt.get()));
        self.take(path, view.now());
    }

    fn take(&mut self, path: PathId, now: Time) {
        self.current = Some(path);
        self.acked = 0;
        self.sent_at = now;
        self.acked_at = None;
        self.epoch = None;
        self.unsent = [None; PROBES];
    }
}

impl PathPolicy for Hopper {
    fn choose(&mut self, view: &PathView<'_>, rng: &mut Rng) -> PathId {
        if !view.is_resend()
            && let Some(epoch) = &mut self.epoch
            && epoch.probing == Probing::Due
        {
            epoch.probing = Probing::Done;
            self.draw_probes(view, rng);
        }
        match self.current {
            Some(path) if view.allows(path) => path,
            // What was lost goes elsewhere; the path stays unless it is dead.
            Some(_) if view.is_resend() => view.draw(rng),
            _ => {
                let path = view.draw(rng);
                self.take(path, view.now());
                path
            }
        }
    }

    fn keeps(&self, path: PathId) -> bool {
        self.current == Some(path)
    }

    fn on_sent(&mut self, now: Time, path: PathId, _bytes: u32) {
        if self.current == Some(path) {
            self.sent_at = now;
        }
    }

    fn on_ack(&mut self, view: &PathView<'_>, sample: &PathSample) {
        if self.current != Some(sample.path) {
            return self.answered(view, sample);
        }
        self.acked += u64::from(sample.bytes);
        let acked_at = match sample.bytes {
            0 => self.acked_at,
            _ => Some(view.now()),
        };
        let Some(rtt) = sample.rtt else {
            self.acked_at = acked_at;
            // Acknowledged all the same.
            if let Some(epoch) = &mut self.epoch
                && sample.bytes > 0
            {
                epoch.trend.add(sample.bytes, view.now());
            }
            return;
        };
        let alpha = u64::from(self.parameters.alpha);
        let mut epoch = match self.epoch {
            Some(epoch) if view.now() < epoch.ends => {
                let average = alpha * rtt.get() + (100 - alpha) * epoch.average.get();
                let average = Nanos::new(average / 100);
                Epoch {
                    average,
                    ends: epoch.ends.min(epoch.began + average),
                    ..epoch
                }
            }
            // Alg. 1 begins with avg_rtt = 0, which its α of 1 forgets at once; the first sample seeds it here.
            _ => Epoch {
                began: view.now(),
                ends: view.now() + rtt,
                average: rtt,
                probing: Probing::NotYet,
                compared: false,
                trend: Trend::new(
                    view.now(),
                    self.acked_at.filter(|&at| view.now() - at <= rtt.times(2)),
                ),
            },
        };
        if sample.bytes > 0 {
            epoch.trend.add(sample.bytes, view.now());
        }
        self.acked_at = acked_at;
        let above = |base| epoch.average > percent(base, self.parameters.th_probe);
        if epoch.probing == Probing::NotYet && self.base_rtt(view).is_some_and(above) {
            epoch.probing = Probing::Due;
        }
        self.epoch = Some(epoch);
        self.compare(view);
    }

    fn on_probe_answer(&mut self, view: &PathView<'_>, sample: &PathSample) {
        self.answered(view, sample);
    }

    fn poll_probe(&mut self) -> Option<PathId> {
        let path = self.unsent.iter_mut().find_map(Option::take)?;
        self.probes[usize::from(self.next_probe)] = Some(Probe {
            path,
            drawn_at: self.drawn_at,
            answer: None,
        });
        self.next_probe = (self.next_probe + 1) % MEMORY as u8;
        Some(path)
    }

    fn resumes_at(&self) -> Time {
        self.resumes_at
    }

    fn rebase(&mut self, now: Time) {
        self.epoch = None;
        self.probes = [None; MEMORY];
        self.unsent = [None; PROBES];
        self.sent_at = now;
        self.acked_at = None;
        self.acked = 0;
        self.resumes_at = Time::ZERO;
    }
}
