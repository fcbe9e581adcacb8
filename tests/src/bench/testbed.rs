//! `testbed`: the asymmetric testbed of Hopper (section 4.2, figures 5 and 6) with links of a tenth of its rates: two leaves,
//! four hosts at each, four spines of 1 Gbit/s and two of 100 Mbit/s.
//!
//! A round of training is a flow from each host of one leaf to its host at the other leaf, and ends with the last of them.
//! A flow is a connection of its own and sends chunks one after the other. The paper takes the sizes of its 204 flows from
//! traces of GPT-3, which are not published: here each has 10 MB.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use weft_engine::PolicyKind;
use weft_fabric::{Fabric, Spec};

use super::ends::{Ends, Shape};
use super::rounds::{Must, Rounds};
use super::spine::Spine;
use super::writes::{self, Writes};
use super::{BenchError, Context};
use crate::report::Row;

/// Bit/s of each spine's links.
const SPINES: [u64; 6] = [FAST, FAST, FAST, FAST, SLOW, SLOW];
const FAST: u64 = 1_000_000_000;
const SLOW: u64 = 100_000_000;
/// Bit/s of a host's port.
const HOST: u64 = 2_500_000_000;
/// Hosts at each leaf.
const HOSTS: usize = 4;
const PATHS: u16 = 128;
const FLOW_BYTES: usize = 10_000_000;
/// Of 4 flows each: 204 in all.
const TRAINING_ROUNDS: usize = 51;
/// Chunks of the paper, bytes.
const CHUNKS: [(&str, usize); 2] = [("1m", 1_000_000), ("10m", 10_000_000)];
/// How often all is measured; the paper does it five times.
const REPEATS: usize = 3;

/// What one policy came to in one training.
struct Training {
    /// From each round's beginning to the end of its last flow, all together.
    took: Duration,
    /// Of each flow.
    flows: Vec<Duration>,
    /// Bytes through the slow spines, of 1.
    slow_share: f64,
}

/// For each size of chunks the training time of `hopper` and of the default policy beside that of one path for each flow, as
/// ECMP chooses it.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2 * HOSTS,
        leaves: 2,
        spines: SPINES.len(),
        rate: Some(FAST),
        node_rate: Some(HOST),
        ..Spec::default()
    })?;
    for (spine, rate) in SPINES.into_iter().enumerate() {
        Spine::new(&fabric, spine).set_rate(rate)?;
    }
    let hopper = PolicyKind::ALL.iter().find(|it| it.name() == "hopper");
    let policies = [("hopper", hopper.copied()), ("default", None)];
    let (repeats, rounds) = match context.quick {
        true => (1, 4),
        false => (context.rounds.min(REPEATS), TRAINING_ROUNDS),
    };
    let mut rows = Vec::new();
    for (name, chunk) in CHUNKS {
        let mut figures: HashMap<&str, (Rounds, Vec<Training>)> = HashMap::new();
        let mut ecmp = Vec::new();
        for repeat in 0..repeats as u16 {
            let single = train(&fabric, Some(PolicyKind::Single), repeat, chunk, rounds)?;
            for (policy, kind) in policies {
                let training = train(&fabric, kind, repeat, chunk, rounds)?;
                let (of_policy, trainings) = figures.entry(policy).or_default();
                of_policy.add_pair(training.took.as_secs_f64(), single.took.as_secs_f64());
                trainings.push(training);
            }
            ecmp.push(single);
        }
        for (policy, must) in [
            ("hopper", Must::RatioAtMost(1.0)),
            ("default", Must::Reported),
        ] {
            let Some((of_policy, trainings)) = figures.remove(policy) else {
                continue;
            };
            let work = format!(
                "{policy}, four spines of 1 Gbit/s and two of 100 Mbit/s, chunks of {name}B: time of {rounds} rounds of 4 \
                 flows of 10 MB; {}; one path: {}",
                said(&trainings),
                said(&ecmp)
            );
            let id = format!("testbed-{name}-{policy}");
            rows.push(of_policy.row(&id, work, "s", "one path for each flow", must));
        }
    }
    Ok(rows)
}

/// One training with a policy. `draw` chooses the ports, and so which paths lead over which spine.
fn train(
    fabric: &Fabric,
    policy: Option<PolicyKind>,
    draw: u16,
    chunk: usize,
    rounds: usize,
) -> Result<Training, BenchError> {
    let shape = Shape {
        policy,
        paths: PATHS,
        draw,
        ..Shape::default()
    };
    // Nodes take turns at the leaves.
    let pairs = (0..HOSTS).map(|host| Ends::between(fabric, shape, 2 * host, 2 * host + 1));
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    let before = fabric.spine_bytes()?;
    let mut training = Training {
        took: Duration::ZERO,
        flows: Vec::new(),
        slow_share: 0.0,
    };
    for _ in 0..rounds {
        let flows = thread::scope(|scope| {
            let flow = |ends| {
                scope.spawn(move || {
                    let work = Writes {
                        bytes: chunk,
                        count: (FLOW_BYTES / chunk) as u64,
                        outstanding: 1,
                        memory: chunk,
                        lap: FLOW_BYTES,
                    };
                    writes::measure(ends, work).map(|measured| measured.took)
                })
            };
            let flows: Vec<_> = pairs.iter().map(flow).collect();
            let flows = flows.into_iter().map(|flow| {
                let ended = flow.join();
                ended.map_err(|_| BenchError::Panicked("a flow"))?
            });
            flows.collect::<Result<Vec<_>, _>>()
        })?;
        training.took += flows.iter().copied().max().unwrap_or_default();
        training.flows.extend(flows);
    }
    let after = fabric.spine_bytes()?;
    let moved = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before);
    let moved: Vec<u64> = moved.collect();
    let is_slow = |spine: &usize| SPINES[*spine] == SLOW;
    let slow: u64 = (0..SPINES.len())
        .filter(is_slow)
        .map(|spine| moved[spine])
        .sum();
    training.slow_share = slow as f64 / moved.iter().sum::<u64>().max(1) as f64;
    Ok(training)
}

/// Flow completion times and the use of the slow links, as figure 6 has them.
fn said(trainings: &[Training]) -> String {
    let flows = trainings.iter().flat_map(|it| &it.flows);
    let mut flows: Vec<f64> = flows.map(|it| it.as_secs_f64() * 1e3).collect();
    flows.sort_by(f64::total_cmp);
    let mean = flows.iter().sum::<f64>() / flows.len().max(1) as f64;
    let p99 = flows.get(flows.len().saturating_sub(1) * 99 / 100);
    let slow = trainings.iter().map(|it| it.slow_share).sum::<f64>();
    format!(
        "flows {mean:.0} ms on average, {:.0} ms p99, {:.1} % of the bytes over the slow spines",
        p99.copied().unwrap_or(0.0),
        slow / trainings.len().max(1) as f64 * 100.0
    )
}
