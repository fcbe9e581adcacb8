//! What is shown while it runs: a bar per destination on a terminal, a line a second elsewhere.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use weft_planner::Seconds;
use weft_proto::agent::v1::State;

use crate::{
    operator::{DestinationView, Job, Standing},
    quantity,
};

/// Between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Follows a job on standard error.
pub(super) enum Progress {
    Bars {
        all: MultiProgress,
        bars: Vec<ProgressBar>,
    },
    Lines {
        next: Instant,
    },
}

impl Progress {
    pub(super) fn new(terminal: bool) -> Self {
        if terminal {
            Self::Bars {
                all: MultiProgress::new(),
                bars: Vec::new(),
            }
        } else {
            Self::Lines {
                next: Instant::now() + LINE_INTERVAL,
            }
        }
    }

    /// Shows how the job stands.
    pub(super) fn show(&mut self, job: &Job, err: &mut impl Write) {
        let bytes = job.bytes();
        match self {
            Self::Bars { all, bars } => {
                for (i, destination) in job.destinations().enumerate() {
                    if bars.len() <= i {
                        let bar = all.add(ProgressBar::new(0).with_style(style()));
                        bar.set_prefix(destination.place.node.clone());
                        bars.push(bar);
                    }
                    bars[i].set_length(bytes);
                    bars[i].set_position(destination.bytes);
                    bars[i].set_message(text(&destination, bytes));
                }
            }
            Self::Lines { next } if Instant::now() >= *next => {
                *next = Instant::now() + LINE_INTERVAL;
                let parts = job.destinations().map(|destination| {
                    format!("{} {}", destination.place.node, text(&destination, bytes))
                });
                let line = parts.collect::<Vec<_>>().join("; ");
                // Nobody may be reading it.
                let _ = writeln!(err, "{line}");
            }
            Self::Lines { .. } => {}
        }
    }

    /// Says something once, above the bars.
    pub(super) fn say(&mut self, text: &str, err: &mut impl Write) {
        match self {
            Self::Bars { all, .. } => {
                let _ = all.println(text);
            }
            Self::Lines { .. } => {
                let _ = writeln!(err, "{text}");
            }
        }
    }

    /// Leaves the last state of the bars on the screen.
    pub(super) fn end(self) {
        if let Self::Bars { bars, .. } = self {
            bars.iter().for_each(ProgressBar::abandon);
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{prefix:8} {bar:32} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("█▉▊▋▌▍▎▏ ")
}

/// Bytes, rate and the time that is left, or the state where that says more.
fn text(destination: &DestinationView<'_>, all: u64) -> String {
    let bytes = format!(
        "{} of {}",
        quantity::bytes(destination.bytes),
        quantity::bytes(all)
    );
    match destination.standing {
        Standing::Verified { after } => {
            format!("{bytes}, verified in {}", Seconds(after.as_secs_f64()))
        }
        Standing::Failed(refusal) => format!("{bytes}, failed: {}", refusal.reason),
        Standing::Troubled(refusal) => format!("{bytes}, waiting: {}", refusal.reason),
        Standing::Waiting => {
            let rate = destination.report.rate;
            match destination.report.state() {
                State::Verifying => format!("{bytes}, verifying"),
                State::Transferring if rate > 0 => {
                    let left = all.saturating_sub(destination.bytes) as f64 / rate as f64;
                    format!(
                        "{bytes}, {}/s, ETA {}",
                        quantity::bytes(rate),
                        Seconds(left)
                    )
                }
                State::Transferring => bytes,
                _ => format!("{bytes}, preparing"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_proto::agent::v1::ProgressResponse;

    use super::*;
    use crate::operator::{Place, Refusal};

    #[test]
    fn a_destination_is_told_by_bytes_rate_and_time_left_or_by_its_state() {
        let place = Place {
            node: "node1".into(),
            root: "data".into(),
            path: "x".into(),
        };
        let refusal = Refusal {
            node: "node1".into(),
            reason: "NodeUnreachable".into(),
            message: String::new(),
            retriable: true,
        };
        let report = |state: State, rate| ProgressResponse {
            state: state.into(),
            rate,
            ..ProgressResponse::default()
        };
        let moving = report(State::Transferring, 25_000_000);
        for (standing, report, expected) in [
            (
                Standing::Waiting,
                report(State::Pending, 0),
                "50 MB of 100 MB, preparing",
            ),
            (
                Standing::Waiting,
                report(State::Transferring, 0),
                "50 MB of 100 MB",
            ),
            (
                Standing::Waiting,
                moving.clone(),
                "50 MB of 100 MB, 25 MB/s, ETA 2.00 s",
            ),
            (
                Standing::Waiting,
                report(State::Verifying, 0),
                "50 MB of 100 MB, verifying",
            ),
            (
                Standing::Troubled(refusal.clone()),
                moving.clone(),
                "50 MB of 100 MB, waiting: NodeUnreachable",
            ),
            (
                Standing::Failed(refusal),
                moving.clone(),
                "50 MB of 100 MB, failed: NodeUnreachable",
            ),
            (
                Standing::Verified {
                    after: Duration::from_millis(500),
                },
                moving,
                "50 MB of 100 MB, verified in 500 ms",
            ),
        ] {
            let view = DestinationView {
                place: &place,
                standing: &standing,
                report: &report,
                bytes: 50_000_000,
            };
            assert_eq!(text(&view, 100_000_000), expected);
        }
    }
}
