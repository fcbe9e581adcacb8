//! Reads a page of metrics, by the same declarations that programs export by.

use std::collections::BTreeMap;

use crate::Metric;

/// What a page says, by the name of a series' metric.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples(BTreeMap<String, Vec<Sample>>);

/// One series and its value.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    labels: Vec<(String, String)>,
    value: f64,
}

/// Why a text is no page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadPage {
    /// The text ends before `# EOF`.
    Unfinished,
    /// There is something behind `# EOF`.
    AfterEnd,
    /// A line is no sample.
    Line(usize),
}

impl std::fmt::Display for BadPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unfinished => write!(f, "the page of metrics ends before # EOF; read it again"),
            Self::AfterEnd => write!(f, "the page of metrics goes on behind # EOF"),
            Self::Line(number) => write!(
                f,
                "line {number} of the page of metrics is no sample: NAME{{LABEL=\"VALUE\"}} NUMBER"
            ),
        }
    }
}

impl std::error::Error for BadPage {}

impl Samples {
    /// Reads a page, which is whole: it ends with `# EOF`.
    ///
    /// # Errors
    /// It is not whole, or a line is neither a comment nor a sample.
    pub fn parse(page: &str) -> Result<Self, BadPage> {
        let mut samples = Self::default();
        let mut lines = page.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            if line == "# EOF" {
                return lines.next().map_or(Ok(samples), |_| Err(BadPage::AfterEnd));
            }
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, sample) = sample(line).ok_or(BadPage::Line(index + 1))?;
            samples.0.entry(name.to_owned()).or_default().push(sample);
        }
        Err(BadPage::Unfinished)
    }

    /// The series of a metric: the values of its labels, in their order, and its value. A series without one of
    /// these labels is one of another release, and left out.
    pub fn series<'a, const N: usize>(
        &'a self,
        metric: &'static Metric<N>,
    ) -> impl Iterator<Item = ([&'a str; N], f64)> + 'a {
        let samples = self.0.get(metric.name).into_iter().flatten();
        samples.filter_map(move |sample| {
            let values = metric.labels.map(|label| {
                let mut labels = sample.labels.iter();
                let found = labels.find(|(name, _)| name == label.name);
                found.map(|(_, value)| value.as_str())
            });
            values
                .iter()
                .all(Option::is_some)
                .then(|| (values.map(Option::unwrap_or_default), sample.value))
        })
    }

    /// The value of a metric without labels; none where the page does not have it.
    #[must_use]
    pub fn value(&self, metric: &'static Metric<0>) -> Option<f64> {
        self.series(metric).next().map(|(_, value)| value)
    }
}

/// `NAME NUMBER`, or `NAME{LABEL="VALUE",…} NUMBER`. A timestamp behind the number is not read.
fn sample(line: &str) -> Option<(&str, Sample)> {
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(after) = rest.strip_prefix('{') {
        rest = after;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.to_owned(), value));
            rest = match after.strip_prefix(',') {
                Some(next) if !next.starts_with('}') => next,
                Some(_) => return None,
                None if after.starts_with('}') => after,
                None => return None,
            };
        }
        rest = &rest[1..];
    }
    let mut numbers = rest.strip_prefix(' ')?.split(' ');
    let value = numbers.next()?.parse().ok()?;
    let is_name = !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit());
    is_name.then_some((name, Sample { labels, value }))
}

/// The text up to the quote that is not escaped, and what is behind that quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('"' | '\\') => c,
                _ => return None,
            }),
            (_, c) => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, text};
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::{Out, table};

    #[test]
    fn a_page_is_read_by_the_declarations() {
        let page = "# HELP weft_connections Connections in the engine.\n\
                    # TYPE weft_connections gauge\nweft_connections 3\n\
                    weft_peer_rtt_seconds{peer=\"10.0.0.2\",of_paths=\"max\"} 0.000125\n\
                    weft_peer_rtt_seconds{of_paths=\"min\",peer=\"10.0.0.2\"} 1e-05\n\
                    weft_packets_sent_total{} 7 1700000000.5\n# EOF\n";
        let samples = Samples::parse(page).unwrap();
        assert_eq!(samples.value(&table::CONNECTIONS), Some(3.0));
        assert_eq!(samples.value(&table::PACKETS_SENT), Some(7.0));
        assert_eq!(samples.value(&table::ARMED_BYTES), None);
        let round_trips: Vec<_> = samples.series(&table::PEER_RTT).collect();
        let expected = [
            (["10.0.0.2", "max"], 0.000_125),
            (["10.0.0.2", "min"], 1e-5),
        ];
        assert_eq!(round_trips, expected);
    }

    #[test]
    fn values_of_labels_may_have_any_character() {
        let page =
            "weft_job_attempt{job_namespace=\"a\\\"b=\\\"c,}\",job_name=\"x\\\\\\ny\"} 1\n# EOF\n";
        let samples = Samples::parse(page).unwrap();
        let series: Vec<_> = samples.series(&table::JOB_ATTEMPT).collect();
        assert_eq!(series, [(["a\"b=\"c,}", "x\\\ny"], 1.0)]);
    }

    #[test]
    fn what_is_written_is_read_whatever_characters_a_label_has() {
        #[derive(Debug)]
        struct Job;
        const NAME: &str = "x\\\ny\"} 2 {é=\"";

        impl Collector for Job {
            fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
                let labels = ["team", NAME].map(str::to_owned);
                Out::from(encoder).put(&table::JOB_ATTEMPT, [(labels, 1u64)])
            }
        }

        let mut registry = Registry::default();
        registry.register_collector(Box::new(Job));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        let samples = Samples::parse(&page).unwrap();
        let series: Vec<_> = samples.series(&table::JOB_ATTEMPT).collect();
        assert_eq!(series, [(["team", NAME], 1.0)], "{page}");
    }

    #[test]
    fn a_series_of_another_release_that_lacks_a_label_is_left_out() {
        let page = "weft_peer_connections{peer=\"10.0.0.2\"} 1\n# EOF\n";
        let samples = Samples::parse(page).unwrap();
        assert_eq!(samples.series(&table::PEER_CONNECTIONS).count(), 0);
    }

    #[test]
    fn what_is_no_page_is_refused_with_the_line() {
        assert_eq!(Samples::parse(""), Err(BadPage::Unfinished));
        let cut = Samples::parse("weft_connections 3\nweft_conn");
        assert_eq!(cut, Err(BadPage::Line(2)));
        assert_eq!(Samples::parse("# EOF\na 1\n"), Err(BadPage::AfterEnd));
        for line in [
            "a",
            "a x",
            "{} 1",
            "1a 1",
            "a{b=\"c} 1",
            "a{b=\"c\"",
            "a{b=\"c\",} 1",
            "a{b=\"c\"d=\"e\"} 1",
            "a{b=\"\\x\"} 1",
            "a{b=c} 1",
            "a{}1",
            "<html>",
        ] {
            let refused = Samples::parse(&format!("{line}\n# EOF\n"));
            assert_eq!(refused, Err(BadPage::Line(1)), "{line}");
        }
    }
}
