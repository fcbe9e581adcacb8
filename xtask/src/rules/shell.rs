//! Shell scripts and the Makefile: nothing fails silently.

use super::{Finding, Rule, Weight};
use crate::tree::{File, Tree};

pub(super) const STRICT: Rule = Rule {
    id: "strict-shell",
    says: "A shell script sets `set -euo pipefail` before it does anything.",
    why: "Without it a failed command, an unset variable or a failed pipe goes on as a success.",
    weight: Weight::Error,
    check: strict,
};

pub(super) const SWALLOWED: Rule = Rule {
    id: "swallowed-failure",
    says: "No script, Makefile or CI file swallows a failure.",
    why: "A check that cannot fail checks nothing.",
    weight: Weight::Error,
    check: swallowed,
};

const SET: &str = "set -euo pipefail";

/// In two halves each, so that a search for them does not find this file.
const SWALLOWS: &[(&str, &str)] = &[
    ("|| tr", "ue"),
    ("|| ", ":"),
    ("set +", "e"),
    ("|| exit ", "0"),
    ("continue-on-", "error"),
];

fn strict(tree: &Tree) -> Vec<Finding> {
    tree.files()
        .iter()
        .filter(|file| file.is_shell())
        .filter(|file| {
            let first = file
                .lines()
                .map(|(_, line)| line.trim())
                .find(|line| !line.is_empty() && !line.starts_with('#'));
            first != Some(SET)
        })
        .map(|file| Finding::of(&file.path, format!("the first command is not `{SET}`")))
        .collect()
}

fn swallowed(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files().iter().filter(|file| runs_commands(file)) {
        for (number, line) in file.lines() {
            let command = line.split(" #").next().unwrap_or_default();
            if command.trim_start().starts_with('#') {
                continue;
            }
            for (first, second) in SWALLOWS {
                let swallow = [*first, *second].concat();
                if command.contains(&swallow) {
                    let message = format!("`{swallow}`: let it fail, or test for the case by name");
                    findings.push(Finding::at(&file.path, number, message));
                }
            }
        }
    }
    findings
}

fn runs_commands(file: &File) -> bool {
    file.is_shell()
        || file.path.ends_with("Makefile")
        || file.path.starts_with(".ci/")
        || file.path.starts_with(".github/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_strict_from_its_first_command() {
        let tree = Tree::of([
            (
                "a.sh",
                "#!/usr/bin/env bash\n# What it does.\nset -euo pipefail\nls\n",
            ),
            ("b.sh", "#!/usr/bin/env bash\nls\nset -euo pipefail\n"),
            (".ci/run", "#!/usr/bin/env bash\nls\n"),
            ("c.py", "#!/usr/bin/env python3\n"),
        ]);
        let places: Vec<String> = strict(&tree)
            .into_iter()
            .map(|finding| finding.place)
            .collect();
        assert_eq!(places, ["b.sh", ".ci/run"]);
    }

    #[test]
    fn a_swallowed_failure_is_found_where_commands_run() {
        let line = format!("\tcargo test {}\n", ["|| tr", "ue"].concat());
        let comment = format!("# never {line}");
        let tree = Tree::of([("Makefile", &line), ("a.sh", &comment), ("a.md", &line)]);
        let findings = swallowed(&tree);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "Makefile");
    }
}
