//! What is shown while it runs: a bar per destination on a terminal, a line a second elsewhere.

use std::{
    collections::VecDeque,
    io::Write,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use weft_fabric::quantity;
use weft_planner::Seconds;
use weft_proto::agent::v1::State;
use weft_transfer::{Destination, DestinationPhase, Transfer};

/// Between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// A rate is what came within so long: it follows a change and does not flicker.
const RATE_OVER: Duration = Duration::from_secs(2);

/// Of a bar.
const BAR_COLUMNS_MAX: u16 = 32;
/// A shorter bar shows nothing.
const BAR_COLUMNS_MIN: u16 = 8;
/// A name and most words, with the spaces between them.
const WORDS_COLUMNS: u16 = 48;

/// Follows a job on standard error.
pub(super) struct Progress {
    rates: Vec<Rate>,
    to: Shown,
}

enum Shown {
    Bars {
        all: MultiProgress,
        bars: Vec<ProgressBar>,
        style: ProgressStyle,
    },
    Lines {
        next: Instant,
    },
    Nothing,
}

/// The bytes of one destination over the last two seconds.
#[derive(Debug, Default)]
pub struct Rate {
    seen: VecDeque<(Instant, u64)>,
}

impl Rate {
    /// So many were there at that time.
    pub fn note(&mut self, now: Instant, bytes: u64) {
        self.seen.push_back((now, bytes));
        while self.seen.len() > 2 && now - self.seen[0].0 > RATE_OVER {
            self.seen.pop_front();
        }
    }

    /// Bytes per second; 0 while nothing is known.
    pub fn per_second(&self) -> u64 {
        let (Some((from, before)), Some((to, after))) = (self.seen.front(), self.seen.back())
        else {
            return 0;
        };
        let seconds = (*to - *from).as_secs_f64();
        if seconds > 0.0 {
            (after.saturating_sub(*before) as f64 / seconds) as u64
        } else {
            0
        }
    }
}

impl Progress {
    pub(super) fn new(terminal: bool, quiet: bool) -> Self {
        let to = match (quiet, terminal) {
            (true, _) => Shown::Nothing,
            (false, true) => return Self::bars(ProgressDrawTarget::stderr(), style()),
            (false, false) => Shown::Lines {
                next: Instant::now() + LINE_INTERVAL,
            },
        };
        let rates = Vec::new();
        Self { rates, to }
    }

    fn bars(target: ProgressDrawTarget, style: ProgressStyle) -> Self {
        Self {
            rates: Vec::new(),
            to: Shown::Bars {
                all: MultiProgress::with_draw_target(target),
                bars: Vec::new(),
                style,
            },
        }
    }

    /// Shows how the job stands.
    pub(super) fn show(&mut self, transfer: &Transfer, err: &mut impl Write) {
        let now = Instant::now();
        let all_bytes = transfer.listing().map(|_| transfer.bytes());
        let mut texts = Vec::new();
        for (i, destination) in transfer.destinations().enumerate() {
            if self.rates.len() <= i {
                self.rates.push(Rate::default());
            }
            self.rates[i].note(now, destination.received);
            texts.push(text(destination, all_bytes, self.rates[i].per_second()));
        }
        match &mut self.to {
            Shown::Bars { all, bars, style } => {
                for ((i, destination), text) in transfer.destinations().enumerate().zip(texts) {
                    // A bar of length 0 is drawn as full.
                    let length = all_bytes.unwrap_or_default().max(1);
                    let position = match &destination.phase {
                        DestinationPhase::Verified { .. } => length,
                        _ => destination.bytes,
                    };
                    if let Some(bar) = bars.get(i) {
                        bar.update(|state| {
                            state.set_len(length);
                            state.set_pos(position);
                        });
                        bar.set_message(text);
                        continue;
                    }
                    // Whole before it is shown: every change of a shown bar may be drawn at once.
                    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
                        .with_style(style.clone())
                        .with_prefix(destination.location.node.clone())
                        .with_message(text)
                        .with_position(position);
                    bar.set_length(length);
                    let bar = all.add(bar);
                    bar.tick();
                    bars.push(bar);
                }
            }
            Shown::Lines { next } if now >= *next => {
                *next = now + LINE_INTERVAL;
                let parts = transfer.destinations().zip(texts);
                let parts = parts.map(|(one, text)| format!("{} {text}", one.location.node));
                let line = parts.collect::<Vec<_>>().join("; ");
                // Nobody may be reading it.
                let _ = writeln!(err, "{line}");
            }
            Shown::Lines { .. } | Shown::Nothing => {}
        }
    }

    /// Says something once, above the bars.
    pub(super) fn say(&mut self, text: &str, err: &mut impl Write) {
        match &self.to {
            Shown::Bars { all, .. } => {
                let _ = all.println(text);
            }
            Shown::Lines { .. } => {
                let _ = writeln!(err, "{text}");
            }
            Shown::Nothing => {}
        }
    }

    /// Leaves the last state of the bars on the screen, and what follows below them.
    pub(super) fn end(&mut self, err: &mut impl Write) {
        if let Shown::Bars { bars, .. } = &self.to {
            bars.iter().for_each(ProgressBar::abandon);
            let _ = writeln!(err);
        }
    }
}

/// How a bar looks on the terminal of standard error, its name before it and words behind it.
pub fn style() -> ProgressStyle {
    let (_, columns) = console::Term::stderr().size();
    style_within(columns)
}

/// The bar takes what the words leave, and on a narrow terminal there is none.
fn style_within(columns: u16) -> ProgressStyle {
    let bar = columns.saturating_sub(WORDS_COLUMNS).min(BAR_COLUMNS_MAX);
    let bar = match bar {
        ..BAR_COLUMNS_MIN => String::new(),
        bar => format!("{{bar:{bar}}} "),
    };
    ProgressStyle::with_template(&format!("{{prefix:8}} {bar}{{wide_msg}}"))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("█▉▊▋▌▍▎▏ ")
}

/// Bytes, rate and the time that is left, or the state where that says more.
fn text(destination: &Destination, all: Option<u64>, rate: u64) -> String {
    let state = match &destination.phase {
        DestinationPhase::Verified { .. } if destination.was_there() => {
            "verified, was there already".to_owned()
        }
        DestinationPhase::Verified { since_start } => {
            format!("verified in {}", Seconds(since_start.as_secs_f64()))
        }
        DestinationPhase::Failed(failure) => format!("failed: {}", failure.reason),
        DestinationPhase::Retrying(failure) => format!("waiting: {}", failure.reason),
        DestinationPhase::InProgress => match destination.progress.state() {
            State::Verifying => "verifying".to_owned(),
            State::Transferring if rate > 0 => {
                let left = all.unwrap_or_default().saturating_sub(destination.bytes);
                let left = Seconds(left as f64 / rate as f64);
                format!("{}/s, ETA {left}", quantity::bytes(rate))
            }
            State::Transferring if destination.bytes == 0 => "waiting for bytes".to_owned(),
            State::Transferring => "stalled".to_owned(),
            _ => "preparing".to_owned(),
        },
    };
    let bytes = quantity::bytes(destination.bytes);
    match all {
        Some(all) => format!("{bytes} of {}, {state}", quantity::bytes(all)),
        // The source has not said yet how many there are.
        None => state,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use indicatif::TermLike;
    use weft_planner::{Strategy, Topology};
    use weft_proto::agent::v1::{Algorithm, Overwrite, ProgressResponse, Symlinks};
    use weft_transfer::{Failure, LeaderContext, NodeLocation, Spec, Timing};

    use super::*;

    #[test]
    fn a_destination_is_told_by_bytes_rate_and_time_left_or_by_its_state() {
        let place = NodeLocation {
            node: "node1".into(),
            root: "data".into(),
            path: "x".into(),
        };
        let failure = Failure {
            node: "node1".into(),
            reason: "NodeUnreachable".into(),
            message: String::new(),
            retriable: true,
        };
        let report = |state: State| ProgressResponse {
            state: state.into(),
            ..ProgressResponse::default()
        };
        let moving = report(State::Transferring);
        let troubled = DestinationPhase::Retrying(failure.clone());
        let verified = DestinationPhase::Verified {
            since_start: Duration::from_millis(500),
        };
        let rate = 25_000_000;
        for (phase, report, rate, expected) in [
            (
                DestinationPhase::InProgress,
                report(State::Pending),
                0,
                "preparing",
            ),
            (DestinationPhase::InProgress, moving.clone(), 0, "stalled"),
            (
                DestinationPhase::InProgress,
                moving.clone(),
                rate,
                "25 MB/s, ETA 2.00 s",
            ),
            (
                DestinationPhase::InProgress,
                report(State::Verifying),
                rate,
                "verifying",
            ),
            (troubled, moving.clone(), rate, "waiting: NodeUnreachable"),
            (
                DestinationPhase::Failed(failure),
                moving.clone(),
                rate,
                "failed: NodeUnreachable",
            ),
            (verified, moving, rate, "verified in 500 ms"),
        ] {
            let view = Destination {
                location: place.clone(),
                phase,
                progress: report,
                bytes: 50_000_000,
                received: 50_000_000,
            };
            let expected = format!("50 MB of 100 MB, {expected}");
            assert_eq!(text(&view, Some(100_000_000), rate), expected);
        }
        let was_there = Destination {
            location: place,
            phase: DestinationPhase::Verified {
                since_start: Duration::from_millis(1),
            },
            progress: report(State::Verified),
            bytes: 50_000_000,
            received: 0,
        };
        assert_eq!(text(&was_there, None, 0), "verified, was there already");
    }

    /// A terminal that remembers what was written to it.
    #[derive(Clone, Debug)]
    struct Written {
        columns: u16,
        texts: Arc<Mutex<Vec<String>>>,
    }

    impl TermLike for Written {
        fn width(&self) -> u16 {
            self.columns
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.texts.lock().unwrap().push(text.to_owned());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What a terminal of that width shows of a job that has just begun.
    fn first_frames(columns: u16) -> Vec<String> {
        let place = |node: &str| NodeLocation {
            node: node.into(),
            root: "data".into(),
            path: "x".into(),
        };
        let (transfer, _) = Transfer::begin(Spec {
            uid: "uid".into(),
            name: None,
            source: place("node0"),
            symlinks: Symlinks::Follow,
            object: None,
            destinations: vec![place("node1"), place("node2")],
            topology: Topology {
                nodes: Vec::new(),
                uplinks: Vec::new(),
            },
            strategy: Strategy::Auto,
            payload_share: 1.0,
            algorithm: Algorithm::Blake3,
            expect: String::new(),
            overwrite: Overwrite::IfDifferent,
            timing: Timing::INTERACTIVE,
            leader: LeaderContext::ONLY,
            backoff_limit: 0,
        });
        let written = Written {
            columns,
            texts: Arc::default(),
        };
        let target = ProgressDrawTarget::term_like(Box::new(written.clone()));
        Progress::bars(target, style_within(columns)).show(&transfer, &mut io::sink());
        let texts = written.texts.lock().unwrap();
        texts.iter().map(|text| text.trim().to_owned()).collect()
    }

    #[test]
    fn a_bar_is_empty_and_has_its_text_from_the_first_frame_on() {
        let frames = first_frames(120);
        let bars = frames.iter().filter(|text| text.starts_with("node"));
        assert!(bars.clone().count() > 1, "{frames:?}");
        for bar in bars {
            assert!(
                bar.ends_with("preparing") && !bar.contains('█'),
                "{frames:?}"
            );
        }
    }

    #[test]
    fn a_line_fits_a_terminal_of_30_columns() {
        for columns in [30, 60, 80] {
            let frames = first_frames(columns);
            assert!(
                frames.iter().any(|text| text.ends_with("preparing")),
                "{frames:?}"
            );
            let widest = frames.iter().map(|text| text.chars().count()).max();
            assert!(widest <= Some(columns.into()), "{frames:?}");
        }
    }

    #[test]
    fn a_rate_is_what_came_within_the_last_two_seconds() {
        let (start, mut rate) = (Instant::now(), Rate::default());
        assert_eq!(rate.per_second(), 0);
        for tenth in 0..=50 {
            let (at, bytes) = (Duration::from_millis(100 * tenth), 1_000 * tenth.max(20));
            rate.note(start + at, bytes);
        }
        assert_eq!(
            rate.per_second(),
            10_000,
            "the two seconds without a byte are over"
        );
    }
}
