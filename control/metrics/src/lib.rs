//! Every metric of Weft, declared once ([`table`]): name, type, labels, how many series there are at most, and what it says.
//!
//! Programs export metrics by their declarations only: [`register`] shows what is counted as it happens, and [`Out`] what is
//! computed for each request. [`Samples`] reads what they have exported. From the same declarations `make generate` writes docs/metrics.md, and tests check what
//! programs export, and what dashboards and alerts ask for. Names follow Prometheus' conventions: base units, `_total` at a
//! counter's end, `_info` at that of an info.

mod export;
mod read;
pub mod table;

use std::collections::BTreeMap;

pub use export::{Out, Value, register};
pub use read::{BadPage, Samples};

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It grows, and begins again at 0 with what it counts for: its program, or a job's attempt.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts of observations by their size.
    Histogram,
    /// Always 1: its labels are what it says.
    Info,
}

impl Kind {
    /// As OpenMetrics calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// What ends the names of its series, and not that of the metric itself.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }

    /// The name of the metric itself, as OpenMetrics has it.
    fn family(self, name: &'static str) -> &'static str {
        name.strip_suffix(self.suffix()).unwrap_or(name)
    }
}

/// Where a metric is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// `/metrics` of each agent.
    Agent,
    /// `/metrics/paths` of each agent, for a look by hand.
    Paths,
    /// `/metrics` of each operator.
    Operator,
}

/// A label.
#[derive(Debug, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// What its values are, and how many there can be.
    pub says: &'static str,
}

/// The declaration of a metric with so many labels.
#[derive(Debug)]
pub struct Metric<const N: usize> {
    /// As a query names it: that of its series.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels.
    pub labels: [&'static Label; N],
    /// Most series that one program exports of it.
    pub series: u32,
    /// Where it is exported.
    pub page: Page,
    /// What it says, in one sentence without a dot.
    pub help: &'static str,
}

/// A declaration, whatever its number of labels.
#[derive(Debug, Clone, Copy)]
pub struct Declaration {
    /// As a query names it.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its labels.
    pub labels: &'static [&'static Label],
    /// Most series that one program exports of it.
    pub series: u32,
    /// Where it is exported.
    pub page: Page,
    /// What it says.
    pub help: &'static str,
}

impl<const N: usize> Metric<N> {
    /// The same without its number of labels in the type.
    #[must_use]
    pub const fn declaration(&'static self) -> Declaration {
        Declaration {
            name: self.name,
            kind: self.kind,
            labels: &self.labels,
            series: self.series,
            page: self.page,
            help: self.help,
        }
    }

    /// Its labels with these values.
    #[must_use]
    pub fn with<V>(&self, values: [V; N]) -> [(&'static str, V); N] {
        let mut names = self.labels.iter();
        values.map(|value| (names.next().map_or("", |label| label.name), value))
    }
}

/// What does not fit between the text of a page and its declarations, one finding for each; for tests.
#[must_use]
pub fn check(text: &str, page: Page) -> Vec<String> {
    let mut findings = Vec::new();
    let declared: Vec<_> = table::ALL.iter().filter(|it| it.page == page).collect();
    let types: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    for it in &declared {
        let family = it.kind.family(it.name);
        match types.iter().find(|(name, _)| *name == family) {
            None => findings.push(format!("{} is declared and not exported", it.name)),
            Some((_, kind)) if *kind != it.kind.name() => {
                findings.push(format!("{} is a {kind}", it.name));
            }
            Some(_) => {}
        }
    }
    let mut counts = BTreeMap::<&str, u32>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let Some(it) = declared.iter().find(|it| it.has_series(name)) else {
            findings.push(format!("{name} is exported and not declared"));
            continue;
        };
        *counts.entry(it.name).or_default() += 1;
        let mut labels = labels(line);
        if it.kind == Kind::Histogram {
            labels.retain(|label| *label != "le");
        }
        let names: Vec<_> = it.labels.iter().map(|label| label.name).collect();
        if labels != names {
            findings.push(format!("{name} has the labels {labels:?} for {names:?}"));
        }
    }
    for it in declared {
        let series = counts.get(it.name).copied().unwrap_or_default();
        if series > it.series {
            findings.push(format!("{} has {series} series for {}", it.name, it.series));
        }
    }
    findings
}

