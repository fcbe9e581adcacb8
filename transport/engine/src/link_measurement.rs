//! Which of several links to a peer is used: those that pass bytes are measured, and the fastest is taken (decision 0052).
//!
//! It knows no runtime and no peer. Its callers, the TransferEngine and the node agent, say how bytes are written over a
//! link, and keep the result.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_link::LinkKind;

/// Bytes of the memory that is written from and to, and of one write of a measurement.
pub const MEASURED_BYTES: u64 = 256 << 10;

/// A link passes when so many bytes arrive within this time, or within so many round trips of set-up: TCP takes some to
/// connect and to open its window.
const REACH_BYTES: u64 = 64 << 10;
const REACH_MIN: Duration = Duration::from_millis(250);
const REACH_ROUND_TRIPS: u32 = 8;

/// How much longer it has each time that no link has passed: the peer stands still.
const REACH_GROWTH: u32 = 2;

/// Writes at once in the first round of a measurement. Each round has twice as many as the one before, up to the most: a
/// fast link is filled, and a slow one is not measured for long.
const ROUND_WRITES_FIRST: usize = 2;
const ROUND_WRITES_MAX: usize = 16;
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Why a link is used where [`fastest`] returns `None`.
pub const TOO_SLOW: &str = "not measured: the links are too slow, or a machine is too busy";

/// At least two rounds, for the first one meets small windows; more while they take less than this.
const ROUNDS_MIN: usize = 2;
const ROUNDS_MAX: Duration = Duration::from_millis(20);

/// TCP has to be faster than UDP by a tenth: UDP uses more paths, and leaves one that is slow.
const TCP_AT_LEAST: f64 = 1.1;

/// How long a result holds. What kept a link from passing bytes may be over soon.
const HOLDS_FOR: Duration = Duration::from_secs(600);
const HOLDS_WITHOUT_OTHERS: Duration = Duration::from_secs(30);
/// It is shown for longer: the next measurement comes with the next connection.
const KNOWN_FOR: Duration = Duration::from_secs(3600);

/// The link to a peer, and why it is that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkInUse {
    /// Which.
    pub link: LinkKind,
    /// For people.
    pub reason: String,
}

impl fmt::Display for LinkInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.link.name(), self.reason)
    }
}

/// Whether bytes have arrived.
pub type Arrival = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A link over which both ends have connected, for a measurement.
pub trait MeasuredLink {
    /// Which.
    fn link(&self) -> LinkKind;

    /// Begins, when it is called, to write `count` times `bytes` bytes. Whether all have arrived within `limit`.
    fn write(&self, count: usize, bytes: u64, limit: Duration) -> Arrival;
}

/// Those of the links that pass bytes, and why the others are not used. `round_trip` is that of a message of set-up. While
/// none passes they have more time, up to `timeout` in all.
pub async fn passing<L: MeasuredLink>(
    links: Vec<L>,
    round_trip: Duration,
    timeout: Duration,
) -> (Vec<L>, String) {
    let mut limit = REACH_MIN.max(round_trip * REACH_ROUND_TRIPS);
    let mut waited = Duration::ZERO;
    let passed = loop {
        // All at once: one that passes nothing takes all the time.
        let begin = |link: &L| link.write(1, REACH_BYTES, limit);
        let writes: Vec<_> = links.iter().map(begin).collect();
        let mut passed = Vec::new();
        for write in writes {
            passed.push(write.await);
        }
        waited += limit;
        let left = timeout.saturating_sub(waited);
        if left < REACH_MIN || passed.contains(&true) {
            break passed;
        }
        limit = left.min(REACH_GROWTH * limit);
    };
    let (passing, silent): (Vec<_>, Vec<_>) = links
        .into_iter()
        .zip(passed)
        .partition(|(_, passed)| *passed);
    let passing = passing.into_iter().map(|(link, _)| link).collect();
    let silent: Vec<_> = silent.iter().map(|(link, _)| link.link().name()).collect();
    let (silent, bytes) = (silent.join(" and "), REACH_BYTES >> 10);
    let reason = format!(
        "{silent} did not pass {bytes} KiB in {} ms",
        waited.as_millis()
    );
    (passing, reason)
}

