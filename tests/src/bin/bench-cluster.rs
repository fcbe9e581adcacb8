//! `make bench-cluster`: measures operator, agents and devices of pods on a real API server, prints the table and
//! writes it as JSON.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use weft_tests::bench_cluster::{Size, measure};
use weft_tests::report::{Report, save};

/// Measures what the operator costs with many nodes and jobs, and how long a user waits.
///
/// Needs root, and the programs that hack/cluster-binaries.sh builds. The exit status is 0 also when
/// a row does not hold what it must; 1 when nothing could be measured.
#[derive(Parser)]
struct Args {
    /// Simulated agents.
    #[arg(long, value_name = "N", default_value_t = 200)]
    agents: u16,
    /// Jobs; with 0, neither these nor anything of the real nodes is measured.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    jobs: u16,
    /// How long the jobs are watched, seconds; a transfer takes half of that.
    #[arg(long, value_name = "S", default_value_t = 600)]
    seconds: u16,
    /// Simulated agents of a second cluster, for which one job is planned; 0 for none. 5000 take some
    /// minutes to make.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    wide: u16,
    /// Jobs of the largest size that the API server takes, in a third cluster; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    largest: u16,
    /// Leaves out what virtual devices of pods cost, which is measured in a cluster of their own.
    #[arg(long)]
    no_devices: bool,
    /// The program that serves the cluster: target/release/cluster.
    #[arg(long, value_name = "PROGRAM")]
    server: PathBuf,
    /// Archives of the images operator, agent, devices and verbs, as hack/images.sh makes them.
    #[arg(required = true, value_name = "IMAGE.tar")]
    images: Vec<PathBuf>,
    /// The JSON is written to OUT/cluster.json, and what the cluster needs to OUT/cluster.
    #[arg(long, value_name = "OUT", default_value = "target/bench")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let size = Size {
        agents: args.agents.into(),
        jobs: args.jobs.into(),
        watched: Duration::from_secs(args.seconds.into()),
        wide: args.wide.into(),
        largest: args.largest.into(),
        devices: !args.no_devices,
    };
    let rows = match measure(&size, &args.out, &args.server, &args.images, &mut say) {
        Ok(rows) => rows,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    let report = Report::new(rows);
    let _ = write!(io::stdout(), "{}", report.table());
    match save(&report, &args.out, "cluster") {
        Ok(path) => {
            say(&format!("written to {}", path.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    let _ = writeln!(io::stderr(), "bench-cluster: {line}");
}
