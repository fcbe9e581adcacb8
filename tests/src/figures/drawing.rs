//! What a figure shows: panels of lines.

use serde::Serialize;

/// A figure.
#[derive(Debug, Serialize)]
pub(super) struct Drawing {
    pub title: String,
    pub panels: Vec<Panel>,
}

/// Lines over one pair of axes.
#[derive(Debug, Serialize)]
pub(super) struct Panel {
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

/// An axis. It is logarithmic unless it shows a share.
#[derive(Debug, Serialize)]
pub(super) struct Axis {
    pub label: &'static str,
    pub unit: Unit,
}

/// The unit of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Unit {
    Bytes,
    BytesPerSecond,
    PerSecond,
    Seconds,
    /// Of one.
    Share,
}

/// A line: x and y of each point.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub name: String,
    pub origin: LineOrigin,
    pub points: Vec<(f64, f64)>,
}

/// Where the numbers of a line are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LineOrigin {
    /// This machine, in this run.
    Measured,
    /// A model, which the figure's module states.
    Model,
    /// The text of the paper.
    Paper,
}

impl Unit {
    /// A value as the axis shows it.
    pub(super) fn text(self, value: f64) -> String {
        let in_steps = |value: f64, step: f64, names: &[&str]| {
            let steps = value.log(step).floor().max(0.0) as usize;
            let steps = steps.min(names.len() - 1);
            format!(
                "{} {}",
                short(value / step.powi(steps as i32)),
                names[steps]
            )
        };
        match self {
            Self::Bytes => in_steps(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"]),
            Self::BytesPerSecond => in_steps(value, 1e3, &["B/s", "kB/s", "MB/s", "GB/s"]),
            Self::PerSecond => in_steps(value, 1e3, &["/s", "thousand/s", "million/s"]),
            Self::Seconds => in_steps(value * 1e9, 1e3, &["ns", "µs", "ms", "s"]),
            Self::Share => format!("{value:.1}"),
        }
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Line {
    /// A line of one origin.
    pub(super) fn new(
        origin: LineOrigin,
        name: impl Into<String>,
        points: Vec<(f64, f64)>,
    ) -> Self {
        Self {
            name: name.into(),
            origin,
            points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_shows_a_value_with_the_largest_unit_that_fits() {
        assert_eq!(Unit::Bytes.text(2.0), "2 B");
        assert_eq!(Unit::Bytes.text(1536.0), "1.5 KiB");
        assert_eq!(Unit::Bytes.text(2f64.powi(30) * 1600.0), "1.56 TiB");
        assert_eq!(Unit::BytesPerSecond.text(5e5), "500 kB/s");
        assert_eq!(Unit::PerSecond.text(2.5e5), "250 thousand/s");
        assert_eq!(Unit::Seconds.text(2e-6), "2 µs");
        assert_eq!(Unit::Seconds.text(390.0), "390 s");
        assert_eq!(Unit::Share.text(1.0), "1.0");
    }
}