impl Declaration {
    /// Whether each virtual device has a series of it.
    #[must_use]
    pub fn is_of_device(&self) -> bool {
        self.labels.contains(&&table::DEVICE)
    }

    /// Whether it has series of this name.
    #[must_use]
    pub fn has_series(&self, name: &str) -> bool {
        match self.kind {
            Kind::Histogram => {
                let mut ends = ["_bucket", "_sum", "_count"].into_iter();
                ends.any(|end| name.strip_suffix(end) == Some(self.name))
            }
            Kind::Counter | Kind::Gauge | Kind::Info => name == self.name,
        }
    }
}

/// The names of a line's labels. A value may have any character, escaped.
fn labels(line: &str) -> Vec<&str> {
    let (mut names, mut rest) = (Vec::new(), line);
    let Some((_, after)) = rest.split_once('{') else {
        return names;
    };
    rest = after;
    while let Some((name, value)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(','));
        let mut escaped = false;
        let end = value.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = end.map_or("", |end| &value[end + 1..]);
        if rest.starts_with('}') {
            break;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::table::ALL;
    use super::*;

    #[test]
    fn names_and_help_follow_the_conventions() {
        let mut names = BTreeSet::new();
        for it in ALL {
            assert!(names.insert(it.name), "{} is declared twice", it.name);
            assert!(it.name.starts_with("weft_"), "{}", it.name);
            let suffix = it.kind.suffix();
            assert!(it.name.ends_with(suffix), "{} without {suffix}", it.name);
            assert!(
                it.kind == Kind::Counter || !it.name.ends_with("_total"),
                "{} is no counter",
                it.name
            );
            assert!(
                !it.help.ends_with('.'),
                "the encoder adds the dot: {}",
                it.help
            );
            assert!(it.series > 0, "{}", it.name);
            for unit in ["_ms", "_us", "_ns", "_kib", "_mib", "_percent"] {
                let stem = it.name.strip_suffix(suffix).unwrap_or_default();
                assert!(!stem.ends_with(unit), "{} has no base unit", it.name);
            }
        }
    }

    #[test]
    fn an_agent_has_at_most_2000_series_and_six_for_each_device_and_an_operator_500() {
        let sum = |page| -> u32 {
            let of_page = ALL.iter().filter(|it| it.page == page);
            let others = of_page.filter(|it| !it.is_of_device());
            others.map(|it| it.series).sum()
        };
        assert!(sum(Page::Agent) <= 2000, "{}", sum(Page::Agent));
        assert!(sum(Page::Operator) <= 500, "{}", sum(Page::Operator));
        let of_devices = ALL.iter().filter(|it| it.is_of_device());
        assert_eq!(of_devices.count(), 6);
    }

    #[test]
    fn every_metric_that_the_guides_name_is_declared() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let guides = ["operations.md", "links.md", "security.md"].map(|name| docs.join(name));
        let runbooks = std::fs::read_dir(docs.join("runbooks")).unwrap();
        let runbooks = runbooks.map(|page| page.unwrap().path());
        let mut count = 0;
        for path in guides.into_iter().chain(runbooks) {
            let guide = path.display();
            let text = std::fs::read_to_string(&path).unwrap();
            let is_of_name = |c: char| c.is_ascii_lowercase() || c == '_';
            let words = text.split(|c: char| !is_of_name(c));
            let names: BTreeSet<_> = words.filter(|word| word.starts_with("weft_")).collect();
            count += names.len();
            for name in names {
                assert!(ALL.iter().any(|it| it.name == name), "{name} in {guide}");
            }
        }
        assert!(count > 30, "{count}");
    }

    #[test]
    fn a_page_that_differs_from_the_declarations_is_found() {
        let text = "# TYPE weft_connections counter\nweft_connections{a=\"1\"} 2\nweft_no 1\n";
        let findings = check(text, Page::Agent);
        for finding in [
            "weft_connections is a counter",
            "weft_connections has the labels [\"a\"] for []",
            "weft_no is exported and not declared",
            "weft_job_bytes_total is declared and not exported",
        ] {
            assert!(
                findings.iter().any(|it| it == finding),
                "{finding} in {findings:#?}"
            );
        }
    }

    #[test]
    fn labels_are_read_whatever_their_values_have() {
        let line = r#"weft_job_state{job_namespace="a\"b=\"c",job_name="x}\\",state="y"} 1"#;
        assert_eq!(labels(line), ["job_namespace", "job_name", "state"]);
    }
}
