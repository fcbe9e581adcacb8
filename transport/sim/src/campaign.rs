//! Many runs: which seeds, on how many threads, and what is told of failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::scenario::Scenario;
use crate::simulation::{Outcome, Simulation, Totals};

/// After this many failures a campaign stops: more would say the same.
const FAILURES_MAX: u64 = 20;

/// Seeds that failed once, or show something worth keeping: `seed why`.
const COMMITTED: &str = include_str!("../seeds.txt");

/// A seed that failed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// What kind of run it is.
    pub scenario: String,
    /// The broken promise, or the panic.
    pub text: String,
}

/// Which seeds a campaign tries.
#[expect(missing_docs, reason = "each variant's text says what its fields are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// These.
    These(Vec<u64>),
    /// As many as fit into the time, counted up from the first.
    For { first: u64, time: Duration },
}

/// How a campaign went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Seeds that passed.
    pub passed: u64,
    /// Seeds that failed.
    pub failed: u64,
    /// What those that passed have covered.
    pub totals: Totals,
}

/// Plays one seed.
///
/// # Errors
/// The promise that was broken; a panic counts as one.
pub fn play(seed: u64) -> Result<Outcome, Failed> {
    let scenario = Scenario::draw(seed);
    let kind = scenario.to_string();
    let failed = |text: String| Failed {
        seed,
        scenario: kind.clone(),
        text,
    };
    match catch_unwind(AssertUnwindSafe(|| Simulation::new(scenario).run())) {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(violation)) => Err(failed(violation.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(failed(format!(
                "panic: {}",
                text.unwrap_or("without a text")
            )))
        }
    }
}

/// Plays seeds on `threads` threads; `report` hears of every failure as it happens.
pub fn campaign(seeds: &Seeds, threads: usize, report: impl Fn(&Failed) + Sync) -> Tried {
    let began = Instant::now();
    let (next, passed, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    let totals = Mutex::new(Totals::default());
    let take = || {
        let n = next.fetch_add(1, Ordering::Relaxed);
        match seeds {
            Seeds::These(list) => list.get(n as usize).copied(),
            Seeds::For { first, time } => (began.elapsed() < *time).then(|| first.wrapping_add(n)),
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed)
                    && let Some(seed) = take()
                {
                    let failure = match play(seed) {
                        Ok(outcome) => {
                            passed.fetch_add(1, Ordering::Relaxed);
                            add(&totals, &outcome.totals);
                            continue;
                        }
                        Err(failure) => failure,
                    };
                    if failed.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX {
                        stop.store(true, Ordering::Relaxed);
                    }
                    let _one_at_a_time = totals.lock();
                    report(&failure);
                }
            });
        }
    });
    Tried {
        passed: passed.into_inner(),
        failed: failed.into_inner(),
        totals: totals.into_inner().unwrap_or_default(),
    }
}

fn add(totals: &Mutex<Totals>, of_one: &Totals) {
    if let Ok(mut totals) = totals.lock() {
        totals.add(of_one);
    }
}

/// The committed seeds, each with its reason.
pub fn committed_seeds() -> Vec<(u64, &'static str)> {
    COMMITTED
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .filter_map(|line| {
            let (seed, why) = line.split_once(' ')?;
            Some((seed.parse().ok()?, why.trim()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_committed_seed_is_a_number_with_a_reason_and_stands_once() {
        let lines = COMMITTED
            .lines()
            .filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
        let seeds = committed_seeds();
        assert_eq!(seeds.len(), lines.count());
        assert!(seeds.iter().all(|(_, why)| !why.is_empty()));
        let mut numbers: Vec<u64> = seeds.iter().map(|(seed, _)| *seed).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), seeds.len());
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        for seed in 1..20 {
            assert_eq!(play(seed), play(seed));
        }
    }
}
