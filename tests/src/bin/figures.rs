//! `make figures`: measures the experiments of papers on this machine and draws them.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum as _};
use weft_fabric::isolation::{self, Entered};
use weft_tests::bench::Context;
use weft_tests::bench::transfer::Link;
use weft_tests::figures::Figure;

/// Measures experiments of papers on this machine and draws them: 6, 8 and 13 of "Alibaba Stellar", and te8 of TransferEngine,
/// which needs NIXL and Mooncake.
///
/// Each figure is written as OUT/figure-NAME.svg, its numbers as OUT/figure-NAME.json. Nothing
/// else should run meanwhile.
///
/// The exit status is 1 when a figure could not be made, which standard error explains.
#[derive(Parser)]
struct Args {
    /// Which figures [default: all].
    #[arg(value_name = "FIGURE", value_enum)]
    figures: Vec<Figure>,
    /// Rounds of each point; medians are taken over them.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Less work, to try a figure out: its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// Where the figures go.
    #[arg(long, value_name = "OUT", default_value = "target/figures")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Before any thread: what is built for a figure ends with this process.
    let refused = match isolation::enter() {
        Ok(Entered::Inside) => None,
        Ok(Entered::Ended(status)) => return ExitCode::from(status),
        Err(refused) => Some(refused),
    };
    let mut figures = match args.figures.is_empty() {
        true => Figure::value_variants().to_vec(),
        false => args.figures,
    };
    figures.sort_unstable();
    figures.dedup();
    let context = Context {
        rounds: usize::from(args.rounds),
        quick: args.quick,
        link: Link::Udp,
        refused,
        scratch: args.out.clone(),
    };
    let mut status = ExitCode::SUCCESS;
    for figure in figures {
        let name = figure.name();
        say(&format!("measuring {name}"));
        match figure.draw(&context, &args.out) {
            Ok(path) => say(&format!("written to {}", path.display())),
            Err(error) => {
                status = ExitCode::FAILURE;
                say(&format!("{name}: {error}"));
            }
        }
    }
    status
}

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "figures: {text}");
}