/// Measures links that pass, one after the other, and answers the fastest; `None` where no round of any came to its end.
pub async fn fastest<L: MeasuredLink>(links: &[L]) -> Option<LinkInUse> {
    let mut rates = Vec::new();
    for link in links {
        rates.push((link.link(), measure(link).await));
    }
    let is_measured = rates.iter().any(|(_, rate)| *rate > 0.0);
    is_measured.then(|| fastest_of(&rates))
}

/// The rate of a link in bytes per second, 0 if it is too slow to be measured.
async fn measure(link: &impl MeasuredLink) -> f64 {
    let (begun, mut best) = (Instant::now(), 0.0_f64);
    let mut writes = ROUND_WRITES_FIRST;
    for round in 0.. {
        if round >= ROUNDS_MIN && begun.elapsed() > ROUNDS_MAX {
            break;
        }
        let at = Instant::now();
        if !link.write(writes, MEASURED_BYTES, ROUND_MAX).await {
            break;
        }
        let rate = writes as f64 * MEASURED_BYTES as f64 / at.elapsed().as_secs_f64();
        best = best.max(rate);
        writes = (2 * writes).min(ROUND_WRITES_MAX);
    }
    best
}

/// The fastest of links that were measured, in bytes per second.
fn fastest_of(rates: &[(LinkKind, f64)]) -> LinkInUse {
    let weight = |link| match link {
        LinkKind::Udp | LinkKind::Xdp => TCP_AT_LEAST,
        LinkKind::Tcp | LinkKind::Shm => 1.0,
    };
    let weighed = |(link, rate): &(LinkKind, f64)| rate * weight(*link);
    let faster = |best, it| {
        if weighed(it) > weighed(best) {
            it
        } else {
            best
        }
    };
    let best = rates.iter().reduce(faster);
    let say = |(link, rate): &(LinkKind, f64)| format!("{} {:.2} GB/s", link.name(), rate / 1e9);
    let said: Vec<_> = rates.iter().map(say).collect();
    LinkInUse {
        link: best.map_or(LinkKind::Udp, |(link, _)| *link),
        reason: format!("measured: {}", said.join(", ")),
    }
}

/// What came of the last measurement to a peer.
#[derive(Debug)]
struct LinkResult {
    link: LinkInUse,
    /// All links have passed.
    is_measured: bool,
    since: Instant,
}

impl LinkResult {
    /// Connections go by it.
    fn holds(&self, now: Instant) -> bool {
        let time = match self.is_measured {
            true => HOLDS_FOR,
            false => HOLDS_WITHOUT_OTHERS,
        };
        now < self.since + time
    }
}

/// What came of measurements, by peer.
#[derive(Debug)]
pub struct LinkResults<K>(Mutex<HashMap<K, LinkResult>>);

impl<K> Default for LinkResults<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> LinkResults<K> {
    /// The result for a peer, while it holds: ten minutes, or 30 s where another link did not pass.
    pub fn result(&self, peer: &K) -> Option<LinkInUse> {
        let (now, results) = (Instant::now(), self.lock());
        let found = results.get(peer).filter(|result| result.holds(now));
        found.map(|result| result.link.clone())
    }

    /// Keeps a result. `is_measured` says whether all links have passed.
    pub fn keep(&self, peer: K, result: &LinkInUse, is_measured: bool) {
        let (now, mut results) = (Instant::now(), self.lock());
        results.retain(|_, result| now < result.since + KNOWN_FOR);
        let result = LinkResult {
            link: result.clone(),
            is_measured,
            since: now,
        };
        results.insert(peer, result);
    }

    /// The peers to which another link did not pass when it was measured last, within an hour, and the link that is used.
    pub fn fallbacks(&self) -> Vec<(K, LinkKind)>
    where
        K: Clone,
    {
        let (now, results) = (Instant::now(), self.lock());
        let known = results
            .iter()
            .filter(|(_, result)| now < result.since + KNOWN_FOR);
        // Where all links pass, and are slow, nothing is blocked.
        let fallbacks =
            known.filter(|(_, result)| !result.is_measured && result.link.reason != TOO_SLOW);
        fallbacks
            .map(|(peer, result)| (peer.clone(), result.link.link))
            .collect()
    }

