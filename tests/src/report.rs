//! The benchmarks' table, and the JSON that says the same to a machine.

use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One measured row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its id in the issue and in `docs/`.
    pub id: String,
    /// What was done.
    pub work: String,
    /// The unit of `ours` and `theirs`.
    pub unit: String,
    /// Our median.
    pub ours: f64,
    /// What we are compared with; empty when `must` is absolute.
    pub peer: String,
    /// The peer's median in the same run.
    pub theirs: Option<f64>,
    /// The median of the ratios, round by round.
    pub ratio: Option<f64>,
    /// What must hold, as text.
    pub must: String,
    /// Whether it does.
    pub holds: bool,
}

/// A benchmark's result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was measured, when and where.
    #[serde(flatten)]
    pub origin: Origin,
    /// The rows.
    pub rows: Vec<Row>,
}

/// What was measured, when and where.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// The commit that was measured; `-dirty` when the tree differs from it.
    pub commit: String,
    /// The day (UTC).
    pub date: String,
    /// Processor, cores, kernel.
    pub machine: String,
}

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The directory or file could not be written.
    #[error("cannot write {path}: {source}: is the directory writable?")]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

impl Origin {
    /// This commit, today, on this machine.
    pub fn now() -> Origin {
        let commit = run("git", &["describe", "--always", "--dirty", "--abbrev=12"]);
        let format = time::macros::format_description!("[year]-[month]-[day]");
        let date = time::OffsetDateTime::now_utc()
            .format(format)
            .unwrap_or_default();
        Origin {
            commit,
            date,
            machine: machine(),
        }
    }
}

/// Writes `DIRECTORY/NAME.json`.
///
/// # Errors
/// [`ReportError`].
pub fn save(record: &impl Serialize, directory: &Path, name: &str) -> Result<PathBuf, ReportError> {
    let path = directory.join(format!("{name}.json"));
    let fail = |source| ReportError::Write {
        path: path.clone(),
        source,
    };
    std::fs::create_dir_all(directory).map_err(fail)?;
    let text = serde_json::to_string_pretty(record).map_err(|e| fail(e.into()))?;
    std::fs::write(&path, text + "\n").map_err(fail)?;
    Ok(path)
}

impl Report {
    /// A report of `rows`, measured now, on this machine.
    pub fn new(rows: Vec<Row>) -> Report {
        Report {
            origin: Origin::now(),
            rows,
        }
    }

    /// The table.
    pub fn table(&self) -> String {
        let heads = [
            "id", "work", "ours", "theirs", "peer", "ratio", "must", "holds",
        ];
        let cells = self.rows.iter().map(|row| {
            let theirs = row.theirs.map_or(String::new(), |n| figure(n, &row.unit));
            let ratio = row.ratio.map_or(String::new(), |n| format!("{n:.2}"));
            let holds = if row.holds { "yes" } else { "NO" };
            let ours = figure(row.ours, &row.unit);
            [
                &row.id, &row.work, &ours, &theirs, &row.peer, &ratio, &row.must, holds,
            ]
            .map(str::to_owned)
        });
        let mut table: Vec<[String; 8]> = vec![heads.map(str::to_owned)];
        table.extend(cells);
        let width = |c: usize| {
            table
                .iter()
                .map(|r| r[c].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..8).map(width).collect();
        let Origin {
            commit,
            date,
            machine,
        } = &self.origin;
        let mut out = format!("{commit} · {date} · {machine}\n");
        for row in &table {
            let line: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            let _ = writeln!(out, "{}", line.join("  ").trim_end());
        }
        out
    }
}

fn figure(value: f64, unit: &str) -> String {
    let digits = if value >= 100.0 { 0 } else { 2 };
    format!("{value:.digits$} {unit}")
}

/// The median; 0 of nothing.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output
        .ok()
        .filter(|o| o.status.success())
        .map(|o| o.stdout)
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    if text.is_empty() {
        "unknown".to_owned()
    } else {
        text
    }
}

fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |m| {
        m.trim_start_matches([' ', '\t', ':'])
    });
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{model}, {cores} cores, Linux {}", run("uname", &["-r"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert!((median(&mut [4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
        assert!((median(&mut [3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn the_table_marks_what_does_not_hold() {
        let row = Row {
            id: "core-1".into(),
            work: "a chunk of one packet".into(),
            unit: "ns".into(),
            ours: 400.0,
            peer: String::new(),
            theirs: None,
            ratio: None,
            must: "≤ 330 ns".into(),
            holds: false,
        };
        let table = Report::new(vec![row]).table();
        assert!(
            table
                .lines()
                .nth(2)
                .is_some_and(|line| line.ends_with("NO")),
            "{table}"
        );
    }
}
