//! Messages of one chunk each on one connection, with the time from post to placement of each.
//!
//! A message is stamped when it is given to the engine and again when its receiver learns that all
//! of it was placed. That is longer than from its first send to its placement by its wait for the
//! window, so what is reported bounds what is promised.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::BenchError;
use super::arrivals::Arrival;
use super::ends::Ends;
use super::host::{End, Happened, Host, Landing, Source, Write};

/// Messages under way: what four spines hold in their queues of 5 ms, and some more.
const UNDER_WAY: usize = 48;
/// Twice as many regions, taken in turn: what arrived is read long before the region's next message.
const REGIONS: usize = 2 * UNDER_WAY;
/// Bytes of the stamp at a message's head.
const STAMP: usize = 8;
/// How long the messages under way have at the end. One that has not arrived then counts as
/// arrived at that moment: its time is a lower bound.
const DRAIN: Duration = Duration::from_secs(3);
/// How long either end waits before it looks at the clock again.
const LOOK: Duration = Duration::from_millis(1);

/// What the two ends share.
struct Shared {
    /// All regions; a message's immediate is the number of its own.
    regions: Vec<Landing>,
    /// The numbers of those that may be written to.
    free: Mutex<VecDeque<u32>>,
    over: AtomicBool,
}

/// Keeps [`UNDER_WAY`] messages under way on a new connection until `end` after `begun`. Times are
/// since `begun`.
///
/// # Errors
/// [`BenchError`]: the connection failed.
pub(super) fn exchange(
    ends: &Ends,
    begun: Instant,
    end: Duration,
) -> Result<Vec<Arrival>, BenchError> {
    let (near, far) = ends.connect()?;
    let bytes = ends.receiver.chunk_payload();
    let shared = Shared {
        regions: (0..REGIONS)
            .map(|_| ends.receiver.register(vec![0; bytes]))
            .collect(),
        free: Mutex::new((0..REGIONS as u32).collect()),
        over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&far, begun, &shared));
        let posted = post(&ends.sender, &near, begun, end, &shared);
        // Whatever happened, the receiver must come to an end.
        shared.over.store(true, Ordering::Release);
        let arrivals = receiving
            .join()
            .map_err(|_| BenchError::Panicked("the receiver"))?;
        let (stamps, mut arrivals) = (posted?, arrivals?);
        let missing: Vec<Duration> = {
            let arrived: BTreeSet<Duration> = arrivals.iter().map(|a| a.posted).collect();
            stamps
                .into_iter()
                .filter(|stamp| !arrived.contains(stamp))
                .collect()
        };
        let over = begun.elapsed();
        arrivals.extend(missing.into_iter().map(|posted| Arrival {
            posted,
            placed: over,
            bytes: 0,
        }));
        Ok(arrivals)
    })
}

/// Posts until `end`, then waits for what is under way; when each message was posted.
fn post(
    sender: &Host,
    near: &End,
    begun: Instant,
    end: Duration,
    shared: &Shared,
) -> Result<Vec<Duration>, BenchError> {
    let bytes = sender.chunk_payload();
    let mut sources: Vec<Source> = (0..UNDER_WAY)
        .map(|_| Source::new(vec![0x5A; bytes]))
        .collect();
    let mut idle: Vec<usize> = (0..UNDER_WAY).collect();
    let mut stamps = Vec::new();
    loop {
        let now = begun.elapsed();
        if now >= end && (idle.len() == UNDER_WAY || now >= end + DRAIN) {
            return Ok(stamps);
        }
        while begun.elapsed() < end && !idle.is_empty() {
            let Some(number) = lock(&shared.free).pop_front() else {
                break;
            };
            let Some(index) = idle.pop() else { break };
            let stamp = begun.elapsed();
            stamps.push(stamp);
            sources[index].set_head(&(stamp.as_nanos() as u64).to_le_bytes());
            sender.write(
                near,
                Write {
                    source: &sources[index],
                    bytes,
                    target: shared.regions[number as usize].target,
                    offset: 0,
                    immediate: Some(number),
                    context: index as u64,
                },
            )?;
        }
        if let Some(Happened::Written { context }) = near.wait(LOOK)? {
            idle.push(context as usize);
        }
    }
}

/// Takes messages until the sender is through.
fn receive(far: &End, begun: Instant, shared: &Shared) -> Result<Vec<Arrival>, BenchError> {
    let mut arrivals = Vec::new();
    loop {
        match far.wait(LOOK)? {
            Some(Happened::Arrived { immediate }) => {
                let placed = begun.elapsed();
                let mut stamp = [0; STAMP];
                let region = &shared.regions[immediate as usize];
                region.read(0, &mut stamp);
                arrivals.push(Arrival {
                    posted: Duration::from_nanos(u64::from_le_bytes(stamp)),
                    placed,
                    bytes: region.bytes(),
                });
                lock(&shared.free).push_back(immediate);
            }
            // The sender has every acknowledgement, or has given up: what has arrived is here.
            None if shared.over.load(Ordering::Acquire) => return Ok(arrivals),
            _ => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic of the other end is reported when it is joined.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
