//! What goes wrong while bytes move, in real namespaces with real agents: a table of faults, each
//! played with several seeds.
//!
//! `WEFT_FAULT_SEEDS=100` plays so many seeds a row; `WEFT_FAULT_SEED=7` plays one only. A seed draws
//! what is sent and when the fault strikes; when exactly a packet arrives, the machine decides.
//!
//! This program starts itself again in namespaces, before any thread exists; where that is refused,
//! it fails and says what would allow it.

// Not `#[test]` functions, so clippy does not see that these are tests.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod packets;
mod programs;
mod row;
mod stage;
mod table;
mod tree;

use std::{
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{LazyLock, Mutex, PoisonError},
};

use libtest_mimic::{Arguments, Failed, Trial};
use stage::Stage;
use tokio::runtime::Runtime;
use weft_fabric::isolation::{self, Entered};

/// The panic of a row whose fault came when all was over: the machine had other things to do meanwhile. That
/// says nothing of what was to be tried, so the seed is played again.
pub(crate) struct TooLate;

/// How often a seed is played until its fault strikes in time.
const PLAYS: u32 = 5;
/// Seeds of a row where the environment does not say.
const SEEDS: u64 = 5;
const SEEDS_VARIABLE: &str = "WEFT_FAULT_SEEDS";
const SEED_VARIABLE: &str = "WEFT_FAULT_SEED";

/// Built with the first row, played on by one row at a time.
static STAGE: LazyLock<Mutex<Stage>> = LazyLock::new(|| Mutex::new(Stage::set()));
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

fn main() {
    match isolation::enter() {
        Ok(Entered::Inside) => {}
        Ok(Entered::Ended(status)) => std::process::exit(status.into()),
        Err(refused) => {
            eprintln!("{refused}");
            std::process::exit(1);
        }
    }
    let seeds = seeds();
    let mut trials = Vec::new();
    let mut add = |name: &str, play: fn(&mut Stage, u64)| {
        let (row, seeds) = (name.to_owned(), seeds.clone());
        trials.push(Trial::test(name, move || all_seeds(&row, seeds, play)));
    };
    add(
        "the_command_line_is_killed",
        programs::the_command_line_is_killed,
    );
    add(
        "a_port_range_that_is_taken",
        programs::a_port_range_that_is_taken,
    );
    add("a_destination_with_another_content", |stage, seed| {
        RUNTIME.block_on(programs::a_destination_with_another_content(stage, seed));
    });
    for row in table::ROWS {
        let seeds = seeds.clone();
        let play = |stage: &mut Stage, seed| RUNTIME.block_on(row::play(stage, row, seed));
        trials.push(Trial::test(row.name, move || {
            all_seeds(row.name, seeds, play)
        }));
    }
    let mut arguments = Arguments::from_args();
    // There is one stage; one thread more would only wait for it.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit();
}

fn seeds() -> RangeInclusive<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    match number(SEED_VARIABLE) {
        Some(seed) => seed..=seed,
        None => 1..=number(SEEDS_VARIABLE).unwrap_or(SEEDS),
    }
}

/// Plays a row with all seeds, each on a stage as it was at first. The first that fails ends it.
fn all_seeds(
    row: &str,
    seeds: RangeInclusive<u64>,
    play: impl Fn(&mut Stage, u64),
) -> Result<(), Failed> {
    let mut stage = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    for seed in seeds {
        let mut plays = 0;
        loop {
            stage.reset();
            plays += 1;
            let Err(why) = catch_unwind(AssertUnwindSafe(|| play(&mut stage, seed))) else {
                break;
            };
            let logs: Vec<String> = (0..stage::NODES)
                .map(|node| format!("--- {}\n{}", stage::name(node), stage.log(node)))
                .collect();
            // A job that was not waited for is still theirs.
            (0..stage::NODES).for_each(|node| stage.kill(node).unwrap());
            if why.is::<TooLate>() && plays < PLAYS {
                eprintln!("{row}: seed {seed} is played again: its fault came too late");
                continue;
            }
            return Err(Failed::from(format!(
                "seed {seed}: {SEED_VARIABLE}={seed} cargo test -p weft-tests --test faults -- {row}\n{}",
                logs.concat()
            )));
        }
    }
    Ok(())
}
