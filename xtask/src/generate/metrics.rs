//! docs/metrics.md, from the declarations.

use std::fmt::Write as _;

use weft_metrics::{Kind, Page, table};

/// A page's metrics, and the labels of all.
pub(super) fn reference() -> String {
    let mut text = String::new();
    for (page, title) in [
        (Page::Agent, "`/metrics` of each agent, port 7401"),
        (Page::Operator, "`/metrics` of each operator, port 7411"),
        (Page::Paths, "`/metrics/paths` of each agent, port 7401"),
    ] {
        let of_page = table::ALL.iter().filter(|it| it.page == page);
        let others = of_page.clone().filter(|it| !it.is_of_device());
        let series: u32 = others.map(|it| it.series).sum();
        let devices = match of_page.clone().filter(|it| it.is_of_device()).count() {
            0 => String::new(),
            count => format!(", and {count} for each device that a pod has"),
        };
        let lines = writeln!(
            text,
            "## {title}\n\nAt most {series} series{devices}.\n\n| metric | type | labels | series | says |\n|---|---|---|---|---|"
        );
        lines.expect("a String takes everything");
        for it in of_page {
            let labels: Vec<_> = it.labels.iter().map(|label| label.name).collect();
            let kind = match it.kind {
                Kind::Info => "info, always 1",
                kind => kind.name(),
            };
            let line = writeln!(
                text,
                "| `{}` | {kind} | {} | {} | {} |",
                it.name,
                labels.join(", "),
                it.series,
                it.help
            );
            line.expect("a String takes everything");
        }
        text.push('\n');
    }
    text += "## Labels\n\n| label | says |\n|---|---|\n";
    for label in table::LABELS {
        let line = writeln!(text, "| `{}` | {} |", label.name, label.says);
        line.expect("a String takes everything");
    }
    text
}
