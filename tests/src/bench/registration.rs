//! `reg`: how long registering memory takes by its size, and the first use of new memory.

use super::rounds::{Must, Rounds};
use super::transfer::Registering;
use super::{BenchError, Context};
use crate::report::{Row, median};

const LARGE: usize = 1 << 30;
const SMALL: usize = 1 << 20;
/// What a first use is counted for.
const BLOCK: u64 = 2 << 20;
/// Registrations of a round, of either size in turn.
const TIMES: usize = 200;

/// Three rows.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let engine = Registering::start()?;
    let (large, small) = (Registering::memory(LARGE), Registering::memory(SMALL));
    let [mut register, mut allocate, mut touch] = [(); 3].map(|()| Rounds::default());
    for _ in 0..context.rounds {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            ours.push(engine.register(&large)?);
            theirs.push(engine.register(&small)?);
        }
        register.add_pair(median(&mut ours), median(&mut theirs));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut blocks = Vec::new();
        for _ in 0..TIMES / 10 {
            let (took, _) = engine.allocate(SMALL as u64, BLOCK)?;
            theirs.push(took);
        }
        for _ in 0..if context.quick { 1 } else { 3 } {
            let (took, used) = engine.allocate(LARGE as u64, BLOCK)?;
            ours.push(took);
            blocks.extend(used);
        }
        allocate.add_pair(median(&mut ours), median(&mut theirs));
        touch.add(median(&mut blocks));
    }
    let must = Must::RatioAtMost(2.0);
    Ok(vec![
        register.row(
            "reg",
            format!("reg_mr of 1 GiB that is there, median of {TIMES}"),
            "µs",
            "1 MiB",
            must,
        ),
        allocate.row(
            "reg-alloc",
            "alloc of 1 GiB, with its registration".to_owned(),
            "µs",
            "1 MiB",
            must,
        ),
        touch.row(
            "reg-touch",
            "first use of each 2 MiB of it, a word of each page".to_owned(),
            "µs",
            "",
            Must::Reported,
        ),
    ])
}
