//! `vopr`: plays seed after seed, and says how to repeat what failed.

use std::io::{self, Write};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use weft_sim::campaign::{Failed, Seeds, campaign, committed_seeds, play};
use weft_sim::scenario::{REFUSALS_FROM, Scenario};

/// Plays the transport core over an in-memory network in which everything goes wrong, seed by seed.
///
/// Without an option: fresh seeds for a minute.
#[derive(Debug, Parser)]
#[command(name = "vopr", version)]
struct Options {
    /// Try fresh seeds for this long.
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seconds: Option<u64>,
    /// Start from this seed; without --seeds and --seconds, play it alone and tell how it went.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Try this many seeds.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// First play the committed seeds, those that failed once; alone when nothing else is asked for.
    #[arg(long)]
    fixed: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options, &mut io::stdout().lock()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// Returns how many failed.
fn run(options: &Options, out: &mut impl Write) -> io::Result<u64> {
    let commit = commit();
    writeln!(out, "commit {commit}")?;
    if let (Some(seed), None, None, false) =
        (options.seed, options.seconds, options.seeds, options.fixed)
    {
        return play_one(seed, out);
    }
    // A panic is caught and told as a failure, with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let mut plan = Vec::new();
    if options.fixed {
        let seeds: Vec<u64> = committed_seeds()
            .into_iter()
            .map(|(seed, _)| seed)
            .collect();
        plan.push(("committed", Seeds::These(seeds)));
    }
    let first = options.seed.unwrap_or_else(fresh_seed);
    if let Some(count) = options.seeds {
        let seeds = (0..count).map(|n| first.wrapping_add(n)).collect();
        plan.push(("consecutive", Seeds::These(seeds)));
    } else if options.seconds.is_some() || !options.fixed {
        let time = Duration::from_secs(options.seconds.unwrap_or(60));
        plan.push(("fresh", Seeds::For { first, time }));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut passed, mut failed) = (0, 0);
    for (kind, seeds) in plan {
        match &seeds {
            Seeds::These(list) => writeln!(out, "{} {kind} seeds", list.len())?,
            Seeds::For { first, time } => {
                writeln!(out, "{kind} seeds from {first} for {} s", time.as_secs())?;
            }
        }
        out.flush()?;
        let began = Instant::now();
        // The report runs on the campaign's threads; standard error is not ours to hold.
        let tried = campaign(&seeds, threads, |failure| {
            let _ = write!(io::stderr().lock(), "{}", told(failure, &commit));
        });
        let count = tried.passed + tried.failed;
        let a_minute = count as f64 / began.elapsed().as_secs_f64().max(1e-9) * 60.0;
        writeln!(
            out,
            "{kind}: {count} seeds, {a_minute:.0} a minute
{}",
            tried.totals
        )?;
        passed += tried.passed;
        failed += tried.failed;
    }
    writeln!(out, "{passed} passed, {failed} failed")?;
    Ok(failed)
}

fn play_one(seed: u64, out: &mut impl Write) -> io::Result<u64> {
    writeln!(out, "seed {seed}: {}", Scenario::draw(seed))?;
    match play(seed) {
        Ok(outcome) => {
            writeln!(out, "{outcome:#?}\n1 passed, 0 failed")?;
            Ok(0)
        }
        Err(failure) => {
            writeln!(out, "{:#?}\nFAILED {}", Scenario::draw(seed), failure.text)?;
            writeln!(out, "0 passed, 1 failed")?;
            Ok(1)
        }
    }
}

fn told(failure: &Failed, commit: &str) -> String {
    let Failed {
        seed,
        scenario,
        text,
    } = failure;
    format!(
        "FAILED seed {seed} commit {commit}\n  {text}\n  {scenario}\n  repeat: cargo run --profile vopr -p weft-sim --bin vopr -- --seed {seed}\n"
    )
}

/// The commit that the working tree stands at.
fn commit() -> String {
    let output = Command::new("git")
        .args(["rev-parse", "--short", "HEAD"])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

/// A seed that no one has tried.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Small enough to type.
    RandomState::new().hash_one("vopr") >> 24 | REFUSALS_FROM
}
