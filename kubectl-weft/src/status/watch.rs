//! Jobs as they go on: bars on a terminal, a line a second elsewhere.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    time::Instant,
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use weft_cli::{
    play::{Rate, bar_style},
    printable,
};
use weft_crds::{DestinationState, DestinationStatus, Phase, TransferProgress};

use super::view;
use crate::output::say;

/// Bars that a screen holds; the counts of a job are of all.
const BARS_MAX: usize = 32;

/// What is shown of something: its name, how far it is, and words.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bar {
    name: String,
    position: u64,
    length: u64,
    text: String,
}

/// Follows jobs on standard error.
pub(super) struct Watch {
    /// One job is followed, destination by destination.
    one: bool,
    rates: BTreeMap<String, Rate>,
    bars: Option<(MultiProgress, BTreeMap<String, ProgressBar>)>,
}

impl Watch {
    pub(super) fn new(one: bool, terminal: bool) -> Self {
        let target = terminal.then(ProgressDrawTarget::stderr);
        Self {
            one,
            rates: BTreeMap::new(),
            bars: target.map(|target| (MultiProgress::with_draw_target(target), BTreeMap::new())),
        }
    }

    /// Shows how they are now.
    pub(super) fn show(
        &mut self,
        jobs: &[TransferProgress],
        now: Instant,
        err: &mut impl Write,
    ) -> io::Result<()> {
        let all = match jobs {
            [job] if self.one => self.destinations(job, now),
            jobs => jobs.iter().map(bar_of_job).collect(),
        };
        let Some((screen, shown)) = &mut self.bars else {
            let parts = all.iter().map(|bar| format!("{} {}", bar.name, bar.text));
            let mut line = parts.collect::<Vec<_>>().join("; ");
            if let [job] = jobs
                && (all.is_empty() || job.status.phase == Phase::Waiting)
            {
                line = format!("{:?}: {}", job.status.phase, job.status.message);
            }
            return say(line.trim_end_matches(": "), err);
        };
        for bar in all {
            if let Some(known) = shown.get(&bar.name) {
                known.set_length(bar.length);
                known.set_position(bar.position);
                known.set_message(bar.text);
                continue;
            }
            // Whole before it is shown: every change of a shown bar may be drawn at once.
            let new = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
                .with_style(bar_style())
                .with_prefix(bar.name.clone())
                .with_message(bar.text)
                .with_position(bar.position);
            new.set_length(bar.length);
            let new = screen.add(new);
            new.tick();
            shown.insert(bar.name, new);
        }
        Ok(())
    }

    /// Says something once, above the bars.
    pub(super) fn say(&self, text: &str, err: &mut impl Write) -> io::Result<()> {
        match &self.bars {
            Some((screen, _)) => screen.println(printable::line(text).to_string()),
            None => say(text, err),
        }
    }

    /// Leaves the last state of the bars on the screen, and what follows below them.
    pub(super) fn end(&self, err: &mut impl Write) -> io::Result<()> {
        if let Some((_, shown)) = &self.bars {
            shown.values().for_each(ProgressBar::abandon);
            writeln!(err)?;
        }
        Ok(())
    }

    fn destinations(&mut self, job: &TransferProgress, now: Instant) -> Vec<Bar> {
        let manifest = job.status.manifest.as_ref();
        let all = manifest.map(|manifest| view::positive(manifest.bytes));
        let mut bars = Vec::new();
        for one in job.status.destinations.iter().take(BARS_MAX) {
            let rate = self.rates.entry(one.node.clone()).or_default();
            rate.note(now, view::positive(one.bytes));
            bars.push(bar_of_destination(one, all, rate.per_second()));
        }
        bars
    }
}

fn bar_of_destination(one: &DestinationStatus, all: Option<u64>, per_second: u64) -> Bar {
    // A bar of length 0 is drawn as full.
    let length = all.unwrap_or_default().max(1);
    let position = match one.state {
        DestinationState::Verified => length,
        _ => view::positive(one.bytes),
    };
    Bar {
        name: one.node.clone(),
        position,
        length,
        text: printable::line(view::destination(one, all, per_second)).to_string(),
    }
}

fn bar_of_job(job: &TransferProgress) -> Bar {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let length = view::positive(job.status.bytes_total).max(1);
    let position = match job.status.phase {
        Phase::Complete => length,
        _ => view::positive(job.status.bytes),
    };
    Bar {
        name: format!("{namespace}/{}", view::name(job)),
        position,
        length,
        text: view::job(job),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::view::tests::job, *};

    fn lines(watch: &mut Watch, jobs: &[TransferProgress], now: Instant) -> String {
        let mut err = Vec::new();
        watch.show(jobs, now, &mut err).unwrap();
        String::from_utf8(err).unwrap()
    }

    #[test]
    fn without_a_terminal_a_line_says_what_the_bars_would() {
        let mut watch = Watch::new(true, false);
        let start = Instant::now();
        let mut one = job("minilm", Phase::Transferring);
        let first = lines(&mut watch, std::slice::from_ref(&one), start);
        assert_eq!(
            first,
            "n2 25 MB of 100 MB, stalled; n3 100 MB of 100 MB, verified\n"
        );
        one.status.destinations[0].bytes = 50_000_000;
        let later = start + Duration::from_secs(1);
        let then = lines(&mut watch, std::slice::from_ref(&one), later);
        assert!(
            then.starts_with("n2 50 MB of 100 MB, 25 MB/s, ETA 2.00 s;"),
            "{then}"
        );
    }

    #[test]
    fn a_job_that_waits_says_for_what() {
        let mut watch = Watch::new(true, false);
        let mut waiting = job("minilm", Phase::Waiting);
        waiting.status.message = "no node matches".to_owned();
        waiting.status.destinations.clear();
        let line = lines(&mut watch, &[waiting], Instant::now());
        assert_eq!(line, "Waiting: no node matches\n");
    }

    #[test]
    fn several_jobs_have_a_bar_each_and_a_complete_one_is_full() {
        let (a, b) = (job("a", Phase::Transferring), job("b", Phase::Complete));
        assert_eq!(bar_of_job(&a).position, 125_000_000);
        assert_eq!(bar_of_job(&a).name, "team-a/a");
        let full = bar_of_job(&b);
        assert_eq!(full.position, full.length);
        let line = lines(&mut Watch::new(false, false), &[a, b], Instant::now());
        assert!(line.contains("Transferring; team-a/b"), "{line}");
    }
}
