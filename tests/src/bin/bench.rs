//! `make bench`: measures what is promised about speed and memory, prints the table and writes it
//! as JSON.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum as _};
use weft_fabric::isolation::{self, Entered};
use weft_tests::bench::transfer::Link;
use weft_tests::bench::{Context, TCP_CONGESTION, Work};
use weft_tests::report::{Report, save};

/// Measures Weft against its peers on this machine.
///
/// Ours and the peer's are measured in turns in one run. Nothing else should run meanwhile: both
/// suffer from it, but not equally.
///
/// The exit status is 0 also when a row does not hold what it must, unless --check is given; 1 when
/// a row could not be measured, which standard error explains.
#[derive(Parser)]
struct Args {
    /// What to measure [default: everything].
    #[arg(value_name = "ROW", value_enum)]
    work: Vec<Work>,
    /// Rounds of each row; medians are taken over them.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Less work and 3 rounds at most, to try a row out: the figures mean little.
    #[arg(long)]
    quick: bool,
    /// What the TransferEngine runs over in the rows that measure it.
    #[arg(long, value_name = "LINK", value_enum, default_value_t = Link::Auto)]
    link: Link,
    /// The exit status is 1 also when a row does not hold.
    #[arg(long)]
    check: bool,
    /// The JSON is written to OUT/NAME.json.
    #[arg(long, value_name = "NAME", default_value = "bench")]
    name: String,
    /// Where the JSON goes, and large files while they are needed.
    #[arg(long, value_name = "OUT", default_value = "target/bench")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Before any thread: what is built for a row ends with this process.
    let refused = match isolation::enter() {
        Ok(Entered::Inside) => None,
        Ok(Entered::Ended(status)) => return ExitCode::from(status),
        Err(refused) => Some(refused),
    };
    let mut work = if args.work.is_empty() {
        Work::value_variants().to_vec()
    } else {
        args.work
    };
    work.sort_unstable();
    work.dedup();
    let rounds = usize::from(args.rounds);
    let context = Context {
        rounds: if args.quick { rounds.min(3) } else { rounds },
        quick: args.quick,
        link: args.link,
        refused,
        scratch: args.out.clone(),
    };
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let (mut rows, mut unmeasured) = (Vec::new(), false);
    for work in work {
        let name = work
            .to_possible_value()
            .map(|v| v.get_name().to_owned())
            .unwrap_or_default();
        say(&format!("measuring {name}"));
        match work.measure(&context) {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                unmeasured = true;
                say(&format!("{name}: {error}"));
            }
        }
    }
    let held = rows.iter().all(|row| row.holds);
    let mut report = Report::new(rows);
    report.origin.machine += &format!(", peers' TCP {TCP_CONGESTION}");
    // What else ran was measured with it.
    if let Some(load) = load.split_whitespace().next() {
        report.origin.machine += &format!(", load {load} at the start");
    }
    // Nobody reads the table when standard output is closed; the JSON is still wanted.
    let _ = io::stdout().write_all(report.table().as_bytes());
    match save(&report, &args.out, &args.name) {
        Ok(path) => say(&format!("written to {}", path.display())),
        Err(error) => {
            unmeasured = true;
            say(&error.to_string());
        }
    }
    ExitCode::from(u8::from(unmeasured || (args.check && !held)))
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "bench: {text}");
}
