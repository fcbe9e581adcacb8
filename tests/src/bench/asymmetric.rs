//! `spray-asym`: goodput of one connection over four spines of different rates, by path policy.

use weft_engine::PolicyKind;
use weft_fabric::{Fabric, Spec};

use super::ends::Shape;
use super::rounds::{Must, Rounds};
use super::spine::Spine;
use super::spray::{DRAWS, PATHS, SPINE_RATE, SPINES, goodput};
use super::{BenchError, Context};
use crate::report::Row;

/// Of each spine's links, bit/s.
const RATES: [u64; SPINES] = [SPINE_RATE, 500_000_000, 250_000_000, 50_000_000];

/// A row for the engine's default policy and one for oblivious spraying.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let fabric = context.fabric(&Spec {
        nodes: 2,
        spines: SPINES,
        rate: Some(SPINE_RATE),
        ..Spec::default()
    })?;
    for (spine, rate) in RATES.into_iter().enumerate() {
        Spine::new(&fabric, spine).set_rate(rate)?;
    }
    // Writes of 1 MiB: over a second each, oblivious spraying at a fifth of the sum.
    let policies = [
        ("spray-asym", None, 256, Must::RatioAtLeast(0.85)),
        (
            "spray-asym-oblivious",
            Some(PolicyKind::Oblivious),
            64,
            Must::Reported,
        ),
    ];
    let draws = if context.quick { 3 } else { DRAWS };
    policies
        .into_iter()
        .map(|(id, policy, count, must)| row(&fabric, draws, id, policy, count, must))
        .collect()
}

fn row(
    fabric: &Fabric,
    draws: usize,
    id: &str,
    policy: Option<PolicyKind>,
    count: u64,
    must: Must,
) -> Result<Row, BenchError> {
    let sum = RATES.iter().sum::<u64>() as f64 / 1e9;
    let mut rounds = Rounds::default();
    for draw in 0..draws as u16 {
        let shape = Shape {
            policy,
            paths: PATHS,
            draw,
            ..Shape::default()
        };
        rounds.add_pair(goodput(fabric, shape, count)?, sum);
    }
    let name = policy.map_or("the default policy".to_owned(), |policy| policy.to_string());
    let work = format!(
        "{name}: goodput of one connection, spines of 1000, 500, 250 and 50 Mbit/s, {PATHS} paths, \
         median of {draws} port draws, {:.2} to {:.2}",
        rounds.smallest(),
        rounds.largest()
    );
    Ok(rounds.row(id, work, "Gbit/s", "sum of the links", must))
}