    /// The next connection to any peer measures again.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// The next connection to a peer measures again.
    pub fn forget(&self, peer: &K) {
        self.lock().remove(peer);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, LinkResult>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_fastest_link_is_chosen_and_udp_where_tcp_is_hardly_faster() {
        use LinkKind::{Tcp, Udp};
        let rates = |udp, tcp| fastest_of(&[(Udp, udp), (Tcp, tcp)]);
        assert_eq!(rates(4e9, 4.3e9).link, Udp);
        let faster = rates(4e9, 4.5e9);
        assert_eq!(
            faster.to_string(),
            "tcp: measured: udp 4.00 GB/s, tcp 4.50 GB/s"
        );
        assert_eq!(rates(0.0, 0.0).link, Udp);
    }

    /// Passes everything at once if it has time enough, else nothing.
    struct Stub(LinkKind, Duration);

    impl MeasuredLink for Stub {
        fn link(&self) -> LinkKind {
            self.0
        }

        fn write(&self, _: usize, _: u64, limit: Duration) -> Arrival {
            Box::pin(ready(self.1 <= limit))
        }
    }

    const NEVER: Duration = Duration::MAX;

    /// Of a future that waits for nothing.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it waits"),
        }
    }

    #[test]
    fn a_link_that_passes_nothing_is_left_out_and_named() {
        let links = || {
            vec![
                Stub(LinkKind::Udp, NEVER),
                Stub(LinkKind::Tcp, Duration::ZERO),
            ]
        };
        let timeout = Duration::from_secs(5);
        let (left, reason) = now(passing(links(), Duration::ZERO, timeout));
        let kinds: Vec<_> = left.iter().map(MeasuredLink::link).collect();
        assert_eq!(kinds, [LinkKind::Tcp]);
        assert_eq!(reason, "udp did not pass 64 KiB in 250 ms");
        // A peer that is far away has more time.
        let (_, reason) = now(passing(links(), Duration::from_millis(100), timeout));
        assert_eq!(reason, "udp did not pass 64 KiB in 800 ms");
    }

    #[test]
    fn a_peer_that_stands_still_has_all_the_time_to_go_on() {
        let after = |seconds| {
            let links = vec![Stub(LinkKind::Tcp, Duration::from_secs(seconds))];
            now(passing(links, Duration::ZERO, Duration::from_secs(5)))
        };
        // 0.25, 0.5, 1, 2 and the 1.25 s that are left.
        assert_eq!(after(2).0.len(), 1);
        let (none, reason) = after(3);
        assert!(none.is_empty());
        assert_eq!(reason, "tcp did not pass 64 KiB in 5000 ms");
    }

    #[test]
    fn a_link_that_stops_passing_while_it_is_measured_is_the_slowest() {
        let links = [
            Stub(LinkKind::Udp, NEVER),
            Stub(LinkKind::Tcp, Duration::ZERO),
        ];
        let result = now(fastest(&links)).unwrap();
        assert_eq!(result.link, LinkKind::Tcp);
        assert_eq!(now(fastest(&links[..1])), None);
    }

    #[test]
    fn a_result_is_there_until_it_is_forgotten() {
        let results = LinkResults::default();
        let result = LinkInUse {
            link: LinkKind::Tcp,
            reason: String::new(),
        };
        results.keep("n1", &result, true);
        assert_eq!(results.fallbacks(), []);
        results.keep("n3", &result, false);
        assert_eq!(results.fallbacks(), [("n3", result.link)]);
        let slow = LinkInUse {
            reason: TOO_SLOW.to_owned(),
            ..result.clone()
        };
        results.keep("n3", &slow, false);
        assert_eq!(results.fallbacks(), []);
        assert_eq!(results.result(&"n1"), Some(result.clone()));
        assert_eq!(results.result(&"n2"), None);
        results.forget(&"n1");
        assert_eq!(results.result(&"n1"), None);
        results.keep("n1", &result, true);
        results.clear();
        assert_eq!(results.result(&"n1"), None);
    }
}
